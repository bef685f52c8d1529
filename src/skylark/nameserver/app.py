"""NameServer: builds the parts and runs them; run() is the process around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from .. import collector
from ..clock import Clock, SystemClock
from ..errors import ConfigError, CorruptRecord
from ..net.config import NetConfig
from ..net.listener import Listener
from ..net.network import AsyncioNetwork, Network, Server
from ..net.switchboard import AnyHandler, Handler, RawHandler, Switchboard
from ..net.tasks import TaskScope
from ..protocol.exchange import Peer
from .address_service import AddressService
from .config import NameServerConfig
from .handlers import Handlers
from .kv_config import KVConfig, SmallFiles
from .liveness import Liveness
from .registration_guard import RegistrationGuard
from .route_table import RouteTable


class NameServer:
    """A name server; it serves from entering the block until leaving it.

    async with NameServer(config, clock=clock, network=network, files=files) as server:
        await server.serve()
    """

    def __init__(
        self,
        config: NameServerConfig,
        *,
        clock: Clock,
        network: Network,
        files: SmallFiles,
        on_config: Callable[[NameServerConfig], None] = lambda config: None,
        random_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        """random_bytes is what challenges are made of; the default is the system's."""
        self._config = config
        self._clock = clock
        self._network = network
        self._files = files
        self._on_config = on_config
        self._random_bytes = random_bytes or random.SystemRandom().randbytes
        self._kv_config_path = os.path.expanduser(config.kv_config_path)
        self._config_store_path = os.path.expanduser(config.config_store_path)
        self._parts = contextlib.AsyncExitStack()
        self._listener: Listener | None = None
        self._http: Server | None = None
        self.routes = RouteTable()

    @property
    def address(self) -> str:
        """Where brokers and clients reach it, as `host:port`."""
        assert self._listener is not None, "the name server is not open"
        return _join(*self._listener.address)

    @property
    def address_service_address(self) -> str | None:
        """Where the HTTP address service listens, if it is on."""
        return None if self._http is None else _join(*self._http.address)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as parts:
            await self._open(parts)
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._parts.__aexit__(kind, error, traceback)

    async def serve(self) -> None:
        """Wait until cancelled, or until something fails that must not."""
        assert self._listener is not None
        await self._listener.serve()

    async def _open(self, parts: contextlib.AsyncExitStack) -> None:
        config = self._config
        kv = KVConfig.load(self._kv_config_path, self._files)
        guard = None
        if config.registration_key:
            guard = RegistrationGuard(
                config.registration_key, self._random_bytes, takes_acl=config.registration_key_acl
            )
        handlers = Handlers(
            config,
            self.routes,
            kv,
            self._clock,
            self._files,
            config_store_path=self._config_store_path,
            on_config=self._on_config,
            guard=guard,
        )
        table: dict[int, AnyHandler] = {
            code: Handler(header, handle) for code, (header, handle) in handlers.table().items()
        }
        table |= {code: RawHandler(handle) for code, handle in handlers.raw_table().items()}
        switchboard = Switchboard(table, on_disconnect=handlers.connection_lost)
        scope = await parts.enter_async_context(TaskScope())
        liveness = Liveness(
            self.routes, self._clock, config, lambda owner: cast(Peer, owner).close()
        )
        scanning = scope.spawn(liveness.run())
        parts.callback(scanning.cancel)
        self._listener = await parts.enter_async_context(
            Listener(NetConfig.of(config), switchboard, self._network)
        )
        if config.address_service_port:
            service = AddressService(self._known_addresses)
            self._http = await self._network.listen(
                service.make_protocol, config.listen_host, config.address_service_port
            )
            parts.callback(service.close)
            parts.callback(self._http.close)

    def _known_addresses(self, local_host: str) -> str:
        assert self._listener is not None
        return self._config.namesrv_addr or f"{local_host}:{self._listener.address[1]}"


def run(config: NameServerConfig) -> int:
    """Be a name server until told to stop; return the exit code.

    SIGTERM and SIGINT let what is under way finish; a second one ends the process at once, with
    exit code 1. Raises what kept it from starting: OSError for the port, StoreError and ConfigError
    for files and settings.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(config))
        except CorruptRecord as error:
            raise ConfigError(str(error)) from error  # The operator's to mend, like a bad setting.
    return 0


async def _serve(config: NameServerConfig) -> None:
    from ..store.files import OsFiles

    stop = asyncio.Event()
    _on_signals(stop)
    server = NameServer(
        config,
        clock=SystemClock(),
        network=AsyncioNetwork(),
        files=OsFiles(),
        on_config=_set_log_level,
    )
    async with server:
        collector.settle()
        http = server.address_service_address
        more = f", address service {http}" if http else ""
        print(
            f"The Name Server boot success. serializeType=JSON, address {server.address}{more}",
            flush=True,
        )
        await stop.wait()


def _set_log_level(config: NameServerConfig) -> None:
    logging.getLogger("skylark").setLevel(config.log_level.upper())


def _on_signals(stop: asyncio.Event) -> None:
    def told() -> None:
        if stop.is_set():
            # Nothing is lost by this: every answered change is on the disk.
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
