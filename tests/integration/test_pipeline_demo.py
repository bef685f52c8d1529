"""examples/pipeline_demo.py: topics as tables, from start to end."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

DEMO = pathlib.Path(__file__).parents[2] / "examples" / "pipeline_demo.py"


def test_the_pipeline_misses_nothing_and_counts_nothing_twice(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr[-4_000:]
    counts = [
        int(one.replace(",", "")) for one in re.findall(r"([\d,]+) orders counted", done.stdout)
    ]
    assert len(counts) > 3, "the table grows while the shop sells"
    assert counts == sorted(counts)
    assert done.stdout.count("none is missing, none is there twice") == 2
    by_city = [
        int(one.replace(",", "")) for one in re.findall(r"([\d,]+) orders from", done.stdout)
    ]
    assert (sum(by_city[:4]), sum(by_city[4:])) == (counts[-1], counts[-1] + 500)
    assert f"{counts[-1]:,} orders are in the archive" in done.stdout
    assert list(tmp_path.glob("skylark-demo-*")) == []


def test_the_demo_says_when_a_result_is_wrong() -> None:
    demo = runpy.run_path(str(DEMO))
    shop = demo["Shop"]("127.0.0.1:1")
    frame = _Frame([(city, 0, 0) for city in demo["CITIES"]])
    demo["require_same"](frame, shop)
    shop.cents["Lima"] += 1
    with pytest.raises(demo["Failed"], match=r"\('Lima', 0, 1\)"):
        demo["require_same"](frame, shop)


class _Frame:
    """As much of a DataFrame as the demo asks of a result."""

    def __init__(self, rows: list[tuple[str, int, int]]) -> None:
        self._rows = rows

    def select(self, *names: str) -> _Frame:
        return self

    def orderBy(self, name: str) -> _Frame:
        return self

    def collect(self) -> list[tuple[str, int, int]]:
        return self._rows
