"""`skylark pipeline`: what it says before Spark is started, and how it shows what runs."""

import io
import json
import os
import re
import signal
import socket
from contextlib import nullcontext
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from skylark.cli import exits, pipeline, pipeline_runs, pipeline_spark
from skylark.cli.main import main
from skylark.cli.pipeline_flags import Flags
from skylark.cli.pipeline_progress import Reporter, errors_of, fraction, line, rows_of
from skylark.errors import ConfigError, SkylarkError, StoreUnreadable, TransportError
from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.pipelines import Run, RunDirectory, RunState
from skylark.spark.pipelines.state import SinkState

COMMANDS = pipeline.app.registered_commands
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
        (("replay", "T", "--to", "U", "--jars", "no.jar"), "--jars no.jar: there is no such file"),
        (("archive", "a b", "--archive", "lake"), "topic name 'a b' contains ' '"),
        (("archive", " , ", "--archive", "lake"), "name at least one topic"),
        (("archive", "T", "--archive", "lake", "--every", "soon"), "--every 'soon': an interval"),
        (("archive", "T", "--archive", "lake", "--table", "t"), "--table goes with --table-format"),
        (("sql", "select 1", "--conf", "x"), "--conf 'x': KEY=VALUE is needed"),
        (("sql", "select 1", "--py-files", "no.py"), "--py-files no.py: there is no such file"),
        (("compact", "--archive", "none", "--packages", "g:a:1"), "there is none; make it with"),
        (("mirror", "T", "--to", "127.0.0.1:1", "--checkpoint", "c"), "cannot be copied to itself"),
        (("sql", "select 1", "-t", "a b"), "topic name 'a b' contains ' '"),
        (("sql", "select 1", "--archive", "none"), "there is none; make it with"),
        (("sql", "select 1", "--no-live"), "--no-live reads an archive alone; name it with"),
        (("metrics", "--table", "t", "--from", "middle"), "--from='middle': earliest, latest or"),
        (("metrics", "--table", "t", "--topics", "("), "--topics='(': missing )"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(capsys, words, expected):
    code, line = said(capsys, *words)
    assert expected in line
    assert "\n" not in line
    assert code == exits.WRONG_USE


@pytest.mark.parametrize(
    "words",
    [
        ("sql", "select * from T"),
        ("archive", "T", "--archive", "{dir}/lake"),
        ("mirror", "T", "--as", "U", "--to", "127.0.0.1:2", "--checkpoint", "{dir}/c"),
        ("replay", "T", "--to", "U", "--yes"),
        ("metrics", "--table", "{dir}/t"),
        ("run", "{dir}/orders.yaml"),
        ("validate", "{dir}/orders.yaml"),
    ],
)
def test_servers_that_do_not_answer_are_exit_3_before_spark_starts(
    capsys, tmp_path, monkeypatch, words
):
    monkeypatch.setattr(pipeline_spark, "_CHECK_RETRY_MS", 50)
    monkeypatch.setattr(pipeline_spark, "_started", None)
    (tmp_path / "orders.yaml").write_text(FILE)
    code, line = said(capsys, *(word.format(dir=tmp_path) for word in words))
    assert code == exits.NOT_REACHABLE
    assert "127.0.0.1:1: " in line
    assert "\n" not in line


@pytest.mark.parametrize("command", ["", *(one.callback.__name__ for one in COMMANDS)])
def test_help_says_what_a_flag_takes_in_words_of_its_own(capsys, command):
    assert main(["pipeline", *filter(None, [command]), "--help"]) == 0
    out = capsys.readouterr().out
    flags = [line for line in out.splitlines() if line.lstrip().startswith("-")]
    assert flags
    assert not [line for line in flags if "<" in line], "a kind of Python's"
    assert "..." not in out.partition("Options:")[2], "the first sentence of each is shown whole"


class _NoServers:
    """Servers that have every topic, as far as commands ask before Spark starts."""

    def brokers(self):
        return {}

    def queues(self, topics):
        return []

    def writable_queues(self, topic):
        return []


@pytest.mark.parametrize(
    "words",
    [
        ("run", "{dir}/rates.yaml"),
        ("validate", "{dir}/rates.yaml"),
        ("sql", "select 1"),
        ("replay", "T", "--to", "U", "--yes"),
        ("archive", "T", "--archive", "{dir}/new"),
        ("compact", "--archive", "{dir}/lake"),
        ("mirror", "T", "--as", "U", "--to", "127.0.0.1:1", "--checkpoint", "{dir}/c"),
        ("metrics", "--table", "{dir}/t"),
    ],
)
def test_every_command_that_runs_spark_hands_all_its_flags_to_it(
    capsys, tmp_path, monkeypatch, words
):
    (tmp_path / "rates.yaml").write_text(FILE.replace("topic: T", "format: rate, stream: true"))
    Catalogue(tmp_path / "lake").add(Entry(0, 0, (), {}))
    for name in ("x.jar", "y.py"):
        (tmp_path / name).touch()
    started = []

    def start(name, flags, settings, *, verbose):
        started.append((flags.master, settings, verbose))
        raise ConfigError("seen enough")

    monkeypatch.setattr(pipeline_spark, "_started", start)
    monkeypatch.setattr(pipeline_spark, "cluster_of", lambda _: nullcontext(_NoServers()))
    flags = ("--master", "local[1]", "--conf", "a.b=c", "--conf", "d.e=f", "--packages", "g:a:1",
             "--jars", "{dir}/x.jar", "--py-files", "{dir}/y.py", "--verbose")  # fmt: skip
    code, line = said(capsys, *(word.format(dir=tmp_path) for word in (*words, *flags)))
    assert (code, line.splitlines()[-1]) == (exits.WRONG_USE, "skylark: seen enough")
    settings = {
        "spark.jars.packages": "g:a:1",
        "spark.jars": f"{tmp_path}/x.jar",
        "spark.submit.pyFiles": f"{tmp_path}/y.py",
        "a.b": "c",
        "d.e": "f",
    }
    assert started == [("local[1]", settings, True)]


def test_a_file_where_a_folder_should_be_is_said_so(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--archive .*: a folder is needed, and there is a file"):
        pipeline_spark.make_folder("--archive", tmp_path / "file")
    with pytest.raises(ConfigError, match="a folder is needed, and there is a file"):
        pipeline_spark.make_folder("--archive", tmp_path / "file" / "deeper")
    pipeline_spark.make_folder("--checkpoint", "s3a://bucket/folder")
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "file"))
    (tmp_path / "orders.yaml").write_text(FILE)
    code, line = said(capsys, "run", tmp_path / "orders.yaml")
    assert code == exits.WRONG_USE
    assert "there is a file already" in line


def test_the_flag_goes_before_the_name_server_of_the_file(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(
        FILE.replace("}}", "}, own: {topic: U, namesrv: 'h:3'}}", 1).replace(
            "format: console", "from: orders, format: console"
        )
        + "namesrv: 127.0.0.1:7\n"
    )
    spec = pipeline_runs._loaded(file, "127.0.0.1:8")
    assert spec.namesrv == "127.0.0.1:8"
    assert [one.options["namesrv"] for one in spec.sources] == ["127.0.0.1:8", "h:3"]
    assert pipeline_runs._loaded(file, None).sources[0].options["namesrv"] == "127.0.0.1:7"
    file.write_text(file.read_text().replace("h:3", "127.0.0.1:7"))
    spec = pipeline_runs._loaded(file, "127.0.0.1:8")
    moved = [one.options["namesrv"] for one in spec.sources]
    assert moved == ["127.0.0.1:8", "127.0.0.1:7"], "also one that says the same as its file"


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


def test_what_runs_is_advised_on_by_its_kind(capsys, directory):
    directory.write(RunState("notebook", kind="session", status="running"))
    lock = directory.lock("notebook")
    code, line = said(capsys, "stop", "notebook")
    lock.release()
    assert code == exits.WRONG_USE
    assert "is a session of another program" in line
    directory.write(RunState("metrics", kind="metrics", status="stopped"))
    assert "go on with the same command" in said(capsys, "resume", "metrics")[1]
    assert RunState("m", kind="metrics").way_on == "the same command"
    assert RunState("p", file="p.yaml").way_on == "skylark pipeline resume p"
    assert RunState("p").way_on == "its own program"
    assert RunState("r", kind="replay").way_on == "skylark pipeline resume r"


def test_a_replay_does_not_take_the_name_of_a_pipeline(capsys, directory):
    directory.write(RunState("fmt", status="failed"))
    code, line = said(capsys, "replay", "T", "--to", "U", "--yes", "--name", "fmt")
    assert code == exits.WRONG_USE
    assert line == "skylark: --name fmt: a pipeline is called so; choose another name"


def test_metrics_do_not_take_the_name_of_a_replay_that_has_not_ended(capsys, tmp_path, directory):
    replay = RunState("again", kind="replay", status="stopped", flags={"selection": {"topic": "T"}})
    directory.write(replay)
    code, line = said(capsys, "metrics", "--table", tmp_path / "t", "--name", "again")
    assert code == exits.WRONG_USE
    assert line == (
        "skylark: name again: a replay is called so and has not ended; choose another name, or go "
        "on with it: skylark pipeline resume again"
    )
    assert directory.read("again") == replay


def test_metrics_that_are_told_wrong_leave_no_state(capsys, tmp_path, directory):
    said(capsys, "metrics", "--table", tmp_path / "t", "--from", "middle")
    assert directory.names() == []


def test_flags_of_a_newer_version_do_not_keep_a_run_from_going_on(capsys, tmp_path, directory):
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    flags = {"once": True, "sparkle": 1}
    directory.write(RunState("orders", status="stopped", file=str(file), flags=flags))
    assert f"has the checkpoint {tmp_path / 'state'} now" in said(capsys, "resume", "orders")[1]
    assert Flags.kept({"master": "local[1]", "once": True, "x": 1}) == Flags("local[1]", once=True)
    flags = {"jars": 5}
    directory.write(RunState("orders", status="stopped", file=str(file), flags=flags))
    code, line = said(capsys, "resume", "orders")
    assert code == exits.WRONG_USE
    assert line == "skylark: pipeline orders: its flag jars is damaged; run its file anew"


def test_validating_does_not_empty_the_log_of_a_run(capsys, tmp_path, monkeypatch):
    (tmp_path / "orders.yaml").write_text(FILE)
    names = []

    def start(name, flags, settings, *, verbose):
        names.append(name)
        raise ConfigError("seen enough")

    monkeypatch.setattr(pipeline_spark, "_started", start)
    said(capsys, "validate", tmp_path / "orders.yaml", "--offline")
    assert names == ["validate"]


def test_status_is_shown_where_only_half_of_an_account_is_known(capsys, directory, monkeypatch):
    monkeypatch.setenv("SKYLARK_ACCESS_KEY", "me")
    monkeypatch.delenv("SKYLARK_SECRET_KEY", raising=False)
    sinks = {"out": SinkState("noop", "orders", "127.0.0.1:1", ["T"], lag=7)}
    directory.write(RunState("orders", status="done", sinks=sinks))
    assert main(["pipeline", "status", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sinks"]["out"]["lag"] == 7, "what was noted last"


def test_stray_files_and_damaged_flags_do_not_hide_the_others(capsys, directory):
    directory.write(RunState("orders", status="done"))
    (directory.root / "orders (copy).json").write_text("{}")
    assert main(["pipeline", "status"]) == 0
    directory.path("bad", "json").write_text('{"name": "bad", "status": "done", "flags": null}')
    assert main(["pipeline", "status", "--json"]) == exits.WRONG_USE
    out, err = capsys.readouterr()
    assert "orders" in out
    assert "bad.json: is no state of a pipeline: flags" in err


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
    assert [text.split()[:3] for text in lines[1:4]] == [
        ["broken", "failed", "-"], ["orders", "done", "out"], ["orders", "done", "files"]
    ]  # fmt: skip
    assert lines[4:] == ["broken: a.yaml:3: no"]
    assert main(["pipeline", "status", "orders", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sinks"]["out"]["lag"] == 3
    capsys.readouterr()
    assert main(["pipeline", "status", "--watch"]) == 0, "all have ended"
    assert "broken: a.yaml:3: no" in capsys.readouterr().out
    assert main(["pipeline", "status", "--watch", "--json"]) == 0
    (one,) = capsys.readouterr().out.splitlines()
    assert [state["name"] for state in json.loads(one)] == ["broken", "orders"]


def test_a_damaged_state_does_not_hide_the_others(capsys, directory):
    conf = ["spark.x.password=p", "spark.a=1"]
    directory.write(RunState("orders", status="done", flags={"conf": conf}))
    for name in ("bad", "worse"):
        directory.path(name, "json").write_text("{")
    for words in (["status"], ["status", "--json"], ["status", "--watch", "--json"]):
        assert main(["pipeline", *words]) == exits.failure(StoreUnreadable("x", "y"))[1]
        out, err = capsys.readouterr()
        assert "orders" in out
        assert "password=p" not in out
        assert [line.partition(" is no state")[0] for line in err.splitlines()] == [
            f"skylark: {directory.path(name, 'json')}:" for name in ("bad", "worse")
        ]


def test_a_run_that_is_told_to_stop_while_servers_are_asked_has_stopped(
    capsys, directory, tmp_path, monkeypatch
):
    (tmp_path / "a.yaml").write_text(FILE)
    told = lambda spec: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(pipeline_runs, "check_spec", told)
    assert said(capsys, "run", tmp_path / "a.yaml")[0] == exits.INTERRUPTED
    assert directory.read("orders").status == "stopped"


def test_how_much_is_done_is_known_by_the_lag_or_the_total():
    state = RunState("p", status="running")
    assert fraction(state, SinkState(rows=5)) is None
    assert fraction(state, SinkState(rows=5, lag=15)) == 0.25
    assert fraction(state, SinkState(rows=0, lag=0)) == 1.0
    half = RunState("p", rows_total=100, rows_before=40)
    assert fraction(half, SinkState(rows=10)) == 0.5
    text = line(state, "out", SinkState(rows=5, lag=15, batch=1, batch_ms=1500), bar=True)
    assert "[######..................]  25%  5 rows in, 15 left" in text
    assert rows_of(state) == [{"pipeline": "p", "status": "running"}]


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


class Terminal(io.StringIO):
    """Shows what a person sees: it knows the four things that a Reporter writes."""

    _WORDS = re.compile(r"\x1b\[(\d*)([AJK])|(\n)|([^\x1b\n]+)")

    def isatty(self):
        return True

    def screen(self):
        lines, at = [""], 0
        for word in self._WORDS.finditer(self.getvalue()):
            number, command, is_newline, text = word.groups()
            if command == "A":
                at -= int(number)
            elif command == "K":
                lines[at] = ""
            elif command == "J":
                del lines[at + 1 :]
                lines[at] = ""
            elif is_newline:
                at += 1
                lines += [""] * (at + 1 - len(lines))
            else:
                lines[at] = text + lines[at][len(text) :]
        return lines


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def test_a_terminal_shows_a_bar_for_each_sink_that_moves_in_its_place(terminal):
    reporter = Reporter(terminal)
    sinks = {name: SinkState(rows=10, lag=30, batch=0, batch_ms=500) for name in ("out", "files")}
    state = RunState("p", status="running", sinks=sinks)
    reporter(state)
    assert terminal.screen() == [
        "p/out  running   [######..................]  25%  10 rows in, 30 left, 0 rows/s",
        "p/files  running   [######..................]  25%  10 rows in, 30 left, 0 rows",
        "",
    ], "each is cut to one line, or the next one would be drawn in a wrong place"
    sinks["out"].rows, sinks["out"].lag = 20, 20
    reporter(state)
    first, second, last = terminal.screen()
    assert first.startswith("p/out  running   [############............]  50%")
    assert second.startswith("p/files  running   [######......")
    assert last == ""


def test_a_line_that_comes_between_stays_above_what_is_drawn_after_it(terminal):
    reporter = Reporter(terminal)
    state = RunState("p", status="running", sinks={"out": SinkState()})
    reporter(state)
    print("stopping after this micro-batch", file=terminal)
    reporter.begin_below()
    state.status = "stopped"
    reporter(state)
    assert terminal.screen() == [
        "p/out  running   no micro-batch yet",
        "stopping after this micro-batch",
        "p/out  stopped   no micro-batch yet",
        "",
    ]


def test_watching_on_a_terminal_leaves_nothing_of_what_has_gone(terminal):
    reporter = Reporter(terminal)
    error = " ".join(["no city"] * 15)
    broken = RunState("broken", status="failed", error=error)
    orders = RunState("orders", status="running", sinks={"out": SinkState()})
    reporter.states([broken, orders])
    head, *wrapped, run, last = terminal.screen()
    assert (head, run, last) == ("broken  failed", "orders/out  running   no micro-batch yet", "")
    assert len(wrapped) == 2
    assert " ".join(wrapped) == f"broken: {error}"
    reporter.states([orders])
    assert terminal.screen() == [run, ""]


def test_watching_more_than_a_terminal_has_lines_shows_those_that_go_on(terminal, monkeypatch):
    monkeypatch.setenv("LINES", "6")
    reporter = Reporter(terminal)
    states = [RunState(f"old-{n}", status="done") for n in range(9)]
    states.append(RunState("orders", status="running", sinks={"out": SinkState()}))
    for _ in range(3):
        reporter.states(states)
        assert terminal.screen() == [
            "orders/out  running   no micro-batch yet",
            *(f"old-{n}  done" for n in range(3)),
            "and 6 lines more",
            "",
        ], "or what scrolls away could not be drawn over"


def test_watching_shows_also_what_starts_meanwhile(capsys, directory, monkeypatch):
    lock = directory.lock("first")
    directory.write(RunState("first", status="running"))

    def start_another(_):
        lock.release()
        directory.write(RunState("first", status="done"))
        directory.write(RunState("second", status="done"))

    monkeypatch.setattr(pipeline_runs, "time", SimpleNamespace(sleep=start_another))
    assert main(["pipeline", "status", "--watch", "--json"]) == 0
    shown = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert [[state["name"] for state in states] for states in shown] == [
        ["first"],
        ["first", "second"],
    ]


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    Reporter(terminal).states([RunState("p", status="running")])
    assert terminal.getvalue() == "p  running\n"


@pytest.mark.parametrize(
    ("sink", "flags", "is_redrawn"),
    [
        ("format: Console", [], False), ("python: 'm:f'", [], False),
        ("format: noop", ["--verbose"], False), ("format: noop", [], True),
    ],
)  # fmt: skip
def test_what_is_printed_is_not_drawn_over(
    terminal, tmp_path, monkeypatch, sink, flags, is_redrawn
):
    (tmp_path / "orders.yaml").write_text(FILE.replace("format: console", sink))
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(pipeline_runs, "check_spec", lambda _: None)
    monkeypatch.setattr(pipeline_runs, "spark_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(Run, "start", lambda *_: None)

    def wait(run, report):
        run.state.sinks["out"] = SinkState()
        for run.state.status in ("running", "done"):
            report(run.state)
            print("a row", file=terminal)
        return run.state

    monkeypatch.setattr(Run, "wait", wait)
    assert main(["pipeline", "run", str(tmp_path / "orders.yaml"), *flags]) == 0
    assert terminal.screen().count("a row") == (1 if is_redrawn else 2)


def test_an_error_that_is_of_a_sink_is_said_once():
    sinks = {"out": SinkState(error="no"), "files": SinkState()}
    state = RunState("p", status="failed", error="sink out: no", sinks=sinks)
    assert errors_of(state) == ["p: sink out: no"]
    state.error = "the disk is full"
    assert errors_of(state) == ["p: the disk is full", "p: sink out: no"]


def test_flags_go_to_spark_with_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.jar", "y.py"):
        (tmp_path / name).touch()
    flags = Flags(conf=["a.b=c=d"], packages="g:a:1", jars="x.jar,hdfs://h/z.jar", py_files="y.py")
    assert flags.settings() == {
        "spark.jars.packages": "g:a:1",
        "spark.jars": f"{tmp_path}/x.jar,hdfs://h/z.jar",
        "spark.submit.pyFiles": f"{tmp_path}/y.py",
        "a.b": "c=d",
    }
    monkeypatch.chdir("/")
    assert Flags(**asdict(flags)) == flags
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        Flags(conf=["=x"]).settings()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must either be\n',
            "Master must either be",
        ),
        ("Invalid maximum heap size: -Xmxbanana\nError: Could not create", "Invalid maximum heap"),
        ("Unrecognized option: -Xfoo\nError: Could not create", "Unrecognized option: -Xfoo"),
        (
            "\t\tmodule not found: com.nowhere#nothing;1.0\nat\n"
            'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: '
            "com.nowhere#nothing;1.0: not found]\n",
            "unresolved dependency: com.nowhere#nothing;1.0: not found",
        ),
        (
            "2026-11-18 20:07:55 ERROR StandaloneSchedulerBackend: Application has been killed. "
            "Reason: All masters are unresponsive! Giving up.\n",
            "All masters are unresponsive! Giving up.",
        ),
        ("2026-11-18 20:07:55 ERROR SparkContext: no room\n", "SparkContext: no room"),
        ("WARNING: Using incubator modules\n", None),
    ],
)
def test_why_spark_did_not_start_is_found_in_the_log_of_java(tmp_path, log, expected):
    file = tmp_path / "java.log"
    assert pipeline_spark.telling_line(file) is None
    file.write_text(log)
    found = pipeline_spark.telling_line(file)
    assert (found or "").startswith(expected or "")
    assert "]" not in (found or "")
    assert (found is None) == (expected is None)
    with pytest.raises(SkylarkError, match="Spark did not start") as caught:
        pipeline_spark._refuse_to_start(RuntimeError("no port"), "spark://h:1", file)
    assert str(file) in str(caught.value)
    is_away = expected is not None and "unresponsive" in expected
    assert isinstance(caught.value, TransportError) == is_away


def test_a_master_of_spark_that_does_not_answer_is_said_before_spark_starts(monkeypatch):
    monkeypatch.setattr(pipeline_spark, "_CHECK_RETRY_MS", 0)
    monkeypatch.setattr(pipeline_spark, "_PAUSE_S", 0)
    with pytest.raises(TransportError, match=r"spark://127\.0\.0\.1:1: this master of Spark"):
        pipeline_spark._require_master("spark://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pipeline_spark._require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    pipeline_spark._require_master("local[2]")
