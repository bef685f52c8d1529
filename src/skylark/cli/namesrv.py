"""`mqnamesrv` and `skylark namesrv`: run a name server in the foreground until SIGTERM.

Started often and expected to be there at once, so this is plain argparse.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..config import DEFAULT, Flag, Loaded, explain_all, load, parse_set
from ..nameserver.config import LOG_FILE_NAME, NameServerConfig
from . import exits

logger = logging.getLogger(__name__)

_PRINT = "print"

_EPILOG = """\
-p takes a port, as `skylark namesrv -p 9876`; alone it prints the settings, as RocketMQ's -p does.
Settings come from defaults, then the file, then SKYLARK_* variables, then flags. `skylark config
list` names them all. SIGTERM stops the server cleanly.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        exits.complain(self.prog, f"{message}; see {self.prog} --help")
        raise SystemExit(exits.WRONG_USE)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Run a name server: brokers register here, and clients ask for routes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
    add("--log-format", metavar="text|json", help="how log lines look")
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    add("--log-dir", metavar="DIR", help=f"where {LOG_FILE_NAME} is written; - for standard error")
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark namesrv") -> int:
    """Parse the arguments and run; returns the exit code."""
    arguments = _parser(program).parse_args(sys.argv[1:] if argv is None else argv)
    try:
        loaded = _load(arguments)
        for warning in loaded.warnings:
            exits.complain(program, f"warning: {warning}")
        if arguments.configFile is not None:
            print(f"load config properties file OK, {arguments.configFile}", flush=True)
        if arguments.printConfigItem or arguments.port == _PRINT:
            for item in explain_all(loaded):
                print(f"{item.key}={item.value}")
            return exits.DONE
        return _run(loaded)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        known = exits.failure(error)
        if known is None:
            raise
        message, code = known
        exits.complain(program, message)
        return code


def _load(arguments: argparse.Namespace) -> Loaded[NameServerConfig]:
    flags = [parse_set(text) for text in arguments.set]
    dedicated = (
        ("listenHost", arguments.host, "--host"),
        ("listenPort", None if arguments.port == _PRINT else arguments.port, "-p"),
        ("namesrvAddr", arguments.namesrvAddr, "-n"),
        ("logFormat", arguments.log_format, "--log-format"),
        ("logLevel", arguments.log_level, "--log-level"),
        ("logDir", arguments.log_dir, "--log-dir"),
    )
    flags += [Flag(key, text, name) for key, text, name in dedicated if text is not None]
    file = arguments.configFile
    loaded = load(NameServerConfig, file=file, flags=flags)
    keeps_own_file = loaded.sources["config_store_path"] != DEFAULT
    if file is None or keeps_own_file or file.lower().endswith(".toml"):
        return loaded
    # As RocketMQ does: what a request changes is written to the file that the next start reads.
    config = loaded.config.replace(config_store_path=os.path.abspath(file))
    return Loaded(config, loaded.sources, loaded.warnings, loaded.notes)


def _run(loaded: Loaded[NameServerConfig]) -> int:
    from .. import logs
    from ..nameserver.app import run

    config = loaded.config
    # Files hold what others need not read; group and world get nothing by default.
    os.umask(0o077)
    with logs.setup(
        log_format=config.log_format,
        level=config.log_level,
        log_dir=config.log_dir,
        file_name=LOG_FILE_NAME,
    ):
        for warning in loaded.warnings:
            logger.warning("config: %s", warning)
        for note in loaded.notes:
            logger.debug("config: %s", note)
        return run(config)
