"""`skylark cluster`: see how brokers stand; add, drain and restart them."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from ..admin import AdminClient, DrainProgress, GrownTopic, GrowthPlan, Planned, Step
from ..errors import ConfigError
from . import asking, cluster_view, exits, render
from .progress import Progress
from .restarter import Restarter

app = typer.Typer(no_args_is_help=True, help="See a cluster whole; add, drain, restart brokers.")

_SPAN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Name = Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")]
OrderTopics = Annotated[
    bool,
    typer.Option("--order-topics", help="Ordered topics too: their keys move to other queues."),
]


@app.command("status")
def status_command(
    cluster: asking.Cluster = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Show all brokers, and what is unsafe right now; exit code 1 if something is."""
    status = asking.ask(namesrv, lambda admin: admin.cluster_status(cluster=cluster))
    if json:
        render.show_record(cluster_view.status_record(status), {}, as_json=True)
    else:
        render.show_table(cluster_view.member_rows(status), cluster_view.MEMBER_COLUMNS)
        raft = cluster_view.raft_rows(status)
        if raft:
            typer.echo()
            render.show_table(raft, {key: key for key in raft[0]})
            for line in cluster_view.raft_lines(status):
                typer.echo(line)
        for note in cluster_view.notes(status):
            typer.echo(f"note: {note}")
        for problem in status.problems:
            typer.echo(f"unsafe: {cluster_view.clean(str(problem))}")
        if status.is_safe:
            typer.echo("nothing is unsafe")
    if not status.is_safe:
        raise typer.Exit(exits.FAILED)


@app.command("add")
def add_command(
    broker: Name,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", help="Only these, joined by commas; else all of the cluster."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="BROKER", help="Copy this broker.")
    ] = None,
    order_topics: OrderTopics = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Give a broker that runs and has nothing the topics and groups of its cluster."""
    wanted = _names(topics)

    async def add(admin: AdminClient) -> tuple[GrowthPlan, list[GrownTopic]]:
        plan = await admin.plan_growth(broker, like=like, topics=wanted, order_topics=order_topics)
        return plan, [] if dry_run else await admin.grow(plan)

    plan, grown = asking.ask(namesrv, add)
    if json:
        record = cluster_view.growth_record(plan, grown, is_done=not dry_run)
        render.show_record(record, {}, as_json=True)
    else:
        render.show_table(cluster_view.growth_rows(plan, grown), cluster_view.GROWTH_COLUMNS)
        new = [group.group.group_name for group in plan.groups if group.state is Planned.NEW]
        typer.echo(f"groups {'to make' if dry_run else 'made'}: {', '.join(new) or 'none'}")
    for warning in cluster_view.growth_warnings(plan):
        typer.echo(f"warning: {warning}", err=True)


@app.command("drain")
def drain_command(
    broker: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Give it its writes back.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="Wait at most so long.")] = "1h",
    settle: Annotated[
        str, typer.Option("--settle", help="How long nobody must have written; see --help.")
    ] = "35s",
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="GROUP", help="Do not wait for a group.")
    ] = None,
    order_topics: OrderTopics = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if nobody else takes messages for its topics.")
    ] = False,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Take a broker's writes away, and wait until every group has read what it holds.

    It is empty when nothing is unread, delayed or half done and nobody has written for --settle:
    clients ask where to write every 30 s. Can be interrupted and repeated.
    """
    if undo:
        asking.ask(namesrv, lambda admin: admin.undrain(broker))
        render.show_record(
            {"broker": broker, "writable": True}, {"broker": "writable"}, as_json=json
        )
        return
    timeout_ms, settle_ms = _span_ms(timeout, "--timeout"), _span_ms(settle, "--settle")
    last: DrainProgress | None = None

    async def drain(admin: AdminClient) -> None:
        nonlocal last
        end_s = time.monotonic() + timeout_ms / 1000
        steps = admin.drain(
            broker,
            force=force,
            order_topics=order_topics,
            ignore_groups=ignore or (),
            settle_ms=settle_ms,
        )
        async for step in steps:
            if last is None:
                progress.say(f"{broker}: writes are off")
                for note in step.notes:
                    progress.say(f"note: {note}")
            last = step
            progress.show(cluster_view.drain_line(step))
            if time.monotonic() >= end_s:
                break

    with Progress() as progress:
        try:
            asking.ask(namesrv, drain)
        except KeyboardInterrupt:
            if last is not None:
                progress.say(
                    f"interrupted: writes to {broker} stay off; repeat this to go on, or add "
                    "--undo to give them back"
                )
            raise
    assert last is not None
    if json:
        render.show_record(cluster_view.drain_record(last), {}, as_json=True)
    elif last.is_done:
        typer.echo(f"{broker} is empty; it may be stopped now")
    if last.dead_letters:
        typer.echo(
            f"note: {broker} keeps {last.dead_letters} dead letters; `skylark dlq` resends those "
            "that matter",
            err=True,
        )
    if not last.is_done:
        exits.complain(
            "skylark",
            f"{broker} is not empty after {timeout}: {cluster_view.left_text(last)}; repeat this "
            "to go on, or add --undo to give its writes back",
        )
        raise typer.Exit(exits.FAILED)


@app.command("restart")
def restart_command(
    broker: Annotated[
        str | None, typer.Argument(metavar="[BROKER]", help="Name of the broker; or --all.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All brokers, one process at a time.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option("--command", help="What restarts one: 'systemctl restart {name}'; else you."),
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Run the command in a shell.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it would be safe now.")
    ] = False,
    settle: Annotated[
        str, typer.Option("--settle", help="How long producers may take to turn away.")
    ] = "35s",
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long one may take to be back and caught up.")
    ] = "10m",
    force: Annotated[
        bool, typer.Option("--force", help="Even if sends to its topics must wait meanwhile.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="With --all: only of this cluster.")
    ] = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Restart brokers one process after another; refuse while that is unsafe.

    Fields of --command: {name} {id} {address} {host} {port} {role} {cluster}.
    """
    if (broker is None) != all_:
        raise ConfigError("name a broker, or say --all for all of them")
    settle_ms, timeout_ms = _span_ms(settle, "--settle"), _span_ms(timeout, "--timeout")
    if check:
        _check_restart(namesrv, broker, cluster, force=force, as_json=json)
        return
    done: list[dict[str, object]] = []

    async def restart(admin: AdminClient) -> None:
        restarter.clusters = {data.broker_name: data.cluster for data in await admin.brokers()}
        steps = admin.rolling_restart(
            restarter,
            broker=broker,
            cluster=cluster,
            force=force,
            settle_ms=settle_ms,
            back_ms=timeout_ms,
        )
        async for event in steps:
            where = f"{event.number} of {event.total}: {event.broker} at {event.address}"
            if event.step in (Step.RESTARTING, Step.WAITING):
                progress.show(f"{where} {cluster_view.STEP_WORDS[event.step]}")
            else:
                progress.say(f"{where} {cluster_view.STEP_WORDS[event.step]}")
            if event.step is Step.CAUGHT_UP:
                done.append(
                    {"broker": event.broker, "id": event.broker_id, "address": event.address}
                )

    with Progress() as progress:
        restarter = Restarter(
            progress, command=command, uses_shell=shell, timeout_s=timeout_ms / 1000
        )
        asking.ask(namesrv, restart)
    columns = {"broker": "restarted", "id": "id", "address": "address"}
    render.show_table(done, columns, as_json=json)


def _check_restart(
    namesrv: str | None, broker: str | None, cluster: str | None, *, force: bool, as_json: bool
) -> None:
    checks = asking.ask(
        namesrv, lambda admin: admin.check_restart(broker, cluster=cluster, force=force)
    )
    render.show_table(
        [cluster_view.check_row(one) for one in checks], cluster_view.CHECK_COLUMNS, as_json=as_json
    )
    if any(one.obstacles for one in checks):
        raise typer.Exit(exits.FAILED)


def _names(given: list[str] | None) -> list[str] | None:
    if given is None:
        return None
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--topics names no topic; leave it out for all of them")
    return names


def _span_ms(text: str, option: str) -> int:
    span = _SPAN.fullmatch(text.strip())
    if span is None:
        raise ConfigError(f"{option} {text[:32]!r} is no span of time; write 500ms, 30s, 5m or 2h")
    return int(span[1]) * _UNITS_MS[span[2]]
