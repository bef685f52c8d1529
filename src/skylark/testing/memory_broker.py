"""MemoryBroker: the real name server and broker, in memory and virtual time, for users' tests.

    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client, client.producer("orders") as producer:
                await producer.send(Message("Orders", b"..."))
            await mq.clock.advance(hours=4, minutes=46)

        mq.run(scenario)

Three machines on one simulated network: `namesrv`, `broker` and `app`, where the test runs. Nothing
waits for real time: when everybody sleeps, the clock jumps to the next who wakes. Between two runs
time stands still. The same seed gives the same run.

What the test does must stay in there: asyncio.sleep and skylark's clients live in virtual time;
threads and real sockets do not.
"""

from __future__ import annotations

from typing import Any

from .memory_servers import BROKER, MemoryServers


class MemoryBroker(MemoryServers):
    """A name server and a broker that a test has for itself; a context manager."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        """Start both and wait until they serve; settings are those of BrokerConfig."""
        super().__init__({BROKER: "broker-a"}, seed, settings)
        node = self._cluster.nodes[BROKER]
        self.broker_address = f"{node.address}:{self._configs[BROKER].listen_port}"
