"""`skylark group`: list, describe, rewind and delete consumer groups."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..admin import QueueLag
from . import asking, render

app = typer.Typer(no_args_is_help=True, help="List, describe, rewind and delete consumer groups.")

_Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
LAG_COLUMNS = {
    "topic": "topic",
    "broker": "broker",
    "queue": "queue",
    "end": "end",
    "at": "at",
    "lag": "lag",
    "consumed": "last consumed",
}


def lag_row(queue: QueueLag) -> dict[str, object]:
    """One queue of a group, as it is shown."""
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.queue_id,
        "end": queue.broker_offset,
        "at": queue.consumer_offset,
        "lag": queue.lag,
        "consumed": asking.time_text(queue.consumed_at_ms),
    }


@app.command("list")
def list_command(
    all_: Annotated[bool, typer.Option("-a", "--all", help="With the system's own.")] = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """List groups, who is online and how far behind they are."""
    groups = asking.ask(namesrv, lambda admin: admin.groups(with_system=all_))
    rows = [
        {
            "group": group.name,
            "members": group.members,
            "type": group.consume_type,
            "model": group.message_model,
            "tps": round(group.tps, 2),
            "lag": group.lag,
        }
        for group in groups
    ]
    titles = ("group", "members", "type", "model", "tps", "lag")
    render.show_table(rows, {key: key for key in titles}, as_json=json)


@app.command("describe")
def describe_command(
    name: _Name, namesrv: asking.NameServer = None, json: asking.Json = False
) -> None:
    """Show a group's members, subscriptions and progress, and where its members disagree."""
    group = asking.ask(namesrv, lambda admin: admin.group(name))
    record: dict[str, object] = {
        "group": group.name,
        "type": group.consume_type,
        "model": group.message_model,
        "starts": group.consume_from,
        "tps": round(group.tps, 2),
        "lag": group.lag,
        "subscriptions": [f"{topic}: {text}" for topic, text in group.subscriptions.items()],
        "retries": sorted({known.retry_max_times for known in group.settings.values()}),
        "mismatches": list(group.mismatches),
    }
    members = [
        {
            "client": member.client_id,
            "address": member.address,
            "language": member.language,
            "version": member.version,
        }
        for member in group.members
    ]
    queues = [lag_row(queue) for queue in group.queues]
    if json:
        render.show_record({**record, "members": members, "queues": queues}, {}, as_json=True)
        return
    render.show_record(record, {key: key for key in record})
    typer.echo()
    titles = ("client", "address", "language", "version")
    render.show_table(members, {key: key for key in titles})
    typer.echo()
    render.show_table(queues, LAG_COLUMNS)


@app.command("rewind")
def rewind_command(
    name: _Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="first, last, 30m for half an hour ago, 2026-11-15T08:00, or epoch ms."
        ),
    ],
    no_skip: Annotated[
        bool, typer.Option("--no-skip", help="Leave queues that stand before that time.")
    ] = False,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Set a group to a time in a topic: messages since then are consumed again."""
    at_ms = asking.moment_ms(to, int(time.time() * 1000))
    asking.require_meant(f"Set group {name} in topic {topic} to {to}?", yes)
    changes = asking.ask(namesrv, lambda admin: admin.rewind(name, topic, at_ms, force=not no_skip))
    rows = [
        {
            "topic": change.topic,
            "broker": change.broker,
            "queue": change.queue_id,
            "before": change.before,
            "after": change.after,
        }
        for change in changes
    ]
    titles = ("topic", "broker", "queue", "before", "after")
    render.show_table(rows, {key: key for key in titles}, as_json=json)


@app.command("delete")
def delete_command(
    name: _Name,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="A group made again goes on where it was.")
    ] = False,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Delete a group with its retry and dead letter topics."""
    asking.require_meant(f"Delete group {name}, its retries and its dead letters?", yes)
    asking.ask(namesrv, lambda admin: admin.delete_group(name, with_offsets=not keep_offsets))
    render.show_record({"deleted": name}, {"deleted": "deleted"}, as_json=json)
