"""The official Go client and the Node client `ali-ons` on our broker and name server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from our_broker import our_cluster
from peers import GoClient, NodeClient, Process
from wire import Probe

pytestmark = pytest.mark.interop

COUNT = 10_000


TOPIC = {
    "topic": "NodeClient-consume",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with our_cluster(tmp_path_factory.mktemp("clients")) as (name_server, broker):
        with Probe(broker.address) as probe:
            # The Node client makes no topics by sending to them.
            assert probe.call(17, TOPIC).code == 0
        yield name_server.address


def finish(client: Process) -> str:
    """The last thing that a client says."""
    with client:
        assert client.wait_ended(120) == 0, client.tail()
        return client.lines[-1]


@pytest.mark.parametrize(
    ("kind", "send", "receive", "rest"),
    [
        (GoClient, "produce", "consume", "duplicates 0"),
        (GoClient, "select", "orderly", "inversions 0"),
        # It handles one message of a queue after the other: order is always kept.
        (NodeClient, "produce", "consume", "duplicates 0 inversions 0"),
    ],
    ids=["Go", "Go-in-order", "Node"],
)
def test_what_a_client_sends_it_receives(
    address: str,
    kind: type[GoClient | NodeClient],
    send: str,
    receive: str,
    rest: str,
    tmp_path: Path,
) -> None:
    topic = f"{kind.__name__}-{receive}"
    producer = kind(tmp_path, send, address, topic, "producers", str(COUNT))
    assert finish(producer) == f"sent {COUNT} failed 0"
    consumer = kind(tmp_path, receive, address, topic, f"group-{topic}", str(COUNT), "90")
    assert finish(consumer) == f"received {COUNT} {rest}"
