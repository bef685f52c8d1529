"""Signals in commands that run Spark.

Spark would put a SIGINT handler of its own in the place of ours: spark_session() keeps ours. While
Spark starts, standard error is a log file, so a stop is said on a copy of it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

_BOTH = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether SIGINT or SIGTERM has asked for a stop; the second one does not wait.

    `after` says what is finished before, for people; nothing if it is empty.
    """

    def __init__(self, after: str, voice: int) -> None:
        self.is_asked = False
        self.after = after
        self._voice = voice
        self._on_stop: list[Callable[[], None]] = []

    def then(self, action: Callable[[], None]) -> None:
        """Do this as well when it is asked for, or now if it has been."""
        self._on_stop.append(action)
        if self.is_asked:
            action()

    def ask(self, number: int, frame: Any) -> None:
        """The handler."""
        if self.is_asked:
            logging.disable(logging.ERROR)  # py4j would tell of the hang-up, with tracebacks.
            raise KeyboardInterrupt
        self.is_asked = True
        after = f" after {self.after}" if self.after else ""
        # Past Python's buffers: the signal may have come in the midst of a print.
        os.write(self._voice, f"stopping{after}; once more to stop at once\n".encode())
        for action in self._on_stop:
            action()


@contextlib.contextmanager
def stopping_by_signal(after: str) -> Iterator[Stop]:
    """SIGINT and SIGTERM ask for a stop, after what is under way."""
    voice = os.dup(2)
    level = logging.root.manager.disable
    stop = Stop(after, voice)
    before = {one: signal.signal(one, stop.ask) for one in _BOTH}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.disable(level)
        os.close(voice)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """SIGINT ends the process at once, and Spark's Java with it: nothing is to be finished."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def interrupted_by_signal() -> Iterator[None]:
    """SIGTERM interrupts as SIGINT does: nothing is under way, and whoever holds a name lets go."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def kept_handlers() -> Iterator[None]:
    """While Spark is started the handler of SIGINT stays that of now, at every moment.

    Its context would set one that raises, and be busy for some time before it could be put back.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        context: Any = importlib.import_module("pyspark.core.context")
    except ImportError:  # That is said better elsewhere.
        context = SimpleNamespace()
    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda number, handler: None)
    try:
        yield
    finally:
        context.signal = signal
        signal.signal(signal.SIGINT, before)
