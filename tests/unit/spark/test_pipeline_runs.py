"""Locks, states and checkpoints of runs, without Spark."""

import json
import os
import pathlib
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from skylark.errors import ConfigError, SkylarkError, StoreUnreadable, TransportError
from skylark.spark.pipelines import Pipeline, Run, RunDirectory, RunState, causes, load
from skylark.spark.pipelines.checkpoints import Checkpoint, notes_folder
from skylark.spark.pipelines.locks import FRESH_MS, Lock, owner_of
from skylark.spark.pipelines.plans import Plan
from skylark.spark.pipelines.progress import Watched, lag_of
from skylark.spark.pipelines.state import SinkState
from skylark.spark.sessions import is_secret
from skylark.spark.watched_state import StateReporter

HOLDER = """
import pathlib, sys
from skylark.spark.pipelines.locks import Lock
lock = Lock.take(pathlib.Path(sys.argv[1]), "it")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


def spec_of(tmp_path, name="orders", topic="T"):
    pipeline = Pipeline(name, checkpoint=str(tmp_path / "state"))
    pipeline.source("orders", topic=topic).sink("out", format="noop")
    return pipeline.spec(environment={})


def test_a_lock_that_is_held_names_who_has_it(tmp_path):
    path = tmp_path / "it.lock"
    lock = Lock.take(path, "it")
    assert owner_of(path)["pid"] == os.getpid()
    assert owner_of(path)["host"] == socket.gethostname()
    with pytest.raises(ConfigError, match=f"it is in use by process {os.getpid()} on "):
        Lock.take(path, "it")
    lock.release()
    assert owner_of(path) is None
    Lock.take(path, "it").release()


def test_a_lock_of_a_process_that_was_killed_is_free(tmp_path):
    path = tmp_path / "it.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on "):
            Lock.take(path, "it")
        holder.kill()
        holder.wait()
    assert json.loads(path.read_text())["pid"] == holder.pid, "it left its name"
    Lock.take(path, "it").release()


def test_a_lock_of_another_machine_counts_while_it_is_fresh(tmp_path):
    path = tmp_path / "it.lock"
    path.write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
    with pytest.raises(ConfigError, match="process 7 on elsewhere"):
        Lock.take(path, "it")
    old = path.stat().st_mtime - FRESH_MS / 1_000 - 1
    os.utime(path, (old, old))
    Lock.take(path, "it").release()


def test_a_lock_file_that_was_torn_is_taken(tmp_path):
    path = tmp_path / "it.lock"
    path.write_text('{"pid": 1')
    Lock.take(path, "it").release()


def test_a_checkpoint_belongs_to_one_pipeline_and_its_topics(tmp_path, directory):
    checkpoint = Checkpoint.take(spec_of(tmp_path), directory)
    checkpoint.claim(spec_of(tmp_path))
    checkpoint.release()
    with pytest.raises(ConfigError, match="belongs to the pipeline orders; give others a folder"):
        Checkpoint.take(spec_of(tmp_path, "others"), directory)
    with pytest.raises(ConfigError, match="so far with topic T, which the pipeline does not read"):
        Checkpoint.take(spec_of(tmp_path, topic="U"), directory)
    Checkpoint.take(spec_of(tmp_path, topic="T,U"), directory).release()


def test_a_stop_that_is_asked_for_while_a_run_waits_for_its_checkpoint_counts(
    tmp_path, directory, monkeypatch
):
    take, spec = Checkpoint.take, spec_of(tmp_path)
    found = []

    def take_meanwhile(spec, directory):
        found.append(directory.is_asked_to_stop("orders"))
        directory.ask_to_stop("orders")
        return take(spec, directory)

    monkeypatch.setattr(Checkpoint, "take", take_meanwhile)
    directory.root.mkdir()
    directory.ask_to_stop("orders")
    with Run(spec, directory=directory):
        assert directory.is_asked_to_stop("orders")
    assert found == [False], "what was meant for an earlier run is forgotten"


def test_a_start_that_is_refused_leaves_a_checkpoint_to_whoever_comes_next(tmp_path, directory):
    wrong = Checkpoint.take(spec_of(tmp_path, topic="NoSuchTopic"), directory)
    (wrong.folder / "orders.history.json").write_text("{}")  # As a snapshot of an archive leaves.
    wrong.release()
    checkpoint = Checkpoint.take(spec_of(tmp_path), directory)
    assert not (checkpoint.folder / "orders.history.json").exists()
    checkpoint.claim(spec_of(tmp_path))
    (checkpoint.folder / "orders.history.json").write_text("{}")
    checkpoint.release()
    Checkpoint.take(spec_of(tmp_path), directory).release()
    assert (checkpoint.folder / "orders.history.json").exists()


def test_a_checkpoint_that_is_no_folder_is_said_with_its_line(tmp_path, directory):
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match=r"test_pipeline_runs\.py:\d+: checkpoint: .*is a file"):
        Checkpoint.take(spec_of(tmp_path), directory)
    beyond = replace(spec_of(tmp_path), checkpoint="/proc/nope")
    with pytest.raises(ConfigError, match=r"checkpoint: /proc/nope cannot be used: No such file"):
        Checkpoint.take(beyond, directory)


def test_a_checkpoint_elsewhere_has_its_notes_here(tmp_path, directory):
    for place in ("s3a://bucket/state", "hdfs:/state", "file:/state"):
        spec = replace(spec_of(tmp_path), checkpoint=place)
        assert notes_folder(spec, directory).is_relative_to(directory.root)


def test_a_second_run_is_refused_by_name_and_by_checkpoint(tmp_path, directory):
    spec = spec_of(tmp_path)
    with Run(spec, directory=directory) as run:
        with pytest.raises(ConfigError, match="pipeline orders is in use by process"):
            Run(spec, directory=directory).__enter__()
        elsewhere = RunDirectory(tmp_path / "another user")
        with pytest.raises(ConfigError, match=r"checkpoint .* is in use by process"):
            Run(spec, directory=elsewhere).__enter__()
        assert directory.read("orders").status == "starting"
        run.state.status = "done"
    with Run(spec, directory=directory):
        pass
    assert directory.read("orders").status == "stopped"


def test_a_run_that_fails_leaves_its_reason(tmp_path, directory):
    with pytest.raises(ConfigError), Run(spec_of(tmp_path), directory=directory):
        raise ConfigError("a.yaml:3: no")
    state = directory.read("orders")
    assert (state.status, state.error, state.has_ended) == ("failed", "a.yaml:3: no", True)


def test_a_state_whose_process_is_gone_says_so(directory):
    directory.root.mkdir()
    state = RunState("p", status="running", pid=1, sinks={"out": SinkState("noop", rows=5)})
    directory.write(state)
    found = directory.read("p")
    assert (found.status, found.sinks["out"].rows) == ("died", 5)
    lock = directory.lock("p")
    assert directory.read("p").status == "running"
    lock.release()


def test_states_are_for_their_owner_only(directory):
    directory.lock("p").release()
    directory.write(RunState("p", flags={"conf": ["spark.secret=x"]}))
    assert directory.root.stat().st_mode & 0o77 == 0
    assert (directory.root / "p.json").stat().st_mode & 0o77 == 0


def test_a_state_is_shown_without_secrets_and_kept_with_them(directory):
    conf = ["spark.hadoop.fs.s3a.secret.key=abc=", "spark.a=1", "spark.x.PASSWORD=p"]
    state = RunState("p", status="done", flags={"conf": conf, "master": None})
    shown = ["spark.hadoop.fs.s3a.secret.key=***", "spark.a=1", "spark.x.PASSWORD=***"]
    assert state.shown()["flags"] == {"conf": shown, "master": None}
    directory.lock("p").release()
    directory.write(state)
    assert directory.read("p").flags["conf"] == conf
    assert RunState("q", flags={"conf": None}).shown()["flags"] == {"conf": None}


@pytest.mark.parametrize(
    "setting",
    [
        "fs.azure.account.key.shop.dfs.core.windows.net",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "google.cloud.auth.service.account.private.key.id",
        "fs.azure.sas.container.shop.blob.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "fs.s3a.server-side-encryption.key",
        "spark.ssl.keyPassword",
        "my.passphrase",
    ],
)
def test_settings_that_open_a_store_are_secrets(setting):
    assert is_secret(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "spark.io.encryption.keySizeBits",
        "fs.azure.account.keyprovider.shop",
        "spark.sql.disaster.x",
        "fs.azure.account.auth.type",
    ],
)
def test_settings_that_only_sound_like_secrets_are_none(setting):
    assert not is_secret(setting)


@pytest.mark.parametrize(
    "flags", ["null", "[]", '"x"', '{"conf": 5}', '{"conf": [5]}', '{"conf": "a=b"}']
)
def test_a_state_whose_flags_are_damaged_is_said_to_be(directory, flags):
    directory.root.mkdir()
    (directory.root / "p.json").write_text(f'{{"name": "p", "flags": {flags}}}')
    with pytest.raises(StoreUnreadable, match=r"p\.json: is no state of a pipeline: flags"):
        directory.read("p")


def test_a_file_that_is_no_state_by_its_name_is_passed_over(directory):
    directory.root.mkdir()
    directory.write(RunState("orders", status="done"))
    for name in ("orders (copy).json", ".json", "a.b.json", "-x.json"):
        (directory.root / name).write_text("{}")
    assert directory.names() == ["orders"]


@pytest.mark.parametrize(
    ("kind", "spoken", "way_on"),
    [
        ("replay", "a replay", "skylark pipeline resume orders"),
        ("metrics", "a metrics job", "the same command"),
    ],
)
def test_a_run_leaves_what_another_kind_needs_to_go_on(tmp_path, directory, kind, spoken, way_on):
    directory.root.mkdir()
    kept = RunState("orders", kind=kind, status="stopped", flags={"selection": {}})
    directory.write(kept)
    with pytest.raises(ConfigError) as caught:
        Run(spec_of(tmp_path), directory=directory).__enter__()
    assert str(caught.value) == (
        f"name orders: {spoken} is called so and has not ended; choose another name, or go on "
        f"with it: {way_on}"
    )
    assert directory.read("orders") == kept
    assert not directory.is_running("orders")
    directory.write(replace(kept, status="done"))
    with Run(spec_of(tmp_path), directory=directory):
        assert directory.read("orders").kind == "pipeline"


@pytest.mark.parametrize("status", ["stopped", "running"])
def test_a_session_that_has_ended_leaves_its_name(tmp_path, directory, status):
    directory.root.mkdir()
    directory.write(RunState("orders", kind="session", status=status))
    with Run(spec_of(tmp_path), directory=directory):
        assert directory.read("orders").kind == "pipeline"


def test_a_session_does_not_write_over_what_has_not_ended(directory):
    directory.root.mkdir()
    directory.write(RunState("nightly", kind="replay", status="stopped", flags={"selection": {}}))
    with pytest.raises(
        ConfigError, match=r"^name nightly: a replay is called so and has not ended"
    ):
        StateReporter("nightly", directory)
    assert directory.read("nightly").kind == "replay"
    directory.write(RunState("nightly", kind="replay", status="done"))
    StateReporter("nightly", directory).close()
    assert directory.read("nightly").kind == "session"


def test_a_damaged_state_does_not_keep_a_name(tmp_path, directory):
    directory.root.mkdir()
    (directory.root / "orders.json").write_text("{")
    with Run(spec_of(tmp_path), directory=directory):
        assert directory.read("orders").status == "starting"


def test_names_that_were_never_run_and_files_that_are_none(directory):
    directory.root.mkdir()
    with pytest.raises(ConfigError, match=r"pipeline p has not been run here; .* none yet"):
        directory.read("p")
    (directory.root / "p.json").write_text("[]")
    with pytest.raises(StoreUnreadable):
        directory.read("p")
    (directory.root / "q.json").write_text(json.dumps({"name": "q", "of a newer version": 1}))
    assert directory.read("q").name == "q"


@pytest.mark.parametrize("name", ["../evil", "a/b", "/tmp/x", "", ".", "a b", "x" * 101])
def test_a_name_stays_within_the_run_directory(tmp_path, directory, name):
    for action in (directory.lock, directory.read, directory.ask_to_stop, directory.is_running):
        with pytest.raises(ConfigError, match=r"^name '.*': letters, digits, - and _ are allowed"):
            action(name)
    with pytest.raises(ConfigError, match="letters, digits"):
        directory.write(RunState(name))
    with pytest.raises(ConfigError, match="letters, digits"):
        StateReporter(name, directory)
    assert list(tmp_path.rglob("*")) == []


def test_the_run_directory_is_where_the_environment_says():
    chosen = RunDirectory.default({"SKYLARK_RUN_DIR": "/r"})
    assert chosen.root == pathlib.Path("/r")
    state = RunDirectory.default({"XDG_STATE_HOME": "/s"})
    assert state.root == pathlib.Path("/s/skylark/pipelines")


def test_the_run_directory_is_the_same_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.chdir(tmp_path)
    for given, root in (("~/runs", "/h/runs"), ("/r", "/r")):
        assert RunDirectory.default({"SKYLARK_RUN_DIR": given}).root == pathlib.Path(root)
    with pytest.raises(ConfigError, match=rf"^SKYLARK_RUN_DIR=runs: .* such as {tmp_path}/runs: "):
        RunDirectory.default({"SKYLARK_RUN_DIR": "runs"})
    passed_over = RunDirectory.default({"XDG_STATE_HOME": "s"})
    assert passed_over.root == pathlib.Path("/h/.local/state/skylark/pipelines")


class FakeQuery:
    """A query whose micro-batches a test brings about."""

    def __init__(self):
        self.isActive = True
        self.error = None
        self.is_busy = True
        self.recentProgress = []
        self.stops = 0

    def did(self, batch, rows, *, end=0, latest=0, idle=False):
        offsets = [json.dumps({"v": 1, "q": {"T": {"a": {"0": at}}}}) for at in (end, latest)]
        self.recentProgress.append(
            {
                "batchId": batch,
                "timestamp": str(len(self.recentProgress)),
                "numInputRows": rows,
                "processedRowsPerSecond": 10.0,
                "durationMs": {} if idle else {"addBatch": 1, "triggerExecution": 200},
                "sources": [{"endOffset": offsets[0], "latestOffset": offsets[1]}],
            }
        )

    @property
    def lastProgress(self):
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def status(self):
        return {"isTriggerActive": self.is_busy}

    def exception(self):
        return self.error

    def stop(self):
        self.stops += 1
        self.isActive = False


def test_rows_are_counted_once_however_often_spark_reports():
    query = FakeQuery()
    watched = Watched("out", query, SinkState())
    assert not watched.observe()
    query.did(0, 5, end=5, latest=20)
    query.did(1, 7, end=12, latest=20)
    assert watched.observe()
    assert not watched.observe()
    query.did(2, 0, end=12, latest=30, idle=True)
    watched.observe()
    query.did(2, 0, end=12, latest=30, idle=True)
    assert (watched.state.rows, watched.state.batch, watched.state.lag) == (12, 1, 18)
    query.did(2, 18, end=30, latest=30)
    query.did(3, 0, end=30, latest=30, idle=True)
    watched.observe()
    assert (watched.state.rows, watched.state.lag, watched.state.topics) == (30, 0, ["T"])


def test_sources_that_are_no_topics_have_no_lag():
    assert lag_of([{"endOffset": '{"logOffset":3}', "latestOffset": None}]) == (None, [])


def running(tmp_path, directory, *queries, **options):
    run = Run(spec_of(tmp_path), directory=directory, **options)
    run.__enter__()
    for number, query in enumerate(queries):
        state = run.state.sinks[f"s{number}"] = SinkState()
        run._watched.append(Watched(f"s{number}", query, state))
    return run


def test_a_stop_waits_for_the_micro_batch_that_is_under_way(tmp_path, directory):
    query = FakeQuery()
    query.did(0, 5)
    run = running(tmp_path, directory, query)
    seen = []

    def report(state):
        seen.append((state.status, query.isActive))
        if len(seen) == 1:
            directory.ask_to_stop("orders")
        elif len(seen) == 3:
            query.did(1, 5)

    state = run.wait(report)
    run.__exit__(None, None, None)
    assert seen[:3] == [("starting", True), ("stopping", True), ("stopping", True)]
    assert (state.status, state.sinks["s0"].rows) == ("stopped", 10)
    assert not directory.is_asked_to_stop("orders")


def test_a_stop_between_micro_batches_is_at_once(tmp_path, directory):
    query = FakeQuery()
    query.is_busy = False
    run = running(tmp_path, directory, query)
    run.request_stop()
    assert run.wait().status == "stopped"
    run.__exit__(None, None, None)


def test_patience_with_a_micro_batch_ends(tmp_path, directory):
    query = FakeQuery()
    run = running(tmp_path, directory, query, stop_timeout_ms=0)
    run.request_stop()
    assert run.wait().status == "stopped"
    assert query.stops
    run.__exit__(None, None, None)


def test_one_query_that_fails_ends_the_run_and_says_which(tmp_path, directory):
    good, bad = FakeQuery(), FakeQuery()
    bad.isActive, bad.error = False, RuntimeError("ValueError: no such city")
    run = running(tmp_path, directory, good, bad)
    with pytest.raises(SkylarkError, match=r"^pipeline orders: sink s1: ValueError: no such city$"):
        run.wait()
    run.__exit__(None, None, None)
    assert good.stops
    assert directory.read("orders").status == "failed"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [("ConfigError: no", ConfigError), ("ConnectFailed: h:1: no", TransportError)],
)
def test_a_query_that_fails_keeps_the_kind_of_its_error(tmp_path, directory, cause, kind):
    bad = FakeQuery()
    bad.isActive, bad.error = False, RuntimeError(f"skylark.errors.{cause}")
    run = running(tmp_path, directory, bad)
    with pytest.raises(kind) as caught:
        run.wait()
    run.__exit__(None, None, None)
    assert str(caught.value) == f"pipeline orders: sink s0: {cause.partition(': ')[2]}"


class Py4JNetworkError(Exception):
    """As py4j's is called."""


class OrphanedQuery(FakeQuery):
    """A query whose Java has been killed."""

    def __init__(self, error):
        super().__init__()
        self.gone = error

    @property
    def lastProgress(self):
        raise self.gone

    def stop(self):
        raise self.gone


@pytest.mark.parametrize(
    "gone", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "no")]
)
@pytest.mark.parametrize(
    ("file", "way_on"), [("/p/a.yaml", "skylark pipeline resume orders"), (None, "run it again")]
)
def test_a_run_whose_java_was_killed_says_how_to_go_on(tmp_path, directory, gone, file, way_on):
    run = running(tmp_path, directory, OrphanedQuery(gone), file=file)
    with pytest.raises(SkylarkError) as caught:
        run.wait()
    run.__exit__(SkylarkError, caught.value, None)
    said = "pipeline orders: Spark's Java has ended: it was killed, or had no memory left; "
    assert str(caught.value) == f"{said}go on with: {way_on}"
    assert directory.read("orders").status == "failed"


class IllegalArgumentException(Exception):
    """As Spark's is called."""


class FakeSession:
    """Settings as a session has them; one name takes numbers only."""

    def __init__(self):
        self.conf = self
        self.found = {"spark.sql.shuffle.partitions": "5"}

    def isModifiable(self, name):
        return name.startswith("spark.sql.")

    def set(self, name, value):
        if not value.isdecimal():
            raise IllegalArgumentException(
                f'The value {value!r} in the config "{name}" is invalid.'
            )
        self.found[name] = value


def test_what_the_command_line_has_set_stays(tmp_path, directory):
    settings = {"spark.sql.shuffle.partitions": "3", "spark.sql.x": "1", "spark.driver.cores": "2"}
    spec = replace(spec_of(tmp_path), settings=settings)
    session = FakeSession()
    run = Run(spec, directory=directory, flags={"conf": ["spark.sql.shuffle.partitions=5"]})
    run._set_all(session)
    assert session.found == {"spark.sql.shuffle.partitions": "5", "spark.sql.x": "1"}
    session = FakeSession()
    Run(spec, directory=directory)._set_all(session)
    assert session.found["spark.sql.shuffle.partitions"] == "3"


def test_a_setting_that_spark_refuses_is_said_with_its_line(tmp_path, directory):
    text = "checkpoint: c\nsources: {o: {topic: T}}\nsinks: {out: {format: noop}}\nsettings:\n"
    file = tmp_path / "a.yaml"
    file.write_text(f"{text}  spark.sql.x: 1\n  spark.sql.shuffle.partitions: lots\n")
    run = Run(load(file, {}), directory=directory)
    line = r"^a\.yaml:6: settings\.spark\.sql\.shuffle\.partitions: The value 'lots' in the config"
    with pytest.raises(ConfigError, match=line):
        run._set_all(FakeSession())


@pytest.mark.parametrize(
    ("value", "place"), [("lots", "a.yaml:4: settings.spark.sql.x: "), ("abc", "")]
)
def test_a_setting_of_the_command_line_is_not_blamed_on_the_file(tmp_path, value, place):
    file = tmp_path / "a.yaml"
    file.write_text(
        "checkpoint: c\nsources: {o: {topic: T}}\nsinks: {out: {format: noop}}\n"
        "settings: {spark.sql.x: lots}\n"
    )
    spec = load(file, {})
    problem = f"The value '{value}' in the config \"spark.sql.x\" is invalid."

    def refused():
        raise IllegalArgumentException(f"[INVALID_CONF_VALUE.TYPE_MISMATCH] {problem}")

    with pytest.raises(ConfigError) as caught:
        Plan(spec, None, None)._said(spec.sources[0].place, refused)
    assert str(caught.value) == place + problem


class FakeWriter:
    """A frame and its writer, which refuses one thing that it is told."""

    def __init__(self, refusing):
        self.writeStream = self
        self.refusing = refusing

    def __getattr__(self, name):
        def told(*words, **given):
            if name == self.refusing:
                raise IllegalArgumentException(f"[X] {name} makes no sense. SQLSTATE: 22006")
            return self

        return told


@pytest.mark.parametrize(
    ("refusing", "place"),
    [
        ("trigger", "a.yaml:4: trigger"),
        ("outputMode", "a.yaml:3: sinks.out"),
        ("partitionBy", "a.yaml:3: sinks.out"),
        ("options", "a.yaml:3: sinks.out"),
    ],
)
def test_whatever_spark_refuses_of_a_sink_is_one_line_with_its_place(tmp_path, refusing, place):
    file = tmp_path / "a.yaml"
    file.write_text(
        "checkpoint: c\nsources: {o: {topic: T}}\n"
        "sinks: {out: {format: memory, partitionBy: a}}\ntrigger: 5 seconds\n"
    )
    spec = load(file, {})
    with pytest.raises(ConfigError) as caught:
        Plan(spec, None, None).start(spec.sinks[0], FakeWriter(refusing))
    assert str(caught.value) == f"{place}: {refusing} makes no sense."


class FakePlan:
    """A plan whose checks a test makes fail."""

    def __init__(self, note, failing=None):
        self.note = note
        self.failing = failing
        self.queries = []

    def _do(self, name):
        assert not self.note.exists(), "nothing counts before all checks have passed"
        if name == self.failing:
            raise ConfigError(name)

    def check_cluster(self, retry_ms):
        self._do("cluster")

    def frame(self, sink):
        self._do("frame")

    def check_query(self, sink, frame):
        self._do("query")

    def start(self, sink, frame):
        assert self.note.exists(), "a query has begun, and nobody knows with which topics"
        self.queries.append(FakeQuery())
        return self.queries[-1]


def test_a_checkpoint_is_a_pipelines_once_its_checks_have_passed(tmp_path, directory):
    pipeline = Pipeline("orders", checkpoint=str(tmp_path / "state")).source("orders", topic="T")
    pipeline.sink("table", format="memory").sink("out", format="noop")
    note = tmp_path / "state" / "pipeline.json"
    with Run(pipeline.spec(environment={}), directory=directory) as run:
        for failing in ("cluster", "frame", "query"):
            with pytest.raises(ConfigError, match=failing):
                run._start_queries(FakePlan(note, failing))
        run._start_queries(FakePlan(note))
        groups = {name: sink.group for name, sink in run.state.sinks.items()}
    assert groups == {"table": "", "out": "orders-out"}, "a table in memory commits nothing"


def test_queries_that_end_by_themselves_are_done(tmp_path, directory):
    query = FakeQuery()
    query.did(0, 5)
    query.isActive = False
    run = running(tmp_path, directory, query)
    assert run.wait().status == "done"
    run.__exit__(None, None, None)
    assert directory.read("orders").sinks["s0"].rows == 5


REPORT = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_ERROR] Failed
Traceback (most recent call last):
  File "/x/skylark/spark/source.py", line 1, in read
skylark.errors.{error}
 SQLSTATE: 38000
\tat org.apache.spark.Something(X.scala:1)
"""


PROXY = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most \
recent call last):
  File "/x/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}

 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
"""
NO_DRIVER = """\
py4j.protocol.Py4JJavaError: An error occurred while calling o120.save.
: java.sql.SQLException: No suitable driver
\tat java.sql/java.sql.DriverManager.getDriver(DriverManager.java:299)
"""
ABORTED = """\
py4j.protocol.Py4JJavaError: An error occurred while calling o120.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
\tat org.apache.spark.Something(X.scala:1)
Caused by: java.sql.BatchUpdateException: batch
\tat org.apache.spark.Something(X.scala:1)
Caused by: java.sql.SQLException: no table t
\t... 1 more
"""
BUILDER = """\
Error while instantiating 'org.apache.spark.sql.internal.SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating
\tat org.apache.spark.Something(X.scala:1)
Caused by: org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The \
value 'abc' in the config "spark.sql.shuffle.partitions" is invalid. SQLSTATE: 22022
"""


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            PROXY.format(
                error="pyspark.errors.exceptions.captured.AnalysisException: "
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. "
                "SQLSTATE: 42703;\n'Project ['nope]\n+- LogicalRDD [value#1L], false"
            ),
            SkylarkError, "A column with name `nope` cannot be resolved.",
        ),
        (
            PROXY.format(
                error="pyspark.errors.exceptions.captured.IllegalArgumentException: requirement "
                "failed: Option 'url' is required."
            ),
            SkylarkError, "requirement failed: Option 'url' is required.",
        ),
        (PROXY.format(error=NO_DRIVER), SkylarkError, "No suitable driver"),
        (PROXY.format(error=ABORTED), SkylarkError, "no table t"),
        (
            PROXY.format(error="json.decoder.JSONDecodeError: Expecting value"), SkylarkError,
            "json.decoder.JSONDecodeError: Expecting value",
        ),
        (PROXY.format(error="mine.Broken: a sink"), SkylarkError, "mine.Broken: a sink"),
        (
            PROXY.partition("Traceback")[0] + "?", SkylarkError,
            "An error occurred in the user provided function in foreach batch sink. Reason: An "
            "exception was raised by the Python Proxy.",
        ),
        (
            BUILDER, SkylarkError,
            "The value 'abc' in the config \"spark.sql.shuffle.partitions\" is invalid.",
        ),
        (REPORT.format(error="ConfigError: option topic: no"), ConfigError, "option topic: no"),
        (
            REPORT.format(error="ConnectFailed: h:1: refused"), TransportError, "h:1: refused"
        ),
        (
            REPORT.replace("errors.{error}", "spark.offsets.DataLoss: T/a/0"),
            SkylarkError, "T/a/0",
        ),
        ("Py4J: o1\nValueError: bad city\n", SkylarkError, "ValueError: bad city"),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat x", SkylarkError,
            "Division by zero.",
        ),
        (
            "An error occurred while calling o3.start.\n"
            ": org.apache.spark.SparkClassNotFoundException: "
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: x. SQLSTATE: 42K02\n\tat y",
            ConfigError, "Failed to find the data source: x.",
        ),
        (
            "[X.Y] No column `a`. Did you mean `b`?. SQLSTATE: 42703; line 1 pos 27;\n'Project [*]",
            SkylarkError, "No column `a`. Did you mean `b`? (line 1 of the query, position 27)",
        ),
        ("", SkylarkError, "RuntimeError"),
    ],
)  # fmt: skip
def test_a_page_of_spark_becomes_the_line_that_helps(text, kind, line):
    found = causes.as_error(RuntimeError(text))
    assert type(found) is kind
    assert str(found) == line
