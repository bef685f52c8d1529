"""Change tables: what they refuse, and that nothing is applied that a message does not say."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from spark_world import SPARKS_WARNINGS, Cluster

from skylark.errors import ConfigError, StoreUnreadable
from skylark.model.message import Message
from skylark.spark.change_messages import NotAChange
from skylark.spark.changes import ChangeTable
from skylark.spark.pipelines.causes import one_line

COLUMNS = "id int, name string, price decimal(5,2), at timestamp"
GOOD = '{"op": "insert", "seq": 1, "row": {"id": 1, "name": "one", "price": 1.20}}'

# What Spark's own parser would apply, as null or as something else.
MISTYPED = {
    "a text for a number": '{"op": "update", "seq": 2, "row": {"id": 1, "price": "cheap"}}',
    "digits that have no room": '{"op": "update", "seq": 2, "row": {"id": 1, "price": 1.239}}',
    "a number for a text": '{"op": "update", "seq": 2, "row": {"id": 1, "name": 5}}',
    "no time": '{"op": "update", "seq": 2, "row": {"id": 1, "at": "12:00"}}',
    "a number out of range": '{"op": "update", "seq": 2, "row": {"id": 2147483648}}',
    "a text for the sequence": '{"op": "update", "seq": "2", "row": {"id": 1}}',
    "two changes": GOOD + GOOD,
}
MISSING = {
    "no operation": '{"seq": 2, "row": {"id": 1}}',
    "an unknown operation": '{"op": "upsert", "seq": 2, "row": {"id": 1}}',
    "no sequence": '{"op": "delete", "row": {"id": 1}}',
    "no key": '{"op": "insert", "seq": 2, "row": {"name": "none"}}',
    "a key that is null": '{"op": "insert", "seq": 2, "row": {"id": null}}',
    "no row": '{"op": "delete", "seq": 2}',
    "no object": "[]",
    "no JSON": "insert",
    "nothing": "",
}

pytestmark = SPARKS_WARNINGS


def batch(spark: Any, *bodies: str | None) -> Any:
    """A micro-batch of one queue, whose offsets begin with 7."""
    import pyarrow as pa

    count = len(bodies)
    columns = {
        "topic": pa.array(["Prices"] * count),
        "broker": pa.array(["a"] * count),
        "queue_id": pa.array([3] * count, pa.int32()),
        "queue_offset": pa.array(range(7, 7 + count), pa.int64()),
        "body": pa.array([None if b is None else b.encode() for b in bodies], pa.binary()),
    }
    return spark.createDataFrame(pa.table(columns))


def table_in(root: Path, **changed: Any) -> ChangeTable:
    return ChangeTable(root, **{"key": "id", "columns": COLUMNS, **changed})


def rows(spark: Any, table: ChangeTable) -> list[dict[str, Any]]:
    return sorted(table.read(spark).toArrow().to_pylist(), key=lambda row: row["id"])


def entries(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "catalogue").glob("*.json")}


@pytest.mark.parametrize("name", MISTYPED)
def test_a_message_that_is_no_change_of_the_table_is_named_and_nothing_is_applied(
    spark: Any, tmp_path: Path, name: str
) -> None:
    table = table_in(tmp_path)
    place = "topic Prices broker a queue 3 offset 8 is no change"
    with pytest.raises(NotAChange, match=place) as raised:
        table.apply(batch(spark, GOOD, MISTYPED[name]))
    assert (raised.value.queue.queue_id, raised.value.offset) == (3, 8)
    assert "body_mode='dropmalformed'" in str(raised.value), "how to go on"
    assert entries(tmp_path) == {}


def test_the_first_of_several_is_named_with_how_many_there_are(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(NotAChange, match=r"offset 7 is no change .*\(2 such messages"):
        table_in(tmp_path).apply(batch(spark, None, GOOD, MISSING["no key"]))


def test_whoever_asks_for_it_goes_on_without_them_and_reads_how_many(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "skylark")
    bad = [*MISTYPED.values(), *MISSING.values(), None]
    table = table_in(tmp_path, body_mode="dropmalformed")
    table.apply(batch(spark, *bad))
    assert rows(spark, table) == []
    table.apply(batch(spark, GOOD, *bad))
    one = {"id": 1, "name": "one", "price": Decimal("1.20"), "at": None}
    assert rows(spark, table) == [one]
    text = f"table={tmp_path} {len(bad)} messages are no changes of it and were left out"
    assert [record.getMessage() for record in caplog.records] == [
        f"{text}, the first at topic Prices broker a queue 3 offset 7",
        f"{text}, the first at topic Prices broker a queue 3 offset 8",
    ]


def test_a_query_that_has_ended_at_a_message_goes_on_past_it(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    def follow(**changed: Any) -> ChangeTable:
        table = table_in(tmp_path, **changed)
        query = table.follow(spark, "Prices", namesrv=cluster.address, group="prices", once=True)
        assert query.awaitTermination(60)
        return table

    def send(*bodies: str) -> None:
        cluster.send(Message("Prices", body.encode()) for body in bodies)

    send(GOOD)
    follow()
    send(MISTYPED["a text for a number"], '{"op": "insert", "seq": 3, "row": {"id": 2}}')
    with pytest.raises(StreamingQueryException) as raised:
        follow()
    assert re.match(r"topic Prices broker \S+ queue \d offset \d is no", one_line(raised.value))
    assert [row["id"] for row in rows(spark, table_in(tmp_path))] == [1]
    follow(body_mode="dropmalformed")
    send('{"op": "update", "seq": 4, "row": {"id": 1, "price": 2}}')
    found = rows(spark, follow())
    assert [(row["id"], row["price"]) for row in found] == [(1, 2), (2, None)]


def test_values_are_what_the_message_says_wherever_the_session_is(
    spark: Any, tmp_path: Path
) -> None:
    row = {"id": 1, "name": "50\u20ac", "price": "1.25", "at": "2026-11-16T12:00:00.000001Z"}
    local = {"id": 2, "price": -3, "at": "2026-11-16T12:00:00", "unknown": [1]}
    table = table_in(tmp_path)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
    try:
        table.apply(
            batch(
                spark,
                json.dumps({"op": "insert", "seq": 1, "row": row}),
                json.dumps({"op": "insert", "seq": 2, "row": local}),
            )
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert rows(spark, table) == [
        {"id": 1, "name": "50€", "price": Decimal("1.25"), "at": noon.replace(microsecond=1)},
        {"id": 2, "name": None, "price": Decimal(-3), "at": noon},
    ]


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with one row."""
    root = tmp_path_factory.mktemp("made")
    table_in(root).apply(batch(spark, GOOD))
    return root


def apply_one(spark: Any, table: ChangeTable) -> None:
    table.apply(batch(spark, GOOD))


def read_all(spark: Any, table: ChangeTable) -> None:
    table.read(spark)


def follow_none(spark: Any, table: ChangeTable) -> None:
    table.follow(spark, "Prices", namesrv="127.0.0.1:1", group="prices")


OTHERS: list[tuple[dict[str, Any], str, str]] = [
    ({"buckets": 16}, "buckets=8", "buckets=16"),
    ({"key": "name"}, "key='id'", "key='name'"),
    (
        {"columns": "id int, name string"},
        "columns='id int, name string, price decimal(5,2), at timestamp'",
        "columns='id int, name string'",
    ),
    ({"columns": COLUMNS.replace("int", "bigint")}, "'id int, ", "'id bigint, "),
]


@pytest.mark.parametrize("use", [apply_one, read_all, follow_none])
@pytest.mark.parametrize(("changed", "there", "given"), OTHERS)
def test_a_table_is_not_opened_as_another_than_it_was_made(
    spark: Any,
    made: Path,
    use: Callable[[Any, ChangeTable], None],
    changed: dict[str, Any],
    there: str,
    given: str,
) -> None:
    before = entries(made)
    with pytest.raises(ConfigError) as raised:
        use(spark, table_in(made, **changed))
    text = str(raised.value)
    assert f"change table {made}" in text
    assert there in text
    assert given in text
    assert "another directory" in text
    assert entries(made) == before


def test_a_table_is_opened_again_however_its_columns_are_written(
    spark: Any, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    same = "id: INTEGER NOT NULL, `name` STRING COMMENT 'full', price dec(5, 2), at TIMESTAMP"
    table = table_in(tmp_path, columns=same)
    table.apply(batch(spark, '{"op": "delete", "seq": 2, "row": {"id": 1}}'))
    assert rows(spark, table) == []


def test_a_table_from_before_there_was_a_note_takes_what_is_given_and_notes_it(
    spark: Any, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "catalogue").glob("*.json")
    entry = json.loads(path.read_bytes())
    noted = {"key": "id", "columns": COLUMNS, "buckets": 8}
    assert entry.pop("table") == noted
    path.write_text(json.dumps({**entry, "table": 8}))
    with pytest.raises(StoreUnreadable, match="is no entry"):
        table_in(tmp_path).read(spark)
    path.write_text(json.dumps(entry))
    table = table_in(tmp_path)
    assert [row["id"] for row in rows(spark, table)] == [1]
    assert "table" not in json.loads(path.read_bytes()), "who reads writes nothing"
    table.apply(batch(spark, GOOD))
    (path,) = (tmp_path / "catalogue").glob("*.json")
    assert json.loads(path.read_bytes())["table"] == noted
    with pytest.raises(ConfigError, match="buckets=8"):
        table_in(tmp_path, buckets=16).apply(batch(spark, GOOD))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id int, bucket string", "column bucket: the table has one of this name itself"),
        ("id int, Bucket string", "column Bucket: the table has"),
        ("id int, _seq bigint", "column _seq: the table has"),
        ("id int, `_DELETED` boolean", "column _DELETED: the table has"),
        ("id int, Name string, name string", "column name: Name is there already"),
        ("id int, id int", "id is there twice"),
        ("id int, wait interval day to second", "'interval' is not a type"),
        ("id int, code varchar(5)", r"VarcharType\(5\) is not supported"),
        ("id int,", "is not a name"),
        ("number int", "key 'id': it must be one of the columns number"),
    ],
)
@pytest.mark.parametrize("use", [apply_one, read_all, follow_none])
def test_columns_that_cannot_be_are_refused_before_anything_is_there(
    spark: Any,
    tmp_path: Path,
    use: Callable[[Any, ChangeTable], None],
    columns: str,
    problem: str,
) -> None:
    with pytest.raises(ConfigError, match=problem):
        use(spark, table_in(tmp_path / "new", columns=columns))
    assert not (tmp_path / "new").exists()


def test_what_else_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="buckets=0: at least 1"):
        table_in(tmp_path, buckets=0)
    with pytest.raises(ConfigError, match="body_mode='permissive': failfast or dropmalformed"):
        table_in(tmp_path, body_mode="permissive")


def test_names_with_other_characters_are_columns_like_others(spark: Any, tmp_path: Path) -> None:
    table = ChangeTable(tmp_path, key="the `id`.1", columns="`the ``id``.1` int, `a b` string")
    row = {"the `id`.1": 1, "a b": "x"}
    for seq in (1, 2):
        table.apply(batch(spark, json.dumps({"op": "update", "seq": seq, "row": row})))
    assert table.read(spark).toArrow().to_pylist() == [row]
