"""`mqbroker` and `skylark broker`: run a broker in the foreground until SIGTERM.

Started often and expected to be there at once, so this is plain argparse.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..broker.config import LOG_FILE_NAME, BrokerConfig
from ..config import DEFAULT, Flag, Loaded, explain_all, load, parse_set
from . import exits

logger = logging.getLogger(__name__)

_EPILOG = """\
Settings come from defaults, then the file, then SKYLARK_* variables, then flags; any key of
RocketMQ's broker.conf is understood. `skylark config list` names them all. SIGTERM stops the broker
cleanly.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        exits.complain(self.prog, f"{message}; see {self.prog} --help")
        raise SystemExit(exits.WRONG_USE)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=program,
        description="Run a broker: it stores messages, and hands them to consumers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
    add("--log-format", metavar="text|json", help="how log lines look")
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    add("--log-dir", metavar="DIR", help=f"where {LOG_FILE_NAME} is written; - for standard error")
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark broker") -> int:
    """Parse the arguments and run; returns the exit code."""
    arguments = _parser(program).parse_args(sys.argv[1:] if argv is None else argv)
    try:
        loaded = _load(arguments)
        for warning in loaded.warnings:
            exits.complain(program, f"warning: {warning}")
        if arguments.printConfigItem or arguments.printImportantConfig:
            for item in explain_all(loaded):
                if arguments.printConfigItem or loaded.sources[item.name] != DEFAULT:
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


def _load(arguments: argparse.Namespace) -> Loaded[BrokerConfig]:
    flags = [parse_set(text) for text in arguments.set]
    dedicated = (
        ("namesrvAddr", arguments.namesrvAddr, "-n"),
        ("logFormat", arguments.log_format, "--log-format"),
        ("logLevel", arguments.log_level, "--log-level"),
        ("logDir", arguments.log_dir, "--log-dir"),
    )
    flags += [Flag(key, text, name) for key, text, name in dedicated if text is not None]
    file = arguments.configFile
    loaded = load(BrokerConfig, file=file, flags=flags)
    keeps_own_file = loaded.sources["broker_config_path"] != DEFAULT
    if file is None or keeps_own_file or file.lower().endswith(".toml"):
        return loaded
    # As RocketMQ does: what a request changes is written to the file that the next start reads.
    config = loaded.config.replace(broker_config_path=os.path.abspath(file))
    return Loaded(config, loaded.sources, loaded.warnings, loaded.notes)


def _run(loaded: Loaded[BrokerConfig]) -> int:
    from .. import logs
    from ..broker.app import run

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
