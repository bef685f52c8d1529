"""The archive in Spark itself: once, compacted, and with the live log one table while both move."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

pytest.importorskip("pyspark")

from spark_chain import read_archive, read_topic
from spark_servers import Servers
from spark_world import SPARKS_WARNINGS, Cluster

import skylark
from skylark.cli.main import main
from skylark.errors import ConfigError, StoreUnreadable, TransportError
from skylark.model.message import Message
from skylark.protocol.codes import RequestCode
from skylark.protocol.headers import SendMessageRequestV2
from skylark.spark import archive as archives
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry, files_in
from skylark.spark.cluster import Cluster as Asking
from skylark.spark.mirror import mirror
from skylark.spark.offsets import QueueKey
from skylark.spark.options import Access, write_options
from skylark.spark.pipelines import Pipeline, history
from skylark.spark.schema import COLUMNS, arrow_schema, in_sql
from skylark.spark.sink import Sender
from skylark.spark.streams import active

pytestmark = SPARKS_WARNINGS
MOMENTS = 50
AT_ONCE = 10  # Messages.


def fill(cluster: Cluster, topic: str, count: int) -> None:
    cluster.send([Message(topic, b"%d" % number) for number in range(count)])


def read(spark: Any, cluster: Cluster, topic: str) -> list[int]:
    """All rows of a topic, as anybody sees them."""
    frame = spark.read.format("skylark").option("namesrv", cluster.address)
    rows = frame.option("topic", topic).schema("body binary").load().collect()
    return sorted(int(bytes(row.body)) for row in rows)


def archived(spark: Any, cluster: Cluster | Servers, root: Path, topic: str, rows_max: int) -> None:
    query = archives.archive(
        spark, root, [topic], namesrv=cluster.address, once=True, messages_max=rows_max
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_a_job_that_is_run_again_under_its_name_writes_nothing(
    spark: Any, cluster: Cluster
) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) as body")

    def write() -> None:
        (
            frame.write.format("skylark")
            .option("namesrv", cluster.address)
            .option("topic", "JobTo")
            .option("deliveryGuarantee", "exactly_once")
            .option("sinkId", "nightly-2026-11-15")
            .mode("append")
            .save()
        )

    write()
    write()
    assert Counter(read(spark, cluster, "JobTo")) == Counter(range(100))


def test_an_archive_of_an_old_checkpoint_has_every_message_once(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    root, old = tmp_path / "lake", tmp_path / "checkpoint of yesterday"
    fill(cluster, "Twice", 60)
    archived(spark, cluster, root, "Twice", 30)
    shutil.copytree(root / "checkpoint", old)
    fill(cluster, "Twice", 50)
    archived(spark, cluster, root, "Twice", 30)
    # The same numbers of batches now mean other offsets: 50 messages, then 20 more, in one batch.
    shutil.rmtree(root / "checkpoint")
    with pytest.raises(ConfigError, match="its folder `checkpoint` is gone"):
        archived(spark, cluster, root, "Twice", 30)
    shutil.copytree(old, root / "checkpoint")
    fill(cluster, "Twice", 20)
    archived(spark, cluster, root, "Twice", 1_000)
    wanted = read_topic(cluster.address, "Twice")
    assert len(wanted) == 130
    assert Counter(read_archive(root)) == Counter(wanted)
    # As after a driver that died when the entry was there, and Spark had not noted the batch.
    commits = sorted((root / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    archived(spark, cluster, root, "Twice", 30)
    assert Counter(read_archive(root)) == Counter(wanted)
    (root / "catalogue").rename(tmp_path / "lost")
    with pytest.raises(ConfigError, match="its folder `catalogue` is gone"):
        archived(spark, cluster, root, "Twice", 30)


def test_an_archive_is_compacted_and_asked_with_sql(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tmp_path = tmp_path / "topic=orders" / "hour=1"  # Names like those of its own folders.
    tmp_path.mkdir(parents=True)
    fill(cluster, "Asked", 90)
    archived(spark, cluster, tmp_path, "Asked", 25)
    fill(cluster, "Asked", 30)
    before = Catalogue(tmp_path).entries()
    assert len(before) > 3
    with monkeypatch.context() as patch:
        patch.setattr(archives, "files_in", lambda *given: files_in(*given)[1:])
        with pytest.raises(StoreUnreadable, match=r"has [1-8]?\d of the 90 rows that were put"):
            archives.compact(spark, tmp_path)
    assert Catalogue(tmp_path).entries() == before
    assert archives.compact(spark, tmp_path) == len(before)
    assert len(Catalogue(tmp_path).entries()) == 1
    (row,) = archives.status(tmp_path)
    assert (row["topic"], row["rows"]) == ("Asked", 90)
    counted: Any = archives.sql(
        spark,
        "select count(*) as n, count(distinct queue_id, queue_offset) as places from Asked",
        ["Asked"],
        namesrv=cluster.address,
        root=tmp_path,
    ).first()
    assert (counted.n, counted.places) == (120, 120)
    # The command finds the session that runs.
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    query = "select max(cast(cast(body as string) as int)) as top from Asked"
    words = ["pipeline", "sql", query, "-t", "Asked", "--archive", str(tmp_path), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == [{"top": 89}]
    # Nor does it need to be told the topics, or a topic to be anywhere but in the archive.
    assert main(["topic", "delete", "Asked", "--yes"]) == 0
    capsys.readouterr()
    words = ["pipeline", "sql", "select count(*) as n from Asked", "--archive", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 90}]


def test_the_archive_has_what_the_log_has_column_for_column(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send(
        Message(
            "Columns", b"\x00\xff%d" % number, tag=("A", "b c", None)[number % 3],
            keys=[f"k{number}", "ключ"][: number % 3], properties={"n": str(number)},
        )
        for number in range(50)
    )  # fmt: skip
    archived(spark, cluster, tmp_path, "Columns", 20)
    orphan = next((tmp_path / "data").rglob("*.parquet")).with_name("00000-of-nobody-0.parquet")
    orphan.write_bytes(b"of an attempt that nobody took")
    log = spark.read.format("skylark").option("namesrv", cluster.address)
    wanted = sorted(map(comparable, log.option("topic", "Columns").load().collect()))
    assert len(wanted) == 50
    for _ in range(2):
        table = archives.table(spark, tmp_path, "Columns", namesrv=cluster.address, live=False)
        assert sorted(map(comparable, table.collect())) == wanted
        hours = {path.name for path in (tmp_path / "data").glob("*/*/hour=*")}
        assert hours == {f"hour={hour:%Y-%m-%dT%H}" for *_, hour in wanted}
        archives.compact(spark, tmp_path)


def comparable(row: Any) -> tuple[Any, ...]:
    """A row of all columns that can be sorted, with the hour in which it was stored."""
    values = row.asDict()
    values["body"] = bytes(values["body"])
    values["properties"] = sorted(values["properties"].items())
    return (
        row.queue_id, row.queue_offset, tuple(str(values[name]) for name in sorted(values)),
        row.store_time.astimezone(datetime.UTC),
    )  # fmt: skip


def test_an_archive_goes_on_without_a_broker_that_is_gone_for_good(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    asking = {"retryMs": "1500"}

    def run(**more: Any) -> None:
        query = archives.archive(
            spark, root, ["Gone"], namesrv=servers.address, once=True, options=asking, **more
        )
        assert query.awaitTermination(120)

    def send(*brokers: str) -> None:
        for name in brokers:
            queue = next(one for one in queues if one.broker == name)
            sender = Sender(
                write_options({"namesrv": servers.address, "topic": "Gone"}, is_stream=False),
                cluster,
            )
            sender.send(
                pa.record_batch({"body": [b"x"] * 5, "queue_id": [queues.index(queue)] * 5})
            )
            sender.flush()

    with Servers(tmp_path / "servers") as servers:
        cluster = Asking(Access(servers.address))
        queues = cluster.writable_queues("Gone")
        send("broker-a", "broker-b")
        run()
        servers.kill("broker-b")
        with pytest.raises(TransportError, match="broker-b"):
            run()
        with pytest.raises(ConfigError, match="broker broker-a is not gone"):
            run(gone=["broker-a"])
        send("broker-a")
        run(gone=["broker-b"])
        run(gone=["broker-b"])
        cluster.close()
    rows = Counter(row.broker for row in read_archive(root))
    assert rows == {"broker-a": 10, "broker-b": 5}


def test_sql_asks_and_commands_are_refused(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    for query in (
        f"insert overwrite directory '{victim}' using json select 1 as a",
        "create table t (a int)",
        "drop view if exists OrderTopic",
    ):
        assert main(["pipeline", "sql", query]) == 2
        assert "sql asks, such as select" in capsys.readouterr().err
    assert (victim / "file").exists()
    assert main(["pipeline", "sql", "show functions like 'abs'", "--json"]) == 0
    assert "abs" in capsys.readouterr().out


def test_a_body_that_does_not_expand_holds_nothing_up_where_that_is_allowed(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(cluster, "Poisoned", 4)
    send_damaged(cluster, "Poisoned")
    query = archives.archive(
        spark, tmp_path, ["Poisoned"], namesrv=cluster.address, once=True,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"topic Poisoned .*Set the option bodyMode"):
        query.awaitTermination(120)
    assert Catalogue(tmp_path).entries() == []
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    words = ["pipeline", "archive", "Poisoned", "--archive", str(tmp_path), "--once"]
    assert main([*words, "--body-mode", "permissive"]) == 0
    assert [row.body for row in read_archive(tmp_path)].count(None) == 1  # type: ignore[arg-type]
    send_damaged(cluster, "Poisoned")
    capsys.readouterr()
    words = ["pipeline", "sql", "select count(body), count(*) from Poisoned", "--json"]
    assert main([*words, "--archive", str(tmp_path), "--body-mode", "dropmalformed"]) == 0
    assert list(json.loads(capsys.readouterr().out)[0].values()) == [4, 5]
    assert main([*words, "--body-mode", "maybe"]) == 2
    assert "option bodyMode='maybe': one of" in capsys.readouterr().err


def send_damaged(cluster: Cluster, topic: str) -> None:
    """A message that says it is compressed, and is not."""
    asking = Asking(Access(cluster.address))
    header = SendMessageRequestV2(
        producer_group="tests", topic=topic, default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=1, born_timestamp=1, flag=0, properties="", reconsume_times=0,
        unit_mode=False, batch=False,
    )  # fmt: skip
    broker = asking.queues([topic])[0].broker
    wire = asking.wire(asking.broker_address(topic, broker, for_writing=True))
    wire.call(RequestCode.SEND_MESSAGE_V2, header.to_fields(), b"no zlib at all")
    asking.close()


def test_whatever_timestamps_mean_in_a_session_columns_are_of_their_types(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    fill(cluster, "Moments", 3)
    plain = spark.newSession()
    plain.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    archived(spark, cluster, tmp_path, "Moments", 2)
    fill(cluster, "Moments", 2)
    with active(plain):
        found = archives.table(plain, tmp_path, "Moments", namesrv=cluster.address)
        assert dict(found.dtypes)["store_time"] == "timestamp"
        assert found.count() == 5


def test_an_archive_may_lie_below_any_name(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / r"la ke[1]{x,y}%20*?\z"
    fill(cluster, "Odd", 30)
    archived(spark, cluster, root, "Odd", 10)
    for _ in range(2):
        frame = archives.table(spark, root, "Odd", namesrv=cluster.address, live=False)
        assert frame.count() == 30
        archives.compact(spark, root)


def test_an_archive_of_many_files_is_looked_at_in_a_few_tasks(spark: Any, tmp_path: Path) -> None:
    root, count = tmp_path / "lake", 100
    catalogue = Catalogue(root)
    columns = arrow_schema(spark.createDataFrame([], in_sql(COLUMNS)).drop("topic").schema)
    message = {"broker": "a", "queue_id": 0, "body": b"x", "message_id": "id", "properties": []}
    files = []
    for number in range(count):
        path = catalogue.new_folder(0, 0) / "topic=Many" / "hour=2026-11-15T19" / "1.parquet"
        path.parent.mkdir(parents=True)
        rows = pa.Table.from_pylist([{**message, "queue_offset": number}], schema=columns)
        parquet.write_table(rows, path)
        files.append(ArchivedFile(str(path.relative_to(root)), "Many", 1, path.stat().st_size))
    catalogue.add(Entry(0, 0, tuple(files), {QueueKey("Many", "a", 0): count}))
    spark.sparkContext.setJobGroup("many files", "")
    frame = archives.table(spark, root, "Many", namesrv="nobody:1", live=False)
    spark.sparkContext.setJobGroup("", "")
    tracker = spark.sparkContext.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup("many files"))
    tasks = [tracker.getStageInfo(stage).numTasks for job in jobs for stage in job.stageIds]
    assert tasks
    assert max(tasks) <= 32
    assert frame.count() == count


def test_archives_and_mirrors_take_an_account(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, "Signed", 5)
    account = {"accessKey": "me", "secretKey": "hidden", "retryMs": "9000"}
    asked: list[Access] = []
    made = Asking.__init__

    def making(self: Asking, access: Access) -> None:
        asked.append(access)
        made(self, access)

    monkeypatch.setattr(Asking, "__init__", making)
    lake = tmp_path / "lake"
    query = archives.archive(
        spark, lake, ["Signed"], namesrv=cluster.address, once=True, options=account
    )
    assert query.awaitTermination(120)
    found = archives.table(spark, None, "Signed", namesrv=cluster.address, options=account)
    assert found.count() == 5
    assert "hidden" not in found._jdf.queryExecution().toString()
    words = "select count(*) from `Signed`"
    rows = archives.sql(
        spark, words, ["Signed"], namesrv=cluster.address, root=lake, options=account
    ).collect()
    assert rows[0][0] == 5
    query = mirror(
        spark, "Signed", namesrv=cluster.address, to=cluster.address, as_topic="SignedCopy",
        checkpoint=str(tmp_path / "mirror"), once=True, options=account, to_options=account,
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert {(one.access_key, one.secret_key, one.retry_ms) for one in asked} == {
        ("me", "hidden", 9_000)
    }
    assert len(read_topic(cluster.address, "SignedCopy")) == 5
    with pytest.raises(ConfigError, match="accessKey and secretKey go together"):
        archives.table(spark, None, "Signed", namesrv=cluster.address, options={"accessKey": "me"})
    with pytest.raises(ConfigError, match="option filter: here only accessKey, secretKey"):
        archives.table(spark, None, "Signed", namesrv=cluster.address, options={"filter": "A"})


def test_a_view_of_somebody_elses_is_not_replaced(spark: Any, cluster: Cluster) -> None:
    fill(cluster, "Viewed", 7)

    def count() -> int:
        query = "select count(*) as n from Viewed"
        found: Any = archives.sql(spark, query, ["Viewed"], namesrv=cluster.address).first()
        return int(found.n)

    spark.range(3).createOrReplaceTempView("viewed")
    try:
        with pytest.raises(ConfigError, match="topic Viewed: the session has a view of that name"):
            count()
        assert spark.table("viewed").count() == 3
    finally:
        spark.catalog.dropTempView("viewed")
    assert count() == 7
    assert count() == 7, "one of our own is"


# Topics that go, and brokers that are away.


def places(frame: Any) -> list[tuple[int, int]]:
    """Where the rows of a topic are."""
    return sorted(tuple(row) for row in frame.select("queue_id", "queue_offset").collect())


def test_an_archive_goes_on_without_topics_that_are_deleted_or_left_out(
    spark: Any, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = ["Stays", "LeftOut", "Deleted"]

    def go_on(names: list[str]) -> Counter[str]:
        for topic in ("Stays", "LeftOut"):
            fill(cluster, topic, 10)
        query = archives.archive(spark, tmp_path, names, namesrv=cluster.address, once=True)
        assert query.awaitTermination(120)
        query.stop()
        return Counter({row["topic"]: row["rows"] for row in archives.status(tmp_path)})

    fill(cluster, "Deleted", 10)
    assert go_on(topics) == dict.fromkeys(topics, 10)
    cluster.cli("topic", "delete", "Deleted", "--yes")
    assert go_on(topics) == {"Stays": 20, "LeftOut": 20, "Deleted": 10}
    assert "topic Deleted is gone: the archive keeps what it has of it" in caplog.text
    assert go_on(["Stays"]) == {"Stays": 30, "LeftOut": 20, "Deleted": 10}
    assert "topic LeftOut is left out" in caplog.text
    assert go_on(topics) == {"Stays": 40, "LeftOut": 40, "Deleted": 10}, "it may come back"
    frame = archives.table(spark, tmp_path, "Deleted", namesrv=cluster.address)
    assert "no broker serves Deleted/" in caplog.text
    assert len(places(frame)) == 10


def test_a_broker_that_is_back_once_a_query_is_planned_doubles_nothing(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(cluster, "Away", 40)
    archived(spark, cluster, tmp_path, "Away", 1_000)
    fill(cluster, "Away", 20)
    ends = {queue.queue_id: end for queue, end in Catalogue(tmp_path).ends().items()}
    wanted = places(archives.table(spark, tmp_path, "Away", namesrv=cluster.address))
    assert len(wanted) == 60
    away = wanted[0][0]
    extents = archives._extents

    def without_one(asking: Asking, topic: str) -> Any:
        return {q: extent for q, extent in extents(asking, topic).items() if q.queue_id != away}

    monkeypatch.setattr(archives, "_extents", without_one)
    frame = archives.table(spark, tmp_path, "Away", namesrv=cluster.address)
    assert "only what is archived" in caplog.text
    found = places(frame)  # Tasks see all of it again.
    assert found == [place for place in wanted if place[0] != away or place[1] < ends[away]]
    assert len(found) < 60


def test_a_broker_that_is_back_once_a_pipeline_runs_doubles_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = tmp_path / "lake", tmp_path / "checkpoint"
    folder.mkdir()
    fill(cluster, "Past", 40)
    archived(spark, cluster, root, "Past", 1_000)
    fill(cluster, "Past", 20)
    pipeline = Pipeline("p", checkpoint="c").source("past", archive=str(root), topic="Past")
    (source,) = pipeline.sink("out", format="noop").spec(environment={}).sources
    options = {"namesrv": cluster.address, "topic": "Past"}

    def run() -> list[tuple[int, int]]:
        writer = history.stream(spark, source, folder, options).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(folder / "out")).trigger(availableNow=True)
        query = writer.start(str(tmp_path / "out"))
        assert query.awaitTermination(120)
        return places(spark.read.parquet(str(tmp_path / "out")))

    queues = Asking.queues

    def without_one(asking: Asking, topics: Any, known: Any = ()) -> Any:
        return [queue for queue in queues(asking, topics, known) if queue.queue_id]

    with monkeypatch.context() as patched:
        patched.setattr(history.Cluster, "queues", without_one)
        found = run()
    assert len(found) == len(set(found)) == 60
    fill(cluster, "Past", 20)
    found = run()
    assert len(found) == len(set(found)) == 80


# Archive and live log while both move.


@pytest.fixture
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A broker with small files, which deletes what is archived when it is told to."""
    settings = {
        "mappedFileSizeCommitLog": "16384",
        "mappedFileSizeConsumeQueue": "1000",
        "fileReservedTime": "0",
        "deleteWhen": f"{(datetime.datetime.now().hour + 12) % 24:02d}",
        "cleanResourceInterval": "100",
        "deleteCommitLogFilesInterval": "10",
        "destroyMapedFileIntervalForcibly": "1000",
        "retention.wait_for_archive": "true",
        "defaultTopicQueueNums": "4",
    }
    with Servers(tmp_path_factory.mktemp("moving"), 1, settings=settings) as servers:
        yield servers


class Producer:
    """Sends a few rows now and then, until it is told to stop."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def send(self, count: int) -> None:
        """Send so many."""
        asyncio.run(self._send(count, until=lambda: True))

    def _run(self) -> None:
        asyncio.run(self._send(AT_ONCE, until=lambda: self._over.wait(0.1)))

    async def _send(self, count: int, until: Callable[[], bool]) -> None:
        async with skylark.connect(self._address) as mq, mq.producer("moving") as producer:
            while True:
                for _ in range(count):
                    await producer.send(Message(self._topic, b"x" * 100))
                    self.sent += 1
                if until():
                    return


def test_archive_and_live_log_are_one_table_at_fifty_moments(
    spark: Any, moving: Servers, tmp_path: Path
) -> None:
    rng = random.Random(5)
    asking = Asking(Access(moving.address))
    seams: set[tuple[int, ...]] = set()
    counts: list[int] = []
    looks, with_live = 0, 0
    producer = Producer(moving.address, "Seam")
    # Retention waits for a group that has begun.
    producer.send(40)
    archived(spark, moving, tmp_path, "Seam", 1_000)
    with producer:
        query = archives.archive(
            spark, tmp_path, ["Seam"], namesrv=moving.address, trigger="1 second", messages_max=300
        )
        try:
            while len(counts) < MOMENTS:
                time.sleep(rng.uniform(0, 0.05))
                looks += 1
                if looks % 20 == 19:
                    archives.compact(spark, tmp_path)
                assert query.exception() is None
                before = producer.sent
                # Where a look takes long, there are some that nothing is deleted under.
                if looks % 16 == 1:
                    delete_archived(asking)
                rows = look(spark, moving, tmp_path)
                if rows is None:
                    assert looks < 5 * MOMENTS
                    continue  # Retention passed between plan and read, and Spark said so.
                counts.append(len(rows))
                by_queue: dict[int, list[int]] = {}
                for queue_id, offset in rows:
                    by_queue.setdefault(queue_id, []).append(offset)
                for queue_id, offsets in by_queue.items():
                    assert sorted(offsets) == list(range(len(offsets))), f"queue {queue_id}"
                assert before <= len(rows) <= producer.sent + 1, "one may be under way"
                ends = Catalogue(tmp_path).ends()
                seams.add(tuple(ends[queue] for queue in sorted(ends)))
                with_live += len(rows) > sum(ends.values())
        finally:
            query.stop()
    first = [asking.min_offset(queue) for queue in asking.queues(["Seam"])]
    asking.close()
    assert len(seams) >= 5, "the archive moved"
    assert counts == sorted(counts)
    assert len(set(counts)) > MOMENTS // 2, "the log moved"
    assert with_live > MOMENTS // 2, "both had a part in it"
    assert max(first) > 0, "retention followed the archive"


def delete_archived(asking: Asking) -> None:
    """Have the broker delete what is archived, for the next two seconds."""
    (broker,) = asking.broker_names()
    asking.call_broker(broker, RequestCode.DELETE_EXPIRED_COMMITLOG, {}, b"")


def look(spark: Any, moving: Servers, root: Path) -> list[tuple[int, int]] | None:
    """Where all messages of the table are; None where retention was faster than Spark."""
    frame = archives.table(spark, root, "Seam", namesrv=moving.address)
    try:
        return [tuple(row) for row in frame.select("queue_id", "queue_offset").collect()]
    except Exception as error:
        if "removed by retention" not in str(error):
            raise
        return None


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path / "other", 1, settings={"defaultTopicQueueNums": "4"}) as servers:
        yield servers


def test_a_topic_is_mirrored_queue_by_queue(
    spark: Any, cluster: Cluster, other: Servers, tmp_path: Path
) -> None:
    fill(cluster, "Mirrored", 80)
    query = mirror(
        spark, "Mirrored", namesrv=cluster.address, to=other.address, once=True,
        checkpoint=str(tmp_path / "checkpoint"), group="mirroring",
    )  # fmt: skip
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()

    def order(address: str) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for row in sorted(read_topic(address, "Mirrored")):
            found.setdefault(row.queue_id, []).append(row.body)
        return found

    assert order(other.address) == order(cluster.address)
