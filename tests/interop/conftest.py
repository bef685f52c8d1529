"""What the interop tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cluster import SETTINGS, Cluster, MakeSubject, subject_is_apache
from peers import ApacheBroker, ApacheNameServer, NameServer, OurNameServer, Peers


@pytest.fixture(scope="session")
def peers() -> Peers:
    """Apache's programs, fetched."""
    return Peers.fetch()


@pytest.fixture(scope="session")
def clients5() -> Peers:
    """The official client and tools of 5.x, fetched."""
    return Peers.fetch_clients()


@pytest.fixture(scope="session")
def make_subject(peers: Peers) -> MakeSubject:
    """Make the name server under test; the caller starts it."""

    def make(home: Path, settings: Mapping[str, str] | None = None) -> NameServer:
        if subject_is_apache():
            return ApacheNameServer(peers, home, settings=settings)
        return OurNameServer(home, settings=settings)

    return make


@pytest.fixture(scope="module")
def cluster(
    peers: Peers, make_subject: MakeSubject, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A running cluster, everything registered everywhere."""
    home = tmp_path_factory.mktemp("cluster")
    apache = ApacheNameServer(peers, home / "apache", settings=SETTINGS)
    subjects = [make_subject(home / f"subject-{n}", settings=SETTINGS) for n in (1, 2)]
    servers = [apache, *subjects]
    brokers = [
        ApacheBroker(
            peers,
            home / name,
            name=name,
            name_servers=[server.address for server in servers],
        )
        for name in ("broker-a", "broker-b")
    ]
    try:
        for process in (*servers, *brokers):
            process.start()
        for broker in brokers:
            broker.wait_registered(servers)
        yield Cluster(subjects, apache, brokers, home)
    finally:
        for process in (*brokers, *servers):
            process.kill()
