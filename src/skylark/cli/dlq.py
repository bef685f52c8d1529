"""`skylark dlq`: messages that a group has given up on."""

from __future__ import annotations

import base64
from typing import Annotated

import typer

from ..admin import AdminClient
from ..admin.dead_letters import DeadLetter
from ..errors import ClientError, ConfigError
from ..model.topic import DLQ_PREFIX
from . import asking, render

app = typer.Typer(no_args_is_help=True, help="See dead letters, and give them another chance.")

_PREVIEW_CHARS = 60

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group that gave up.")]


@app.command("list")
def list_command(namesrv: asking.NameServer = None, json: asking.Json = False) -> None:
    """List the groups that have dead letters, and how many."""

    async def counted(admin: AdminClient) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for topic in await admin.topics(with_system=True):
            if topic.name.startswith(DLQ_PREFIX):
                group = topic.name.removeprefix(DLQ_PREFIX)
                count = sum([1 async for _ in admin.dead_letters(group)])
                if count:
                    rows.append({"group": group, "letters": count})
        return rows

    rows = asking.ask(namesrv, counted)
    render.show_table(rows, {"group": "group", "letters": "letters"}, as_json=json)


@app.command("show")
def show_command(
    group: Group,
    count: Annotated[int, typer.Option("--count", min=1, help="At most so many.")] = 100,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show the dead letters of a group, oldest first."""

    async def found(admin: AdminClient) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        async for letter in admin.dead_letters(group):
            letters.append(letter)
            if len(letters) == count:
                break
        return letters

    rows = [_row(letter, as_json=json) for letter in asking.ask(namesrv, found)]
    titles = ("id", "topic", "tries", "stored", "keys", "body")
    render.show_table(rows, {name: name for name in titles}, as_json=json)


def _row(letter: DeadLetter, *, as_json: bool) -> dict[str, object]:
    message = letter.message
    text = message.body.decode("utf-8", "replace")
    row: dict[str, object] = {
        "id": letter.id,
        "topic": letter.origin,
        "tries": message.reconsume_times,
        "stored": asking.time_text(message.stored_at_ms),
        "keys": " ".join(message.keys),
        "body": text if as_json else text[:_PREVIEW_CHARS],
    }
    if as_json:
        row["body_base64"] = base64.b64encode(message.body).decode()
        row["properties"] = dict(message.properties)
    return row


@app.command("resend")
def resend_command(
    group: Group,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Which of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Let a group have dead letters once more; no other group sees them."""
    wanted = set(ids or ())
    if bool(wanted) == everything:
        raise ConfigError("it is not clear which letters: name their ids, or give --all")
    if everything:
        asking.require_meant(f"send all dead letters of {group} to it again?", yes)

    async def resent(admin: AdminClient) -> list[str]:
        done = []
        async for letter in admin.dead_letters(group):
            if everything or {letter.id, letter.message.offset_id} & wanted:
                await admin.resend_dead_letter(letter)
                done.append(letter.id)
                wanted.difference_update({letter.id, letter.message.offset_id})
        if wanted:
            raise ClientError(
                f"no dead letter of {group} has id {', '.join(sorted(wanted))}",
                hint=f"{len(done)} were sent again; `skylark dlq show {group}` lists them",
            )
        return done

    done = asking.ask(namesrv, resent)
    if json:
        render.show_table([{"id": one} for one in done], {}, as_json=True)
    else:
        typer.echo(f"{len(done)} sent to {group} again")
