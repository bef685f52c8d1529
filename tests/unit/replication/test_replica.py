"""What a replica takes in, where logs part, and whom it follows."""

from __future__ import annotations

import random

import pytest

from skylark.errors import CorruptRecord, RemoteProtocolError
from skylark.replication import Epoch, EpochTable, LogsDiffer, Replica, find_agreement
from skylark.replication.stream import Push
from skylark.store import MessageStore
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, make_message


def open_store(files: SimFiles | None = None) -> MessageStore:
    return MessageStore.open(TINY, files or SimFiles(), HandClock())


def fill(store: MessageStore, count: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    for number in range(count):
        body = rng.randbytes(rng.randrange(1, 300))
        store.put([make_message(f"T{number % 3}", number % 2, body=body)])


def all_bytes(store: MessageStore) -> bytes:
    log, size = store.log, TINY.mapped_file_size_commit_log
    pieces, at = [], log.start
    while at < log.committed:
        piece = log.read(at, min(log.committed - at, size - at % size))
        assert piece is not None
        pieces.append(bytes(piece))
        at += len(piece)
    return b"".join(pieces)


def pushes(master: MessageStore, start: int, rng: random.Random) -> list[Push]:
    """The master's log in pieces of any size, none beyond a file."""
    data, size, found, at = all_bytes(master), TINY.mapped_file_size_commit_log, [], start
    first = master.log.start
    while at < first + len(data):
        step = min(rng.randint(1, 200), size - at % size, first + len(data) - at)
        found.append(Push(at, data[at - first : at - first + step]))
        at += step
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_comes_in_pieces_is_the_same_log(seed: int) -> None:
    with open_store() as master, open_store() as copy:
        fill(master, 60, seed)
        replica = Replica(copy)
        replica.begin()
        for push in pushes(master, 0, random.Random(seed)):
            replica.apply(push)
            # Never the half of a record, so never anything to cut away.
            assert copy.dispatcher.position == copy.log.appended
            assert replica.confirmable <= push.offset + len(push.data)
        assert all_bytes(copy) == all_bytes(master)
        assert copy.queues.names == master.queues.names
        assert copy.last_stored_ms == master.last_stored_ms


def test_a_connection_that_breaks_in_a_record_repeats_it() -> None:
    with open_store() as master, open_store() as copy:
        fill(master, 20)
        replica = Replica(copy)
        whole = pushes(master, 0, random.Random(3))
        for push in whole[:17]:
            replica.apply(push)
        replica.begin()
        for push in pushes(master, replica.appended, random.Random(4)):
            replica.apply(push)
        assert all_bytes(copy) == all_bytes(master)


def test_a_copy_may_begin_at_any_file_and_at_nothing_else() -> None:
    size = TINY.mapped_file_size_commit_log
    with open_store() as master, open_store() as copy, open_store() as other:
        fill(master, 60)
        replica = Replica(copy)
        assert replica.is_empty
        for push in pushes(master, 2 * size, random.Random(1)):
            replica.apply(push)
        assert copy.log.start == 2 * size
        assert copy.log.appended == master.log.appended
        with pytest.raises(RemoteProtocolError, match="mappedFileSizeCommitLog"):
            Replica(other).apply(Push(size + 7, b"x"))


def test_a_piece_that_does_not_continue_the_log_is_refused() -> None:
    with open_store() as master, open_store() as copy:
        fill(master, 20)
        replica = Replica(copy)
        first, second, third = pushes(master, 0, random.Random(5))[:3]
        replica.apply(first)
        with pytest.raises(RemoteProtocolError, match="ours goes on at"):
            replica.apply(third)
        replica.apply(second)
        replica.apply(Push(second.offset + len(second.data), b""))  # A heartbeat fits.
        with pytest.raises(RemoteProtocolError):
            replica.apply(Push(0, b""))


@pytest.mark.parametrize("at", [0, 5, 30, 90])
def test_damaged_or_foreign_bytes_never_enter_the_log(at: int) -> None:
    with open_store() as master, open_store() as copy:
        fill(master, 1)
        data = bytearray(all_bytes(master))
        data[at] ^= 0x55
        replica = Replica(copy)
        with pytest.raises(RemoteProtocolError):
            replica.apply(Push(0, bytes(data)))
        assert copy.log.appended == 0
        assert not copy.queues.names


# Where logs part.


def agree(store: MessageStore, other: MessageStore, since: int = 0) -> tuple[int, int]:
    """Where two stores agree, and how many records were asked for."""
    probes, asked = find_agreement(store.log, since=since), 0
    try:
        offset = next(probes)
        while True:
            asked += 1
            found = None
            if offset >= other.log.start:
                found = other.get_by_physical_offset(offset)
            offset = probes.send(None if found is None else bytes(found))
    except StopIteration as done:
        return done.value, asked


@pytest.mark.parametrize("common", [1, 2, 7, 30, 59])
@pytest.mark.parametrize("more", [0, 1, 25])
def test_the_common_part_is_found_to_the_record(common: int, more: int) -> None:
    with open_store() as one, open_store() as two:
        fill(one, common)
        fill(two, common)
        shared = one.log.appended
        # The clocks of two masters differ, and with them every record that follows.
        two.clock.advance_ms(1)  # type: ignore[attr-defined]
        if more:
            fill(one, more, seed=8)
            fill(two, more, seed=8)
        found, asked = agree(two, one)
        assert found == shared
        assert asked <= 16


def test_a_log_that_is_part_of_the_other_agrees_to_its_last_record() -> None:
    with open_store() as one, open_store() as two:
        fill(one, 40)
        fill(two, 20)
        assert agree(two, one) == (two.log.appended, 1)
        assert agree(one, two)[0] == two.log.appended


def test_an_empty_log_agrees_with_everything() -> None:
    with open_store() as one, open_store() as two:
        fill(one, 3)
        assert agree(two, one) == (0, 0)


def test_logs_without_a_common_record_are_said_to_differ() -> None:
    with open_store() as one, open_store() as two:
        two.clock.advance_ms(1)  # type: ignore[attr-defined]
        fill(one, 30)
        fill(two, 30)
        with pytest.raises(LogsDiffer):
            agree(two, one)


def test_files_that_the_other_has_dropped_are_not_asked_for() -> None:
    size = TINY.mapped_file_size_commit_log
    with open_store() as one, open_store() as two:
        fill(one, 60)
        fill(two, 60)
        shared = two.log.appended
        two.clock.advance_ms(1)  # type: ignore[attr-defined]
        fill(two, 5, seed=9)
        one.log.detach_first()
        assert one.log.start == size
        assert agree(two, one, since=size)[0] == shared


# Epochs.


def test_epochs_are_durable_and_count_on() -> None:
    files = SimFiles()
    table = EpochTable("/store/config/epochs.json", files)
    table.load()
    assert table.last == Epoch(0, 0, 0)
    assert table.begin(5, 100).number == 1
    table.follow(Epoch(7, 9, 300))
    after = EpochTable("/store/config/epochs.json", files.crash(random.Random(1)))
    after.load()
    assert after.epochs == [Epoch(1, 5, 100), Epoch(7, 9, 300)]
    assert after.begin(1, 400).number == 8


def test_a_damaged_table_of_epochs_is_refused() -> None:
    files = SimFiles()
    files.make_directory("/c")
    for content in (b"", b"{}", b'{"epochs":[{"epoch":0,"mark":"0","start":0}]}', b"[1"):
        files.replace("/c/epochs.json", content)
        with pytest.raises(CorruptRecord, match="cannot be read"):
            EpochTable("/c/epochs.json", files).load()
