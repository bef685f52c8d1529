"""Pipelines as processes: killed in the middle, and taken up again with the command for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_world import SETTINGS, Cluster

from skylark.model.message import Message
from skylark.spark import replay
from skylark.spark.pipelines import RunDirectory

LIMIT_S = 240.0  # For what takes ten seconds, on a machine that is busy.
_JAVA_OPTIONS = f"spark.driver.extraJavaOptions={SETTINGS['spark.driver.extraJavaOptions']}"

Command = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """States of this test alone."""
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    return RunDirectory.default()


@pytest.fixture
def command(cluster: Cluster, directory: RunDirectory) -> Iterator[Command]:
    """Start a command of ours as a process."""
    started = []

    def start(*words: str, **environment: object) -> subprocess.Popen[str]:
        texts = {name: str(value) for name, value in environment.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "skylark.cli", "pipeline", *words],
            env={**os.environ, "NAMESRV_ADDR": cluster.address, **texts},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said to a person."""
    _, said = process.communicate(timeout=LIMIT_S)
    return process.returncode, said


def kill_after_batch(
    number: int, name: str, process: subprocess.Popen[str], directory: RunDirectory
) -> None:
    """As kill -9 does, once a run is so far as every terminal sees it."""
    deadline = time.monotonic() + LIMIT_S
    while _batch_of(directory, name) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it does not get so far"
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert directory.read(name).status == "died"


def _batch_of(directory: RunDirectory, name: str) -> int:
    if name not in directory.names():
        return -1
    batches = [sink.batch for sink in directory.read(name).sinks.values()]
    return max((batch for batch in batches if batch is not None), default=-1)


def messages(cluster: Cluster, topic: str, count: int) -> Counter[tuple[str, str | None, str]]:
    """All of a topic, which has to have so many: body, tag and keys."""
    described = json.loads(cluster.cli("topic", "describe", topic, "--json"))
    assert described["messages"] == count
    found = cluster.consume(topic, count, f"readers-of-{topic}")
    return Counter((one.body.decode(), one.tag, " ".join(one.keys)) for one in found)


KILLED = """\
name: killed
checkpoint: ${FOLDER}/state
trigger: 0 seconds
sources: {rows: {topic: KilledRows, startingOffsets: earliest, maxMessagesPerTrigger: "${STEP}"}}
steps: {texts: select cast(body as string) as body from rows}
sinks: {out: {topic: KilledOut}}
"""


def test_a_run_that_is_killed_goes_on_with_nothing_missing_and_nothing_doubled(
    cluster: Cluster, tmp_path: Path, directory: RunDirectory, command: Command
) -> None:
    cluster.send(Message("KilledRows", b"%d" % n) for n in range(600))
    file = tmp_path / "killed.yaml"
    file.write_text(KILLED)
    words = ("run", str(file), "--once", "--conf", _JAVA_OPTIONS)
    process = command(*words, FOLDER=tmp_path, STEP=4)
    deadline = time.monotonic() + LIMIT_S
    while "killed" not in directory.names() or not directory.is_running("killed"):
        assert time.monotonic() < deadline, "it does not start"
        time.sleep(0.05)
    code, said = end_of(command(*words, FOLDER=tmp_path, STEP=4))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"in use by process {process.pid} on " in said
    kill_after_batch(2, "killed", process, directory)
    code, said = end_of(command("resume", "killed", FOLDER=tmp_path, STEP=600))
    assert code == 0, said
    assert "killed: done, " in said
    assert messages(cluster, "KilledOut", 600) == Counter((str(n), None, "") for n in range(600))


def test_a_replay_that_is_killed_goes_on_with_nothing_missing_and_nothing_doubled(
    cluster: Cluster, tmp_path: Path, directory: RunDirectory, command: Command
) -> None:
    cluster.send(
        Message("ReplayFrom", b"%d" % n, tag="AB"[n % 2], keys=[f"k{n}"]) for n in range(200)
    )
    words = ("replay", "ReplayFrom", "--to", "ReplayTo", "--tag", "A", "--yes", "--rate", "15")
    process = command(*words, "--name", "again", "--conf", _JAVA_OPTIONS)
    kill_after_batch(0, "again", process, directory)  # Six more are to come, a second each.
    assert directory.read("again").rows_total == 100
    code, said = end_of(command("resume", "again"))
    assert code == 0, said
    assert "again: 100 messages are in ReplayTo, each once" in said
    assert messages(cluster, "ReplayTo", 100) == Counter(
        (str(n), "A", f"k{n}") for n in range(0, 200, 2)
    )
    # The rate: files of so many rows, and a micro-batch for each, of which the kill has added none.
    # That each of them comes a second after the one before is asked in test_pipelines.py, where
    # no clock of a broker has a say.
    folder = Path(directory.read("again").checkpoint)
    files = json.loads((folder / "plan.json").read_bytes())["rows"]
    assert (max(files), sum(files)) == (15, 100)
    assert replay.batches_done(folder) == len(files)
    code, said = end_of(command("resume", "again"))
    assert (code, said.count("\n")) == (2, 1), said
    assert "is done" in said
