"""The sink's tasks, against brokers in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from sink_world import World, WorldCluster, named

from skylark.clock import SystemClock
from skylark.errors import ConfigError, TransportError
from skylark.protocol.batch import BatchEntry, decode_batch, encode_batch
from skylark.protocol.codes import RequestCode
from skylark.protocol.properties import parse_properties
from skylark.spark import cluster as clusters
from skylark.spark import sink as module
from skylark.spark.options import write_options
from skylark.spark.rows import ROW_PROPERTIES_BYTES_MAX
from skylark.spark.sink import Sender
from skylark.spark.transactions import BatchName, Stage

pytestmark = pytest.mark.parametrize("staged", [False, True], ids=["sent", "staged"])


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens while somebody waits."""
    now, events = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if events and now[0] > 3:
            events.pop(0)()

    # The clock of that module alone: others in this process may sleep as well.
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(clusters, "time", clock)
    return events


def write(world: World, staged: bool, columns: dict[str, Any], **more: str) -> None:
    """As one task does."""
    options = write_options({"namesrv": "ns1:1", "topic": "T", **more}, is_stream=False)
    stage = Stage(options, BatchName("sink", 0, 0)) if staged else None
    sender = Sender(options, WorldCluster(world), stage)
    sender.send(pa.RecordBatch.from_pydict(columns))
    sender.flush()


def places(world: World) -> dict[bytes, str]:
    return {body: named([queue]) for queue, body in world.rows}


def test_rows_for_a_broker_that_restarts_wait_for_it(staged: bool, sleeps: list[Any]) -> None:
    world = World()
    columns = {"body": [b"0", b"1", b"2", b"3"], "queue_id": [0, 1, 2, 3]}
    write(world, staged, columns)
    before = places(world)
    assert before == {b"0": "a0", b"1": "a1", b"2": "b0", b"3": "b1"}
    world.rows.clear()
    world.there = {"b"}
    sleeps.append(lambda: world.there.add("a"))
    write(world, staged, columns)
    assert places(world) == before


def test_keys_keep_their_queues_while_a_broker_restarts(staged: bool, sleeps: list[Any]) -> None:
    world = World()
    keys = [f"key-{number}" for number in range(20)]
    columns = {"body": [key.encode() for key in keys], "sharding_key": keys}
    write(world, staged, columns)
    before = places(world)
    assert len(set(before.values())) == 4
    world.rows.clear()
    world.there = {"a"}
    sleeps.append(lambda: world.there.add("b"))
    write(world, staged, columns)
    assert places(world) == before


def test_a_broker_that_stays_away_is_named(staged: bool) -> None:
    world = World()
    write(world, staged, {"body": [b"0"], "queue_id": [3]})
    world.there = {"a"}
    with pytest.raises(
        TransportError, match=r"b: no name server knows it .* topic T\. .*queues\.T"
    ):
        write(world, staged, {"body": [b"0"], "queue_id": [3]})


def test_rows_that_may_go_anywhere_do_not_wait(staged: bool) -> None:
    world = World()
    write(world, staged, {"body": [b"0"], "queue_id": [3]})
    world.there = {"a"}
    world.rows.clear()
    write(world, staged, {"body": [b"1"]})
    write(world, staged, {"body": [b"2"], "queue_id": pa.array([None], pa.int32())})
    write(world, staged, {"body": [b"3"], "properties": [[("k", "v")]]})
    assert {queue.broker for queue, _ in world.rows} == {"a"}
    assert clusters.time.monotonic() == 0.0


def test_a_number_beyond_all_queues_is_said(staged: bool) -> None:
    with pytest.raises(ConfigError, match="queue_id: 4 is not possible, topic T has 4 writable"):
        write(World(), staged, {"body": [b"0"], "queue_id": [4]})


def test_brokers_make_a_new_topic_each_when_its_first_row_comes(staged: bool) -> None:
    world = World()
    world.topics.clear()
    world.template_queues = 2
    for number in range(4):
        write(world, staged, {"body": [b"%d" % number], "queue_id": [number]})
    assert places(world) == {b"0": "a0", b"1": "a1", b"2": "b0", b"3": "b1"}


LIMIT = 5_000


@pytest.mark.parametrize("columns", [{}, {"queue_id": [0]}, {"properties": [[("n", "1")]]}])
def test_a_body_may_be_as_large_as_a_producers(staged: bool, columns: dict[str, Any]) -> None:
    world = World(body_bytes_max=LIMIT)
    body = b"z" * LIMIT
    write(world, staged, {"body": [body], **columns}, batchBytes="1k")
    assert [found for _, found in world.rows] == [body]


def test_a_body_that_is_larger_is_refused(staged: bool) -> None:
    with pytest.raises(ConfigError, match="5000 are allowed"):
        write(World(body_bytes_max=LIMIT), staged, {"body": [b"z" * (LIMIT + 1)]}, batchBytes="1k")


def test_a_large_body_goes_by_itself(staged: bool) -> None:
    head = len(encode_batch([BatchEntry(b"")])) + 100
    world = World(body_bytes_max=LIMIT)
    bodies = [b"1" * 10, b"2" * (LIMIT - head), b"3" * 10]
    write(world, staged, {"body": bodies}, batchBytes="1k")
    write(world, staged, {"body": bodies, "tag": ["x"] * 3}, batchBytes="1k")
    assert [body for _, body in world.rows] == bodies * 2


def test_batches_that_the_broker_does_not_take_are_named(staged: bool) -> None:
    world = World(body_bytes_max=LIMIT)
    with pytest.raises(ConfigError, match=r"of a whole batch.*make batchBytes smaller"):
        write(world, staged, {"body": [b"x" * 100] * 1_000}, batchBytes="1m")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("keys", "k" * ROW_PROPERTIES_BYTES_MAX),
        ("tag", "t" * ROW_PROPERTIES_BYTES_MAX),
        ("properties", [("n", "v" * ROW_PROPERTIES_BYTES_MAX)]),
        ("keys", "ї" * (ROW_PROPERTIES_BYTES_MAX // 2)),
    ],
)
def test_properties_that_leave_no_room_are_said_before_they_are_sent(
    staged: bool, column: str, value: Any
) -> None:
    world = World()
    with pytest.raises(ConfigError, match=f"column {column}: .* at most 31743 are possible"):
        write(world, staged, {"body": [b"x"], column: [value]})
    assert not world.requests


def test_properties_up_to_the_limit_go(staged: bool) -> None:
    world = World()
    write(world, staged, {"body": [b"x"], "keys": ["k" * (ROW_PROPERTIES_BYTES_MAX - 70)]})
    (request,) = world.requests
    assert request.code == (RequestCode.STAGE_ROWS if staged else RequestCode.SEND_MESSAGE_V2)


def test_a_body_that_no_request_has_room_for_is_named(staged: bool) -> None:
    for more in ({}, {"queue_id": [0]}):
        with pytest.raises(ConfigError, match=r"column body: a row .* for T/[ab]/\d does not fit"):
            write(World(), staged, {"body": [b"z" * (16 << 20)], **more})


def test_rows_have_ids_of_their_own_however_small_the_batches_are(
    staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: 1_763_500_000_000)
    world = World()
    write(world, staged, {"body": [b"%05d" % number for number in range(20_000)]}, batchBytes="1k")
    found = [
        parse_properties(entry.properties)["UNIQ_KEY"]
        for request in world.requests
        for entry in decode_batch(request.body)
    ]
    assert len(found) == len(set(found)) == 20_000


def test_rows_for_many_queues_wait_within_one_limit(
    staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 20_000)
    world = World()
    world.topics["T"] = {"a": 100, "b": 100}
    bodies = [b"%04d" % number * 25 for number in range(2_000)]
    numbers = [number % 200 for number in range(2_000)]
    options = write_options({"namesrv": "ns1:1", "topic": "T"}, is_stream=False)
    stage = Stage(options, BatchName("sink", 0, 0)) if staged else None
    sender = Sender(options, WorldCluster(world), stage)
    batch = pa.RecordBatch.from_pydict({"body": bodies, "queue_id": numbers})
    for start in range(0, 2_000, 50):
        sender.send(batch.slice(start, 50))
        waiting = [entry for entries in sender._waiting.values() for entry in entries]
        assert sum(len(one.body) + len(one.properties) for one in waiting) <= 20_000
    sender.flush()
    assert sender.rows == 2_000
    assert sorted(body for _, body in world.rows) == bodies
    found = [body for queue, body in world.rows if named([queue]) == "b99"]
    assert found == bodies[199::200]
