"""What a pipeline file may say, and what is said about one that says something else."""

import pathlib
from functools import partial

import pytest

from skylark.errors import ConfigError
from skylark.spark.pipelines import Pipeline, load
from skylark.spark.pipelines.document import parse_yaml
from skylark.spark.pipelines.parsing import parse
from skylark.spark.pipelines.spec import KEYS, SINK_KEYS, SOURCE_KEYS, STEP_KEYS
from skylark.spark.pipelines.triggers import Trigger

ROOT = pathlib.Path(__file__).parents[3]
WHOLE = """\
name: orders
checkpoint: state
trigger: 10 seconds
sources:
  orders:
    topic: OrderTopic
    maxMessagesPerTrigger: 500
    watermark: store_time 10 minutes
  customers:
    format: parquet
    path: /data/customers
    schema: id long
  past:
    archive: lake
    topic: OldTopic
steps:
  paid: select * from orders where tag = 'Paid';
  joined:
    python: enrich:join
    inputs: [paid, customers]
sinks:
  out:
    topic: PaidTopic
    deliveryGuarantee: at_least_once
  files:
    from: paid
    format: parquet
    path: s3a://bucket/files
    partitionBy: [tag]
    options: {compression: zstd}
  each:
    python: enrich:keep
    mode: update
"""


def parsed(text, folder="/pipelines", **environment):
    return parse(
        parse_yaml(text, "a.yaml", environment), pathlib.Path(folder), environment=environment
    )


def refusal(text, **environment):
    with pytest.raises(ConfigError) as caught:
        parsed(text, **environment)
    return str(caught.value)


def changed(old, new):
    assert old in WHOLE
    return WHOLE.replace(old, new)


def test_a_whole_file_is_read_once_into_dataclasses():
    spec = parsed(WHOLE, NAMESRV_ADDR="mq:9876")
    orders, customers, past = spec.sources
    assert spec.trigger == Trigger("10 seconds")
    assert spec.checkpoint == "/pipelines/state"
    assert (orders.format, orders.is_stream) == ("skylark", True)
    assert orders.options == {
        "namesrv": "mq:9876", "topic": "OrderTopic", "maxMessagesPerTrigger": "500"
    }  # fmt: skip
    assert orders.watermark == ("store_time", "10 minutes")
    assert (customers.format, customers.is_stream, customers.path) == (
        "parquet", False, "/data/customers"
    )  # fmt: skip
    assert (past.format, past.path, past.topics) == ("archive", "/pipelines/lake", ("OldTopic",))
    paid, joined = spec.steps
    assert paid.sql == "select * from orders where tag = 'Paid'"
    assert (joined.function, joined.inputs) == ("enrich:join", ("paid", "customers"))
    out, files, each = spec.sinks
    assert (out.takes, out.format) == ("joined", "skylark")
    assert out.options["deliveryGuarantee"] == "at_least_once"
    assert (files.takes, files.path) == ("paid", "s3a://bucket/files")
    assert (files.partition_by, files.options) == (("tag",), {"compression": "zstd"})
    assert (each.function, each.mode) == ("enrich:keep", "update")


def test_the_query_of_each_sink_has_a_group_and_a_checkpoint_of_its_own():
    spec = parsed(WHOLE)
    assert {spec.group_of(sink) for sink in spec.sinks} == {
        "orders-out", "orders-files", "orders-each"
    }  # fmt: skip
    assert len({spec.checkpoint_of(sink) for sink in spec.sinks}) == 3
    alone = parsed(SMALL)
    assert alone.group_of(alone.sinks[0]) == "small"


SMALL = """\
name: small
checkpoint: state
sources: {orders: {topic: OrderTopic}}
sinks: {out: {format: console}}
"""


def test_ten_lines_are_enough():
    spec = parsed(SMALL)
    assert spec.sinks[0].takes == "orders"
    assert spec.trigger == Trigger("1 second")
    assert spec.namesrv == "127.0.0.1:9876"
    assert spec.once().trigger == Trigger(available_now=True)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("trigger:", "triger:", 3, "did you mean trigger?"),
        ("name: orders", "name: a/b", 1, "letters, digits"),
        ("checkpoint: state", "checkpoint: ''", 2, "a path is needed"),
        ("10 seconds", "continuous 1 second", 3, "continuous processing does not work"),
        ("trigger: 10 seconds", "trigger: {continuous: 1 second}", 3, "continuous processing"),
        ("trigger: 10 seconds", "trigger: {processingTime: soon}", 3, "not a trigger"),
        ("10 seconds", "10", 3, "'10' is not a trigger"),
        ("10 seconds", "36501 days", 3, "'36501 days' is not a trigger"),
        ("10 seconds", "10seconds", 3, "'10seconds' is not a trigger"),
        ("10 seconds", "\uff11\uff10 seconds", 3, "is not a trigger"),
        ("10 seconds", "10 \u017feconds", 3, "is not a trigger"),
        ("10 seconds", "900000000 hours", 3, "an interval such as 10 seconds, is allowed"),
        ("trigger: 10 seconds", "namesrv: a b", 3, "namesrv: 'a b' is not a name server address"),
        ("maxMessagesPerTrigger: 500", "namesrv: mq:x", 7, "'mq:x' is not a name server address"),
        ("deliveryGuarantee: at_least_once", "namesrv: mq:0", 24, "'mq:0' is not a name server"),
        ("topic: OrderTopic", "topics: OrderTopic", 5, "topic, archive or format is needed"),
        ("maxMessagesPerTrigger: 500", "maxMessagePerTrigger: 5", 7, "mean maxMessagesPerTrigger?"),
        ("maxMessagesPerTrigger: 500", "maxMessagesPerTrigger: many", 7, "a number from 1 to"),
        ("topic: OrderTopic", "topic: Order Topic", 6, "contains ' '"),
        ("store_time 10 minutes", "store_time 10minutes", 8, "an interval are needed"),
        ("store_time 10 minutes", "10 minutes", 8, "a column of time and an interval"),
        ("schema: id long", "shema: id long", 12, "did you mean schema?"),
        ("topic: OldTopic", "startingOffsets: latest", 13, "topic"),
        ("topic: OldTopic", "topic: A,B", 13, "one topic at a time"),
        ("paid: select", "orders: select", 17, "line 5 has the same name"),
        ("paid: select", "Orders: select", 17, "has the same name, orders: SQL does not tell"),
        ("  paid: select", "  pa-id: select", 17, "SQL uses it as a table"),
        ("enrich:join", "enrich.join", 19, "module:function is needed"),
        ("[paid, customers]", "[paid, nobody]", 20, "no source or step 'nobody'"),
        ("inputs: [paid, customers]", "sql: select 1", 18, "either sql or python"),
        ("topic: PaidTopic", "topic: A,B", 23, "a write goes to one topic"),
        ("at_least_once", "perhaps", 24, "one of exactly_once, at_least_once is allowed"),
        ("topic: PaidTopic", "topic: PaidTopic\n    mode: complete", 24, "only be appended to"),
        ("topic: PaidTopic", "topic: PaidTopic\n    format: json", 24, "exclude each other"),
        ("from: paid", "from: unpaid", 26, "no source or step 'unpaid'"),
        ("mode: update", "mode: sometimes", 33, "append, update, complete"),
        ("python: enrich:keep", "pyton: enrich:keep", 31, "topic, format or python is needed"),
        ("options: {compression: zstd}", "options: zstd", 30, "names with values are needed"),
        ("checkpoint: state", "group: a b", 1, "checkpoint is missing"),
        ("    path: s3a://bucket/files\n", "", 25, "path is missing: where the parquet files go"),
        ("path: s3a://bucket/files", "mode: complete\n    path: x", 28, "only be appended to"),
        ("format: parquet\n    path: s3a://bucket/files", "format: jdbc", 29, "url is missing"),
        ("format: parquet\n    path: /dat", "format: Skylark\n    path: /dat", 10, "write topic: "),
        ("format: parquet\n    path: /dat", "format: archive\n    path: /dat", 10, "or archive: "),
        ("format: parquet\n    path: s3a", "format: skylark\n    path: s3a", 27, "write topic: "),
        ("format: parquet\n    path: s3a", "format: python\n    path: s3a", 27, "write python: "),
        ("mode: update", "path: x", 33, "for a sink with format"),
        ("mode: update", "options: {a: b}", 33, "for a sink with format"),
        ("mode: update", "partitionBy: tag", 33, "for a sink with format"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_line_and_what_would_do(old, new, line, words):
    said = refusal(changed(old, new))
    assert said.startswith(f"a.yaml:{line}: "), said
    assert words in said
    assert "\n" not in said


def test_a_database_needs_its_address_and_its_table():
    jdbc = SMALL.replace("{format: console}", "{format: jdbc, options: {OPTIONS}}")
    assert "the option url is missing" in refusal(jdbc.replace("OPTIONS", "dbtable: t"))
    assert "the option dbtable is missing" in refusal(jdbc.replace("OPTIONS", "url: 'jdbc:x'"))
    sound = jdbc.replace("OPTIONS", "url: 'jdbc:x', dbTable: t")
    assert parsed(sound).sinks[0].format == "jdbc"
    said = refusal(sound.replace("format: jdbc,", "format: jdbc, partitionBy: a,"))
    assert "sinks.out.partitionBy: this is for files" in said


def test_the_folder_of_a_file_is_no_pattern():
    files = SMALL.replace("{topic: OrderTopic}", "{format: json, path: 'in/*.json', stream: true}")
    assert parsed(files, folder="/p [1]").sources[0].path == r"/p \[1\]/in/*.json"
    assert parsed(files, folder="/p [1]").checkpoint == "/p [1]/state"


def test_a_sink_says_which_of_several_sources_it_takes():
    several = SMALL.replace("{topic: OrderTopic}", "{topic: T}, more: {topic: U}")
    assert "sinks.out: from is needed, as there are several sources: orders, more" in refusal(
        several
    )
    said = several.replace("{format: console}", "{format: console, from: orders}")
    assert parsed(said).sinks[0].takes == "orders"


def test_two_sources_of_one_topic_cannot_commit_under_one_group():
    twice = SMALL.replace("{topic: OrderTopic}", "{topic: T}, more: {topic: T}")
    twice = twice.replace("{format: console}", "{format: console, from: more}")
    assert "orders reads the topic T under the same group" in refusal(twice)
    other = twice.replace("more: {topic: T}", "more: {topic: T, group: other}")
    assert len(parsed(other).sources) == 2


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("filter: Paid", "filter in a step, such as: select"),
        ("filterType: SQL92", "filter in a step"),
        ("startingOffsets: earliest", "narrow it in a step"),
        ("startingTimestamp: 5", "narrow it in a step"),
        ("schema: body binary", "choose them in a step"),
        ("bodyFormat: text", "read the body in a step"),
        ("pullBytes: 1m", "leave pullBytes out"),
        ("readFrom: auto", "leave readFrom out"),
        ("failOnDataLoss: false", "leave failOnDataLoss out"),
        ("topicsPattern: A", "leave topicsPattern out"),
        ("stream: false\n    group: g", "with stream: false leave it out"),
        ("stream: false\n    maxMessagesPerTrigger: 5", "with stream: false leave it out"),
    ],
)
def test_what_an_archive_cannot_follow_in_all_its_rows_is_refused(option, words):
    said = refusal(changed("topic: OldTopic", f"topic: OldTopic\n    {option}"))
    key = option.splitlines()[-1].partition(":")[0].strip()
    assert said.startswith(f"a.yaml:{16 + option.count(chr(10))}: sources.past.{key}: "), said
    assert words in said


def test_an_archive_as_a_stream_takes_limits_and_access():
    given = ("group: g2", "maxMessagesPerTrigger: 5", "maxBytesPerTrigger: 1m", "accessKey: a",
             "secretKey: b", "retryMs: 5", "watermark: store_time 1 hour")  # fmt: skip
    lines = "".join(f"\n    {one}" for one in given)
    one_sink = WHOLE[: WHOLE.index("  files:")]
    past = parsed(one_sink.replace("topic: OldTopic", f"topic: OldTopic{lines}")).sources[2]
    assert past.options["maxBytesPerTrigger"] == "1m"
    assert past.options["accessKey"] == "a"


def test_a_program_says_the_same_as_a_file(tmp_path):
    pipeline = Pipeline("small", checkpoint="state", folder="/pipelines")
    pipeline.source("orders", topic="OrderTopic")
    pipeline.sink("out", format="console")
    told = pipeline.spec(environment={})
    read = parsed(SMALL)
    assert (told.sources[0].options, told.checkpoint) == (read.sources[0].options, read.checkpoint)
    assert told.sinks[0].takes == "orders"


def test_a_function_is_a_step_of_its_name():
    pipeline = Pipeline("p", checkpoint="c").source("orders", topic="T").sink("out", format="noop")

    @pipeline.step
    def paid(orders):
        return orders

    (step,) = pipeline.spec(environment={}).steps
    assert (step.name, step.function) == ("paid", paid)


def test_a_function_that_has_something_already_is_a_step():
    def tagged(orders, tag):
        return orders, tag

    class Counted:
        def __call__(self, orders):
            return orders

    pipeline = Pipeline("small", checkpoint="c").source("orders", topic="T")
    pipeline.step(partial(tagged, tag="Paid"))
    pipeline.step(Counted())
    pipeline.sink("out", format="noop")
    first, second = pipeline.spec(environment={}).steps
    assert (first.name, second.name) == ("tagged", "Counted")
    assert first.place.file == "test_pipeline_spec.py"
    with pytest.raises(ConfigError, match=r"test_pipeline_spec\.py:\d+: .*is here twice"):
        pipeline.step(partial(tagged, tag="Open"))


def test_a_mistake_in_a_program_is_said_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from skylark.spark.pipelines import Pipeline\n"
        "p = Pipeline('p', checkpoint='c')\n"
        "p.source('orders', topic='T',\n"
        "         startingOffset='earliest')\n"
        "p.sink('out', format='console')\n"
    )
    with pytest.raises(ConfigError, match=r"^mine\.py:3: .*did you mean startingOffsets\?"):
        load(file)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "x = 1", "makes no Pipeline; exactly one is needed"),
        ("b.py", "def", r"b\.py:1: this is not Python"),
        (
            "e.py",
            "x = 1\nraise RuntimeError('boom\\nmore')",
            r"^e\.py:2: this fails: .*Error: boom$",
        ),
        ("f.py", "import sys\n\nsys.exit(7)", r"^f\.py:3: this fails: SystemExit: 7$"),
        ("g.py", "import not_there_at_all", r"^g\.py:1: this fails: ModuleNotFoundError: "),
        ("c.txt", "", r"ends with \.yaml, \.yml or \.py"),
        ("d.yaml", "\xff", "not UTF-8"),
    ],
)
def test_files_that_are_no_pipelines(tmp_path, name, text, words):
    pytest.importorskip("pyspark")
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / name)
    if not name.endswith(".txt"):
        with pytest.raises(ConfigError, match="there is no such file"):
            load(tmp_path / f"no-{name}")


def test_a_file_without_a_name_is_called_as_the_file(tmp_path):
    (tmp_path / "nightly.yaml").write_text(SMALL.replace("name: small\n", ""))
    spec = load(tmp_path / "nightly.yaml", {})
    assert (spec.name, spec.checkpoint) == ("nightly", str(tmp_path / "state"))


@pytest.mark.parametrize("keys", [KEYS, SOURCE_KEYS, STEP_KEYS, SINK_KEYS])
def test_the_manual_lists_every_key(keys):
    page = (ROOT / "docs" / "pipelines.md").read_text()
    for name, meaning in keys.items():
        assert f"| `{name}` | {meaning} |" in page


def test_rows_that_name_their_topic_need_none_in_the_file():
    spec = parsed(SMALL.replace("{format: console}", "{deliveryGuarantee: exactly_once}"))
    assert spec.sinks[0].format == "skylark"
    assert "topic" not in spec.sinks[0].options


@pytest.mark.parametrize("name", ["aggregate", "enrich_and_route", "archive"])
def test_the_shipped_files_are_sound(name):
    spec = load(ROOT / "examples" / "pipelines" / f"{name}.yaml", {"ORDERS_DB": "jdbc:x"})
    assert spec.sinks


@pytest.mark.parametrize("interval", ["10 Seconds", "1  MINUTE", "500 milliseconds", "0 seconds"])
def test_an_interval_is_what_spark_takes_for_one(interval):
    assert parsed(changed("10 seconds", interval)).trigger == Trigger(interval)


@pytest.mark.parametrize(
    "place", ["s3a://bucket/x", "file:/data/x", "dbfs:/mnt/x", "hdfs:/x", "file:///data/x"]
)
def test_what_has_a_scheme_stays_as_it_is(place):
    text = changed("path: /data/customers", f"path: {place}").replace("s3a://bucket/files", place)
    spec = parsed(text.replace("checkpoint: state", f"checkpoint: {place}"))
    assert spec.checkpoint == place
    assert spec.sources[1].path == place
    assert spec.sinks[1].path == place


@pytest.mark.parametrize("name", ["c:x", "day=1/at=08:00", "./ab:c", "1a:x"])
def test_a_colon_alone_makes_no_scheme(name):
    assert parsed(changed("checkpoint: state", f"checkpoint: {name}")).checkpoint == (
        str(pathlib.Path("/pipelines", name))
    )


def test_one_topic_name_on_two_clusters_is_two_topics():
    both = SMALL.replace("{topic: OrderTopic}", "{topic: T}, more: {topic: T, namesrv: 'far:9876'}")
    both = both.replace(
        "sinks: {out: {format: console}}",
        "sinks: {out: {format: console, from: orders}, all: {format: noop, from: more}}",
    )
    near, far = parsed(both).sources
    assert (near.options["namesrv"], far.options["namesrv"]) == ("127.0.0.1:9876", "far:9876")
    said = refusal(both.replace("far:9876", "127.0.0.1:9876"))
    assert "orders reads the topic T under the same group" in said


def test_an_option_that_is_wrong_is_found_by_its_name_and_not_by_other_words():
    lines = "{\n  topic: OrderTopic,\n  stream: true,\n  endingOffsets: latest}}"
    said = refusal(SMALL.replace("{topic: OrderTopic}}", lines))
    assert said.startswith("a.yaml:6: sources.orders.endingOffsets: option endingOffsets is for")
    lines = "{\n  topic: OrderTopic,\n  startingOffsets: topic}}"
    assert refusal(SMALL.replace("{topic: OrderTopic}}", lines)).startswith("a.yaml:5: ")


def test_the_name_servers_that_are_asked_for_go_before_those_of_the_file(tmp_path):
    program = tmp_path / "mine.py"
    program.write_text(
        "from skylark.spark.pipelines import Pipeline\n"
        "p = Pipeline('p', checkpoint='c', namesrv='a:1')\n"
        "p.source('orders', topic='T').source('own', topic='U', namesrv='a:1')\n"
        "p.sink('out', takes='orders', topic='V').sink('mine', takes='own', format='noop')\n"
    )
    pytest.importorskip("pyspark")
    spec = load(program, {}, namesrv="b:2")
    assert spec.namesrv == "b:2"
    assert [one.options["namesrv"] for one in spec.sources] == ["b:2", "a:1"]
    assert spec.sinks[0].options["namesrv"] == "b:2"
