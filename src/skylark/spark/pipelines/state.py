"""RunDirectory: what is known of the pipelines of this machine, for every terminal.

    <name>.json   the state: what runs, how far it is, how it ended; replaced whole
    <name>.lock   held by the run while it lives
    <name>.stop   there while somebody wants it to stop

The directory is SKYLARK_RUN_DIR, or skylark/pipelines in XDG_STATE_HOME, or in ~/.local/state; a
relative SKYLARK_RUN_DIR is refused, since runs would be found from one folder alone. Only its owner
may read it: settings for Spark that are kept for `resume` may hold secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import ConfigError, StoreUnreadable
from ..sessions import is_secret
from .locks import Lock, owner_of
from .spec import PIPELINE_NAME, PIPELINE_NAME_RULE

ENDED = frozenset({"done", "stopped", "failed", "died"})
_SPOKEN = {"metrics": "a metrics job"}  # Where a kind is not said as it is.


@dataclass(slots=True)
class SinkState:
    """How far the query of one sink is."""

    format: str = ""
    group: str = ""
    namesrv: str = ""
    topics: list[str] = field(default_factory=list)
    batch: int | None = None
    rows: int = 0  # Read by this run.
    rows_per_s: float = 0.0
    batch_ms: int = 0
    lag: int | None = None  # Messages not read yet, after the last micro-batch.
    is_active: bool = True
    error: str | None = None


@dataclass(slots=True)
class RunState:
    """One run of a pipeline."""

    name: str
    kind: str = "pipeline"  # Or "replay", "metrics", "session".
    file: str | None = None
    checkpoint: str = ""
    trigger: str = ""
    status: str = "starting"  # running, stopping; then done, stopped, failed; died if none of them
    pid: int = 0
    host: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    ended_ms: int | None = None
    error: str | None = None
    rows_total: int | None = None  # Where it is known how many there will be.
    rows_before: int = 0  # Of these, done by earlier runs.
    flags: dict[str, Any] = field(default_factory=dict)
    sinks: dict[str, SinkState] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in ENDED

    @property
    def way_on(self) -> str:
        """How it is gone on with, once it has ended."""
        if self.kind == "metrics":
            return "the same command"
        if self.kind == "session" or (self.kind == "pipeline" and self.file is None):
            return "its own program"
        return f"skylark pipeline resume {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON, to be kept."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """For JSON, to be seen: without the values of settings that are secrets."""
        found = self.to_dict()
        if conf := found["flags"].get("conf"):
            names = [one.partition("=")[0] for one in conf]
            found["flags"]["conf"] = [
                f"{name}=***" if is_secret(name) else one
                for name, one in zip(names, conf, strict=True)
            ]
        return found


class RunDirectory:
    """The states of all pipelines of this user on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def default(cls, environment: Mapping[str, str] = os.environ) -> RunDirectory:
        """The one that commands use; raises ConfigError for one that depends on the folder."""
        if given := environment.get("SKYLARK_RUN_DIR"):
            root = Path(given).expanduser()
            if not root.is_absolute():
                raise ConfigError(
                    f"SKYLARK_RUN_DIR={given}: give the whole path, such as {root.absolute()}: "
                    "from another folder its pipelines would not be found"
                )
            return cls(root)
        home = Path(environment.get("XDG_STATE_HOME") or "")
        if not home.is_absolute():  # Their specification passes over relative ones.
            home = Path.home() / ".local" / "state"
        return cls(home / "skylark" / "pipelines")

    def path(self, name: str, kind: str) -> Path:
        """A file of a pipeline; raises ConfigError for a name that would lie elsewhere."""
        if not PIPELINE_NAME.fullmatch(name):
            raise ConfigError(f"name {name[:60]!r}: {PIPELINE_NAME_RULE}")
        return self.root / f"{name}.{kind}"

    def lock(self, name: str, kind: str | None = None) -> Lock:
        """Hold the name of a pipeline; raises ConfigError while it runs.

        Also where something that is not of this kind is called so, and needs its state to go on.
        """
        path = self.path(name, "lock")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = Lock.take(path, f"pipeline {name}")
        try:
            if kind is not None:  # Under the lock: nobody else writes a state of that name.
                self._require_kind(name, kind)
        except BaseException:
            lock.release()
            raise
        return lock

    def _require_kind(self, name: str, kind: str) -> None:
        try:
            before = self.read(name)
        except (ConfigError, StoreUnreadable):  # There is none, or none that anybody can use.
            return
        # A session keeps nothing here that its program goes on with.
        if before.kind not in (kind, "session") and before.status != "done":
            raise ConfigError(
                f"name {name}: {_SPOKEN.get(before.kind, f'a {before.kind}')} is called so and has "
                f"not ended; choose another name, or go on with it: {before.way_on}"
            )

    def is_running(self, name: str) -> bool:
        """Whether a process holds the name now."""
        return owner_of(self.path(name, "lock")) is not None

    def write(self, state: RunState) -> None:
        """Replace a state whole."""
        target = self.path(state.name, "json")
        draft = target.with_suffix(".draft")
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            json.dump(state.to_dict(), file)
        draft.replace(target)

    def read(self, name: str) -> RunState:
        """The state of a pipeline; raises ConfigError where there is none."""
        path = self.path(name, "json")
        try:
            value = json.loads(path.read_bytes())
            state: RunState = _known(RunState, value)
            state.sinks = {key: _known(SinkState, one) for key, one in state.sinks.items()}
            _check_flags(state.flags)
        except FileNotFoundError:
            there = ", ".join(self.names()) or "none yet"
            raise ConfigError(
                f"pipeline {name} has not been run here; those that have: {there}"
            ) from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreUnreadable(str(path), f"is no state of a pipeline: {error}") from error
        if not state.has_ended and not self.is_running(name):
            state.status = "died"
            state.error = state.error or "its process ended without a word"
        return state

    def names(self) -> list[str]:
        """All pipelines that have been run."""
        stems = (path.stem for path in self.root.glob("*.json"))
        return sorted(stem for stem in stems if PIPELINE_NAME.fullmatch(stem))

    def ask_to_stop(self, name: str) -> None:
        """Leave a note that the run finds within a moment."""
        self.path(name, "stop").touch(mode=0o600)

    def is_asked_to_stop(self, name: str) -> bool:
        """Whether there is such a note."""
        return self.path(name, "stop").exists()

    def forget_stop(self, name: str) -> None:
        """Remove the note."""
        self.path(name, "stop").unlink(missing_ok=True)


def _check_flags(flags: Any) -> None:
    """Refuse what nobody could show or go on with. It is not quoted: it may hold secrets."""
    conf = flags.get("conf") if isinstance(flags, dict) else 0
    if conf is not None and not (
        isinstance(conf, list) and all(isinstance(one, str) for one in conf)
    ):
        raise ValueError("flags are not what a run was given")


def _known(kind: Any, value: Any) -> Any:
    """A dataclass from JSON; what a newer version has added is left out."""
    names = {one.name for one in fields(kind)}
    return kind(**{name: one for name, one in value.items() if name in names})
