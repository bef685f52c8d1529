"""`skylark filter`: predicates in Python for the brokers' filter servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from . import asking

app = typer.Typer(no_args_is_help=True, help="Predicates for the brokers' filter servers.")

SECRET_VARIABLE = "SKYLARK_FILTER_SECRET_KEY"  # noqa: S105 - the name of a variable


@app.callback()
def _verbs() -> None:
    """Keep the verb a verb, although there is one only."""


@app.command("upload")
def upload_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the predicate.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Python that defines matches(message).")
    ],
    version: Annotated[int, typer.Option("--version", min=1, help="The next version.")],
    access_key: Annotated[
        str, typer.Option("--access-key", help="The brokers' filterServerAccessKey.")
    ],
    broker: asking.Broker = None,
    cluster: asking.Cluster = None,
    namesrv: asking.NameServer = None,
) -> None:
    """Upload the next version of a predicate, signed with SKYLARK_FILTER_SECRET_KEY."""
    secret_key = os.environ.get(SECRET_VARIABLE, "")
    if not secret_key:
        raise ConfigError(f"set {SECRET_VARIABLE} to the brokers' filterServerSecretKey")
    source = file.read_bytes()
    done = asking.ask(
        namesrv,
        lambda admin: admin.upload_predicate(
            name,
            version,
            source,
            access_key=access_key,
            secret_key=secret_key,
            cluster=cluster,
            broker=broker,
        ),
    )
    for address in done:
        typer.echo(f"{name}@{version} is at {address}")
