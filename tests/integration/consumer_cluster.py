"""A name server and a broker on loopback, in a thread, so that blocking programs can be tested."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from skylark.broker.config import BrokerConfig
from skylark.broker.process import os_broker
from skylark.clock import SystemClock
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.net import AsyncioNetwork
from skylark.store import OsFiles


@contextmanager
def running_cluster(home: Path) -> Iterator[str]:
    """Yield the name server's address while both serve."""
    ready: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = NameServer(
            NameServerConfig(
                listen_host="127.0.0.1",
                listen_port=0,
                kv_config_path=str(home / "kv.json"),
                config_store_path=str(home / "namesrv.properties"),
            ),
            clock=SystemClock(),
            network=AsyncioNetwork(),
            files=OsFiles(),
        )
        async with server:
            broker = os_broker(
                BrokerConfig(
                    listen_host="127.0.0.1",
                    listen_port=0,
                    broker_name="broker-a",
                    namesrv_addr=server.address,
                    store_path_root_dir=str(home / "store"),
                    mapped_file_size_commit_log=16 << 20,
                    mapped_file_size_consume_queue=20 * 3000,
                    max_index_num=20_000,
                    max_hash_slot_num=5_000,
                )
            )
            async with broker:
                ready.set_result(server.address)
                await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    try:
        yield ready.result(30)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
