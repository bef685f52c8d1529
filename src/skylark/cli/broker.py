"""`mqbroker` and `skylark broker`: run a broker in the foreground until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..broker.config import LOG_FILE_NAME, BrokerConfig
from ..config import DEFAULT, explain_all
from . import exits, roles

_EPILOG = """\
Settings come from defaults, then the file, then SKYLARK_* variables, then flags; any key of
RocketMQ's broker.conf is understood. `skylark config list` names them all. SIGTERM stops the broker
cleanly.
"""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = roles.make_parser(
        program, "Run a broker: it stores messages, and hands them to consumers.", _EPILOG
    )
    add = parser.add_argument
    add(
        "-n",
        "--namesrvAddr",
        metavar="ADDRESSES",
        help="name servers to register with, as host:port;host:port",
    )
    add("-c", "--configFile", "--config", metavar="FILE", help="properties or TOML file")
    add("-p", "--printConfigItem", action="store_true", help="print the settings and stop")
    add(
        "-m",
        "--printImportantConfig",
        action="store_true",
        help="print the settings that were given, and stop",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="set any setting")
    roles.add_log_flags(parser, LOG_FILE_NAME)
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark broker") -> int:
    """Parse the arguments and run; returns the exit code."""
    arguments = _parser(program).parse_args(sys.argv[1:] if argv is None else argv)
    return roles.guarded(program, lambda: _main(program, arguments))


def _main(program: str, arguments: argparse.Namespace) -> int:
    loaded = roles.load_role(
        BrokerConfig,
        arguments,
        [("namesrvAddr", arguments.namesrvAddr, "-n")],
        kept_in="broker_config_path",
    )
    for warning in loaded.warnings:
        exits.complain(program, f"warning: {warning}")
    if arguments.printConfigItem or arguments.printImportantConfig:
        for item in explain_all(loaded):
            if arguments.printConfigItem or loaded.sources[item.name] != DEFAULT:
                print(f"{item.key}={item.value}")
        return exits.DONE

    from ..broker.process import run

    return roles.run_role(loaded, LOG_FILE_NAME, run)
