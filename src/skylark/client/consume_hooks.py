"""Consume hooks: what an application may watch of the handling of messages.

A hook that raises in either place is logged; the messages are handled all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..model.queue import MessageQueue
from .received import ReceivedMessage
from .verdicts import Verdict


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One call of a handler: what it gets, and after it how it ended."""

    group: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    namespace: str | None = None
    verdict: Verdict | None = None
    error: Exception | None = None
    is_timeout: bool = False
    cost_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)  # For hooks, from before to after.

    @property
    def succeeded(self) -> bool:
        """Whether the handler took the messages."""
        return self.error is None and self.verdict is not None and self.verdict.fate.is_success


class ConsumeHook(Protocol):
    """Sees each call of a handler."""

    def before_consume(self, context: ConsumeContext) -> None:
        """The handler is about to be called."""
        ...

    def after_consume(self, context: ConsumeContext) -> None:
        """It has returned or raised."""
        ...
