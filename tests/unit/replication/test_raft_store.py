"""The commit log as Raft's log, and what a member keeps beside it, on disks that forget."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.errors import ConfigError, CorruptRecord, RemoteProtocolError, StoreDamaged
from skylark.model.topic import RAFT_TOPIC
from skylark.protocol.record import decode_dispatch, decode_records, pack_host
from skylark.replication.raft_log import Chunk, HardState
from skylark.replication.raft_store import (
    MemberState,
    StoreLog,
    member_file,
    require_no_group,
)
from skylark.store import FlushDiskType, MessageStore, PutMessage, PutStatus, StoreConfig
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles

HOST = pack_host("10.0.0.1", 1)
FILE_BYTES = 2048


class StillClock:
    """Time stands still."""

    def now_ms(self) -> int:
        return 1_000

    def monotonic_ms(self) -> int:
        return 1_000

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("nothing waits here")


def open_store(files: SimFiles) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=20 * 50,
        max_hash_slot_num=10,
        max_index_num=100,
        max_message_size=1024,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )
    return MessageStore.open(config, files, StillClock(), is_member=True)


def open_log(store: MessageStore, tail_bytes_max: int = 1 << 20) -> StoreLog:
    return StoreLog(
        store, store.files, store_host=HOST, now_ms=lambda: 1_000, tail_bytes_max=tail_bytes_max
    )


def put(store: MessageStore, text: bytes, size: int = 100) -> int:
    """What a leader puts; returns where it ends."""
    body = text + b"." * size
    result = store.put([PutMessage("Topic", 0, body, b"", 1_000, HOST, HOST)])[0]
    assert result.status is PutStatus.PUT_OK
    return result.end


def chunks(log: StoreLog, since: int = 0, size_max: int = 1 << 20) -> Iterator[Chunk]:
    """All of a log, as it travels."""
    while since < log.last:
        chunk = log.read(since, size_max)
        yield chunk._replace(data=bytes(chunk.data))
        since = chunk.end


def records(store: MessageStore) -> Iterator[tuple[int, Any]]:
    at = store.log.start
    while at < store.log.appended:
        found = store.log.buffer_at(at)
        assert found is not None
        info = decode_dispatch(*found)
        if info is None:
            at += FILE_BYTES - at % FILE_BYTES
            continue
        yield at, decode_records(bytes(found[0][found[1] : found[1] + info.size_bytes]))[0]
        at += info.size_bytes


@pytest.fixture
def leader() -> Iterator[tuple[MessageStore, StoreLog]]:
    """A log of three terms in several files."""
    with open_store(SimFiles()) as store:
        log = open_log(store)
        store.is_replica = False
        for term in (1, 2, 5):
            assert log.begin_term(term, "n0")
            for number in range(6):
                put(store, b"term %d, %d" % (term, number))
        yield store, log


def test_a_term_begins_with_a_record_that_says_so(leader: tuple[MessageStore, StoreLog]) -> None:
    store, log = leader
    found = {
        at: json.loads(record.body) for at, record in records(store) if record.topic == RAFT_TOPIC
    }
    assert [body["term"] for body in found.values()] == [1, 2, 5]
    assert {body["leader"] for body in found.values()} == {"n0"}
    for at, body in found.items():
        assert log.term_after(at) == body["term"]
    assert [log.term_at(start) for start in log.terms.starts[1:]] == [0, 1, 2]
    assert log.end_of_term(4) == (2, log.terms.starts[-1])


def test_queue_offsets_of_what_is_not_agreed_are_given_out_once(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    """R6: nothing of this log is dispatched, and a new leader continues its queues all the same."""
    continue_queues(leader[0])


def test_queue_offsets_that_are_given_out_twice_are_found(
    leader: tuple[MessageStore, StoreLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreLog, "_continue_queue", lambda self: None)
    with pytest.raises(AssertionError):
        continue_queues(leader[0])


def continue_queues(store: MessageStore) -> None:
    given = [record.queue_offset for _, record in records(store) if record.topic == RAFT_TOPIC]
    assert given == [0, 1, 2]
    files = store.files
    store.flush()
    assert isinstance(files, SimFiles)
    with open_store(files.kill()) as again:
        assert again.dispatcher.position == 0
        log = open_log(again)
        assert log.begin_term(6, "n1")
        by_topic: dict[str, list[int]] = {}
        for _, record in records(again):
            by_topic.setdefault(record.topic, []).append(record.queue_offset)
        assert by_topic == {RAFT_TOPIC: [0, 1, 2, 3], "Topic": list(range(18))}
        again.flush()
        again.agree(log.last)
        again.is_replica = False
        put(again, b"one more")
        assert [r.queue_offset for _, r in records(again) if r.topic == "Topic"] == [*range(19)]


@pytest.mark.parametrize("size_max", [1, 300, 1 << 20])
def test_a_log_travels_in_whole_records_of_one_term_and_file(
    leader: tuple[MessageStore, StoreLog], size_max: int
) -> None:
    store, log = leader
    with open_store(SimFiles()) as other:
        copy = open_log(other)
        for chunk in chunks(log, size_max=size_max):
            assert chunk.start // FILE_BYTES == (chunk.end - 1) // FILE_BYTES
            copy.append(copy.check(chunk), chunk.start)
        assert copy.last == log.last
        assert copy.terms.entries == log.terms.entries
        assert list(records(other)) == list(records(store))
        assert other.dispatcher.position == 0, "nothing is agreed"
        other.flush()
        other.agree(copy.last)
        assert other.dispatcher.position == copy.last
        assert other.max_offset("Topic", 0) == 18


def test_what_is_damaged_or_belongs_elsewhere_is_not_taken(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    _, log = leader
    chunk = next(chunks(log))
    with open_store(SimFiles()) as other:
        copy = open_log(other)
        flipped = bytearray(chunk.data)
        flipped[len(flipped) // 2] ^= 1
        for data in (
            bytes(flipped),
            chunk.data[:-1],
            chunk.data + b"x",
            bytes(len(chunk.data)),
            chunk.data[200:],
        ):
            with pytest.raises(RemoteProtocolError):
                copy.check(Chunk(0, len(data), 1, data))
        with pytest.raises(RemoteProtocolError, match="damaged"):
            copy.check(chunk._replace(start=chunk.start + 8))
        with pytest.raises(RemoteProtocolError, match="the same mappedFileSizeCommitLog"):
            copy.check(Chunk(0, 3 * FILE_BYTES, 1, chunk.data * 8))
        with pytest.raises(RemoteProtocolError, match="the same mappedFileSizeCommitLog"):
            copy.begin(FILE_BYTES // 2, 3)
        assert copy.is_empty


def test_a_blank_record_that_ends_too_early_is_not_taken(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    _, log = leader
    whole = next(chunk for chunk in chunks(log) if chunk.end % FILE_BYTES == 0)
    with open_store(SimFiles()) as other, pytest.raises(RemoteProtocolError, match="damaged"):
        open_log(other).check(whole._replace(data=whole.data[:-20], end=whole.end - 20))


def test_an_empty_log_begins_where_it_is_told(leader: tuple[MessageStore, StoreLog]) -> None:
    _, log = leader
    start = FILE_BYTES
    files = SimFiles()
    with open_store(files) as other:
        copy = open_log(other)
        copy.begin(start, log.term_at(start))
        for chunk in chunks(log, start):
            copy.append(copy.check(chunk), chunk.start)
        assert (copy.start, copy.last) == (start, log.last)
        assert copy.term_at(start) == log.term_at(start)
        other.flush()
    with open_store(files.kill()) as again:
        copy = open_log(again)
        assert (copy.start, copy.last) == (start, log.last)
        for position in (start, start + 1, log.last):
            assert copy.term_at(position) == log.term_at(position)


def test_a_cut_is_durable_and_what_is_cut_is_kept_aside(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    store, log = leader
    cut = log.terms.starts[2]
    tail = log.last - cut
    store.agree(log.terms.starts[1])
    log.truncate(cut)
    assert log.terms.numbers == [0, 1]
    files = store.files
    assert isinstance(files, SimFiles)
    assert len(files.read(f"/store/diverged/{cut:020d}-{tail}")) == tail
    with open_store(files.crash(random.Random(1))) as again:
        copy = open_log(again)
        assert copy.last == cut
        assert copy.terms.numbers == [0, 1]


def test_a_tail_that_is_too_long_is_left_to_an_operator(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    store, _ = leader
    log = open_log(store, tail_bytes_max=100)
    before = log.last
    with pytest.raises(StoreDamaged, match="move this store away"):
        log.truncate(log.terms.starts[2])
    assert log.last == before


def lead_and_follow(files: SimFiles) -> None:
    """Terms that begin, at a follower and at a leader, with a cut between."""
    with open_store(SimFiles()) as other:
        source = open_log(other)
        other.is_replica = False
        for term in (1, 2):
            source.begin_term(term, "n1")
            put(other, b"term %d" % term)
        with open_store(files) as store:
            log = open_log(store)
            for chunk in chunks(source):
                log.append(log.check(chunk), chunk.start)
                files.observe()
            store.flush()
            files.observe()
            log.truncate(log.terms.starts[2])
            files.observe()
            log.begin_term(3, "n0")
            files.observe()
            store.is_replica = False
            put(store, b"term 3")
            files.observe()
            store.flush()


def check_terms_after_every_crash() -> None:
    """Whatever a crash leaves: what a record says of its term, the table says as well."""
    files = SimFiles(page_bytes=512)
    files.start_recording()
    lead_and_follow(files)
    states = 0
    disk = SimFiles(page_bytes=512)
    for end, change in enumerate(files.trace):
        disk.apply(change)
        for name, state in disk.crash_states(subsets=1, tears=0):
            if name.startswith("page"):
                continue
            with open_store(state) as store:
                log = open_log(store)
                for at, record in records(store):
                    said = (
                        json.loads(record.body)["term"]
                        if record.topic == RAFT_TOPIC
                        else int(record.body[5:6])
                    )
                    assert log.term_after(at) == said, f"at {at} after {end} changes"
                states += 1
    assert states > 100


def test_terms_are_known_after_every_crash() -> None:
    check_terms_after_every_crash()


def test_terms_that_are_saved_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append, save = StoreLog.append, StoreLog.save_terms

    def late(self: StoreLog, chunk: Chunk, since: int) -> None:
        monkeypatch.setattr(StoreLog, "save_terms", lambda self: None)
        append(self, chunk, since)
        self._store.flush()
        monkeypatch.setattr(StoreLog, "save_terms", save)
        self.save_terms()

    monkeypatch.setattr(StoreLog, "append", late)
    with pytest.raises(AssertionError):
        check_terms_after_every_crash()


def test_terms_are_found_again_in_the_log(leader: tuple[MessageStore, StoreLog]) -> None:
    store, log = leader
    entries = log.terms.entries
    store.files.remove("/store/config/raftTerms.json")
    again = open_log(store)
    assert not again.has_terms
    again.find_terms()
    assert again.terms.entries == entries
    assert open_log(store).terms.entries == entries
    store.files.remove("/store/config/raftTerms.json")
    store.log.detach_first()
    with pytest.raises(CorruptRecord, match="in the middle of a term"):
        open_log(store).find_terms()


def test_retention_takes_nothing_that_is_not_agreed(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    store, log = leader
    store.flush()
    retention = Retention(store, StillClock())
    retention.reconfigure(
        dataclasses.replace(store.config, file_reserved_time=0, disk_max_used_space_ratio=1)
    )
    retention.clean_soon()
    assert retention.clean() == 0
    store.agree(log.last)
    store.flush()
    retention.clean_soon()
    assert retention.clean() > 0
    assert log.start > 0
    assert log.term_at(log.start) > 0


# The state of a member.


def member(files: SimFiles, **names: str) -> MemberState:
    return MemberState("/store", files, **{"group": "g", "own_id": "n0", **names})


def test_term_and_vote_are_there_after_a_power_cut() -> None:
    files = SimFiles()
    assert member(files).load() is None
    state = HardState(7, "n2", may_vote=False, floor=300)
    member(files).save(state, 4096)
    again = member(files.crash(random.Random(1)))
    assert again.load() == state
    assert again.log_end == 4096


def test_a_log_that_is_cut_does_not_look_like_one_that_was_lost(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    store, log = leader
    files = store.files
    assert isinstance(files, SimFiles)
    state = member(files)
    state.save(HardState(5, None), log.last)
    log.before_cut = state.lower
    cut = log.terms.starts[2]
    log.truncate(cut)
    again = member(files)
    assert again.load() == HardState(5, None)
    assert again.log_end == cut


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"group":"g","id":"n0","term":-1}', b"\xff", b'{"group":"g"'],
)
def test_a_state_that_cannot_be_read_is_not_guessed(content: bytes) -> None:
    files = SimFiles()
    files.make_directory("/store/config")
    files.replace(member_file("/store"), content)
    with pytest.raises(CorruptRecord, match="move this store away"):
        member(files).load()


def test_a_store_of_a_group_is_not_opened_without_it() -> None:
    files = SimFiles()
    require_no_group("/store", files)
    member(files).save(HardState(1, None), 0)
    with pytest.raises(ConfigError, match="set enableDLegerCommitLog=true; or, to take it out"):
        require_no_group("/store", files)


def test_a_store_of_another_member_is_refused() -> None:
    files = SimFiles()
    member(files).save(HardState(1, None), 0)
    for names in ({"group": "h"}, {"own_id": "n1"}):
        with pytest.raises(CorruptRecord, match="correct dLegerGroup and dLegerSelfId"):
            member(files, **names).load()


def test_terms_that_cannot_be_read_are_not_guessed(
    leader: tuple[MessageStore, StoreLog],
) -> None:
    store, _ = leader
    for content in (
        b"{}",
        b'{"terms":[]}',
        b'{"terms":[{"term":5,"start":9},{"term":1,"start":0}]}',
    ):
        store.files.replace("/store/config/raftTerms.json", content)
        with pytest.raises(CorruptRecord, match=r"raftTerms\.json cannot be read"):
            open_log(store)
