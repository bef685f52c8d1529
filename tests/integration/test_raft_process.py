"""Three brokers in a Raft group as real processes: kills, power cuts, a deleted disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from killed_group import _first_difference

PROGRAM = Path(__file__).with_name("killed_group.py")


def test_nothing_acknowledged_is_lost_in_ten_failovers_three_power_cuts_and_a_deleted_disk() -> (
    None
):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--kills", "10", "--cuts", "3", "--disks", "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    print(done.stdout)
    outcome = json.loads(done.stdout)
    assert outcome["findings"] == []
    assert done.returncode == 0
    assert outcome["acked"] > 1_000
    assert outcome["commits"] > 50
    assert outcome["offset_answers"] > 50


def test_the_judge_finds_where_two_logs_part() -> None:
    assert _first_difference(b"abc", b"abc") is None
    assert _first_difference(b"abcd", b"abxd") == 2
    assert _first_difference(b"xbcd", b"abcd") == 0
