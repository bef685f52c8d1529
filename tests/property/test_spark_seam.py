"""Archive and live log as one table: the real planner and catalogue, at thousands of moments.

Producers send, the archive takes batches, compaction puts them together and retention deletes what
is archived: any of it between any two things that a query looks at.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from skylark.spark import catalogue as catalogues
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry
from skylark.spark.offsets import DataLoss, QueueKey, Range
from skylark.spark.seam import Extent, Gap, cut, plan

QUEUES = [QueueKey("T", broker, number) for broker in ("a", "b") for number in (0, 1)]


class World:
    """A topic and its archive; both move on by chance whenever somebody looks."""

    def __init__(self, root: Path, seed: int) -> None:
        self.catalogue = Catalogue(root)
        self.rng = random.Random(seed)
        self.live: dict[QueueKey, Extent] = {QUEUES[0]: Extent(0, 0)}
        self.files: dict[str, list[Range]] = {}
        self.is_moving = False

    def moves(self, steps_max: int = 3) -> None:
        """What others do meanwhile."""
        if self.is_moving:  # Whoever moves also looks.
            return
        self.is_moving = True
        for _ in range(self.rng.randrange(steps_max + 1)):
            self.rng.choice(
                (self.send, self.send, self.archive, self.compact, self.compact, self.delete)
            )()
        self.is_moving = False

    def send(self) -> None:
        queue = self.rng.choice(QUEUES)
        first, end = self.live.get(queue, Extent(0, 0))
        self.live[queue] = Extent(first, end + self.rng.randrange(1, 30))

    def archive(self) -> None:
        entries = self.catalogue.entries()
        there = dict(entries[-1].ends) if entries else {}
        number = entries[-1].last + 1 if entries else 0
        batch = [
            Range(queue, there.get(queue, 0), self.rng.randint(there.get(queue, 0), extent.end))
            for queue, extent in self.live.items()
        ]
        self._add(
            [], Entry(number, number, (), {**there, **{r.queue: r.end for r in batch}}), batch
        )

    def compact(self) -> None:
        entries = self.catalogue.entries()
        first = self.rng.randrange(len(entries) + 1)
        group = entries[first : first + self.rng.randrange(2, 9)]
        if len(group) > 1:
            ranges = [r for entry in group for file in entry.files for r in self.files[file.path]]
            new = Entry(group[0].first, group[-1].last, (), group[-1].ends)
            self._add(group, new, ranges)

    def _add(self, old: list[Entry], entry: Entry, ranges: list[Range]) -> None:
        path = f"data/batch={entry.name}/part"
        self.files[path] = [one for one in ranges if one.count]
        file = ArchivedFile(path, "T", sum(one.count for one in ranges), 1)
        whole = Entry(entry.first, entry.last, (file,), entry.ends)
        if old:
            self.catalogue.replace(old, whole)
        else:
            self.catalogue.add(whole)

    def delete(self) -> None:
        """Retention goes up to where the archive is."""
        for queue, end in self.catalogue.ends().items():
            first, last = self.live[queue]
            self.live[queue] = Extent(self.rng.randint(first, end), last)

    # What a query looks at.

    def look(self) -> tuple[list[Entry], dict[QueueKey, int]]:
        entries = self.catalogue.entries()
        self.moves(5)
        return entries, dict(entries[-1].ends) if entries else {}

    def extents(self) -> dict[QueueKey, Extent]:
        found = {}
        for queue in sorted(self.live):
            self.moves()
            found[queue] = self.live[queue]
        return found


@pytest.mark.parametrize("seed", range(8))
def test_at_any_moment_every_offset_is_there_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed)
    real = catalogues.read_entry

    def read_entry(path: Path) -> Entry:
        if world.rng.random() < 0.05:
            world.moves()
        return real(path)

    monkeypatch.setattr(catalogues, "read_entry", read_entry)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for _ in range(250):
        world.moves(5)
        before = dict(world.live)
        entries, live = plan(world.look, world.extents)
        archived = [r for entry in entries for file in entry.files for r in world.files[file.path]]
        for queue, extent in before.items():
            parts = sorted(
                (one.start, one.end)
                for one in [*archived, *live]
                if one.queue == queue and one.count
            )
            at = 0
            for start, end in parts:
                assert start == at, f"{queue}: {parts}"
                at = end
            assert extent.end <= at <= world.live[queue].end
    assert len(world.files) > 50, "the archive moved"
    assert all(extent.first > 0 for extent in world.live.values()), "retention followed"


def test_what_is_nowhere_is_said_and_not_passed_over() -> None:
    archived = {QUEUES[0]: 10}
    said = r"10 to 12 are neither .* --no-live.* live=False\), reads what is archived"
    with pytest.raises(Gap, match=said):
        plan(lambda: (None, archived), lambda: {QUEUES[0]: Extent(12, 20)})


def test_an_archive_of_another_topic_of_that_name_is_said() -> None:
    with pytest.raises(DataLoss, match="another topic of that name"):
        cut({QUEUES[0]: 10}, {QUEUES[0]: Extent(0, 9)})


def test_a_queue_that_is_not_archived_yet_is_read_from_its_first_message() -> None:
    assert cut({}, {QUEUES[0]: Extent(7, 9)}) == [Range(QUEUES[0], 7, 9)]


def test_an_archive_that_always_runs_ahead_ends_with_a_word() -> None:
    at = iter(range(10_000))

    def look() -> tuple[None, dict[QueueKey, int]]:
        return None, {QUEUES[0]: next(at)}

    with pytest.raises(DataLoss, match="faster than it can be read"):
        plan(look, lambda: {QUEUES[0]: Extent(20_000, 30_000)})
