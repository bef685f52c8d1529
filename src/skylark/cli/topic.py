"""`skylark topic`: list, create, describe and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError
from ..model.topic import perm_text
from . import asking, render

app = typer.Typer(no_args_is_help=True, help="List, create, describe and delete topics.")

_Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
_LETTERS = {"R": 4, "W": 2, "X": 1, "-": 0}
_QUEUES_ADVISED = 16


@app.command("list")
def list_command(
    all_: Annotated[
        bool, typer.Option("-a", "--all", help="With retry, dead letter and system topics.")
    ] = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """List topics and their queues."""
    topics = asking.ask(namesrv, lambda admin: admin.topics(with_system=all_))
    rows = [
        {
            "topic": topic.name,
            "kind": topic.kind.value,
            "read_queues": topic.read_queues,
            "write_queues": topic.write_queues,
            "permissions": sorted({perm_text(place.perm) for place in topic.places}),
            "brokers": [place.broker for place in topic.places],
        }
        for topic in topics
    ]
    columns = {"topic": "topic", "kind": "kind", "read_queues": "read", "write_queues": "write"}
    render.show_table(rows, {**columns, "permissions": "perm", "brokers": "brokers"}, as_json=json)


@app.command("create")
def create_command(
    name: _Name,
    read: Annotated[int, typer.Option("-r", "--read", help="Queues to read from.")] = 8,
    write: Annotated[int, typer.Option("-w", "--write", help="Queues to write to.")] = 8,
    permissions: Annotated[
        str, typer.Option("-p", "--perm", help="RW, R, W, or their number: 6, 4, 2.")
    ] = "RW",
    order: Annotated[
        bool, typer.Option("--order", help="Keep the order of messages when a broker is away.")
    ] = False,
    cluster: asking.Cluster = None,
    broker: asking.Broker = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Create a topic, or change one."""
    perm = _permissions(permissions)
    addresses = asking.ask(
        namesrv,
        lambda admin: admin.create_topic(
            name,
            read_queues=read,
            write_queues=write,
            perm=perm,
            order=order,
            cluster=cluster,
            broker=broker,
        ),
    )
    rows = [
        {"topic": name, "broker": address, "permissions": perm_text(perm)} for address in addresses
    ]
    render.show_table(
        rows, {"topic": "topic", "broker": "broker", "permissions": "perm"}, as_json=json
    )
    _advise(read * len(addresses))


def _advise(queue_count: int) -> None:
    if queue_count < _QUEUES_ADVISED:
        typer.echo(
            f"advice: {queue_count} queues keep at most {queue_count} members of a group busy; "
            f"{_QUEUES_ADVISED} suit most topics",
            err=True,
        )


def _permissions(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 7:
        return int(text)
    letters = text.upper()
    if letters and set(letters) <= _LETTERS.keys():
        return sum(_LETTERS[letter] for letter in set(letters))
    raise ConfigError(f"permissions {text[:16]!r}; write RW, R, W, or 6, 4, 2")


@app.command("describe")
def describe_command(
    name: _Name, namesrv: asking.NameServer = None, json: asking.Json = False
) -> None:
    """Show a topic's brokers, queues, and the groups that consume it."""
    topic = asking.ask(namesrv, lambda admin: admin.topic(name))
    places = [
        {
            "broker": place.broker,
            "cluster": place.cluster,
            "read_queues": place.read_queues,
            "write_queues": place.write_queues,
            "permissions": perm_text(place.perm),
        }
        for place in topic.places
    ]
    queues = [
        {
            "broker": queue.broker,
            "queue": queue.queue_id,
            "first": queue.min_offset,
            "next": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "updated": asking.time_text(queue.updated_at_ms),
        }
        for queue in topic.queues
    ]
    record = {
        "topic": topic.name,
        "kind": topic.kind.value,
        "messages": topic.message_count,
        "groups": list(topic.groups),
        "order": topic.order_conf,
    }
    if json:
        render.show_record({**record, "brokers": places, "queues": queues}, {}, as_json=True)
        return
    render.show_record(record, {key: key for key in record})
    typer.echo()
    titles = {"read_queues": "read", "write_queues": "write", "permissions": "perm"}
    render.show_table(places, {"broker": "broker", "cluster": "cluster", **titles})
    typer.echo()
    render.show_table(queues, {key: key for key in queues[0]} if queues else {"queue": "queue"})


@app.command("delete")
def delete_command(
    name: _Name,
    cluster: asking.Cluster = None,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Delete a topic with all its messages and the offsets of its groups."""
    asking.require_meant(f"Delete topic {name} and its messages?", yes)
    asking.ask(namesrv, lambda admin: admin.delete_topic(name, cluster=cluster))
    render.show_record({"deleted": name}, {"deleted": "deleted"}, as_json=json)
