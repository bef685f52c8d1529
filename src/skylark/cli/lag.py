"""`skylark lag`: how far consumers are behind."""

from __future__ import annotations

from typing import Annotated

import typer

from ..admin import AdminClient, GroupSummary, QueueLag
from . import asking, render
from .group import LAG_COLUMNS, lag_row


def command(
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="A group; without one, all of them.")
    ] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only in this topic.")] = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show how many messages a group is behind, queue by queue, or all groups."""
    if group is None:
        _show_all(namesrv, json)
        return

    async def of_group(admin: AdminClient) -> list[QueueLag]:
        if topic is not None:
            return await admin.lag(group, topic)
        return list((await admin.group(group)).queues)  # It says so when there is no such group.

    queues = asking.ask(namesrv, of_group)
    rows = [lag_row(queue) for queue in queues]
    render.show_table(rows, LAG_COLUMNS, as_json=json)
    if not json:
        typer.echo(f"total lag: {sum(queue.lag for queue in queues)}")


def _show_all(namesrv: str | None, json: bool) -> None:
    groups: list[GroupSummary] = asking.ask(namesrv, lambda admin: admin.groups())
    rows = [
        {
            "group": group.name,
            "members": group.members,
            "tps": round(group.tps, 2),
            "lag": group.lag,
        }
        for group in sorted(groups, key=lambda group: -group.lag)
    ]
    titles = ("group", "members", "tps", "lag")
    render.show_table(rows, {key: key for key in titles}, as_json=json)
