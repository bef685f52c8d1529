"""The demo is what a newcomer runs first: it must show all it promises, and soon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_shows_all_it_promises_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lags = [int(text.replace(",", "")) for text in re.findall(r"lag +([\d,]+)", done.stdout)]
    assert lags[0] > 0
    assert lags == sorted(lags, reverse=True)
    assert lags[-1] == 0
    shares = re.findall(r"handled ([\d,]+) messages", done.stdout)
    assert sum(int(share.replace(",", "")) for share in shares) >= 10_000
    for promised in (
        "10,000 stored",
        "none is missing",
        "unlucky: try 2",
        "hopeless: try 3",
        "hopeless: a dead letter",
        "stopped cleanly",
    ):
        assert promised in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_fails_where_the_servers_cannot_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "SKYLARK_FLUSH_DISK_TYPE": "MAYBE", "TMPDIR": str(tmp_path)},
    )
    assert done.returncode != 0
    assert "the servers did not start" in done.stderr
    assert "Traceback" not in done.stderr
