"""Record real bytes of Apache RocketMQ into `tests/golden/captured/`.

    python tests/interop/capture.py            record everything again (about five minutes)
    python tests/interop/capture.py mqadmin    only the steps whose name contains a word

A name server, two brokers and a replica, the Java client and mqadmin talk to each other through
recorders. Each step is one thing done; its file holds every kind of exchange seen during it. The
file format is described in `tests/golden/captured/README.md`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from peers import (
    VERSION,
    ApacheBroker,
    ApacheNameServer,
    JavaClient,
    MqAdmin,
    Peers,
    free_broker_port,
    free_ports,
    wait_until,
)
from recorder import TO_SERVER, Recorded, Recorder
from wire import BINARY, JSON, Probe

CAPTURED = Path(__file__).resolve().parent.parent / "golden" / "captured"

# Enough to see what varies, few enough to read.
_KEEP_OF_A_KIND = 2
_FRAME_MAX_BYTES = 24_000
# Timers that would make a capture long; the bytes do not depend on them.
_QUICK = {
    "messageDelayLevel": " ".join(["1s"] * 18),
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "1000",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
}
# Without it a client on a host with IPv6 puts 16 address bytes into its message ids; both are kept.
_IPV4 = "-Djava.net.preferIPv4Stack=true"
_BINARY_CLIENT = "-Drocketmq.serialize.type=ROCKETMQ"
_ACCESS = {"accessKey": "skylark-key", "secretKey": "skylark-secret"}


@dataclass
class Exchange:
    """A request and, unless it was oneway or nobody answered, its answer."""

    link: str
    sender: str
    request: bytes
    answer: bytes | None = None


@dataclass
class Stage:
    """The running cluster and the tape on which it leaves its frames."""

    peers: Peers
    home: Path
    wanted: str
    tape: list[Recorded] = field(default_factory=list)
    written: int = 0

    @contextmanager
    def step(self, name: str, how: str) -> Iterator[None]:
        """Keep what passes while the block runs, in a file of this name."""
        start = len(self.tape)
        yield
        if self.wanted in name:
            self._write(name, how, self.tape[start:])

    def _write(self, name: str, how: str, tape: list[Recorded]) -> None:
        kept = keep_each_kind(pair(tape))
        document = {
            "rocketmq": VERSION,
            "step": name,
            "how": how,
            "exchanges": [describe(exchange) for exchange in kept],
        }
        CAPTURED.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (CAPTURED / f"{name}.json").write_text(text + "\n")
        self.written += len(kept)
        print(f"{name}: {len(kept)} exchanges of {len(tape)} frames", flush=True)


def pair(tape: list[Recorded]) -> list[Exchange]:
    """Join requests and answers: same connection, same opaque, opposite directions."""
    exchanges: list[Exchange] = []
    waiting: dict[tuple[str, int, str, int], Exchange] = {}
    for recorded in tape:
        frame = recorded.frame
        key = (recorded.link, recorded.connection, recorded.direction, frame.opaque)
        if not frame.is_answer:
            sender = "client" if recorded.direction == TO_SERVER else "server"
            exchange = Exchange(recorded.link, sender, recorded.data)
            waiting[key] = exchange
            exchanges.append(exchange)
            continue
        other = "to-client" if recorded.direction == TO_SERVER else TO_SERVER
        asked = waiting.pop((recorded.link, recorded.connection, other, frame.opaque), None)
        if asked is not None:  # Else it answers a request of an earlier step.
            asked.answer = recorded.data
    return exchanges


def keep_each_kind(exchanges: list[Exchange]) -> list[Exchange]:
    """Keep the first few exchanges of every kind, and none that is too large to be looked at."""
    seen: Counter[tuple[object, ...]] = Counter()
    kept = []
    for exchange in exchanges:
        if len(exchange.request) + len(exchange.answer or b"") > _FRAME_MAX_BYTES:
            continue
        request = Recorded("", 0, "", exchange.request).frame
        answer = Recorded("", 0, "", exchange.answer).frame if exchange.answer else None
        kind = (
            exchange.link,
            exchange.sender,
            request.code,
            request.serialization,
            tuple(sorted(request.fields)),
            answer and answer.code,
            answer and bool(answer.body),
        )
        seen[kind] += 1
        if seen[kind] <= _KEEP_OF_A_KIND:
            kept.append(exchange)
    return kept


def describe(exchange: Exchange) -> dict[str, object]:
    """Return what goes into the file for one exchange."""
    request = Recorded("", 0, "", exchange.request).frame
    described: dict[str, object] = {
        "link": exchange.link,
        "sender": exchange.sender,
        "code": request.code,
        "serialization": "ROCKETMQ" if request.serialization == BINARY else "JSON",
        "oneway": bool(request.flag & 2),
        "request": exchange.request.hex(),
    }
    if exchange.answer is not None:
        described["answer_code"] = Recorded("", 0, "", exchange.answer).frame.code
        described["answer"] = exchange.answer.hex()
    return described


def main() -> None:
    """Build the cluster, act every step, write the files."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    peers = Peers.fetch()
    with tempfile.TemporaryDirectory(prefix="capture-") as folder, ExitStack() as stack:
        stage = Stage(peers, Path(folder), wanted)
        act(stage, stack)
    print(f"{stage.written} exchanges")


def act(stage: Stage, stack: ExitStack) -> None:
    """The whole play, in order: later steps rely on what earlier ones sent."""
    peers, home, tape = stage.peers, stage.home, stage.tape
    server = stack.enter_context(
        ApacheNameServer(peers, home / "ns", settings={"orderMessageEnable": "true"})
    )
    names = stack.enter_context(Recorder("nameserver", server.address, tape, port=free_ports()[0]))

    with stage.step("broker-register", "a broker starts, with the default settings"):
        first = stack.enter_context(
            ApacheBroker(
                peers, home / "a", name="broker-a", name_servers=[names.address], settings=_QUICK
            )
        )
        first.wait_registered([server])
    # The recorder's port - 2 stands for the broker's fast port, where a replica asks for topics.
    port = free_broker_port()
    broker = stack.enter_context(Recorder("broker", first.address, tape, port=port))
    fast = f"127.0.0.1:{first.port - 2}"
    stack.enter_context(Recorder("broker-fast-port", fast, tape, port=port - 2))
    names.rewrite[first.address.encode()] = broker.address.encode()

    with stage.step(
        "broker-register-compressed",
        "a broker starts with compressedRegister=true and forceRegister=false, then stops",
    ):
        second = ApacheBroker(
            peers,
            home / "b",
            name="broker-b",
            name_servers=[names.address],
            settings={"compressedRegister": "true", "forceRegister": "false"},
        )
        with second:
            second.wait_registered([server])
            time.sleep(11)  # One more heartbeat: the data version is unchanged now.
            second.stop()
    clients(stage, names.address)
    with stage.step("replica", "a replica (brokerId 1) of broker-a starts and asks for its state"):
        replica = ApacheBroker(
            peers, home / "r", name="broker-a", name_servers=[names.address], broker_id=1
        )
        with replica:
            replica.wait_registered([server])
            wait_until(
                lambda: any(one.frame.code == 45 for one in list(tape)),
                timeout_s=60,
                what="the replica asks for the delay offsets",
            )
            with stage.step("probe-route-with-replica", "routes with two addresses"):
                probe_routes(names.address)
            replica.stop()
    admin(stage, names.address, broker.address)
    probes(stage, names.address)
    with stage.step("broker-unregister", "the broker stops"):
        first.stop()


def clients(stage: Stage, names: str) -> None:
    """Producers and consumers, with JSON and with binary headers."""
    for label, options in (("json", (_IPV4,)), ("binary", (_BINARY_CLIENT,))):
        topic = f"Topic-{label}"

        def run(
            *arguments: str, wait_for: str, options: tuple[str, ...] = options, label: str = label
        ) -> list[str]:
            home = stage.home / f"client-{label}"
            with JavaClient(stage.peers, home, *arguments, java_options=options) as client:
                client.wait_for_line(wait_for, 90)
                client.wait_ended()
                return client.lines

        with stage.step(
            f"client-{label}-produce",
            "single, properties, compressed, delayed, oneway and batch sends; transactions that are"
            " committed, rolled back, and left open until the broker asks",
        ):
            run("sample", names, topic, "producers", wait_for="checked")
        with stage.step(
            f"client-{label}-consume",
            "two push consumers of one group, one message refused once, offsets committed",
        ):
            consume(stage, names, topic, label, options)
        with stage.step(f"client-{label}-orderly", "an orderly push consumer locks its queues"):
            listen(stage, names, topic, "orderlies", "orderly", label, options)
        with stage.step(f"client-{label}-sql", "a push consumer with an SQL92 filter"):
            listen(stage, names, topic, "filters", "sql", label, options)
        with stage.step(f"client-{label}-lite-pull", "the lite pull consumer polls and commits"):
            run("poll", names, topic, "pollers", "8", wait_for="received")
        run("produce", names, f"Ask-{label}", "producers", "1", wait_for="sent")  # Makes the topic.
        with stage.step(f"client-{label}-request-reply", "a request and its reply"):
            home = stage.home / f"replier-{label}"
            arguments = ("listen", names, f"Ask-{label}", "repliers", "replying")
            with JavaClient(stage.peers, home, *arguments, java_options=options) as replier:
                replier.wait_for_line("ready")
                run("request", names, f"Ask-{label}", "askers", wait_for="answered")
                replier.end_input()
                replier.wait_ended()
    for kind in ("LZ4", "ZSTD"):
        with stage.step(f"client-compressed-{kind.lower()}", f"sends with {kind} compression"):
            option = f"-Drocketmq.message.compressType={kind}"
            home = stage.home / kind
            with JavaClient(
                stage.peers,
                home,
                "sample",
                names,
                f"Topic-{kind}",
                "producers",
                java_options=(option,),
            ) as client:
                client.wait_for_line("id batch", 60)


def consume(stage: Stage, names: str, topic: str, label: str, options: tuple[str, ...]) -> None:
    """Two members, one after the other, so that the broker tells the first of the second."""
    arguments = ("listen", names, topic, "consumers", "concurrent")
    with JavaClient(
        stage.peers, stage.home / f"listen-{label}", *arguments, java_options=options
    ) as first:
        first.wait_for_line("got refuse-once", 60)  # So it went back and came again.
        with JavaClient(
            stage.peers, stage.home / f"listen2-{label}", *arguments, java_options=options
        ) as second:
            second.wait_for_line("ready")
            time.sleep(6)  # Both commit their offsets every 5 s.
            second.end_input()
            second.wait_ended()
        first.end_input()
        first.wait_ended()


def listen(
    stage: Stage,
    names: str,
    topic: str,
    group: str,
    mode: str,
    label: str,
    options: tuple[str, ...],
) -> None:
    """One push consumer until its first message."""
    home = stage.home / f"{mode}-{label}"
    with JavaClient(
        stage.peers, home, "listen", names, topic, group, mode, java_options=options
    ) as listener:
        listener.wait_for_line("got", 60)
        listener.end_input()
        listener.wait_ended()


def admin(stage: Stage, names: str, broker: str) -> None:
    """Nearly every mqadmin command."""
    tool = MqAdmin(stage.peers, stage.home / "admin")
    topic, group, cluster = "Topic-json", "consumers", "interop"

    def run(*arguments: str, name: str = "") -> str:
        command = " ".join(arguments).replace(names, "NAMESRV").replace(broker, "BROKER")
        with stage.step(f"mqadmin-{name or arguments[0]}", f"mqadmin {command}"):
            return tool.run(names, *arguments, java_options=(_IPV4,))

    with JavaClient(
        stage.peers, stage.home / "audience", "listen", names, topic, group, "concurrent"
    ) as audience:
        audience.wait_for_line("ready")
        time.sleep(2)  # Its heartbeat and first pulls.
        run("clusterList")
        run("clusterList", "-m", name="clusterList-more")
        run("topicList")
        run("topicList", "-c", name="topicList-clusters")
        run("topicRoute", "-t", topic)
        run("topicStatus", "-t", topic)
        run("topicClusterList", "-t", topic)
        run("updateTopic", "-c", cluster, "-t", "Made", "-r", "3", "-w", "3", "-o", "true")
        run("updateTopicPerm", "-t", "Made", "-p", "4")
        run("updateSubGroup", "-c", cluster, "-g", "made-group", "-r", "3")
        run("getConsumerConfig", "-g", "made-group")
        run("consumerConnection", "-g", group)
        run("consumerProgress", "-g", group)
        run("consumerProgress", name="consumerProgress-all")
        run("consumerStatus", "-g", group, "-s")
        run("producer", "-b", broker)
        run("brokerStatus", "-b", broker)
        run("brokerConsumeStats", "-b", broker)
        run("getBrokerConfig", "-b", broker)
        run("updateBrokerConfig", "-b", broker, "-k", "flushIntervalCommitLog", "-v", "600")
        sent = run("sendMessage", "-t", topic, "-p", "from the tool", "-k", "tool-key")
        message_id = next(
            word for word in sent.split() if len(word) == 32 and word.isalnum() and word.isupper()
        )
        run("queryMsgByKey", "-t", topic, "-k", "tool-key")
        run("queryMsgByUniqueKey", "-t", topic, "-i", message_id)
        run("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "0")
        run("queryMsgById", "-i", offset_message_id(stage, broker))
        run("queryCq", "-t", topic, "-q", "0", "-i", "0", "-b", broker)
        run("printMsg", "-t", topic)
        run("consumeMessage", "-t", topic, "-c", "2")
        run("statsAll", "-t", topic)
        run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        run("cloneGroupOffset", "-s", group, "-d", "orderlies", "-t", topic, "-o", "true")
        run("cleanExpiredCQ", "-b", broker)
        run("cleanUnusedTopic", "-b", broker)
        audience.end_input()
        audience.wait_ended()
    run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", name="resetOffsetByTime-offline")
    run("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    run("deleteKvConfig", "-s", "space", "-k", "key")
    run("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:4", name="updateOrderConf-put")
    run("updateOrderConf", "-t", topic, "-m", "get", name="updateOrderConf-get")
    run("topicRoute", "-t", topic, name="topicRoute-ordered")
    run("updateOrderConf", "-t", topic, "-m", "delete", name="updateOrderConf-delete")
    run("wipeWritePerm", "-b", "broker-a")
    run("addWritePerm", "-b", "broker-a")
    run("getNamesrvConfig")
    run("updateNamesrvConfig", "-k", "serverWorkerThreads", "-v", "9")
    run("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/x", name="updateNamesrvConfig-refused")
    run("exportConfigs", "-c", cluster, "-f", str(stage.home / "export"))
    run("exportMetadata", "-c", cluster, "-f", str(stage.home / "export"))
    run("deleteSubGroup", "-c", cluster, "-g", "made-group")
    run("deleteTopic", "-c", cluster, "-t", "Made")
    settings = "".join(f"{key}: {value}\n" for key, value in _ACCESS.items())
    (stage.home / "admin" / "conf" / "tools.yml").write_text(settings)
    run("topicList", name="signed-topicList")
    run("topicStatus", "-t", topic, name="signed-topicStatus")
    run("sendMessage", "-t", topic, "-p", "signed", "-k", "signed-key", name="signed-sendMessage")


def offset_message_id(stage: Stage, broker: str) -> str:
    """Return the offset id of a stored message, with the recorder's port for the broker's."""
    for recorded in list(stage.tape):
        frame = recorded.frame
        if frame.is_answer and len(frame.fields.get("msgId", "")) == 32:
            port = int(broker.rpartition(":")[2])
            stored = frame.fields["msgId"]
            return f"{stored[:8]}{port:08X}{stored[16:]}"
    raise AssertionError("nobody stored a message")


_NAME_SERVER_QUESTIONS: tuple[tuple[int, dict[str, str]], ...] = (
    (106, {}),
    (206, {}),
    (224, {"cluster": "interop"}),
    (224, {"cluster": "unknown"}),
    (304, {}),
    (311, {}),
    (312, {}),
    (313, {}),
    (100, {"namespace": "space", "key": "k", "value": "v"}),
    (101, {"namespace": "space", "key": "k"}),
    (219, {"namespace": "space"}),
    (102, {"namespace": "space", "key": "k"}),
    (101, {"namespace": "space", "key": "k"}),
    (219, {"namespace": "unknown"}),
    (205, {"brokerName": "unknown"}),
    (327, {"brokerName": "unknown"}),
    (319, {}),
)


def probe_routes(names: str) -> None:
    """Ask for a route as an old client, as a new one, and as one that insists on standard JSON."""
    for serialization in (JSON, BINARY):
        with Probe(names) as probe:
            for version in (317, 401, 409):
                probe.call(105, {"topic": "TBW102"}, version=version, serialization=serialization)
            flagged = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
            probe.call(105, flagged, version=317, serialization=serialization)
            probe.call(105, {"topic": "nobody-has-it"}, serialization=serialization)


def probes(stage: Stage, names: str) -> None:
    """What no Java program asks in every form: our own requests, Apache's answers."""
    with stage.step("probe-route", "our own requests with versions 317, 401 and 409, and the flag"):
        probe_routes(names)
    with stage.step("probe-nameserver", "our own requests, JSON and binary headers"):
        for serialization in (JSON, BINARY):
            with Probe(names) as probe:
                for code, fields in _NAME_SERVER_QUESTIONS:
                    probe.call(code, fields, serialization=serialization)


if __name__ == "__main__":
    main()
