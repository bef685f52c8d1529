"""The sink of logs.yaml: one Parquet file that always has the newest count of every minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where the table is."""
    return Path(__file__).parent / os.environ.get("LOG_LAKE", "lake")


def write(batch: Any, number: int) -> None:
    """Take the minutes that a micro-batch has changed; a repeated one changes nothing more."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    target = folder() / "minutes.parquet"
    known: dict[tuple[Any, str], int] = {}
    if target.exists():
        for row in parquet.read_table(target).to_pylist():
            known[row["minute"], row["level"]] = row["lines"]
    for row in batch.toArrow().to_pylist():
        known[row["minute"], row["level"]] = row["lines"]
    rows = [{"minute": m, "level": level, "lines": n} for (m, level), n in sorted(known.items())]
    if rows:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".draft")
        parquet.write_table(pa.Table.from_pylist(rows), draft)
        draft.replace(target)  # A reader finds the old one or the new one, whole.
