"""Lock: at most one run has a checkpoint, and at most one a name.

The operating system holds the lock for as long as the process lives, so one that was killed leaves
nothing to clean up. What is written in the file is for people, and for two cases that the lock does
not see: a run on another machine that shares the folder, which keeps its file fresh; and the JVM of
a driver that was killed a moment ago, and is about to notice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...clock import Clock, SystemClock
from ...errors import ConfigError

FRESH_MS = 60_000  # A run on another machine touches its lock far more often.
_JVM_WAIT_S = 15.0


class Lock:
    """A lock file that this process holds."""

    def __init__(self, path: Path, file: Any, owner: dict[str, Any]) -> None:
        self.path = path
        self._file = file
        self._owner = owner

    @classmethod
    def take(cls, path: Path, what: str, *, clock: Clock | None = None) -> Lock:
        """Hold a lock; raises ConfigError that names who has it."""
        clock = clock or SystemClock()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for reading and writing: who had it before must still be told.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        before = _read(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ConfigError(_taken(what, before)) from None
        before = _read(file)
        age_ms = clock.now_ms() - int(os.fstat(file.fileno()).st_mtime * 1_000)
        if before and before.get("host") != socket.gethostname() and age_ms < FRESH_MS:
            file.close()
            raise ConfigError(_taken(what, before))
        if before and before.get("host") == socket.gethostname():
            _wait_gone(before.get("jvm"))
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since_ms": clock.now_ms()}
        lock = cls(path, file, owner)
        lock.note()
        return lock

    def note(self, **facts: Any) -> None:
        """Write down more about the owner."""
        self._owner.update(facts)
        self._file.seek(0)
        self._file.truncate()
        json.dump(self._owner, self._file)
        self._file.flush()

    def touch(self) -> None:
        """Show other machines that the owner lives."""
        os.utime(self.path)

    def release(self) -> None:
        """Let others have it. The file stays: removing it would let two hold it."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.truncate()
        self._file.close()


def owner_of(path: Path) -> dict[str, Any] | None:
    """Who holds a lock now; None if nobody on this machine does."""
    try:
        file = path.open("r")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _read(file) or {}
        return None


@contextlib.contextmanager
def held(path: Path, what: str) -> Iterator[Lock]:
    """Hold a lock for a while."""
    lock = Lock.take(path, what)
    try:
        yield lock
    finally:
        lock.release()


def _read(file: Any) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read() or "{}")
    except ValueError:  # Half written by an owner that died.
        return {}
    return found if isinstance(found, dict) else {}


def _taken(what: str, owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', 'this machine')}"
    return f"{what} is in use by {who}; stop that run first, `skylark pipeline status` shows it"


def _wait_gone(pid: Any) -> None:
    """Wait until the JVM of a killed driver has ended; it notices within moments."""
    deadline = time.monotonic() + _JVM_WAIT_S
    while isinstance(pid, int) and _is_java(pid) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_java(pid: int) -> bool:
    try:
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
