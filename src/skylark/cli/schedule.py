"""`skylark schedule`: messages that wait for their time, and messages that repeat."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ..clock import SystemClock
from ..errors import ConfigError, InvalidName, LocalProtocolError
from ..model.message import Message
from ..model.names import check_topic_name
from ..model.recurrence import parse_recurrence
from . import asking, render

app = typer.Typer(
    no_args_is_help=True, help="List, cancel and fire messages that wait, and repeat messages."
)

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_COUNT_MAX = 1_000

_Id = Annotated[
    str, typer.Argument(metavar="ID", help="Message id, key, or the id of what repeats.")
]
_Topic = Annotated[str | None, typer.Option("-t", "--topic", help="Only of this topic.")]


@app.command("list")
def list_command(
    topic: _Topic = None,
    repeating: Annotated[
        bool, typer.Option("-r", "--repeating", help="Only messages that repeat.")
    ] = False,
    count: Annotated[
        int, typer.Option("-m", "--max", min=1, max=_COUNT_MAX, help="At most so many.")
    ] = 100,
    cluster: asking.Cluster = None,
    broker: asking.Broker = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """List what waits, the soonest first."""
    timers, total = asking.ask(
        namesrv,
        lambda admin: admin.timers(
            topic=topic, count_max=count, repeats=repeating, cluster=cluster, broker=broker
        ),
    )
    rows = [
        {
            "due": asking.time_text(timer.due_ms),
            "due_ms": timer.due_ms,
            "topic": timer.topic,
            "queue": timer.queue_id,
            "id": timer.id,
            "offset_id": timer.offset_id,
            "tag": timer.tag,
            "keys": list(timer.keys),
            "bytes": timer.size_bytes,
            "rule": timer.rule,
            "zone": timer.zone,
            "times": timer.repeat_count,
            "broker": timer.broker,
        }
        for timer in timers
    ]
    columns = {"due": "due", "topic": "topic", "id": "id", "tag": "tag", "keys": "keys"}
    if repeating:
        columns |= {"rule": "rule", "zone": "zone", "times": "times"}
    render.show_table(rows, {**columns, "broker": "broker"}, as_json=json)
    if not json and total > len(rows):
        typer.echo(f"{len(rows)} of {total} shown; -m shows more, -t those of one topic")


@app.command("cancel")
def cancel_command(
    timer_id: _Id,
    topic: _Topic = None,
    broker: asking.Broker = None,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Deliver a message never."""
    asking.require_meant(f"Cancel {timer_id}, so that it is never delivered?", yes)
    count = asking.ask(
        namesrv, lambda admin: admin.cancel_timer(timer_id, topic=topic, broker=broker)
    )
    render.show_record({"cancelled": count}, {"cancelled": "cancelled"}, as_json=json)


@app.command("fire")
def fire_command(
    timer_id: _Id,
    topic: _Topic = None,
    broker: asking.Broker = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Deliver a message now; one that repeats goes on as before."""
    count = asking.ask(
        namesrv, lambda admin: admin.fire_timer(timer_id, topic=topic, broker=broker)
    )
    render.show_record({"fired": count}, {"fired": "fired"}, as_json=json)


@app.command("add")
def add_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where it is sent to.")],
    body: Annotated[str, typer.Option("--body", metavar="TEXT", help="What is sent.")],
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="Such as 30s, 5m, 1h or 1d.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option("--cron", metavar="FIELDS", help="Such as '0 8 * * MON-FRI' or @daily."),
    ] = None,
    zone: Annotated[
        str, typer.Option("--zone", metavar="ZONE", help="Time zone of --cron: Europe/Berlin.")
    ] = "UTC",
    tag: Annotated[str | None, typer.Option("--tag", help="The message's tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key; repeatable.")] = None,
    repeat_id: Annotated[
        str | None, typer.Option("--id", help="Name it, to cancel it by; else one is made.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--first", metavar="TIME", help="First time, 2026-11-15T08:00.")
    ] = None,
    broker: asking.Broker = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Send a message again and again."""
    if (every is None) == (cron is None):
        raise ConfigError("say how it repeats: --every SPAN or --cron FIELDS, one of them")
    rule = f"cron {cron}" if every is None else f"every {_span_ms(every)}"
    parse_recurrence(rule, zone)
    first_ms = None if first is None else asking.moment_ms(first, SystemClock().now_ms())
    try:
        check_topic_name(topic)
        message = Message(topic, body.encode(), tag=tag, keys=tuple(key or ()))
    except (InvalidName, LocalProtocolError) as error:
        raise ConfigError(str(error)) from error
    added = asking.ask(
        namesrv,
        lambda admin: admin.repeat_message(
            message, rule=rule, zone=zone, repeat_id=repeat_id, first_ms=first_ms, broker=broker
        ),
    )
    record = {
        "id": added.id,
        "first": asking.time_text(added.due_ms),
        "first_ms": added.due_ms,
        "broker": added.broker,
    }
    render.show_record(record, {"id": "id", "first": "first", "broker": "broker"}, as_json=json)


def _span_ms(text: str) -> int:
    matched = _SPAN.fullmatch(text.strip().lower())
    if matched is None:
        raise ConfigError(f"--every {text[:32]!r}: write a number with ms, s, m, h or d, as 30s")
    return int(matched[1]) * _UNITS_MS[matched[2]]
