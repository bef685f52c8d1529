"""`skylark message explain-filter`: why a message passes a filter, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from ..errors import ConfigError, InvalidExpression
from ..filter import SqlExpression, parse_tags
from ..filter.explain import explain, marked
from ..logs import escaped
from ..protocol.hashes import tag_hash
from . import asking, exits, render


def command(
    expression: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help="An SQL92 expression, or tags with --tags.")
    ],
    properties: Annotated[
        list[str] | None,
        typer.Option("-p", "--property", metavar="NAME=VALUE", help="A property of the message."),
    ] = None,
    tags: Annotated[
        bool, typer.Option("--tags", help="The expression is about tags: A || B.")
    ] = False,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Take the properties of this message.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="Needed for an id that a producer gave.")
    ] = None,
    namesrv: asking.NameServer = None,
    json: asking.Json = False,
) -> None:
    """Say whether a message passes a filter, and which part of it decides."""
    try:
        # A wrong expression is said to be wrong before any broker is asked for a message.
        parsed = parse_tags(expression) if tags else SqlExpression(expression)
    except InvalidExpression as error:
        _show_mistake(error, json)
        raise typer.Exit(exits.WRONG_USE) from None
    given = _given(properties or [])
    if message_id is not None:
        found = asking.ask(namesrv, lambda admin: admin.message(message_id, topic))
        given = {**found.message.properties, **given}
    if isinstance(parsed, SqlExpression):
        record = _sql_record(parsed, given)
    else:
        record = _tag_record(parsed, expression, given)
    if json:
        render.show_record(record, {}, as_json=True)
        return
    typer.echo(f"{'matches' if record['matches'] else 'does not match'}: {record['because']}")
    if not tags:
        shown = marked(expression, _whole(record, "start"), _whole(record, "end"))
        typer.echo(f"\n{_escaped(shown)}")
    if record.get("ignored"):
        typer.echo(
            f"\nnote: {escaped(str(record['ignored']))!r} at the end has no effect; "
            "RocketMQ lets it stand as well"
        )


def _whole(record: Mapping[str, object], key: str) -> int:
    value = record[key]
    assert isinstance(value, int)
    return value


def _escaped(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))


def _given(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"-p {word[:60]}: write NAME=VALUE, for example -p amount=12")
        found[name] = value
    return found


def _show_mistake(error: InvalidExpression, json: bool) -> None:
    if json:
        record = {
            "expression": error.expression,
            "valid": False,
            "problem": error.problem,
            "position": None if error.position is None else error.position + 1,
        }
        render.show_record(record, {}, as_json=True)
        return
    exits.complain("skylark message explain-filter", f"the expression {escaped(error.problem)}")
    if error.position is not None:
        typer.echo(_escaped(marked(error.expression, error.position)), err=True)


def _sql_record(expression: SqlExpression, properties: Mapping[str, str]) -> dict[str, object]:
    said = explain(expression, properties)
    return {
        "expression": expression.text,
        "valid": True,
        "matches": said.matches,
        "result": said.outcome.value,
        "because": said.because,
        "decided_by": said.decided_by,
        "start": said.start,
        "end": said.end,
        "ignored": expression.ignored or None,
        "properties": {name: properties.get(name) for name in sorted(expression.names)},
    }


def _tag_record(
    tags: tuple[str, ...], expression: str, properties: Mapping[str, str]
) -> dict[str, object]:
    tag = properties.get("TAGS")
    alike = [one for one in tags if tag is not None and tag_hash(one) == tag_hash(tag)]
    matches = not tags or tag in tags
    if not tags:
        because = "every message is wanted"
    elif tag is None:
        because = "the message has no tag"
    elif matches:
        because = f"the tag {tag!r} is one of {len(tags)}"
    elif alike:
        because = (
            f"the tag {tag!r} hashes like {alike[0]!r}, so that the broker lets it pass, and the "
            "consumer drops it"
        )
    else:
        because = f"the tag {tag!r} is none of {', '.join(map(repr, tags))}"
    return {
        "expression": expression,
        "valid": True,
        "matches": matches,
        "because": because,
        "passes_broker": not tags or bool(alike),
        "properties": {"TAGS": tag},
    }
