"""Streams start in any thread, and with what a killed driver has left of its first micro-batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from spark_chain import read_archive, read_topic
from spark_world import SPARKS_WARNINGS, Cluster

from skylark.model.message import Message
from skylark.spark import archive as archives
from skylark.spark import start
from skylark.spark.mirror import mirror
from skylark.spark.pipelines import Pipeline

pytestmark = SPARKS_WARNINGS
ROWS = 20
BODIES = sorted(b"%d" % number for number in range(ROWS))
DRAFT = ".0.09186298-463f-493d-8c35-be19626c1742.tmp"


@pytest.fixture(scope="module", autouse=True)
def messages(cluster: Cluster) -> None:
    """What all streams here read."""
    cluster.send(Message("DraftFrom", body, properties={"kept": "yes"}) for body in BODIES)


def by_archive(spark: Any, cluster: Cluster, home: Path) -> Any:
    return archives.archive(spark, home, ["DraftFrom"], namesrv=cluster.address, once=True)


def by_mirror(spark: Any, cluster: Cluster, home: Path) -> Any:
    return mirror(
        spark, "DraftFrom", namesrv=cluster.address, to=cluster.address, as_topic="DraftMirror",
        checkpoint=str(home / "checkpoint"), once=True,
    )  # fmt: skip


def by_hand(spark: Any, cluster: Cluster, home: Path) -> Any:
    return start(spark, writer_of(spark, cluster, "DraftHand"), str(home / "checkpoint"))


def writer_of(
    spark: Any, cluster: Cluster, sink: str, *, source: str = "DraftFrom", at_once: int = ROWS
) -> Any:
    return (
        spark.readStream.format("skylark")
        .option("namesrv", cluster.address)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", at_once)
        .load()
        .select("body")
        .writeStream.format("skylark")
        .option("namesrv", cluster.address)
        .option("topic", sink)
        .trigger(availableNow=True)
    )


def finish(query: Any) -> None:
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def leave_draft(checkpoint: Path) -> Path:
    """As a driver does that is killed between the draft of offsets/0 and its name."""
    draft = checkpoint / "offsets" / DRAFT
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"v1\n{")
    (draft.parent / f".{DRAFT}.crc").write_bytes(b"crc")
    return draft


@pytest.mark.parametrize(
    ("begin", "topic"),
    [(by_archive, None), (by_mirror, "DraftMirror"), (by_hand, "DraftHand")],
)
def test_a_driver_that_was_killed_at_its_first_micro_batch_is_followed_by_another(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    begin: Callable[[Any, Cluster, Path], Any],
    topic: str | None,
) -> None:
    draft = leave_draft(tmp_path / "checkpoint")
    finish(begin(spark, cluster, tmp_path))
    assert not draft.exists()
    found = read_archive(tmp_path) if topic is None else read_topic(cluster.address, topic)
    assert sorted(place.body for place in found) == BODIES


def by_pipeline(spark: Any, cluster: Cluster, home: Path) -> None:
    pipeline = Pipeline("drafts", namesrv=cluster.address, checkpoint=home / "checkpoint")
    pipeline.source("all", topic="DraftFrom", startingOffsets="earliest")
    pipeline.sql("bodies", "select body, user_properties(properties) as properties from `all`")
    pipeline.sink("out", topic="DraftPipeline")
    with pipeline.running(spark, once=True) as run:
        assert run.wait().status == "done"


def test_a_pipeline_that_was_killed_at_its_first_micro_batch_goes_on(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    draft = leave_draft(tmp_path / "checkpoint" / "out")
    by_pipeline(spark, cluster, tmp_path)
    assert not draft.exists()
    found = cluster.consume("DraftPipeline", ROWS, "drafts")
    assert sorted(message.body for message in found) == BODIES
    assert {message.properties["kept"] for message in found} == {"yes"}


def test_what_has_been_noted_is_no_draft(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Spark's own check stays: offsets that are gone beside commits are another matter."""
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(PySparkException, match="MISSING_METADATA_FILE"):
        by_hand(spark, cluster, tmp_path).awaitTermination(60)


def test_a_stream_starts_in_any_thread(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            with pytest.raises((PySparkException, Py4JJavaError), match="DATA_SOURCE_NOT_FOUND"):
                # What Spark does by itself, which is why there is start().
                writer_of(spark, cluster, "DraftThread").option(
                    "checkpointLocation", str(tmp_path / "plain")
                ).start()
            query = start(
                spark, writer_of(spark, cluster, "DraftThread"), str(tmp_path / "checkpoint")
            )
            finish(query)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not problems, problems[0]
    found = read_topic(cluster.address, "DraftThread")
    assert sorted(place.body for place in found) == BODIES


def test_an_older_copy_of_a_checkpoint_is_refused_where_it_would_lose_rows(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    """As after a power cut on the driver's machine that took the note of the last micro-batch."""
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        writer = writer_of(spark, cluster, "OlderTo", source="OlderFrom", at_once=4 * ROWS)
        finish(start(spark, writer, str(checkpoint)))

    def place_of(batch: int) -> Path:
        return checkpoint / "offsets" / str(batch)

    cluster.send(Message("OlderFrom", b"0-%d" % number) for number in range(ROWS))
    run()
    cluster.send(Message("OlderFrom", b"1-%d" % number) for number in range(ROWS))
    run()
    for path in (place_of(1), checkpoint / "commits" / "1"):
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    cluster.send(Message("OlderFrom", b"2-%d" % number) for number in range(ROWS))
    # Micro-batch 1 would now hold the rows of 2 as well, and is decided: they would be missing.
    with pytest.raises(PySparkException, match="option checkpointLocation: micro-batch 1 of sink"):
        run()
    found = [place.body for place in read_topic(cluster.address, "OlderTo")]
    assert len(found) == 2 * ROWS
    assert not any(body.startswith(b"2-") for body in found)
