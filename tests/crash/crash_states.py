"""Crash-state enumeration: every prefix of a trace, everything a crash there could leave.

    all persisted, all unsynced lost, each single page lost, pages torn at three cuts, names lost in
    each directory, random subsets; and for some of them, the recovery itself cut short

States that are the same, byte for byte, and have the same promises are judged once.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from crash_judge import Judge, promises
from crash_script import History, Moment, ScriptedRun, record

from skylark.errors import SkylarkError
from skylark.store import MessageStore
from skylark.testing.files import SECTOR_BYTES, SimFiles
from skylark.testing.stores import HandClock


@dataclass
class Finding:
    """A state that was judged bad, and how to see it again."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass
class Tally:
    """What a campaign did."""

    states: int = 0  # Judged.
    same: int = 0  # Not judged again: one like it was.
    nested: int = 0  # Of those judged, crashes of a recovery.
    findings: list[Finding] = field(default_factory=list)
    slowest_ms: int = 0

    def add(self, other: Tally) -> None:
        self.states += other.states
        self.same += other.same
        self.nested += other.nested
        self.findings += other.findings
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)


def digest(disk: SimFiles) -> bytes:
    """A name for what is on a disk."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in disk.all_paths():
        hasher.update(path.encode())
        hasher.update(disk.read(path))
    return hasher.digest()


def enumerate_states(
    run: ScriptedRun, *, subsets: int = 4, seed: int = 0
) -> Iterator[tuple[int, str, Callable[[], SimFiles]]]:
    """Each state with the number of changes before the crash, and how it came about."""
    disk = SimFiles(
        page_bytes=run.files.page_bytes,
        tear_bytes=run.files.tear_bytes,
        now_ms=run.clock.now_ms,
    )
    yield 0, "nothing", disk.copy
    for number, change in enumerate(run.files.trace, 1):
        disk.apply(change)
        for how, make in disk.crash_plans(subsets=subsets, seed=seed + number):
            yield number, how, make


def sweep(
    name: str,
    *,
    seed: int,
    page_bytes: int,
    states: int,
    seeds: int = 2,
    tear_bytes: int = SECTOR_BYTES,
) -> Tally:
    """Judge so many states of one script, from several runs of it, from beginning to end."""
    total = Tally()
    while total.states < states and not total.findings:
        wanted = min(states - total.states, -(-states // seeds))
        total.add(
            campaign(name, seed=seed, page_bytes=page_bytes, wanted=wanted, tear_bytes=tear_bytes)
        )
        seed += 1
    return total


def campaign(
    name: str,
    *,
    seed: int,
    page_bytes: int = 512,
    tear_bytes: int = SECTOR_BYTES,
    wanted: int | None = None,
    nested_share: float = 0.01,
    findings_max: int = 3,
    only: tuple[int, str] | None = None,
) -> Tally:
    """Record a script, and judge what crashes make of it.

    wanted is about how many states are judged, drawn by the seed from all over the run; only names
    a single one.
    """
    run = record(name, seed=seed, page_bytes=page_bytes, tear_bytes=tear_bytes)
    judge = Judge(run.config, run.clock.now_ms())
    rng = random.Random(seed)
    tally = Tally()
    share = 1.0
    if wanted is not None:
        in_all = sum(1 for _ in enumerate_states(run, seed=seed))
        share = 1.3 * wanted / in_all  # Some turn out to be the same.
    seen: set[tuple[bytes, int]] = set()
    at = 0
    for changes, how, make in enumerate_states(run, seed=seed):
        if only is not None and (changes, how) != only:
            continue
        if only is None and rng.random() >= share:
            continue
        disk = make()
        promise, possible, at = promises(run, changes, at)
        key = (digest(disk), promise.at)
        if key in seen:
            tally.same += 1
            continue
        seen.add(key)
        where = f"{name} seed={seed} page={page_bytes} changes={changes} how={how!r}"
        nested = disk.copy() if only is not None or rng.random() < nested_share else None
        started = time.perf_counter()
        try:
            store = judge.judge(
                disk,
                promise,
                possible,
                is_power_cut=how != "all persisted",
                goes_on=only is not None or tally.states % 2 == 0,
            )
            if store is not None:
                store.close()
        except (AssertionError, SkylarkError) as error:
            tally.findings.append(Finding(where, f"{type(error).__name__}: {error}"))
        tally.states += 1
        tally.slowest_ms = max(tally.slowest_ms, int((time.perf_counter() - started) * 1000))
        if nested is not None:
            _crash_recovery(judge, nested, promise, possible, where, tally)
        if len(tally.findings) >= findings_max:
            break
    return tally


def _crash_recovery(
    judge: Judge,
    disk: SimFiles,
    promise: Moment,
    possible: tuple[History, ...],
    where: str,
    tally: Tally,
) -> None:
    """Let the recovery of a state crash after some of its changes, and judge what is left."""
    before = disk.copy()
    disk.start_recording()
    try:
        MessageStore.open(judge.config, disk, HandClock(judge.now_ms)).close()
    except (AssertionError, SkylarkError):
        return  # Found already.
    trace = list(disk.trace)
    rng = random.Random(where)
    wanted = set(rng.sample(range(1, len(trace) + 1), min(6, len(trace))))
    for number, change in enumerate(trace, 1):
        before.apply(change)
        if number not in wanted:
            continue
        for how, state in before.crash_states(subsets=2, seed=number):
            if rng.random() > 0.4:
                continue
            tally.nested += 1
            tally.states += 1
            try:
                judge.judge(state, promise, possible, goes_on=False)
            except (AssertionError, SkylarkError) as error:
                tally.findings.append(
                    Finding(
                        f"{where} recovery={number} how={how!r}",
                        f"{type(error).__name__}: {error}",
                    )
                )
                return
