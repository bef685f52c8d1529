"""What a replay and an archive as a stream write down before anything is sent, without Spark."""

import dataclasses
import json
import os
from types import SimpleNamespace

import pytest

from skylark.errors import ConfigError, InvalidName, SkylarkError, StoreUnreadable
from skylark.spark import replay
from skylark.spark.bodies import UnreadableBody
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry
from skylark.spark.offsets import QueueKey
from skylark.spark.pipelines import Pipeline, history

CHOICE = replay.Selection("From", "To", "mq:9876", "mq:9876")


def test_the_same_words_name_the_same_replay():
    words = {"topic": "From", "tag": "A", "from": "2h"}
    name = replay.default_name("From%x", words)
    assert name == replay.default_name("From%x", dict(reversed(words.items())))
    assert name.startswith("replay-From-x-")
    assert name != replay.default_name("From%x", {**words, "tag": "B"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate": 0}, "--rate: at least one"),
        ({"from_ms": 5, "until_ms": 5}, "--from must be before --until"),
        ({"body_mode": "permissive"}, "a message without a body cannot be sent"),
        ({"body_mode": "maybe"}, "--body-mode maybe: failfast or dropmalformed"),
    ],
)
def test_choices_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        replay.Selection(**{**CHOICE.to_dict(), **change})
    with pytest.raises(InvalidName):
        replay.Selection(**{**CHOICE.to_dict(), "to": "a b"})


def test_a_choice_survives_as_json():
    assert replay.Selection(**json.loads(json.dumps(CHOICE.to_dict()))) == CHOICE


def test_a_choice_is_read_as_older_and_newer_versions_have_written_it():
    older = {name: one for name, one in CHOICE.to_dict().items() if name != "body_mode"}
    assert replay.Selection.from_dict(older) == CHOICE
    assert replay.Selection.from_dict({**CHOICE.to_dict(), "priority": 3}) == CHOICE
    for wrong in ({**older, "until_ms": "x"}, {**older, "to": None}, {"topic": "T"}, None):
        with pytest.raises((TypeError, AttributeError)):
            replay.Selection.from_dict(wrong)


def test_what_was_chosen_is_not_sent_for_another_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "_in_order", lambda folder: (3,))
    monkeypatch.setattr(replay, "_write_copies", lambda *given: given[2].mkdir())
    chosen = dataclasses.replace(CHOICE, until_ms=5)
    replay.choose(None, chosen, tmp_path)
    plan = tmp_path / "plan.json"
    kept = json.loads(plan.read_bytes())
    del kept["selection"]["body_mode"]  # As older versions have it.
    plan.write_text(json.dumps(kept))
    assert replay.choose(None, chosen, tmp_path).rows == (3,)
    for other in ({"tag": "A"}, {"until_ms": 6}, {"body_mode": "dropmalformed"}):
        with pytest.raises(ConfigError) as refused:
            replay.choose(None, dataclasses.replace(chosen, **other), tmp_path)
        assert str(refused.value) == (
            f"--checkpoint {tmp_path}: it holds the choice of another replay, From to To; name "
            "another folder"
        )
    plan.write_text("[")
    with pytest.raises(StoreUnreadable, match="is no choice of a replay"):
        replay.choose(None, chosen, tmp_path)


def test_a_body_that_cannot_be_read_is_advised_on_in_words_of_the_command():
    told = replay._as_error(UnreadableBody(QueueKey("T", "a", 0), 7, "incorrect header"))
    assert str(told) == (
        "topic T broker a queue 0 offset 7: the body cannot be read: incorrect header; "
        "--body-mode dropmalformed leaves such messages out"
    )
    other = SkylarkError("other")
    assert replay._as_error(other) is other


def test_what_was_sent_follows_from_the_micro_batches_that_spark_has_noted(tmp_path):
    chosen = replay.Chosen((10, 10, 4), CHOICE)
    assert (chosen.total, chosen.sent(0), chosen.sent(2), chosen.sent(3)) == (24, 0, 20, 24)
    assert replay.batches_done(tmp_path) == 0
    commits = tmp_path / "target" / "commits"
    commits.mkdir(parents=True)
    for name in ("0", "1", ".1.crc", "10", "metadata"):
        (commits / name).touch()
    assert replay.batches_done(tmp_path) == 11


def test_files_are_sent_in_the_order_of_their_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    sizes = {"part-00000-x-c000": 3, "part-00000-x-c001": 0, "part-00001-x-c000": 2}
    for name, rows in reversed(sizes.items()):
        parquet.write_table(pa.table({"n": list(range(rows))}), tmp_path / f"{name}.parquet")
    assert replay._in_order(tmp_path) == (3, 2)
    left = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.stem for path in left] == ["part-00000-x-c000", "part-00001-x-c000"]


def test_files_beyond_a_thousand_of_one_partition_stay_in_order(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = [
        f"part-{part:05d}-1c0-c2-c{number:03d}.snappy"
        for part, number in ((0, 100), (0, 101), (0, 999), (0, 1000), (1, 0), (100_000, 0))
    ]
    for name in reversed(names):
        parquet.write_table(pa.table({"n": [1]}), tmp_path / f"{name}.parquet")
    assert replay._in_order(tmp_path) == (1,) * len(names)
    left = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.stem for path in left] == names


def test_what_was_chosen_is_on_the_disk_before_its_plan(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(
        replay, "sync_tree", lambda folder, _: steps.append(f"files of {folder.name}")
    )
    monkeypatch.setattr(replay.os, "fsync", lambda _: steps.append("plan"))
    monkeypatch.setattr(replay, "sync", lambda path: steps.append(f"names in {path.name}"))
    monkeypatch.setattr(replay, "_in_order", lambda folder: (3,))
    monkeypatch.setattr(replay, "_write_copies", lambda *_: None)
    folder = tmp_path / "again"
    folder.mkdir()
    assert replay.choose(None, CHOICE, folder).rows == (3,)
    assert steps == ["files of chosen", "plan", "names in again"]
    assert replay.choose(None, CHOICE, folder).rows == (3,)
    assert len(steps) == 3


@pytest.mark.parametrize(
    ("rate", "trigger", "steps"), [(None, "available now", []), (50, "every 0 seconds", ["paced"])]
)
def test_a_rate_is_a_file_and_a_second(tmp_path, rate, trigger, steps):
    selection = replay.Selection(**{**CHOICE.to_dict(), "rate": rate})
    spec = replay.as_pipeline("again", selection, tmp_path)
    assert str(spec.trigger) == trigger
    assert [step.name for step in spec.steps] == steps
    assert spec.sources[0].options == {"maxFilesPerTrigger": "1"}
    (sink,) = spec.sinks
    assert sink.takes == (steps or ["chosen"])[-1]
    assert sink.options["deliveryGuarantee"] == "exactly_once"


def test_a_task_waits_its_second_before_the_first_row(monkeypatch):
    steps = []
    monkeypatch.setattr(replay, "time", SimpleNamespace(sleep=steps.append))
    steps.extend(replay._a_second_later(iter(["one", "two"])))
    assert steps == [1.0, "one", "two"]


# An archive as a stream.


def source_of(root):
    pipeline = Pipeline("p", checkpoint="c").source("past", archive=str(root), topic="T")
    return pipeline.sink("out", format="noop").spec(environment={}).sources[0]


def archived(root, number, end, *, topic="T"):
    path = f"data/batch={number:012d}/topic={topic}/hour=2026-11-15T10/part-{number}.parquet"
    full = root / path
    full.parent.mkdir(parents=True)
    full.write_bytes(b"rows")
    file = ArchivedFile(path, topic, 1, 4)
    ends = {QueueKey("T", "a", 0): end, QueueKey("U", "a", 0): 99}
    Catalogue(root).add(Entry(number, number, (file,), ends))


def test_the_archive_is_linked_once_and_the_live_log_begins_where_it_ended(tmp_path):
    root, notes = tmp_path / "lake", tmp_path / "state"
    archived(root, 0, 5)
    archived(root, 1, 8, topic="U")
    archived(root, 2, 12)
    source = source_of(root)
    ends = {QueueKey("T", "a", 0): 12}
    assert history.take_snapshot(source, notes) == ends
    linked = sorted(path.name for path in (notes / "past.history").rglob("*.parquet"))
    assert linked == ["000000000.parquet", "000000001.parquet"]
    archived(root, 3, 20)
    for path in root.rglob("*.parquet"):
        path.unlink()  # As compaction does, later.
    assert history.take_snapshot(source, notes) == ends, "what is archived later is read live"
    (file, _) = sorted((notes / "past.history").rglob("*.parquet"))
    assert file.read_bytes() == b"rows"
    assert file.parts[-3:-1] == ("topic=T", "hour=2026-11-15T10")


def test_an_archive_below_a_path_that_reads_like_one_of_its_own_is_linked(tmp_path):
    root = tmp_path / "topic=orders" / "hour=late" / "lake"
    archived(root, 0, 5)
    history.take_snapshot(source_of(root), tmp_path / "state")
    (file,) = (tmp_path / "state" / "past.history").rglob("*.parquet")
    assert file.relative_to(tmp_path / "state" / "past.history").parts == (
        "topic=T",
        "hour=2026-11-15T10",
        "000000000.parquet",
    )


def test_a_snapshot_that_was_not_finished_is_taken_anew(tmp_path):
    root, notes = tmp_path / "lake", tmp_path / "state"
    archived(root, 0, 5)
    left = notes / "past.history" / "topic=T" / "left.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    history.take_snapshot(source_of(root), notes)
    assert not left.exists()


def test_an_archive_on_another_file_system_is_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("another device")

    archived(tmp_path / "lake", 0, 5)
    monkeypatch.setattr(os, "link", refuse)
    history.take_snapshot(source_of(tmp_path / "lake"), tmp_path / "state")
    (copy,) = (tmp_path / "state").rglob("*.parquet")
    assert copy.read_bytes() == b"rows"


def test_an_archive_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="there is none; make it with"):
        history.take_snapshot(source_of(tmp_path / "nothing"), tmp_path / "state")
