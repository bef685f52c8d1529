"""Apache's mqadmin prints of our broker what it prints of Apache's.

Two clusters stand side by side, each with a name server of ours, one broker and one consumer. Both
get the same commands in the same order, so that every output can be laid beside the other's. What
differs by nature (addresses, ids, times, the speed of an answer) is made equal first; nothing else.

Nearly all of the tool's commands run in one process for each side; starting a process for each
would take minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from admin_session import AdminSession
from our_broker import OurBroker
from peers import (
    ApacheBroker,
    JavaClient,
    MqAdmin,
    OurNameServer,
    Peers,
    Process,
    free_broker_port,
    wait_until,
)
from wire import Probe

pytestmark = pytest.mark.interop

TOPIC, GROUP = "Orders", "billing"
RECORD_BYTES = 205  # Of each message that sendMessage makes below.


@dataclass
class Side:
    """One cluster, and the tool that looks at it."""

    name_server: OurNameServer
    broker: OurBroker | ApacheBroker
    tool: AdminSession
    consumer: JavaClient
    home: Path

    def run(self, *arguments: str) -> str:
        """Run a command; what it prints has the names BROKER, NAMESRV and HOME in it."""
        words = [word.replace("BROKER", self.broker.address) for word in arguments]
        words = [word.replace("HOME", str(self.home)) for word in words]
        words = [word.replace("OFFSET_ID_", self.offset_id_prefix) for word in words]
        return self.anonymous(self.tool.run(*words))

    def anonymous(self, text: str) -> str:
        """Text without the names of this side."""
        text = text.replace(self.offset_id_prefix, "OFFSET_ID_")
        text = text.replace(self.broker.address, "BROKER").replace(str(self.home), "HOME")
        return text.replace(self.name_server.address, "NAMESRV")

    @property
    def offset_id_prefix(self) -> str:
        """What every offset id of the broker begins with."""
        return f"7F000001{self.broker.port:08X}"


class Pair:
    """Our side and Apache's, used at the same time."""

    def __init__(self, ours: Side, apache: Side, pool: ThreadPoolExecutor) -> None:
        self.ours = ours
        self.apache = apache
        self.pool = pool

    @property
    def sides(self) -> tuple[Side, Side]:
        """Ours first."""
        return self.ours, self.apache

    def run(self, *arguments: str) -> tuple[str, str]:
        """Run a command on both sides."""
        ours, apache = self.pool.map(lambda side: side.run(*arguments), self.sides)
        return ours, apache


@pytest.fixture(scope="module")
def pair(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("mqadmin")
    # A child dies with the thread that started it, so the threads must outlive the processes.
    pool = ThreadPoolExecutor(4)
    name_servers = [OurNameServer(home / f"namesrv-{kind}") for kind in ("ours", "apache")]
    ours, apache = (server.address for server in name_servers)
    common = {"registerNameServerPeriod": "10000", "autoCreateTopicEnable": "true"}
    brokers: tuple[OurBroker, ApacheBroker] = (
        OurBroker(
            home / "ours", name="broker-a", name_servers=[ours], port=free_broker_port(),
            settings=common,
        ),
        ApacheBroker(
            peers, home / "apache", name="broker-a", name_servers=[apache], settings=common
        ),
    )  # fmt: skip

    def make(kind: str, server: OurNameServer, broker: OurBroker | ApacheBroker) -> Side:
        tool = AdminSession(peers, home / kind / "tool", server.address)
        consumer = JavaClient(
            peers, home / kind / "consumer", "listen", server.address, TOPIC, GROUP, "replying"
        )
        return Side(server, broker, tool, consumer, home / kind)

    sides = [make("ours", name_servers[0], brokers[0]), make("apache", name_servers[1], brokers[1])]
    processes: list[Process] = [*name_servers]
    try:
        for server in name_servers:
            server.start()
        processes += [*brokers, *(side.tool for side in sides)]
        list(pool.map(lambda process: process.start(), processes[len(name_servers) :]))
        brokers[1].wait_registered([name_servers[1]])
        made = Pair(sides[0], sides[1], pool)
        made.run("updateTopic", "-b", "BROKER", "-t", TOPIC, "-r", "2", "-w", "2")
        processes += [side.consumer for side in sides]
        list(pool.map(lambda side: side.consumer.start(), sides))
        for side in sides:
            side.consumer.wait_for_line("ready")
        for number in range(4):
            made.run(*_send(number))
        list(pool.map(_wait_committed, sides))
        yield made
    finally:
        for process in reversed(processes):
            process.kill()
        pool.shutdown()


def _send(number: int) -> tuple[str, ...]:
    return (
        "sendMessage", "-t", TOPIC, "-p", f"body-{number}", "-k", f"key-{number}", "-c", "TagA",
        "-b", "broker-a", "-i", str(number % 2),
    )  # fmt: skip


def _wait_committed(side: Side) -> None:
    """Until the consumer has all four messages and its offsets are at the broker."""

    def is_committed() -> bool:
        with Probe(side.broker.address) as probe:
            for queue_id in ("0", "1"):
                answer = probe.call(
                    14, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id}
                )
                if answer.code != 0 or answer.fields["offset"] != "2":
                    return False
        return True

    wait_until(is_committed, timeout_s=30, what="the consumer's offsets", every_s=0.2)


# What differs by nature.


def same(text: str) -> str:
    """Compare as it is."""
    return text


def lines_in_no_order(text: str) -> str:
    """Compare a list that comes out of a hash table."""
    return "\n".join(sorted(text.splitlines()))


def without_ids(text: str) -> str:
    """Leave out unique ids, times, and the ports that clients happened to get."""
    text = re.sub(r"\b[0-9A-F]{56}\b|\b(?!7F000001)[0-9A-F]{32}\b", "UNIQUE_ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME", text)
    text = re.sub(r"\b17\d{11}\b", "TIME_MS", text)
    text = re.sub(r"\S+@\d+#\d+", "CLIENT", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT_ADDRESS", text)
    return re.sub(r" {2,}", "  ", text)


def without_figures(text: str) -> str:
    """Leave out all that without_ids does, and every number with a fraction."""
    return lines_in_no_order(re.sub(r" *\d+\.\d+", " #", without_ids(text)))


def progress(text: str) -> str:
    """Compare figures, without the retry topic: when a consumer first commits there is chance."""
    lines = without_figures(text).splitlines()
    return "\n".join(line for line in lines if not line.startswith("%RETRY%"))


def without_numbers(text: str) -> str:
    """Leave out every number, where a command shows how long something took."""
    return re.sub(r"\d+(\.\d+)?", "#", without_ids(text))


def without_remark(text: str) -> str:
    """Compare a stack trace: its remark is ours to word."""
    return re.sub(r"DESC: .*\n(?:[^\t\n].*\n)*", "DESC: ...\n", text)


def without_evaluation(text: str) -> str:
    """Apache's broker evaluates a filter for entries with extensions only; ours always."""
    return re.sub(r"eval=\w+", "eval=?", without_ids(text))


Command = tuple[Sequence[str], Callable[[str], str], str]

# A command, how its outputs are made comparable, and what Apache's must contain.
READING: tuple[Command, ...] = (
    (("topicRoute", "-t", TOPIC), same, '"readQueueNums":2'),
    (("topicStatus", "-t", TOPIC), without_ids, "broker-a"),
    (("topicStatus", "-t", "Nobody"), without_remark, "CODE: 17"),
    (("topicClusterList", "-t", TOPIC), same, "interop"),
    (("topicList", "-c"), lines_in_no_order, GROUP),
    (("clusterList",), without_figures, "V4_9_8"),
    (("clusterList", "-m"), without_numbers, "broker-a"),
    (("producerConnection", "-g", f"{GROUP}-replies", "-t", TOPIC), without_ids, "JAVA"),
    (("producerConnection", "-g", "nobody", "-t", TOPIC), without_remark, "CODE: 1 "),
    (("producer", "-b", "BROKER"), without_ids, f"({GROUP}-replies)"),
    (("consumerConnection", "-g", GROUP), without_ids, "CONSUME_FROM_FIRST_OFFSET"),
    (("consumerConnection", "-g", "nobody"), without_remark, "CODE: 17"),
    (("consumerProgress", "-g", GROUP), progress, "Diff Total: 0"),
    (("consumerProgress", "-g", GROUP, "-s", "true"), progress, "Diff Total: 0"),
    (("consumerProgress",), without_ids, "CLUSTERING"),
    (("consumerStatus", "-g", GROUP), without_ids, "Rebalance OK"),
    (("brokerConsumeStats", "-b", "BROKER"), progress, "Diff Total: 0"),
    (("brokerConsumeStats", "-b", "BROKER", "-o", "true"), progress, "Diff Total: 0"),
    (("statsAll", "-t", TOPIC), without_numbers, GROUP),
    (("statsAll", "-a"), without_numbers, GROUP),
    (("queryMsgByKey", "-t", TOPIC, "-k", "key-1"), without_ids, "UNIQUE"),
    (("queryMsgByKey", "-t", TOPIC, "-k", "nothing"), without_remark, "CODE: 208"),
    (("queryMsgById", "-i", f"OFFSET_ID_{RECORD_BYTES:016X}"), without_ids, "Queue ID:  1"),
    (("queryMsgById", "-i", f"OFFSET_ID_{1 << 40:016X}"), without_remark, "CODE: 1"),
    (("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "0"), without_ids,
     "trackType=CONSUMED"),
    (("printMsg", "-t", TOPIC, "-d", "true"), without_ids, "BODY: body-3"),
    (("printMsg", "-t", TOPIC, "-s", "TagB"), without_ids, "maxOffset=2"),
    (("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "0", "-p", "true", "-d", "true"),
     without_ids, "BODY: body-2"),
    (("consumeMessage", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "0", "-c", "2"),
     without_ids, "BODY: body-1"),
    (("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "5"), same, "physicOffset=410"),
    (("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-g", GROUP, "-b", "BROKER"),
     without_evaluation, '"subString":"*"'),
    (("queryCq", "-t", TOPIC, "-q", "9", "-i", "0", "-b", "BROKER"), without_remark, "CODE: 1"),
    (("allocateMQ", "-t", TOPIC, "-i", "1.1.1.1,2.2.2.2"), same, '"queueId":1'),
    (("cleanExpiredCQ", "-b", "BROKER"), same, "success"),
    (("cleanExpiredCQ", "-c", "interop"), same, "success"),
    (("cleanUnusedTopic", "-b", "BROKER"), same, "success"),
    (("deleteExpiredCommitLog", "-b", "BROKER"), same, "success"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "normalise", "contains"), READING, ids=[" ".join(row[0]) for row in READING]
)
def test_a_reading_command_prints_the_same(
    pair: Pair, arguments: Sequence[str], normalise: Callable[[str], str], contains: str
) -> None:
    ours, apache = pair.run(*arguments)
    ours, apache = normalise(ours), normalise(apache)
    assert contains in apache, apache
    assert ours == apache


def test_a_message_is_found_by_its_unique_id_on_both_sides(pair: Pair) -> None:
    def find(side: Side) -> str:
        (unique_id,) = re.findall(
            r"^[0-9A-F]{32,56}(?=\s)", side.run("queryMsgByKey", "-t", TOPIC, "-k", "key-2"), re.M
        )
        return without_ids(side.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", unique_id))

    ours, apache = pair.pool.map(find, pair.sides)
    assert "CommitLog Offset:  410" in apache
    assert f"consumerGroup={GROUP}, trackType=CONSUMED" in apache
    assert ours == apache


def test_a_message_is_handed_to_one_consumer_on_demand(pair: Pair) -> None:
    def consume(side: Side) -> str:
        shown = side.run("consumerConnection", "-g", GROUP)
        (client_id,) = re.findall(r"^(\S+@\d+#\d+)\s", shown, re.M)
        before = side.consumer.lines.count("got body-0")
        printed = side.run(
            "queryMsgById", "-i", f"OFFSET_ID_{0:016X}", "-g", GROUP, "-d", client_id
        )
        wait_until(
            lambda: side.consumer.lines.count("got body-0") == before + 1,
            timeout_s=10,
            what="the message at the consumer",
        )
        return re.sub(r"spentTimeMills=\d+", "spentTimeMills=#", without_ids(printed))

    ours, apache = pair.pool.map(consume, pair.sides)
    assert "consumeResult=CR_SUCCESS" in apache
    assert ours == apache


def test_the_status_of_a_broker_has_every_figure(pair: Pair) -> None:
    def figures(side: Side) -> dict[str, str]:
        lines = [line for line in side.run("brokerStatus", "-b", "BROKER").splitlines() if line]
        found = (line.partition(":") for line in lines)
        return {key.strip(): value.strip() for key, _, value in found}

    ours, apache = pair.pool.map(figures, pair.sides)
    # A key with a directory in its name is the one thing that ours does not show.
    missing = {key for key in apache.keys() - ours.keys() if "/" not in key}
    assert not missing
    for key in ("commitLogMaxOffset", "msgPutTotalTodayNow", "brokerVersionDesc",
                "putMessageSizeTotal", "putMessageTimesTotal", "dispatchBehindBytes"):  # fmt: skip
        assert ours[key] == apache[key], key
    for key in ("putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferedTps"):
        assert len([float(number) for number in ours[key].split()]) == 3, key


def test_settings_are_shown_without_paths_and_changed_by_an_allow_list(pair: Pair) -> None:
    ours, apache = pair.run("getBrokerConfig", "-b", "BROKER")
    known = dict(re.findall(r"^(\S+) *=  (.*)$", ours, re.M))
    assert known["storePathRootDir"] == known["brokerConfigPath"] == "***"
    assert "HOME" not in ours
    for key, value in re.findall(r"^(\S+) *=  (.*)$", apache, re.M):
        is_shared = key.startswith(("max", "flush", "default", "auto", "brokerName", "broker-"))
        if is_shared and key in known and key not in ("maxIndexNum", "maxHashSlotNum"):
            assert known[key] == value, key

    for where in (("-b", "BROKER"), ("-c", "interop")):
        ours, apache = pair.run("updateBrokerConfig", *where, "-k", "traceOn", "-v", "false")
        assert "update broker config success" in apache
        assert ours == apache
    assert "traceOn                                           =  false" in pair.ours.run(
        "getBrokerConfig", "-b", "BROKER"
    )
    for key in ("brokerConfigPath", "storePathRootDir", "rocketmqHome", "namesrvAddr", "nonsense"):
        refused = pair.ours.run("updateBrokerConfig", "-b", "BROKER", "-k", key, "-v", "/x")
        assert "CODE: 16" in refused, key
    wrong = pair.ours.run("updateBrokerConfig", "-b", "BROKER", "-k", "brokerPermission", "-v", "9")
    assert "CODE: 1 " in wrong


def test_a_topic_is_made_changed_and_deleted(pair: Pair) -> None:
    steps = (
        ("updateTopic", "-c", "interop", "-t", "Doomed", "-o", "true", "-r", "3", "-w", "3"),
        ("updateTopicPerm", "-b", "BROKER", "-t", "Doomed", "-p", "4"),
        ("topicRoute", "-t", "Doomed"),
        ("updateTopicPerm", "-c", "interop", "-t", "Doomed", "-p", "6"),
        ("topicRoute", "-t", "Doomed"),
        ("deleteTopic", "-c", "interop", "-t", "Doomed"),
        ("topicRoute", "-t", "Doomed"),
    )
    outputs = []
    for step in steps:
        ours, apache = pair.run(*step)
        assert without_remark(ours) == without_remark(apache), step
        outputs.append(apache)
    assert "orderConf=[broker-a:3]" in outputs[0]
    assert '"perm":4' in outputs[2]
    assert '"perm":6' in outputs[4]
    assert "success" in outputs[5]
    assert "CODE: 17" in outputs[6]


@pytest.mark.parametrize("topic", ["TBW102", "interop", "rmq_sys_x", "a/b", "x" * 200])
def test_a_topic_that_is_not_the_operators_is_refused(pair: Pair, topic: str) -> None:
    ours, apache = pair.run("updateTopic", "-b", "BROKER", "-t", topic)
    assert "CODE: 1 " in apache
    assert without_remark(ours) == without_remark(apache)


def test_a_group_is_made_cloned_into_reset_and_deleted(pair: Pair) -> None:
    steps: tuple[tuple[Sequence[str], str], ...] = (
        (("updateSubGroup", "-b", "BROKER", "-g", "other", "-r", "3"), "retryMaxTimes=3"),
        (("updateSubGroup", "-c", "interop", "-g", "idle", "-q", "2", "-s", "false"), "success"),
        (("getConsumerConfig", "-g", "other"), "retryMaxTimes                           =  3"),
        (("cloneGroupOffset", "-s", GROUP, "-d", "other", "-t", TOPIC), "success"),
        (("resetOffsetByTime", "-g", "other", "-t", TOPIC, "-s", "0"), "rollback consumer offset"),
        (
            ("resetOffsetByTime", "-g", "other", "-t", TOPIC, "-s", "now"),
            "rollback consumer offset",
        ),
        (("resetOffsetByTime", "-g", "nobody", "-t", TOPIC, "-s", "0"), "CODE: 1 "),
        (("resetOffsetByTime", "-g", "other", "-t", "Nowhere", "-s", "0"), "CODE: 17"),
        (("skipAccumulatedMessage", "-g", "other", "-t", TOPIC, "-f", "true"), "broker-a"),
        (("deleteSubGroup", "-b", "BROKER", "-g", "other", "-r", "true"), "success"),
        (("deleteSubGroup", "-c", "interop", "-g", "idle", "-r", "true"), "success"),
        (("getConsumerConfig", "-g", "other"), ""),
    )
    for step, contains in steps:
        ours, apache = pair.run(*step)
        assert contains in apache, (step, apache)
        assert without_remark(ours) == without_remark(apache), step


def test_what_is_exported_has_the_same_shape(pair: Pair) -> None:
    for command, file in (
        ("exportMetadata", "metadata.json"),
        ("exportConfigs", "configs.json"),
        ("exportMetrics", "metrics.json"),
    ):
        ours, apache = pair.run(command, "-c", "interop", "-f", "HOME/export")
        assert "success" in apache
        assert ours == apache
        found = [json.loads((side.home / "export" / file).read_text()) for side in pair.sides]
        assert _shape(found[0]) == _shape(found[1]), file
        if command == "exportMetadata":
            ours_topics, apache_topics = (tables["topicConfigTable"] for tables in found)
            assert ours_topics == apache_topics


def _shape(value: object) -> object:
    """Which keys there are, all the way down; not what they hold."""
    if isinstance(value, dict):
        return {
            key: _shape(item) for key, item in value.items() if key not in ("dataVersion", "cpuNum")
        }
    return type(value).__name__


# These send messages, and a reset moves the consumer: nothing above may come after them.


def test_what_is_sent_is_reported_the_same(pair: Pair) -> None:
    ours, apache = pair.run(*_send(9))
    assert "SEND_OK" in apache
    assert without_ids(ours) == without_ids(apache)
    for command in (
        ("checkMsgSendRT", "-t", TOPIC, "-a", "3", "-s", "16"),
        ("sendMsgStatus", "-b", "broker-a", "-c", "2", "-s", "16"),
    ):
        ours, apache = pair.run(*command)
        assert "true" in apache or "SEND_OK" in apache
        assert without_numbers(ours) == without_numbers(apache)


def test_a_consumer_that_is_online_goes_back_and_consumes_again(pair: Pair) -> None:
    def go_back(side: Side) -> str:
        before = side.consumer.lines.count("got body-3")
        printed = side.run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
        # Java's consumer stops, waits ten seconds, and begins again where it was told to.
        wait_until(
            lambda: side.consumer.lines.count("got body-3") > before,
            timeout_s=40,
            what="the messages once more",
            every_s=0.2,
        )
        return printed

    ours, apache = pair.pool.map(go_back, pair.sides)
    assert "rollback consumer offset by specified group[billing]" in apache
    assert ours == apache


def test_the_tool_runs_as_a_program_of_its_own(pair: Pair, peers: Peers, tmp_path: Path) -> None:
    """What the session above does must be what an operator gets."""
    side = pair.ours
    printed = MqAdmin(peers, tmp_path).run(side.name_server.address, "clusterList")
    assert re.search(r"interop +broker-a +0 +BROKER +V4_9_8", side.anonymous(printed))
