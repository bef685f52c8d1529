"""examples/pipeline_demo.py: topics as tables, from start to end."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

DEMO = pathlib.Path(__file__).parents[2] / "examples" / "pipeline_demo.py"


def test_the_pipeline_misses_nothing_and_counts_nothing_twice() -> None:
    done = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "3,500 orders, none missing and none twice" in done.stdout
