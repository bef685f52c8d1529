"""I01, I02, I08, I17: writers killed, and machines without power, on real files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from killed_writer import FLUSH_INTERVAL_MS
from sim_power_cuts import CONFIGS, CYCLES_EACH, cut_again_and_again

PROGRAM = Path(__file__).with_name("killed_writer.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=600
    )


def outcome_of(*arguments: str) -> dict:
    done = run(*arguments)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["findings"] == []
    assert done.returncode == 0
    return outcome


def test_nothing_acknowledged_is_lost_in_a_hundred_kills():
    outcome = outcome_of("--cycles", "100", "--seed", "1", "--lanes", "8")
    assert outcome["cycles"] == 100
    assert outcome["acked"] > 5_000
    assert outcome["writers_ready"] > 50


def test_nothing_flushed_is_lost_in_two_hundred_power_cuts():
    if run("--can-cut-power").returncode == 0:
        outcome = outcome_of("--power", "--cycles", "200", "--seed", "1", "--lanes", "4")
        assert outcome["cycles"] == 200
        assert outcome["acked"] > 2_000
        # ASYNC_FLUSH loses what the flush interval allows; the rest is a busy machine's slack.
        assert outcome["loss_ms_max"] <= FLUSH_INTERVAL_MS + 2_000
        return
    cycles = 0
    for name in CONFIGS:
        for seed in range(4):
            tally = cut_again_and_again(name, seed)
            assert [str(finding) for finding in tally.findings] == []
            cycles += tally.states
    assert cycles >= 200


@pytest.mark.parametrize("name", CONFIGS)
def test_a_store_that_loses_power_again_and_again_keeps_what_it_flushed(name):
    for seed in range(5):
        tally = cut_again_and_again(name, seed)
        assert [str(finding) for finding in tally.findings] == []
        assert tally.states == CYCLES_EACH
