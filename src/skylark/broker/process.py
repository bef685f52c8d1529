"""The process of a broker: this machine's clocks, disk and network, signals, and an exit code."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import signal
from collections.abc import Callable
from typing import Final

from .. import collector
from ..clock import SystemClock
from ..net.network import AsyncioNetwork, local_name_and_ip, resolved
from ..sandbox import Workers
from .app import Broker
from .config import BrokerConfig

_NOT_IN_NAMES: Final = re.compile(r"[^%|a-zA-Z0-9_-]")  # A host name may have dots, a topic none.


def run(config: BrokerConfig) -> int:
    """Be a broker until told to stop; return the exit code.

    SIGTERM and SIGINT let what is under way finish; a second one does not wait for it. Raises what
    kept it from starting: OSError for the port, StoreError and ConfigError for files and settings.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_serve(config))
        except asyncio.CancelledError:
            return 1  # Told twice: left without finishing.


async def _serve(config: BrokerConfig) -> int:
    stop = asyncio.Event()
    on_signals(stop)
    broker = os_broker(config)
    async with broker:
        collector.settle()
        print(broker.boot_line, flush=True)
        await stop.wait()
        has_failed = broker.has_failed
    return 1 if has_failed else 0


def os_broker(config: BrokerConfig) -> Broker:
    """A broker on this machine's clocks, network and files; names and addresses filled in."""
    from ..store import OsFiles

    name, ip = local_name_and_ip()
    if config.listen_host.startswith("127.") or config.listen_host in ("localhost", "::1"):
        ip = "127.0.0.1"
    if config.broker_ip1:
        ip = resolved(config.broker_ip1)
    if not config.broker_name:
        config = config.replace(broker_name=_NOT_IN_NAMES.sub("_", name) or "broker-a")
    return Broker(
        config,
        clock=SystemClock(),
        network=AsyncioNetwork(),
        files=OsFiles(),
        rng=random.Random(),
        host_ip=ip,
        on_config=_set_log_level,
        random_bytes=random.SystemRandom().randbytes,
        workers=_workers(config),
    )


def _workers(config: BrokerConfig) -> Workers | None:
    if not config.filter_server_nums:
        return None
    from ..sandbox import OsWorkers, WorkerLimits

    return OsWorkers(
        WorkerLimits(
            memory_bytes=config.filter_server_memory_bytes,
            timeout_ms=config.filter_server_timeout_ms,
        )
    )


def _set_log_level(config: BrokerConfig) -> None:
    logging.getLogger("skylark").setLevel(config.log_level.upper())


def on_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT set an event, and a second one cancel the current task."""
    main = asyncio.current_task()
    assert main is not None

    def told() -> None:
        if stop.is_set():
            main.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
