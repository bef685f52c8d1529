"""The same request bytes to Apache's name server and to ours: the same answers.

A script is a conversation of several connections, acted from start to end against both servers, in
four dialects: JSON and binary headers, as a 4.9.8 client and as an old one. Each line of the script
is a test. Texts of remarks are ours to choose; everything that a client reads must agree. Where we
differ on purpose, DIFFERENCES says so and why, and the test holds both sides to it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from cluster import SETTINGS, MakeSubject, subject_is_apache
from peers import ApacheNameServer, NameServer, Peers, wait_until
from wire import BINARY, JSON, Frame, NoAnswer, Probe, loads_lenient

pytestmark = pytest.mark.interop

SILENT_AFTER_S = 1.0


@dataclass(frozen=True)
class Dialect:
    """How a client speaks."""

    name: str
    version: int
    serialization: int


DIALECTS = (
    Dialect("json-409", 409, JSON),
    Dialect("json-317", 317, JSON),
    Dialect("binary-409", 409, BINARY),
    Dialect("binary-317", 317, BINARY),
)


@dataclass(frozen=True)
class Ask:
    """One line of the script: who asks what."""

    name: str
    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    by: str = "client"
    version: int | None = None
    # Whether the body is a JSON document, properties text, or to be compared byte for byte.
    body_is: str = "json"


@dataclass(frozen=True)
class HangUp:
    """One line of the script: a connection closes, and after a while a route is gone."""

    name: str
    by: str
    gone: str


@dataclass(frozen=True)
class Outcome:
    """What a client can tell from an answer; `code` is None when none came."""

    code: int | None
    fields: dict[str, str] = field(default_factory=dict)
    body: Any = None
    serialization: int | None = None
    has_remark: bool = False
    # Of bodies with broker ids: whether the ids stand in quotes, and whether all is ASCII.
    quoted: bool | None = None
    ascii: bool | None = None
    version: int | None = None


@dataclass(frozen=True)
class Difference:
    """Where we answer otherwise on purpose: what of the outcome differs, on either side."""

    apache: Mapping[str, Any]
    ours: Mapping[str, Any]
    why: str
    dialects: tuple[str, ...] = tuple(dialect.name for dialect in DIALECTS)


_SILENCE = Difference(
    {"code": None, "serialization": None, "version": None, "has_remark": False},
    {"code": 3, "serialization": ..., "version": 409, "has_remark": True},
    "Apache's name server keeps silent, and the client waits until its timeout",
)
_MIRRORED = Difference(
    {"serialization": JSON},
    {"serialization": BINARY},
    "a failure is told in the sender's own form; Apache falls back to JSON",
    ("binary-409", "binary-317"),
)
_ALLOWED_ONLY = Difference(
    {"code": 0, "has_remark": False},
    {"code": 16, "has_remark": True},
    "settings are changed by an allow-list; Apache takes any key that is not on its block list",
)

DIFFERENCES = {
    "an unknown code": _SILENCE,
    "a broker's code": _SILENCE,
    "a route without a topic": Difference(
        {"code": 17}, {"code": 1}, "a missing field is an error of the request, not a missing topic"
    ),
    "topics of no cluster": Difference(
        {"code": 0, "body": {"topicList": []}, "has_remark": False},
        {"code": 1, "body": None, "has_remark": True},
        "a missing field is an error of the request, not an empty cluster",
    ),
    "a garbled registration": _MIRRORED,
    "a garbled compressed registration": _MIRRORED,
    "a configuration update of a thread pool": _ALLOWED_ONLY,
    "a configuration update of an unknown key": _ALLOWED_ONLY,
}


def _topics(*names: str, counter: int, **options: Any) -> dict[str, Any]:
    config = {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
        **options,
    }
    return {
        "dataVersion": {"counter": counter, "timestamp": 1_700_000_000_000},
        "topicConfigTable": {name: {**config, "topicName": name} for name in names},
    }


def _plain(wrapper: dict[str, Any], filters: tuple[str, ...] = ()) -> bytes:
    document = {"filterServerList": list(filters), "topicConfigSerializeWrapper": wrapper}
    return json.dumps(document, ensure_ascii=False).encode()


def _compressed(wrapper: dict[str, Any]) -> bytes:
    parts = [json.dumps(wrapper["dataVersion"]).encode()]
    for topic in wrapper["topicConfigTable"].values():
        keys = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
        parts.append(" ".join(str(topic[key]) for key in keys).encode())
    encoded = struct.pack(">i", len(parts[0])) + parts[0] + struct.pack(">i", len(parts) - 1)
    for part in parts[1:]:
        encoded += struct.pack(">i", len(part)) + part
    return zlib.compress(encoded + struct.pack(">i", 2) + b"[]", 9)


def _broker(name: str, identity: int = 0, *, cluster: str, port: int) -> dict[str, str]:
    return {
        "brokerName": name,
        "clusterName": cluster,
        "brokerAddr": f"127.0.0.1:{port}",
        "haServerAddr": f"127.0.0.1:{port + 1}",
        "brokerId": str(identity),
    }


def _crc(body: bytes) -> dict[str, str]:
    return {"bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}


_A = _broker("a", cluster="one", port=20911)
_A_REPLICA = _broker("a", 1, cluster="one", port=20921)
_B = _broker("b", cluster="two", port=20931)
_C = _broker("c", cluster="two", port=20941)
_OLD = _broker("old", cluster="old", port=20951)
_FIRST = _plain(_topics("Shared", "OnlyA", "中文", counter=1))
_VERSION_1 = b'{"counter":1,"timestamp":1700000000000}'
_VERSION_2 = b'{"counter":2,"timestamp":1700000000000}'


def _route(name: str, topic: str, **options: Any) -> Ask:
    return Ask(name, 105, {"topic": topic}, **options)


SCRIPT: tuple[Ask | HangUp, ...] = (
    # Before any broker is there.
    _route("a route before any broker", "Shared"),
    Ask("an empty cluster", 106),
    Ask("an empty topic list", 206),
    Ask("system topics before any broker", 304),
    Ask("an unknown code", 9999),
    Ask("a broker's code", 310),
    # Registration.
    Ask("a registration with a wrong checksum", 103, {**_A, "bodyCrc32": "7"}, _FIRST, by="a"),
    _route("no route after the wrong checksum", "Shared"),
    Ask("a registration", 103, {**_A, **_crc(_FIRST)}, _FIRST, by="a"),
    _route("a route", "Shared"),
    _route("a route of a topic in Chinese", "中文"),
    _route("an unknown route", "Nobody"),
    _route("a route as version 400", "Shared", version=400),
    _route("a route as version 401", "Shared", version=401),
    Ask("a route with the flag", 105, {"topic": "Shared", "acceptStandardJsonOnly": "true"}),
    Ask("a route with the flag off", 105, {"topic": "Shared", "acceptStandardJsonOnly": "false"}),
    Ask("a route without a topic", 105),
    Ask("a replica's registration", 103, _A_REPLICA, _plain(_topics("R", counter=9)), by="replica"),
    _route("a route with a replica", "Shared"),
    _route("a replica's topics are not taken", "R"),
    Ask(
        "a compressed registration",
        103,
        {**_B, "compressed": "true"},
        _compressed(_topics("Shared", "OnlyB", counter=1)),
        by="b",
    ),
    _route("a route over two brokers", "Shared"),
    Ask(
        "a registration with filter servers and unit topics",
        103,
        _C,
        _plain(
            {
                "dataVersion": {"counter": 1, "timestamp": 5},
                "topicConfigTable": {
                    **_topics("Unit", counter=1, topicSysFlag=1)["topicConfigTable"],
                    **_topics("UnitSub", counter=1, topicSysFlag=2)["topicConfigTable"],
                    **_topics("UnitBoth", counter=1, topicSysFlag=3)["topicConfigTable"],
                },
            },
            ("127.0.0.1:1",),
        ),
        by="c",
    ),
    _route("a route with filter servers", "Unit"),
    Ask("a garbled registration", 103, _B, b"{nonsense", by="other"),
    Ask("a garbled compressed registration", 103, {**_B, "compressed": "true"}, b"xyz", by="other"),
    Ask(
        "a registration of an old version",
        103,
        _OLD,
        json.dumps(_topics("Old", counter=1)).encode(),
        by="old",
        version=30,
    ),
    _route("an old broker's route", "Old"),
    # Data versions.
    Ask("an unchanged data version", 322, _A, _VERSION_1, by="a"),
    Ask("a changed data version", 322, _A, _VERSION_2, by="a"),
    Ask("the data version of a stranger", 322, _broker("x", cluster="x", port=9), _VERSION_1),
    Ask(
        "the same data version with another topic",
        103,
        _A,
        _plain(_topics("Ignored", counter=1)),
        by="a",
    ),
    _route("a topic under an unchanged data version is not taken", "Ignored"),
    Ask("a new data version", 103, _A, _plain(_topics("Added", counter=2)), by="a"),
    _route("a topic under a new data version", "Added"),
    _route("a topic that a registration no longer names", "OnlyA"),
    Ask(
        "a registration without a body", 103, _broker("bare", cluster="two", port=20961), by="bare"
    ),
    # Lists.
    Ask("the cluster", 106),
    Ask("all topics", 206),
    Ask("topics of a cluster", 224, {"cluster": "one"}),
    Ask("topics of an unknown cluster", 224, {"cluster": "nowhere"}),
    Ask("topics of no cluster", 224),
    Ask("unit topics", 311),
    Ask("unit-sub topics", 312),
    Ask("unit-sub topics that are no unit topics", 313),
    # Write permission.
    Ask("a wipe", 205, {"brokerName": "a"}),
    _route("a route after the wipe", "Shared"),
    Ask(
        "the same registration after the wipe", 103, _A, _plain(_topics("Added", counter=2)), by="a"
    ),
    _route("the wipe lasts", "Added"),
    Ask("writing allowed again", 327, {"brokerName": "a"}),
    _route("a route after that", "Shared"),
    Ask("a wipe of a stranger", 205, {"brokerName": "stranger"}),
    Ask("a stranger may write", 327, {"brokerName": "stranger"}),
    # Shared settings.
    Ask("a value is put", 100, {"namespace": "space", "key": "k", "value": "v"}),
    Ask("a value in Chinese is put", 100, {"namespace": "space", "key": "键", "value": "值"}),
    Ask("a value is read", 101, {"namespace": "space", "key": "k"}),
    Ask("a value in Chinese is read", 101, {"namespace": "space", "key": "键"}),
    Ask("an unknown key", 101, {"namespace": "space", "key": "nokey"}),
    Ask("an unknown namespace", 101, {"namespace": "nospace", "key": "k"}),
    Ask("a namespace is listed", 219, {"namespace": "space"}),
    Ask("an unknown namespace is listed", 219, {"namespace": "nospace"}),
    Ask("a value is deleted", 102, {"namespace": "space", "key": "k"}),
    Ask("the deleted value", 101, {"namespace": "space", "key": "k"}),
    Ask("an unknown value is deleted", 102, {"namespace": "nospace", "key": "k"}),
    Ask("a value is put without a key", 100, {"namespace": "space", "value": "v"}),
    Ask("a value is put without a namespace", 100, {"key": "k", "value": "v"}),
    Ask(
        "an order is put",
        100,
        {"namespace": "ORDER_TOPIC_CONFIG", "key": "Shared", "value": "a:4;b:4"},
    ),
    _route("a route with an order", "Shared"),
    _route("a route without an order", "OnlyB"),
    Ask("a registration is told the orders", 103, _A, _plain(_topics("Added", counter=2)), by="a"),
    # Settings of the server itself.
    Ask("the configuration", 319, body_is="properties"),
    Ask("a configuration update", 318, body=b"orderMessageEnable=false\n"),
    Ask("the updated configuration", 319, body_is="properties"),
    _route("a route under the updated configuration", "Shared"),
    Ask("a configuration update back", 318, body=b"orderMessageEnable=true\n"),
    _route("a route under the old configuration", "Shared"),
    Ask("a configuration update of a thread pool", 318, body=b"serverWorkerThreads=9\n"),
    Ask("a configuration update of the paths", 318, body=b"kvConfigPath=/nowhere\n"),
    Ask("a configuration update of the block list", 318, body=b"configBlackList=x\n"),
    Ask("a configuration update of the home", 318, body=b"rocketmqHome=/nowhere\n"),
    Ask("a configuration update of an unknown key", 318, body=b"nonsense=1\n"),
    Ask("an empty configuration update", 318),
    # Removal.
    Ask("a topic is deleted in a cluster", 216, {"topic": "Shared", "clusterName": "two"}),
    _route("the other cluster's route is left", "Shared"),
    Ask("a topic is deleted in an unknown cluster", 216, {"topic": "Shared", "clusterName": "no"}),
    _route("the route is still left", "Shared"),
    Ask("a topic is deleted", 216, {"topic": "Shared"}),
    _route("the deleted topic", "Shared"),
    Ask("an unknown topic is deleted", 216, {"topic": "Nobody"}),
    Ask("a replica becomes the master", 103, {**_A_REPLICA, "brokerId": "0"}, by="replica"),
    _route("a route after the change of master", "Added"),
    Ask("a broker unregisters", 104, _C, by="c"),
    _route("the route of a broker that unregistered", "Unit"),
    Ask("a stranger unregisters", 104, _broker("x", cluster="x", port=9)),
    HangUp("a broker hangs up", by="b", gone="OnlyB"),
    Ask("the cluster after that", 106),
    Ask("all topics after that", 206),
)


def act(server: NameServer, dialect: Dialect) -> dict[str, Outcome]:
    """Play the whole script against one server."""
    outcomes: dict[str, Outcome] = {}
    connections: dict[str, Probe] = {}
    try:
        for line in SCRIPT:
            assert line.name not in outcomes, f"two lines are called {line.name!r}"
            if isinstance(line, HangUp):
                connections.pop(line.by).close()
                outcomes[line.name] = _wait_gone(server, line.gone)
                continue
            if line.by not in connections:
                connections[line.by] = Probe(server.address)
            outcomes[line.name] = _ask(connections[line.by], line, dialect)
        return outcomes
    finally:
        for connection in connections.values():
            connection.close()


def _ask(connection: Probe, line: Ask, dialect: Dialect) -> Outcome:
    known_silence = DIFFERENCES.get(line.name) is _SILENCE
    try:
        answer = connection.call(
            line.code,
            line.fields,
            line.body,
            version=line.version or dialect.version,
            serialization=dialect.serialization,
            timeout_s=SILENT_AFTER_S if known_silence else 10,
        )
    except NoAnswer:
        return Outcome(None)
    return _outcome(answer, line.body_is)


def _wait_gone(server: NameServer, topic: str) -> Outcome:
    def gone() -> bool:
        with Probe(server.address) as probe:
            return probe.call(105, {"topic": topic}).code == 17

    wait_until(gone, timeout_s=5, what=f"the route of {topic} leaves {server.name}")
    return Outcome(17)


def _outcome(answer: Frame, body_is: str) -> Outcome:
    body: Any = None
    quoted = None
    if answer.body and body_is == "json":
        body = _sorted(loads_lenient(answer.body))
        ids = re.findall(rb'"brokerAddrs":\{("?)\d', answer.body)
        if ids:
            assert len(set(ids)) == 1, f"both forms in one answer: {answer.body!r}"
            quoted = ids[0] == b'"'
    elif answer.body and body_is == "properties":
        lines = answer.body.decode().splitlines()
        body = _comparable(dict(line.split("=", 1) for line in lines))
    return Outcome(
        code=answer.code,
        fields=answer.fields,
        body=body,
        serialization=answer.serialization,
        has_remark=bool(answer.remark),
        quoted=quoted,
        ascii=answer.body.isascii() if quoted is not None else None,
        version=answer.version,
    )


# What Apache's name server has; ours lists more. Places differ from server to server, and our block
# list names the home as well, which Apache blocks without saying so.
_SETTINGS = [
    "clusterTest",
    "configBlackList",
    "configStorePath",
    "kvConfigPath",
    "listenPort",
    "orderMessageEnable",
    "productEnvName",
    "rocketmqHome",
    "serverAsyncSemaphoreValue",
    "serverCallbackExecutorThreads",
    "serverChannelMaxIdleTimeSeconds",
    "serverOnewaySemaphoreValue",
    "serverPooledByteBufAllocatorEnable",
    "serverSelectorThreads",
    "serverSocketBacklog",
    "serverSocketRcvBufSize",
    "serverSocketSndBufSize",
    "serverWorkerThreads",
    "useEpollNativeSelector",
    "writeBufferHighWaterMark",
    "writeBufferLowWaterMark",
]
_MAY_DIFFER = ("configBlackList", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome")


def _comparable(properties: dict[str, str]) -> dict[str, str]:
    known = {key: value for key, value in properties.items() if key in _SETTINGS}
    return {key: "" if key in _MAY_DIFFER else value for key, value in known.items()}


def _sorted(value: Any) -> Any:
    """Sets travel as lists in no order; compare them in one."""
    if isinstance(value, dict):
        return {key: _sorted(member) for key, member in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(member) for member in value), key=lambda one: json.dumps(one))
    return value


Played = dict[str, tuple[dict[str, Outcome], dict[str, Outcome]]]


@pytest.fixture(scope="module")
def played(
    peers: Peers, make_subject: MakeSubject, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    """The script, played against both servers in every dialect."""
    home = tmp_path_factory.mktemp("probes")
    played: Played = {}
    for dialect in DIALECTS:
        # A fresh pair for each dialect: what one leaves behind must not answer for the next.
        apache = ApacheNameServer(peers, home / f"apache-{dialect.name}", settings=SETTINGS)
        subject = make_subject(home / f"subject-{dialect.name}", settings=SETTINGS)
        with apache, subject:
            played[dialect.name] = act(apache, dialect), act(subject, dialect)
    return played


@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS])
@pytest.mark.parametrize("line", [line.name for line in SCRIPT])
def test_our_answer_is_apaches_answer(played: Played, line: str, dialect: str) -> None:
    apache, subject = (outcomes[line] for outcomes in played[dialect])
    difference = DIFFERENCES.get(line)
    if difference is None or dialect not in difference.dialects:
        assert subject == apache
        return
    ours = {key: value for key, value in difference.ours.items() if value is not ...}
    assert _part(apache, difference.apache) == dict(difference.apache)
    if subject_is_apache():
        assert subject == apache
    else:
        assert _part(subject, ours) == ours
        assert _rest(subject, difference.ours) == _rest(apache, difference.ours)


def _part(outcome: Outcome, names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if name in names}


def _rest(outcome: Outcome, names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if name not in names}


def test_apache_lists_the_settings_that_are_compared(played: Played) -> None:
    for apache, _ in played.values():
        assert sorted(apache["the configuration"].body) == sorted(_SETTINGS)


def test_the_script_asks_every_code_of_the_name_server() -> None:
    asked = {line.code for line in SCRIPT if isinstance(line, Ask)}
    assert asked >= {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304}
    assert asked >= {311, 312, 313, 318, 319, 322, 327}


def test_every_difference_is_a_line_of_the_script() -> None:
    assert set(DIFFERENCES) <= {line.name for line in SCRIPT}
