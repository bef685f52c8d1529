"""Rows as entries of a batch: both encoders make the same bytes, and these say what was meant."""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.clock import SystemClock
from skylark.errors import ConfigError
from skylark.model.message import RESERVED_PROPERTIES
from skylark.model.topic import SYSTEM_TOPICS, UNSENDABLE_TOPICS
from skylark.protocol.batch import decode_batch
from skylark.protocol.message_id import UniqueIdGenerator
from skylark.protocol.properties import parse_properties
from skylark.spark import mirror, replay
from skylark.spark import rows as module
from skylark.spark.rows import PureRows, plain_rows, single_rows

MARK = b"0A0000010203040506070809000102"
TEXTS = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.sampled_from(["o-1 o-2", "A||B", "A|B|", "||", " ", "\x1f", "\u2003", "\u3000\x85", "їжа"]),
)
BODIES = st.one_of(st.none(), st.binary(max_size=40)) | st.binary(max_size=40)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Record batches such as Spark hands over, also cut out of longer ones."""
    count = draw(st.integers(0, 12))
    as_text = draw(st.booleans())
    bodies: list[Any] = draw(st.lists(BODIES, min_size=count, max_size=count))
    if as_text:
        bodies = [body if body is None else body.hex() for body in bodies]
    columns = {"body": pa.array(bodies, pa.string() if as_text else pa.binary())}
    for name in ("tag", "keys"):
        if draw(st.booleans()):
            texts = [
                None if text is None else text.encode("utf-8", "replace").decode()
                for text in draw(st.lists(TEXTS, min_size=count, max_size=count))
            ]
            columns[name] = pa.array(texts, pa.string())
    batch = pa.RecordBatch.from_pydict(columns)
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


@given(batches(), st.integers(0, 200), st.integers(0, 0xFFFF))
def test_both_encoders_make_the_same_bytes(
    batch: pa.RecordBatch, bytes_max: int, counter: int
) -> None:
    lists = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    pure = PureRows(lists["body"], lists.get("tag"), lists.get("keys"))
    found = plain_rows(batch)
    assert found is not None
    assert found.rows == batch.num_rows
    start = 0
    while start < batch.num_rows:
        entries, count = found.encode(start, bytes_max, MARK, counter)
        assert (entries, count) == pure.encode(start, bytes_max, MARK, counter)
        if not count:
            start += 1
            continue
        decoded = decode_batch(entries)
        assert len(decoded) == count
        for number, entry in enumerate(decoded):
            row = start + number
            body = lists["body"][row]
            assert entry.body == (body.encode() if isinstance(body, str) else body)
            expected = {
                "TAGS": lists.get("tag", [None] * batch.num_rows)[row] or None,
                "KEYS": lists.get("keys", [None] * batch.num_rows)[row] or None,
                "UNIQ_KEY": f"{MARK.decode()}{(counter + number) & 0xFFFF:04X}",
                "WAIT": "true",
            }
            assert parse_properties(entry.properties) == {
                name: value for name, value in expected.items() if value
            }
        start += count


class _Still(SystemClock):
    def now_ms(self) -> int:
        return 1_700_000_000_000


def ids() -> UniqueIdGenerator:
    return UniqueIdGenerator(
        _Still(), ip="10.0.0.1", pid=7, process_mark=random.Random(1).getrandbits(32)
    )


def test_ids_that_are_set_aside_are_the_next_ones() -> None:
    one, other = ids(), ids()
    mark, first = one.take(3)
    taken = [f"{mark}{first + number:04X}" for number in range(3)]
    assert taken == [other.next() for _ in range(3)]
    assert one.next() == other.next()


@pytest.mark.parametrize(
    "columns",
    [
        {"body": pa.array([b"x"]), "sharding_key": pa.array(["k"])},
        {"body": pa.array([b"x"]), "keys": pa.array([["a", "b"]])},
        {"body": pa.array([b"x"], pa.large_binary())},
    ],
)
def test_rows_that_say_more_are_looked_at_one_by_one(columns: dict[str, pa.Array]) -> None:
    assert plain_rows(pa.RecordBatch.from_pydict(columns)) is None


def one(**columns: Any) -> dict[str, str]:
    """The properties of a row that is looked at by itself."""
    maps = pa.map_(pa.string(), pa.string())
    arrays = {
        name: pa.array([value], maps) if isinstance(value, dict) else pa.array([value])
        for name, value in {"body": b"x", **columns}.items()
    }
    (row,) = single_rows(pa.RecordBatch.from_pydict(arrays), "T", ids())
    return dict(parse_properties(row.entry.properties))


def refused(**columns: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        one(**columns)
    return str(caught.value)


@pytest.mark.parametrize("tag", ["t\x02u", "t\x01u", "A||B", "||", " ", "\u2003\t"])
def test_what_cannot_be_sent_is_left_to_the_one_that_says_why(tag: str) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"a", b"b", None]), "tag": pa.array(["t", tag, None])}
    )
    found = plain_rows(batch)
    assert found is not None
    assert found.encode(0, 1 << 20, MARK, 0)[1] == 1
    assert found.encode(1, 1 << 20, MARK, 0) == (b"", 0)
    assert found.encode(2, 1 << 20, MARK, 0) == (b"", 0)
    with pytest.raises(ConfigError, match="column tag: "):
        list(single_rows(batch.slice(1, 1), "T", ids()))
    with pytest.raises(ConfigError, match="column body"):
        list(single_rows(batch.slice(2), "T", ids()))


@pytest.mark.parametrize("tag", ["A", "A|B", "|", " A", "їжа", "\u3000A", ""])
def test_other_tags_are_sent_many_at_a_time(tag: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"a"] * 3), "tag": pa.array([tag] * 3)})
    found = plain_rows(batch)
    assert found is not None
    assert found.encode(0, 1 << 20, MARK, 0)[1] == 3
    assert one(tag=tag).get("TAGS", "") == tag


@pytest.mark.parametrize("keys", [["a", None], [None], ["a", ""], ["a b"], ["a\x01"], ["\x02"]])
def test_keys_that_are_none_are_refused_by_the_name_of_their_column(keys: list[Any]) -> None:
    assert refused(keys=pa.array([keys], pa.list_(pa.string()))[0].as_py()).startswith(
        "column keys: "
    )


def test_keys_are_an_array_or_one_text() -> None:
    assert one(keys=["a", "b"])["KEYS"] == "a b"
    assert one(keys="a b")["KEYS"] == "a b"
    assert "KEYS" not in one(keys="")
    assert refused(keys="a\x01b").startswith("column keys: ")


@pytest.mark.parametrize("unit_us", [1_000, 1])
def test_no_row_is_delivered_before_its_time(unit_us: int) -> None:
    first = 1_763_500_000_000_000
    times = range(first, first + 2_000 * unit_us, unit_us)
    column = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 2_000), "deliver_time": column})
    found = [
        int(parse_properties(row.entry.properties)["TIMER_DELIVER_MS"])
        for row in single_rows(batch, "T", ids())
    ]
    assert found == [-(-time // 1_000) for time in times]


def test_times_beyond_the_years_that_python_has_are_left_to_the_broker() -> None:
    column = pa.array([300_000_000_000_000_000, -1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 2), "deliver_time": column})
    found = [
        parse_properties(row.entry.properties)["TIMER_DELIVER_MS"]
        for row in single_rows(batch, "T", ids())
    ]
    assert found == ["300000000000000", "0"]


@pytest.mark.parametrize(
    "more", [{"a\x01": "1"}, {"a\x02": "1"}, {"": "1"}, {"a": "\x01"}, {"a": "\x02"}]
)
def test_properties_that_would_read_back_as_others_are_refused(more: dict[str, str]) -> None:
    assert refused(properties=more).startswith("column properties: ")


@pytest.mark.parametrize("name", sorted({*RESERVED_PROPERTIES, "SINK_ROW"}))
def test_properties_that_the_system_sets_are_refused(name: str) -> None:
    assert refused(properties={"a": "1", name: "2"}).startswith(
        f"column properties: {name} is set by the system; "
    )


def test_the_refusal_names_all_of_a_row_and_the_columns_to_use() -> None:
    found = refused(properties={"TAGS": "A", "n": "1", "CLUSTER": "c", "TIMER_DELAY_MS": "1"})
    assert found == (
        "column properties: TAGS, CLUSTER, TIMER_DELAY_MS are set by the system; leave them out, "
        "as user_properties() does, and use column tag, deliver_time"
    )
    found = refused(properties={"CLUSTER": "c"})
    assert found == (
        "column properties: CLUSTER is set by the system; leave it out, as user_properties() does"
    )


@pytest.mark.parametrize("mark", ["MIRROR_ID", "REPLAY_ID"])
def test_copies_keep_what_they_were_read_with(mark: str) -> None:
    # A message that came back from a retry, or of a client that checks no tags, is copied too.
    read = {"ORIGIN_MESSAGE_ID": "1", "RETRY_TOPIC": "T", "TIMER_OUT_MS": "5", "n": "a\x01b"}
    found = one(tag="A||B", properties={**read, mark: "2"})
    assert {**read, mark: "2", "TAGS": "A||B"}.items() <= found.items()
    assert mark in ("MIRROR_ID", *replay._MARKS)


def test_copies_are_made_without_what_no_row_may_have() -> None:
    for name in module._OF_COLUMNS:
        assert name in mirror.OWN_PROPERTIES
        assert refused(properties={name: "1", "MIRROR_ID": "2"}).startswith("column properties: ")


@pytest.mark.parametrize(
    "topic",
    [
        *("", "a b", "a/b", "../x", "тема", "x" * 128, "%RETRY%group", "%DLQ%group", "rmq_sys_x"),
        *sorted(SYSTEM_TOPICS | UNSENDABLE_TOPICS),
    ],
)
def test_topics_of_rows_are_checked_as_those_of_producers(topic: str) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"a", b"b"]), "topic": pa.array(["OrderTopic", topic])}
    )
    found = single_rows(batch, None, ids())
    assert next(found).topic == "OrderTopic"
    with pytest.raises(ConfigError, match=r"^column topic: "):
        next(found)


def test_the_compiled_encoder_is_used_unless_the_pure_one_is_asked_for() -> None:
    found = plain_rows(pa.RecordBatch.from_pydict({"body": pa.array([b"x"])}))
    is_pure = os.environ.get("SKYLARK_PURE") == "1"
    assert isinstance(found, PureRows) == is_pure, "not built? make install"
