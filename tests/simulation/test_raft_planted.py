"""The tests of whole Raft groups are tested: each bug planted here must be found by the test named.

Bugs of the core are planted in test_raft.py, those of the log in test_raft_store.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import test_raft
import test_raft_group as groups
import test_raft_strangers as strangers

from skylark.errors import SkylarkError
from skylark.replication import raft_group
from skylark.replication.raft_group import RaftGroup, RaftQuorum
from skylark.replication.raft_log import Chunk
from skylark.replication.raft_store import StoreLog
from skylark.store import MessageStore

Plant = Callable[[pytest.MonkeyPatch], None]


def count_before_the_disk_has_it(patch: pytest.MonkeyPatch) -> None:
    def watch_disk(self: RaftGroup) -> None:
        self.raft.synced(self.log.last)
        self.links.send(self.raft.ready().messages)

    patch.setattr(RaftGroup, "_watch_disk", watch_disk)


def show_what_is_not_agreed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageStore, "visible_end", property(lambda self: self.log.flushed))


def serve_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftGroup, "is_serving", property(lambda self: self.raft.is_leader))


def answer_yes_when_leadership_is_lost(patch: pytest.MonkeyPatch) -> None:
    advance = RaftQuorum.advance

    def lie(self: RaftQuorum, *, is_lost: bool = False) -> None:
        for waiter in self._waiters if is_lost else ():
            if not waiter.future.done():
                waiter.future.set_result(True)
        advance(self, is_lost=is_lost)

    patch.setattr(RaftQuorum, "advance", lie)


def take_records_unseen(patch: pytest.MonkeyPatch) -> None:
    def check(self: StoreLog, chunk: Chunk) -> Chunk:
        return chunk

    patch.setattr(StoreLog, "check", check)


def vote_without_a_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(raft_group, "Raft", test_raft.VotesWithoutItsDisk)


def cut_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: StoreLog, position: int) -> None:
        log = self._store.log
        log.flushed = log._committed = position
        log._write_into(log.mapped.at(position), position)
        self.terms.cut(position)

    patch.setattr(StoreLog, "truncate", truncate)


def drop_the_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreLog, "_keep_tail", lambda self, position: None)


def lose_all_power() -> None:
    groups.test_all_lose_power_at_once_under_load()


def live_with_faults() -> None:
    for seed in range(12):
        groups.run(seed)


BUGS: list[tuple[Plant, Callable[[], None]]] = [
    (count_before_the_disk_has_it, lose_all_power),
    (show_what_is_not_agreed, groups.test_what_was_never_agreed_is_cut_and_kept_aside),
    (serve_without_a_lease, live_with_faults),
    (
        answer_yes_when_leadership_is_lost,
        groups.test_who_waits_at_a_leader_that_is_cut_off_is_told_that_it_failed,
    ),
    (
        take_records_unseen,
        lambda: (
            strangers.test_one_that_greets_well_and_talks_nonsense_is_closed_before_anything_changes(
                strangers.DAMAGED, "what it sends at 0 is a damaged record", None
            )
        ),
    ),
    (vote_without_a_disk, groups.test_two_empty_disks_of_three_elect_nobody),
    (cut_in_memory_only, live_with_faults),
    (drop_the_tail, groups.test_what_was_never_agreed_is_cut_and_kept_aside),
]
FINDINGS: Any = (AssertionError, SkylarkError, KeyError, asyncio.InvalidStateError)


@pytest.mark.parametrize(("bug", "test"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_planted_bug_is_found(
    bug: Plant, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(FINDINGS):
        test()
