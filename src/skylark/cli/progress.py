"""Progress: what a long command is doing, for people, on standard error.

On a terminal the present state is one line that changes; what has happened stays above it. In a
pipe or a log every line stays, so the present state is written only when it has changed and a while
has passed.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

from ..logs import escaped
from .render import is_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

QUIET_S: Final = 5.0


class Progress:
    """Lines about something that takes its time; a context manager."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._console: Console | None = None
        self._status: Status | None = None
        self._last = ""
        self._written_s: float | None = None

    def __enter__(self) -> Self:
        if is_terminal(self._out):
            # Only a terminal pays for rich.
            from rich.console import Console

            self._console = Console(file=self._out)
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Something has happened."""
        if self._console is not None:
            from rich.text import Text

            self._console.print(Text(escaped(line)))  # Above the line that changes.
            return
        print(escaped(line), file=self._out, flush=True)
        self._last = ""

    def show(self, line: str) -> None:
        """This is how it stands now."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(escaped(line)))
            return
        now_s = time.monotonic()
        if line == self._last or (
            self._last and self._written_s is not None and now_s - self._written_s < QUIET_S
        ):
            return
        self._last, self._written_s = line, now_s
        print(escaped(line), file=self._out, flush=True)
