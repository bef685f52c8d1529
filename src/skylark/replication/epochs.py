"""EpochTable: who was master when, as far as this broker knows.

    file    config/epochs.json
    {"epochs":[{"epoch":3,"mark":"9f86d081884c7d65","start":4096}, …]}

A broker that starts as master with a cluster key begins an epoch: a number above all it knows, and
a mark drawn by chance, since two brokers that both believe to be master count alike. A replica
takes over the epoch of the master that it follows, before it confirms anything. So

    a master is refused whose epoch is older than what the replica has seen
    a master that hears a newer epoch from a replica knows that it has been replaced
    two masters of the same number are told apart by their marks

Only the newest entries are kept; fencing needs no more.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple, Protocol

from ..errors import CorruptRecord

KEPT_MAX = 64
_LONG_MAX = 2**63 - 1


class SmallFiles(Protocol):
    """What is asked of the disk; skylark.store's Files does it."""

    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes) -> None: ...
    def make_directory(self, path: str) -> None: ...


class Epoch(NamedTuple):
    """The time of one master."""

    number: int
    mark: int
    start: int  # Where its part of the log begins.


class EpochTable:
    """The epochs that this broker has led or followed, the last one being in force."""

    def __init__(self, path: str, files: SmallFiles) -> None:
        self._path = path
        self._files = files
        self.epochs: list[Epoch] = []

    @property
    def last(self) -> Epoch:
        """The epoch in force; number 0 before the first."""
        return self.epochs[-1] if self.epochs else Epoch(0, 0, 0)

    def load(self) -> None:
        """Read the file, if there is one; raises CorruptRecord."""
        if not self._files.exists(self._path):
            return
        try:
            found = json.loads(self._files.read(self._path))
            epochs = [
                Epoch(int(item["epoch"]), int(item["mark"], 16), int(item["start"]))
                for item in found["epochs"]
            ]
            if any(not 0 < e.number <= _LONG_MAX or e.start < 0 for e in epochs):
                raise ValueError("a number out of range")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(
                f"{self._path} cannot be read: {error}; restore it from a backup, or remove it if "
                "this broker is to forget whom it followed"
            ) from error
        self.epochs = sorted(epochs)

    def begin(self, mark: int, start: int) -> Epoch:
        """Become master: a new epoch, durable when this returns."""
        epoch = Epoch(self.last.number + 1, mark, start)
        self._add(epoch)
        return epoch

    def follow(self, epoch: Epoch) -> None:
        """Follow a master: its epoch is ours, durable when this returns."""
        if epoch != self.last:
            assert epoch.number >= self.last.number
            self._add(epoch)

    def _add(self, epoch: Epoch) -> None:
        epochs = [*(e for e in self.epochs if e.number < epoch.number), epoch][-KEPT_MAX:]
        items = [{"epoch": e.number, "mark": f"{e.mark:016x}", "start": e.start} for e in epochs]
        self._files.make_directory(os.path.dirname(self._path))
        self._files.replace(self._path, json.dumps({"epochs": items}).encode())
        self.epochs = epochs
