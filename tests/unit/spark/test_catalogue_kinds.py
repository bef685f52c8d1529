"""One directory holds one thing: an archive, a metrics table, or a change table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from skylark.errors import ConfigError
from skylark.spark import archive as archives
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry
from skylark.spark.changes import ChangeTable
from skylark.spark.metrics import Metric, read_metrics
from skylark.spark.metrics.rows import Row, added, to_table
from skylark.spark.metrics.table import MetricTable
from skylark.spark.offsets import QueueKey

NOON = 1_794_830_400_000  # 2026-11-16T12:00Z
QUEUE = QueueKey("T", "a", 0)
BATCH = "data/batch=000000000000.5f1c0a9e"
KINDS = {
    "an archive": "archive",
    "a metrics table": "metrics",
    "a change table": "changes",
}


def entry(path: str, topic: str) -> Entry:
    return Entry(0, 0, (ArchivedFile(path, topic, 1, 10),), {QUEUE: 1})


def make_archive(root: Path) -> None:
    Catalogue(root).add(entry(f"{BATCH}/topic=T/hour=2026-11-15T19/part.parquet", "T"))


def make_metrics(root: Path) -> None:
    row = Row(minute_ms=NOON, metric=Metric.MESSAGES, topic="T", count=1, sum=1)
    with MetricTable(root) as table:
        table.commit(table.number(), added(to_table([row])), [], {QUEUE: 1})


def make_changes(root: Path) -> None:
    table = ChangeTable(root, key="id", columns="id int")
    table.catalogue.replace([], Entry(0, 0, entry(f"{BATCH}/bucket=5/p.parquet", "5").files, {}))


MAKERS: dict[str, Callable[[Path], None]] = {
    "an archive": make_archive,
    "a metrics table": make_metrics,
    "a change table": make_changes,
}


def start_archive(root: Path) -> None:
    archives.archive(None, root, ["T"], namesrv="ns:1")  # type: ignore[arg-type]


def compact(root: Path) -> None:
    archives.compact(None, root)  # type: ignore[arg-type]


def query(root: Path) -> None:
    archives.table(None, root, "T", namesrv="ns:1")  # type: ignore[arg-type]


def show_metrics(root: Path) -> None:
    read_metrics(root, NOON, NOON + 1)


def apply_changes(root: Path) -> None:
    with ChangeTable(root, key="id", columns="id int").catalogue.alone(waits=True):
        pass


def read_changes(root: Path) -> None:
    ChangeTable(root, key="id", columns="id int").read(None)  # type: ignore[arg-type]


USES: list[tuple[str, Callable[[Path], object]]] = [
    ("an archive", make_archive),
    ("an archive", start_archive),
    ("an archive", compact),
    ("an archive", query),
    ("an archive", archives.status),
    ("a metrics table", make_metrics),
    ("a metrics table", show_metrics),
    ("a change table", make_changes),
    ("a change table", apply_changes),
    ("a change table", read_changes),
]


def snapshot(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "from before there were kinds"])
@pytest.mark.parametrize(
    ("there", "wanted", "use"),
    [(there, wanted, use) for there in MAKERS for wanted, use in USES if there != wanted],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_directory_that_holds_something_else_is_left_alone(
    tmp_path: Path, there: str, wanted: str, use: Callable[[Path], object], is_old: bool
) -> None:
    MAKERS[there](tmp_path)
    if is_old:
        (tmp_path / "catalogue" / "KIND").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError) as raised:
        use(tmp_path)
    text = str(raised.value)
    assert str(tmp_path) in text
    assert f"it holds {there}" in text
    assert wanted in text
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("there", MAKERS)
def test_a_catalogue_says_what_it_is_of(tmp_path: Path, there: str) -> None:
    MAKERS[there](tmp_path / "new")
    assert (tmp_path / "new/catalogue/KIND").read_text() == f"{KINDS[there]}\n"


def test_one_from_before_there_were_kinds_goes_on_and_says_it_from_then(tmp_path: Path) -> None:
    make_archive(tmp_path)
    (tmp_path / "catalogue" / "KIND").unlink()
    assert [row["topic"] for row in archives.status(tmp_path)] == ["T"]
    catalogue = Catalogue(tmp_path)
    catalogue.add(Entry(1, 1, (), {QUEUE: 2}))
    assert (tmp_path / "catalogue" / "KIND").read_text() == "archive\n"
    make_metrics(tmp_path / "metrics")
    (tmp_path / "metrics/catalogue/KIND").unlink()
    make_metrics(tmp_path / "metrics")
    assert [one.count for one in read_metrics(tmp_path / "metrics", NOON, NOON + 1)] == [2]


def test_a_kind_of_a_newer_version_is_named(tmp_path: Path) -> None:
    make_archive(tmp_path)
    (tmp_path / "catalogue" / "KIND").write_text("snapshots\n")
    with pytest.raises(ConfigError, match="it holds snapshots, and is to be an archive"):
        archives.status(tmp_path)


def test_a_kind_alone_is_no_archive_yet(tmp_path: Path) -> None:
    make_archive(tmp_path)
    (entry,) = (tmp_path / "catalogue").glob("*.json")
    entry.unlink()
    with pytest.raises(ConfigError, match="there is none"):
        archives.status(tmp_path)


def test_of_two_that_begin_at_once_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Catalogue.require_kind
    others = iter([lambda: make_changes(tmp_path)])

    def overtaken(self: Catalogue) -> None:
        looked(self)
        next(others, lambda: None)()

    catalogue = Catalogue(tmp_path)
    monkeypatch.setattr(Catalogue, "require_kind", overtaken)
    with pytest.raises(ConfigError, match="it holds a change table, and is to be an archive"):
        catalogue.add(Entry(0, 0, (), {QUEUE: 2}))
    assert (tmp_path / "catalogue/KIND").read_text() == "changes\n"
