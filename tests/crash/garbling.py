"""Garbled files: each kind of damage at each place of each kind of file.

    I05  whatever happens to a tail, the store opens or refuses with a named error; it never hangs,
         never drops an intact record before the damage, never serves a damaged one
    I06  damage in the middle is reported, never skipped silently

A store after a clean stop, and one after a crash, are made once. Each case takes a copy, garbles
one place, opens it and reads everything.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from crash_judge import Broken, Judge, require
from crash_script import SYNC, Item, ScriptedRun
from crash_states import Finding, Tally

from skylark.errors import (
    CorruptRecord,
    SkylarkError,
    StoreDamaged,
    StoreError,
    StoreTooNew,
    StoreUnreadable,
)
from skylark.store import GetStatus, MessageStore, PutStatus
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock, make_message

TAIL_BYTES = 8192
DAMAGES = ("cut", "zero", "ones", "flip", "random")
HANG_MS = 5_000
NAMED = (StoreDamaged, StoreUnreadable, StoreTooNew, CorruptRecord)


@dataclass(frozen=True)
class Specimen:
    """A store to be damaged, and what is in it."""

    name: str
    disk: SimFiles
    history: tuple[Item, ...]
    now_ms: int
    written: dict[str, int]  # Path -> where the written part of a file ends.


@cache
def specimen(name: str) -> Specimen:
    """`clean`: after a clean stop. `crashed`: killed with everything flushed, marks older."""
    run = ScriptedRun(SYNC, seed=5)
    for _ in range(8):
        run.put(3)
        run.put(2, group=True)
        run.wait()
        run.flush()
    run.flush_queues(thorough=True)
    for _ in range(2):
        run.put(4)
        run.flush()
    if name == "clean":
        run.close()
    disk = run.files.copy()
    written = {path: len(disk.read(path).rstrip(b"\0")) for path in disk.all_paths()}
    return Specimen(name, disk, run.history, run.clock.now_ms(), written)


def kind_of(path: str) -> str:
    """log, queue, index, sums, checkpoint or another one's name."""
    parts = path.split("/")
    kinds = {"commitlog": "log", "consumequeue": "queue", "index": "index", "sums": "sums"}
    return kinds.get(parts[2], parts[-1])


def targets(kept: Specimen) -> list[str]:
    """The files to damage; of the log those that hold its last 8 KiB."""
    paths = [path for path in kept.disk.all_paths() if kind_of(path) not in ("lock", "abort")]
    logs = [path for path in paths if kind_of(path) == "log"]
    return [path for path in paths if path not in logs[: -TAIL_BYTES // 4096 - 1]]


def cases(rng: random.Random, count: int) -> Iterator[tuple[str, str, int, str]]:
    """(specimen, path, position, damage), every kind of file and damage alike often."""
    by_kind: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in ("clean", "crashed"):
        for path in targets(specimen(name)):
            by_kind[name, kind_of(path)].append(path)
    kinds = sorted(by_kind)
    for number in range(count):
        name, kind = kinds[number % len(kinds)]
        path = rng.choice(by_kind[name, kind])
        kept = specimen(name)
        size = len(kept.disk.read(path))
        # Near the end of what is written most of the time, anywhere in the last 8 KiB else.
        first = max(0, size - TAIL_BYTES)
        if rng.random() < 0.7:
            at = rng.randrange(min(first, max(0, kept.written[path] - 1)), kept.written[path] + 40)
        else:
            at = rng.randrange(first, size)
        yield name, path, min(at, size - 1), DAMAGES[number // len(kinds) % len(DAMAGES)]


def garble(disk: SimFiles, path: str, at: int, damage: str, rng: random.Random) -> bool:
    """Do the damage; False if nothing has changed by it."""
    before = disk.read(path)
    size = rng.choice((1, 2, 8, 20, 64, 512))
    end = min(len(before), at + size)
    if damage == "cut":
        disk.truncate(path, at)
    elif damage == "zero":
        disk.overwrite(path, at, bytes(end - at))
    elif damage == "ones":
        disk.overwrite(path, at, b"\xff" * (end - at))
    elif damage == "flip":
        disk.flip_bit(path, at, rng.randrange(8))
    else:
        disk.overwrite(path, at, rng.randbytes(end - at))
    return disk.read(path) != before


def judge_case(name: str, path: str, at: int, damage: str, seed: int) -> str:
    """Return how it went: intact, shorter, rebuilt or refused; raise Broken if it went wrong."""
    kept = specimen(name)
    disk = kept.disk.copy()
    rng = random.Random(seed)
    if not garble(disk, path, at, damage, rng):
        return "unchanged"
    kind = kind_of(path)
    started = time.perf_counter()
    try:
        store = MessageStore.open(SYNC, disk, HandClock(kept.now_ms))
    except NAMED as error:
        require(kind == "log" or name == "clean", f"{kind} is derived, yet: {error}")
        require(os.path.basename(path)[:10] in str(error) or kind in str(error), f"{error}")
        return "refused"
    try:
        return _judge_opened(kept, store, path, at, kind)
    finally:
        store.close()
        took_ms = (time.perf_counter() - started) * 1000
        require(took_ms < HANG_MS, f"took {took_ms:.0f} ms")


def _judge_opened(kept: Specimen, store: MessageStore, path: str, at: int, kind: str) -> str:
    end = store.log.appended
    full = kept.history[-1].end
    if kind == "log":
        damaged_at = int(os.path.basename(path)) + at
        # Everything that ends before the damage is intact, and must be there.
        for item in kept.history:
            if item.end <= damaged_at:
                require(item.end <= end, f"damage at {damaged_at} cost the record before it")
    else:
        require(end == full, f"{kind} was damaged, and the log ends at {end} instead of {full}")
    survivors = tuple(item for item in kept.history if item.end <= end)
    altered = [
        item
        for item in survivors
        if store.log.read(item.physical_offset, item.size_bytes) != item.raw
    ]
    require(not altered, f"a damaged record at {[item.physical_offset for item in altered]}")
    judge = Judge(SYNC, kept.now_ms)
    judge.checks_all_keys = kind in ("index", "sums")
    judge.check_derived(store, survivors)
    result = store.put([make_message("TopicA", 0, b"after the damage")])[0]
    require(result.status is PutStatus.PUT_OK, "no message is taken after the damage")
    expected = sum(
        1
        for item in survivors
        if item.is_queued and (item.message.topic, item.message.queue_id) == ("TopicA", 0)
    )
    require(result.queue_offset == expected, f"queue offset {result.queue_offset} given twice")
    store.flush()
    judge.check_derived(
        store, (*survivors, Item.of(make_message("TopicA", 0, b"after the damage"), result))
    )
    return "intact" if end == full else "shorter"


def campaign(*, seed: int, count: int) -> tuple[Tally, dict[str, int]]:
    """Judge so many cases; how they went is counted by kind of file and outcome."""
    rng = random.Random(seed)
    tally = Tally()
    outcomes: dict[str, int] = defaultdict(int)
    for number, case in enumerate(cases(rng, count)):
        where = "garbled {} {} at={} damage={} seed={}".format(*case, number)
        try:
            how = judge_case(*case, number)
            outcomes[f"{kind_of(case[1])} {how}"] += 1
        except (AssertionError, SkylarkError) as error:
            tally.findings.append(Finding(where, f"{type(error).__name__}: {error}"))
        except Exception as error:
            # Anything that is not one of ours would have ended the broker with a traceback.
            tally.findings.append(Finding(where, f"unnamed {type(error).__name__}: {error}"))
        tally.states += 1
        if len(tally.findings) >= 20:
            break
    return tally, dict(outcomes)


__all__ = ["Broken", "GetStatus", "StoreError", "campaign", "judge_case", "specimen"]
