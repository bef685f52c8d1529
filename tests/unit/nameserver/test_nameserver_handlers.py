"""Handlers: every request code of a name server, through the switchboard that serves it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pytest

from skylark.config import settings_of
from skylark.errors import TransportError
from skylark.model.topic import TopicConfig
from skylark.model.version import DataVersion
from skylark.nameserver import NameServerConfig
from skylark.nameserver.handlers import Handlers
from skylark.nameserver.kv_config import KVConfig
from skylark.nameserver.route_table import RouteTable
from skylark.net.switchboard import Handler, RawHandler, Switchboard
from skylark.protocol.bodies import RegisterBrokerBody, TopicConfigTable
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Command
from skylark.testing.files import SimFiles

NAME_SERVER_CODES = {
    *range(100, 107),
    *(205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327),
}
CONFIG_PATH = "/etc/namesrv/namesrv.properties"


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        raise NotImplementedError


class Connection:
    """A peer that only has an address."""

    def __init__(self, address: str = "10.9.9.9:40000") -> None:
        self.address = address
        self.is_closed = False

    async def call(self, command: Command, timeout_ms: int) -> Command:
        raise TransportError(self.address, "nobody is there")

    def notify(self, command: Command) -> None:
        raise TransportError(self.address, "nobody is there")

    def close(self) -> None:
        self.is_closed = True


class Server:
    """The handlers behind a switchboard, asked with plain fields."""

    def __init__(self) -> None:
        self.files = SimFiles()
        self.clock = Clock()
        self.routes = RouteTable()
        self.changed: list[NameServerConfig] = []
        self.handlers = Handlers(
            NameServerConfig(),
            self.routes,
            KVConfig.load("/kv/kvConfig.json", self.files),
            self.clock,
            self.files,
            config_store_path=CONFIG_PATH,
            on_config=self.changed.append,
        )
        self.switchboard = Switchboard(
            {code: Handler(*entry) for code, entry in self.handlers.table().items()}
            | {code: RawHandler(handle) for code, handle in self.handlers.raw_table().items()}
        )
        self.peer = Connection()

    def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        version: int = 409,
        peer: Connection | None = None,
    ) -> Command:
        texts = {key: str(value) for key, value in (fields or {}).items()}
        command = Command(code=code, fields=texts, body=body, version=version)
        answer = self.switchboard.begin(command, peer or self.peer)
        assert isinstance(answer, Command)
        return answer

    def register(
        self, *, peer: Connection | None = None, body: bytes | None = None, **fields: object
    ) -> Command:
        content = REGISTRATION.to_json() if body is None else body
        version = fields.pop("version", 409)
        assert isinstance(version, int)
        return self.ask(103, {**BROKER, **fields}, content, version=version, peer=peer)


BROKER = {
    "brokerName": "b",
    "clusterName": "c",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": 0,
}
REGISTRATION = RegisterBrokerBody(
    TopicConfigTable({"T": TopicConfig("T", 8, 8)}, DataVersion(timestamp=5))
)


@pytest.fixture
def server() -> Server:
    return Server()


def test_every_code_of_a_name_server_is_served_and_no_other(server: Server) -> None:
    served = [*server.handlers.table(), *server.handlers.raw_table()]
    assert sorted(map(int, served)) == sorted(NAME_SERVER_CODES)


def test_any_other_code_is_answered_as_not_supported(server: Server) -> None:
    for code in (0, 10, 34, 107, 999, 65_535):
        assert server.ask(code).code == 3


@pytest.mark.parametrize(
    "code", sorted(NAME_SERVER_CODES - {106, 206, 304, 311, 312, 313, 318, 319})
)
def test_a_missing_field_is_an_error_and_has_no_effect(server: Server, code: int) -> None:
    answer = server.ask(code)
    assert answer.code == 1
    assert answer.remark
    assert server.routes.live == []


# Registration.


def test_a_registered_broker_is_in_the_route(server: Server) -> None:
    answer = server.register()
    assert (answer.code, answer.fields, bytes(answer.body)) == (0, {}, b"")
    assert server.ask(105, {"topic": "T"}).code == 0


def test_a_body_with_the_right_checksum_is_taken_and_another_is_not(server: Server) -> None:
    body = REGISTRATION.to_json()
    crc = zlib.crc32(body) & 0x7FFFFFFF
    wrong = server.register(bodyCrc32=crc ^ 1)
    assert (wrong.code, wrong.remark) == (1, "crc32 not match")
    assert server.routes.live == []
    assert server.register(bodyCrc32=crc).code == 0


def test_a_checksum_is_compared_even_when_the_body_was_seen_before(server: Server) -> None:
    server.register()
    assert server.register(bodyCrc32=1).code == 1


def test_a_compressed_body_is_read(server: Server) -> None:
    body = REGISTRATION.to_compressed()
    crc = zlib.crc32(body) & 0x7FFFFFFF
    assert server.register(body=body, compressed="true", bodyCrc32=crc).code == 0
    assert server.routes.topics() == ["T"]


def test_a_broker_before_3_0_11_sends_the_bare_table(server: Server) -> None:
    assert server.register(body=REGISTRATION.table.to_json(), version=36).code == 0
    assert server.routes.topics() == ["T"]
    full = server.register(body=REGISTRATION.to_json(), version=37, brokerAddr="10.0.0.2:1")
    assert full.code == 0


def test_the_same_bytes_in_another_form_are_read_again(server: Server) -> None:
    server.register()
    answer = server.register(compressed="true")
    assert answer.code == 1  # Plain JSON is not a zlib stream, whatever was sent before.


def test_no_body_means_no_topics(server: Server) -> None:
    assert server.register(body=b"").code == 0
    assert server.routes.topics() == []
    assert server.routes.data_version("10.0.0.1:10911") == DataVersion()


@pytest.mark.parametrize(
    "fields",
    [
        {"brokerName": ""},
        {"clusterName": "x" * 256},
        {"brokerName": "a\nb"},
        {"brokerAddr": "10.0.0.1"},
        {"brokerAddr": ":10911"},
        {"brokerAddr": "10.0.0.1:0"},
        {"brokerAddr": "10.0.0.1:65536"},
        {"brokerAddr": "10.0.0.1:1_0"},
        {"brokerAddr": "a b:1"},
        {"brokerAddr": "x" * 300 + ":1"},
        {"brokerId": "master"},
        {"brokerId": str(2**63)},
    ],
)
def test_a_broker_that_nobody_could_reach_is_refused(
    server: Server, fields: dict[str, object]
) -> None:
    assert server.register(**fields).code == 1
    assert server.routes.live == []


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":5}', b"\xff"])
def test_a_damaged_body_is_refused_and_changes_nothing(server: Server, body: bytes) -> None:
    server.register()
    assert server.register(body=body).code == 1
    assert server.routes.topics() == ["T"]


def test_a_zlib_bomb_is_refused(server: Server) -> None:
    bomb = zlib.compress(b"\0" * (64 * 1024 * 1024), 9)
    assert server.register(body=bomb, compressed="true").code == 1


def test_a_replica_is_told_its_master_and_everybody_the_order_settings(server: Server) -> None:
    server.register()
    server.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:8"})
    answer = server.register(brokerId=1, brokerAddr="10.0.0.2:10911")
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    assert bytes(answer.body) == b'{"table":{"T":"b:8"}}'
    again = server.register(brokerId=1, brokerAddr="10.0.0.2:10911")
    assert (again.fields, bytes(again.body)) == (answer.fields, bytes(answer.body))


def test_a_heartbeat_with_known_topics_counts_as_life(server: Server) -> None:
    server.register()
    server.clock.ms = 100_000
    server.register()
    assert server.routes.expire(now_ms=200_000, expiry_ms=120_000)[0] == []


def test_brokers_leave_with_their_connection(server: Server) -> None:
    server.register()
    server.handlers.connection_lost(server.peer)
    assert server.ask(105, {"topic": "T"}).code == 17


def test_a_broker_can_take_its_leave(server: Server) -> None:
    server.register()
    assert server.ask(104, BROKER).code == 0
    assert server.ask(105, {"topic": "T"}).code == 17


def test_nobody_can_unregister_a_broker_of_another_connection(server: Server) -> None:
    server.register()
    answer = server.ask(104, BROKER, peer=Connection("10.6.6.6:1"))
    assert answer.code == 16
    assert server.ask(105, {"topic": "T"}).code == 0


def test_a_broker_asks_whether_its_topics_are_known(server: Server) -> None:
    version = b'{"counter":0,"timestamp":5}'
    unknown = server.ask(322, BROKER, version)
    assert (unknown.code, unknown.fields, bytes(unknown.body)) == (0, {"changed": "true"}, b"")
    server.register()
    same = server.ask(322, BROKER, version)
    assert (same.fields, bytes(same.body)) == ({"changed": "false"}, version)
    other = server.ask(322, BROKER, b'{"counter":1,"timestamp":5}')
    assert (other.fields, bytes(other.body)) == ({"changed": "true"}, version)


def test_a_question_with_a_known_version_keeps_the_broker_alive(server: Server) -> None:
    server.register()
    server.clock.ms = 100_000
    server.ask(322, BROKER, b'{"counter":0,"timestamp":5}')
    assert server.routes.expire(now_ms=200_000, expiry_ms=120_000)[0] == []


# Routes.


@pytest.mark.parametrize(
    ("version", "fields", "quoted"),
    [
        (317, {}, False),
        (400, {}, False),
        (401, {}, True),
        (409, {}, True),
        (317, {"acceptStandardJsonOnly": "true"}, True),
        (317, {"acceptStandardJsonOnly": "TRUE"}, True),
        (317, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_the_dialect_of_a_route_goes_by_the_clients_version(
    server: Server, version: int, fields: dict[str, object], quoted: bool
) -> None:
    server.register()
    answer = server.ask(105, {"topic": "T", **fields}, version=version)
    assert (b'{"0":' in bytes(answer.body)) == quoted
    assert (b"{0:" in bytes(answer.body)) != quoted


def test_an_unknown_topic_is_named_in_the_answer(server: Server) -> None:
    answer = server.ask(105, {"topic": "nope"})
    assert answer.code == 17
    assert answer.remark == "No topic route info in name server for the topic: nope"


def test_the_order_of_a_topic_is_in_its_route_where_that_is_switched_on(server: Server) -> None:
    server.register()
    server.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:8"})
    assert b"orderTopicConf" not in bytes(server.ask(105, {"topic": "T"}).body)
    assert server.ask(318, body=b"orderMessageEnable=true").code == 0
    assert b'"orderTopicConf":"b:8"' in bytes(server.ask(105, {"topic": "T"}).body)
    server.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"})
    assert b'"orderTopicConf":"b:4"' in bytes(server.ask(105, {"topic": "T"}).body)
    server.ask(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"})
    assert b"orderTopicConf" not in bytes(server.ask(105, {"topic": "T"}).body)


def test_lists_and_the_cluster(server: Server) -> None:
    server.register()
    assert bytes(server.ask(206).body) == b'{"topicList":["T"]}'
    assert bytes(server.ask(224, {"cluster": "c"}).body) == b'{"topicList":["T"]}'
    assert bytes(server.ask(224, {"cluster": "x"}).body) == b'{"topicList":[]}'
    assert bytes(server.ask(304).body) == (b'{"brokerAddr":"10.0.0.1:10911","topicList":["b","c"]}')
    for code in (311, 312, 313):
        assert bytes(server.ask(code).body) == b'{"topicList":[]}'
    assert bytes(server.ask(106).body) == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b",'
        b'"cluster":"c"}},"clusterAddrTable":{"c":["b"]}}'
    )


def test_write_permission_is_wiped_and_added_with_a_count(server: Server) -> None:
    server.register()
    assert server.ask(205, {"brokerName": "b"}).fields == {"wipeTopicCount": "1"}
    assert b'"perm":4' in bytes(server.ask(105, {"topic": "T"}).body)
    assert server.ask(327, {"brokerName": "b"}).fields == {"addTopicCount": "1"}
    assert b'"perm":6' in bytes(server.ask(105, {"topic": "T"}).body)
    assert server.ask(205, {"brokerName": "x"}).fields == {"wipeTopicCount": "0"}


def test_a_topic_is_deleted_in_a_cluster_or_everywhere(server: Server) -> None:
    server.register()
    assert server.ask(216, {"topic": "T", "clusterName": "other"}).code == 0
    assert server.routes.topics() == ["T"]
    assert server.ask(216, {"topic": "T", "clusterName": ""}).code == 0
    assert server.routes.topics() == []


# Settings.


def test_a_value_is_put_read_listed_and_deleted(server: Server) -> None:
    where = {"namespace": "n", "key": "k"}
    missing = server.ask(101, where)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    assert server.ask(219, {"namespace": "n"}).remark == "No config item, Namespace: n"
    assert server.ask(100, {**where, "value": "v"}).code == 0
    assert server.ask(101, where).fields == {"value": "v"}
    assert bytes(server.ask(219, {"namespace": "n"}).body) == b'{"table":{"k":"v"}}'
    assert server.ask(102, where).code == 0
    assert server.ask(102, where).code == 0
    assert server.ask(101, where).code == 22


@pytest.mark.parametrize("code", [100, 102])
def test_a_full_disk_is_told_without_naming_files(server: Server, code: int) -> None:
    server.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    server.files.fail("write", times=None)
    answer = server.ask(code, {"namespace": "n", "key": "k", "value": "w"})
    assert answer.code == 1
    assert "/kv" not in (answer.remark or "/kv")
    assert server.ask(101, {"namespace": "n", "key": "k"}).fields == {"value": "v"}


def test_the_configuration_is_shown_without_paths(server: Server) -> None:
    text = bytes(server.ask(319).body).decode()
    assert "listenPort=9876\n" in text
    assert "kvConfigPath=***\n" in text
    assert "/" not in text


def test_an_allowed_setting_is_changed_kept_and_announced(server: Server) -> None:
    assert server.ask(318, body=b"orderMessageEnable=true\nlogLevel=debug\n").code == 0
    assert server.handlers.config.order_message_enable
    assert [config.log_level for config in server.changed] == ["debug"]
    assert server.files.read(CONFIG_PATH) == b"orderMessageEnable=true\nlogLevel=debug\n"
    assert server.ask(318, body=b"logLevel=debug").code == 0
    assert len(server.changed) == 1  # Nothing new, nothing done.


def test_no_setting_but_the_allowed_ones_can_be_changed(server: Server) -> None:
    """S10: every key of the schema by each of its names, and those of CVE-2023-37582."""
    allowed = {"order_message_enable", "log_level"}
    keys = {"configStorePathName", "rocketmqHome", "nosuchkey", "class", ""}
    for known in settings_of(NameServerConfig).values():
        if known.name not in allowed:
            keys |= {known.name, known.key, known.rocketmq_key or known.key}
    for key in sorted(keys - {""}):
        answer = server.ask(318, body=f"{key}=/tmp/x".encode())
        assert answer.code == 16, key
    assert server.handlers.config == NameServerConfig()
    assert not server.files.exists(CONFIG_PATH)


def test_one_refused_setting_refuses_them_all(server: Server) -> None:
    assert server.ask(318, body=b"logLevel=debug\nkvConfigPath=/tmp/x").code == 16
    assert server.handlers.config == NameServerConfig()


@pytest.mark.parametrize("body", [b"logLevel=loud", b"orderMessageEnable=maybe", b"\xff=\xfe"])
def test_a_bad_value_is_an_error(server: Server, body: bytes) -> None:
    answer = server.ask(318, body=body)
    assert answer.code == 1
    assert answer.remark
    assert server.handlers.config == NameServerConfig()


def test_a_change_that_cannot_be_kept_is_not_made(server: Server) -> None:
    server.files.fail("write", times=None)
    answer = server.ask(318, body=b"logLevel=debug")
    assert answer.code == 1
    assert "/etc" not in (answer.remark or "/etc")
    assert server.handlers.config == NameServerConfig()


def test_no_answer_names_a_file(server: Server) -> None:
    """S11: whatever is asked, by whomever."""
    server.register()
    for code in sorted(NAME_SERVER_CODES):
        answer = server.ask(code, {**BROKER, "topic": "T", "namespace": "n", "key": "k"})
        said = f"{answer.remark}{answer.fields}{bytes(answer.body)!r}"
        assert "/kv" not in said
        assert "/etc" not in said
        assert "~" not in said


def test_registration_is_a_oneway_request_too(server: Server) -> None:
    command = Command.request(
        RequestCode.REGISTER_BROKER,
        {key: str(value) for key, value in BROKER.items()},
        REGISTRATION.to_json(),
        oneway=True,
    )
    server.switchboard.begin(command, server.peer)
    assert server.routes.topics() == ["T"]
