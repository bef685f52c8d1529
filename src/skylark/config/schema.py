"""Settings and setting(): how a component describes what can be configured."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from ..errors import InvalidSetting

Value = bool | int | str

MASK = "***"
ENVIRONMENT_PREFIXES = ("SKYLARK_", "RMQ_")  # In falling precedence.

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SHOWN_CHARS_MAX = 80
_PATH_CHARS_MAX = 4096
_NEAR_ENOUGH = 0.75


class Setting(NamedTuple):
    """What is known about one field of a schema."""

    name: str
    key: str
    default: Value
    doc: str
    at_least: int | None = None
    at_most: int | None = None
    choices: tuple[str, ...] = ()
    hot: bool = False
    remote: bool = False
    secret: bool = False
    path: bool = False
    rocketmq_key: str | None = None
    rocketmq_default: str | None = None
    rocketmq_unit: int = 1
    env: tuple[str, ...] = ()

    def expected(self, unit: int = 1) -> str:
        """Say what a value may be, as the middle of a sentence."""
        if self.choices:
            return " or ".join(self.choices)
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, int):
            if self.at_least is None or self.at_most is None:
                return "a whole number"
            low, high = -(-self.at_least // unit), self.at_most // unit
            return f"a whole number from {low} to {high}"
        return "a path" if self.path else "text"

    def environment_names(self) -> tuple[str, ...]:
        """List the variables that set it, the strongest first."""
        upper = self.name.upper()
        return (*(prefix + upper for prefix in ENVIRONMENT_PREFIXES), *self.env)

    def parse(self, text: str, *, unit: int = 1) -> Value:
        """Turn text into a checked value; raises ValueError."""
        text = text.strip()
        value: Value
        if isinstance(self.default, bool):
            lowered = text.lower()
            # Java takes every misspelt "true" as false; that hides mistakes.
            if lowered not in _TRUE | _FALSE:
                raise ValueError(text)
            value = lowered in _TRUE
        elif isinstance(self.default, int):
            if not _WHOLE_NUMBER.fullmatch(text):
                raise ValueError(text)
            value = int(text) * unit
        else:
            value = text.lower() if text.lower() in self.choices else text
        self.check(value)
        return value

    def check(self, value: object) -> None:
        """Raise ValueError unless a value has the right type and lies within the bounds."""
        if type(value) is not type(self.default):
            raise ValueError(value)
        if self.choices and value not in self.choices:
            raise ValueError(value)
        if isinstance(value, str) and "\0" in value:
            raise ValueError(value)
        if isinstance(value, int) and not isinstance(value, bool):
            low = _INT64_MIN if self.at_least is None else self.at_least
            high = _INT64_MAX if self.at_most is None else self.at_most
            if not low <= value <= high:
                raise ValueError(value)

    def show(self, value: Value, unit: int = 1) -> str:
        """Render a value as a file would hold it; a secret only as a mask."""
        if self.secret and value:
            return MASK
        if unit != 1 and isinstance(value, int):
            return str(value // unit)
        return value_text(value)

    def invalid(
        self, *, key: str, source: str, given: str, remedy: str, unit: int = 1
    ) -> InvalidSetting:
        """Build the error for a value that failed parse or check."""
        default = self.show(self.default, unit) or "none"
        return InvalidSetting(
            key=key,
            source=source,
            given=given,
            expected=self.expected(unit),
            next_step=f"{remedy} or leave it out for {default}",
        )


_T = TypeVar("_T", bool, int, str)
_METADATA_KEY = "skylark.setting"


def setting(
    default: _T,
    doc: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    choices: Iterable[str] = (),
    hot: bool = False,
    remote: bool = False,
    secret: bool = False,
    path: bool = False,
    key: str | None = None,
    rocketmq_key: str | None = None,
    rocketmq_default: object = None,
    rocketmq_unit: int = 1,
    env: Iterable[str] = (),
) -> _T:
    """Describe one field of a schema.

    hot: a change takes effect without a restart.
    remote: an update request may set it; never a path, a command, a class or an address.
    key: the camelCase key where it is not the derived one.
    rocketmq_key: RocketMQ's name of it; where only its default is given, that is the same key.
    rocketmq_unit: how many of our units make one of its, such as 1000 for seconds.
    env: historic environment variables, without a prefix.
    """
    assert not (remote and (path or secret)), "a remote peer may not set a path or a secret"
    assert not remote or hot, "what a remote peer sets must take effect"
    metadata = {
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "choices": tuple(choices),
        "hot": hot,
        "remote": remote,
        "secret": secret,
        "path": path,
        "key": key,
        "rocketmq_key": rocketmq_key,
        "rocketmq_default": None if rocketmq_default is None else value_text(rocketmq_default),
        "rocketmq_unit": rocketmq_unit,
        "env": tuple(env),
    }
    field: Any = dataclasses.field(default=default, metadata={_METADATA_KEY: metadata})
    return field  # type: ignore[no-any-return]


class Settings:
    """Base of every schema: checks each value, whoever constructs it."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    component: ClassVar[str]

    def __post_init__(self) -> None:
        for name, known in settings_of(type(self)).items():
            value = getattr(self, name)
            try:
                known.check(value)
            except ValueError:
                shown = MASK if known.secret else safe_text(repr(value))
                raise known.invalid(
                    key=known.key,
                    source="constructor",
                    given=f"{type(self).__name__}({name}={shown})",
                    remedy="correct it",
                ) from None
            if known.path and value.startswith("~"):
                object.__setattr__(self, name, os.path.expanduser(value))
        self.check_together()

    def check_together(self) -> None:
        """Raise ConfigError where values that are each sound do not fit together."""

    def replace(self, **changes: Value) -> Self:
        """Return a copy with some values changed, checked again."""
        return dataclasses.replace(self, **changes)


class Spelling(NamedTuple):
    """What one accepted spelling of a key stands for, and the unit of its values."""

    setting: Setting
    unit: int


_settings: dict[type, dict[str, Setting]] = {}
_spellings: dict[type, dict[str, Spelling]] = {}


def settings_of(schema: type[Settings]) -> Mapping[str, Setting]:
    """Return the settings of a schema by field name, in the order of their definition."""
    found = _settings.get(schema)
    if found is None:
        found = _settings[schema] = {
            field.name: _setting_of(field) for field in dataclasses.fields(schema)
        }
    return found


def _setting_of(field: dataclasses.Field[Any]) -> Setting:
    metadata = dict(field.metadata[_METADATA_KEY])
    key = metadata.pop("key") or camel_case(field.name)
    if metadata["rocketmq_default"] is not None and metadata["rocketmq_key"] is None:
        metadata["rocketmq_key"] = key
    default: Any = field.default
    return Setting(name=field.name, key=key, default=default, **metadata)


def spellings_of(schema: type[Settings]) -> Mapping[str, Spelling]:
    """Return every accepted spelling of the keys of a schema."""
    found = _spellings.get(schema)
    if found is None:
        found = {}
        for known in settings_of(schema).values():
            if known.rocketmq_key is not None:
                found[known.rocketmq_key] = Spelling(known, known.rocketmq_unit)
            found[known.key] = Spelling(known, 1)
            found[known.name] = Spelling(known, 1)
        _spellings[schema] = found
    return found


def camel_case(name: str) -> str:
    """Derive RocketMQ's spelling: listen_port becomes listenPort."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def value_text(value: object) -> str:
    """Write a value as a properties file holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def safe_text(text: str, chars_max: int = _SHOWN_CHARS_MAX) -> str:
    """Make text safe and short enough to stand in one line of a message."""
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return safe if len(safe) <= chars_max else safe[: chars_max - 3] + "..."


def safe_path(path: str | os.PathLike[str]) -> str:
    """Make a path safe for one line of a message, and leave it whole: half of it helps nobody."""
    return safe_text(os.fspath(path), _PATH_CHARS_MAX)


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return the nearest candidate, or None where none is near."""
    import difflib  # Costs milliseconds, and is needed only when something is wrong.

    by_plain = {_plain(candidate): candidate for candidate in candidates}
    near = difflib.get_close_matches(
        _plain(word[:_SHOWN_CHARS_MAX]), by_plain, n=1, cutoff=_NEAR_ENOUGH
    )
    return by_plain[near[0]] if near else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
