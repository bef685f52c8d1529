"""A broker without a network, and a copy of its store on the disk: what Spark's readers need."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import shutil

import pyarrow as pa

from skylark.filter import SqlExpression, parse_tags
from skylark.model.message import CompressionType
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.compression import compress, with_compression
from skylark.protocol.hashes import tag_hash
from skylark.protocol.properties import parse_properties
from skylark.protocol.record import properties_text
from skylark.spark.columns import Layout
from skylark.spark.offsets import QueueKey, Range
from skylark.spark.options import read_options
from skylark.spark.pulls import RangeReader
from skylark.spark.schema import COLUMNS, EXTRA_COLUMNS
from skylark.spark.segments import SegmentReader
from skylark.store import GetStatus, MessageFilter, MessageStore, PutStatus
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import HOST_V6, TINY, HandClock, make_message

TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
ALL = tuple({**COLUMNS, **EXTRA_COLUMNS})
TOPIC = "SegTopic"
ADDRESS = "10.0.0.1:10911"
TAGS = ("Aa", "BB", "C", None)  # The first two have one hash.


def schema_of(names):
    kinds = {**COLUMNS, **EXTRA_COLUMNS}
    return pa.schema([pa.field(name, TYPES[kinds[name]]) for name in names])


def odd_message(rng: random.Random, number: int):
    """One of the many forms that messages have."""
    topic = rng.choice((TOPIC, TOPIC, TOPIC, "Other"))
    body = rng.randbytes(rng.choice((0, 1, 20, 300)))
    sys_flag, born_host = 0, {}
    if rng.random() < 0.1:
        body = compress(b"long " * rng.randrange(1, 200), CompressionType.ZLIB)
        sys_flag = with_compression(0, CompressionType.ZLIB)
    if rng.random() < 0.1:
        sys_flag, born_host = sys_flag | 0x10, {"born_host": HOST_V6}
    more = {"n": str(number), "город": "Київ", "odd": "=;\t'\"\n"}
    if rng.random() < 0.9:
        more["UNIQ_KEY"] = f"U{number}"
    return make_message(
        topic, rng.randrange(2), body, tag=rng.choice(TAGS), keys=rng.choice((None, "k1 k2")),
        sys_flag=sys_flag, **born_host, **more,
    )  # fmt: skip


class World:
    """A store with messages of every form, in files of a few kilobytes."""

    def __init__(self, root, count=150, seed=7):
        self.root = str(root)
        config = dataclasses.replace(TINY, store_path_root_dir="/store", file_reserved_time=2)
        self.clock = HandClock()
        self.files = SimFiles(now_ms=self.clock.now_ms)
        self.store = MessageStore.open(config, self.files, self.clock)
        rng = random.Random(seed)
        for number in range(count):
            (result,) = self.store.put([odd_message(rng, number)])
            assert result.status is PutStatus.PUT_OK
        self.store.flush()
        self.broker = Broker(self.store)
        self.show()

    def show(self):
        """Put on the disk what the broker has."""
        shutil.rmtree(self.root, ignore_errors=True)
        for path in self.files.all_paths():
            name = path.removeprefix("/store/")
            if name.startswith(("commitlog/", "consumequeue/")):
                target = pathlib.Path(self.root, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.files.read(path))

    def expire(self):
        """Let retention take all but the last log file."""
        self.clock.advance_ms(24 * 3_600_000)
        retention = Retention(self.store, self.clock)
        retention.clean_soon()
        assert retention.clean()

    def close(self):
        self.store.close()

    def range(self, queue_id=0, start=None, end=None):
        first, last = self.store.min_offset(TOPIC, queue_id), self.store.max_offset(TOPIC, queue_id)
        queue = QueueKey(TOPIC, "broker-a", queue_id)
        return Range(queue, first if start is None else start, last if end is None else end)

    def reader(self, kind=SegmentReader, wanted=None, names=ALL, **options):
        given = {"namesrv": "ns:1", "topic": TOPIC, "retryMs": "0", "pullBytes": "2k", **options}
        if kind is SegmentReader:
            given = {"readFrom": "files", "storePath": self.root, **given}
        parsed = read_options(given, is_stream=False, environment={})
        tags = parse_tags(parsed.filter) if parsed.filter_type == "TAG" else ()
        layout = Layout(names, parsed.body_format, frozenset(tags) or None, parsed.body_mode)
        schema = schema_of(names)
        return kind(self.broker, parsed, layout, schema, wanted or self.range())

    def rows(self, *arguments, **options):
        return rows_of(self.reader(*arguments, **options))


def rows_of(reader):
    found = []
    for batch in reader.batches():
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


class Broker:
    """Stands where a Cluster does: answers pulls from a store."""

    def __init__(self, store):
        self.store = store
        self.pulls = []
        self._answers = []

    def retried(self, action):
        return action()

    def broker_address(self, topic, broker):
        return ADDRESS

    def require_master(self, queue, problem):
        """It is one."""

    def settled_end(self, queue, least):
        return self.store.max_offset(queue.topic, queue.queue_id)

    def wire(self, address):
        assert address == ADDRESS
        return self

    def drop(self, address):
        self._answers.clear()

    def ask(self, code, fields):
        self.pulls.append(fields)
        wanted = None
        if fields["expressionType"] == "SQL92":
            expression = SqlExpression(fields["subscription"])
            wanted = MessageFilter(
                record=lambda record: expression.matches(parse_properties(properties_text(record)))
            )
        elif parse_tags(fields["subscription"]):
            hashes = frozenset(map(tag_hash, parse_tags(fields["subscription"])))
            wanted = MessageFilter(tag_hashes=hashes)
        found = self.store.get(
            fields["topic"], int(fields["queueId"]), int(fields["queueOffset"]),
            int(fields["maxMsgNums"]), wanted, bulk_bytes=int(fields["maxMsgBytes"]),
        )  # fmt: skip
        codes = {
            GetStatus.FOUND: 0,
            GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
        }
        fields = {
            "nextBeginOffset": str(found.next_offset),
            "minOffset": str(found.min_offset),
            "maxOffset": str(found.max_offset),
        }
        code = codes.get(found.status, ResponseCode.PULL_OFFSET_MOVED)
        self._answers.append(Command(code, fields=fields, body=b"".join(found.chunks)))

    def answer(self):
        return self._answers.pop(0)


__all__ = ["ALL", "TOPIC", "RangeReader", "SegmentReader", "World", "make_message", "rows_of"]
