"""Options: what is understood, and that every error names the option and what is allowed."""

import pathlib

import pytest

from skylark.errors import ConfigError, InvalidExpression, InvalidName
from skylark.spark.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    BodyFormat,
    BodyMode,
    Bound,
    FilterType,
    read_options,
    write_options,
)

BASIC = {"namesrv": "127.0.0.1:9876", "topic": "OrderTopic"}
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "spark.md"


def read(*, is_stream=False, environment=(), **options):
    return read_options({**BASIC, **options}, is_stream=is_stream, environment=dict(environment))


def test_a_batch_reads_everything_and_a_stream_what_comes():
    assert read().starting == Bound(word="earliest")
    assert read().ending == Bound(word="latest")
    assert read(is_stream=True).starting == Bound(word="latest")


def test_names_have_no_case():
    assert read(STARTINGOFFSETS="latest").starting == Bound(word="latest")


def test_several_topics_stand_with_commas_and_count_once():
    assert read(topic="A, B,A").topics == ("A", "B")


def test_offsets_come_as_json():
    text = '{"T": {"broker-a": {"0": 23, "1": -2}}}'
    assert read(startingOffsets=text).starting.offsets == {"T": {"broker-a": {0: 23, 1: -2}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1794726790296", 1794726790296),
        ("2026-11-15T08:00:00Z", 1794729600000),
        ("2026-11-15T16:00:00.001+08:00", 1794729600001),
        ("2026-11-15T08:00:00.000500Z", 1794729600001),
        ("2026-11-15T08:00:00.000001Z", 1794729600001),
        ("2026-11-15T08:00:00.999999Z", 1794729601000),
    ],
)
def test_times_come_as_milliseconds_or_iso(text, expected):
    # A message of the millisecond 0 is before 0.0005: it is behind an end, not behind a start.
    assert read(startingTimestamp=text).starting == Bound(timestamp_ms=expected)
    assert read(endingTimestamp=text).ending == Bound(timestamp_ms=expected)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startingTimestamp": "5"}, {"endingTimestamp": "5"}),
        ({"startingTimestamp": "5"}, {"endingOffsets": "earliest"}),
        (
            {"startingOffsets": '{"T": {"b": {"0": 3}}}'},
            {"endingOffsets": '{"T": {"b": {"0": 3}}}'},
        ),
        (
            {"startingOffsets": '{"T": {"b": {"0": 3}}}'},
            {"endingOffsets": '{"T": {"b": {"1": 2}}}'},
        ),
        (
            {"startingOffsets": '{"T": {"b": {"0": 3}}}'},
            {"endingOffsets": '{"T": {"b": {"0": -1}}}'},
        ),
        ({"startingOffsets": '{"T": {"b": {"0": -2}}}'}, {"endingOffsets": "earliest"}),
        ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}),
    ],
    ids=str,
)
def test_a_range_may_be_empty_or_of_other_kinds(start, end):
    assert read(**start, **end)


def test_the_environment_names_the_name_servers_where_no_option_does():
    options = read_options({"topic": "T"}, is_stream=False, environment={"NAMESRV_ADDR": "ns:9876"})
    assert options.access.namesrv == "ns:9876"


def test_the_secret_is_not_shown():
    options = read(accessKey="me", secretKey="hidden-thing")
    assert "hidden-thing" not in repr(options)


def test_sizes_have_units():
    assert read(splitBytes="64m").split_bytes == 64 << 20
    assert read(pullBytes="4096").pull_bytes == 4_096


def test_kinds_are_words():
    options = read(filterType="sql92", filter="a > 5", bodyFormat="TEXT")
    assert options.filter_type is FilterType.SQL92
    assert options.body_format is BodyFormat.TEXT


WRONG = {
    "no topic": ({"topic": None}, "topic"),
    "topic and pattern": ({"topicsPattern": "A.*"}, "topicsPattern"),
    "broken pattern": ({"topic": None, "topicsPattern": "("}, "topicsPattern"),
    "huge pattern": ({"topic": None, "topicsPattern": "a{99999999999}"}, "topicsPattern"),
    "endless pattern": ({"topic": None, "topicsPattern": "a" * 256}, "topicsPattern"),
    "unknown option": ({"topik": "T"}, "did you mean topic"),
    "offsets that are no word": ({"startingOffsets": "yesterday"}, "startingOffsets"),
    "offsets that are no object": ({"startingOffsets": "[1]"}, "startingOffsets"),
    "offsets that are no numbers": (
        {"startingOffsets": '{"T": {"b": {"0": "x"}}}'},
        "startingOffsets",
    ),
    "offsets that are flags": ({"startingOffsets": '{"T": {"b": {"0": true}}}'}, "startingOffsets"),
    "queues that are no numbers": (
        {"startingOffsets": '{"T": {"b": {"x": 1}}}'},
        "startingOffsets",
    ),
    "an offset below all": ({"startingOffsets": '{"T": {"b": {"0": -3}}}'}, "startingOffsets"),
    "offsets nobody can follow": ({"startingOffsets": "[" * 100_000}, "startingOffsets='"),
    "offsets in pairs": ({"startingOffsets": '{"T": {"b": [[1, 2]]}}'}, "startingOffsets"),
    "no offsets": ({"startingOffsets": "{}"}, "startingOffsets"),
    "offsets and time": (
        {"startingOffsets": "latest", "startingTimestamp": "1"},
        "exclude each other",
    ),
    "a time without a zone": ({"startingTimestamp": "2026-11-15T08:00:00"}, "startingTimestamp"),
    "a time before 1970": ({"startingTimestamp": "1969-12-31T23:59:59Z"}, "startingTimestamp"),
    "a flag": ({"failOnDataLoss": "yes"}, "failOnDataLoss"),
    "a number": ({"minPartitions": "0"}, "minPartitions"),
    "a size": ({"splitBytes": "many"}, "splitBytes"),
    "pulls beyond Arrow": ({"pullBytes": "4g"}, "pullBytes='4g': .* from 1 to 512m is allowed"),
    "a pull of nothing": ({"pullBytes": "0"}, "pullBytes='0': .* from 1 to 512m is allowed"),
    "too many pulled": ({"pullCount": "1000001"}, "pullCount='1000001': .* to 1000000 is"),
    "crumbs": ({"splitBytes": "100"}, "splitBytes='100': .* from 1k to 1024g is allowed"),
    "one task for ever": ({"splitBytes": "2000g"}, "splitBytes='2000g': .* to 1024g is allowed"),
    "too many tasks": ({"minPartitions": "100001"}, "minPartitions='100001': .* to 100000 is"),
    "a kind": ({"bodyFormat": "xml"}, "bodyFormat"),
    "json without a schema": ({"bodyFormat": "json"}, "bodySchema"),
    "a schema without json": ({"bodySchema": "a int"}, "bodyFormat"),
    "half an account": ({"accessKey": "me"}, "secretKey"),
    "a stream's limit": ({"maxMessagesPerTrigger": "1"}, "maxMessagesPerTrigger"),
    "a mode": ({"bodyMode": "ignore"}, "bodyMode='ignore': one of permissive, dropmalformed"),
    "a place": ({"readFrom": "tape"}, "readFrom='tape': one of network, files, auto"),
    "files without a path": ({"readFrom": "files"}, "storePath is needed with readFrom=files"),
    "a path without files": ({"storePath": "/data"}, "storePath is for readFrom=files"),
    "a path from here": ({"readFrom": "files", "storePath": "data"}, "a path from / on"),
    "a path upwards": ({"readFrom": "auto", "storePath": "/a/../b"}, "without .., is allowed"),
    "a file for a class": ({"class": "os.system"}, "option class is not known"),
    "a path": ({"path": "/etc/passwd"}, "option path: .*give option topic"),
    "a path and no topic": ({"topic": None, "PATH": "x"}, "option path: .*give option topic"),
    "a stream's progress": ({"commitOffsets": "true"}, "option commitOffsets is for streams"),
    "an end before the beginning": (
        {"startingTimestamp": "1970-01-01T00:00:02Z", "endingTimestamp": "1999"},
        "options startingTimestamp=1970-.* and endingTimestamp=1999: the end lies before",
    ),
    "the latest up to the earliest": (
        {"startingOffsets": "latest", "endingOffsets": "earliest"},
        "options startingOffsets and endingOffsets: .* latest .* earliest",
    ),
    "an offset behind its end": (
        {
            "startingOffsets": '{"T": {"b": {"0": 3, "1": 9}}}',
            "endingOffsets": '{"T": {"b": {"0": 3, "1": 8}}}',
        },
        "options startingOffsets and endingOffsets: T/b/1 .* at 9 .* at 8",
    ),
    "the latest of a queue up to an offset": (
        {"startingOffsets": "latest", "endingOffsets": '{"T": {"b": {"4": 8}}}'},
        "options startingOffsets and endingOffsets: T/b/4 .* at latest .* at 8",
    ),
    "an offset up to the earliest": (
        {"startingOffsets": '{"T": {"b": {"4": 0}}}', "endingOffsets": "earliest"},
        "options startingOffsets and endingOffsets: T/b/4 .* at 0 .* at earliest",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_with_the_name_of_the_option(case):
    changes, expected = WRONG[case]
    options = {k: v for k, v in {**BASIC, **changes}.items() if v is not None}
    with pytest.raises(ConfigError, match=expected):
        read_options(options, is_stream=False, environment={})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "pushdown"])
def test_a_stream_has_no_end(name):
    with pytest.raises(ConfigError, match=name):
        read(is_stream=True, **{name: "1"})


@pytest.mark.parametrize("name", ["../etc", "a b", "x" * 256])
def test_names_are_checked_before_anybody_is_asked(name):
    with pytest.raises(InvalidName, match="option topic"):
        read(topic=name)
    with pytest.raises(InvalidName, match="option group"):
        read(group=name)


@pytest.mark.parametrize(("kind", "text"), [("TAG", "||"), ("SQL92", "n >"), ("SQL92", "n = ")])
def test_filters_are_understood_before_anybody_is_asked(kind, text):
    with pytest.raises(InvalidExpression, match=f"of the option filter .*filterType={kind}"):
        read(filterType=kind, filter=text)


def test_bodies_that_cannot_be_read_are_null_only_where_they_are_parsed():
    assert read().body_mode is BodyMode.FAILFAST
    assert read(bodyFormat="text").body_mode is BodyMode.FAILFAST
    assert read(bodyFormat="json", bodySchema="a int").body_mode is BodyMode.PERMISSIVE


def test_only_the_latest_means_something_else_later():
    assert read(startingOffsets="latest").starting.moves
    assert read(startingOffsets='{"T": {"b": {"0": -1}}}').starting.moves
    assert not read(startingOffsets='{"T": {"b": {"0": 5, "1": -2}}}').starting.moves
    assert not read(startingTimestamp="5").starting.moves


def test_without_name_servers_the_error_says_how_to_name_them():
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        read_options({"topic": "T"}, is_stream=False, environment={})


def test_a_write_goes_to_one_topic():
    with pytest.raises(ConfigError, match="column topic"):
        write_options({**BASIC, "topic": "A,B"}, is_stream=False, environment={})
    assert write_options(BASIC, is_stream=True, environment={}).topic == "OrderTopic"


def test_a_write_goes_to_no_path():
    with pytest.raises(ConfigError, match=r"option path: .*give option topic"):
        write_options({**BASIC, "path": "/tmp/x"}, is_stream=True, environment={})


def test_a_write_promises_what_it_can_keep():
    with pytest.raises(ConfigError, match="deliveryGuarantee"):
        write_options({**BASIC, "deliveryGuarantee": "always"}, is_stream=True, environment={})


def test_a_send_fits_in_a_frame():
    with pytest.raises(ConfigError, match=r"batchBytes='16m': .* from 1 to 8m is allowed"):
        write_options({**BASIC, "batchBytes": "16m"}, is_stream=False, environment={})
    assert write_options(
        {**BASIC, "batchBytes": "8m"}, is_stream=False, environment={}
    ).batch_bytes == (8 << 20)


def test_the_manual_says_of_every_option_what_the_code_says():
    text = PAGE.read_text()
    for options in (READ_OPTIONS, WRITE_OPTIONS):
        for name, meaning in options.items():
            shown = meaning.replace("|", "\\|")
            assert f"| `{name}` | {shown} |" in text


def test_flags_have_no_case():
    assert not read(failOnDataLoss="False").fail_on_data_loss
    assert read(failOnDataLoss="TRUE").fail_on_data_loss
