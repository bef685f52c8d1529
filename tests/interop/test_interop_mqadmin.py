"""Apache's mqadmin prints against our name server what it prints against Apache's.

The brokers register with both kinds of name server, so that the two outputs speak of the same
brokers and are recorded in the same run. What differs by nature (the name server's own address,
figures that move, the order of sets) is made equal first; nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import Cluster, subject_is_apache
from peers import MqAdmin, NameServer, Peers
from wire import Probe

pytestmark = pytest.mark.interop


class Tool:
    """mqadmin, run twice at a time: against the name server under test and against Apache's."""

    def __init__(self, peers: Peers, cluster: Cluster) -> None:
        self._peers = peers
        self._cluster = cluster

    def both(self, *arguments: str) -> tuple[str, str]:
        """Return what it printed, the name server's address left out."""
        servers = (self._cluster.subjects[0], self._cluster.apache)
        with ThreadPoolExecutor(2) as pool:
            subject, apache = pool.map(lambda server: self.one(server, *arguments), servers)
        return subject, apache

    def one(self, server: NameServer, *arguments: str) -> str:
        """Run it against one name server."""
        kind = "apache" if server is self._cluster.apache else "subject"
        tool = MqAdmin(self._peers, self._cluster.home / f"mqadmin-{kind}")
        printed = tool.run(server.address, *arguments)
        return printed.replace(server.address, "NAMESRV")


@pytest.fixture(scope="module")
def tool(peers: Peers, cluster: Cluster) -> Tool:
    """The tool on the shared cluster."""
    return Tool(peers, cluster)


def same(text: str) -> str:
    """Compare as it is."""
    return text


def lines_in_no_order(text: str) -> str:
    """Compare a list that comes out of a hash table."""
    return "\n".join(sorted(text.splitlines()))


def without_figures(text: str) -> str:
    """Compare a table whose rows end with figures that move from one second to the next."""
    rows = []
    for line in text.splitlines():
        head, figures = line[:90], line[90:]
        rows.append(head + re.sub(r"\s*\d+(\.\d+)?", " #", figures))
    return "\n".join(sorted(rows))


def without_remark(text: str) -> str:
    """Compare a stack trace: its remark, to which the tool may add a line, is ours to word."""
    return re.sub(r"DESC: .*\n(?:[^\t\n].*\n)*", "DESC: ...\n", text)


READING: tuple[tuple[tuple[str, ...], Callable[[str], str], str], ...] = (
    (("clusterList",), without_figures, "broker-a"),
    (("clusterList", "-m"), without_figures, "broker-b"),
    (("topicList",), lines_in_no_order, "TBW102"),
    (("topicList", "-c"), lines_in_no_order, "interop"),
    (("topicRoute", "-t", "TBW102"), lines_in_no_order, '"readQueueNums":8'),
    (("topicRoute", "-t", "TBW102", "-l"), lines_in_no_order, "broker-a"),
    (("topicRoute", "-t", "Nobody"), without_remark, "No topic route info in name server"),
    (("topicClusterList", "-t", "TBW102"), same, "interop"),
    (("topicStatus", "-t", "SELF_TEST_TOPIC"), lines_in_no_order, "broker-a"),
)


@pytest.fixture(scope="module")
def readings(tool: Tool) -> dict[tuple[str, ...], tuple[str, str]]:
    """All of them, a few at a time: the tool mostly waits for its own shutdown."""
    commands = [arguments for arguments, _, _ in READING]
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(commands, pool.map(lambda one: tool.both(*one), commands), strict=True))


@pytest.mark.parametrize(
    ("arguments", "normalise", "contains"), READING, ids=[" ".join(row[0]) for row in READING]
)
def test_a_reading_command_prints_the_same(
    readings: dict[tuple[str, ...], tuple[str, str]],
    arguments: tuple[str, ...],
    normalise: Callable[[str], str],
    contains: str,
) -> None:
    subject, apache = readings[arguments]
    assert contains in apache, apache
    assert normalise(subject) == normalise(apache)


def test_a_shared_setting_is_put_and_deleted(tool: Tool, cluster: Cluster) -> None:
    subject, apache = tool.both("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    assert "create or update kv config to namespace success" in apache
    assert subject == apache
    for server in (*cluster.subjects[:1], cluster.apache):
        with Probe(server.address) as probe:
            answer = probe.call(101, {"namespace": "space", "key": "key"})
            assert answer.fields == {"value": "value"}

    subject, apache = tool.both("deleteKvConfig", "-s", "space", "-k", "key")
    assert "delete kv config from namespace success" in apache
    assert subject == apache


def test_write_permission_is_taken_from_a_broker_and_given_back(tool: Tool) -> None:
    wiped, wiped_apache = tool.both("wipeWritePerm", "-b", "broker-a")
    without, without_apache = tool.both("topicRoute", "-t", "SELF_TEST_TOPIC")
    added, added_apache = tool.both("addWritePerm", "-b", "broker-a")
    restored, restored_apache = tool.both("topicRoute", "-t", "SELF_TEST_TOPIC")
    assert re.search(
        r"wipe write perm of broker\[broker-a\] in name server\[NAMESRV\] OK, \d+", wiped
    )
    assert wiped == wiped_apache
    assert '"perm":4' in without_apache
    assert lines_in_no_order(without) == lines_in_no_order(without_apache)
    assert re.search(
        r"add write perm of broker\[broker-a\] in name server\[NAMESRV\] OK, \d+", added
    )
    assert added == added_apache
    assert '"perm":4' not in restored_apache
    assert lines_in_no_order(restored) == lines_in_no_order(restored_apache)


def test_the_configuration_is_printed_line_by_line(tool: Tool) -> None:
    subject, apache = tool.both("getNamesrvConfig")
    head, settings = parse_configuration(subject)
    apache_head, apache_settings = parse_configuration(apache)
    assert head == apache_head == "============NAMESRV============"
    assert len(apache_settings) == 21
    # Ours has settings of its own as well. The probes compare the values.
    assert apache_settings.keys() <= settings.keys()


def parse_configuration(text: str) -> tuple[str, dict[str, str]]:
    """Return the heading and the settings; every line must have the tool's own shape."""
    head, *lines = [line for line in text.splitlines() if line.strip()]
    settings = {}
    for line in lines:
        matched = re.fullmatch(r"(\S+) *=  (.*)", line)
        assert matched, line
        settings[matched[1]] = matched[2]
    return head, settings


def test_the_configuration_is_updated(tool: Tool) -> None:
    update = ("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    subject, apache = tool.both(*update)
    assert "update name server config success!" in apache
    assert subject == apache


def test_a_path_in_the_configuration_is_not_updated(tool: Tool) -> None:
    subject, apache = tool.both("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/nowhere")
    assert "CODE: 16" in apache
    assert without_remark(subject) == without_remark(apache)


def test_a_command_reaches_every_name_server_it_is_given(
    tool: Tool, peers: Peers, cluster: Cluster
) -> None:
    printed = MqAdmin(peers, cluster.home / "mqadmin-both").run(cluster.address, "getNamesrvConfig")
    for server in cluster.subjects:
        assert f"============{server.address}============" in printed


def test_a_topic_is_made_and_deleted(tool: Tool, cluster: Cluster) -> None:
    def act(server: NameServer, topic: str) -> list[str]:
        made = tool.one(server, "updateTopic", "-c", "interop", "-t", topic)
        route = tool.one(server, "topicRoute", "-t", topic)
        deleted = tool.one(server, "deleteTopic", "-c", "interop", "-t", topic)
        gone = tool.one(server, "topicRoute", "-t", topic)
        texts = lines_in_no_order(made), lines_in_no_order(route), deleted, without_remark(gone)
        return [text.replace(topic, "TOPIC") for text in texts]

    with ThreadPoolExecutor(2) as pool:
        subject, apache = pool.map(
            act, (cluster.subjects[0], cluster.apache), ("DoomedOne", "DoomedTwo")
        )
    made, route, deleted, gone = apache
    assert "create topic to 127.0.0.1" in made
    assert '"brokerName":"broker-a"' in route
    assert "delete topic [TOPIC] from cluster [interop] success." in deleted
    assert "CODE: 17" in gone
    assert subject == apache


# After the write permissions: orders and topics give the brokers a new data version, and what they
# register then undoes a wipe.
def test_an_order_is_put_read_and_deleted(tool: Tool) -> None:
    order = ("updateOrderConf", "-t", "TBW102")
    put, put_apache = tool.both(*order, "-m", "put", "-v", "broker-a:4;broker-b:4")
    read, read_apache = tool.both(*order, "-m", "get")
    route, route_apache = tool.both("topicRoute", "-t", "TBW102")
    deleted, deleted_apache = tool.both(*order, "-m", "delete")
    gone, gone_apache = tool.both(*order, "-m", "get")
    assert put == put_apache
    assert "orderConf=[broker-a:4;broker-b:4]" in read_apache
    assert read == read_apache
    assert '"orderTopicConf":"broker-a:4;broker-b:4"' in route_apache
    assert lines_in_no_order(route) == lines_in_no_order(route_apache)
    assert deleted == deleted_apache
    assert without_remark(gone) == without_remark(gone_apache)


def test_which_name_server_was_tested(cluster: Cluster) -> None:
    """The comparison above is worth nothing if both sides were the same program by accident."""
    same_program = cluster.subjects[0].command[0] == cluster.apache.command[0]
    assert same_program == subject_is_apache()
