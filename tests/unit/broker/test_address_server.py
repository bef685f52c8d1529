"""A broker that is not told where the name servers are, but where to ask."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from broker_world import BrokerWorld

from skylark.nameserver.address_service import AddressService
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.testing.files import SimFiles

ASKS: dict[str, Any] = {
    "fetch_namesrv_addr_by_address_server": True,
    "namesrv_domain": "10.0.9.9:8080",
}


@contextlib.asynccontextmanager
async def address_service(world: BrokerWorld, told: list[str]) -> AsyncIterator[None]:
    service = AddressService(lambda local: told[0])
    host = world.network.host("10.0.9.9")
    server = await host.listen(service.make_protocol, host.address, 8080)
    try:
        yield
    finally:
        server.close()
        service.close()


@contextlib.asynccontextmanager
async def name_server(world: BrokerWorld, ip: str) -> AsyncIterator[NameServer]:
    config = NameServerConfig(kv_config_path="/namesrv/kv.json")
    server = NameServer(config, clock=world.clock, network=world.network.host(ip), files=SimFiles())
    async with server:
        yield server


def brokers_of(server: NameServer) -> set[str]:
    return set(server.routes.cluster_info().brokers)


def test_a_broker_asks_the_address_service_where_the_name_servers_are(world: BrokerWorld) -> None:
    async def main() -> None:
        told = ["10.0.1.1:9876"]
        async with (
            name_server(world, "10.0.1.1") as first,
            name_server(world, "10.0.1.2") as second,
            address_service(world, told),
        ):
            async with world.running(**ASKS) as broker:
                assert brokers_of(first) == {"broker-a"}
                assert brokers_of(second) == set()
                assert broker.boot_line.endswith("name server is 10.0.1.1:9876")
                # The whole set may change behind the URL: after two minutes at most it is known.
                told[0] = "10.0.1.2:9876"
                await world.clock.sleep_ms(130_000)
                assert brokers_of(second) == {"broker-a"}
                # The former one hears nothing more, and forgets the broker in its time.
                await world.clock.sleep_ms(130_000)
                assert brokers_of(first) == set()
                assert brokers_of(second) == {"broker-a"}
            assert brokers_of(second) == set()

    world.run(main)


def test_an_address_service_that_comes_late_is_heard_then(world: BrokerWorld) -> None:
    async def main() -> None:
        told = ["10.0.1.1:9876"]
        async with name_server(world, "10.0.1.1") as server, world.running(**ASKS):
            assert brokers_of(server) == set()
            async with address_service(world, told):
                await world.clock.sleep_ms(15_000)
                assert brokers_of(server) == {"broker-a"}

    world.run(main)


def test_an_empty_or_senseless_answer_changes_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        told = ["10.0.1.1:9876"]
        async with (
            name_server(world, "10.0.1.1") as server,
            address_service(world, told),
            world.running(**ASKS),
        ):
            for answer in ("", "no address/at all", "10.0.1.1:99999"):
                told[0] = answer
                await world.clock.sleep_ms(130_000)
                assert brokers_of(server) == {"broker-a"}

    world.run(main)


def test_addresses_that_are_given_win_over_the_service(world: BrokerWorld) -> None:
    async def main() -> None:
        told = ["10.0.1.2:9876"]
        async with (
            name_server(world, "10.0.1.1") as first,
            name_server(world, "10.0.1.2") as second,
            address_service(world, told),
            world.running(namesrv_addr="10.0.1.1:9876", **ASKS),
        ):
            await world.clock.sleep_ms(30_000)
            assert brokers_of(first) == {"broker-a"}
            assert brokers_of(second) == set()

    world.run(main)
