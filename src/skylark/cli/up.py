"""`skylark up`: name server and brokers in one process, on this machine, without any set-up.

Everything is on the loopback address unless told otherwise, and all data in one folder. When all of
it serves and the brokers are registered, one line names the addresses; SIGTERM stops it cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from .. import collector
from ..broker.config import HA_PORT_STEP, BrokerConfig
from ..clock import SystemClock
from ..config import Flag, Loaded, load, parse_set
from ..errors import ConfigError
from ..nameserver.config import NameServerConfig
from . import exits, roles

if TYPE_CHECKING:
    from ..broker.app import Broker

logger = logging.getLogger(__name__)

LOG_FILE_NAME = "skylark.log"
# Each broker takes four ports in a row: fast, none, main and replication.
BROKER_PORT_STEP = 10
BROKERS_MAX = 64
LEADER_PATIENCE_MS = 15_000

_EPILOG = """\
--set takes any key of RocketMQ's broker.conf, for all brokers. With --brokers 3 and
--set enableDLegerCommitLog=true they are one Raft group. The name server's settings come from
SKYLARK_* variables. The line that is printed when all is ready looks like

    skylark is up: name server 127.0.0.1:9876, broker broker-a 127.0.0.1:10911, data /path
"""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = roles.make_parser(
        program, "Run a name server and brokers in one process, for one machine.", _EPILOG
    )
    add = parser.add_argument
    add("--data", metavar="DIR", default="~/skylark", help="where all data is kept (~/skylark)")
    add("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--namesrv-port", metavar="PORT", default="9876", help="the name server's port (9876)")
    add(
        "--broker-port",
        metavar="PORT",
        default="10911",
        help=f"the first broker's port (10911); each next one is {BROKER_PORT_STEP} higher",
    )
    add("--console-port", metavar="PORT", help="for the console, which this version does not have")
    add("--no-console", action="store_true", help="run no console, as this version does anyway")
    add("--brokers", metavar="N", default="1", help="how many brokers (1)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="set any broker setting")
    roles.add_log_flags(parser, LOG_FILE_NAME)
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark up") -> int:
    """Parse the arguments and run; returns the exit code."""
    arguments = _parser(program).parse_args(sys.argv[1:] if argv is None else argv)
    return roles.guarded(program, lambda: _main(program, arguments))


def _main(program: str, arguments: argparse.Namespace) -> int:
    plan = Plan(arguments)
    for warning in plan.warnings:
        exits.complain(program, f"warning: {warning}")
    if arguments.console_port is not None:
        exits.complain(program, "warning: this version has no console; --console-port is idle")
    return _run(plan)


class Plan:
    """What the arguments ask for, as settings of each part."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.data = os.path.abspath(os.path.expanduser(arguments.data))
        self.host: str = arguments.host
        self._arguments = arguments
        self._given = [parse_set(text) for text in arguments.set]
        count = _number(arguments.brokers, "--brokers", 1, BROKERS_MAX)
        port = _number(arguments.broker_port, "--broker-port", 0, 65_535)
        self._raft = self._raft_peers(count, port)
        self.name_server = load(
            NameServerConfig,
            flags=[
                Flag("listenHost", self.host, "--host"),
                Flag("listenPort", arguments.namesrv_port, "--namesrv-port"),
                Flag("kvConfigPath", os.path.join(self.data, "namesrv", "kvConfig.json")),
                Flag("configStorePath", os.path.join(self.data, "namesrv", "namesrv.properties")),
            ],
        )
        self.brokers = [
            self._broker(number, 0 if port == 0 else port + number * BROKER_PORT_STEP)
            for number in range(count)
        ]
        self.log_dir: str = arguments.log_dir or os.path.join(self.data, "logs")

    def _raft_peers(self, count: int, port: int) -> str:
        """The members of one Raft group, if the brokers are to be one; else nothing."""
        given = {flag.key: flag.text.strip().lower() for flag in self._given}
        if given.get("enableDLegerCommitLog") != "true" or "dLegerPeers" in given:
            return ""
        if port == 0:
            raise ConfigError("--broker-port 0: members of a Raft group must know their ports")
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host  # noqa: S104
        return ";".join(
            f"n{number}-{host}:{port + number * BROKER_PORT_STEP + HA_PORT_STEP}"
            for number in range(count)
        )

    @property
    def warnings(self) -> list[str]:
        """What was odd about the settings, each once."""
        parts: list[Loaded[NameServerConfig] | Loaded[BrokerConfig]] = [
            self.name_server,
            *self.brokers,
        ]
        return list(dict.fromkeys(warning for part in parts for warning in part.warnings))

    def _broker(self, number: int, port: int) -> Loaded[BrokerConfig]:
        name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
        given = {flag.key for flag in self._given}
        folder = name
        if self._raft:
            name, folder = "broker-a", f"broker-a-n{number}"
        own = [
            Flag("listenHost", self.host, "--host"),
            Flag("listenPort", str(port), "--broker-port"),
            Flag("brokerName", name, "--brokers"),
            Flag("storePathRootDir", os.path.join(self.data, folder), "--data"),
            # A laptop's disk is often fuller than a server's, and has room all the same.
            Flag("diskSpaceAmpleBytes", str(8 << 30), "skylark up"),
        ]
        if self._raft:
            own += [
                Flag("dLegerPeers", self._raft, "--brokers"),
                Flag("dLegerSelfId", f"n{number}", "--brokers"),
            ]
        for key, text in (
            ("logFormat", self._arguments.log_format),
            ("logLevel", self._arguments.log_level),
        ):
            if text is not None:
                own.append(Flag(key, text, f"--{key}"))
        # What the user sets counts, but for what would make two brokers the same one.
        fixed = {"listenHost", "listenPort"}
        # That variable says where clients go; here are name servers of its own.
        env = {key: text for key, text in os.environ.items() if key != "NAMESRV_ADDR"}
        return load(
            BrokerConfig,
            env=env,
            flags=[flag for flag in own if flag.key in fixed or flag.key not in given]
            + [flag for flag in self._given if flag.key not in fixed],
        )


async def _wait_leader(brokers: Sequence[Broker]) -> None:
    """A group that is just being made elects its leader within a second or two."""
    clock = SystemClock()
    for _ in range(LEADER_PATIENCE_MS // 50):
        if any(broker.is_serving for broker in brokers):
            return
        await clock.sleep_ms(50)
    logger.warning("the Raft group has no leader yet; see docs/operations/raft.md")


def _number(text: str, flag: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise ConfigError(f"{flag} {text}: expected a whole number from {low} to {high}")
    return int(text)


def _run(plan: Plan) -> int:
    from .. import logs
    from ..broker.process import loop_factory

    config = plan.brokers[0].config
    # Files hold what others need not read; group and world get nothing by default.
    os.umask(0o077)
    os.makedirs(plan.data, exist_ok=True)
    with (
        logs.setup(
            log_format=config.log_format,
            level=config.log_level,
            log_dir=plan.log_dir,
            file_name=LOG_FILE_NAME,
        ),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        for warning in plan.warnings:
            logger.warning("config: %s", warning)
        try:
            return runner.run(_serve(plan))
        except asyncio.CancelledError:
            return exits.FAILED  # Told twice: left without finishing.


async def _serve(plan: Plan) -> int:
    from ..broker.process import on_signals, os_broker
    from ..nameserver.app import NameServer
    from ..net import AsyncioNetwork
    from ..store import OsFiles

    stop = asyncio.Event()
    on_signals(stop)
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(
            NameServer(
                plan.name_server.config,
                clock=SystemClock(),
                network=AsyncioNetwork(),
                files=OsFiles(),
            )
        )
        brokers: list[Broker] = []
        for loaded in plan.brokers:
            config = loaded.config
            if not config.namesrv_addr:
                config = config.replace(namesrv_addr=name_server.address)
            brokers.append(await stack.enter_async_context(os_broker(config)))
        if any(broker.is_member for broker in brokers):
            await _wait_leader(brokers)
        collector.settle()
        shown = "".join(f", broker {broker.name} {broker.address}" for broker in brokers)
        print(
            f"skylark is up: name server {name_server.address}{shown}, data {plan.data}", flush=True
        )
        await stop.wait()
        has_failed = any(broker.has_failed for broker in brokers)
    return exits.FAILED if has_failed else exits.DONE
