"""Apache's example and benchmark programs, as they are, on our broker and name server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from our_broker import OurBroker, our_cluster
from peers import ApacheExample, OurNameServer, Peers, wait_until
from wire import Probe

pytestmark = pytest.mark.interop

QUICKSTART = 1000
BENCHMARK = 10_000


Cluster = tuple[OurNameServer, OurBroker]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with our_cluster(tmp_path_factory.mktemp("examples")) as cluster:
        yield cluster


def example(
    peers: Peers, home: Path, name: str, name_server: OurNameServer, *arguments: str
) -> ApacheExample:
    return ApacheExample(peers, home / name, name, name_server.address, *arguments)


def test_the_quickstart_runs(peers: Peers, cluster: Cluster, tmp_path: Path) -> None:
    name_server, _ = cluster
    with example(peers, tmp_path, "quickstart.Producer", name_server) as producer:
        assert producer.wait_ended(60) == 0
        sent = re.findall(r"sendStatus=SEND_OK, msgId=(\w+)", "\n".join(producer.lines))
    assert len(sent) == len(set(sent)) == QUICKSTART
    with example(peers, tmp_path, "quickstart.Consumer", name_server) as consumer:
        consumer.wait_for_line("Consumer Started.")

        def received() -> set[str]:
            return set(re.findall(r"body=\[([\d, ]+)\]", "\n".join(consumer.lines)))

        wait_until(
            lambda: len(received()) == QUICKSTART,
            timeout_s=60,
            what=f"{QUICKSTART} messages at the quickstart's consumer",
            every_s=0.5,
        )


def test_the_benchmark_programs_run(peers: Peers, cluster: Cluster, tmp_path: Path) -> None:
    """They speak binary headers; the consumer shows its rate every ten seconds."""
    name_server, broker = cluster
    topic = ("-t", "Benchmark", "-n", name_server.address)
    arguments = (*topic, "-w", "16", "-s", "1024", "-q", str(BENCHMARK))
    with example(peers, tmp_path, "benchmark.Producer", name_server, *arguments) as producer:
        assert producer.wait_ended(120) == 0
        (last,) = [line for line in producer.lines if line.startswith("[Complete]")]
    print(last)
    assert f"Send Total: {BENCHMARK} " in last
    assert re.search(r"Send Failed: 0 Response Failed: 0$", last)

    def committed() -> int:
        with Probe(broker.address) as probe:
            question = {"consumerGroup": "benchmark_consumer", "topic": "Benchmark"}
            answers = [probe.call(14, {**question, "queueId": str(n)}) for n in range(4)]
        return sum(int(one.fields.get("offset", 0)) for one in answers)

    with example(peers, tmp_path, "benchmark.Consumer", name_server, *topic) as consumer:
        rate = consumer.wait_for_line("Current Time:", 60)
        print(rate)
        assert re.search(r"TPS: \d+ FAIL: 0 ", rate)
        wait_until(
            lambda: committed() == BENCHMARK,
            timeout_s=30,
            what="everything consumed",
            every_s=0.2,
        )
