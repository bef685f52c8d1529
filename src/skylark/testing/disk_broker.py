"""DiskBroker: the real name server and broker on real files and loopback ports, for users' tests.

    with DiskBroker(tmp_path) as mq:
        async with mq.connect() as client: ...
        skylark.sync.connect(mq.address)          # or any other client, in any thread or process

They run in a thread of their own, on ports that the system picks. Time is real; for hours of it, or
for faults of the network, take a MemoryBroker.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..broker.app import Broker
from ..broker.config import BrokerConfig
from ..broker.process import loop_factory, os_broker
from ..client.connect import connect
from ..client.facade import Client
from ..clock import SystemClock
from ..nameserver.app import NameServer
from ..nameserver.config import NameServerConfig
from ..net import AsyncioNetwork
from ..store import OsFiles

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 30.0
SETTINGS: Final = {
    "broker_name": "broker-a",
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 20 * 3_000,
    "mapped_file_size_timer_log": 1 << 20,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "disk_space_ample_bytes": 64 << 20,
    # It listens on loopback at a port that was free: there is nothing to find out by dialling it.
    "advertised_address_check": False,
}


class DiskBroker:
    """A name server and a broker that a test has for itself; a context manager."""

    def __init__(self, folder: str | os.PathLike[str], **settings: Any) -> None:
        """Start both and wait until they serve; settings are those of BrokerConfig."""
        self.folder = os.fspath(folder)
        self._settings = settings
        self._loop = asyncio.new_event_loop() if (make := loop_factory()) is None else make()
        self._thread = threading.Thread(target=self._drive, name="skylark-disk", daemon=True)
        self._parts = AsyncExitStack()
        self._broker_parts = AsyncExitStack()
        self._broker: Broker | None = None
        self.address = ""  # Of the name server.
        self._thread.start()
        try:
            self._call(self._start)
        except BaseException:
            self.close()
            raise

    @property
    def broker_address(self) -> str:
        """Where the broker listens."""
        if self._broker is None:
            raise RuntimeError("the broker is down; start_broker() starts it")
        return self._broker.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop both, as SIGTERM does; safe to call again."""
        if self._loop.is_closed():
            return
        try:
            self._call(self._stop)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function to its end in a loop of its own; returns what it returns."""
        return asyncio.run(main())

    def connect(self, **settings: Any) -> Client:
        """A client, as skylark.connect gives it: `async with mq.connect() as client`."""
        return connect(self.address, **settings)

    def stop_broker(self) -> None:
        """Stop the broker, and leave its files."""
        self._call(self._stop_broker)

    def start_broker(self) -> None:
        """Start the broker again on its files, at a new port."""
        self._call(self._start_broker)

    def restart(self) -> None:
        """Stop the broker if it runs, and start it again."""
        self.stop_broker()
        self.start_broker()

    # In the thread.

    def _drive(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(step(), self._loop)
        done.result(PATIENCE_S)

    async def _start(self) -> None:
        async with AsyncExitStack() as parts:
            server = await parts.enter_async_context(
                NameServer(
                    NameServerConfig(
                        listen_host=HOST,
                        listen_port=0,
                        kv_config_path=os.path.join(self.folder, "namesrv", "kvConfig.json"),
                        config_store_path=os.path.join(
                            self.folder, "namesrv", "namesrv.properties"
                        ),
                    ),
                    clock=SystemClock(),
                    network=AsyncioNetwork(),
                    files=OsFiles(),
                )
            )
            self.address = server.address
            await self._start_broker()
            self._parts = parts.pop_all()

    async def _stop(self) -> None:
        try:
            await self._stop_broker()
        finally:
            await self._parts.aclose()

    async def _start_broker(self) -> None:
        if self._broker is not None:
            raise RuntimeError("the broker runs; stop_broker() stops it")
        config = BrokerConfig(
            **{
                **SETTINGS,
                "listen_host": HOST,
                "listen_port": 0,
                "namesrv_addr": self.address,
                "store_path_root_dir": os.path.join(self.folder, "store"),
                **self._settings,
            }
        )
        parts = AsyncExitStack()
        self._broker = await parts.enter_async_context(os_broker(config))
        self._broker_parts = parts

    async def _stop_broker(self) -> None:
        self._broker = None
        await self._broker_parts.aclose()
