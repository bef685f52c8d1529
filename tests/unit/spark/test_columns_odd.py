"""Messages that are odd: both twins make the same columns of them, and none stops a query."""

import datetime
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from segment_world import TOPIC, World, rows_of

from skylark.errors import MissingExtra
from skylark.protocol import compression
from skylark.protocol.compression import CompressionType, with_compression
from skylark.protocol.record import encode_record, pack_host
from skylark.spark import columns
from skylark.spark.cluster import READER_GROUP
from skylark.spark.columns import TIME_MS_MAX, TIME_MS_MIN, Layout, pure_batches, to_batches
from skylark.spark.offsets import QueueKey
from skylark.spark.options import BodyMode

QUEUE = QueueKey("T", "b", 3)
HOST = pack_host("10.0.0.1", 10911)
KINDS = {
    "queue_offset": pa.int64(),
    "born_time": pa.timestamp("us", "UTC"),
    "store_time": pa.timestamp("us", "UTC"),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "body": pa.binary(),
}


def record(offset=0, **given):
    fields = {"topic": "T", "body": b"x", "properties": b"", "born_host": HOST, "store_host": HOST}
    return encode_record(**{**fields, "queue_offset": offset, **given})


def batches(build, data, *names, mode=BodyMode.FAILFAST):
    return list(
        build(
            data,
            queue=QUEUE,
            start=0,
            end=99,
            layout=Layout(names, mode=mode),
            schema=pa.schema([pa.field(name, KINDS[name]) for name in names]),
            bytes_max=1 << 20,
        )
    )


def both(data, *names):
    found = [row for batch in batches(to_batches, data, *names) for row in batch.to_pylist()]
    pure = batches(pure_batches, data, *names)
    assert found == [row for batch in pure for row in batch.to_pylist()]
    return found


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_time_that_a_client_writes_is_a_timestamp(born, stored):
    data = record(0, born_at_ms=born, stored_at_ms=stored)
    (row,) = both(data, "born_time", "store_time")
    for at_ms, name in ((born, "born_time"), (stored, "store_time")):
        expected = min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX)
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        assert (row[name] - epoch) // datetime.timedelta(milliseconds=1) == expected


@pytest.mark.parametrize("at_ms", [TIME_MS_MIN, TIME_MS_MAX])
@pytest.mark.parametrize("hours", [-24, 24])
def test_the_first_and_the_last_time_are_one_in_every_zone(at_ms, hours):
    """collect() gives times of the zone that the driver is in."""
    epoch = datetime.datetime(1970, 1, 1)
    epoch + datetime.timedelta(milliseconds=at_ms) + datetime.timedelta(hours=hours)


@pytest.mark.parametrize("port", [0, 65_535, 2**31 - 1, -1, -(2**31)])
def test_a_port_that_is_none_is_shown_alike(port):
    host = struct.pack(">4Bi", 255, 255, 255, 255, port)
    (row,) = both(record(born_host=host, store_host=host), "born_host", "store_host")
    assert row == dict.fromkeys(("born_host", "store_host"), f"255.255.255.255:{port}")


@pytest.fixture(params=["compiled", "pure"])
def twin(request, monkeypatch):
    if request.param == "pure":
        monkeypatch.setattr(columns, "_columns", None)
    elif columns._columns is None:
        pytest.skip("not compiled")


@pytest.mark.parametrize("mode", BodyMode)
@pytest.mark.parametrize(("kind", "library"), [("LZ4", "_lz4"), ("ZSTD", "_zstd")])
def test_a_library_that_is_not_there_ends_the_query_and_names_the_message(
    twin, monkeypatch, mode, kind, library
):
    def missing():
        raise MissingExtra(kind.lower(), f"a body in {kind}")

    monkeypatch.setattr(compression, library, missing)
    packed = with_compression(0, CompressionType[kind])
    data = record(3) + record(4, body=b"packed", sys_flag=packed)
    with pytest.raises(MissingExtra, match=r"topic T broker b queue 3 offset 4.*pip install") as e:
        batches(to_batches, data, "body", mode=mode)
    assert e.value.extra == kind.lower()
    assert len(batches(to_batches, data, "queue_offset")) == 1, "nobody asked for the body"


@pytest.mark.parametrize(("options", "expected"), [({}, READER_GROUP), ({"group": "mine"}, "mine")])
def test_files_are_compared_under_the_group_of_the_query(tmp_path, options, expected):
    world = World(tmp_path / "store", count=20)
    rows_of(world.reader(**options))
    assert {fields["consumerGroup"] for fields in world.broker.pulls} == {expected}
    assert {fields["topic"] for fields in world.broker.pulls} == {TOPIC}
    world.close()
