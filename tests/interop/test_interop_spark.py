"""Spark's rows are what the official Java consumer reads, byte for byte, from network and files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_programs import JavaProgram
from our_broker import our_cluster
from peers import Peers

pytest.importorskip("pyspark")

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from spark_world import start_spark

pytestmark = [
    pytest.mark.interop,
    # Spark's own Python leaves sockets to the collector; none of that is ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC, GROUP = "SparkOfficial", "official"
TEXTS = frozenset(
    ["topic", "broker", "tag", "keys", "message_id", "born_host", "store_host", "offset_message_id"]
)
# The Java client puts these into every message it hands out; they are not stored.
CLIENTS_OWN = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
SCHEMA = (
    "topic string, broker string, queue_id int, queue_offset bigint, body binary, tag string, "
    "keys string, properties map<string,string>, message_id string, born_time timestamp, "
    "store_time timestamp, reconsume_times int, flag int, sys_flag int, physical_offset bigint, "
    "born_host string, store_host string, offset_message_id string"
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = start_spark(tmp_path_factory.mktemp("warehouse"))
    yield found
    found.stop()


def text_of(value: str) -> str | None:
    return None if value == "-" else bytes.fromhex(value).decode()


def official_row(line: str) -> dict[str, Any]:
    """What the Java consumer printed of one message, as a row has it."""
    found: dict[str, Any] = dict(word.split("=", 1) for word in line.split(" ")[2:])
    for name, value in found.items():
        if name in TEXTS:
            found[name] = text_of(value)
        elif name == "body":
            found[name] = bytes.fromhex(value)
        elif name == "properties":
            words = [text_of(word) for word in value.split(".")]
            pairs = dict(zip(words[::2], words[1::2], strict=True))
            found[name] = {key: pairs[key] for key in pairs if key not in CLIENTS_OWN}
        else:
            found[name] = int(value)
    return found


def spark_row(row: Any) -> dict[str, Any]:
    found = row.asDict()
    found["body"] = bytes(found["body"])
    for name in ("born_time", "store_time"):
        found[name] = round(found[name].timestamp() * 1_000)
    return found


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"]


def test_rows_are_what_the_official_consumer_reads(
    peers: Peers, spark: Any, tmp_path: Path
) -> None:
    with our_cluster(tmp_path, messageDelayLevel="1s 1s 1s 1s") as (name_server, _):
        with JavaProgram(
            peers, "SparkPeer", name_server.address, TOPIC, GROUP, home=tmp_path
        ) as program:
            program.wait_for_line("> done", timeout_s=90)
            lines = [line for line in program.lines if line.startswith("> ")]
        expected = sorted((official_row(line) for line in lines if " row " in line), key=place)
        assert f"> read {TOPIC} 34 of 34" in lines
        assert f"> read %RETRY%{GROUP} 1 of 1" in lines
        (store,) = Path(tmp_path).glob("**/commitlog")
        reader = (
            spark.read.format("skylark").schema(SCHEMA).option("namesrv", name_server.address)
            .option("topic", f"{TOPIC},%RETRY%{GROUP}")
        )  # fmt: skip
        for options in ({}, {"readFrom": "files", "storePath": str(store.parent)}):
            rows = [spark_row(row) for row in reader.options(**options).load().collect()]
            assert sorted(rows, key=place) == expected
    assert {row["sys_flag"] & 1 for row in expected} == {0, 1}, "some were compressed"
    assert {row["reconsume_times"] for row in expected} == {0, 1}
    assert max(len(row["body"]) for row in expected) == 300_000
