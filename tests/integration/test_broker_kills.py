"""I01 with a whole broker: killed a hundred times under load; and that its judge would notice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from killed_broker import SAVE_INTERVAL_MS, SLACK_MS, History

PROGRAM = Path(__file__).with_name("killed_broker.py")
LONG_MS = SAVE_INTERVAL_MS + SLACK_MS


def test_nothing_acknowledged_is_lost_and_clients_recover_in_a_hundred_kills() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--cycles", "100", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    print(done.stdout)
    outcome = json.loads(done.stdout)
    assert outcome["findings"] == []
    assert done.returncode == 0
    assert outcome["cycles"] == 100
    assert outcome["early_kills"] > 10
    assert outcome["acked"] > 1_000
    assert outcome["commits"] > 100
    assert outcome["saves"] > 10


def test_the_judge_misses_no_lost_message() -> None:
    history = History(receipts=[(0, 0, b"a"), (0, 1, b"b")])
    history.judge_queues({0: [(0, b"a")]})
    assert history.findings == ["1 acknowledged messages lost, first (0, 1)"]


def test_the_judge_misses_no_message_at_another_place() -> None:
    history = History(receipts=[(0, 0, b"a"), (0, 1, b"b")])
    history.judge_queues({0: [(0, b"b"), (1, b"a")]})
    assert history.findings == ["2 acknowledged messages lost, first (0, 0)"]


def test_the_judge_misses_no_gap_and_no_double() -> None:
    history = History(receipts=[(0, 0, b"a")], sent_once={b"a"})
    history.judge_queues({0: [(0, b"a"), (2, b"a")]})
    assert history.findings == [
        "queue 0 has gaps: [0, 2]...",
        "1 messages are there twice that were sent once",
    ]


def test_the_judge_takes_what_was_never_acknowledged() -> None:
    history = History(receipts=[(0, 0, b"a")], sent_once={b"a", b"b"})
    history.judge_queues({0: [(0, b"a"), (1, b"b"), (2, b"c")]})
    assert history.findings == []


def test_the_judge_misses_no_offset_that_went_back() -> None:
    history = History()
    history.commits[0] = [(1.0, 5), (1.5, 9)]
    history.killed(1.2 + LONG_MS / 1000)
    history.judge_offset(0, 5, saved=5)
    assert history.findings == []
    history.judge_offset(0, 5, saved=6)
    assert history.findings == ["queue 0: offset 5, the file had 6"]
    history.judge_offset(0, 4, saved=4)
    assert history.findings[1] == "queue 0: offset 4, 5 was committed long before a kill"
