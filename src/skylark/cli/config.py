"""`skylark config`: what can be set, to what it is set, and by whom."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..config import (
    Explanation,
    Flag,
    Loaded,
    Settings,
    did_you_mean,
    explain,
    explain_all,
    load,
    parse_set,
    reference_page,
    settings_of,
)
from ..config.load import unknown_hint
from ..config.rocketmq_keys import ELSEWHERE, INERT, MISSPELT, UNSUPPORTED
from ..config.schema import spellings_of
from ..errors import ConfigError
from . import render

# Schemas by component: module, class, the title of its reference page, and the command it serves.
_SCHEMAS = {
    "nameserver": (
        "skylark.nameserver.config",
        "NameServerConfig",
        "Name server settings",
        "mqnamesrv",
    ),
    "broker": ("skylark.broker.config", "BrokerConfig", "Broker settings", "mqbroker"),
}

app = typer.Typer(no_args_is_help=True, help="Show settings, their sources and their meaning.")

_Component = Annotated[
    str | None, typer.Option("--component", help="Only this component, such as nameserver.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_File = Annotated[
    Path | None, typer.Option("-c", "--config", help="Read this properties or TOML file.")
]
_Set = Annotated[list[str] | None, typer.Option("--set", help="As for a server: key=value.")]


@app.command("explain")
def explain_command(
    key: Annotated[str, typer.Argument(help="A key, in camelCase, snake_case or RocketMQ's name.")],
    component: _Component = None,
    config: _File = None,
    set_: _Set = None,
    json: _Json = False,
) -> None:
    """Say what a setting means, its value, where that comes from, and when a change counts."""
    explanations = [
        explain(_loaded(name, config, set_), key)
        for name in _components(component)
        if MISSPELT.get(key, key) in spellings_of(_schema(name))
    ]
    if not explanations:
        raise ConfigError(_unknown(key, _components(component)))
    titles = {
        "key": "key",
        "component": "component",
        "meaning": "meaning",
        "value": "value",
        "source": "source",
        "default": "default",
        "expected": "allowed",
        "takes_effect": "a change counts",
        "set_remotely": "by request",
        "environment": "environment",
        "rocketmq_key": "RocketMQ's key",
        "rocketmq_default": "RocketMQ's default",
    }
    rows = [_row(explanation) for explanation in explanations]
    if json:
        # A list, even of one: a key such as listenPort belongs to several components.
        render.show_table(rows, titles, as_json=True)
        return
    for at, row in enumerate(rows):
        if at:
            typer.echo()
        render.show_record(row, titles)


@app.command("list")
def list_command(
    component: _Component = None,
    config: _File = None,
    set_: _Set = None,
    json: _Json = False,
) -> None:
    """List every setting with its value, source and meaning."""
    rows = [
        _row(explanation)
        for name in _components(component)
        for explanation in explain_all(_loaded(name, config, set_))
    ]
    columns = {"component": "component", "key": "key", "value": "value", "source": "source"}
    render.show_table(rows, {**columns, "meaning": "meaning"}, as_json=json)


@app.command("reference")
def reference_command(
    component: Annotated[str, typer.Argument(help="A component, such as nameserver.")],
) -> None:
    """Print the reference page of a component as Markdown."""
    name = _components(component)[0]
    _, _, title, command = _SCHEMAS[name]
    typer.echo(reference_page(_schema(name), title=title, command=command), nl=False)


def reference_pages() -> dict[str, str]:
    """The reference pages of all components, by file name."""
    return {
        f"config-{name}.md": reference_page(_schema(name), title=title, command=command)
        for name, (_, _, title, command) in _SCHEMAS.items()
    }


def _components(wanted: str | None) -> list[str]:
    if wanted is None:
        return list(_SCHEMAS)
    if wanted not in _SCHEMAS:
        near = did_you_mean(wanted, _SCHEMAS)
        hint = f"did you mean {near}?" if near else f"use one of: {', '.join(_SCHEMAS)}"
        raise ConfigError(f"unknown component {wanted}; {hint}")
    return [wanted]


def _schema(component: str) -> type[Settings]:
    module, name, _, _ = _SCHEMAS[component]
    return cast(type[Settings], getattr(importlib.import_module(module), name))


def _loaded(component: str, file: Path | None, sets: list[str] | None) -> Loaded[Any]:
    # A setting that only another component has is no concern of this one.
    flags: list[Flag] = [parse_set(text) for text in sets or []]
    return load(_schema(component), file=file, flags=flags)


def _row(explanation: Explanation) -> dict[str, object]:
    return {**explanation._asdict(), "environment": list(explanation.environment)}


def _unknown(key: str, components: list[str]) -> str:
    if key in UNSUPPORTED:
        return f"{key} is not supported: {UNSUPPORTED[key]}"
    if key in INERT:
        inert = INERT[key]
        return f"{key} is RocketMQ's and has no effect here: {inert.reason}"
    if key in ELSEWHERE:
        return f"{key} is RocketMQ's; no component here has it; see `skylark config list`"
    names = [name for component in components for name in settings_of(_schema(component))]
    near = did_you_mean(key, names)
    for component in components:
        if near in settings_of(_schema(component)):
            return f"unknown key {key}; {unknown_hint(_schema(component), key)}"
    return f"unknown key {key}; see `skylark config list`"
