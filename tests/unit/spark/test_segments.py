"""Files or network: the same rows; what is gone, torn or another broker's is noticed."""

import os
import pathlib
import random
import weakref

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from segment_world import ALL, TOPIC, RangeReader, SegmentReader, World, make_message, rows_of

from skylark.errors import ConfigError
from skylark.spark import columns, segments
from skylark.spark.offsets import DataLoss, QueueKey, Range
from skylark.spark.segments import OtherStore, store_root


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path / "store")
    yield found
    found.close()


@pytest.fixture(params=["compiled", "pure"])
def twin(request, monkeypatch):
    if request.param == "pure":
        monkeypatch.setattr(columns, "_columns", None)
    elif columns._columns is None:
        pytest.skip("not compiled")
    return request.param


def files_of(world, name):
    folder = os.path.join(world.root, name)
    return [os.path.join(folder, one) for one in sorted(os.listdir(folder)) if one.isdecimal()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter": "Aa || C"},
        {"filter": "nothing"},
        {"filter": "n between 20 and 60", "filterType": "SQL92"},
        {"pullCount": "3"},
        {"pullBytes": "1"},
    ],
    ids=str,
)
def test_files_have_the_rows_of_the_network(world, twin, options):
    for queue_id in (0, 1):
        wanted = world.range(queue_id)
        expected = world.rows(RangeReader, wanted, **options)
        before = len(world.broker.pulls)
        reader = world.reader(wanted=wanted, **options)
        assert rows_of(reader) == expected
        assert reader.by_network == 0
        assert len(world.broker.pulls) == before + 1, "one question about a whole range"
    assert len(files_of(world, "commitlog")) > 4


def test_any_range_and_any_columns_are_the_same(world):
    rng = random.Random(3)
    for _ in range(30):
        last = world.store.max_offset(TOPIC, 0)
        start = rng.randrange(last)
        wanted = world.range(0, start, rng.randrange(start, last) + 1)
        names = tuple(rng.sample(ALL, rng.randrange(1, len(ALL))))
        assert world.rows(wanted=wanted, names=names) == world.rows(RangeReader, wanted, names)


def test_nothing_beyond_what_the_broker_shows_is_read(world):
    last = world.store.max_offset(TOPIC, 0)
    with pytest.raises(DataLoss, match=f"ends at {last}"):
        world.rows(wanted=world.range(0, 0, last + 5))


def test_a_log_file_that_goes_meanwhile_is_asked_of_the_broker(world):
    expected = world.rows(RangeReader)
    reader = world.reader()
    batches = reader.batches()
    found = next(batches).to_pylist()
    for path in files_of(world, "commitlog")[1:-2]:
        os.rename(path, path + ".gone")
    for batch in batches:
        found += batch.to_pylist()
    assert found == expected
    assert 0 < reader.by_network < len(expected)


def test_a_queue_file_that_is_gone_is_asked_of_the_broker(world):
    expected = world.rows(RangeReader)
    first, *_ = files_of(world, f"consumequeue/{TOPIC}/0")
    os.rename(first, first + ".gone")
    reader = world.reader()
    assert rows_of(reader) == expected
    assert reader.by_network > 0


@pytest.mark.parametrize("place", [4, 20, 28, 12], ids=["magic", "offset", "position", "queue"])
def test_a_record_that_is_not_what_its_entry_says_is_asked_of_the_broker(world, twin, place):
    expected = world.rows(RangeReader)
    target = world.store.queues.get(TOPIC, 0).entry(3).physical_offset
    path = pathlib.Path(world.root, "commitlog", f"{target - target % 4096:020d}")
    content = bytearray(path.read_bytes())
    content[target % 4096 + place] ^= 0x55
    path.write_bytes(content)
    reader = world.reader(pullCount="1")
    assert rows_of(reader) == expected
    assert reader.by_network >= 1


def test_what_retention_took_ends_the_query_or_is_passed_over(world):
    wanted = world.range()
    world.expire()
    world.show()
    first = world.store.min_offset(TOPIC, 0)
    assert first > 0
    with pytest.raises(DataLoss, match=r"removed by retention.*failOnDataLoss"):
        world.rows(wanted=wanted)
    rows = world.rows(wanted=wanted, failOnDataLoss="false")
    assert [row["queue_offset"] for row in rows] == list(range(first, wanted.end))


def test_files_of_another_broker_are_an_error_that_names_the_option(world, tmp_path):
    other = World(tmp_path / "other", seed=8, count=400)
    other.close()
    for path, problem in (
        (other.root, "these are not the files of broker broker-a"),
        (str(tmp_path / "nowhere"), "there is no commitlog"),
    ):
        with pytest.raises(OtherStore, match=rf"option storePath=.*{problem}.*readFrom=network"):
            world.rows(storePath=path)
        reader = world.reader(storePath=path, readFrom="auto")
        assert rows_of(reader) == world.rows(RangeReader), "auto asks the broker instead"
        assert reader.by_network == world.range().count


def test_a_copy_that_lags_behind_is_not_the_brokers(world):
    world.store.put([make_message(TOPIC, 0, b"later")])
    with pytest.raises(OtherStore, match="is not in them"):
        world.rows()
    world.show()
    assert world.rows()[-1]["body"] == b"later"


def test_files_that_may_not_be_read_are_said(world, monkeypatch):
    def refused(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OtherStore, match=r"option storePath.*Permission denied"):
        world.rows()


def test_a_file_that_may_not_be_read_is_asked_of_the_broker_where_that_is_allowed(
    world, monkeypatch
):
    real = os.open
    first = min(os.listdir(os.path.join(world.root, "commitlog")))

    def refused(path, flags):
        if "commitlog" in path and not path.endswith(first):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags)

    reader = world.reader(readFrom="auto")
    monkeypatch.setattr(reader, "_visible_from", lambda: 0)  # It was the broker's store then.
    monkeypatch.setattr(os, "open", refused)
    assert rows_of(reader) == world.rows(RangeReader)
    assert 0 < reader.by_network < world.range().count


def test_pages_that_were_read_are_given_back(world, monkeypatch):
    monkeypatch.setattr(segments, "_RESIDENT_BYTES_MAX", 4096)
    given = []
    real = segments.MappedFolder.leave

    def leave(self, position):
        before = self._left
        real(self, position)
        given.append(self._left - before)

    monkeypatch.setattr(segments.MappedFolder, "leave", leave)
    assert world.rows() == world.rows(RangeReader)
    assert sum(given) > 8_192
    assert max(given) < 3 * 4_096


def test_names_become_no_other_paths(world):
    reader = world.reader()
    for name in ("../up", "a/b", "..", ".", "", "a\0b"):
        with pytest.raises(ConfigError):
            store_root(world.reader(storePath="/s/{broker}")._options, name)
    with pytest.raises(Exception, match="topic name"):
        world.reader(wanted=Range(QueueKey("../x", "broker-a", 0), 0, 1))
    path = store_root(world.reader(storePath="/s/{broker}/d")._options, "broker-a")
    assert path == "/s/broker-a/d"
    odd = "Брокер 1 (west)"  # A broker has whatever name its operator gives it.
    assert store_root(world.reader(storePath="/s/{broker}")._options, odd) == f"/s/{odd}"
    assert rows_of(reader)


def test_a_reader_has_one_batch_in_hand_whatever_the_length_of_its_range(world, twin):
    for kind in (SegmentReader, RangeReader):
        reader = world.reader(kind, names=("body", "properties"), pullBytes="1k")
        alive = []
        total = 0
        for batch in reader.batches():
            total += batch.nbytes
            assert batch.nbytes <= 2_500, "pullBytes of 1 KiB, and one message with its columns"
            alive.append(weakref.ref(batch))
            del batch
            assert sum(one() is not None for one in alive) <= 1
        assert total > 10_000
        assert len(alive) > 5
