"""load(): fill a schema from defaults, file, environment and flags, and remember each source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from ..errors import ConfigError
from . import rocketmq_keys
from .files import read_config_file
from .schema import (
    ENVIRONMENT_PREFIXES,
    MASK,
    Settings,
    Value,
    did_you_mean,
    safe_path,
    safe_text,
    settings_of,
    spellings_of,
)


class Source(NamedTuple):
    """Where a value was found: kind is default, file, environment or flag."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        if self.kind == "environment":
            return f"environment {self.where}"
        return self.where or self.kind


DEFAULT = Source("default")


class Flag(NamedTuple):
    """One setting given on the command line, and by which flag."""

    key: str
    text: str
    name: str = "--set"


class _Given(NamedTuple):
    key: str
    text: str
    source: Source

    def shown(self, *, secret: bool) -> str:
        """Repeat what was given, as the user wrote it."""
        text = MASK if secret else safe_text(self.text)
        match self.source.kind, self.source.where:
            case "environment", _:
                return f"{self.source}={text}"
            case "flag", "--set":
                return f"--set {safe_text(self.key)}={text}"
            case "flag", name:
                return f"{name} {text}"
            case _:
                return f"{self.source}: {safe_text(self.key)}={text}"


_S = TypeVar("_S", bound=Settings)


class Loaded(NamedTuple, Generic[_S]):
    """A filled schema, the source of each of its values, and what was odd on the way.

    Warnings are for the user's eyes; notes say which keys had no effect, for a debug log.
    """

    config: _S
    sources: Mapping[str, Source]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load(
    schema: type[_S],
    *,
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    flags: Iterable[Flag] = (),
) -> Loaded[_S]:
    """Fill a schema from defaults, file, environment and flags; raises ConfigError."""
    filling = _Filling(schema)
    if file is not None:
        for key, text, line in read_config_file(file, schema.component):
            source = Source("file", f"{safe_path(file)}:{line}")
            filling.take(_Given(key, text, source))
    filling.take_environment(os.environ if env is None else env)
    for key, text, name in flags:
        filling.take(_Given(key, text, Source("flag", name)))
    return Loaded(
        schema(**filling.values), filling.sources, tuple(filling.warnings), tuple(filling.notes)
    )


def parse_set(text: str) -> Flag:
    """Split the argument of --set at its first equals sign; raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {safe_text(text)}: expected key=value; for example --set listenPort=9876"
        )
    return Flag(key.strip(), value)


class _Filling:
    """A schema on its way: values found so far, from weak sources to strong ones."""

    def __init__(self, schema: type[Settings]) -> None:
        self.schema = schema
        self.values: dict[str, Value] = {}
        self.sources: dict[str, Source] = dict.fromkeys(settings_of(schema), DEFAULT)
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def take(self, given: _Given) -> None:
        spellings = spellings_of(self.schema)
        found = spellings.get(given.key)
        meant = rocketmq_keys.MISSPELT.get(given.key)
        if found is None and meant is not None and meant in spellings:
            found = spellings[meant]
            self.warnings.append(f"{given.source}: {given.key} is taken as {meant}; write {meant}")
        if found is None:
            self._report_unknown(given)
            return
        known, unit = found
        try:
            value = known.parse(given.text, unit=unit)
        except ValueError:
            raise known.invalid(
                key=given.key,
                source=str(given.source),
                given=given.shown(secret=known.secret),
                remedy="correct it",
                unit=unit,
            ) from None
        earlier = self.sources[known.name]
        if earlier.kind == "file" and given.source.kind == "file":
            self.warnings.append(
                f"{given.source}: {given.key} was already set at {earlier}; this one counts"
            )
        self.values[known.name] = value
        self.sources[known.name] = given.source

    def take_environment(self, env: Mapping[str, str]) -> None:
        recognised: set[str] = set()
        for known in settings_of(self.schema).values():
            names = known.environment_names()
            recognised.update(names)
            # An empty variable is how shells and compose files spell "not set".
            name = next((name for name in names if env.get(name)), None)
            if name is not None:
                self.take(_Given(known.key, env[name], Source("environment", name)))
        prefix = ENVIRONMENT_PREFIXES[0]
        fields = [name.upper() for name in settings_of(self.schema)]
        for name in sorted(env):
            # Many variables with our prefix are no settings: only a near miss is worth a word.
            if name.startswith(prefix) and name not in recognised:
                near = did_you_mean(name.removeprefix(prefix), fields)
                if near is not None:
                    self.warnings.append(
                        f"environment {safe_text(name)} is unknown and ignored; "
                        f"did you mean {prefix}{near}?"
                    )

    def _report_unknown(self, given: _Given) -> None:
        key, source = given.key, given.source
        if key in rocketmq_keys.UNSUPPORTED:
            self.warnings.append(
                f"{source}: {key} is not supported: {rocketmq_keys.UNSUPPORTED[key]}"
            )
        elif key in rocketmq_keys.INERT:
            self.notes.append(f"{source}: {key} has no effect: {rocketmq_keys.INERT[key].reason}")
        elif key in rocketmq_keys.ELSEWHERE or key in rocketmq_keys.MISSPELT:
            self.notes.append(f"{source}: {key} is not for the {self.schema.component}")
        else:
            self.warnings.append(
                f"{source}: unknown key {safe_text(key)} is ignored; "
                f"{unknown_hint(self.schema, key)}"
            )


def unknown_hint(schema: type[Settings], key: str) -> str:
    """Say what to do about an unknown key, as the end of a message."""
    near = did_you_mean(key, spellings_of(schema))
    if near is None:
        return "see `skylark config list`"
    return f"did you mean {spellings_of(schema)[near].setting.key}?"
