"""Consume hooks: what an application may watch of the handling of messages.

A hook that raises in either place is logged; the messages are handled all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..model.queue import MessageQueue
from .received import ReceivedMessage
from .verdicts import Verdict

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One call of a handler: what it gets, and after it how it ended."""

    group: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    namespace: str | None = None
    verdict: Verdict | None = None
    error: BaseException | None = None
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


class ConsumeHooks:
    """The hooks of one consumer, told of each call of its handler."""

    def __init__(
        self,
        hooks: Iterable[ConsumeHook],
        group: str,
        *,
        namespace: str | None,
        timeout_ms: int | None,
    ) -> None:
        self._hooks = tuple(hooks)
        self._group = group
        self._namespace = namespace
        self._timeout_ms = timeout_ms

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, place: MessageQueue, messages: list[ReceivedMessage]) -> ConsumeContext:
        """A handler is about to get these."""
        context = ConsumeContext(
            group=self._group, messages=messages, queue=place, namespace=self._namespace
        )
        for hook in self._hooks:
            try:
                hook.before_consume(context)
            except Exception:
                logger.exception("group=%s a hook failed before the handler", self._group)
        return context

    def after(
        self,
        context: ConsumeContext,
        verdict: Verdict,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        """It has returned or raised."""
        context.verdict, context.error, context.cost_ms = verdict, error, cost_ms
        context.is_timeout = self._timeout_ms is not None and cost_ms >= self._timeout_ms
        for hook in self._hooks:
            try:
                hook.after_consume(context)
            except Exception:
                logger.exception("group=%s a hook failed after the handler", self._group)
