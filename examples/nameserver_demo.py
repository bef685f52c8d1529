"""Start a name server, register a broker with it, ask for a route, and stop.

    python examples/nameserver_demo.py

The name server is a process of its own on a free port, with its files in a temporary directory, so
nothing of yours is touched. The broker is a simulated one: it registers as a real one does, and
stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator

from skylark.client.routes import RouteCache
from skylark.clock import SystemClock
from skylark.errors import BrokerError, SkylarkError
from skylark.model.route import TopicRoute
from skylark.model.topic import TopicConfig, perm_text
from skylark.net import AsyncioNetwork, Channels
from skylark.remote import NameServers
from skylark.testing.broker import SimulatedBroker

TOPIC = "OrderTopic"
READY = "The Name Server boot success."
PATIENCE_S = 30


@contextlib.asynccontextmanager
async def name_server(directory: str) -> AsyncIterator[str]:
    """Run a name server as a process; gives its address."""
    settings = {
        "listenHost": "127.0.0.1",
        "listenPort": "0",
        "kvConfigPath": f"{directory}/kvConfig.json",
        "configStorePath": f"{directory}/namesrv.properties",
        "logDir": directory,
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skylark.cli.mqnamesrv", *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode().strip()
        if not line.startswith(READY):
            raise SystemExit(f"the name server did not start: {line or 'it says why above'}")
        print(f"  {line}")
        yield line.rpartition("address ")[2]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            code = await process.wait()
        if code != 0:
            raise SystemExit(f"the name server ended with exit code {code}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def show(topic: str, route: TopicRoute) -> None:
    """Print a route as a small table."""
    rows = [("broker", "address", "role", "read queues", "write queues", "may")]
    for queues in route.queues:
        broker = route.broker(queues.broker_name)
        assert broker is not None
        for broker_id, address in sorted(broker.addresses.items()):
            rows.append(
                (
                    queues.broker_name,
                    address,
                    "master" if broker_id == 0 else f"replica {broker_id}",
                    str(queues.read_queue_nums),
                    str(queues.write_queue_nums),
                    perm_text(queues.perm),
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n  Route of {topic}:\n")
    for number, row in enumerate(rows):
        print("    " + "  ".join(map(str.ljust, row, widths)).rstrip())
        if number == 0:
            print("    " + "  ".join("-" * width for width in widths))
    print()


async def main() -> None:
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random()
    with tempfile.TemporaryDirectory(prefix="skylark-demo-") as directory:
        print("1. A name server starts.")
        async with name_server(directory) as address:
            print("2. A broker registers two topics with it.")
            broker = SimulatedBroker(
                [address],
                network=network,
                clock=clock,
                rng=rng,
                address="127.0.0.1:10911",
                topics=[TopicConfig(TOPIC, 8, 8), TopicConfig("TBW102", 8, 8, perm=7)],
            )
            async with Channels(network, clock, rng) as channels:
                routes = RouteCache(NameServers(channels, [address], rng), clock)
                async with broker:
                    print("3. A client asks who serves the topic.")
                    show(TOPIC, await routes.get(TOPIC))
                    print("4. The broker takes its leave, and its route goes with it.")
                routes.forget(TOPIC)
                try:
                    await routes.get(TOPIC)
                    raise SystemExit("the route is still there")
                except BrokerError as error:
                    print(f"  The name server answers: {error.remark}")
        print("5. The name server has stopped cleanly.")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except SkylarkError as error:
        raise SystemExit(f"the demo failed: {error}") from error
