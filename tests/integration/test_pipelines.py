"""Pipelines from files, on Spark in local mode: what they do, and what a kill leaves."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyarrow.parquet import read_table
from pyspark.sql import Row
from pyspark.sql.functions import udf
from spark_world import SETTINGS, SPARKS_WARNINGS, Cluster
from test_spark_archive import send_damaged

from skylark.errors import ConfigError, SkylarkError
from skylark.model.message import Message
from skylark.spark import archive as archives
from skylark.spark import replay
from skylark.spark.mirror import Copies
from skylark.spark.pipelines import Run, RunDirectory, Spec, functions, load
from skylark.spark.pipelines.document import Place
from skylark.spark.pipelines.plans import Plan

pytestmark = SPARKS_WARNINGS
# Run here: pipelines/shop.py by itself, pipelines/routing.py by the YAML file that calls it.
EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
CITIES = ("Shanghai", "Berlin", "Lagos", "Lima")
_JAVA_OPTIONS = f"spark.driver.extraJavaOptions={SETTINGS['spark.driver.extraJavaOptions']}"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """States of this test alone."""
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    return RunDirectory.default()


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> int:
    """Orders as a shop sends them; how many."""
    cluster.send(
        Message(
            "OrderTopic",
            json.dumps({"id": n, "city": CITIES[n % 4], "cents": n}).encode(),
            tag=("Paid", "Open")[n % 2],
            keys=[f"o-{n}"],
        )
        for n in range(200)
    )
    return 200


def loaded(cluster: Cluster, path: Path, **environment: object) -> Spec:
    texts = {name: str(value) for name, value in environment.items()}
    return load(path, {"NAMESRV_ADDR": cluster.address, **texts})


def run_to_its_end(spark: Any, spec: Spec) -> Any:
    """Run until it ends or is stopped; the state then."""
    with Run(spec) as run:
        run.start(spark)
        return run.wait()


def run_once(spark: Any, spec: Spec) -> Any:
    """Run what is there now; the state at the end."""
    return run_to_its_end(spark, spec.once())


def validated(spark: Any, spec: Spec) -> None:
    """What `skylark pipeline validate` does."""
    plan = Plan(spec, spark, None)
    plan.check_cluster(0)
    for sink in spec.sinks:
        plan.check_query(sink, plan.frame(sink))


def rows(spark: Any, cluster: Cluster, topic: str) -> list[Any]:
    frame = spark.read.format("skylark").option("namesrv", cluster.address)
    found: list[Any] = frame.option("topic", topic).load().collect()
    return found


def bodies(spark: Any, cluster: Cluster, topic: str) -> Counter[str]:
    return Counter(bytes(row.body).decode() for row in rows(spark, cluster, topic))


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)


def rows_read(directory: RunDirectory, name: str) -> list[int]:
    """What the sinks of a run have read, as every terminal sees it."""
    state = directory.read(name)
    assert state.error is None, state.error
    return [sink.rows for sink in state.sinks.values()]


TWO_SINKS = """\
name: two-sinks
checkpoint: ${FOLDER}/state
trigger: 1 second
sources:
  orders: {topic: OrderTopic, startingOffsets: earliest}
steps:
  paid: select * from orders where tag = 'Paid'
  texts: select keys, cast(body as string) as body from paid
sinks:
  out: {topic: TwoSinks}
  files: {from: paid, format: parquet, path: "${FOLDER}/files", partitionBy: tag}
"""


def test_a_file_with_two_sinks_runs_goes_on_and_shows_its_progress(
    spark: Any, cluster: Cluster, orders: int, tmp_path: Path, directory: RunDirectory
) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO_SINKS)
    spec = loaded(cluster, file, FOLDER=tmp_path)
    end = run_once(spark, spec)
    assert end.status == "done"
    assert {name: (sink.rows, sink.lag) for name, sink in end.sinks.items()} == {
        "out": (orders, 0),
        "files": (orders, 0),
    }
    assert spark.read.parquet(str(tmp_path / "files")).count() == orders // 2
    assert len(bodies(spark, cluster, "TwoSinks")) == orders // 2
    (state,) = json.loads(cluster.cli("pipeline", "status", "two-sinks", "--json"))
    assert (state["status"], state["sinks"]["out"]["lag"]) == ("done", 0)
    assert "OrderTopic" in cluster.cli("lag", "two-sinks-files"), "a group like any other"
    # Until it is stopped: what comes meanwhile is read once, what was read is not read again.
    running = threading.Thread(target=run_to_its_end, args=(spark, spec))
    running.start()
    cluster.send(Message("OrderTopic", b"late %d" % n, tag="Paid") for n in range(10))
    wait_until(lambda: sum(rows_read(directory, "two-sinks")) == 20)
    stopped = json.loads(cluster.cli("pipeline", "stop", "two-sinks", "--json"))
    running.join(60)
    assert stopped["status"] == "stopped"
    assert [sink["rows"] for sink in stopped["sinks"].values()] == [10, 10]
    found = bodies(spark, cluster, "TwoSinks")
    assert set(found.values()) == {1}
    assert len(found) == orders // 2 + 10
    assert spark.read.parquet(str(tmp_path / "files")).count() == orders // 2 + 10


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("tag = 'Paid'", "tagg = 'Paid'", 7, "`tagg` cannot be resolved"),
        ("from orders", "from order", 7, "no source or step order above"),
        ("select keys", "selct keys", 8, "Syntax error"),
        ("topic: OrderTopic", "topic: NoTopic", 5, "there is no topic NoTopic"),
        ("as body from", "as text from", 10, "column text cannot be written"),
        ("select * from", "select tag, count(*) from orders group by tag --", 9, "output mode"),
        ("format: parquet", "format: parket", 11, "parket"),
        (
            "select * from orders where tag = 'Paid'",
            "with o as (select 1 as n) insert into t select * from o",
            7,
            "and this is a command",
        ),
        (
            "select * from orders where tag = 'Paid'",
            "insert overwrite directory '${FOLDER}/made' using json select 1",
            7,
            "and this is a command",
        ),
        (
            "{topic: OrderTopic, startingOffsets: earliest}",
            "{archive: '${FOLDER}/lake', topic: OrderTopic}",
            5,
            "there is none; make it with",
        ),
        (
            "{topic: OrderTopic, startingOffsets: earliest}",
            "{topic: OrderTopic, schema: 'nosuch int, body binary'}",
            5,
            "column nosuch is not known",
        ),
        (
            "startingOffsets: earliest",
            'startingOffsets: \'{"OrderTopic": {"z": {"0": 1}}}\'',
            5,
            "there is no queue OrderTopic/z/0",
        ),
        ("partitionBy: tag", "partitionBy: city", 11, "there is no column 'city'; there are"),
        ('parquet, path: "${FOLDER}/files", partitionBy: tag}', "x}", 11, "data source: x"),
        (
            'files: {from: paid, format: parquet, path: "${FOLDER}/files", partitionBy: tag}',
            "f: {python: 'nomodule:f'}",
            11,
            "module nomodule cannot be imported",
        ),
        ("startingOffsets: earliest", "stream: false", 10, "is a table and no stream"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_in_one_line(
    spark: Any, cluster: Cluster, orders: int, tmp_path: Path,
    old: str, new: str, line: int, words: str,
) -> None:  # fmt: skip
    file = tmp_path / "wrong.yaml"
    text = TWO_SINKS.replace(old, new)
    assert text != TWO_SINKS
    if words == "output mode":  # An aggregate has no rows to append without a watermark.
        text = text.replace("  texts: select keys, cast(body as string) as body from paid\n", "")
        text = text.replace("  out: {topic: TwoSinks}\n", "")
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run_once(spark, loaded(cluster, file, FOLDER=tmp_path))
    said = str(caught.value)
    assert said.startswith(f"wrong.yaml:{line}: "), said
    assert words in said
    assert "\n" not in said
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "state" / "pipeline.json").exists()
    with pytest.raises(ConfigError) as caught:  # And so says `validate`.
        validated(spark, loaded(cluster, file, FOLDER=tmp_path))
    assert str(caught.value) == said


def test_a_query_that_fails_ends_the_run_with_its_reason(
    spark: Any, cluster: Cluster, orders: int, tmp_path: Path, directory: RunDirectory
) -> None:
    file = tmp_path / "fails.yaml"
    text = TWO_SINKS.replace("cast(body as string)", "cast(raise_error('no city') as string)")
    file.write_text("".join(line for line in text.splitlines(True) if "files:" not in line))
    with pytest.raises(SkylarkError, match=r"pipeline two-sinks: sink out: .*no city"):
        run_once(spark, loaded(cluster, file, FOLDER=tmp_path))
    state = directory.read("two-sinks")
    assert state.status == "failed"
    assert "\n" not in str(state.error)


@pytest.mark.parametrize("name", ["aggregate.yaml", "enrich_and_route.yaml", "archive.yaml"])
def test_the_shipped_files_do_what_they_say(
    spark: Any, cluster: Cluster, orders: int, tmp_path: Path, name: str
) -> None:
    database = f"jdbc:derby:memory:{tmp_path.name};create=true"
    spec = loaded(
        cluster, EXAMPLES / name, CHECKPOINTS=tmp_path, LAKE=tmp_path / "lake", ORDERS_DB=database
    )
    if name == "aggregate.yaml":
        # A minute is sent when it is over, which no test waits for: look at all of them as well.
        (sent,) = spec.sinks
        shown = replace(sent, name="shown", takes="per_minute", format="memory", mode="complete")
        spec = replace(spec, sinks=(sent, replace(shown, options={})))
    with Run(spec.once()) as run:
        run.start(spark)
        assert run.wait().status == "done"
    if name == "aggregate.yaml":
        assert run.spark is not None
        table = run.spark.sql("select city, sum(orders) as n from shown group by city").collect()
        assert {row.city: row.n for row in table if row.city} == dict.fromkeys(CITIES, orders // 4)
    elif name == "enrich_and_route.yaml":
        for region, city in (("Asia", "Shanghai"), ("Europe", "Berlin"), ("Africa", "Lagos")):
            found = [json.loads(text) for text in bodies(spark, cluster, f"Orders{region}")]
            assert {one["city"] for one in found} == {city}
            assert len(found) == orders // 4
        lost = spark.read.json(str(tmp_path / "lake" / "unknown-cities"))
        assert lost.where("city = 'Lima'").count() == orders // 4
    else:
        files = spark.read.parquet(str(tmp_path / "lake" / "orders"))
        table = spark.read.format("jdbc").option("url", database).option("dbtable", "orders").load()
        assert files.count() == table.count() == len(rows(spark, cluster, "OrderTopic"))


def test_a_program_runs_like_a_file(
    spark: Any, cluster: Cluster, orders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    assert run_once(spark, loaded(cluster, EXAMPLES / "shop.py")).status == "done"
    found = bodies(spark, cluster, "PaidTopic")
    assert all(text == text.upper() for text in found)
    assert len(found) >= orders // 2


PAST = """\
name: past
checkpoint: ${FOLDER}/state
sources: {whole: {archive: "${FOLDER}/lake", topic: PastTopic}}
steps: {texts: select cast(body as string) as body from whole}
sinks: {out: {topic: WholeTopic}}
"""


def test_an_archive_and_its_topic_are_one_stream(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    def send(first: int, count: int) -> None:
        cluster.send(Message("PastTopic", b"%d" % n) for n in range(first, first + count))

    send(0, 60)
    archives.archive(
        spark, tmp_path / "lake", ["PastTopic"], namesrv=cluster.address, once=True
    ).awaitTermination(120)
    send(60, 20)
    (tmp_path / "past.yaml").write_text(PAST)
    spec = loaded(cluster, tmp_path / "past.yaml", FOLDER=tmp_path)
    run_once(spark, spec)
    assert bodies(spark, cluster, "WholeTopic") == Counter(str(n) for n in range(80))
    send(80, 10)
    run_once(spark, spec)
    assert bodies(spark, cluster, "WholeTopic") == Counter(str(n) for n in range(90))
    # What is sent again says where it has been, whether it comes from files or from the log.
    selection = replay.Selection(
        "PastTopic", "PastAgain", cluster.address, cluster.address, str(tmp_path / "lake")
    )
    assert replay.preview(spark, selection).messages == 90
    chosen = replay.choose(spark, selection, tmp_path / "again")
    run_once(spark, replay.as_pipeline("again", selection, tmp_path / "again"))
    assert chosen.total == 90
    originals = {row.message_id: row for row in rows(spark, cluster, "PastTopic")}
    found = rows(spark, cluster, "PastAgain")
    assert Counter(row.properties["REPLAY_ID"] for row in found) == Counter(list(originals))
    for row in found:
        original = originals[row.properties["REPLAY_ID"]]
        assert row.body == original.body
        place = f"PastTopic/{original.broker}/{original.queue_id}/{original.queue_offset}"
        assert row.properties["REPLAY_FROM"] == place


def test_folders_whose_names_are_patterns_to_spark_hide_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    odd = tmp_path / "shop [v2] {old}"
    odd.mkdir()
    cluster.send(Message("OddPast", b"%d" % n) for n in range(20))
    archives.archive(
        spark, odd / "lake", ["OddPast"], namesrv=cluster.address, once=True
    ).awaitTermination(120)
    cluster.send(Message("OddPast", b"%d" % n) for n in range(20, 30))
    (odd / "past.yaml").write_text(
        PAST.replace("PastTopic", "OddPast").replace("WholeTopic", "OddWhole")
    )
    run_once(spark, loaded(cluster, odd / "past.yaml", FOLDER=odd))
    assert bodies(spark, cluster, "OddWhole") == Counter(str(n) for n in range(30))
    selection = replay.Selection("OddPast", "OddAgain", cluster.address, cluster.address)
    assert replay.choose(spark, selection, odd / "again").total == 30
    run_once(spark, replay.as_pipeline("odd-again", selection, odd / "again"))
    assert bodies(spark, cluster, "OddAgain") == Counter(str(n) for n in range(30))


@pytest.mark.parametrize("rows_per_file", [100_000, 1])
def test_messages_stay_in_order_where_the_clock_of_a_broker_went_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_file: int
) -> None:
    queues, each = (("a", 0), ("a", 1), ("b", 0)), 400  # With one row a file: 1,200 files.

    def stored_ms(broker: str, offset: int) -> int:
        """The clock of a goes back by three seconds, and once, for one message, by a day."""
        at_ms = offset * 10 + (1 if broker == "b" else 0)
        if broker == "b" or offset < each // 2:
            return at_ms
        return at_ms - (86_400_000 if offset == each - 100 else 3_000)

    rows_there = [
        Row(topic="Back", broker=broker, queue_id=number, queue_offset=offset,
            body=b"%s/%d/%d" % (broker.encode(), number, offset), tag=None, keys=None,
            properties={}, message_id=f"{broker}{number}{offset}", at_ms=stored_ms(broker, offset))
        for offset in range(each) for broker, number in queues
    ]  # fmt: skip
    there = spark.createDataFrame(
        rows_there[::-1],
        "topic string, broker string, queue_id int, queue_offset bigint, body binary, tag string, "
        "keys string, properties map<string,string>, message_id string, at_ms bigint",
    ).selectExpr("*", "timestamp_millis(at_ms) as store_time")
    monkeypatch.setattr(replay, "select", lambda *_: there.repartition(3))
    monkeypatch.setattr(replay, "_plan", lambda _: Copies({"a": 0, "b": 2}, 3, 3))
    monkeypatch.setattr(replay, "_ROWS_PER_FILE", rows_per_file)
    selection = replay.Selection("Back", "BackTo", "mq:9876", "mq:9876")
    assert replay.choose(spark, selection, tmp_path).total == len(rows_there)
    files = sorted((tmp_path / "chosen").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    found = [
        bytes(body).decode() for path in files for body in read_table(path)["body"].to_pylist()
    ]
    for broker, number in queues:
        of_queue = [body for body in found if body.startswith(f"{broker}/{number}/")]
        assert of_queue == [f"{broker}/{number}/{offset}" for offset in range(each)]
    # Where clocks are right, queues go side by side, as they were stored.
    right = each // 2 - 1
    assert found[: right * len(queues)] == [
        f"{broker}/{number}/{offset}" for offset in range(right) for broker, number in queues
    ]


def test_a_replay_with_a_rate_waits_a_second_before_each_micro_batch_of_so_many(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = replay.Selection("Slow", "SlowTo", "mq:9876", "mq:9876", rate=15)
    spec = replay.as_pipeline("slow", selection, tmp_path)
    (source,), (step,), (sink,) = spec.sources, spec.steps, spec.sinks
    assert source.options["maxFilesPerTrigger"] == "1"  # And a file has at most 15 rows.
    assert (step.function, sink.takes) == (replay.paced, step.name)
    assert not spec.trigger.available_now
    happened: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(replay, "time", SimpleNamespace(sleep=happened.append))
        for batch in replay._a_second_later(iter("ab")):  # type: ignore[arg-type]
            happened.append(batch)
    assert happened == [1.0, "a", "b"], "nothing of a task is sent before its second is over"
    # In Spark: the rows are the same, and a second has passed on the one clock that only goes on.
    rows_there = spark.createDataFrame([(b"x", 1), (b"y", 2)], "body binary, queue_id int")
    began = time.monotonic()
    assert sorted(map(tuple, replay.paced(rows_there).collect())) == [(b"x", 1), (b"y", 2)]
    assert time.monotonic() - began >= 1.0
    assert replay.as_pipeline("fast", replace(selection, rate=None), tmp_path).steps == ()


def test_a_replay_is_chosen_by_time_key_and_condition(spark: Any, cluster: Cluster) -> None:
    cluster.send(Message("Chosen", b"%d" % n, keys=[f"k{n}", "all"]) for n in range(20))
    middle = sorted(row.store_time for row in rows(spark, cluster, "Chosen"))[10]
    at_ms = round(middle.timestamp() * 1_000)
    every = replay.Selection("Chosen", "ChosenTo", cluster.address, cluster.address)

    def count(**conditions: Any) -> int:
        return replay.preview(spark, replace(every, **conditions)).messages

    whole = replay.preview(spark, every)
    assert (whole.messages, whole.bytes) == (20, 30)
    assert whole.first is not None
    assert count(from_ms=at_ms) + count(until_ms=at_ms) == 20
    assert count(key="k7") == 1
    assert count(key="k") == 0
    assert count(where="cast(cast(body as string) as int) >= 15") == 5
    assert count(key="all", where="queue_offset = 0", tag="none") == 0
    with pytest.raises(ConfigError, match=r"^--where: .*`bodi` cannot be resolved"):
        count(where="bodi = 1")


def test_a_message_whose_body_cannot_be_read_is_never_sent_without_it(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send(Message("Torn", b"%d" % n) for n in range(4))
    send_damaged(cluster, "Torn")
    archives.archive(
        spark, tmp_path / "lake", ["Torn"], namesrv=cluster.address, once=True,
        options={"bodyMode": "permissive"},
    ).awaitTermination(120)  # fmt: skip
    log = replay.Selection("Torn", "TornTo", cluster.address, cluster.address)
    lake = replace(log, archive=str(tmp_path / "lake"))
    says = (
        r"^topic Torn broker \S+ queue 0 offset \d+: (?!.*bodyMode).*; "
        r"--body-mode dropmalformed leaves such messages out$"
    )
    for selection in (lake, log):
        with pytest.raises(SkylarkError, match=says):
            replay.preview(spark, selection)
        with pytest.raises(SkylarkError, match=says):
            replay.choose(spark, selection, tmp_path / "refused")
        assert replay.chosen_in(tmp_path / "refused") is None
        assert replay.preview(spark, replace(selection, body_mode="dropmalformed")).messages == 4
    # One that is not chosen holds nothing up.
    assert replay.preview(spark, replace(lake, where="body is not null")).messages == 4
    folder, dropping = tmp_path / "whole", replace(lake, body_mode="dropmalformed")
    assert replay.choose(spark, dropping, folder).total == 4
    run_once(spark, replay.as_pipeline("whole", dropping, folder))
    assert bodies(spark, cluster, "TornTo") == Counter("0123")


def test_validating_runs_nothing(spark: Any, cluster: Cluster, orders: int, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO_SINKS.replace("OrderTopic", "NotThere"))
    spec = load(file, {"NAMESRV_ADDR": "127.0.0.1:1", "FOLDER": str(tmp_path)})
    plan = Plan(spec, spark.newSession(), None)
    for sink in spec.sinks:
        plan.check_query(sink, plan.frame(sink))
    with pytest.raises(SkylarkError):
        plan.check_cluster(0)  # Nobody is there.
    file.write_text(TWO_SINKS)
    Plan(loaded(cluster, file, FOLDER=tmp_path), spark.newSession(), None).check_cluster(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two.yaml"]


LOCKING = (
    "import threading\n_lock = threading.Lock()\ndef times(n):\n    with _lock: return n * {}\n"
)


def counted(spark: Any, folder: Path, name: str) -> list[int]:
    """What the function f of a module in a folder makes of 0, 1 and 2 in the workers."""
    function = functions.find(f"{name}:f", folder, Place("p.yaml", 1))
    frame = spark.range(3).select(udf(function, "long")("id").alias("n"))
    return [row.n for row in frame.collect()]


def test_modules_with_locks_reach_the_workers_as_files(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "locking_parts").mkdir()
    (tmp_path / "locking_parts" / "deep.py").write_text(LOCKING.format(5))
    (tmp_path / "locking_help.py").write_text(LOCKING.format(2))
    (tmp_path / "plain_help.py").write_text("import locking_help as other\n")
    (tmp_path / "locking_steps.py").write_text(
        "import plain_help\nfrom locking_help import times\nfrom locking_parts import deep\n"
        "def f(n): return times(n) + plain_help.other.times(n) + deep.times(n)\n"
    )
    for _ in range(2):
        assert counted(spark, tmp_path, "locking_steps") == [0, 9, 18]


def test_pipelines_keep_what_is_theirs_where_one_has_sent_a_file(
    spark: Any, tmp_path: Path
) -> None:
    helpers = {"a": LOCKING.format(2), "b": "def times(n): return n * 3\n", "c": LOCKING.format(4)}
    for name, helper in helpers.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_help.py").write_text(helper)
        (tmp_path / name / "same_steps.py").write_text(
            "import same_help\ndef f(n): return same_help.times(n)\n"
        )
    assert counted(spark, tmp_path / "a", "same_steps") == [0, 2, 4]
    assert counted(spark, tmp_path / "b", "same_steps") == [0, 3, 6]
    assert counted(spark, tmp_path / "a", "same_steps") == [0, 2, 4]
    with pytest.raises(ConfigError, match=r"^same_help.py holds what cannot be pickled, "):
        counted(spark, tmp_path / "c", "same_steps")


def test_modules_that_workers_were_given_are_left_to_them(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "given_help.py").write_text(LOCKING.format(2))
    (tmp_path / "given_steps.py").write_text(
        "import given_help\ndef f(n): return given_help.times(n)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "given_help.py").write_text(LOCKING.format(7))
    spark.sparkContext.addPyFile(str(tmp_path / "elsewhere" / "given_help.py"))
    assert counted(spark, tmp_path, "given_steps") == [0, 7, 14]


def test_modules_that_lie_deeper_than_beside_the_file_reach_the_workers_as_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    (tmp_path / "src" / "deeper_parts").mkdir(parents=True)
    (tmp_path / "src" / "deeper_parts" / "__init__.py").write_text(LOCKING.format(5))
    (tmp_path / "src" / "deeper_help.py").write_text(LOCKING.format(2))
    (tmp_path / "deeper_steps.py").write_text(
        "import deeper_help, deeper_parts\n"
        "def f(n): return deeper_help.times(n) + deeper_parts.times(n)\n"
    )
    assert counted(spark, tmp_path, "deeper_steps") == [0, 7, 14]


def test_modules_with_columns_travel_whole_as_workers_could_not_import_them(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "column_help.py").write_text(
        "from pyspark.sql import SparkSession, functions as F\n"
        "spark = SparkSession.builder.getOrCreate()\nNUMBER = F.col('id')\n"
        "def times(n): return n * 2\n"
    )
    (tmp_path / "column_more.py").write_text(
        "from column_help import NUMBER\n"
        "def numbers(frame): return frame.select(NUMBER)\ndef times(n): return n * 3\n"
    )
    (tmp_path / "column_steps.py").write_text(
        "import column_help\nfrom column_more import times\n"
        "def f(n): return column_help.times(n) + times(n)\n"
    )
    assert counted(spark, tmp_path, "column_steps") == [0, 5, 10]


def test_what_a_step_imports_when_it_is_called_reaches_the_workers(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send(Message("Lately", b"x") for _ in range(7))
    (tmp_path / "lately_help.py").write_text("def next_one(n): return n + 1\n")
    (tmp_path / "lately.py").write_text(
        "def later(orders):\n    from lately_help import next_one\n"
        "    from pyspark.sql.functions import udf\n"
        "    return orders.select(udf(next_one, 'long')('queue_offset'))\n"
    )
    (tmp_path / "lately.yaml").write_text(
        "name: lately\ncheckpoint: state\nsteps: {later: {python: 'lately:later'}}\n"
        "sources: {orders: {topic: Lately, startingOffsets: earliest}}\n"
        "sinks: {out: {format: noop}}\n"
    )
    state = run_once(spark, loaded(cluster, tmp_path / "lately.yaml"))
    assert state.sinks["out"].rows == 7
