"""Forkable: what a process holds, and its forked children must not use.

A child has the parent's objects without the parent's threads; sockets are shared with it. So what
is held is left alone there, and made anew when it is needed.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod

_held: weakref.WeakSet[Forkable] = weakref.WeakSet()


class Forkable(ABC):
    """Something with a lock, that forgets in a child what it held in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _held.add(self)

    @abstractmethod
    def _forget(self) -> None:
        """Let go of what belongs to the parent, and do not touch it."""

    def _after_fork(self) -> None:
        # Another thread may have held the lock in the parent; it is not there to let go of it.
        self._lock = threading.Lock()
        self._forget()


def _after_fork_in_child() -> None:
    for holder in list(_held):
        holder._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
