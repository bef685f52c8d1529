"""`skylark prove` for real: a cluster of processes, broken and judged; and that it would notice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_what_a_sync_master_promises_holds_under_kills_stops_and_partitions(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = ["prove", "--mode", "sync-master", "--seconds", "8", "--seed", "2", "--json"]
    words += ["--faults", "kill,stop,partition", "--keep", str(kept)]
    done = run(*words)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout)
    print({key: outcome[key] for key in ("figures", "tried", "how", "network", "back_ms")})
    assert outcome["anomalies"] == []
    assert outcome["problems"] == []
    assert done.returncode == 0, done.stderr
    assert outcome["not_tried"] == {}
    assert set(outcome["tried"]) == {"kill", "stop", "partition"}
    assert outcome["states"]["a process is killed"] == "held"
    assert outcome["figures"]["acknowledged"] > 100
    # The same history, after all that was acknowledged before the faults is taken away.
    history = kept / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    acked = next(line for line in lines if '"type":"ok","f":"send"' in line)
    id = json.loads(acked)["id"]
    left = [line for line in lines if f'"id":{id},' not in line or '"f":"send"' in line]
    history.write_text("".join(left))
    again = run("prove", "check", "--json", str(history))
    assert again.returncode == 1
    assert "lost" in [one["kind"] for one in json.loads(again.stdout)["anomalies"]]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skylark.cli", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
