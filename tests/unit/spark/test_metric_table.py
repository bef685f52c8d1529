"""The metrics table without Spark: rows that add up, files, and what a reader sees."""

from __future__ import annotations

import errno
import fcntl
import math
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from skylark.admin import QueueLag
from skylark.errors import ConfigError
from skylark.spark.catalogue import ArchivedFile
from skylark.spark.metrics import Latency, Metric, histogram, read_metrics
from skylark.spark.metrics import table as tables
from skylark.spark.metrics.rows import MINUTE_MS, Row, added, to_table
from skylark.spark.metrics.sampling import lag_rows
from skylark.spark.metrics.table import PUBLISHED, WAITING, MetricTable
from skylark.spark.offsets import QueueKey

NOON = 1_794_830_400_000  # 2026-11-16T12:00Z
QUEUE = QueueKey("T", "a", 0)
HOUR = 3_600_000


def messages(minute: int, count: int, size: int = 10, topic: str = "T") -> Row:
    return Row(
        minute_ms=NOON + minute * MINUTE_MS, metric=Metric.MESSAGES, topic=topic, count=count,
        sum=count * size,
    )  # fmt: skip


def latencies(values: list[int], minute: int = 0, group: str = "g") -> list[Row]:
    return [
        Row(
            minute_ms=NOON + minute * MINUTE_MS, metric=Metric.LATENCY, topic="T", group=group,
            detail=Latency.DELIVERED, bucket=histogram.bucket_of(value), count=1, sum=value,
            max=value,
        )
        for value in values
    ]  # fmt: skip


def lag(count: int, at: int) -> Row:
    return Row(
        minute_ms=NOON, metric=Metric.LAG, topic="T", group="g", count=count, max=count * 10,
        at_ms=NOON + at,
    )  # fmt: skip


def write(table: MetricTable, *steps: list[Row]) -> None:
    with table:
        for rows in steps:
            number = table.number()
            table.commit(number, added(to_table(rows)), [], {QUEUE: number + 1})


def test_a_bucket_is_off_by_one_percent_at_most() -> None:
    for value in [1, 2, 3, 7, 50, 51, 999, 1_000, 86_400_000, 2**40]:
        estimate = histogram.value_of(histogram.bucket_of(value))
        assert abs(estimate - value) <= value * 0.01
    assert histogram.bucket_of(0) == histogram.bucket_of(-5) == histogram.ZERO_BUCKET
    assert histogram.value_of(histogram.ZERO_BUCKET) == 0


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99, 1.0])
def test_percentiles_of_added_minutes_are_those_of_all_values(fraction: float, tmp_path) -> None:
    rng = random.Random(7)
    values = [int(rng.lognormvariate(4, 2)) for _ in range(3_000)]
    counts: dict[int, int] = {}
    for value in values:
        bucket = histogram.bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    exact = sorted(values)[math.ceil(fraction * len(values)) - 1]
    assert histogram.quantile(counts, fraction) == pytest.approx(exact, rel=0.0101)
    assert histogram.quantile({}, fraction) == 0


def test_what_comes_late_is_added_to_its_minute(tmp_path) -> None:
    write(MetricTable(tmp_path), [messages(0, 5), messages(1, 2)], [messages(0, 3)])
    first, second = read_metrics(tmp_path, NOON, NOON + HOUR)
    assert (first.at_ms, first.count, first.bytes) == (NOON, 8, 80)
    assert (second.count, second.per_second) == (2, 2 / 60)


def test_of_several_samples_of_one_minute_the_last_counts(tmp_path) -> None:
    write(MetricTable(tmp_path), [lag(7, 30_000)], [lag(3, 50_000)], [lag(9, 10_000)])
    (figure,) = read_metrics(tmp_path, NOON, NOON + HOUR, metric="lag")
    assert (figure.count, figure.max_ms, figure.group) == (3, 30, "g")


def test_percentiles_maximum_and_mean_are_read_for_any_span(tmp_path) -> None:
    write(MetricTable(tmp_path), latencies(list(range(1, 51))), latencies(list(range(51, 101)), 1))
    minutes = read_metrics(tmp_path, NOON, NOON + HOUR)
    assert [figure.max_ms for figure in minutes] == [50, 100]
    (whole,) = read_metrics(tmp_path, NOON, NOON + HOUR, step_ms=HOUR)
    assert (whole.count, whole.max_ms, whole.mean_ms) == (100, 100, 50.5)
    assert whole.p50_ms == pytest.approx(50, abs=1)
    assert whole.p90_ms == pytest.approx(90, abs=1)
    assert whole.p99_ms == pytest.approx(99, abs=1)


def test_a_reader_asks_for_a_time_a_metric_a_topic_or_a_group(tmp_path) -> None:
    yesterday = -24 * 60
    rows = [messages(0, 1), messages(0, 2, topic="U"), messages(yesterday, 4), *latencies([1])]
    write(MetricTable(tmp_path), rows)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "day=2026-11-15",
        "day=2026-11-16",
    }

    def counts(since: int, until: int, **wanted: str) -> list[int]:
        return [one.count for one in read_metrics(tmp_path, since, until, **wanted)]

    assert counts(NOON, NOON + 1, topic="U") == [2]
    assert counts(NOON, NOON + 1, metric="messages") == [1, 2]
    assert counts(NOON, NOON + 1, group="g") == [1]
    assert counts(NOON - 2 * 24 * HOUR, NOON) == [4]
    assert counts(NOON + 1, NOON + HOUR) == []


def test_files_put_together_say_the_same(tmp_path) -> None:
    table = MetricTable(tmp_path)
    steps = [[messages(n // 2, n), lag(n, n), *latencies([n, n * n])] for n in range(1, 9)]
    write(table, *steps)
    before = read_metrics(tmp_path, NOON, NOON + HOUR)
    with table:
        assert table.compact(0, remembered_ms=HOUR, entries_min=9) == 0, "not worth it yet"
        assert table.compact(0, remembered_ms=HOUR, entries_min=8) == 8
        assert table.number() == 8
    assert read_metrics(tmp_path, NOON, NOON + HOUR) == before
    (entry,) = table.catalogue.entries()
    assert len(entry.files) == 1
    assert entry.ends == {QUEUE: 8}


def test_state_goes_on_until_it_is_too_old(tmp_path) -> None:
    table = MetricTable(tmp_path)

    def state(kind: str, number: int, newest: int) -> ArchivedFile:
        return ArchivedFile(f"state/{kind}/{number:012d}-{newest}/part.parquet", kind, 1, 1)

    with table:
        empty = added(to_table([]))
        table.commit(0, empty, [state(PUBLISHED, 0, NOON), state(WAITING, 0, NOON)], {})
        table.commit(1, empty, [state(PUBLISHED, 1, NOON + HOUR)], {})
        late = [state(PUBLISHED, 2, NOON + HOUR + 1), state(WAITING, 2, NOON + HOUR)]
        table.commit(2, empty, late, {})
        assert len(table.published(NOON)) == 3
        assert len(table.published(NOON + 1)) == 2
        assert len(table.waiting()) == 1
        assert table.compact(0, remembered_ms=HOUR, entries_min=2) == 3
        assert len(table.published(0)) == 2, "what is older than an hour is forgotten"
        assert "000000000002" in table.waiting()[0]


def spark_writes(root: Path, kind: str, number: int, newest: int) -> ArchivedFile:
    """State as Spark leaves it: a file, and more beside it that nobody names."""
    folder = root / "state" / kind / f"{number:012d}-{newest}"
    folder.mkdir(parents=True)
    for name in ("_SUCCESS", "._SUCCESS.crc", ".part-0.parquet.crc", "part-0.parquet"):
        (folder / name).touch()
    return ArchivedFile(str((folder / "part-0.parquet").relative_to(root)), kind, 1, 1)


def folders(root: Path) -> set[str]:
    return {str(path.relative_to(root / "state")) for path in (root / "state").glob("*/*")}


def test_nothing_is_left_of_state_that_was_swept(tmp_path) -> None:
    table = MetricTable(tmp_path)
    later_s = time.time() + 7_200  # When what was replaced today is old enough to be removed.
    with table:
        for number in range(12):
            newest = NOON + number * HOUR
            state = [spark_writes(tmp_path, kind, number, newest) for kind in (PUBLISHED, WAITING)]
            table.commit(number, added(to_table([])), state, {})
            table.compact(later_s, remembered_ms=HOUR, entries_min=3)
        assert table.compact(later_s, remembered_ms=HOUR, entries_min=2) == 2
    named = [file.path for entry in table.catalogue.entries() for file in entry.files]
    assert folders(tmp_path) == {
        str(Path(path).parent.relative_to("state")) for path in named if path.startswith("state")
    }
    assert len(folders(tmp_path)) == 3, "two with what was sent in the last hour, and what waits"


@pytest.mark.parametrize("size", [1, 4_000, 20_000])
def test_a_table_with_much_in_a_step_is_put_together_and_forgets(
    tmp_path, monkeypatch, size
) -> None:
    monkeypatch.setattr(tables, "COMPACT_BYTES", size)
    table = MetricTable(tmp_path)
    later_s = time.time() + 7_200
    steps = [[messages(n, n, topic=f"T{n}"), *latencies([n, n * n])] for n in range(1, 41)]
    with table:
        for number, rows in enumerate(steps):
            newest = NOON + number * HOUR
            state = [spark_writes(tmp_path, kind, number, newest) for kind in (PUBLISHED, WAITING)]
            table.commit(number, added(to_table(rows)), state, {QUEUE: number})
            table.compact(later_s, remembered_ms=HOUR)
        table.compact(later_s, remembered_ms=HOUR)
    found = read_metrics(tmp_path, NOON, NOON + HOUR, metric="messages")
    assert [one.count for one in found] == list(range(1, 41))
    assert table.catalogue.ends() == {QUEUE: 39}
    assert len(table.catalogue.entries()) < 20
    assert len(folders(tmp_path)) < 20, "of 80 some are left that are new"
    assert len(list((tmp_path / "data").rglob("*.parquet"))) == len(
        [
            file
            for entry in table.catalogue.entries()
            for file in entry.files
            if file.topic == "minutes"
        ]
    )


def test_state_that_is_replaced_stays_as_long_as_its_files_do(tmp_path) -> None:
    table = MetricTable(tmp_path)
    with table:
        for number in range(3):
            state = [spark_writes(tmp_path, WAITING, number, NOON)]
            table.commit(number, added(to_table([])), state, {})
        assert table.compact(time.time(), remembered_ms=HOUR, entries_min=2) == 3
    assert len(folders(tmp_path)) == 3


def test_the_state_of_a_step_at_work_is_not_swept(tmp_path) -> None:
    table = MetricTable(tmp_path)
    with table:
        for number in range(3):
            table.commit(number, added(to_table([])), [], {})
        at_work, foreign = f"{WAITING}/{3:012d}-{NOON}", f"{WAITING}/notes"
        for name in (at_work, foreign):
            (tmp_path / "state" / name / "_temporary").mkdir(parents=True)
        assert table.compact(time.time() + 7_200, remembered_ms=HOUR, entries_min=2) == 3
    assert folders(tmp_path) == {at_work, foreign}


def test_one_process_writes_a_table(tmp_path) -> None:
    with (
        MetricTable(tmp_path),
        pytest.raises(ConfigError, match="another process writes"),
        MetricTable(tmp_path),
    ):
        pass
    with MetricTable(tmp_path):
        pass


def test_a_shared_folder_without_locks_is_not_taken_for_one_in_use(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ConfigError, match="that can be locked, and here: No locks available"),
        MetricTable(tmp_path),
    ):
        pass


def test_wrong_use_is_said(tmp_path) -> None:
    with pytest.raises(ConfigError, match="make them with `skylark pipeline metrics`"):
        read_metrics(tmp_path / "none", 0, 1)
    with pytest.raises(ConfigError, match="whole minutes"):
        read_metrics(tmp_path, 0, 1, step_ms=90_000)
    write(MetricTable(tmp_path), [messages(0, 1)])
    for since_ms, until_ms, name in ((0, 10**18, "until_ms"), (-(10**30), 0, "since_ms")):
        with pytest.raises(ConfigError, match=f"^{name}=.*: milliseconds since 1970 are allowed"):
            read_metrics(tmp_path, since_ms, until_ms)


def test_lag_is_added_over_the_queues_of_a_topic() -> None:
    queues = [
        QueueLag("T", "a", 0, 10, 4, NOON - 5_000),
        QueueLag("T", "a", 1, 10, 10, NOON - 90_000),
        QueueLag("T", "b", 0, 3, 5, None),
        QueueLag("%RETRY%g", "a", 0, 1, 0, None),
    ]
    rows = {row.topic: row for row in lag_rows({"g": queues}, NOON + 1)}
    assert (rows["T"].count, rows["T"].max) == (6, 5_001)
    assert (rows["%RETRY%g"].count, rows["%RETRY%g"].max) == (1, 0)
    assert rows["T"].minute_ms == NOON
