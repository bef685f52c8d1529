"""The archive without Spark: what a micro-batch adds to it, and which topics go on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.errors import ConfigError, TransportError
from skylark.spark import archive as archives
from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.offsets import DataLoss, Offsets, QueueKey
from skylark.spark.options import Access
from skylark.spark.seam import additions

A, B, U = QueueKey("T", "a", 0), QueueKey("T", "b", 0), QueueKey("U", "a", 0)
ALL = [A, B, U]


def test_the_first_batch_begins_with_the_first_messages_also_where_many_are_long_gone() -> None:
    assert additions({}, {}, {A: 7_000, B: 0}, ALL) == {A: 7_000, B: 0}


def test_a_batch_adds_what_lies_beyond_the_archive() -> None:
    archived = {A: 10, B: 20}
    assert additions(archived, archived, {A: 10, B: 25, U: 3}, ALL) == {B: 25, U: 3}
    # Of a checkpoint that is an old copy.
    assert additions(archived, {A: 5, B: 5}, {A: 8, B: 21}, ALL) == {B: 21}
    assert additions(archived, {A: 5, B: 5}, {A: 10, B: 20}, ALL) == {}


@pytest.mark.parametrize(
    ("archived", "begins"),
    [
        pytest.param({}, {A: 11}, id="it is empty"),
        pytest.param({B: 20}, {A: 11, B: 20}, id="it has other queues"),
    ],
)
def test_a_checkpoint_that_is_further_than_its_archive_is_refused(
    archived: dict[QueueKey, int], begins: dict[QueueKey, int]
) -> None:
    with pytest.raises(DataLoss, match=r"T/a/0: the archive .* its checkpoint goes on at"):
        additions(archived, begins, {A: 30, B: 30}, ALL)


def test_a_queue_that_was_made_anew_is_not_taken_for_the_one_that_was() -> None:
    with pytest.raises(DataLoss, match="T/a/0 is archived up to 10 and ends at 4"):
        additions({A: 10, B: 5}, {A: 10, B: 5}, {A: 4, B: 6}, ALL)


def test_a_queue_that_is_gone_from_a_topic_that_is_there_is_said() -> None:
    with pytest.raises(DataLoss, match="T/a/0 is archived up to 10 and is not there any more"):
        additions({A: 10, B: 5}, {A: 10, B: 5}, {A: 10, B: 6}, [B, U])


def test_topics_that_are_gone_or_left_out_do_not_hold_up_others() -> None:
    archived = {A: 10, B: 5, U: 7}
    # Some of U was planned before it was deleted.
    assert additions(archived, {**archived, U: 8}, {A: 10, B: 6, U: 9}, [A, B]) == {B: 6}
    # It is asked for again: what was planned then, and not archived, comes now.
    assert additions(archived, {**archived, U: 8}, {A: 10, B: 6, U: 8}, ALL) == {B: 6, U: 8}
    assert additions({U: 0}, {U: 8}, {U: 9}, ALL) == {U: 9}


def entry(*queues: QueueKey) -> Entry:
    return Entry(0, 0, (), dict.fromkeys(queues, 1))


def checkpoint(root: Path, *names: str) -> None:
    for name in names:
        path = root / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_part_of_an_archive_is_not_gone_on_with(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    archives._require_both(catalogue)
    checkpoint(tmp_path, "metadata", "offsets/0")  # It died before the first entry.
    archives._require_both(catalogue)
    checkpoint(tmp_path, "commits/0")
    with pytest.raises(ConfigError, match="its folder `catalogue` is gone"):
        archives._require_both(catalogue)
    catalogue.add(entry(A))
    archives._require_both(catalogue)
    (tmp_path / "checkpoint" / "metadata").unlink()
    with pytest.raises(ConfigError, match="its folder `checkpoint` is gone"):
        archives._require_both(catalogue)


class Brokers:
    """Takes the place of Cluster: queues that are there, and brokers that are away."""

    def __init__(self, *there: QueueKey, away: Collection[QueueKey] = ()) -> None:
        self.there = there
        self.away = away
        self.committed: Offsets = {}

    def __call__(self, access: Any) -> Brokers:
        return self

    def retried(self, action: Any) -> Any:
        return action()

    def brokers(self) -> set[str]:
        return {queue.broker for queue in self.there}

    def route(self, topic: str) -> None:
        if not self.there:
            raise TransportError("ns", "no broker is registered")
        if not any(queue.topic == topic for queue in self.there):
            raise ConfigError(f"option topic: there is no topic {topic}")

    def queues(self, topics: Iterable[str], known: Collection[QueueKey] = ()) -> list[QueueKey]:
        if set(known) & set(self.away):
            raise TransportError("ns", "no broker is there now")
        found = [queue for queue in self.there if queue.topic in topics]
        if not found and not known:
            raise ConfigError(f"option topic: there is no topic {topics}")
        return found

    def min_offset(self, queue: QueueKey) -> int:
        return 3

    def max_offset(self, queue: QueueKey) -> int:
        return 9

    def first_offset(self, queue: QueueKey, known: int) -> int:
        return self.min_offset(queue)

    def commit(self, group: str, offsets: Offsets) -> None:
        self.committed.update(offsets)

    def close(self) -> None:
        """Nothing is open."""


def plan_of(*topics: str) -> Any:
    """In the place of the source."""
    options = SimpleNamespace(topics=topics, access=Access("ns:1"), group="group")
    return SimpleNamespace(options=options, between=lambda *_: [])


def go_on(brokers: Brokers, topics: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(archives, "Cluster", brokers)
    return archives._begin(Access("ns:1"), "group", {A: 10, U: 7}, topics)


def test_a_topic_that_was_deleted_is_dropped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert go_on(Brokers(A), ["T", "U"], monkeypatch) == ["T"]
        assert "topic U is gone: the archive keeps what it has" in caplog.text
        caplog.clear()
        assert go_on(Brokers(A, U), ["T"], monkeypatch) == ["T"]
        assert "topic U is left out: the archive keeps what it has" in caplog.text
        caplog.clear()
        assert go_on(Brokers(A, U), ["T", "U"], monkeypatch) == ["T", "U"]
        assert not caplog.text


def test_a_topic_that_was_at_brokers_alone_that_are_gone_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archives, "Cluster", Brokers(A))
    archived = {A: 10, B: 20, QueueKey("V", "b", 0): 7}
    with caplog.at_level(logging.WARNING):
        assert archives._begin(Access("ns:1"), "group", archived, ["T", "V"], ["b"]) == ["T"]
    assert "topic V is gone: the archive keeps what it has" in caplog.text
    with pytest.raises(ConfigError, match="there is no topic"):
        archives._begin(Access("ns:1"), "group", archived, ["T", "Typo"], ["b"])


def test_a_broker_that_is_back_is_not_passed_over_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its end may lie before what is archived of it, and only a batch without --gone would see that.
    monkeypatch.setattr(archives, "Cluster", Brokers(A, B))
    monkeypatch.setattr(archives, "_planned", lambda catalogue, number: {A: 12, B: 5})
    catalogue = Catalogue(tmp_path)
    catalogue.make()
    catalogue.add(Entry(0, 0, (), {A: 12, B: 100}))
    source = plan_of("T")
    with pytest.raises(ConfigError, match="broker b is back; archive on without --gone b"):
        archives._write_batch(None, catalogue, source, 1, ["b"])  # type: ignore[arg-type]
    ends = {A: 12, B: 100}, {A: 12, B: 5}
    monkeypatch.setattr(archives, "_planned", lambda catalogue, number: ends[number])
    with pytest.raises(DataLoss, match="T/b/0 is archived up to 100 and ends at 5"):
        archives._write_batch(None, catalogue, source, 1)  # type: ignore[arg-type]


def test_an_archive_that_retention_has_overtaken_says_what_there_is_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "Cluster", Brokers(A, B))
    monkeypatch.setattr(archives, "_planned", lambda catalogue, number: {A: 2 + number, B: 9})
    catalogue = Catalogue(tmp_path)
    catalogue.add(Entry(0, 0, (), {A: 2, B: 9}))
    with pytest.raises(DataLoss, match=r"T/a/0 2 to 3; .* begin one in another directory"):
        archives._write_batch(None, catalogue, plan_of("T"), 1)  # type: ignore[arg-type]


def test_what_spark_has_planned_is_on_the_disk_before_it_counts_as_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave a catalogue and no checkpoint, which is refused."""
    monkeypatch.setattr(archives, "Cluster", Brokers(A))
    monkeypatch.setattr(archives, "write_files", lambda *_: [])
    synced: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    root = tmp_path / "new" / "lake"
    catalogue = Catalogue(root)
    checkpoint(root, "metadata", "offsets/0")
    note = {"v": 1, "q": {"T": {"a": {"0": 9}}}}
    (root / "checkpoint" / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(note)}")
    monkeypatch.setattr(os, "fsync", noted)
    add = Catalogue.add
    before: list[Path] = []
    monkeypatch.setattr(Catalogue, "add", lambda *of: before.extend(synced) or add(*of))
    archives._write_batch(None, catalogue, plan_of("T"), 0)  # type: ignore[arg-type]
    assert catalogue.ends() == {A: 9}
    below = root / "checkpoint"
    assert {below / "offsets" / "0", below / "offsets", below / "metadata", below} <= set(before)
    assert {root, root.parent, tmp_path} <= set(before), "whoever has made them"


def test_the_group_begins_where_the_archive_is(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(A, B, QueueKey("New", "a", 0))
    go_on(brokers, ["T", "New"], monkeypatch)
    assert brokers.committed == {A: 10, B: 3, QueueKey("New", "a", 0): 3}


def test_a_topic_whose_broker_is_away_is_not_taken_for_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TransportError):
        go_on(Brokers(A, away=[U]), ["T", "U"], monkeypatch)


def test_a_topic_that_never_was_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no topic"):
        go_on(Brokers(A), ["T", "Typo"], monkeypatch)
    with pytest.raises(ConfigError, match="topic U is gone, and there is no other"):
        go_on(Brokers(A), ["U"], monkeypatch)


def test_of_brokers_that_are_away_nothing_is_known() -> None:
    brokers: Any = Brokers(A)
    assert list(archives._extents(brokers, "T")) == [A]
    assert archives._extents(brokers, "U") == {}
    brokers = Brokers()
    assert archives._extents(brokers, "T") == {}


class Session:
    """A Spark session of which only a setting is asked."""

    def __init__(self, case_sensitive: str) -> None:
        self.conf = {"spark.sql.caseSensitive": case_sensitive}


def test_topics_that_sql_cannot_tell_apart_are_refused() -> None:
    session: Any = Session("false")
    with pytest.raises(ConfigError, match="topics Case and case: SQL takes them for one name"):
        archives.sql(session, "select 1", ["Case", "Other", "case"], namesrv="ns:1")
    session = Session("true")
    assert archives._fold(session)("Case") != archives._fold(session)("case")
