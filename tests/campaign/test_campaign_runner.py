"""The runner itself: its result file, its exit status, its replays."""

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=300
    )


def test_a_campaign_leaves_a_result_file_with_its_seeds_and_counts(tmp_path):
    done = run(
        "--parts", "simpower", "flushes", "full", "--scale", "1", "--seed", "5",
        "--results", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert result["seed"] == 5
    assert result["finding_count"] == 0
    assert result["parts"]["simpower"]["power_cuts"] == 100
    assert result["parts"]["flushes"]["flush_errors"] == 20
    assert set(result["machine"]) == {
        "cpus", "memory_gib", "kernel", "system", "python", "compiled",
    }  # fmt: skip


_PLAYED = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
import run

def played(seed):
    time.sleep(0.06)
    return {"findings": []}

run.PARTS.update(dict.fromkeys(run.PARTS, played))
sys.exit(run.main())
"""


def test_parts_that_end_by_themselves_are_done_whole_and_the_others_share_what_is_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _PLAYED, str(RUN.parent), "--minutes", "0.05", "--scale", "1000",
         "--results", str(tmp_path)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.iterdir()
    units = {name: part["units"] for name, part in json.loads(path.read_text())["parts"].items()}
    assert (units.pop("spark"), units.pop("planted")) == (10, 1)
    assert len(units) == 14
    assert 0 < min(units.values()) <= max(units.values()) < 20


def test_a_state_can_be_judged_again_by_its_name():
    done = run("--replay", "steady seed=1 page=512 changes=40 how='all unsynced lost'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 findings" in done.stdout


def test_a_garbled_file_can_be_judged_again_by_its_name():
    where = "garbled clean /store/commitlog/00000000000000012288 at=700 damage=flip seed=3"
    done = run("--replay", where)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_that_means_nothing_is_wrong_use():
    assert run("--replay", "something else").returncode == 2
