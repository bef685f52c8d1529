"""I20 with a whole broker: killed fifty times while it delivers; and lateness on real clocks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from killed_timers import Outcome

PROGRAM = Path(__file__).with_name("killed_timers.py")


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    print(done.stdout)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def test_none_is_lost_and_none_is_early_in_fifty_kills_during_delivery() -> None:
    outcome = run("--cycles", "50", "--seed", "1")
    assert (outcome["lost"], outcome["early"]) == (0, 0)
    assert outcome["cycles"] == 50
    assert outcome["killed_in_delivery"] > 20
    assert outcome["acked"] > 500


def test_a_thousand_deliveries_a_second_are_never_early_and_never_lost() -> None:
    """How late they are is printed; on a busy machine it cannot be promised."""
    outcome = run("--rate", "1000", "--seconds", "4")
    assert (outcome["lost"], outcome["early"], outcome["twice"]) == (0, 0, 0)
    assert outcome["acked"] > 1_000


def test_the_judge_misses_no_loss_no_early_copy_and_no_double() -> None:
    outcome = Outcome(acked={"a": 10, "b": 10, "c": 10}, found={"a": [10], "b": [9], "d": [1, 2]})
    judged = outcome.judge()
    assert (judged["lost"], judged["early"], judged["twice"]) == (1, 1, 1)
