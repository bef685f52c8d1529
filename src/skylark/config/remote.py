"""What a peer may read and change: settings as `key=value` lines, with an allow-list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from ..errors import SettingRefused
from .files import parse_properties
from .schema import MASK, Settings, Value, safe_text, settings_of, spellings_of, value_text

_S = TypeVar("_S", bound=Settings)


class Update(NamedTuple, Generic[_S]):
    """The outcome of a remote update: the new config, and (old, new) text by key."""

    config: _S
    changes: Mapping[str, tuple[str, str]]


def apply_update(config: _S, text: str, *, refuse: Iterable[str] = ()) -> Update[_S]:
    """Apply `key=value` lines that a peer sent: all of them or none.

    Raises SettingRefused for a key that is not on the allow-list or that the operator forbids, and
    InvalidSetting or ConfigError for a value or text that does not parse.
    """
    schema = type(config)
    refused = set(refuse)
    values: dict[str, Value] = {}
    for item in parse_properties(text, "update request"):
        found = spellings_of(schema).get(item.key)
        if found is None or not found.setting.remote:
            raise SettingRefused(safe_text(item.key))
        known, unit = found
        if refused & {item.key, known.key, known.name, known.rocketmq_key}:
            raise SettingRefused(safe_text(item.key))
        try:
            values[known.name] = known.parse(item.value, unit=unit)
        except ValueError:
            raise known.invalid(
                key=item.key,
                source="update request",
                given=f"update request: {item.key}={safe_text(item.value)}",
                remedy="send another value",
                unit=unit,
            ) from None
    keys = {name: known.key for name, known in settings_of(schema).items()}
    changes = {
        keys[name]: (value_text(getattr(config, name)), value_text(value))
        for name, value in values.items()
        if getattr(config, name) != value
    }
    return Update(config.replace(**values), changes)


def public_items(config: Settings) -> list[tuple[str, str]]:
    """List the settings as (key, text) for a peer, under RocketMQ's names where it has them.

    A secret or a file path appears only as a mask.
    """
    items = []
    for known in settings_of(type(config)).values():
        value = getattr(config, known.name)
        key, unit = known.rocketmq_key or known.key, known.rocketmq_unit
        if unit != 1 and value % unit:
            key, unit = known.key, 1  # A whole number of their units cannot say it.
        hidden = (known.path or known.secret) and value
        items.append((key, MASK if hidden else known.show(value, unit)))
    return items
