"""Whose the checkpoint of a directory is: one table's, and no archive's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skylark.errors import ConfigError, StoreUnreadable
from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.lake_notes import LakeNote, require_no_lake


def begun(root: Path) -> Path:
    """A checkpoint with a micro-batch that has been noted as done."""
    (root / "checkpoint" / "commits").mkdir(parents=True)
    (root / "checkpoint" / "commits" / "0").touch()
    return root


@pytest.mark.parametrize(
    ("chosen", "table"), [("iceberg", None), ("delta", "prod.mq.orders"), ("iceberg", "prod.t")]
)
def test_a_checkpoint_goes_on_with_its_own_table_alone(
    tmp_path: Path, chosen: str, table: str | None
) -> None:
    root = begun(tmp_path)
    note = LakeNote("delta", None)
    note.check(root)
    note.write(root)
    note.check(root)
    with pytest.raises(
        ConfigError,
        match=r"its checkpoint belongs to the delta table below it; go on with --table-format "
        r"delta, or archive to another directory$",
    ):
        LakeNote(chosen, table).check(root)


def test_a_named_table_is_said_with_its_name(tmp_path: Path) -> None:
    note = LakeNote("iceberg", "prod.mq.orders")
    note.write(begun(tmp_path))
    note.check(tmp_path)
    with pytest.raises(ConfigError, match=r"--table-format iceberg --table prod\.mq\.orders, or"):
        LakeNote("iceberg", None).check(tmp_path)


def test_a_first_run_that_came_to_nothing_may_be_tried_with_another(tmp_path: Path) -> None:
    LakeNote("iceberg", "prod.mq.oders").write(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    other = LakeNote("iceberg", "prod.mq.orders")
    other.check(tmp_path)
    other.write(tmp_path)
    begun(tmp_path / "other")
    (tmp_path / "checkpoint" / "commits").mkdir()
    (tmp_path / "checkpoint" / "commits" / "0").touch()
    other.check(tmp_path)


def test_a_note_is_on_the_disk_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noting)
    LakeNote("delta", None).write(tmp_path)
    assert [name.partition(".")[0] for name in synced] == ["table", tmp_path.name]
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    synced.clear()
    LakeNote("delta", None).write(tmp_path)
    assert synced == [], "it is there already"


@pytest.mark.parametrize("table", [None, "prod.mq.orders"])
def test_a_parquet_archive_is_not_gone_on_with_as_a_table(
    tmp_path: Path, table: str | None
) -> None:
    (begun(tmp_path) / "catalogue").mkdir()
    with pytest.raises(
        ConfigError, match=r"a Parquet archive is there, .*; leave out --table-format .*, or"
    ):
        LakeNote("delta", table).check(tmp_path)


@pytest.mark.parametrize("table", [None, "prod.mq.orders"])
def test_a_lake_without_a_note_goes_on(tmp_path: Path, table: str | None) -> None:
    begun(tmp_path)
    (tmp_path / "tables" / "messages" / "_delta_log").mkdir(parents=True)
    LakeNote("delta", table).check(tmp_path)


def test_without_a_note_the_table_that_is_there_says_what_it_is(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "tables" / "messages" / "metadata").mkdir(parents=True)
    LakeNote("iceberg", None).check(tmp_path)
    with pytest.raises(ConfigError, match="belongs to the iceberg table below it; go on with"):
        LakeNote("delta", None).check(tmp_path)
    # Some have been written to both, and go on.
    (tmp_path / "tables" / "messages" / "_delta_log").mkdir()
    LakeNote("delta", None).check(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": "delta"}', b"\xff"])
def test_a_note_that_is_none_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(StoreUnreadable, match="is no note of a table"):
        LakeNote("delta", None).check(begun(tmp_path))
    with pytest.raises(ConfigError, match="belongs to a table"):
        require_no_lake(tmp_path)


def test_a_parquet_archive_does_not_take_the_checkpoint_of_a_table(tmp_path: Path) -> None:
    require_no_lake(tmp_path)
    require_no_lake(begun(tmp_path))  # What an archive without its catalogue lacks, it says itself.
    LakeNote("iceberg", "prod.t").write(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"belongs to a table; go on with --table-format iceberg --table prod\.t, or",
    ):
        require_no_lake(tmp_path)


def test_a_table_without_a_note_is_no_place_for_an_archive(tmp_path: Path) -> None:
    (begun(tmp_path) / "tables" / "messages" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigError, match="belongs to a table; go on with --table-format delta,"):
        require_no_lake(tmp_path)


def test_an_archive_goes_on_beside_a_table_of_a_run_that_came_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "tables" / "messages" / "_delta_log").mkdir(parents=True)
    require_no_lake(tmp_path)
    Catalogue(tmp_path).add(Entry(0, 0, (), {}))
    require_no_lake(begun(tmp_path))
