"""Records as columns: the compiled twin builds what the pure code builds, for any messages."""

import os
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
from skylark.spark.bodies import UnreadableBody  # noqa: E402
from skylark.spark.columns import Layout, pure_batches, to_batches  # noqa: E402
from skylark.spark.offsets import QueueKey  # noqa: E402
from skylark.spark.options import BodyFormat, BodyMode  # noqa: E402
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


QUEUE = QueueKey("T", "b", 3)


def both(
    data,
    *,
    start=0,
    end=2**62,
    names=tuple(COLUMNS),
    tags=None,
    body=BodyFormat.BINARY,
    mode=BodyMode.FAILFAST,
    bytes_max=1 << 22,
):
    layout = Layout(tuple(names), body, tags, mode)
    schema = schema_of(names)
    if body is BodyFormat.TEXT:
        schema = pa.schema(
            [f if f.name != "body" else pa.field("body", pa.string()) for f in schema]
        )
    arguments = {
        "queue": QUEUE,
        "start": start,
        "end": end,
        "layout": layout,
        "schema": schema,
        "bytes_max": bytes_max,
    }
    mine = list(to_batches(data, **arguments))
    pure = list(pure_batches(data, **arguments))
    rows = []
    for batch in mine:
        batch.validate(full=True)
        assert batch.schema == schema
        rows += batch.to_pylist()
    assert rows == [row for batch in pure for row in batch.to_pylist()]
    return rows


@given(
    st.lists(st.tuples(st.binary(max_size=50), PROPERTIES, st.sampled_from([0, 0x10, 0x20, 0x30]))),
    st.sets(st.sampled_from(sorted(TYPES)), min_size=1),
)
def test_both_ways_give_the_same_rows(messages, names):
    data = b"".join(
        record(at, body, properties, flag) for at, (body, properties, flag) in enumerate(messages)
    )
    rows = both(data, names=tuple(sorted(names)))
    assert len(rows) == len(messages)


@given(st.binary(max_size=60))
def test_properties_of_any_bytes_are_read_alike(raw):
    both(record(raw=raw), names=("tag", "keys", "properties", "message_id"))


def test_only_the_offsets_asked_for_are_there():
    data = b"".join(record(at) for at in range(10))
    rows = both(data, start=3, end=6)
    assert [row["queue_offset"] for row in rows] == [3, 4, 5]
    assert both(data, start=10, end=20) == []
    assert both(b"") == []


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


@pytest.mark.parametrize("kind", list(CompressionType))
def test_compressed_bodies_are_expanded(kind):
    packed = compress(b"long " * 1_000, kind)
    data = record(0) + record(1, packed, sys_flag=with_compression(1, kind))
    assert [row["body"] for row in both(data)] == [b"x", b"long " * 1_000]


def test_a_body_that_does_not_expand_is_named_by_its_place():
    data = record(4, b"no zlib", sys_flag=with_compression(1, CompressionType.ZLIB))
    with pytest.raises(UnreadableBody, match=r"topic T broker b queue 3 offset 4.*bodyMode"):
        both(data)
    with_others = record(3) + data + record(5)
    rows = both(with_others, mode=BodyMode.PERMISSIVE)
    assert [row["body"] for row in rows] == [b"x", None, b"x"]
    rows = both(with_others, mode=BodyMode.DROPMALFORMED)
    assert [row["queue_offset"] for row in rows] == [3, 5]
    assert len(both(data, names=("topic",))) == 1, "nobody asked for the body"


@pytest.mark.parametrize("kind", list(CompressionType))
def test_a_bomb_does_not_go_off(kind):
    bomb = compress(b"\0" * (64 << 20), kind)
    data = record(4, bomb, sys_flag=with_compression(1, kind))
    for build in (to_batches, pure_batches):
        arguments = {"queue": QUEUE, "start": 0, "end": 9, "bytes_max": 1 << 22}
        layout, schema = Layout(("body",)), schema_of(("body",))
        with pytest.raises(UnreadableBody, match="offset 4"):
            list(build(data, layout=layout, schema=schema, **arguments))
    assert [row["body"] for row in both(data + record(5), mode=BodyMode.PERMISSIVE)] == [None, b"x"]


def test_text_that_is_none_is_marked():
    rows = both(record(0, "да".encode()) + record(1, b"\xff!"), body=BodyFormat.TEXT)
    assert [row["body"] for row in rows] == ["да", "\ufffd!"]


FIELDS = types.StructType().add("id", types.LongType()).add("name", types.StringType())


def parsed(bodies, fields=FIELDS, mode=BodyMode.PERMISSIVE, names=("body",)):
    struct = types.StructType()
    for name in names:
        struct = struct.add(name, fields if name == "body" else KINDS[TYPES[name]])
    schema = arrow_schema(struct)
    data = b"".join(record(at, body) for at, body in enumerate(bodies))
    layout = Layout(tuple(names), BodyFormat.JSON, None, mode)
    arguments = {"queue": QUEUE, "start": 0, "end": 99, "layout": layout, "schema": schema}
    mine = list(to_batches(data, **arguments, bytes_max=1 << 20))
    pure = list(pure_batches(data, **arguments, bytes_max=1 << 20))
    rows = [row for batch in mine for row in batch.to_pylist()]
    assert rows == [row for batch in pure for row in batch.to_pylist()]
    return rows


ODD = [b'{"id": 1, "name": "n", "more": 2}', b"{", b"[1]", b'{"id": "x"}', b'{"name": null}']


def test_json_becomes_fields_and_what_is_none_becomes_null():
    assert [row["body"] for row in parsed(ODD)] == [
        {"id": 1, "name": "n"},
        None,
        None,
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]


def test_json_that_does_not_fit_is_left_out_or_ends_the_query_as_asked():
    rows = parsed(ODD, mode=BodyMode.DROPMALFORMED, names=("queue_offset", "body"))
    assert [row["queue_offset"] for row in rows] == [0, 4]
    with pytest.raises(UnreadableBody, match=r"offset 1: .*bodySchema.*bodyMode"):
        parsed(ODD, mode=BodyMode.FAILFAST)
    assert parsed([ODD[0], ODD[4]], mode=BodyMode.FAILFAST)[0]["body"]["id"] == 1


def test_json_of_every_kind_is_read_or_null():
    fields = (
        types.StructType()
        .add("at", types.TimestampType())
        .add("day", types.DateType())
        .add("price", types.DecimalType(10, 2))
        .add("many", types.ArrayType(types.IntegerType()))
        .add("inner", types.StructType().add("flag", types.BooleanType()))
        .add("named", types.MapType(types.StringType(), types.DoubleType()))
    )
    good = (
        b'{"at": "2026-11-15T08:00:00Z", "day": "2026-11-15", "price": 1.25, "many": [1, null],'
        b' "inner": {"flag": true}, "named": {"a": 0.5}}'
    )
    bad = b'{"at": 5, "day": "soon", "price": "much", "many": 1, "inner": [], "named": {"a": "b"}}'
    first, second = (row["body"] for row in parsed([good, bad], fields))
    assert str(first["at"]) == "2026-11-15 08:00:00+00:00"
    assert (str(first["day"]), str(first["price"])) == ("2026-11-15", "1.25")
    assert (first["many"], first["inner"]) == ([1, None], {"flag": True})
    assert first["named"] == [("a", 0.5)]
    assert set(second.values()) == {None}


def test_batches_are_bounded_however_much_a_few_bytes_stand_for():
    packed = compress(bytes(1 << 20), CompressionType.ZLIB)
    flag = with_compression(1, CompressionType.ZLIB)
    data = b"".join(record(at, packed, sys_flag=flag) for at in range(40))
    assert len(data) < 100_000
    schema, layout = schema_of(("body",)), Layout(("body",))
    arguments = {"queue": QUEUE, "start": 0, "end": 99, "layout": layout, "schema": schema}
    for build in (to_batches, pure_batches):
        sizes = [batch.nbytes for batch in build(data, **arguments, bytes_max=4 << 20)]
        assert max(sizes) <= 5 << 20, "what was asked for, and one message more"
        assert sum(sizes) >= 40 << 20


def test_a_message_larger_than_a_batch_is_a_batch():
    data = record(0, b"a" * 5_000) + record(1, b"b" * 5_000)
    assert [len(row["body"]) for row in both(data, bytes_max=1_000)] == [5_000, 5_000]


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_records_are_read_or_refused_by_the_compiled_code_as_by_the_pure(noise, at):
    data = bytearray(b"".join(record(number, b"body") for number in range(4)))
    data[at : at + len(noise)] = noise
    schema = schema_of(tuple(TYPES))
    arguments = {
        "queue": QUEUE, "start": 0, "end": 10, "layout": Layout(tuple(TYPES)), "schema": schema,
        "bytes_max": 1 << 20,
    }  # fmt: skip

    def outcome(build):
        rows = []
        try:
            for batch in build(bytes(data), **arguments):
                batch.validate(full=True)
                rows += batch.to_pylist()
        except UnreadableBody as error:
            return str(error)
        return rows

    assert outcome(to_batches) == outcome(pure_batches)


def test_damage_is_no_matter_of_a_mode():
    for mode in BodyMode:
        with pytest.raises(UnreadableBody, match=r"queue 3: .*record at 0:") as caught:
            both(b"\0" * 100, mode=mode)
        assert "bodyMode" not in str(caught.value)


def test_the_compiled_columns_are_used_unless_the_pure_ones_are_asked_for():
    is_pure = os.environ.get("SKYLARK_PURE") == "1"
    assert (columns._columns is None) == is_pure, "not built? make install"
