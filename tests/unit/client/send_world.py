"""A name server, brokers and a client, all simulated, for tests of the sending half."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from skylark.client.connect import connect
from skylark.client.facade import Client
from skylark.model.topic import TopicConfig
from skylark.testing import LinkConfig, SimClock, SimLoop, SimNetwork
from skylark.testing.fake_broker import FakeBroker, FakeNameServer, with_template

WIRE = LinkConfig(delay_ms=0.1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)
TOPIC = "Orders"


class World:
    """Machines on virtual time: one name server, some brokers, one client."""

    def __init__(self, brokers: int = 2, topics: Iterable[TopicConfig] | None = None) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1), config=WIRE)
        self.clock = SimClock(self.loop)
        self.client_host = self.network.host("10.0.0.100")
        made = (TopicConfig(TOPIC, 4, 4),) if topics is None else tuple(topics)
        self.brokers = [
            FakeBroker(
                self.network.host(f"10.0.0.{n + 1}"),
                self.clock,
                f"10.0.0.{n + 1}",
                name=f"broker-{chr(ord('a') + n)}",
                topics=with_template(made),
            )
            for n in range(brokers)
        ]
        ns_host = self.network.host("10.0.0.200")
        self.name_server = FakeNameServer(ns_host, "10.0.0.200", brokers=self.brokers)

    def connect(self, **settings: Any) -> Client:
        settings = {"client_ip": "10.0.0.100", "env": {}, **settings}
        return connect(
            settings.pop("namesrv_addr", self.name_server.address),
            network=settings.pop("network", self.client_host),
            clock=self.clock,
            rng=random.Random(7),
            **settings,
        )

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario with all servers up; every task must have ended with it."""

        async def main() -> None:
            async with AsyncExitStack() as servers:
                await servers.enter_async_context(self.name_server)
                for broker in self.brokers:
                    await servers.enter_async_context(broker)
                await scenario()

        try:
            self.loop.run(main(), until_ms=24 * 3_600_000)
        finally:
            self.loop.close()
