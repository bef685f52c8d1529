"""What the commands that ask a cluster have in common: where it is, and how to write times."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from ..admin import NEWEST, AdminClient, connect
from ..errors import ConfigError
from . import exits

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
REGISTRATION_KEY = "SKYLARK_REGISTRATION_KEY"  # The variable that brokers read, too.
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"-?([0-9]{1,9})(ms|s|m|h|d)")

_T = TypeVar("_T")

NameServer = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrv",
        metavar="ADDRESSES",
        help=f"Name servers, joined by ;, else NAMESRV_ADDR, else {DEFAULT_NAME_SERVER}.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cluster = Annotated[str | None, typer.Option("-c", "--cluster", help="Only on this cluster.")]
Broker = Annotated[str | None, typer.Option("-b", "--broker", help="Only on the broker so named.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask whether this is meant.")]


def ask(name_server: str | None, action: Callable[[AdminClient], Awaitable[_T]]) -> _T:
    """Connect to a cluster, do one thing, and leave."""

    async def main() -> _T:
        key = os.environ.get(REGISTRATION_KEY) or None
        async with connect(addresses(name_server), registration_key=key) as admin:
            return await action(admin)

    return asyncio.run(main())


def addresses(name_server: str | None) -> str:
    """The name servers that a command means."""
    return name_server or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER


def require_meant(question: str, yes: bool) -> None:
    """Ask a person whether this is meant; a script says --yes, or is refused."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} add --yes to say so")
    try:
        is_meant = typer.confirm(question, err=True)  # What programs read is for the answer.
    except typer.Abort:
        raise typer.Exit(exits.INTERRUPTED) from None
    if not is_meant:
        raise typer.Exit(exits.FAILED)


def time_text(time_ms: int | None) -> str | None:
    """A wall time as people read it, in the zone of this machine."""
    if time_ms is None or time_ms < 0:
        return None
    moment = datetime.datetime.fromtimestamp(time_ms / 1000).astimezone()
    return moment.isoformat(sep=" ", timespec="milliseconds")


def moment_ms(text: str, now_ms: int) -> int:
    """Understand a time; raises ConfigError.

    first        the beginning
    last, now    the end
    30m, -2h     so long ago: ms, s, m, h or d
    2026-11-15T08:00, 20261115080000, 1794726000000
    """
    word = text.strip().lower()
    if word == "first":
        return 0
    if word in ("last", "now"):
        return NEWEST
    if span := _SPAN.fullmatch(word):
        return max(0, now_ms - int(span[1]) * _UNITS_MS[span[2]])
    try:
        if word.isascii() and word.isdigit() and len(word) == 14:
            moment = datetime.datetime.strptime(word, "%Y%m%d%H%M%S")
            return int(moment.astimezone().timestamp() * 1000)
        if word.isascii() and word.isdigit() and len(word) <= 15:
            return int(word)
        return int(datetime.datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"time {text[:64]!r} is not understood; write first, last, 30m for half an hour ago, "
            "2026-11-15T08:00 or epoch milliseconds"
        ) from None
