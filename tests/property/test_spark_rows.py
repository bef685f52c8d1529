"""Rows as entries of a batch: both encoders make the same bytes, and these say what was meant."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.clock import SystemClock
from skylark.errors import ConfigError, LocalProtocolError
from skylark.protocol.batch import decode_batch
from skylark.protocol.message_id import UniqueIdGenerator
from skylark.protocol.properties import parse_properties
from skylark.spark import rows as module
from skylark.spark.rows import PureRows, plain_rows, single_rows

MARK = b"0A0000010203040506070809000102"
TEXTS = st.one_of(st.none(), st.text(max_size=12), st.just("o-1 o-2"))
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


def test_what_cannot_be_sent_is_left_to_the_one_that_says_why() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"a", b"b", None]), "tag": pa.array(["t", "t\x02u", None])}
    )
    found = plain_rows(batch)
    assert found is not None
    assert found.encode(0, 1 << 20, MARK, 0)[1] == 1
    assert found.encode(1, 1 << 20, MARK, 0) == (b"", 0)
    assert found.encode(2, 1 << 20, MARK, 0) == (b"", 0)
    with pytest.raises(LocalProtocolError, match="separator"):
        list(single_rows(batch.slice(1, 1), "T", ids()))
    with pytest.raises(ConfigError, match="column body"):
        list(single_rows(batch.slice(2), "T", ids()))


def test_the_compiled_encoder_is_there_where_it_was_built() -> None:
    assert module._rows is None or hasattr(module._rows, "Columns")
