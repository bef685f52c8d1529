"""An archive in Delta's format, with the package from Maven Central, by the command users type.

What is in the table is read from Delta's log and files, without Spark. Where the package is not for
the Spark that is installed, the command must say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from spark_world import Cluster

from skylark.model.message import Message
from skylark.spark import lake

pytestmark = pytest.mark.interop

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"


def archive(cluster: Cluster, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skylark.cli", "pipeline", "archive", "LakeTopic", "--archive",
         str(root), "--once", "-n", cluster.address, *words],
        env={**os.environ, "SKYLARK_RUN_DIR": str(root / "run")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def offsets_in(table: Path) -> list[tuple[int, int]]:
    """Queue and offset of every row of a Delta table."""
    import pyarrow.parquet as parquet

    files: set[str] = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.add(action["add"]["path"])
            if "remove" in action:
                files.discard(action["remove"]["path"])
    found = []
    for name in files:
        for row in parquet.ParquetFile(table / name).read(["queue_id", "queue_offset"]).to_pylist():
            found.append((row["queue_id"], row["queue_offset"]))
    return sorted(found)


IS_BUILT_FOR_THIS_SPARK = lake.installed_spark().startswith("4.2.")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "up")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.skipif(IS_BUILT_FOR_THIS_SPARK, reason="the package is for the Spark that is here")
def test_a_package_for_another_spark_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.send([Message("LakeTopic", b"x")])
    done = archive(cluster, tmp_path / "lake", "--table-format", "delta", "--packages", PACKAGE)
    assert done.returncode == 2
    assert "is built for Spark 4.2, and this is Spark" in done.stderr


@pytest.mark.skipif(not IS_BUILT_FOR_THIS_SPARK, reason=f"{PACKAGE} is for Spark 4.2 alone")
def test_a_topic_becomes_a_delta_table_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    cluster.send([Message("LakeTopic", b"%d" % number) for number in range(100)])
    done = archive(cluster, root, "--table-format", "delta", "--packages", PACKAGE)
    assert done.returncode == 0, done.stderr
    assert "LakeTopic: 100 messages in delta" in done.stderr
    # As if the driver had died after the table's commit and before Spark's own note of it.
    commits = root / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    cluster.send([Message("LakeTopic", b"more") for _ in range(20)])
    done = archive(cluster, root, "--table-format", "delta", "--packages", PACKAGE)
    assert done.returncode == 0, done.stderr
    found = offsets_in(root / "tables" / "messages")
    assert len(found) == len(set(found)) == 120
