"""Every option of the table in docs/spark.md, batch and stream, read and write, at a real broker.

The table is read from the page: an option without a case here fails, and so does a case of an
option that the page does not have.
"""

from __future__ import annotations

import base64
import datetime
import hmac
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql import types
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_contract import (
    BatchReading,
    BatchWriting,
    Spy,
    StreamReading,
    StreamWriting,
    forget_connections,
    options_in_the_manual,
    read_part,
    struct_of,
)
from spark_world import Cluster

from skylark.cli.main import main
from skylark.errors import ConfigError, SkylarkError, TransportError
from skylark.model.message import Message
from skylark.protocol.codes import RequestCode
from skylark.protocol.compression import CompressionType, compress, with_compression
from skylark.protocol.headers import CreateTopicRequest, SendMessageRequestV2
from skylark.spark import cluster as clusters
from skylark.spark import source as sources
from skylark.spark.bodies import UnreadableBody
from skylark.spark.cluster import Cluster as Brokers
from skylark.spark.offsets import DataLoss, QueueKey
from skylark.spark.options import Access
from skylark.spark.pulls import RangeReader

# Spark's own Python leaves sockets to the collector; none of that is ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

COUNT = 60
HALF = COUNT // 2  # So many are stored some milliseconds before the others.
PULLS = (RequestCode.PULL_MESSAGE,)
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
ONCE = {"deliveryGuarantee": "exactly_once"}
ORDER = types.StructType().add("id", types.LongType()).add("name", types.StringType())


class World:
    """A broker with a few topics, and how to look at it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address = cluster.address
        self.brokers = Brokers(Access(self.address))
        (self.broker,) = {queue.broker for queue in self.brokers.queues(["ContractA"])}
        self.spy = Spy()
        self.patch: pytest.MonkeyPatch

    @property
    def store(self) -> str:
        (path,) = Path(self.cluster.data).glob("*/commitlog")
        return str(path.parent)

    def committed(self, group: str) -> int:
        queues = self.brokers.queues(["ContractA"])
        return sum(self.brokers.committed(group, queue) or 0 for queue in queues)

    def bodies(self, topic: str) -> list[bytes]:
        return sorted(
            row["body"] for row in BatchReading(self.address).rows(topic=topic, columns=("body",))
        )

    def times(self) -> list[datetime.datetime]:
        rows = BatchReading(self.address).rows(topic="ContractA", columns=("store_time",))
        return [row["store_time"] for row in rows]

    def make_topic(self, topic: str, perm: int) -> None:
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=perm,
            topic_filter_type="SINGLE_TAG",
        )  # fmt: skip
        address = self.brokers.broker_address("ContractA", self.broker, for_writing=True)
        self.brokers.wire(address).call(header.CODE, header.to_fields())

        def is_known() -> bool:
            try:
                return bool(self.brokers.route(topic))
            except ConfigError:
                return False

        deadline = time.monotonic() + 20
        while not is_known():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def send_raw(self, topic: str, body: bytes, sys_flag: int) -> None:
        """A message as a producer would not make it."""
        header = SendMessageRequestV2(
            producer_group="tests", topic=topic, default_topic="TBW102",
            default_topic_queue_nums=4, queue_id=0, sys_flag=sys_flag, born_timestamp=1, flag=0,
            properties="", reconsume_times=0, unit_mode=False, batch=False,
        )  # fmt: skip
        address = self.brokers.broker_address("ContractA", self.broker, for_writing=True)
        self.brokers.wire(address).call(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.start()
    try:
        for half in (range(HALF), range(HALF, COUNT)):
            cluster.send(
                Message(
                    "ContractA", json.dumps({"id": number, "name": f"order {number}"}).encode(),
                    tag="AB"[number % 2], keys=[f"o-{number}"], properties={"n": str(number)},
                )
                for number in half
            )  # fmt: skip
            time.sleep(0.005)
        cluster.send([Message("ContractB", b"%d" % number) for number in range(5)])
        world = World(cluster)
        try:
            yield world
        finally:
            world.brokers.close()
    finally:
        cluster.stop()


@pytest.fixture
def world(everything: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Tasks freeze what their process has imported; this process has more to do.
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setenv("NAMESRV_ADDR", "")
    everything.patch = monkeypatch
    everything.spy = Spy()
    everything.spy.watch(monkeypatch)
    yield everything
    forget_connections()


Case = Callable[[World, Any], None]
CASES: list[tuple[str, type, Case]] = []
READ, WRITE = (BatchReading, StreamReading), (BatchWriting, StreamWriting)


def case(option: str, *kinds: type) -> Callable[[Case], Case]:
    """Note that a function shows what an option does, in these uses."""

    def noted(function: Case) -> Case:
        CASES.extend((option, kind, function) for kind in kinds)
        return function

    return noted


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(dict(row["properties"])["n"]) for row in rows)


# Reading.


@case("namesrv", *READ)
def the_environment_or_the_option_names_the_name_servers(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA")) == COUNT
    world.patch.setenv("NAMESRV_ADDR", world.address)
    assert len(use.rows(topic="ContractA", namesrv=None)) == COUNT
    with pytest.raises(TransportError, match=r"127.0.0.1:1: .*option namesrv"):
        use.rows(topic="ContractA", namesrv="127.0.0.1:1", retryMs=0)
    with pytest.raises(ConfigError, match=r"option namesrv: .*no address"):
        use.rows(topic="ContractA", namesrv="no address")


@case("topic", *READ)
def one_topic_or_several_are_read(world: World, use: Any) -> None:
    assert {row["topic"] for row in use.rows(topic="ContractA")} == {"ContractA"}
    assert len(use.rows(topic="ContractA, ContractB")) == COUNT + 5
    with pytest.raises(ConfigError, match=r"option topic: there is no topic ContractC .*create"):
        use.rows(topic="ContractC")
    with pytest.raises(SkylarkError, match="option topic"):
        use.rows(topic="../secret")


@case("topicsPattern", *READ)
def all_topics_that_match_are_read(world: World, use: Any) -> None:
    rows = use.rows(topicsPattern="Contract[AB]")
    assert {row["topic"] for row in rows} == {"ContractA", "ContractB"}
    if use.name == "batch read":  # A stream waits until one appears.
        with pytest.raises(ConfigError, match="option topicsPattern='Contract': no topic"):
            use.rows(topicsPattern="Contract")


@case("startingOffsets", *READ)
def reading_begins_at_offsets(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA", startingOffsets="earliest")) == COUNT
    assert use.rows(topic="ContractA", startingOffsets="latest") == []
    given = {"ContractA": {world.broker: {"0": 10, "1": -1}}}
    rows = use.rows(topic="ContractA", startingOffsets=json.dumps(given))
    assert min(row["queue_offset"] for row in rows if row["queue_id"] == 0) == 10
    assert {row["queue_id"] for row in rows} == {0, 2, 3}
    given = {"ContractA": {world.broker: {"0": 1_000}}}
    with pytest.raises(ConfigError, match=r"option startingOffsets: 1000 lies behind the end"):
        use.rows(topic="ContractA", startingOffsets=json.dumps(given))
    rows = use.rows(topic="ContractA", startingOffsets=json.dumps(given), failOnDataLoss="false")
    assert {row["queue_id"] for row in rows} == {1, 2, 3}
    given = {"ContractA": {"nobody": {"0": 1}}}
    with pytest.raises(ConfigError, match=r"no queue ContractA/nobody/0; there are ContractA/"):
        use.rows(topic="ContractA", startingOffsets=json.dumps(given))


@case("endingOffsets", BatchReading)
def reading_ends_at_offsets(world: World, use: Any) -> None:
    given = {"ContractA": {world.broker: {"0": 2, "1": -2, "2": 0, "3": -2}}}
    rows = use.rows(topic="ContractA", endingOffsets=json.dumps(given))
    assert [(row["queue_id"], row["queue_offset"]) for row in rows] == [(0, 0), (0, 1)]
    given = {"ContractA": {world.broker: {"0": 1_000}}}
    with pytest.raises(ConfigError, match=r"option endingOffsets: 1000 lies behind the end"):
        use.rows(topic="ContractA", endingOffsets=json.dumps(given))
    rows = use.rows(topic="ContractA", endingOffsets=json.dumps(given), failOnDataLoss="false")
    assert len(rows) == COUNT
    given = {"ContractA": {world.broker: {str(number): -1 for number in range(4)}}}
    for text, count in (("latest", COUNT), ("earliest", 0), (json.dumps(given), COUNT)):
        assert len(use.rows(topic="ContractA", endingOffsets=text)) == count
    begin, end = ({"ContractA": {world.broker: {"3": number}}} for number in (5, 4))
    with pytest.raises(ConfigError, match=r"startingOffsets and endingOffsets: ContractA/.*/3 "):
        use.rows(
            topic="ContractA", startingOffsets=json.dumps(begin), endingOffsets=json.dumps(end)
        )


@case("startingTimestamp", *READ)
def reading_begins_at_a_time(world: World, use: Any) -> None:
    begin = sorted(world.times())[HALF]
    for text in (begin.isoformat(), str(round(begin.timestamp() * 1000))):
        rows = use.rows(topic="ContractA", startingTimestamp=text)
        assert numbers(rows) == list(range(HALF, COUNT))
    later = begin + datetime.timedelta(hours=1)
    assert use.rows(topic="ContractA", startingTimestamp=later.isoformat()) == []
    if use.name == "stream read":  # It begins there once; then its checkpoint decides.
        start = {"v": 1, "q": {"ContractA": {world.broker: {str(n): 0 for n in range(4)}}}}
        rows = use.rows(topic="ContractA", startingTimestamp=later.isoformat(), start=start)
        assert numbers(rows) == list(range(COUNT))


@case("endingTimestamp", BatchReading)
def reading_ends_at_a_time(world: World, use: Any) -> None:
    end = sorted(world.times())[HALF]
    rows = use.rows(topic="ContractA", endingTimestamp=end.isoformat())
    assert numbers(rows) == list(range(HALF))
    with pytest.raises(ConfigError, match="startingTimestamp=2 and endingTimestamp=1: the end"):
        use.rows(topic="ContractA", startingTimestamp=2, endingTimestamp=1)


@case("group", *READ)
def a_group_reads_and_shows_its_progress(world: World, use: Any) -> None:
    group = f"contract-{use.name[:3]}"
    assert len(use.rows(topic="ContractA", group=group)) == COUNT
    assert len(use.rows(topic="ContractA", group=group, startingTimestamp=1_000)) == COUNT
    assert {fields["consumerGroup"] for fields in world.spy.fields(*PULLS)} == {group}
    assert world.committed(group) == (COUNT if use.name == "stream read" else 0)
    with pytest.raises(SkylarkError, match="option group"):
        use.rows(topic="ContractA", group="a b")


@case("commitOffsets", StreamReading)
def progress_is_committed_only_where_that_is_wanted(world: World, use: Any) -> None:
    for wanted, expected in (("false", 0), ("true", COUNT)):
        use.rows(topic="ContractA", group=f"contract-{wanted}", commitOffsets=wanted)
        assert world.committed(f"contract-{wanted}") == expected
    with pytest.raises(ConfigError, match="option commitOffsets is for streams"):
        BatchReading(world.address).rows(topic="ContractA", group="g", commitOffsets="false")


@case("filter", *READ)
def tags_are_filtered(world: World, use: Any) -> None:
    assert {row["tag"] for row in use.rows(topic="ContractA", filter="A")} == {"A"}
    assert len(use.rows(topic="ContractA", filter="A || B")) == COUNT
    assert use.rows(topic="ContractA", filter="C") == []
    with pytest.raises(SkylarkError, match=r"option filter .*'A \|\| B'"):
        use.rows(topic="ContractA", filter="||")


@case("filterType", *READ)
def conditions_are_filtered(world: World, use: Any) -> None:
    rows = use.rows(topic="ContractA", filter="n between 10 and 19", filterType="SQL92")
    assert numbers(rows) == list(range(10, 20))
    with pytest.raises(SkylarkError, match=r"'n >' of the option filter"):
        use.rows(topic="ContractA", filter="n >", filterType="SQL92")
    with pytest.raises(ConfigError, match=r"filterType='XPATH': one of TAG, SQL92 is allowed"):
        use.rows(topic="ContractA", filter="n", filterType="XPATH")


@case("maxMessagesPerTrigger", StreamReading)
def micro_batches_are_bounded_in_messages(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA", maxMessagesPerTrigger=25)) == COUNT
    assert max(use.sizes) <= 25
    assert len(use.sizes) >= 3


@case("maxBytesPerTrigger", StreamReading)
def micro_batches_are_bounded_in_bytes(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA", maxBytesPerTrigger="6k")) == COUNT
    assert 1 < len(use.sizes) < COUNT


@case("minPartitions", *READ)
def queues_are_split_over_tasks(world: World, use: Any) -> None:
    assert numbers(use.rows(topic="ContractA", minPartitions=7)) == list(range(COUNT))
    assert use.tasks == 7


@case("splitBytes", *READ)
def tasks_have_about_one_size(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA")) == COUNT
    assert use.tasks == 1
    assert numbers(use.rows(topic="ContractA", splitBytes="2k")) == list(range(COUNT))
    assert 4 < use.tasks < COUNT


@case("pullBytes", *READ)
def a_pull_asks_for_bytes(world: World, use: Any) -> None:
    assert numbers(use.rows(topic="ContractA", pullBytes="1m")) == list(range(COUNT))
    assert str(1 << 20) in {fields["maxMsgBytes"] for fields in world.spy.fields(*PULLS)}


@case("pullCount", *READ)
def a_pull_asks_for_messages(world: World, use: Any) -> None:
    assert numbers(use.rows(topic="ContractA", pullCount=3)) == list(range(COUNT))
    counts = [int(fields["maxMsgNums"]) for fields in world.spy.fields(*PULLS)]
    assert counts.count(3) >= COUNT / 3 - 8


@case("failOnDataLoss", *READ)
def what_retention_took_ends_the_query_or_is_passed_over(world: World, use: Any) -> None:
    given = {"ContractA": {world.broker: {str(number): 0 for number in range(4)}}}
    options = {"topic": "ContractA", "startingOffsets": json.dumps(given)}
    world.patch.setattr(Brokers, "min_offset", lambda self, queue: 5)
    said: list[str] = []
    world.patch.setattr(sources.logger, "warning", lambda text, *words: said.append(text % words))
    with pytest.raises(DataLoss, match=r"ContractA/.*/0 0 to 5.*Set failOnDataLoss=false"):
        use.rows(**options)
    assert not said
    rows = use.rows(**options, failOnDataLoss="false")
    (line,) = said
    assert line.startswith("lost: ")
    assert all(f"ContractA/{world.broker}/{number} 0 to 5" in line for number in range(4))
    assert min(row["queue_offset"] for row in rows) == 5
    assert len(rows) == COUNT - 20


@case("bodyFormat", *READ)
def bodies_are_bytes_text_or_parsed(world: World, use: Any) -> None:
    (row, *_) = use.rows(topic="ContractA", columns=("body",))
    assert isinstance(row["body"], bytes)
    rows = use.rows(topic="ContractA", bodyFormat="text", body=types.StringType())
    assert {json.loads(row["body"])["id"] for row in rows} == set(range(COUNT))
    with pytest.raises(ConfigError, match="column body: string is not possible, it is binary"):
        use.rows(topic="ContractA", body=types.StringType())


@case("bodySchema", *READ)
def a_schema_says_what_is_in_a_body(world: World, use: Any) -> None:
    rows = use.rows(
        topic="ContractA", bodyFormat="json", bodySchema="id long, name string", body=ORDER
    )
    assert {(row["body"]["id"], row["body"]["name"]) for row in rows} == {
        (number, f"order {number}") for number in range(COUNT)
    }
    with pytest.raises(
        ConfigError, match="column body: bigint is not possible, it is struct<id:bigint>"
    ):
        use.rows(topic="ContractA", bodyFormat="json", bodySchema="id:long", body=types.LongType())


@case("bodyMode", *READ)
def a_body_that_cannot_be_read_ends_the_query_or_not(world: World, use: Any) -> None:
    topic = f"Contract-bad-{use.name[:3]}"
    world.send_raw(topic, b"no zlib", 1)
    world.send_raw(topic, b'{"id": 1}', 0)
    world.send_raw(topic, b'{"id": "x"}', 0)
    bombs = list(CompressionType)
    for kind in bombs:
        world.send_raw(topic, compress(bytes(64 << 20), kind), with_compression(1, kind))
    for offset in (0, *range(3, 3 + len(bombs))):
        begin = json.dumps({topic: {world.broker: {"0": offset}}})
        with pytest.raises(
            UnreadableBody, match=rf"topic {topic} .* offset {offset}: .*option bodyMode"
        ):
            use.rows(topic=topic, startingOffsets=begin)
    unreadable = [None] * len(bombs)
    rows = use.rows(topic=topic, bodyMode="permissive")
    assert [row["body"] for row in rows] == [None, b'{"id": 1}', b'{"id": "x"}', *unreadable]
    assert len(use.rows(topic=topic, bodyMode="dropmalformed")) == 2
    json_options = {"bodyFormat": "json", "bodySchema": "id long, name string", "body": ORDER}
    rows = use.rows(topic=topic, **json_options)
    assert [row["body"] and row["body"]["id"] for row in rows] == [None, 1, None, *unreadable]
    assert len(use.rows(topic=topic, **json_options, bodyMode="dropmalformed")) == 1
    with pytest.raises(UnreadableBody, match=r"offset 0: .*option bodyMode"):
        use.rows(topic=topic, **json_options, bodyMode="failfast")


@case("pushdown", BatchReading)
def conditions_of_the_query_narrow_what_is_read(world: World, use: Any) -> None:
    narrow = (EqualTo(("queue_id",), 1), GreaterThanOrEqual(("queue_offset",), 12))
    rows = use.rows(*narrow, topic="ContractA", pushdown="true")
    assert {row["queue_id"] for row in rows} == {1}
    assert min(row["queue_offset"] for row in rows) == 12
    both = {"topic": "ContractA,ContractB", "pushdown": "true"}
    everything = use.planned(**both)
    assert sum(one.count for one in everything) == COUNT + 5
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    of_b = [one for one in everything if one.queue.topic == "ContractB"]
    for condition, expected in (
        (EqualTo(("topic",), "ContractB"), of_b),
        (In(("topic",), ("ContractB", "ContractC")), of_b),
        (EqualTo(("broker",), world.broker), everything),
        (EqualTo(("broker",), "nobody"), []),
        (GreaterThan(("store_time",), now - hour), everything),
        (GreaterThan(("store_time",), now + hour), []),
        (LessThan(("store_time",), now + hour), everything),
        (LessThan(("store_time",), now - hour), []),
    ):
        assert use.planned(condition, **both) == expected, condition
    world.spy.sent.clear()
    rows = use.rows(In(("tag",), ("B", "C")), topic="ContractA", pushdown="true")
    assert numbers(rows) == list(range(1, COUNT, 2))
    assert "B || C" in {fields["subscription"] for fields in world.spy.fields(*PULLS)}
    rows = use.rows(EqualTo(("tag",), "B || A"), topic="ContractA", pushdown="true")
    assert len(rows) == COUNT, "no filter of a broker's; Spark applies it"
    for tags in (["||"], [" ", "  "], [f"tag-{number:010d}" for number in range(400)]):
        rows = use.rows(In(("tag",), tuple(tags)), topic="ContractA", pushdown="true")
        assert len(rows) == COUNT, "nor is this one"


@case("readFrom", *READ)
def files_and_network_have_the_same_rows(world: World, use: Any) -> None:
    expected = use.rows(topic="ContractA,ContractB", columns=(*COLUMN_NAMES,))
    for kind in ("files", "auto"):
        world.spy.sent.clear()
        rows = use.rows(
            topic="ContractA,ContractB", columns=(*COLUMN_NAMES,), readFrom=kind,
            storePath=world.store,
        )  # fmt: skip
        assert rows == expected
        counts = [int(fields["maxMsgNums"]) for fields in world.spy.fields(*PULLS)]
        assert set(counts) <= {1, 16}, "the broker is asked for a sample, and to compare"
    filtered = {"topic": "ContractA", "filter": "n < 7", "filterType": "SQL92"}
    for more in ({}, {"readFrom": "files", "storePath": world.store}):
        assert numbers(use.rows(**filtered, **more)) == list(range(7))
    with pytest.raises(ConfigError, match="readFrom='disk': one of network, files, auto is"):
        use.rows(topic="ContractA", readFrom="disk")


@case("storePath", *READ)
def files_that_are_not_the_brokers_are_refused(world: World, use: Any) -> None:
    options = {"topic": "ContractA", "readFrom": "files"}
    named = str(Path(world.store).parent / "{broker}")
    assert len(use.rows(**options, storePath=named)) == COUNT
    with pytest.raises(ConfigError, match=r"option storePath='/nowhere': there is no commitlog"):
        use.rows(**options, storePath="/nowhere")
    with pytest.raises(ConfigError, match="option storePath is needed with readFrom=files"):
        use.rows(**options)
    with pytest.raises(ConfigError, match=r"without \.\., is allowed"):
        use.rows(**options, storePath="/data/../etc")
    with pytest.raises(ConfigError, match="option storePath is for readFrom=files"):
        use.rows(topic="ContractA", storePath=world.store)


@case("accessKey", *READ)
@case("secretKey", *READ)
def every_request_of_a_reader_is_signed(world: World, use: Any) -> None:
    assert len(use.rows(topic="ContractA", accessKey="me", secretKey="hidden")) == COUNT
    assert_signed(world)
    with pytest.raises(ConfigError, match="accessKey and secretKey go together"):
        use.rows(topic="ContractA", accessKey="me")
    world.patch.setenv("SKYLARK_ACCESS_KEY", "me")
    world.patch.setenv("SKYLARK_SECRET_KEY", "hidden")
    world.spy.sent.clear()
    assert len(use.rows(topic="ContractA")) == COUNT
    assert_signed(world)


def assert_signed(world: World) -> None:
    assert world.spy.sent
    for command in world.spy.sent:
        fields = dict(command.fields)
        assert fields["AccessKey"] == "me"
        signature = fields.pop("Signature")
        values = "".join(value for _, value in sorted(fields.items()))
        digest = hmac.digest(b"hidden", values.encode() + bytes(command.body), "sha1")
        assert base64.b64decode(signature) == digest
        assert "hidden" not in str(fields)


@case("timeoutMs", *READ)
def a_server_that_keeps_silent_is_not_waited_for(world: World, use: Any) -> None:
    with silent_server() as address, pytest.raises(TransportError, match="no answer within 120 ms"):
        use.rows(topic="ContractA", namesrv=address, timeoutMs=120, retryMs=0)


@case("retryMs", *READ)
def servers_that_are_away_are_asked_again(world: World, use: Any) -> None:
    assert_retried(world, lambda **options: use.rows(topic="ContractA", **options))


def silent_server() -> Any:
    import contextlib

    @contextlib.contextmanager
    def listening() -> Iterator[str]:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            yield f"127.0.0.1:{server.getsockname()[1]}"

    return listening()


def assert_retried(world: World, action: Callable[..., Any]) -> None:
    """Pauses are taken while the time lasts, which this clock makes pass."""
    now = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    # The clock of that module alone: Spark has threads of its own here.
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    world.patch.setattr(clusters, "time", clock)
    for retry_ms, least, most in ((0, 0, 0), (2_000, 1.0, 2.0)):
        pauses.clear()
        with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
            action(namesrv="127.0.0.1:1", retryMs=retry_ms)
        assert least <= sum(pauses) <= most


COLUMN_NAMES = (
    "topic", "broker", "queue_id", "queue_offset", "body", "tag", "keys", "properties",
    "message_id", "born_time", "store_time", "reconsume_times", "flag", "sys_flag",
    "physical_offset", "born_host", "store_host", "offset_message_id",
)  # fmt: skip


# Writing.


def some_rows(topic: str, count: int = 6) -> list[dict[str, Any]]:
    return [{"body": f"{topic} {number}", "tag": "T"} for number in range(count)]


def expected_bodies(topic: str, count: int = 6) -> list[bytes]:
    return sorted(f"{topic} {number}".encode() for number in range(count))


def topic_of(option: str, use: Any) -> str:
    return f"Written-{option}-{use.name[:3]}"


@case("namesrv", *WRITE)
def rows_go_where_the_name_servers_say(world: World, use: Any) -> None:
    topic = topic_of("namesrv", use)
    world.patch.setenv("NAMESRV_ADDR", world.address)
    use.write(some_rows(topic), topic=topic, namesrv=None, sinkId=topic)
    assert world.bodies(topic) == expected_bodies(topic)
    with pytest.raises(TransportError, match=r"127.0.0.1:1: .*option namesrv"):
        use.write(some_rows(topic), topic=topic, namesrv="127.0.0.1:1", retryMs=0)


@case("topic", *WRITE)
def rows_go_to_the_topic_of_the_option_or_their_own(world: World, use: Any) -> None:
    topic = topic_of("topic", use)
    rows = [{"body": "a", "topic": f"{topic}-own"}, {"body": "b", "topic": None}]
    use.write(rows, topic=topic, sinkId=topic)
    assert world.bodies(topic) == [b"b"]
    assert world.bodies(f"{topic}-own") == [b"a"]
    with pytest.raises(ConfigError, match="option topic is needed"):
        use.write([{"body": "a"}])
    with pytest.raises(ConfigError, match="option topic: a write goes to one topic"):
        use.write([{"body": "a"}], topic="A,B")


@case("deliveryGuarantee", *WRITE)
def rows_appear_once_or_at_least_once(world: World, use: Any) -> None:
    topic = topic_of("guarantee", use)
    for guarantee in ("exactly_once", "at_least_once"):
        for _ in range(2):  # As Spark does when it has not seen the commit return.
            use.write(
                some_rows(f"{topic}-{guarantee}"), topic=f"{topic}-{guarantee}",
                deliveryGuarantee=guarantee, sinkId=f"{topic}-{guarantee}",
            )  # fmt: skip
    assert world.bodies(f"{topic}-exactly_once") == expected_bodies(f"{topic}-exactly_once")
    assert len(world.bodies(f"{topic}-at_least_once")) == 12
    with pytest.raises(ConfigError, match="one of exactly_once, at_least_once is allowed"):
        use.write(some_rows(topic), topic=topic, deliveryGuarantee="twice")


@case("group", *WRITE)
def rows_are_sent_by_a_producer_group(world: World, use: Any) -> None:
    topic = topic_of("group", use)
    use.write(some_rows(topic), topic=topic, group="my-writers", deliveryGuarantee="at_least_once")
    use.write(some_rows(topic), topic=topic, group="my-writers", sinkId=topic, **ONCE)
    sent = world.spy.fields(*SENDS), world.spy.fields(RequestCode.STAGE_ROWS)
    for requests in sent:
        groups = {fields.get("a") or fields.get("producerGroup") for fields in requests}
        assert groups == {"my-writers"}
    with pytest.raises(SkylarkError, match="option group"):
        use.write(some_rows(topic), topic=topic, group="a b")


@case("sinkId", *WRITE)
def a_job_that_runs_again_under_one_name_writes_nothing(world: World, use: Any) -> None:
    topic = topic_of("sinkId", use)
    options = {"topic": topic, "deliveryGuarantee": "exactly_once"}
    use.write(some_rows(topic), **options, sinkId=f"{topic}-1")
    use.write(some_rows(topic), **options, sinkId=f"{topic}-1")
    assert len(world.bodies(topic)) == 6
    use.write(some_rows(topic), **options, sinkId=f"{topic}-2")
    assert len(world.bodies(topic)) == 12
    with pytest.raises(ConfigError, match="option sinkId="):
        use.write(some_rows(topic), **options, sinkId="a/b")


@case("batchBytes", *WRITE)
def rows_are_sent_in_batches_of_about_one_size(world: World, use: Any) -> None:
    topic = topic_of("batchBytes", use)
    for guarantee in ("at_least_once", "exactly_once"):
        sizes = {}
        for size in ("1m", "100"):
            world.spy.sent.clear()
            use.write(
                some_rows(topic, 20), topic=topic, batchBytes=size, deliveryGuarantee=guarantee,
                sinkId=f"{topic}-{size}",
            )  # fmt: skip
            sizes[size] = len(world.spy.fields(*SENDS, RequestCode.STAGE_ROWS))
        assert sizes["1m"] == 2, "one of each task"
        assert sizes["100"] > 4
    assert len(world.bodies(topic)) == 80


@case("accessKey", *WRITE)
@case("secretKey", *WRITE)
def every_request_of_a_writer_is_signed(world: World, use: Any) -> None:
    topic = topic_of("accessKey", use)
    use.write(some_rows(topic), topic=topic, accessKey="me", secretKey="hidden", sinkId=topic)
    assert_signed(world)
    with pytest.raises(ConfigError, match="accessKey and secretKey go together"):
        use.write(some_rows(topic), topic=topic, secretKey="hidden")


@case("timeoutMs", *WRITE)
def a_writer_does_not_wait_for_a_silent_server(world: World, use: Any) -> None:
    with silent_server() as address, pytest.raises(TransportError, match="no answer within 120 ms"):
        use.write(some_rows("T"), topic="T", namesrv=address, timeoutMs=120, retryMs=0)


@case("retryMs", *WRITE)
def a_writer_asks_again(world: World, use: Any) -> None:
    assert_retried(world, lambda **options: use.write(some_rows("T"), topic="T", **options))


@pytest.mark.parametrize(
    ("option", "kind", "function"),
    CASES,
    ids=[f"{option}-{kind.name}".replace(" ", "-") for option, kind, _ in CASES],
)
def test_an_option_does_what_the_manual_says(
    world: World, option: str, kind: type, function: Case
) -> None:
    function(world, kind(world.address))


def test_every_option_of_the_manual_is_tried_in_every_use() -> None:
    tried: dict[str, set[str]] = {}
    for option, kind, _ in CASES:
        tried.setdefault(option, set()).add(kind.name)
    assert tried == options_in_the_manual()


# What belongs to no option.


@pytest.mark.parametrize("use", READ, ids=lambda kind: kind.name)
def test_names_have_no_case_and_unknown_ones_are_refused(world: World, use: type) -> None:
    assert use(world.address).rows(TOPIC="ContractB", STARTINGOFFSETS="earliest")
    with pytest.raises(ConfigError, match="did you mean startingOffsets"):
        use(world.address).rows(topic="ContractB", startingOffset="latest")
    with pytest.raises(ConfigError, match="option class is not known"):
        use(world.address).rows(topic="ContractB", **{"class": "os.system"})
    with pytest.raises(ConfigError, match="option path: a topic has none; give option topic"):
        use(world.address).rows(path="/etc/passwd")


@pytest.mark.parametrize("use", READ, ids=lambda kind: kind.name)
def test_columns_that_are_not_there_are_refused(world: World, use: type) -> None:
    from pyspark.sql.types import IntegerType, StructField, StructType

    source = use(world.address).source({"topic": "ContractB"})
    for name, problem in (("bodi", "column bodi is not known"), ("body", "it is binary")):
        schema = StructType([StructField(name, IntegerType())])
        make = source.streamReader if use is StreamReading else source.reader
        with pytest.raises(ConfigError, match=problem):
            make(schema)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("use", WRITE, ids=lambda kind: kind.name)
def test_a_row_becomes_the_message_that_its_columns_say(
    world: World, use: Any, guarantee: str
) -> None:
    topic, own = f"Columns-{guarantee}-{use.name[:3]}", {"a": "1", "b": "two"}
    options = {"topic": "T", "sinkId": topic, "deliveryGuarantee": guarantee}
    row = {"topic": topic, "tag": "X", "keys": ["k-1", "k-2"], "properties": own}
    rows = [{**row, "body": bytes([number]), "queue_id": number % 4} for number in range(8)]
    use(world.address).write(rows, **options)
    found = BatchReading(world.address).rows(topic=topic)
    assert sorted((one["queue_id"], one["body"]) for one in found) == sorted(
        (one["queue_id"], one["body"]) for one in rows
    )
    for one in found:
        assert (one["tag"], one["keys"]) == ("X", "k-1 k-2")
        assert own.items() <= dict(one["properties"]).items()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("use", WRITE, ids=lambda kind: kind.name)
def test_an_empty_body_is_a_body(world: World, use: Any, guarantee: str) -> None:
    topic = f"Empty-{guarantee}-{use.name[:3]}"
    rows: list[dict[str, Any]] = [{"body": body} for body in (b"", b"x", b"", b"", b"\0")]
    use(world.address).write(rows, topic=topic, sinkId=topic, deliveryGuarantee=guarantee)
    expected = [b"", b"", b"", b"\0", b"x"]
    files = {"readFrom": "files", "storePath": world.store}
    for kind in READ:
        for options in ({}, files):
            found = kind(world.address).rows(topic=topic, **options)
            assert sorted(row["body"] for row in found) == expected
    found = world.cluster.consume(topic, len(rows), f"readers-of-{topic}")
    assert sorted(message.body for message in found) == expected


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("use", WRITE, ids=lambda kind: kind.name)
def test_rows_with_one_sharding_key_keep_their_order_in_one_queue(
    world: World, use: Any, guarantee: str
) -> None:
    topic = f"Sharded-{guarantee}-{use.name[:3]}"
    rows = [{"body": bytes([number]), "sharding_key": f"k{number % 5}"} for number in range(40)]
    use(world.address).write(rows, topic=topic, sinkId=topic, deliveryGuarantee=guarantee)
    found = BatchReading(world.address).rows(topic=topic)
    assert sorted(one["body"] for one in found) == [bytes([number]) for number in range(40)]
    for key in range(5):
        mine = [one for one in found if one["body"][0] % 5 == key]
        (queue,) = {one["queue_id"] for one in mine}
        # Of each task, 20 rows here.
        for half in (range(20), range(20, 40)):
            order = [one["body"][0] for one in mine if one["body"][0] in half]
            assert order == sorted(order), f"queue {queue}"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("use", WRITE, ids=lambda kind: kind.name)
def test_a_row_is_delivered_at_its_time(world: World, use: Any, guarantee: str) -> None:
    topic = f"Timed-{guarantee}-{use.name[:3]}"
    now = datetime.datetime.now(datetime.UTC)
    due = [now + datetime.timedelta(seconds=seconds) for seconds in (-70 * 365 * 86_400, 0.5, 1)]
    rows = [{"body": bytes([n]), "deliver_time": one} for n, one in enumerate(due)]
    for _ in range(2 if guarantee == "exactly_once" else 1):
        use(world.address).write(rows, topic=topic, sinkId=topic, deliveryGuarantee=guarantee)
    deadline = time.monotonic() + 30
    while len(found := BatchReading(world.address).rows(topic=topic)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sorted(one["body"] for one in found) == [b"\0", b"\1", b"\2"]
    for one in found:
        assert one["store_time"] >= due[one["body"][0]]


def test_a_level_goes_with_rows_that_are_sent_at_once(world: World) -> None:
    rows = [{"body": "x", "delay_level": 1}]
    for use in WRITE:
        with pytest.raises(ConfigError, match=r"column delay_level: .*use deliver_time, or set"):
            use(world.address).write(rows, topic="T", deliveryGuarantee="exactly_once")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"number": 1}, "column number cannot be written; allowed are body, topic"),
        ({"topic": "x"}, "column body is missing"),
        ({"body": 1}, "column body: int cannot be written, it must be binary or string"),
        ({"body": "x", "queue_id": 1, "sharding_key": "k"}, "exclude each other"),
        ({"body": "x", "queue_id": 99}, "queue_id: 99 is not possible, topic T has 4 writable"),
        ({"body": None}, "column body: a row has null"),
        ({"body": "x", "properties": {"UNIQ_KEY": "mine"}}, "UNIQ_KEY is set by the system"),
        ({"body": "x", "properties": {"SINK_ROW": "a/0/0/0"}}, "column properties: SINK_ROW is"),
        ({"body": "x", "properties": {"a\x01": "b"}}, "column properties: "),
        ({"body": "x", "keys": ["a", None]}, "column keys: an array has a null"),
        ({"body": "x", "keys": "a\x02b"}, "column keys: "),
        ({"body": "x", "tag": "A||B"}, r"column tag: 'A\|\|B' is blank or"),
        ({"body": "x", "topic": "a/b"}, "column topic: topic name 'a/b' contains '/'"),
        ({"body": "x", "topic": "RMQ_SYS_TRACE_TOPIC"}, "column topic: .* the system's own"),
        ({"body": "x", "topic": "%RETRY%g"}, "column topic: .* the system's own"),
        (
            {"body": "x", "deliver_time": datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)},
            "column deliver_time: broker .* refuses it for T/.* too far ahead",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", WRITE, ids=lambda kind: kind.name)
def test_rows_that_cannot_be_sent_are_refused(
    world: World, use: type, row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        use(world.address).write([row], topic="T", sinkId="contract-refused")


def test_of_two_writers_with_one_checkpoint_the_first_to_commit_counts(world: World) -> None:
    topic = "WrittenByTwo"
    one, other = StreamWriting(world.address), StreamWriting(world.address)
    options = {"topic": topic, "sinkId": "contract-two"}
    first = one.tasks(some_rows(topic), **options)
    second = other.tasks(some_rows(topic), **options)
    other.commit(*second)
    one.commit(*first)
    assert world.bodies(topic) == expected_bodies(topic)


def test_an_empty_topic_has_no_rows(world: World) -> None:
    world.make_topic("ContractEmpty", perm=6)
    for use in READ:
        assert use(world.address).rows(topic="ContractEmpty") == []


def test_a_checkpoint_of_another_topic_is_refused_whatever_may_be_lost(world: World) -> None:
    use = StreamReading(world.address)
    start = {"v": 1, "q": {"ContractB": {world.broker: {"0": 1}}}}
    for loss in ("true", "false"):
        with pytest.raises(ConfigError, match=r"checkpointLocation: .*is of topic ContractB"):
            use.rows(topic="ContractA", start=start, failOnDataLoss=loss)
    with pytest.raises(ConfigError, match="new checkpointLocation"):
        use.rows(topic="ContractA", start={"kafka": {"0": 1}})


def test_a_queue_that_is_gone_ends_a_stream_unless_that_is_allowed(world: World) -> None:
    use = StreamReading(world.address)
    start = {"v": 1, "q": {"ContractA": {world.broker: {"9": 3}}}}
    with pytest.raises(DataLoss, match=r"ContractA/.*/9 .*failOnDataLoss=false"):
        use.rows(topic="ContractA", start=start)
    assert len(use.rows(topic="ContractA", start=start, failOnDataLoss="false")) == COUNT


def test_a_planned_micro_batch_whose_queue_is_gone_ends_a_stream_unless_that_is_allowed(
    world: World,
) -> None:
    # Spark plans a micro-batch again, as it was, after a restart.
    use = StreamReading(world.address)
    start = {"v": 1, "q": {"ContractA": {world.broker: {"0": 0, "9": 3}}}}
    end = {"v": 1, "q": {"ContractA": {world.broker: {"0": 5, "9": 8}}}}
    for loss in ("true", "false"):
        options = {"topic": "ContractA", "failOnDataLoss": loss}
        reader: Any = use.source(options).streamReader(struct_of(("queue_offset",)))
        if loss == "true":
            with pytest.raises(DataLoss, match=r"ContractA/.*/9 was to be read up to 8 and is not"):
                reader.partitions(start, end)
            continue
        (part,) = reader.partitions(start, end)
        assert [(one.queue.queue_id, one.start, one.end) for one in part.ranges] == [(0, 0, 5)]


def test_a_micro_batch_of_everything_has_no_limit(world: World) -> None:
    """Trigger.Once asks for all there is, whatever the options say."""
    options = {"topic": "ContractA", "maxBytesPerTrigger": "1k", "startingOffsets": "earliest"}
    reader: Any = StreamReading(world.address).source(options).streamReader(struct_of(("body",)))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(sum(queues.values()) for queues in end["q"]["ContractA"].values()) == COUNT
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sum(sum(queues.values()) for queues in end["q"]["ContractA"].values()) < COUNT


def test_a_queue_that_was_made_anew_ends_a_stream_or_is_read_from_its_beginning(
    world: World,
) -> None:
    use = StreamReading(world.address)
    start = {"v": 1, "q": {"ContractA": {world.broker: {"0": 1_000}}}}
    options = {"topic": "ContractA", "start": start, "retryMs": 0}
    with pytest.raises(DataLoss, match=r"read up to 1000 and ends at .*failOnDataLoss=false"):
        use.rows(**options)
    rows = use.rows(**options, failOnDataLoss="false")
    assert numbers(rows) == list(range(COUNT))
    # A master may have to learn first how far its group had come.
    ends = iter([3, 1_000])
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic)
        patch.setattr(clusters, "time", clock)
        patch.setattr(Brokers, "max_offset", lambda self, queue: next(ends))
        assert world.brokers.settled_end(QueueKey("ContractA", world.broker, 0), 1_000) == 1_000
    # A replica that lags behind is not believed; the query waits for its master.
    world.patch.setattr(Brokers, "has_master", lambda self, queue: False)
    rows = use.rows(**options)
    assert {row["queue_id"] for row in rows} == {1, 2, 3}


def test_a_stream_that_crashed_at_once_begins_where_it_had_begun(world: World) -> None:
    # Spark asks for the first offset again if the first micro-batch was not committed.
    topic = "ContractBegin"
    world.cluster.send([Message(topic, b"before")])
    options = {"topic": topic, "startingOffsets": "latest", "group": "contract-begin"}
    use = StreamReading(world.address)
    assert use.rows(**options) == []
    world.cluster.send([Message(topic, b"after")])
    assert [row["body"] for row in use.rows(**options)] == [b"after"]
    assert use.rows(**options) == [], "it has come further: a new query begins as it is asked to"


@pytest.mark.parametrize("bodies", [[b"one", b"two"], []], ids=["some", "none"])
@pytest.mark.parametrize(
    "begin",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "4102444800000"},
        {"startingTimestamp": "4102444800000", "group": "contract-replanned"},
    ],
)
def test_the_first_micro_batch_is_the_same_after_a_crash(
    world: World, begin: dict[str, str], bodies: list[bytes]
) -> None:
    # Spark has written down how far it goes, not where it begins, and asks for that again. It
    # plans the first one also where there is nothing in it.
    topic = f"ContractReplanned{len(str(begin))}-{len(bodies)}"
    world.cluster.send([Message(topic, b"history")])
    world.cluster.send_to_queue(topic, 0, [b"old"])
    use = StreamReading(world.address)

    def started() -> tuple[Any, Any]:
        reader: Any = use.source({"topic": topic, **begin}).streamReader(struct_of(("body",)))
        reader.initialOffset()
        return reader, reader.initialOffset()

    reader, start = started()
    world.cluster.send_to_queue(topic, 0, bodies)
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    world.cluster.send_to_queue(topic, 0, [b"later"] * 3)
    again, other = started()
    assert other != start
    rows = [row for part in again.partitions(other, end) for row in read_part(again, part)]
    assert [row["body"] for row in rows] == bodies
    later = again.latestOffset(end, again.getDefaultReadLimit())
    rows = [row for part in again.partitions(end, later) for row in read_part(again, part)]
    assert [row["body"] for row in rows] == [b"later"] * 3
    assert again.latestOffset(later, again.getDefaultReadLimit()) == later


def test_what_a_new_queue_has_lost_since_it_was_planned_is_not_passed_over(world: World) -> None:
    # A crash, and a micro-batch that is planned again, as it was, after retention was at work.
    use = StreamReading(world.address)
    topic = "ContractA"
    start = {"v": 1, "q": {topic: {world.broker: {"0": 0, "1": 0, "2": 0}}}}

    def planned(at: dict[str, Any], end: dict[str, Any] | None = None, **options: str) -> Any:
        given = {"topic": topic, **options}
        reader: Any = use.source(given).streamReader(struct_of(("queue_offset",)))
        if end is None:
            return json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
        return [one for part in reader.partitions(at, end) for one in part.ranges]

    end = planned(start)
    new = QueueKey(topic, world.broker, 3)
    assert [one.start for one in planned(start, end) if one.queue == new] == [0]
    assert planned(end) == end, "there is nothing new"
    world.patch.setattr(Brokers, "min_offset", lambda self, queue: 2 * (queue == new))
    with pytest.raises(DataLoss, match=r"ContractA/.*/3 0 to 2"):
        planned(start, end)
    ranges = planned(start, end, failOnDataLoss="false")
    assert [one.start for one in ranges if one.queue == new] == [2]


def test_what_came_to_a_new_topic_before_a_crash_at_once_is_not_passed_over(world: World) -> None:
    for number in range(2):
        world.cluster.send([Message(f"ContractLate{number}", b"before")])
    options = {
        "topicsPattern": "ContractLate.", "startingOffsets": "latest", "group": "contract-late",
    }  # fmt: skip
    use = StreamReading(world.address)
    assert use.rows(**options) == []
    world.cluster.send([Message("ContractLate1", b"after"), Message("ContractLate2", b"new")])
    assert sorted(row["body"] for row in use.rows(**options)) == [b"after", b"new"]


def test_a_pattern_passes_over_what_may_not_be_read(world: World) -> None:
    world.make_topic("ContractClosed", perm=2)
    for use in READ:
        rows = use(world.address).rows(topicsPattern="Contract(A|Closed)")
        assert len(rows) == COUNT


def test_a_topic_that_may_not_be_read_is_said_in_the_driver(world: World) -> None:
    world.make_topic("ContractShut", perm=2)
    for use in READ:
        with pytest.raises(ConfigError, match=r"option topic: ContractShut .*may not be read"):
            use(world.address).rows(topic="ContractShut")


def test_an_answer_that_is_no_records_is_named_by_its_queue(world: World) -> None:
    real = RangeReader._pull

    def torn(self: RangeReader) -> bytes | None:
        body = real(self)
        return None if body is None else bytes(body[:-7])

    world.patch.setattr(RangeReader, "_pull", torn)
    for use in READ:
        with pytest.raises(UnreadableBody, match=r"topic ContractA .* queue 0: .*damaged"):
            use(world.address).rows(topic="ContractA")


def test_a_topic_that_is_deleted_under_a_stream_that_may_lose_data_holds_nothing_up(
    world: World,
) -> None:
    for topic in ("ContractStays", "ContractGoes"):
        world.cluster.send([Message(topic, b"x")])
    options = {
        "topic": "ContractStays,ContractGoes", "startingOffsets": "earliest",
        "failOnDataLoss": "false", "group": "contract-goes", "retryMs": 2_000,
    }  # fmt: skip
    reader: Any = StreamReading(world.address).source(options).streamReader(struct_of(("body",)))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert set(end["q"]) == {"ContractStays", "ContractGoes"}
    assert main(["topic", "delete", "ContractGoes", "-n", world.address, "--yes"]) == 0
    world.cluster.send([Message("ContractStays", b"y")])
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    reader.commit(end)
    (part,) = reader.partitions(end, later)
    assert [(one.queue.topic, one.count) for one in part.ranges] == [("ContractStays", 1)]
    assert set(reader.reportLatestOffset()["q"]) == {"ContractStays"}
