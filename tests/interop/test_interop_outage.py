"""Name servers die under traffic, and nobody notices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import MakeSubject
from peers import ApacheBroker, JavaClient, NameServer, Peers, wait_until

pytestmark = pytest.mark.interop

RATE = 200
TOPIC = "Outage"
REGISTERED_WITHIN_S = 30


class Traffic:
    """A Java producer that keeps sending, and what it says about it."""

    def __init__(self, client: JavaClient) -> None:
        self.client = client

    def seconds(self) -> list[int]:
        """How many messages were sent in each whole second so far."""
        return [int(line.split()[3]) for line in list(self.client.lines) if "second" in line]

    def failures(self) -> list[str]:
        """Every failed send so far."""
        return [line for line in list(self.client.lines) if line.startswith("failed")]

    def flow(self, seconds: int) -> None:
        """Watch so many seconds of traffic: nothing fails, and it never stands still."""
        start = len(self.seconds())
        wait_until(
            lambda: len(self.seconds()) >= start + seconds or self.failures(),
            timeout_s=seconds + 20,
            what=f"{seconds} s of traffic",
        )
        assert self.failures() == []
        assert min(self.seconds()[start:]) > 0, f"a second without a send: {self.seconds()}"


class Scene:
    """Two name servers, two brokers that know only them, and traffic."""

    def __init__(
        self, servers: list[NameServer], brokers: list[ApacheBroker], traffic: Traffic
    ) -> None:
        self.servers = servers
        self.brokers = brokers
        self.traffic = traffic

    def restart(self, *servers: NameServer) -> None:
        """Start them again and wait until every broker has registered by itself."""
        for server in servers:
            server.start()
        deadline = time.monotonic() + REGISTERED_WITHIN_S
        for broker in self.brokers:
            broker.wait_registered(servers, timeout_s=max(0.0, deadline - time.monotonic()))


@pytest.fixture
def scene(peers: Peers, make_subject: MakeSubject, tmp_path: Path) -> Iterator[Scene]:
    """Everything running, messages flowing."""
    servers = [make_subject(tmp_path / f"subject-{n}") for n in (1, 2)]
    addresses = [server.address for server in servers]
    brokers = [
        ApacheBroker(peers, tmp_path / name, name=name, name_servers=addresses)
        for name in ("broker-a", "broker-b")
    ]
    client = JavaClient(
        peers, tmp_path / "client", "stream", ";".join(addresses), TOPIC, "producers", str(RATE)
    )
    try:
        for process in (*servers, *brokers):
            process.start()
        for broker in brokers:
            broker.wait_registered(servers)
        client.start()
        yield Scene(servers, brokers, Traffic(client))
    finally:
        for process in (client, *brokers, *servers):
            process.kill()


def test_no_send_fails_while_name_servers_are_killed_one_by_one_and_both(
    scene: Scene, peers: Peers, tmp_path: Path
) -> None:
    first, second = scene.servers
    traffic = scene.traffic
    traffic.flow(3)

    first.kill()
    traffic.flow(5)
    scene.restart(first)

    second.kill()
    traffic.flow(5)
    scene.restart(second)

    first.kill()
    second.kill()
    traffic.flow(12)  # Longer than the brokers' registration period and the client's route refresh.
    scene.restart(first, second)
    traffic.flow(5)

    traffic.client.end_input()
    last = traffic.client.wait_for_line("sent", 30)
    count = int(last.split()[1])
    assert last == f"sent {count} failed 0"

    # A consumer that starts only now finds its way through the restarted name servers.
    with JavaClient(
        peers,
        tmp_path / "consumer",
        "consume",
        ";".join(server.address for server in scene.servers),
        TOPIC,
        "consumers",
        str(count),
        "60",
    ) as consumer:
        assert consumer.wait_for_line("received", 90) == f"received {count} duplicates 0"
