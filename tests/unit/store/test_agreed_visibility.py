"""In a Raft group, what is agreed is seen at once, also where our own disk is slow."""

from __future__ import annotations

import dataclasses

from skylark.store import FlushDiskType, MessageStore
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, make_message

SYNC = dataclasses.replace(TINY, flush_disk_type=FlushDiskType.SYNC_FLUSH)


def test_what_a_majority_has_on_disk_is_seen_before_our_own_flush() -> None:
    """It is answered for by then: whoever asks for the end next must find it counted."""
    clock = HandClock()
    with MessageStore.open(SYNC, SimFiles(), clock) as store:
        store.agreed = 0
        (result,) = store.put([make_message()])
        assert store.max_offset("TopicTest", 0) == 0
        store.agree(result.end)
        assert store.log.flushed < result.end
        assert store.max_offset("TopicTest", 0) == 1
        assert store.get("TopicTest", 0, 0, 32).message_count == 1


def test_what_is_on_our_disk_alone_is_not_seen() -> None:
    clock = HandClock()
    with MessageStore.open(SYNC, SimFiles(), clock) as store:
        store.agreed = 0
        store.put([make_message()])
        store.flush()
        assert store.max_offset("TopicTest", 0) == 0
