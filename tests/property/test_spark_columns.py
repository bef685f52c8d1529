"""Records as columns: the compiled twin builds what the pure code builds, for any messages."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from skylark.model.message import HostAddress  # noqa: E402
from skylark.protocol.compression import CompressionType, compress, with_compression  # noqa: E402
from skylark.protocol.record import encode_record, pack_host  # noqa: E402
from skylark.spark import columns  # noqa: E402
from skylark.spark.columns import Layout, UnreadableBody, pure_batch, to_batch  # noqa: E402
from skylark.spark.options import BodyFormat  # noqa: E402
from skylark.spark.schema import COLUMNS, EXTRA_COLUMNS, arrow_schema  # noqa: E402

TYPES = {**COLUMNS, **EXTRA_COLUMNS}
TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)
PROPERTIES = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "ключ"]) | TEXT, TEXT, max_size=6
)


KINDS = {
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


def schema_of(names):
    return arrow_schema(
        types.StructType([types.StructField(name, KINDS[TYPES[name]]) for name in names])
    )


def record(offset=0, body=b"x", properties=None, sys_flag=0, topic="T", raw=None):
    text = raw
    if text is None:
        text = "\x02".join(f"{k}\x01{v}" for k, v in (properties or {}).items()).encode()
    host = pack_host("10.0.0.1" if not sys_flag & 0x20 else "::1", 10911)
    born = pack_host("10.0.0.2" if not sys_flag & 0x10 else "::2", 4)
    return encode_record(
        topic=topic,
        queue_id=3,
        queue_offset=offset,
        physical_offset=77 + offset,
        body=body,
        properties=text,
        flag=5,
        sys_flag=sys_flag,
        born_at_ms=1_700_000_000_123,
        born_host=born,
        stored_at_ms=1_700_000_000_456 + offset,
        store_host=host,
        reconsume_times=2,
    )


def both(data, *, start=0, end=2**62, names=tuple(COLUMNS), tags=None, body=BodyFormat.BINARY):
    layout = Layout(tuple(names), body, tags)
    schema = schema_of(names)
    if body is BodyFormat.TEXT:
        schema = pa.schema(
            [f if f.name != "body" else pa.field("body", pa.string()) for f in schema]
        )
    arguments = {"broker": "b", "start": start, "end": end, "layout": layout, "schema": schema}
    mine = to_batch(data, **arguments)
    pure = pure_batch(data, **arguments)
    if pure is None:
        assert mine is None
        return None
    mine.validate(full=True)
    assert mine.schema == pure.schema
    assert mine.to_pylist() == pure.to_pylist()
    return pure.to_pylist()


@given(
    st.lists(st.tuples(st.binary(max_size=50), PROPERTIES, st.sampled_from([0, 0x10, 0x20, 0x30]))),
    st.sets(st.sampled_from(sorted(TYPES)), min_size=1),
)
def test_both_ways_give_the_same_rows(messages, names):
    data = b"".join(
        record(at, body, properties, flag) for at, (body, properties, flag) in enumerate(messages)
    )
    rows = both(data, names=tuple(sorted(names)))
    assert len(rows or ()) == len(messages)


@given(st.binary(max_size=60))
def test_properties_of_any_bytes_are_read_alike(raw):
    both(record(raw=raw), names=("tag", "keys", "properties", "message_id"))


def test_only_the_offsets_asked_for_are_there():
    data = b"".join(record(at) for at in range(10))
    rows = both(data, start=3, end=6)
    assert [row["queue_offset"] for row in rows] == [3, 4, 5]
    assert both(data, start=10, end=20) is None
    assert both(b"") is None


def test_tags_are_compared_exactly():
    data = b"".join(
        record(at, properties={"TAGS": tag}) for at, tag in enumerate(["Aa", "BB", "C"])
    )
    # "Aa" and "BB" have one hash, and a broker that knows hashes only sends both.
    rows = both(data, tags=frozenset({"Aa", "C"}))
    assert [row["tag"] for row in rows] == ["Aa", "C"]


def test_a_row_has_what_the_message_has():
    (row,) = both(record(8, b"body", {"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "U", "n": "1"}))
    assert row["topic"] == "T"
    assert row["broker"] == "b"
    assert (row["queue_id"], row["queue_offset"]) == (3, 8)
    assert (row["body"], row["tag"], row["keys"]) == (b"body", "A", "k1 k2")
    assert row["message_id"] == "U"
    assert dict(row["properties"])["n"] == "1"
    assert row["born_time"].timestamp() == pytest.approx(1_700_000_000.123)
    assert row["reconsume_times"] == 2


def test_without_a_unique_key_the_id_is_the_place():
    (row,) = both(record(8))
    place = struct.pack(">4siq", bytes([10, 0, 0, 1]), 10911, 85)
    assert row["message_id"] == place.hex().upper()
    (row,) = both(record(8), names=("offset_message_id", "store_host", "born_host"))
    assert row["store_host"] == str(HostAddress("10.0.0.1", 10911))


@pytest.mark.parametrize("kind", [CompressionType.ZLIB])
def test_compressed_bodies_are_expanded(kind):
    packed = compress(b"long " * 1_000, kind)
    data = record(0) + record(1, packed, sys_flag=with_compression(1, kind))
    assert [row["body"] for row in both(data)] == [b"x", b"long " * 1_000]


def test_a_body_that_does_not_expand_is_named_by_its_place():
    data = record(4, b"no zlib", sys_flag=with_compression(1, CompressionType.ZLIB))
    with pytest.raises(UnreadableBody, match="topic T queue 3 offset 4"):
        both(data)


def test_a_bomb_does_not_go_off():
    bomb = compress(b"\0" * (64 << 20), CompressionType.ZLIB)
    data = record(4, bomb, sys_flag=with_compression(1, CompressionType.ZLIB))
    with pytest.raises(UnreadableBody, match="offset 4"):
        both(data)


def test_text_that_is_none_is_marked():
    rows = both(record(0, "да".encode()) + record(1, b"\xff!"), body=BodyFormat.TEXT)
    assert [row["body"] for row in rows] == ["да", "\ufffd!"]


def test_json_becomes_fields_and_what_is_none_becomes_null():
    fields = types.StructType().add("id", types.LongType()).add("name", types.StringType())
    schema = arrow_schema(types.StructType().add("body", fields))
    bodies = [b'{"id": 1, "name": "n", "more": 2}', b"{", b"[1]", b'{"id": "x"}', b'{"name": null}']
    data = b"".join(record(at, body) for at, body in enumerate(bodies))
    layout = Layout(("body",), BodyFormat.JSON)
    batch = to_batch(data, broker="b", start=0, end=9, layout=layout, schema=schema)
    assert batch.column(0).to_pylist() == [
        {"id": 1, "name": "n"},
        None,
        None,
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_records_never_crash_the_compiled_code(noise, at):
    data = bytearray(b"".join(record(number, b"body") for number in range(4)))
    data[at : at + len(noise)] = noise
    if columns._columns is not None:
        columns._columns.build(bytes(data), 0, 10, tuple(COLUMNS), None)
