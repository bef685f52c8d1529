"""What `skylark config` and the reference pages say about a setting."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from ..errors import ConfigError
from . import rocketmq_keys
from .load import Loaded, unknown_hint
from .schema import Setting, Settings, safe_text, settings_of, spellings_of

_S = TypeVar("_S", bound=Settings)


class Explanation(NamedTuple):
    """Everything there is to say about one setting."""

    component: str
    key: str
    name: str
    value: str
    source: str
    default: str
    expected: str
    meaning: str
    takes_effect: str
    set_remotely: bool
    environment: tuple[str, ...]
    rocketmq_key: str | None
    rocketmq_default: str | None


def explain(loaded: Loaded[_S], key: str) -> Explanation:
    """Explain one setting of a loaded schema; raises ConfigError with the nearest name."""
    schema = type(loaded.config)
    found = spellings_of(schema).get(rocketmq_keys.MISSPELT.get(key, key))
    if found is None:
        raise ConfigError(f"unknown key {safe_text(key)}; {unknown_hint(schema, key)}")
    return _explanation(loaded, found.setting)


def explain_all(loaded: Loaded[_S]) -> list[Explanation]:
    """Explain every setting of a loaded schema, in the order of the schema."""
    return [_explanation(loaded, known) for known in settings_of(type(loaded.config)).values()]


def _explanation(loaded: Loaded[_S], known: Setting) -> Explanation:
    return Explanation(
        component=type(loaded.config).component,
        key=known.key,
        name=known.name,
        value=known.show(getattr(loaded.config, known.name)),
        source=str(loaded.sources[known.name]),
        default=known.show(known.default),
        expected=known.expected(),
        meaning=known.doc,
        takes_effect="at once" if known.hot else "after a restart",
        set_remotely=known.remote,
        environment=known.environment_names(),
        rocketmq_key=known.rocketmq_key,
        rocketmq_default=known.rocketmq_default,
    )


_HEAD = """\
# {title}

Made from `{origin}`; a test compares the two.

Sources, in rising precedence: the default; a file given with `-c` (RocketMQ's `key=value`
properties, or TOML where the name ends in `.toml`, with the keys at the top or in a table
`[{component}]`); the environment; flags, such as `{command} --set key=value`. Keys may be
written in camelCase, in snake_case, or as RocketMQ writes them. `skylark config explain KEY` shows
where a value comes from.

*Change* says when a new value counts: *restart*, *hot* (at once), or *remote* (at once, and by an
update request too).

| key | default | allowed | change | RocketMQ | meaning |
|---|---|---|---|---|---|
"""

_ENVIRONMENT = """
## Environment

Each key has a variable with the prefix `SKYLARK_`, and the same with `RMQ_`, which is weaker:
`listenPort` is `SKYLARK_LISTEN_PORT`. An empty variable counts as not set.
"""


def reference_page(schema: type[Settings], *, title: str, command: str) -> str:
    """Write the reference of a schema as Markdown."""
    settings = settings_of(schema).values()
    origin = f"{schema.__module__}.{schema.__qualname__}"
    page = _HEAD.format(title=title, origin=origin, component=schema.component, command=command)
    page += "".join(_row(known) for known in settings) + _ENVIRONMENT
    historic = [(name, known.key) for known in settings for name in known.env]
    if historic:
        page += "\n"
    return page + "".join(f"- `{name}` sets `{key}`, as in RocketMQ.\n" for name, key in historic)


def _row(known: Setting) -> str:
    cells = (
        f"`{known.key}`",
        _code(known.show(known.default)),
        known.expected(),
        "remote" if known.remote else "hot" if known.hot else "restart",
        _rocketmq_cell(known),
        known.doc,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _rocketmq_cell(known: Setting) -> str:
    if known.rocketmq_key is None:
        return "-"
    name = "same key" if known.rocketmq_key == known.key else f"`{known.rocketmq_key}`"
    return name if known.rocketmq_default is None else f"{name}, {_code(known.rocketmq_default)}"
