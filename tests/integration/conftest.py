"""Fixtures of the Spark tests: one session and one cluster for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from spark_world import Cluster, start_spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`skylark up` as a process."""
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session in local mode; the JVM stays for the next file."""
    spark = start_spark(tmp_path_factory.mktemp("warehouse"))
    yield spark
    spark.stop()
