"""Rows that appear all at once, though drivers and brokers die between any two steps."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.broker import staging
from skylark.broker.decisions import Decision, GroupKey, read_decision, read_key
from skylark.broker.staging import ROW_PROPERTY, StagingService
from skylark.errors import BrokerError
from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.codes import ResponseCode
from skylark.protocol.record import decode_record, pack_host
from skylark.store import (
    FlushDiskType,
    MessageStore,
    PutEntries,
    PutMessage,
    PutResult,
    PutStatus,
)
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock

HOST = pack_host("10.0.0.1", 10911)
HOUR_MS = 3_600_000


class Name:
    """As much of an Identity as staging needs."""

    store_host = HOST


class World:
    """A store, its clock, and the service on it; both can be lost and opened again."""

    def __init__(self, **changes: Any) -> None:
        self.clock = HandClock()
        self.files = SimFiles(now_ms=self.clock.now_ms)
        self.config = dataclasses.replace(TINY, **changes)
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.config, self.files, self.clock)
        self.store.mark_open()
        self.service = StagingService(
            Name(),  # type: ignore[arg-type]
            store=self.store,
            clock=self.clock,
            timeout_ms=168 * HOUR_MS,
        )
        self.service.load()

    def kill(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        self.files = self.files.kill()
        self.open()

    def cut_power(self, rng: random.Random) -> None:
        """The machine is gone, with a part of what was not synced."""
        self.files = self.files.crash(rng)
        self.open()

    def flush(self) -> None:
        work = self.store.begin_flush()
        work.run()
        self.store.end_flush(work)

    def stage(self, key: GroupKey, first: int, bodies: list[bytes]) -> None:
        """Stage rows; those of every other task as plain entries, as most are that come."""
        queues = {len(body) % 3 for body in bodies}
        if key.task % 2 == 0 and len(queues) == 1:
            batch = entries_of(bodies, queues.pop())
            if self.service.stage_entries(key, first, batch) is not None:
                return
        self.service.stage(
            key,
            first,
            [PutMessage("Real", len(body) % 3, body, b"k\x01v", 1, HOST, HOST) for body in bodies],
        )

    def apply(self, decision: Decision) -> None:
        while self.service.apply_some(decision) is not None:
            pass

    def visible(self) -> list[tuple[bytes, str]]:
        """All rows in the real topic: body, and what they say they are."""
        found = []
        for queue_id in range(3):
            queue = self.store.queues.get("Real", queue_id)
            if queue is None:
                continue
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                assert entry is not None
                record = self.store.get_by_physical_offset(entry.physical_offset, entry.size_bytes)
                assert record is not None
                message = decode_record(record)
                assert "STAGE" not in message.properties
                assert message.properties["k"] == "v"
                found.append((message.body, message.properties[ROW_PROPERTY]))
        return found


def entries_of(bodies: list[bytes], queue_id: int) -> PutEntries:
    entries = encode_batch([BatchEntry(body) for body in bodies])
    return PutEntries("Real", queue_id, entries, b"k\x01v", 1, HOST, HOST)


def rows(batch: int, task: int, count: int = 5) -> list[bytes]:
    return [b"%d-%d-%d" % (batch, task, number) for number in range(count)]


def key(batch: int = 0, task: int = 0, attempt: str = "a") -> GroupKey:
    return GroupKey("sink", batch, task, attempt)


def decision(batch: int = 0, **tasks: tuple[str, int]) -> Decision:
    return Decision("sink", batch, {int(task[1:]): found for task, found in tasks.items()})


def test_staged_rows_are_seen_by_nobody_until_they_are_decided() -> None:
    world = World()
    world.stage(key(), 0, rows(0, 0))
    world.stage(key(attempt="b"), 0, [b"loser"])
    assert world.visible() == []
    found, _ = world.service.decide(decision(t0=("a", 5)))
    world.apply(found)
    assert sorted(world.visible()) == [(b"0-0-%d" % n, f"sink/0/0/{n}") for n in range(5)]
    assert len(world.service) == 0, "the loser is forgotten"


def test_a_request_that_comes_again_changes_nothing() -> None:
    world = World()
    for _ in range(3):
        world.stage(key(), 0, [b"1", b"2"])
    world.stage(key(), 2, [b"3"])
    world.stage(key(), 0, [b"1", b"2"])
    found, _ = world.service.decide(decision(t0=("a", 3)))
    world.apply(found)
    assert sorted(body for body, _ in world.visible()) == [b"1", b"2", b"3"]


def test_a_request_of_which_a_crash_kept_the_first_rows_goes_on_behind_them() -> None:
    world = World()
    world.stage(key(), 0, [b"1", b"2"])  # What was left of the append of four.
    world.kill()
    world.stage(key(), 0, [b"1", b"2", b"3", b"4"])
    found, _ = world.service.decide(decision(t0=("a", 4)))
    world.apply(found)
    assert sorted(world.visible()) == [(b"%d" % (n + 1), f"sink/0/0/{n}") for n in range(4)]


def test_rows_that_do_not_follow_are_refused() -> None:
    world = World()
    world.stage(key(), 0, [b"1"])
    with pytest.raises(BrokerError, match="must be tried again") as caught:
        world.stage(key(), 2, [b"3"])
    assert caught.value.code == ResponseCode.TRANSACTION_FAILED


def test_the_first_decision_stands() -> None:
    world = World()
    world.stage(key(attempt="a"), 0, [b"a"])
    world.stage(key(attempt="b"), 0, [b"b"])
    world.apply(world.service.decide(decision(t0=("a", 1)))[0])
    again, _ = world.service.decide(decision(t0=("b", 1)))
    assert again.tasks == {0: ("a", 1)}
    world.apply(again)
    assert [body for body, _ in world.visible()] == [b"a"]
    with pytest.raises(BrokerError, match="decided already"):
        world.stage(key(attempt="c"), 0, [b"c"])


def test_batches_only_go_up() -> None:
    world = World()
    world.stage(key(batch=3), 0, [b"3"])
    world.apply(world.service.decide(decision(3, t0=("a", 1)))[0])
    with pytest.raises(BrokerError, match="is over"):
        world.service.decide(decision(2))


def test_a_decision_about_rows_that_are_not_there_is_refused() -> None:
    world = World()
    world.stage(key(), 0, [b"1"])
    for wrong in (decision(t0=("a", 2)), decision(t0=("x", 1)), decision(t0=("a", 1), t1=("a", 1))):
        with pytest.raises(BrokerError, match="must be tried again"):
            world.service.decide(wrong)
    assert world.service.decision("sink") is None


def test_a_batch_without_rows_is_decided_too() -> None:
    world = World()
    world.apply(world.service.decide(decision(7))[0])
    world.kill()
    found = world.service.decision("sink")
    assert found is not None
    assert (found.batch, found.is_done) == (7, True)


def test_rows_in_doubt_hold_retention_back_and_expire() -> None:
    world = World()
    assert world.service.undelivered_from() is None
    world.stage(key(), 0, [b"1"])
    assert world.service.undelivered_from() == 0
    world.clock.advance_ms(167 * HOUR_MS)
    assert world.service.forget_expired() == 0
    world.clock.advance_ms(2 * HOUR_MS)
    assert world.service.forget_expired() == 1
    assert world.service.undelivered_from() is None


def test_what_is_decided_does_not_expire() -> None:
    world = World()
    world.stage(key(), 0, [b"1"])
    found, _ = world.service.decide(decision(t0=("a", 1)))
    world.clock.advance_ms(1_000 * HOUR_MS)
    assert world.service.forget_expired() == 0
    world.apply(found)
    assert [body for body, _ in world.visible()] == [b"1"]


def test_a_decision_is_kept_for_a_month_and_what_others_have_to_show_with_it() -> None:
    world = World()
    world.stage(key(), 0, [b"1"])
    elsewhere = {"b": {"0": ["a", 5]}}
    wanted = Decision("sink", 0, {0: ("a", 1)}, elsewhere, "query", "plan")
    world.apply(world.service.decide(wanted)[0])
    for _ in range(29):
        world.clock.advance_ms(24 * HOUR_MS)
        assert world.service.carry_on() == 1
        assert world.service.carry_on() == 0
    world.kill()
    found = world.service.decision("sink")
    assert found is not None
    assert (found.batch, found.is_done) == (0, True)
    assert (found.elsewhere, found.query, found.plan) == (elsewhere, "query", "plan")
    world.clock.advance_ms(25 * HOUR_MS)
    world.service.carry_on()
    assert world.service.decision("sink") is None, "nobody has used it for a month"


def test_a_job_with_a_name_by_chance_is_forgotten_after_a_day() -> None:
    world = World()
    named, by_chance = "job-of-mine", f"job-{'0a' * 16}"
    for sink in (named, by_chance):
        world.apply(world.service.decide(Decision(sink, 0, {}))[0])
    world.clock.advance_ms(25 * HOUR_MS)
    world.service.carry_on()
    assert world.service.decision(by_chance) is None
    assert world.service.decision(named) is not None


def test_many_jobs_with_names_by_chance_make_room_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "SINKS_MAX", 4)
    world = World()
    jobs = [f"job-{number:032x}" for number in range(6)]
    under_way = world.service.decide(Decision(jobs[0], 0, {}))[0]
    for sink in ("named", *jobs[1:]):
        world.apply(world.service.decide(Decision(sink, 0, {}))[0])
    known = [sink for sink in ("named", *jobs) if world.service.decision(sink) is not None]
    assert known == ["named", jobs[0], *jobs[-2:]]
    world.apply(under_way)
    for sink in ("another", "third", "fourth"):
        world.apply(world.service.decide(Decision(sink, 0, {}))[0])
    with pytest.raises(BrokerError, match="4 sinks are known"):
        world.service.decide(Decision("one more", 0, {}))


def traffic(world: World, files: int) -> None:
    """What others write."""
    end = world.store.log.appended + files * world.config.mapped_file_size_commit_log
    while world.store.log.appended < end:
        world.store.put([PutMessage("Others", 0, b"z" * 400, b"k\x01v", 1, HOST, HOST)])
    world.store.flush()


@pytest.mark.parametrize("reserved_hours", [0, 1, 12])
def test_a_decision_outlives_the_log_that_holds_it_however_short_that_is_kept(
    reserved_hours: int,
) -> None:
    world = World(file_reserved_time=reserved_hours)
    world.stage(key(), 0, rows(0, 0))
    world.apply(world.service.decide(decision(t0=("a", 5)))[0])
    world.service.stage(GroupKey("else", 0, 0, "a"), 0, messages([b"sealed"]))
    world.service.seal(Decision("else", 0, {0: ("a", 1)}))
    retention = Retention(
        world.store, world.clock, undelivered_from=lambda: world.service.undelivered_from()
    )
    for hour in range(40):
        traffic(world, 2)
        world.clock.advance_ms(HOUR_MS)
        if hour == 20:
            world.service.decide(Decision("else", 0, {0: ("a", 1)}))
            world.apply(world.service._decisions["else"])
        if hour % 2 == 0:
            world.service.carry_on()
        retention.clean_soon()
        while retention.clean():
            pass
    assert world.store.log.start > world.config.mapped_file_size_commit_log * 10
    world.kill()
    for sink in ("sink", "else"):
        found = world.service.decision(sink)
        assert found is not None, sink
        assert found.is_done


def test_a_decision_outlives_a_full_disk() -> None:
    """Forced cleaning asks nobody; who runs knows, and writes it down again."""
    world = World()
    world.stage(key(), 0, rows(0, 0))
    world.apply(world.service.decide(decision(t0=("a", 5)))[0])
    traffic(world, 6)
    assert world.service.carry_on() == 1, "it lies in the older half of the log"
    traffic(world, 2)
    assert world.service.carry_on() == 0
    for _ in range(8):
        world.store.flush()
        taken = world.store.log.detach_first()
        taken.remove()
        world.service.carry_on()
        traffic(world, 1)
    world.store.flush()
    world.kill()
    found = world.service.decision("sink")
    assert found is not None
    assert found.is_done


@pytest.mark.parametrize("asked", ["decide", "seal"])
def test_rows_that_a_full_disk_has_taken_are_missed_before_anything_is_decided(asked: str) -> None:
    world = World()
    for task in range(2):
        world.stage(key(task=task), 0, rows(0, task))
        traffic(world, 2)
    world.store.log.detach_first().remove()
    with pytest.raises(BrokerError, match="5 were to be there, there are 0") as caught:
        getattr(world.service, asked)(decision(t0=("a", 5), t1=("a", 5)))
    assert caught.value.code == ResponseCode.TRANSACTION_FAILED
    assert not world.visible()
    world.stage(key(attempt="b"), 0, rows(0, 0))
    world.apply(world.service.decide(decision(t0=("b", 5), t1=("a", 5)))[0])
    assert sorted(body for body, _ in world.visible()) == sorted(rows(0, 0) + rows(0, 1))


def test_rows_that_a_full_disk_has_taken_hold_retention_back_no_more() -> None:
    world = World()
    for task in range(2):
        world.stage(key(task=task), 0, rows(0, task))
        traffic(world, 2)
    world.store.log.detach_first().remove()
    assert world.service.undelivered_from() < world.store.log.start  # type: ignore[operator]
    assert world.service.forget_expired() == 1
    assert world.service.undelivered_from() > world.store.log.start  # type: ignore[operator]


def test_rows_are_copied_though_files_of_the_log_are_smaller_than_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 256)
    world = World()
    bodies = rows(0, 0, 100)
    for first in range(0, 100, 5):
        world.stage(key(), first, bodies[first : first + 5])
    world.stage(key(), 100, [b"large" * 500])
    world.apply(world.service.decide(decision(t0=("a", 101)))[0])
    assert sorted(body for body, _ in world.visible()) == sorted([*bodies, b"large" * 500])


def test_a_decision_that_no_record_has_room_for_is_refused_for_good() -> None:
    world = World()
    wanted = Decision("sink", 0, dict.fromkeys(range(1_000), ("a", 0)))
    with pytest.raises(BrokerError, match=r"batch 0 of .* takes .* by fewer tasks") as caught:
        world.service.decide(wanted)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert world.service.decision("sink") is None
    world.apply(world.service.decide(decision())[0])


def test_decisions_that_find_no_room_are_written_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.apply(world.service.decide(decision(7))[0])
    world.clock.advance_ms(25 * HOUR_MS)
    put = world.store.put
    monkeypatch.setattr(
        world.store,
        "put",
        lambda given: [PutResult(PutStatus.CREATE_MAPEDFILE_FAILED) for _ in given],
    )
    assert world.service.carry_on() == 0
    monkeypatch.setattr(world.store, "put", put)
    assert world.service.carry_on() == 1


def test_rows_that_are_sealed_wait_for_a_decision_as_long_as_that_is_known() -> None:
    world = World()
    world.stage(key(), 0, rows(0, 0))
    world.stage(key(attempt="b"), 0, rows(0, 0))
    world.service.seal(decision(t0=("a", 5)))
    for _ in range(2):
        world.clock.advance_ms(300 * HOUR_MS)
        assert world.service.forget_expired() == 0
        world.service.carry_on()
        world.kill()
    world.apply(world.service.decide(decision(t0=("b", 5)))[0])
    assert len(world.visible()) == 5
    assert world.service.undelivered_from() == world.service._decisions["sink"].record[0]  # type: ignore[index]
    assert not world.service._seals


def test_a_seal_is_found_behind_whatever_others_have_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "TAIL_MAX", 40)
    world = World()
    world.service.stage(GroupKey("sealed", 0, 0, "a"), 0, messages([b"sealed"]))
    world.service.seal(Decision("sealed", 0, {0: ("a", 1)}))
    for carries in (False, True):
        run_batches(world, 30)
        if carries:
            world.service.carry_on()
        world.kill()
        world.clock.advance_ms(200 * HOUR_MS)
        assert world.service.forget_expired() == 0


def test_what_is_sealed_and_never_decided_is_forgotten_after_a_month() -> None:
    world = World()
    world.stage(key(), 0, rows(0, 0))
    world.service.seal(decision(t0=("a", 5)))
    world.clock.advance_ms(30 * 24 * HOUR_MS + 1)
    world.service.carry_on()
    assert world.service.forget_expired() == 0, "a decision about them is younger, and may stand"
    world.clock.advance_ms(24 * HOUR_MS)
    world.service.carry_on()
    assert world.service.forget_expired() == 1
    assert world.service.undelivered_from() is None


def test_a_seal_of_rows_that_are_not_there_is_refused() -> None:
    world = World()
    world.stage(key(), 0, rows(0, 0))
    for wrong in (decision(t0=("a", 6)), decision(t0=("b", 5))):
        with pytest.raises(BrokerError, match="must be tried again"):
            world.service.seal(wrong)
    end = world.service.seal(decision(t0=("a", 5)))
    assert world.service.seal(decision(t0=("a", 5))) == end, "a second one changes nothing"
    world.apply(world.service.decide(decision(t0=("a", 5)))[0])
    world.service.seal(decision(t0=("other", 5)))  # Late: the decision stands, and says so.
    world.apply(world.service.decide(decision(3))[0])
    with pytest.raises(BrokerError, match="is over"):
        world.service.seal(decision(2))


def test_a_sink_belongs_to_one_query() -> None:
    world = World()
    world.apply(world.service.decide(Decision("sink", 0, {}, query="one"))[0])
    world.kill()
    for batch in (0, 1):
        for asked in (world.service.decide, world.service.seal):
            with pytest.raises(BrokerError, match="sinkId"):
                asked(Decision("sink", batch, {}, query="two"))
    assert world.service.decide(Decision("sink", 0, {}, query="one"))[0].is_done
    assert world.service.decide(Decision("sink", 1, {}))[0].batch == 1, "by a former version"


def test_properties_that_leave_no_room_for_a_stage_are_refused_for_good() -> None:
    world = World(mapped_file_size_commit_log=1 << 20, max_message_size=1 << 16)
    row = PutMessage("Real", 0, b"b", b"k\x01" + b"v" * (32_767 - 30), 1, HOST, HOST)
    with pytest.raises(BrokerError, match="PROPERTIES_SIZE_EXCEEDED") as caught:
        world.service.stage(key(), 0, [row])
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_were_told_as_copied_outlive_a_power_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 3)
    rng = random.Random(seed)
    world = World()
    for task in range(3):
        world.stage(key(task=task), 0, rows(0, task, 10))
    found, _ = world.service.decide(decision(t0=("a", 10), t1=("a", 10), t2=("a", 10)))
    world.flush()
    told = [world.service.copied(found, world.store.is_flushed)]
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.4:
            world.flush()
        world.service.apply_some(found)
        told.append(world.service.copied(found, world.store.is_flushed))
    assert told == sorted(told)
    world.cut_power(rng)
    assert len(world.visible()) >= told[-1]
    again = world.service.decision("sink")
    assert again is not None
    assert world.service.copied(again, world.store.is_flushed) >= told[-1]
    world.apply(again)
    world.flush()
    assert world.service.copied(again, world.store.is_flushed) == 30
    assert len(world.visible()) == 30


def test_what_was_known_before_a_load_applies_nothing_more() -> None:
    """A member of a Raft group may lose its turn and get another while it applies a decision."""
    world = World()
    world.stage(key(), 0, rows(0, 0))
    found, _ = world.service.decide(decision(t0=("a", 5)))
    world.service.apply_some(found)
    world.service.load()
    with pytest.raises(BrokerError, match="begun anew"):
        world.service.apply_some(found)
    with pytest.raises(BrokerError, match="begun anew"):
        world.service.copied(found, world.store.is_flushed)
    world.apply(world.service._decisions["sink"])
    assert sorted(body for body, _ in world.visible()) == rows(0, 0)


def reads_at_a_start(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many records a start looks at."""
    count = 0
    read = StagingService._read

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return read(*given)

    with monkeypatch.context() as patch:
        patch.setattr(StagingService, "_read", counted)
        world.kill()
    return count


def run_batches(world: World, count: int, sink: str = "sink") -> None:
    known = world.service.decision(sink)
    first = 0 if known is None else known.batch + 1
    for batch in range(first, first + count):
        world.service.stage(GroupKey(sink, batch, 0, "a"), 0, messages([b"%d" % batch] * 4))
        world.apply(world.service.decide(Decision(sink, batch, {0: ("a", 4)}))[0])


def test_a_start_reads_what_is_in_doubt_and_not_what_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    run_batches(world, 100)
    assert reads_at_a_start(world, monkeypatch) < 10
    world.service.stage(GroupKey("doubt", 0, 0, "a"), 0, messages([b"doubt"]))
    run_batches(world, 10)
    assert reads_at_a_start(world, monkeypatch) < 60
    assert [str(key) for key in world.service._groups] == ["doubt/0/0/a"]
    world.apply(world.service.decide(Decision("doubt", 0, {0: ("a", 1)}))[0])
    run_batches(world, 1)
    run_batches(world, 10)
    assert (b"doubt", "doubt/0/0/0") in world.visible()
    assert reads_at_a_start(world, monkeypatch) < 60
    assert {sink: one.batch for sink, one in world.service._decisions.items()} == {
        "sink": 120,
        "doubt": 0,
    }


def test_a_start_reads_no_more_decisions_than_a_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "TAIL_MAX", 40)
    world = World(mapped_file_size_commit_log=1 << 20)  # It is not old for any other reason.
    run_batches(world, 1, "idle")
    for _ in range(10):
        run_batches(world, 10)
        world.service.carry_on()
    assert reads_at_a_start(world, monkeypatch) < 100
    assert world.service.decision("idle") is not None


def test_a_log_of_a_former_version_is_read_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    record = StagingService._record

    def as_before(service: StagingService, kind: str, value: Any) -> Any:
        kept = {name: value[name] for name in value if not name.endswith("_from")}
        return record(service, kind, kept)

    monkeypatch.setattr(StagingService, "_record", as_before)
    world.service.stage(GroupKey("doubt", 0, 0, "a"), 0, messages([b"doubt"]))
    run_batches(world, 10)
    world.kill()
    assert [str(key) for key in world.service._groups] == ["doubt/0/0/a"]
    assert world.service._decisions["sink"].batch == 9


def test_a_load_can_be_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLICE_RECORDS", 5)
    world = World()
    run_batches(world, 1)
    world.service.stage(key(1), 0, messages([b"x"] * 8))
    world.service.stage(key(1, 1), 0, messages([b"x"] * 8))
    assert sum(1 for _ in world.service.loading()) == 3
    assert world.service._groups[key(1, 1)].rows == 8


def messages(bodies: list[bytes]) -> list[PutMessage]:
    return [PutMessage("Real", 0, body, b"k\x01v", 1, HOST, HOST) for body in bodies]


@pytest.mark.parametrize(
    "text", ["", "a/b/c/d", "s/1/2", "s/1/2/x/y", "s/-1/0/a", "s/1/0/a b", "s/1e3/0/a"]
)
def test_a_stage_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BrokerError, match="sink/batch/task/attempt"):
        read_key(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"sink":"s","batch":0,"tasks":[]}', b'{"sink":"s","batch":-1,"tasks":{}}',
     b'{"sink":"s","batch":0,"tasks":{"0":["a"]}}', b'{"sink":"/","batch":0,"tasks":{"0":["a",1]}}',
     b"[" * 100_000],
)  # fmt: skip
def test_a_decision_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(BrokerError):
        read_decision(text)


class Driver:
    """A job of several batches, as Spark runs it: a batch is repeated until it is committed."""

    def __init__(self, world: World, rng: random.Random, crash_at: int, power: bool) -> None:
        self.world = world
        self.rng = rng
        self.steps_left = crash_at
        self.power = power
        self.attempts = 0
        self.crashes = 0

    def step(self) -> None:
        """Between any two steps the broker may be gone, and with it this run of the batch."""
        self.steps_left -= 1
        if self.steps_left == 0:
            self.crashes += 1
            if self.power:
                self.world.cut_power(self.rng)
            else:
                self.world.kill()
            raise ConnectionError

    def batch(self, number: int) -> None:
        world = self.world
        known = world.service.decision("sink")
        if known is not None and known.batch == number:
            self.apply(known)
            return
        tasks = {}
        for task in range(3):
            self.attempts += 1
            attempt = f"t{self.attempts}"
            bodies = rows(number, task, 4 + task)
            for first in range(0, len(bodies), 2):
                world.stage(key(number, task, attempt), first, bodies[first : first + 2])
                world.flush()
                self.step()
            tasks[task] = (attempt, len(bodies))
        found, _ = world.service.decide(Decision("sink", number, tasks))
        self.step()
        world.flush()
        self.step()
        self.apply(found)

    def apply(self, found: Decision) -> None:
        while self.world.service.apply_some(found) is not None:
            self.step()
        self.world.flush()
        self.step()

    def run(self, batches: int) -> None:
        for number in range(batches):
            while True:
                try:
                    self.batch(number)
                    break
                except ConnectionError:
                    continue


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 3)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_every_row_is_there_once_wherever_the_broker_dies(power: bool) -> None:
    expected = Counter(
        body for batch in range(3) for task in range(3) for body in rows(batch, task, 4 + task)
    )
    crashes = 0
    for crash_at in range(1, 75):
        for seed in range(2 if power else 1):
            world = World(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
            driver = Driver(world, random.Random(crash_at * 100 + seed), crash_at, power)
            driver.run(3)
            crashes += driver.crashes
            found = world.visible()
            assert Counter(body for body, _ in found) == expected, crash_at
            assert len({row for _, row in found}) == len(found)
            world.kill()
            assert Counter(body for body, _ in world.visible()) == expected
    assert crashes == (108 if power else 54), "one crash at each step of the run"


class Sink:
    """One of several jobs at one broker; after a crash its steps begin with the batch again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.batch = 0
        self.attempts = 0

    def steps(self) -> Iterator[None]:
        service = self.world.service
        while self.batch < 3:
            found = service.decision(self.name)
            if found is None or found.batch < self.batch:
                tasks: dict[int, tuple[str, int]] = {}
                for task in range(2):
                    self.attempts += 1
                    attempt = f"t{self.attempts}"
                    bodies = self.bodies(self.batch, task)
                    for first in range(0, 4, 2):
                        at = GroupKey(self.name, self.batch, task, attempt)
                        service.stage(at, first, messages(bodies[first : first + 2]))
                        yield
                    tasks[task] = (attempt, 4)
                found, _ = service.decide(Decision(self.name, self.batch, tasks))
                yield
            self.world.flush()  # What is decided is on the disk before anybody sees it.
            yield
            while service.apply_some(found) is not None:
                yield
            self.batch += 1

    def bodies(self, batch: int, task: int) -> list[bytes]:
        return [f"{self.name}-{batch}-{task}-{row}".encode() for row in range(4)]


def finishing(world: World) -> Iterator[None]:
    """What a broker does after a start."""
    for found in list(world.service._decisions.values()):
        while world.service.apply_some(found) is not None:
            yield


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_rows_of_two_sinks_are_there_once_wherever_the_broker_dies_twice(power: bool) -> None:
    died = 0
    for first in range(1, 90):
        rng = random.Random(first)
        world = World(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
        sinks = [Sink(world, "one"), Sink(world, "two")]
        crashes = {first, first + rng.randrange(1, 12), first + rng.randrange(12, 30)}
        actors: dict[Sink | None, Iterator[None]] = {sink: sink.steps() for sink in sinks}
        step = 0
        while actors:
            step += 1
            if step in crashes:
                if power:
                    world.cut_power(rng)
                else:
                    world.kill()
                died += 1
                actors = {None: finishing(world), **{sink: sink.steps() for sink in sinks}}
            who = rng.choice(list(actors))
            try:
                next(actors[who])
            except StopIteration:
                del actors[who]
            except BrokerError:  # What a crash has interrupted is still being finished.
                assert who is not None
                actors[who] = who.steps()
        world.kill()
        for _ in finishing(world):
            pass
        wanted = [
            body for sink in sinks for n in range(3) for t in (0, 1) for body in sink.bodies(n, t)
        ]
        assert sorted(body for body, _ in world.visible()) == sorted(wanted), first
    assert died > 180


def test_a_cut_append_is_completed_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one place where a crash parts an apply record from its copies; and a broken check."""
    cut = 0
    for seed in range(60):
        world = World(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
        world.stage(key(), 0, rows(0, 0, 6))
        found, _ = world.service.decide(decision(t0=("a", 6)))
        world.flush()
        world.service.apply_some(found)
        world.cut_power(random.Random(seed))
        known = world.service.decision("sink")
        assert known is not None
        copied = known.applied.get(0, 0)
        assert copied == len(world.visible())
        cut += 0 < copied < 3
        world.apply(known)
        assert sorted(body for body, _ in world.visible()) == sorted(rows(0, 0, 6))
    assert cut, "no append was cut: the test does not test anything"


@pytest.mark.parametrize("between", ["kill", "other sink", "other cut too"])
def test_a_cut_append_is_completed_whatever_follows_it_in_the_log(between: str) -> None:
    """Of each sink the last append may have been cut, and others' records may lie behind it."""
    cut = 0
    other = GroupKey("other", 0, 0, "a")
    for seed in range(80):
        rng = random.Random(seed)
        world = World(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
        world.stage(key(), 0, rows(0, 0, 6))
        found, _ = world.service.decide(decision(t0=("a", 6)))
        world.flush()
        world.service.apply_some(found)
        world.cut_power(rng)
        before = len(world.visible())
        if between != "kill":
            world.service.stage(other, 0, messages([b"y%d" % n for n in range(6)]))
            found, _ = world.service.decide(Decision("other", 0, {0: ("a", 6)}))
            world.flush()
            world.service.apply_some(found)
        if between == "other cut too":
            world.cut_power(rng)
        else:
            world.kill()
        after = len(world.visible())
        cut += 0 < before < 3 and (between != "other cut too" or 0 < after - before < 3)
        for known in list(world.service._decisions.values()):
            world.apply(known)
        wanted = [*rows(0, 0, 6), *([] if between == "kill" else [b"y%d" % n for n in range(6)])]
        assert sorted(body for body, _ in world.visible()) == sorted(wanted), seed
    assert cut, "no append was cut: the test does not test anything"


def test_entries_are_staged_as_the_same_rows_one_by_one_are() -> None:
    short, long = World(), World()
    bodies = [b"one", b"two", b"six"]
    messages = [PutMessage("Real", 0, body, b"k\x01v", 1, HOST, HOST) for body in bodies]
    for world in (short, long):  # The queue of staged rows is made by the first of them.
        world.service.stage(key(task=9), 0, messages)
    assert short.service.stage_entries(key(), 0, entries_of(bodies, 0)) is not None
    assert long.service.stage(key(), 0, messages) == long.store.log.appended
    assert short.store.log.appended == long.store.log.appended
    end = long.store.log.appended
    assert short.store.log.read(0, end) == long.store.log.read(0, end)
    assert short.service._groups == long.service._groups


def test_entries_that_do_not_follow_are_left_to_be_looked_at() -> None:
    world = World()
    bodies = [b"one", b"two", b"six"]
    assert world.service.stage_entries(key(), 0, entries_of(bodies, 0)) is None  # No queue yet.
    world.stage(key(), 0, bodies)
    end = world.store.log.appended
    for first in (0, 1, 4):
        assert world.service.stage_entries(key(), first, entries_of(bodies, 0)) is None
    assert world.store.log.appended == end
    assert world.service.stage_entries(key(), 3, entries_of(bodies, 0)) == world.store.log.appended
    decision, _ = world.service.decide(Decision("sink", 0, {0: ("a", 6)}, {}))
    world.apply(decision)
    assert [body for body, _ in world.visible()] == bodies * 2
    with pytest.raises(BrokerError, match="decided already"):
        world.service.stage_entries(key(), 6, entries_of(bodies, 0))
