"""What a broker answers to jobs that stage rows and decide about them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records
from fake_raft import RaftWorld
from fake_raft import raft as raft

from skylark.broker import staging
from skylark.broker.decisions import Decision
from skylark.broker.staging import StagingService
from skylark.errors import BrokerError
from skylark.model.topic import STAGED_TOPIC
from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.headers import GetDecisionRequest, StageRowsRequest
from skylark.protocol.properties import parse_properties
from skylark.spark import cluster as clusters
from skylark.spark.options import Access
from skylark.store import PutMessage, PutResult, PutStatus

ROWS = [b"one", b"two", b"six"]


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    made = BrokerWorld()
    yield made
    made.loop.close()


async def stage(
    client: Client, bodies: list[bytes], *, batch: int = 0, properties: bytes = b""
) -> Command:
    header = StageRowsRequest(
        stage=f"sink/{batch}/0/a",
        first_row=0,
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        born_timestamp=1,
    )
    entries = encode_batch([BatchEntry(body, properties) for body in bodies])
    return await client.call(RequestCode.STAGE_ROWS, header.to_fields(), entries)


def asked(batch: int = 0, rows: int = 3, **more: Any) -> bytes:
    return json.dumps(
        {"sink": "sink", "batch": batch, "tasks": {"0": ["a", rows]}, **more}
    ).encode()


async def ask_decision(client: Client) -> Command:
    return await client.call(RequestCode.GET_DECISION, GetDecisionRequest(sink="sink").to_fields())


def test_sealed_rows_are_on_the_disk_when_the_answer_comes(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.running(flush_disk_type="ASYNC_FLUSH"), world.connected() as client:
            store = world.parts.store
            assert (await stage(client, ROWS)).code == ResponseCode.SUCCESS
            assert not store.is_flushed(store.log.appended)
            answer = await client.call(RequestCode.SEAL_ROWS, body=asked())
            assert answer.code == ResponseCode.SUCCESS
            assert store.is_flushed(store.log.appended)
            missing = await client.call(RequestCode.SEAL_ROWS, body=asked(rows=4))
            assert missing.code == ResponseCode.TRANSACTION_FAILED

    world.run(main)


def test_a_decision_is_on_the_disk_before_anybody_sees_a_row(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []
    apply_some = StagingService.apply_some

    def applied(service: StagingService, decision: Decision) -> int | None:
        assert decision.record is not None
        flushed.append(world.parts.store.is_flushed(decision.record.end))
        return apply_some(service, decision)

    monkeypatch.setattr(StagingService, "apply_some", applied)

    async def main() -> None:
        async with world.running(flush_disk_type="ASYNC_FLUSH"), world.connected() as client:
            await stage(client, ROWS)
            answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(query="q"))
            assert answer.code == ResponseCode.SUCCESS
            assert json.loads(answer.body)["query"] == "q"
            assert [m.body for m in records(await client.pull("T"))] == ROWS
            assert flushed
            assert all(flushed)
            found = json.loads((await ask_decision(client)).body)
            assert (found["batch"], found["done"], found["query"]) == (0, True, "q")

    world.run(main)


def test_what_is_decided_is_applied_though_nobody_asks_again(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.running(), world.connected() as client:
            await stage(client, ROWS)
            with monkeypatch.context() as patch:
                full = PutResult(PutStatus.CREATE_MAPEDFILE_FAILED)
                patch.setattr(world.parts.store, "put_group", lambda given: [full for _ in given])
                answer = await client.call(RequestCode.DECIDE_ROWS, body=asked())
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await world.clock.sleep_ms(61_000)
            assert [m.body for m in records(await client.pull("T"))] == ROWS
            await stage(client, ROWS, batch=1)
            answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(1))
            assert answer.code == ResponseCode.SUCCESS

    world.run(main)


# Decisions that take long.

MANY = [b"%d" % number for number in range(20)]


def slow_down(world: BrokerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are copied in a second."""
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    sleep_ms = world.clock.sleep_ms
    monkeypatch.setattr(world.clock, "sleep_ms", lambda ms: sleep_ms(ms or 500))


async def decide(client: Client, rows: int = len(MANY)) -> int | None:
    """How many rows the real Cluster reads in the answer; None when the batch is there."""
    answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(rows=rows))
    if answer.code == ResponseCode.SUCCESS:
        return None
    assert answer.code == ResponseCode.SYSTEM_BUSY, answer.remark
    error = BrokerError(answer.code, answer.remark, client.address)
    assert clusters._COPIED.search(answer.remark or ""), answer.remark
    return clusters._copied(error)


def test_a_decision_that_takes_long_is_answered_with_how_far_it_is(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.running(), world.connected() as client:
            await stage(client, MANY)
            slow_down(world, monkeypatch)
            began_ms = world.clock.monotonic_ms()
            counts = [await decide(client)]
            assert 2_000 <= world.clock.monotonic_ms() - began_ms < 3_000
            assert json.loads((await ask_decision(client)).body)["done"] is False
            while counts[-1] is not None:
                counts.append(await decide(client))
            told = [count for count in counts if count is not None]
            assert len(told) > 1
            assert told == sorted(set(told))
            assert 0 < told[0] <= told[-1] <= len(MANY)
            assert [m.body for m in records(await client.pull("T"))] == MANY

    world.run(main)


def test_a_broker_goes_on_at_once_where_it_has_said_how_far_it_is(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.running(), world.connected() as client:
            await stage(client, MANY)
            slow_down(world, monkeypatch)
            assert await decide(client)
            await world.clock.sleep_ms(500 * len(MANY))  # And nobody asks.
            assert [m.body for m in records(await client.pull("T"))] == MANY
            assert json.loads((await ask_decision(client)).body)["done"] is True
            assert await decide(client) is None

    world.run(main)


def test_a_disk_that_is_slow_to_hold_the_copies_is_waited_for_as_long_as_it_gets_on(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.running(flush_disk_type="SYNC_FLUSH"), world.connected() as client:
            await stage(client, MANY)
            service, flusher = world.parts.staging, world.parts.flusher
            found, _ = service.decide(staging.read_decision(asked(rows=len(MANY))))
            await flusher.flushed(world.parts.store.log.appended)
            async with flusher.paused():
                assert await decide(client) == 0, "copied, and on no disk"
                assert found.is_done
                answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(rows=len(MANY)))
                assert "copied 0 rows so far; 20 more are not as safe" in (answer.remark or "")
            assert await decide(client) is None
            assert not found.unsafe

    world.run(main)


def test_the_answer_waits_for_the_copies_that_the_broker_has_made_by_itself_meanwhile(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.running(flush_disk_type="SYNC_FLUSH"), world.connected() as client:
            await stage(client, MANY)
            store, service, flusher = (
                world.parts.store, world.parts.staging, world.parts.flusher
            )  # fmt: skip
            found, _ = service.decide(staging.read_decision(asked(rows=len(MANY))))
            await flusher.flushed(store.log.appended)
            monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
            sleep_ms = world.clock.sleep_ms
            async with contextlib.AsyncExitStack() as stack:

                async def copied_by_run(ms: int) -> None:
                    if ms == 0 and not found.is_done:
                        await flusher.flushed(store.log.appended)
                        await stack.enter_async_context(flusher.paused())
                        while service.apply_some(found) is not None:
                            pass
                    await sleep_ms(ms)

                monkeypatch.setattr(world.clock, "sleep_ms", copied_by_run)
                assert await decide(client) == 1, "the others are on no disk"
            assert await decide(client) is None
            assert store.is_flushed(store.log.appended)

    world.run(main)


def test_a_leader_counts_the_copies_that_its_group_has_agreed_on(
    raft: RaftWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has copied beyond them may be taken back, and a count may not."""

    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await stage(client, MANY)
            slow_down(raft, monkeypatch)
            counts = [await decide(client)]
            group.is_holding = True
            counts += [await decide(client) for _ in range(2)]
            assert counts[1] == counts[2], "nothing is agreed meanwhile"
            group.lose("n1")
            await group.cut()
            await raft.clock.sleep_ms(10)
            group.is_holding = False
            await raft.leading()
            while counts[-1] is not None:
                counts.append(await decide(client))
            told = [count for count in counts if count is not None]
            assert told == sorted(told)
            assert told[0] > 0
            assert told[-1] > told[2]
            assert [m.body for m in records(await client.pull("T"))] == MANY

    raft.run(main)


def test_a_driver_waits_as_long_as_a_real_broker_copies(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker answers, in the ears of the real Cluster."""
    answers: list[Command] = []

    async def main() -> None:
        async with world.running(), world.connected() as client:
            await stage(client, MANY)
            slow_down(world, monkeypatch)
            while not answers or answers[-1].code:
                answers.append(await client.call(RequestCode.DECIDE_ROWS, body=asked(rows=20)))

    world.run(main)
    assert len(answers) > 2
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda s: None)
    monkeypatch.setattr(clusters, "time", clock)

    def ask() -> Command:
        nonlocal now
        now += 2.0
        answer = answers.pop(0)
        if answer.code:
            raise BrokerError(answer.code, answer.remark, world.address)
        return answer

    cluster = clusters.Cluster(Access("10.0.0.9:9876", retry_ms=2_500))
    assert cluster.retried(ask, is_copying=True).code == ResponseCode.SUCCESS
    assert not answers


# Rows with properties of all kinds.


@pytest.mark.parametrize(
    "properties",
    [
        b"FLIGHT_DELAY\x0145\x02k\x01v",
        b"MY_TRAN_MSG\x01true",
        b"MY_SINK_ROW\x017\x02k\x01a\x01b",
        b"SINK_ROW\x01other/1/2/3\x02k\x01a\x01b",
    ],
)
def test_a_row_appears_with_its_properties_whatever_their_names_end_with(
    world: BrokerWorld, properties: bytes
) -> None:
    async def main() -> None:
        async with world.running(), world.connected() as client:
            for batch in range(2):  # The second one might go the short way.
                answer = await stage(client, [b"x"], batch=batch, properties=properties)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(batch, 1))
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            for batch, found in enumerate(records(await client.pull("T"))):
                expected = parse_properties(properties) | {
                    "CLUSTER": "DefaultCluster",
                    "SINK_ROW": f"sink/{batch}/0/0",
                }
                assert dict(found.properties) == expected

    world.run(main)


@pytest.mark.parametrize("properties", [b"DELAY\x013", b"k\x01v\x02TRAN_MSG\x01true"])
def test_a_row_that_would_be_delayed_or_half_is_refused(
    world: BrokerWorld, properties: bytes
) -> None:
    async def main() -> None:
        async with world.running(), world.connected() as client:
            answer = await stage(client, [b"x"], properties=properties)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    world.run(main)


def test_rows_whose_properties_leave_no_room_are_refused_at_once(world: BrokerWorld) -> None:
    async def main() -> None:
        changes = {"max_message_size": 1 << 20, "mapped_file_size_commit_log": 1 << 20}
        async with world.running(**changes), world.connected() as client:
            answer = await stage(client, [b"x"], properties=b"k\x01" + b"v" * (32_767 - 40))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "bytes more" in (answer.remark or "")
            assert (await stage(client, [b"x"])).code == ResponseCode.SUCCESS

    world.run(main)


@pytest.mark.parametrize("name", [b"n", b"TIMER_X"])
def test_a_row_may_be_as_large_as_a_message_by_itself(world: BrokerWorld, name: bytes) -> None:
    limit = 1 << 20
    properties = name + b"\x01v\x02KEYS\x01" + b"k" * 30_000

    async def main() -> None:
        changes = {"max_message_size": limit, "mapped_file_size_commit_log": 4 << 20}
        async with world.running(**changes), world.connected() as client:
            refused = await stage(client, [b"x" * (limit + 1)], properties=properties)
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            assert f"{limit} bytes" in (refused.remark or "")
            many = await stage(client, [b"x" * (limit // 2)] * 3)
            assert many.code == ResponseCode.MESSAGE_ILLEGAL
            row = await stage(client, [b"x" * limit], properties=properties)
            assert row.code == ResponseCode.SUCCESS
            await client.call(RequestCode.DECIDE_ROWS, body=asked(rows=1))
            (found,) = records(await client.pull("T"))
            assert len(found.body) == limit

    world.run(main)


def test_a_broker_without_room_to_write_decisions_again_goes_on(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_CARRY_MS", 1)
    refused = 0

    def full(given: list[PutMessage]) -> list[PutResult]:
        nonlocal refused
        refused += 1
        return [PutResult(PutStatus.CREATE_MAPEDFILE_FAILED) for _ in given]

    async def main() -> None:
        async with world.running() as broker, world.connected() as client:
            await client.call(
                RequestCode.DECIDE_ROWS,
                body=json.dumps({"sink": "s", "batch": 0, "tasks": {}}).encode(),
            )
            store = world.parts.store
            before = store.max_offset(STAGED_TOPIC, 1)
            with monkeypatch.context() as patch:
                patch.setattr(store, "put", full)
                await world.clock.sleep_ms(200_000)
            assert refused
            assert not broker.has_failed
            await world.clock.sleep_ms(100_000)
            assert store.max_offset(STAGED_TOPIC, 1) > before

    world.run(main)


def test_a_follower_does_not_say_that_nothing_was_decided(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await stage(client, ROWS)
            await client.call(RequestCode.DECIDE_ROWS, body=asked())
            group.lose("n1")
            answer = await ask_decision(client)
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
            await raft.leading()
            assert json.loads((await ask_decision(client)).body)["batch"] == 0

    raft.run(main)


def test_a_new_leader_finds_what_is_staged_in_slices(
    raft: RaftWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that does not answer for as long as an election takes is none."""
    monkeypatch.setattr(staging, "SLICE_RECORDS", 10)
    slices = 0
    loading = StagingService.loading

    def counted(service: StagingService) -> Iterator[None]:
        nonlocal slices
        for _ in loading(service):
            slices += 1
            if slices == 3:
                raft.group.lose("n1")  # In the middle of it.
            yield
            assert not raft.parts.raft.is_serving  # type: ignore[union-attr]

    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await stage(client, ROWS * 33)
            group.lose("n1")
            await raft.clock.sleep_ms(10)
            monkeypatch.setattr(StagingService, "loading", counted)
            group.lead()
            await raft.clock.sleep_ms(100)
            assert slices == 3
            assert not len(raft.parts.staging)
            assert raft.parts.identity.broker_id == 1
            await raft.leading()
            assert slices == 12
            answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(rows=99))
            assert answer.code == ResponseCode.SUCCESS

    raft.run(main)


def test_cleaning_topics_and_queues_leaves_what_is_staged_and_decided(world: BrokerWorld) -> None:
    settings = {"file_reserved_time": 0, "delete_when": "00"}

    async def main() -> None:
        async with world.serving(**settings) as client:
            await stage(client, ROWS)
            await client.call(RequestCode.DECIDE_ROWS, body=asked())
            await stage(client, ROWS, batch=1)
            store = world.parts.store
            names = store.queues.names
            assert (await client.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
            assert store.queues.names == names
            answer = await client.call(RequestCode.DECIDE_ROWS, body=asked(1))
            assert answer.code == ResponseCode.SUCCESS
            assert [m.body for m in records(await client.pull("T"))] == ROWS * 2
            ends = store.max_offset(STAGED_TOPIC, 0), store.max_offset(STAGED_TOPIC, 1)
            with pytest.MonkeyPatch.context() as patch:  # All of it has left the log.
                patch.setattr(type(store.log), "start", store.log.appended)
                answer = await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
            assert answer.code == ResponseCode.SUCCESS
            assert ("T", 0) not in store.queues.names
            assert (store.max_offset(STAGED_TOPIC, 0), store.max_offset(STAGED_TOPIC, 1)) == ends

    world.run(main)
