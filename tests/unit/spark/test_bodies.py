"""JSON bodies: which schemas there are, and what fits one, whatever stands beside it."""

import json
import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as spark

from skylark.errors import ConfigError
from skylark.spark.bodies import parsed_bodies
from skylark.spark.options import read_options
from skylark.spark.schema import COLUMNS, EXTRA_COLUMNS, checked_columns, default_schema


def parsed(kind, *bodies):
    """The bodies as Python has them, and which were bad."""
    raw = [body.encode() if isinstance(body, str) else body for body in bodies]
    array, bad = parsed_bodies(pa.array(raw, pa.binary()), kind)
    array.validate(full=True)
    assert len(array) == len(bodies)
    return array.to_pylist(), bad


def one(kind, text):
    """What becomes of a member; Ellipsis if it does not fit."""
    ((value,), bad) = parsed(pa.struct([("x", kind)]), f'{{"x":{text}}}')
    assert not bad or value == {"x": None}
    return ... if bad else value["x"]


MAP = pa.map_(pa.string(), pa.int32())
STAMP = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.decimal128(20, 2), "123456789012345678.12", Decimal("123456789012345678.12")),
        (pa.decimal128(20, 2), '"123456789012345678.12"', Decimal("123456789012345678.12")),
        (pa.decimal128(20, 2), "1e3", Decimal("1000.00")),
        (pa.decimal128(5, 2), "1.250", Decimal("1.25")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "1e308", 1e308),
        (pa.float64(), "Infinity", math.inf),
        (pa.float64(), "1e-400", 0.0),
        (pa.float32(), "3.4028234e38", struct.unpack("f", struct.pack("f", 3.4028234e38))[0]),
        (pa.int8(), "-128", -128),
        (pa.list_(pa.string()), '["a",null]', ["a", None]),
        (pa.list_(pa.int32()), "[]", []),
        (pa.struct([("y", pa.int32())]), '{"z":1}', {"y": None}),
        (MAP, '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        (pa.binary(), '"ж"', "ж".encode()),
        (pa.date32(), '"2024-01-01"', date(2024, 1, 1)),
        (STAMP, '"2024-01-01T02:00:00+02:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        (STAMP, '"2024-01-01"', datetime(2024, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_a_member_of_the_type_is_what_it_was(kind, text, expected):
    assert one(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "true"),
        (pa.int64(), "1.0"),
        (pa.int64(), '"1"'),
        (pa.int8(), "128"),
        (pa.int64(), str(2**63)),
        (pa.float64(), "true"),
        (pa.float64(), '"1"'),
        (pa.float64(), "1e400"),
        (pa.float64(), "1" + "0" * 400),
        (pa.float32(), "1e300"),
        (pa.bool_(), "1"),
        (pa.string(), "1"),
        (pa.string(), r'"\ud800"'),
        (pa.binary(), r'"\ud800"'),
        (pa.list_(pa.string()), '"abc"'),
        (pa.list_(pa.string()), '{"a":1}'),
        (pa.list_(pa.int32()), '""'),
        (pa.list_(pa.int32()), "[1,true]"),
        (pa.struct([("y", pa.int32())]), '[["y",1]]'),
        (pa.struct([("y", pa.int32())]), '{"y":"a"}'),
        (MAP, '[["a",1]]'),
        (MAP, r'{"\ud800":1}'),
        (MAP, '{"a":"z"}'),
        (pa.decimal128(5, 2), "1.255"),
        (pa.decimal128(5, 2), "1000"),
        (pa.decimal128(5, 2), "true"),
        (pa.decimal128(5, 2), "NaN"),
        (pa.decimal128(5, 2), '"sNaN"'),
        (pa.decimal128(5, 2), "1e999999999"),
        (pa.decimal128(5, 2), "1e-999999999"),
        (pa.decimal128(5, 2), '"1e-999999999"'),
        (pa.decimal128(5, 2), "1e-99999999999999999999"),
        (pa.date32(), '"2024-01-01T00:00:00"'),
        (STAMP, "1"),
        (STAMP, '"0001-01-01T00:00:00+14:00"'),
        (STAMP, '"9999-12-31T23:59:59-14:00"'),
    ],
    ids=str,
)
def test_a_member_of_another_type_does_not_fit(kind, text):
    assert one(kind, text) is ...


@pytest.mark.parametrize("body", ["[1]", "1", "", "{", '{"x":1}x', b"\xff\xfe{", "[" * 100_000])
def test_what_is_no_object_is_null(body):
    assert parsed(pa.struct([("x", pa.int64())]), body, '{"x":1}') == ([None, {"x": 1}], [0])


def test_only_the_member_that_does_not_fit_is_null():
    kind = pa.struct([("m", MAP), ("id", pa.int64())])
    assert parsed(kind, r'{"m":{"\ud800":1},"id":7}') == ([{"m": None, "id": 7}], [0])


def required(name, kind):
    return pa.field(name, kind, nullable=False)


@pytest.mark.parametrize("body", ['{"name":"a"}', '{"id":null,"name":"a"}', '{"id":"x"}'])
def test_without_a_member_that_must_be_there_the_body_is_null(body):
    kind = pa.struct([required("id", pa.int64()), ("name", pa.string())])
    assert parsed(kind, body, '{"id":1}') == ([None, {"id": 1, "name": None}], [0])


def test_the_smallest_part_around_it_that_may_be_null_is():
    inner = pa.struct([required("y", pa.int32())])
    kind = pa.struct([("a", inner), ("b", pa.int32())])
    assert parsed(kind, '{"a":{},"b":1}') == ([{"a": None, "b": 1}], [0])
    kind = pa.struct([required("a", inner), ("b", pa.int32())])
    assert parsed(kind, '{"a":{},"b":1}') == ([None], [0])


def test_parts_of_lists_and_maps_may_have_to_be_there_too():
    kind = pa.list_(required("element", pa.int32()))
    assert one(kind, "[1,2]") == [1, 2]
    assert one(kind, "[1,null]") is ...
    kind = pa.map_(pa.string(), required("value", pa.int32()))
    assert one(kind, '{"a":1}') == [("a", 1)]
    assert one(kind, '{"a":null}') is ...


def as_object(*members):
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members) + "}"


SCALARS = st.sampled_from(
    [
        pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
        pa.decimal128(5, 2), pa.decimal128(38, 10), pa.date32(), STAMP,
    ]
)  # fmt: skip
NAMES = ("a", "b", "c")


def structs(kinds):
    fields = st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=3)
    return fields.map(
        lambda found: pa.struct(
            [pa.field(n, k, nullable=f) for n, (k, f) in zip(NAMES, found, strict=False)]
        )
    )


KINDS = st.recursive(
    SCALARS,
    lambda kinds: (
        structs(kinds)
        | st.tuples(kinds, st.booleans()).map(lambda x: pa.list_(pa.field("e", x[0], x[1])))
        | st.tuples(kinds, st.booleans()).map(
            lambda x: pa.map_(pa.string(), pa.field("value", x[0], x[1]))
        )
    ),
    max_leaves=5,
)
NUMBERS = st.sampled_from(
    ["0", "1", "1.0", "true", "-129", "1.25", "1.255", "1e300", "1e400", "1e-400", "NaN",
     "Infinity", "9007199254740993", "123456789012345678.12", str(2**63), "1e-99999999999999999999"]
)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "abc", "ж", "\ud800", "1.25", "NaN", "2024-01-01", "2024-01-01T00:00:00Z",
     "0001-01-01T00:00:00+14:00"]
)  # fmt: skip
VALUES = st.recursive(
    st.just("null") | NUMBERS | TEXTS.map(json.dumps),
    lambda values: (
        st.lists(values, max_size=3).map(lambda found: f"[{','.join(found)}]")
        | st.dictionaries(st.sampled_from([*NAMES, "\ud800"]), values, max_size=3).map(
            lambda found: as_object(*found.items())
        )
    ),
    max_leaves=8,
)


def of_kind(draw, kind):
    """JSON that has a good chance to fit."""
    if draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    if pa.types.is_struct(kind):
        return as_object(*((f.name, of_kind(draw, f.type)) for f in kind))
    if pa.types.is_map(kind):
        return as_object(("k", of_kind(draw, kind.item_type)))
    if pa.types.is_list(kind):
        return f"[{of_kind(draw, kind.value_type)},{of_kind(draw, kind.value_type)}]"
    if pa.types.is_boolean(kind):
        return draw(st.sampled_from(["true", "false"]))
    if pa.types.is_integer(kind):
        return str(draw(st.integers(-128, 127)))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return draw(st.sampled_from(["1", "1.25", "-0.5"]))
    return draw(st.sampled_from(['"2024-01-01"', '"a"']))


@st.composite
def batches(draw):
    kind = draw(structs(KINDS))
    bodies = [of_kind(draw, kind) for _ in range(draw(st.integers(1, 5)))]
    return kind, bodies


@given(batches())
def test_a_body_is_the_same_whatever_stands_beside_it(batch):
    kind, bodies = batch
    rows, bad = parsed(kind, *bodies)
    for row, body in enumerate(bodies):
        (alone,), alone_bad = parsed(kind, body)
        assert repr(rows[row]) == repr(alone)
        assert (row in bad) == bool(alone_bad)


@given(batches())
def test_a_body_that_fits_is_what_json_says(batch):
    kind, bodies = batch
    rows, bad = parsed(kind, *bodies)
    for row, body in enumerate(bodies):
        if row not in bad:
            assert agrees(rows[row], json.loads(body, parse_float=Decimal), kind)


def agrees(found, said, kind, nullable=True):
    """Whether a value stands for what JSON says, by rules written anew."""
    if said is None:
        return found is None and nullable
    types = pa.types
    if types.is_struct(kind):
        return isinstance(said, dict) and all(
            agrees(found[f.name], said.get(f.name), f.type, f.nullable) for f in kind
        )
    if types.is_map(kind):
        item = kind.item_field
        return [k for k, _ in found] == [*said] and all(
            agrees(value, said[k], item.type, item.nullable) for k, value in found
        )
    if types.is_list(kind):
        item = kind.value_field
        return isinstance(said, list) and all(
            agrees(f, s, item.type, item.nullable) for f, s in zip(found, said, strict=True)
        )
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind):
        return found == said and type(found) is type(said)
    if types.is_floating(kind):
        if isinstance(said, bool) or not isinstance(said, int | float | Decimal):
            return False
        near = abs(found - float(said)) <= abs(float(said)) * 1e-6 if math.isfinite(said) else True
        return math.isfinite(found) == math.isfinite(said) and near
    if types.is_decimal(kind):
        return not isinstance(said, bool) and found == Decimal(said)
    if types.is_binary(kind):
        return found == said.encode()
    if types.is_date(kind):
        return found == date.fromisoformat(said)
    return found.replace(tzinfo=UTC) == datetime.fromisoformat(said).replace(tzinfo=UTC)


def test_a_member_that_nobody_asks_for_may_have_any_number_of_digits():
    digits = "9" * 5_000
    kind = pa.struct([("id", pa.int64()), ("price", pa.decimal128(5, 2))])
    wanted = {"id": 1, "price": Decimal("1.50")}
    body = f'{{"id":1,"price":1.5,"x":{digits},"y":[{digits}]}}'
    assert parsed(kind, body) == ([wanted], [])
    assert one(pa.int64(), digits) is ...
    assert one(pa.decimal128(38, 0), digits) is ...
    assert one(pa.float64(), digits) is ...
    assert parsed(kind, f'{{"id":1,"x":{digits}') == ([None], [0])


# What bodySchema may say, and a schema of one's own.

BASIC = {"namesrv": "127.0.0.1:9876", "topic": "OrderTopic"}


def columns_of(schema, **options):
    """The columns that a schema asks for, as reader() is given it."""
    return checked_columns(
        schema, read_options({**BASIC, **options}, is_stream=False, environment={})
    )


def body_of(text, kind, *, nullable=True, **options):
    schema = spark.StructType([spark.StructField("body", kind, nullable)])
    return columns_of(schema, bodyFormat="json", bodySchema=text, **options)


LONG = spark.LongType()
ID = spark.StructType([spark.StructField("id", LONG)])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("id long", "id:bigint"),
        ("id: BIGINT NOT NULL COMMENT 'a, \\'b\\'', b string", "id:bigint,b:string"),
        ("`a b` int, `c``d` Real, 1e byte", "a b:int,c`d:float,1e:tinyint"),
        ("a dec, b decimal(5), c numeric(38, 10)",
         "a:decimal(10,0),b:decimal(5,0),c:decimal(38,10)"),
        ("a array<array<int>>, m map<string,struct<x: date>>",
         "a:array<array<int>>,m:map<string,struct<x:date>>"),
        ("a varchar(3), b timestamp_ltz,c timestamp_ntz", "a:string,b:timestamp,c:timestamp_ntz"),
    ],
)  # fmt: skip
def test_body_schemas_are_understood_as_spark_does(text, kind):
    with pytest.raises(ConfigError, match="is not possible"):
        body_of(text, spark.StringType())

    class AsSparkSays(spark.StructType):
        def simpleString(self):
            return f"struct<{kind}>"

    assert body_of(text, AsSparkSays()) == ["body"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id lung", "'lung' is not a type"),
        ("id long,, name", "',' is not a name"),
        ("id long,", "the end is not a name"),
        ("id", "the end is not a type"),
        ("id long name string", "'name' is not the end or ','"),
        ("id long> , x struct<a int", "'>' is not the end"),
        ("id array<int", "the end is not '>'"),
        ("id map<int,string>", "keys of a map"),
        ("id int, id string", "id is there twice"),
        ("id decimal(39)", "1 to 38 digits"),
        ("id decimal(2,3)", "1 to 38 digits"),
        ("id interval", "'interval' is not a type"),
        ("id variant", "'variant' is not a type"),
        ("id int not", "the end is not 'null'"),
        ("id int comment x", "a comment stands in quotes"),
        ("id-x int", "'-x int' is not understood"),
        ("id " + "array<" * 100_000, "it is too deep"),
    ],
)
def test_a_body_schema_that_cannot_be_is_refused_in_one_line(text, problem):
    options = read_options(
        {**BASIC, "bodyFormat": "json", "bodySchema": text}, is_stream=False, environment={}
    )
    for check in (default_schema, lambda found: checked_columns(ID, found)):
        with pytest.raises(ConfigError) as caught:
            check(options)
        message = str(caught.value)
        assert message.startswith(f"option bodySchema={text[:80]!r}: ")
        assert problem in message
        assert "decimal(p,s), array<...>" in message
        assert "\n" not in message
        assert "queue_offset" not in message


def test_a_schema_of_ones_own_has_the_fields_of_body_schema():
    assert body_of("id long", ID) == ["body"]
    assert body_of("id long", spark.StructType([spark.StructField("id", LONG, False)])) == ["body"]
    other = spark.StructType([spark.StructField("nope", spark.IntegerType())])
    with pytest.raises(
        ConfigError, match="column body: struct<nope:int> is not possible, it is struct<id:bigint>"
    ):
        body_of("id long", other)


def test_times_in_bodies_have_a_zone_whatever_a_session_makes_of_their_type():
    text = (
        "timestamp Timestamp NOT NULL, b array<timestamp>, c timestamp_ntz, "
        "d int comment 'timestamp'"
    )
    options = read_options(
        {**BASIC, "bodyFormat": "json", "bodySchema": text}, is_stream=False, environment={}
    )
    assert (
        "struct<timestamp timestamp_ltz NOT NULL, b array<timestamp_ltz>, c timestamp_ntz, "
        "d int comment 'timestamp'>" in default_schema(options)
    )


@pytest.mark.parametrize("name", ["tag", "keys"])
def test_a_column_that_may_be_null_is_not_taken_as_one_that_may_not(name):
    schema = spark.StructType([spark.StructField(name, spark.StringType(), False)])
    with pytest.raises(ConfigError, match=f"column {name}: NOT NULL is not possible"):
        columns_of(schema)


def test_a_body_may_be_null_only_where_the_mode_says_so():
    for mode in ("failfast", "dropmalformed"):
        assert body_of("id long", ID, nullable=False, bodyMode=mode) == ["body"]
    with pytest.raises(ConfigError, match=r"column body: NOT NULL .* bodyMode=permissive"):
        body_of("id long", ID, nullable=False)


def test_all_other_columns_are_never_null():
    names = {**COLUMNS, **EXTRA_COLUMNS}.keys() - {"tag", "keys"}
    kinds = {
        "string": spark.StringType(),
        "int": spark.IntegerType(),
        "bigint": spark.LongType(),
        "binary": spark.BinaryType(),
        "timestamp": spark.TimestampType(),
        "map<string,string>": spark.MapType(spark.StringType(), spark.StringType(), False),
    }
    fields = [
        spark.StructField(name, kinds[{**COLUMNS, **EXTRA_COLUMNS}[name]], False) for name in names
    ]
    assert columns_of(spark.StructType(fields)) == [*names]
