"""What the commands that run a server have in common: parsing, the run, its log and its end.

Started often and expected to be there at once, so this is plain argparse.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from ..config import DEFAULT, Flag, Loaded, ServerSettings, load, parse_set, safe_path
from ..errors import ConfigError
from . import exits

logger = logging.getLogger(__name__)

_S = TypeVar("_S", bound=ServerSettings)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        exits.complain(self.prog, f"{message}; see {self.prog} --help")
        raise SystemExit(exits.WRONG_USE)


def make_parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser that takes flags by their full names, and an epilog as it is written."""
    return Parser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_log_flags(parser: argparse.ArgumentParser, file_name: str) -> None:
    """The flags that say how and where a server logs."""
    add = parser.add_argument
    add("--log-format", metavar="text|json", help="how log lines look")
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    add("--log-dir", metavar="DIR", help=f"where {file_name} is written; - for standard error")


def log_flags(arguments: argparse.Namespace) -> list[tuple[str, str | None, str]]:
    """Those flags as key, value and name."""
    return [
        ("logFormat", arguments.log_format, "--log-format"),
        ("logLevel", arguments.log_level, "--log-level"),
        ("logDir", arguments.log_dir, "--log-dir"),
    ]


def load_role(
    schema: type[_S],
    arguments: argparse.Namespace,
    dedicated: Sequence[tuple[str, str | None, str]],
    *,
    kept_in: str,
) -> Loaded[_S]:
    """Read the settings of a server from its file, the environment and its flags.

    As RocketMQ does, what a request changes is written to the file that the next start reads:
    kept_in is the setting that names it, unless it was given or the file is not of that kind.
    """
    flags = [parse_set(text) for text in arguments.set]
    given = (*dedicated, *log_flags(arguments))
    flags += [Flag(key, text, name) for key, text, name in given if text is not None]
    file = _config_file(arguments.configFile)
    loaded = load(schema, file=file, flags=flags)
    if file is None or loaded.sources[kept_in] != DEFAULT or file.lower().endswith(".toml"):
        return loaded
    config = loaded.config.replace(**{kept_in: os.path.abspath(file)})
    return Loaded(config, loaded.sources, loaded.warnings, loaded.notes)


def _config_file(given: str | None) -> str | None:
    """The file that is meant: as it is given, or where it lies in a RocketMQ installation."""
    if given is None or os.path.exists(given) or os.path.isabs(given):
        return given
    home = os.environ.get("ROCKETMQ_HOME", "")
    there = os.path.join(home, given)
    if home and os.path.exists(there):
        return there
    raise ConfigError(
        f"no config file {safe_path(given)} here or in "
        f"{safe_path(home) if home else 'ROCKETMQ_HOME, which is not set'}; give a readable file "
        "with -c"
    )


def run_role(loaded: Loaded[_S], file_name: str, run: Callable[[_S], int]) -> int:
    """Run a server with its log set up; returns its exit code."""
    from .. import logs

    config = loaded.config
    # Files hold what others need not read; group and world get nothing by default.
    os.umask(0o077)
    with logs.setup(
        log_format=config.log_format,
        level=config.log_level,
        log_dir=config.log_dir,
        file_name=file_name,
    ):
        for warning in loaded.warnings:
            logger.warning("config: %s", warning)
        for note in loaded.notes:
            logger.debug("config: %s", note)
        return run(config)


def guarded(program: str, work: Callable[[], int]) -> int:
    """Do the work of a command; an error that users can mend is one line and an exit code."""
    try:
        return work()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        known = exits.failure(error)
        if known is None:
            raise
        message, code = known
        exits.complain(program, message)
        return code
