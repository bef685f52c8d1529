"""What a master ships, whom it believes, and who waits for it."""

from __future__ import annotations

import asyncio

import pytest

from skylark.errors import RemoteProtocolError
from skylark.replication import Follower, Master, Quorum

FILE = 1000


class Log:
    """A log of bytes, of which the first files may be gone."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.data = bytes(number % 251 for number in range(size))
        self.start = start

    def read(self, offset: int, size: int) -> memoryview | None:
        if offset < self.start or offset + size > len(self.data):
            return None
        return memoryview(self.data)[offset : offset + size]


def make(size: int = 2500, start: int = 0, batch: int = 300) -> tuple[Master, Log]:
    log = Log(size, start)
    master = Master(
        log,
        lambda: len(log.data),
        file_bytes=FILE,
        batch_bytes=batch,
        heartbeat_ms=5_000,
        silence_ms=20_000,
    )
    return master, log


def follow(master: Master, offset: int, *, is_trusted: bool = False) -> Follower:
    follower = master.join("10.0.0.2:1", 0, is_trusted=is_trusted)
    master.reported(follower, offset, 0)
    return follower


def ship(master: Master, follower: Follower) -> bytes:
    shipped = b""
    while (found := master.next_push(follower)) is not None:
        offset, data = found
        assert offset == follower.sent
        assert offset // FILE == (offset + len(data) - 1) // FILE, "a push goes beyond a file"
        shipped += data
        master.pushed(follower, len(data), 0)
    return shipped


@pytest.mark.parametrize("asked", [0, 1, 999, 1000, 2499, 2500])
def test_the_log_is_shipped_from_where_it_is_asked_for(asked: int) -> None:
    master, log = make()
    assert ship(master, follow(master, asked)) == log.data[asked:]


def test_an_empty_replica_gets_everything_that_is_kept() -> None:
    master, log = make(start=1000)
    follower = follow(master, 0)
    assert follower.asked == 1000
    master.reported(follower, 0, 0)  # It has nothing yet, and says so again.
    assert ship(master, follower) == log.data[1000:]


@pytest.mark.parametrize(
    ("asked", "word"), [(2501, "ends at 2500"), (2**62, "ends at"), (500, "begins at 1000")]
)
def test_what_the_master_does_not_have_is_refused(asked: int, word: str) -> None:
    master, _ = make(start=1000)
    with pytest.raises(RemoteProtocolError, match=word):
        follow(master, asked)
    assert master.confirmed() == -1
    assert not master.is_followed


def test_one_that_retention_has_overtaken_is_told_so() -> None:
    master, log = make()
    follower = follow(master, 500)
    log.start = 1000
    with pytest.raises(RemoteProtocolError, match="begins at 1000"):
        master.next_push(follower)


def test_a_report_beyond_what_was_sent_or_behind_the_last_is_refused() -> None:
    master, _ = make()
    follower = follow(master, 1000)
    ship(master, follower)
    master.reported(follower, 1300, 0)
    with pytest.raises(RemoteProtocolError, match="after 1300"):
        master.reported(follower, 1200, 0)
    with pytest.raises(RemoteProtocolError, match="was sent the log up to 2500"):
        master.reported(follower, 2501, 0)
    assert master.confirmed() == 1300


def test_a_wish_is_no_confirmation_until_something_sent_is_confirmed() -> None:
    """H1: whoever writes eight bytes to RocketMQ's port is believed to have a copy."""
    master, _ = make()
    follower = follow(master, 2000)
    master.reported(follower, 2000, 0)
    assert master.confirmed() == -1
    ship(master, follower)
    master.reported(follower, 2000, 0)
    assert master.confirmed() == -1
    master.reported(follower, 2300, 0)
    assert master.confirmed() == 2300


def test_one_that_has_shown_the_key_is_believed_at_once() -> None:
    master, _ = make()
    follow(master, 2000, is_trusted=True)
    assert master.confirmed() == 2000


def test_what_a_replica_confirmed_does_not_count_once_it_is_gone() -> None:
    master, _ = make()
    one, two = (follow(master, at, is_trusted=True) for at in (2500, 700))
    assert master.confirmed() == 2500
    assert master.confirmed(copies=2) == 700
    assert master.confirmed(copies=3) == -1
    master.leave(one)
    assert master.confirmed() == 700
    assert master.lag_bytes() == 1800
    master.leave(two)
    assert master.lag_bytes() is None


def test_heartbeats_are_due_after_silence_and_silent_ones_are_seen() -> None:
    master, _ = make()
    follower = master.join("10.0.0.2:1", 0)
    assert not master.wants_heartbeat(follower, 60_000)  # It has not asked for anything yet.
    assert master.is_silent(follower, 20_001)
    master.reported(follower, 2500, 10_000)
    assert not master.is_silent(follower, 30_000)
    assert master.wants_heartbeat(follower, 5_000)
    master.pushed(follower, 0, 5_000)
    assert not master.wants_heartbeat(follower, 9_999)


# Waiting.


def test_one_confirmation_frees_all_that_it_covers() -> None:
    async def main() -> None:
        master, _ = make()
        quorum = Quorum(master, fall_behind_max=10_000)
        follower = follow(master, 0, is_trusted=True)
        ship(master, follower)
        waits = [quorum.replicated(offset) for offset in (900, 100, 500, 2500)]
        assert not any(wait.done() for wait in waits)
        master.reported(follower, 900, 0)
        quorum.advance()
        assert [wait.done() for wait in waits] == [True, True, True, False]
        assert quorum.is_replicated(900)
        assert quorum.replicated(900).done()
        assert not await quorum.wait_replicated(2500, 10)
        master.reported(follower, 2500, 0)
        quorum.advance()
        assert await quorum.wait_replicated(2500, 10)
        assert len(quorum) == 0

    asyncio.run(main())


def test_those_who_gave_up_are_forgotten() -> None:
    async def main() -> None:
        master, _ = make()
        quorum = Quorum(master, fall_behind_max=10_000)
        for offset in range(100):
            quorum.replicated(offset + 1).cancel()
        quorum.advance()
        assert len(quorum) == 0

    asyncio.run(main())


def test_waiting_has_a_chance_only_with_a_replica_that_is_near() -> None:
    master, _ = make()
    quorum = Quorum(master, fall_behind_max=1000)
    assert not quorum.is_available(2500)
    follower = follow(master, 1400)
    assert not quorum.is_available(2500)
    ship(master, follower)
    master.reported(follower, 1600, 0)
    assert quorum.is_available(2500)
