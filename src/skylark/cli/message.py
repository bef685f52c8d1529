"""`skylark message`: find messages and see what became of them."""

from __future__ import annotations

import base64
import time
from typing import Annotated

import typer

from ..admin import NEWEST, FoundMessage
from . import asking, explain_filter, render

app = typer.Typer(no_args_is_help=True, help="Find messages and see what became of them.")

app.command("explain-filter")(explain_filter.command)

_LONG_MAX = 2**63 - 1
_PREVIEW_CHARS = 60


@app.command("show")
def show_command(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="An id of either kind.")],
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="Needed for an id that a producer gave.")
    ] = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show one message, and whether each group has consumed it."""
    found = asking.ask(namesrv, lambda admin: admin.message(message_id, topic))
    tracks = [{"group": track.group, "state": track.state.value} for track in found.tracks]
    record = _record(found)
    if json:
        render.show_record({**record, "groups": tracks}, {}, as_json=True)
        return
    shown = {**record, "properties": [f"{k}={v}" for k, v in found.message.properties.items()]}
    titles = {key: key.replace("_", " ") for key in record if key not in ("body_base64",)}
    render.show_record(shown, titles)
    if tracks:
        typer.echo()
        render.show_table(tracks, {"group": "group", "state": "state"})


@app.command("find")
def find_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key of the message.")],
    since: Annotated[
        str, typer.Option("--since", help="first, 30m, 2026-11-15T08:00, or epoch ms.")
    ] = "first",
    until: Annotated[str, typer.Option("--until", help="The same, or now.")] = "now",
    count: Annotated[int, typer.Option("--count", min=1, max=64, help="At most so many.")] = 32,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Find the messages of a topic that have a key."""
    now_ms = int(time.time() * 1000)
    begin_ms, end_ms = asking.moment_ms(since, now_ms), asking.moment_ms(until, now_ms)
    found = asking.ask(
        namesrv,
        lambda admin: admin.messages(
            topic,
            key,
            count_max=count,
            begin_ms=now_ms if begin_ms == NEWEST else begin_ms,
            end_ms=_LONG_MAX if end_ms == NEWEST else end_ms,
        ),
    )
    rows = [_record(one) for one in found]
    if json:
        render.show_table(rows, {}, as_json=True)
        return
    for row in rows:
        row["body"] = str(row["body"])[:_PREVIEW_CHARS]
    columns = {"id": "id", "queue": "queue", "offset": "offset", "stored": "stored"}
    render.show_table(rows, {**columns, "tag": "tag", "keys": "keys", "body": "body"})


def _record(found: FoundMessage) -> dict[str, object]:
    message, body = found.message, found.body
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "id": message.unique_id or message.offset_id,
        "offset_id": message.offset_id,
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tag": message.tag,
        "keys": list(message.keys),
        "born": asking.time_text(message.born_at_ms),
        "born_host": str(message.born_host),
        "stored": asking.time_text(message.stored_at_ms),
        "store_host": str(message.store_host),
        "retries": message.reconsume_times,
        "size": len(body),
        "properties": dict(message.properties),
        "body": f"{len(body)} bytes that are no text" if text is None else text,
        "body_base64": base64.b64encode(body).decode(),
    }
