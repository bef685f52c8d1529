"""Rows that name their queue, while the brokers of a topic come and go."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from spark_chain import read_topic
from spark_servers import Servers

from skylark.spark.cluster import Cluster
from skylark.spark.options import write_options
from skylark.spark.sink import Sender

KEYS = [f"key-{number}" for number in range(12)]


def write(address: str, topic: str, columns: dict[str, Any]) -> None:
    """As one task does."""
    options = write_options({"namesrv": address, "topic": topic}, is_stream=False)
    cluster = Cluster(options.access)
    try:
        sender = Sender(options, cluster)
        sender.send(pa.RecordBatch.from_pydict(columns))
        sender.flush()
    finally:
        cluster.close()


def places(address: str, topic: str) -> set[tuple[bytes, str, int]]:
    return {(row.body, row.broker, row.queue_id) for row in read_topic(address, topic)}


def test_queues_and_keys_stay_while_a_broker_restarts(tmp_path: Path) -> None:
    numbers = {"body": ["0", "1", "2", "3"], "queue_id": [0, 1, 2, 3]}
    keys = {"body": KEYS, "sharding_key": KEYS}
    with Servers(tmp_path) as servers:

        def write_both() -> None:
            write(servers.address, "Numbered", numbers)
            write(servers.address, "Sharded", keys)

        write_both()
        before = [places(servers.address, topic) for topic in ("Numbered", "Sharded")]
        assert sorted(place[1:] for place in before[0]) == [
            (broker, number) for broker in ("broker-a", "broker-b") for number in (0, 1)
        ]
        servers.kill("broker-a")
        while "broker-a" in servers.registered():
            time.sleep(0.05)
        writer = threading.Thread(target=write_both)
        writer.start()
        time.sleep(0.5)
        servers.away.discard("broker-a")
        servers.brokers[0].start()
        servers.wait_serving()
        writer.join(60)
        assert not writer.is_alive()
        assert before == [places(servers.address, topic) for topic in ("Numbered", "Sharded")]
        assert len(list(read_topic(servers.address, "Numbered"))) == 8
        assert len(list(read_topic(servers.address, "Sharded"))) == 24
