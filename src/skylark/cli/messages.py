"""What `skylark produce` and `skylark consume` have in common: flags, failures, the way in."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ..client.connect import connect
from ..client.facade import Client
from ..errors import ConfigError, InvalidName, LocalProtocolError, TransportError
from ..model.names import check_topic_name
from . import exits, roles

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:9876"


def make_parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser with the flags that both commands have."""
    parser = roles.make_parser(program, description, epilog)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="ADDR",
        help=f"name servers, host:port;host:port (NAMESRV_ADDR, else {DEFAULT_ADDRESS})",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    return parser


def open_client(arguments: argparse.Namespace) -> Client:
    """A client of the name servers that are asked for."""
    addresses = arguments.namesrv or os.environ.get("NAMESRV_ADDR") or DEFAULT_ADDRESS
    return connect(addresses)


def run(program: str, command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a command to its exit code; a failure that a user can act on becomes one line."""
    try:
        return asyncio.run(command())
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader, such as head, has what it wanted; the rest of the buffer must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.READER_GONE
    except Exception as error:
        known = exits.failure(error)
        if known is None:
            raise
        message, code = known
        exits.complain(program, " ".join(message.split()))
        return exits.NOT_REACHABLE if _comes_from_the_network(error) else code


def checked(build: Callable[[], T]) -> T:
    """Build something of what the user has typed; raises ConfigError where it cannot be."""
    try:
        return build()
    except (InvalidName, LocalProtocolError) as error:
        raise ConfigError(str(error)) from error


def check_topic(topic: str) -> None:
    """Raise ConfigError unless a topic can have this name."""
    checked(lambda: check_topic_name(topic))


def print_json(record: Mapping[str, object]) -> None:
    """Print one object on one line, at once: a reader may wait for it."""
    print(json.dumps(record, ensure_ascii=True), flush=True)


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """A type for argparse: a whole number within limits."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}")
        return int(text)

    return read


def _comes_from_the_network(error: BaseException) -> bool:
    """Whether the last thing that went wrong before an error was a server out of reach."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TransportError):
            return True
        found = found.__cause__
    return False
