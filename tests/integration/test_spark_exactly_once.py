"""Exactly once: drivers, workers and brokers die at each step; every row is there, and once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_faults import FaultySource, start_query
from spark_world import Cluster, start_spark

from skylark.model.message import Message
from skylark.spark import archive as archives
from skylark.spark.catalogue import Catalogue
from skylark.spark.mirror import mirror

HERE = Path(__file__).parent
ROWS = 600

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    spark = start_spark(tmp_path_factory.mktemp("warehouse"))
    spark.dataSource.register(FaultySource)
    yield spark
    spark.stop()


def fill(cluster: Cluster, topic: str, count: int = ROWS) -> None:
    cluster.send([Message(topic, b"%d" % number) for number in range(count)])


def read(spark: Any, cluster: Cluster, topic: str) -> list[int]:
    """All rows of a topic, as anybody sees them."""
    frame = spark.read.format("skylark").option("namesrv", cluster.address)
    rows = frame.option("topic", topic).schema("body binary").load().collect()
    return sorted(int(bytes(row.body)) for row in rows)


def run_until_done(
    spark: Any, cluster: Cluster, source: str, sink: str, folder: Path, rows_max: int
) -> int:
    """Start the query again until it has ended by itself; how often it failed."""
    failures = 0
    while True:
        query = start_query(spark, cluster.address, source, sink, str(folder), rows_max)
        try:
            assert query.awaitTermination(120)
            return failures
        except Exception:
            failures += 1
            assert failures < 20
        finally:
            query.stop()


@pytest.mark.parametrize(
    ("fault", "ends_query"),
    [
        ("before-write", False),
        ("after-write", False),
        ("task-error", False),
        ("before-commit", True),
        ("after-commit", True),
    ],
)
def test_a_fault_at_any_step_loses_and_doubles_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path, fault: str, ends_query: bool
) -> None:
    source, sink = f"From-{fault}", f"To-{fault}"
    fill(cluster, source, 120)
    (tmp_path / fault).touch()
    failures = run_until_done(spark, cluster, source, sink, tmp_path, 50)
    assert not (tmp_path / fault).exists(), "the fault went off"
    assert failures == (1 if ends_query else 0)
    assert read(spark, cluster, sink) == list(range(120))


def test_a_broker_that_dies_again_and_again(
    spark: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("mortal"))
    cluster.start()
    try:
        fill(cluster, "MortalFrom", 300)
        rng = random.Random(7)
        done = threading.Event()
        kills = 0

        def killing() -> None:
            nonlocal kills
            while kills < 8 and not done.wait(rng.uniform(0.2, 1.0)):
                cluster.kill()
                kills += 1
                cluster.start()

        killer = threading.Thread(target=killing)
        killer.start()
        try:
            run_until_done(spark, cluster, "MortalFrom", "MortalTo", tmp_path, 20)
        finally:
            done.set()
            killer.join()
        assert kills >= 4
        assert read(spark, cluster, "MortalTo") == list(range(300))
    finally:
        cluster.stop()


def test_a_driver_that_is_killed_at_each_step(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster, "KilledFrom", 200)
    command = [
        sys.executable, str(HERE / "spark_faults.py"), cluster.address, "KilledFrom", "KilledTo",
        str(tmp_path), "40",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    outcomes = []
    for fault in ("kill-before-commit", "kill-after-commit", "at random", ""):
        if fault.startswith("kill"):
            (tmp_path / fault).touch()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if fault == "at random":
            time.sleep(random.Random(3).uniform(1, 3))
            subprocess.run(["kill", "-9", line.split()[1]], check=False)
        try:
            outcomes.append(process.wait(180))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert outcomes[-1] == 0
    assert all(outcomes[:2]), "the first two were killed"
    assert read(spark, cluster, "KilledTo") == list(range(200))


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


# The archive, and archive and live log as one table.


def archived(spark: Any, cluster: Cluster, root: Path, topic: str, rows_max: int = 70) -> None:
    query = archives.archive(
        spark, root, [topic], namesrv=cluster.address, once=True, messages_max=rows_max
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def whole(spark: Any, cluster: Cluster, root: Path, topic: str) -> list[tuple[int, int, int]]:
    lake = root if (root / "catalogue").exists() else None
    frame = archives.table(spark, lake, topic, namesrv=cluster.address)
    return sorted((row.queue_id, row.queue_offset, int(bytes(row.body))) for row in frame.collect())


def test_archive_and_live_log_are_one_table_while_both_move(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    sent = 0
    rng = random.Random(5)
    for step in range(4):
        count = rng.randrange(20, 60)
        cluster.send([Message("Seam", b"%d" % number) for number in range(sent, sent + count)])
        sent += count
        rows = whole(spark, cluster, tmp_path, "Seam")
        assert [body for _, _, body in sorted(rows, key=lambda row: row[2])] == list(range(sent))
        assert len({row[:2] for row in rows}) == sent
        if step < 3:
            archived(spark, cluster, tmp_path, "Seam", 25)
            assert len(whole(spark, cluster, tmp_path, "Seam")) == sent
    before = Catalogue(tmp_path).entries()
    assert len(before) > 3
    assert archives.compact(spark, tmp_path) == len(before)
    assert len(Catalogue(tmp_path).entries()) == 1
    assert len(whole(spark, cluster, tmp_path, "Seam")) == sent
    (row,) = archives.status(tmp_path)
    assert row["topic"] == "Seam"
    assert 0 < row["rows"] < sent
    counted = archives.sql(
        spark,
        "select count(*) as n, count(distinct queue_id, queue_offset) as places from Seam",
        ["Seam"],
        namesrv=cluster.address,
        root=tmp_path,
    ).first()
    assert (counted.n, counted.places) == (sent, sent)
    (row,) = json.loads(
        cluster.cli(
            "pipeline", "sql", "select max(cast(cast(body as string) as int)) as top from Seam",
            "-t", "Seam", "--archive", str(tmp_path), "--json",
        )
    )  # fmt: skip
    assert row == {"top": sent - 1}


def test_a_batch_of_the_archive_that_is_repeated_is_there_once(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    fill(cluster, "Twice", 60)
    archived(spark, cluster, tmp_path, "Twice", 30)
    # As after a driver that died when the files, and for the last batch the entry, were there, and
    # before Spark had noted it.
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    archived(spark, cluster, tmp_path, "Twice", 30)
    assert [
        body for _, _, body in sorted(whole(spark, cluster, tmp_path, "Twice"), key=lambda r: r[2])
    ] == list(range(60))
    entries = Catalogue(tmp_path).entries()
    assert sum(file.rows for entry in entries for file in entry.files) == 60


def test_a_topic_is_mirrored_queue_by_queue(
    spark: Any, cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Cluster(tmp_path_factory.mktemp("other"))
    other.start()
    try:
        fill(cluster, "Mirrored", 80)
        query = mirror(
            spark, "Mirrored", namesrv=cluster.address, to=other.address, once=True,
            checkpoint=str(tmp_path / "checkpoint"), group="mirroring",
        )  # fmt: skip
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

        def order(where: Cluster) -> dict[int, list[int]]:
            found: dict[int, list[tuple[int, int]]] = {}
            frame = spark.read.format("skylark").option("namesrv", where.address)
            for row in frame.option("topic", "Mirrored").load().collect():
                found.setdefault(row.queue_id, []).append((row.queue_offset, int(bytes(row.body))))
            return {queue: [body for _, body in sorted(rows)] for queue, rows in found.items()}

        assert order(other) == order(cluster)
    finally:
        other.stop()
