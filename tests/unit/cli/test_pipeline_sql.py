"""`skylark pipeline sql`: Spark's rows as what JSON has, without Spark."""

from __future__ import annotations

import datetime
import json
import time
from decimal import Decimal

import pytest

from skylark.cli.pipeline_sql import keys_of, records, topics_of
from skylark.errors import ConfigError, InvalidName

types = pytest.importorskip("pyspark.sql.types")

MOMENT = datetime.datetime(2026, 1, 1, 12, 0, 0, 5_000)


def shown(kind: object, value: object) -> object:
    schema = types.StructType([types.StructField("x", kind)])
    (found,) = records(schema, [(value,)])
    json.dumps(found, allow_nan=False)
    return found["x"]


def test_values_become_what_json_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert shown(types.TimestampType(), MOMENT) == "2026-01-01 12:00:00.005000+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert shown(types.TimestampNTZType(), MOMENT) == "2026-01-01 12:00:00.005000"
    assert shown(types.DateType(), MOMENT.date()) == "2026-01-01"
    assert shown(types.BinaryType(), b"order 1\xff") == "order 1\ufffd"
    assert shown(types.DecimalType(10, 2), Decimal("1.50")) == "1.50"
    assert [shown(types.DoubleType(), float(one)) for one in ("nan", "inf", "-inf", "1.5")] == [
        "NaN", "Infinity", "-Infinity", 1.5
    ]  # fmt: skip
    inner = types.StructType([types.StructField("b", types.ArrayType(types.DoubleType()))])
    kind = types.MapType(types.StringType(), inner)
    row = types.Row(b=[float("nan"), None])
    assert shown(kind, {"a": row}) == {"a": {"b": ["NaN", None]}}


def test_columns_of_one_name_are_all_there() -> None:
    names = ("a", "a", "a_2", "a")
    schema = types.StructType([types.StructField(name, types.LongType()) for name in names])
    assert keys_of(schema) == ["a", "a_2", "a_2_2", "a_3"]
    assert records(schema, [(1, 2, 3, 4)]) == [{"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4}]


def test_topics_are_named_with_commas() -> None:
    assert topics_of("A, b-c,") == ["A", "b-c"]
    with pytest.raises(ConfigError, match="at least one topic"):
        topics_of(" , ")
    with pytest.raises(InvalidName):
        topics_of("a b")
