"""MemoryCluster: as MemoryBroker, with several brokers.

    with MemoryCluster(3) as cluster:

        async def scenario() -> None:
            async with cluster.connect() as client, client.producer("orders") as producer:
                cluster.faults.kill("broker-b")
                await producer.send(Message("Orders", b"..."))  # Goes to another broker.

        cluster.run(scenario)

Machines and brokers are called broker-a, broker-b and so on; all are masters with the same
settings. What is asked of the cluster is asked of all its brokers.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

from .memory_servers import MemoryServers


class MemoryCluster(MemoryServers):
    """A name server and several brokers that a test has for itself; a context manager."""

    def __init__(self, brokers: int = 2, *, seed: int = 0, **settings: Any) -> None:
        """Start all and wait until they serve; settings are those of BrokerConfig."""
        if not 1 <= brokers <= len(ascii_lowercase):
            raise ValueError(f"{brokers} brokers: choose 1 to {len(ascii_lowercase)}")
        names = [f"broker-{letter}" for letter in ascii_lowercase[:brokers]]
        super().__init__({name: name for name in names}, seed, settings)
        self.broker_addresses = {
            name: f"{self._cluster.nodes[name].address}:{self._configs[name].listen_port}"
            for name in names
        }
