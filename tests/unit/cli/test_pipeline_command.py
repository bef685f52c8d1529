"""`skylark pipeline`: what it says before Spark is started, and how it shows what runs."""

import io
import json

import pytest

from skylark.cli import exits
from skylark.cli.main import main
from skylark.cli.pipeline_progress import Reporter, fraction, line, rows_of
from skylark.cli.pipeline_runs import Flags
from skylark.errors import ConfigError
from skylark.spark.pipelines import RunDirectory, RunState
from skylark.spark.pipelines.state import SinkState

FILE = """\
name: orders
checkpoint: state
sources: {orders: {topic: T}}
sinks: {out: {format: console}}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    directory = RunDirectory.default()
    directory.root.mkdir()
    return directory


def said(capsys, *words):
    code = main(["pipeline", *map(str, words)])
    caught = capsys.readouterr()
    return code, caught.err.strip()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "nothing.yaml"), "nothing.yaml: there is no such file"),
        (("validate", "a.txt"), "a.txt: a pipeline file ends with .yaml, .yml or .py"),
        (("stop", "p"), "pipeline p has not been run here; those that have: none yet"),
        (("resume", "p"), "pipeline p has not been run here; those that have: none yet"),
        (("status", "p"), "pipeline p has not been run here; those that have: none yet"),
        (("replay", "T", "--to", "T", "--yes"), "a topic is not replayed into itself"),
        (("replay", "T", "--to", "U", "--from", "soon"), "--from: time 'soon' is not understood"),
        (("replay", "T", "--to", "U", "--from", "1m", "--until", "1h"), "--from must be before"),
        (("replay", "T", "--to", "U", "--conf", "x"), "--conf 'x': KEY=VALUE is needed"),
        (("replay", "T U", "--to", "V"), "topic name 'T U' contains ' '"),
        (("replay", "T", "--to", "U", "--rate", "0"), "--rate"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2_or_1(capsys, words, expected):
    code, line = said(capsys, *words)
    assert expected in line
    assert "\n" not in line
    assert code == (exits.FAILED if "topic name" in line else exits.WRONG_USE)


def test_a_run_of_a_file_that_is_wrong_names_the_line(capsys, tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(FILE.replace("sinks", "sink"))
    code, line = said(capsys, "run", file)
    assert code == exits.WRONG_USE
    assert line == "skylark: orders.yaml:4: sink: this key is not known; did you mean sinks?"


def test_a_run_beside_another_is_refused_before_spark_starts(capsys, tmp_path, directory):
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    lock = directory.lock("orders")
    code, line = said(capsys, "run", file)
    lock.release()
    assert code == exits.WRONG_USE
    assert "pipeline orders is in use by process" in line


def test_only_what_ran_from_a_file_with_the_same_checkpoint_is_resumed(capsys, tmp_path, directory):
    directory.write(RunState("orders", status="stopped", checkpoint=str(tmp_path / "old")))
    assert "was run by a program" in said(capsys, "resume", "orders")[1]
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    state = RunState("orders", status="stopped", file=str(file), checkpoint=str(tmp_path / "old"))
    directory.write(state)
    code, line = said(capsys, "resume", "orders")
    assert code == exits.WRONG_USE
    assert f"has the checkpoint {tmp_path / 'state'} now" in line
    state.checkpoint = str(tmp_path / "state")
    directory.write(state)
    file.write_text(FILE.replace("orders\n", "others\n", 1))
    assert "is the pipeline others now" in said(capsys, "resume", "orders")[1]
    lock = directory.lock("orders")
    assert "runs already" in said(capsys, "resume", "orders")[1]
    lock.release()


def test_what_does_not_run_is_not_stopped(capsys, directory):
    directory.write(RunState("orders", status="done"))
    assert said(capsys, "stop", "orders")[1] == (
        "skylark: pipeline orders does not run: it is done"
    )


def test_a_replay_that_is_done_is_not_done_again(capsys, directory):
    directory.write(RunState("again", kind="replay", status="done"))
    code, line = said(capsys, "replay", "T", "--to", "U", "--yes", "--name", "again")
    assert code == exits.WRONG_USE
    assert "is done already" in line
    assert "nothing to go on with" in said(capsys, "resume", "again")[1]


def test_status_shows_every_sink(capsys, directory):
    sinks = {"out": SinkState("skylark", rows=5, batch=2, lag=3), "files": SinkState("parquet")}
    directory.write(RunState("orders", status="done", sinks=sinks))
    directory.write(RunState("broken", status="failed", error="a.yaml:3: no"))
    assert main(["pipeline", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [text.split()[:3] for text in lines[1:]] == [
        ["broken", "failed", "-"], ["orders", "done", "out"], ["orders", "done", "files"]
    ]  # fmt: skip
    assert main(["pipeline", "status", "orders", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sinks"]["out"]["lag"] == 3
    assert main(["pipeline", "status", "--watch"]) == 0, "all have ended"


def test_how_much_is_done_is_known_by_the_lag_or_the_total():
    state = RunState("p", status="running")
    assert fraction(state, SinkState(rows=5)) is None
    assert fraction(state, SinkState(rows=5, lag=15)) == 0.25
    assert fraction(state, SinkState(rows=0, lag=0)) == 1.0
    half = RunState("p", rows_total=100, rows_before=40)
    assert fraction(half, SinkState(rows=10)) == 0.5
    text = line(state, "out", SinkState(rows=5, lag=15, batch=1, batch_ms=1500), bar=True)
    assert "[######..................]  25%  5 rows in, 15 left" in text
    assert rows_of(state) == [{"pipeline": "p", "status": "running", "error": None}]


def test_a_pipe_gets_a_line_now_and_then_and_the_last_one():
    stream = io.StringIO()
    reporter = Reporter(stream)
    state = RunState("p", status="running", sinks={"out": SinkState(rows=1)})
    for _ in range(3):
        reporter(state)
    state.status = "done"
    reporter(state)
    first, last = stream.getvalue().splitlines()
    assert first.endswith("no micro-batch yet")
    assert last.split()[:2] == ["p/out", "done"]


def test_flags_go_to_spark_as_they_are():
    flags = Flags(conf=["a.b=c=d"], packages="g:a:1", jars="x.jar", py_files="y.py")
    assert flags.settings() == {
        "spark.jars.packages": "g:a:1",
        "spark.jars": "x.jar",
        "spark.submit.pyFiles": "y.py",
        "a.b": "c=d",
    }
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        Flags(conf=["=x"]).settings()
