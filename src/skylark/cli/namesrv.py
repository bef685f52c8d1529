"""`mqnamesrv` and `skylark namesrv`: run a name server in the foreground until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..config import explain_all
from ..nameserver.config import LOG_FILE_NAME, NameServerConfig
from . import exits, roles

_PRINT = "print"

_EPILOG = """\
-p takes a port, as `skylark namesrv -p 9876`; alone it prints the settings, as RocketMQ's -p does.
Settings come from defaults, then the file, then SKYLARK_* variables, then flags. `skylark config
list` names them all. SIGTERM stops the server cleanly.
"""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = roles.make_parser(
        program, "Run a name server: brokers register here, and clients ask for routes.", _EPILOG
    )
    add = parser.add_argument
    add("-p", "--port", nargs="?", const=_PRINT, metavar="PORT", help="port to listen on (9876)")
    add("--printConfigItem", action="store_true", help="print the settings and stop")
    add("--host", metavar="HOST", help="address to listen on (0.0.0.0)")
    add("-c", "--configFile", "--config", metavar="FILE", help="properties or TOML file")
    add(
        "-n",
        "--namesrvAddr",
        metavar="ADDRESSES",
        help="all name servers, as host:port;host:port, for the address service",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="set any setting")
    roles.add_log_flags(parser, LOG_FILE_NAME)
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark namesrv") -> int:
    """Parse the arguments and run; returns the exit code."""
    arguments = _parser(program).parse_args(sys.argv[1:] if argv is None else argv)
    return roles.guarded(program, lambda: _main(program, arguments))


def _main(program: str, arguments: argparse.Namespace) -> int:
    loaded = roles.load_role(
        NameServerConfig,
        arguments,
        [
            ("listenHost", arguments.host, "--host"),
            ("listenPort", None if arguments.port == _PRINT else arguments.port, "-p"),
            ("namesrvAddr", arguments.namesrvAddr, "-n"),
        ],
        kept_in="config_store_path",
    )
    for warning in loaded.warnings:
        exits.complain(program, f"warning: {warning}")
    if arguments.configFile is not None:
        print(f"load config properties file OK, {arguments.configFile}", flush=True)
    if arguments.printConfigItem or arguments.port == _PRINT:
        for item in explain_all(loaded):
            print(f"{item.key}={item.value}")
        return exits.DONE

    from ..nameserver.app import run

    return roles.run_role(loaded, LOG_FILE_NAME, run)
