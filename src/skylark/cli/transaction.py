"""`skylark transaction`: half messages that nobody has ended, and whoever answers for them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..admin import PendingTransaction
from ..errors import ConfigError
from . import asking, render

app = typer.Typer(no_args_is_help=True, help="See and end transactions that are in doubt.")

_SPAN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COLUMNS = {
    "transaction_id": "transaction",
    "group": "group",
    "topic": "topic",
    "age": "age",
    "checks": "checks",
    "broker": "broker",
    "keys": "keys",
}

Id = Annotated[str, typer.Argument(metavar="ID", help="The producer's id, or the offset id.")]


class End(StrEnum):
    """How a transaction shall end."""

    commit = "commit"
    rollback = "rollback"


@app.command("list")
def list_command(
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="Only of this producer group.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="At most so many.")] = 100,
    broker: asking.Broker = None,
    cluster: asking.Cluster = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """List half messages that are neither committed nor rolled back, the oldest first."""
    found = asking.ask(
        namesrv,
        lambda admin: admin.transactions(
            group=group, broker=broker, cluster=cluster, count_max=count
        ),
    )
    render.show_table([_row(item) for item in found], _COLUMNS, as_json=json)


@app.command("figures")
def figures_command(
    broker: asking.Broker = None,
    cluster: asking.Cluster = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show what became of the transactions of each broker since it was started."""
    found = asking.ask(
        namesrv, lambda admin: admin.transaction_figures(broker=broker, cluster=cluster)
    )
    names = ("broker", "pending", "committed", "rolled_back", "given_up", "checks")
    rows = [{name: getattr(item, name) for name in names} for item in found]
    render.show_table(rows, {name: name.replace("_", " ") for name in names}, as_json=json)


@app.command("show")
def show_command(
    id: Id,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show one half message that is pending."""
    found = asking.ask(namesrv, lambda admin: admin.transaction(id))
    row = _row(found)
    render.show_record(row, {key: key.replace("_", " ") for key in row}, as_json=json)


@app.command("resolve")
def resolve_command(
    id: Id,
    end: Annotated[End, typer.Argument(help="How it shall end.")],
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Commit or roll back a half message in its producer's place; there is no way back."""
    asking.require_meant(f"{end.value} {id} in its producer's place?", yes)
    found = asking.ask(
        namesrv, lambda admin: admin.resolve_transaction(id, commits=end is End.commit)
    )
    row = {"transaction_id": found.transaction_id, "end": end.value, "broker": found.broker}
    titles = {"transaction_id": "transaction", "end": "end", "broker": "broker"}
    render.show_record(row, titles, as_json=json)


@app.command("resume")
def resume_command(
    offset_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="The offset id of one in TRANS_CHECK_MAX_TIME_TOPIC."),
    ],
    broker: Annotated[str, typer.Option("-b", "--broker", help="The broker that has it.")],
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Have a half message checked again, from the beginning, that a broker has given up."""
    asking.ask(namesrv, lambda admin: admin.resume_transaction(offset_id, broker=broker))
    row = {"offset_id": offset_id, "broker": broker}
    render.show_record(row, {"offset_id": "checked again", "broker": "broker"}, as_json=json)


@app.command("resolver")
def resolver_command(
    database: Annotated[
        str, typer.Option("--database", metavar="URL", help="SQLAlchemy's URL of the database.")
    ],
    group: Annotated[
        list[str], typer.Option("-g", "--group", help="Producer group; more than once for more.")
    ],
    patience: Annotated[
        str, typer.Option("--patience", help="How long a transaction may be under way: 30s, 5m.")
    ] = "30s",
    keep: Annotated[str, typer.Option("--keep", help="How long markers are kept.")] = "7d",
    namesrv: asking.NameServer = None,
) -> None:
    """Answer for producer groups from the markers in their database, until SIGTERM."""
    from ..client.connect import connect
    from ..sql import DatabaseCheck, Resolver

    address = namesrv or os.environ.get("NAMESRV_ADDR") or asking.DEFAULT_NAME_SERVER
    check = _made_check(DatabaseCheck, database, patience, keep)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    async def main() -> None:
        async with connect(address) as client:
            resolver = Resolver(client, check, group)
            typer.echo(f"answering for {', '.join(group)}", err=True)
            await resolver.run()

    asyncio.run(main())


def _made_check(kind: Any, database: str, patience: str, keep: str) -> Any:
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        return kind(database, patience_ms=_span_ms(patience), keep_ms=_span_ms(keep))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"database {database[:64]!r} is not usable: {error}; write it as SQLAlchemy does, "
            "postgresql+psycopg://user@host/name say"
        ) from None


def _span_ms(text: str) -> int:
    span = _SPAN.fullmatch(text.strip())
    if span is None:
        raise ConfigError(f"{text[:32]!r} is no span of time; write 500ms, 30s, 5m, 2h or 7d")
    return int(span[1]) * _UNITS_MS[span[2]]


def _row(item: PendingTransaction) -> dict[str, object]:
    half = item.half
    return {
        "transaction_id": half.transaction_id,
        "group": half.producer_group,
        "topic": half.topic,
        "queue_id": half.queue_id,
        "tag": half.tag,
        "keys": half.keys,
        "age": f"{max(0, int(time.time() * 1000) - half.since_ms) // 1000} s",
        "since": asking.time_text(half.since_ms),
        "checks": half.check_times,
        "body_bytes": half.body_size,
        "broker": item.broker,
        "offset_id": half.offset_id,
        "half_offset": half.half_offset,
        "physical_offset": half.physical_offset,
    }
