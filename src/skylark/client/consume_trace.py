"""ConsumeTrace: notes of every handled message, for the trace topic.

Two records for each message, SubBefore when a handler gets it and SubAfter when it is done with it,
paired by a request id. Messages whose broker wants no traces (TRACE_ON=false) leave none.
"""

from __future__ import annotations

import random

from ..clock import Clock
from ..model.message import Property
from .consume_hooks import ConsumeContext
from .received import ReceivedMessage
from .trace import ConsumeContextCode, SubAfterTrace, SubBeforeTrace, TraceWriter

_REQUEST_ID = "trace request id"


class ConsumeTrace:
    """A ConsumeHook that writes traces."""

    def __init__(self, writer: TraceWriter, clock: Clock, rng: random.Random) -> None:
        self._writer = writer
        self._clock = clock
        self._rng = rng

    def before_consume(self, context: ConsumeContext) -> None:
        """Note every message that a handler is about to get."""
        request_id = context.notes[_REQUEST_ID] = f"{self._rng.getrandbits(128):032X}"
        for message in _traced(context):
            self._writer.add(
                SubBeforeTrace(
                    at_ms=self._clock.now_ms(),
                    group=context.group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    message_keys=message.keys,
                    region=message.properties.get(Property.MSG_REGION),
                )
            )

    def after_consume(self, context: ConsumeContext) -> None:
        """Note how they fared."""
        messages = _traced(context)
        for message in messages:
            self._writer.add(
                SubAfterTrace(
                    at_ms=self._clock.now_ms(),
                    group=context.group,
                    request_id=context.notes[_REQUEST_ID],
                    message_id=message.message_id,
                    cost_ms=context.cost_ms // len(messages),
                    success=context.succeeded,
                    message_keys=message.keys,
                    context_code=_code(context),
                )
            )


def _traced(context: ConsumeContext) -> list[ReceivedMessage]:
    return [
        message
        for message in context.messages
        if message.properties.get(Property.TRACE_ON) != "false"
    ]


def _code(context: ConsumeContext) -> ConsumeContextCode:
    if context.error is not None:
        return ConsumeContextCode.EXCEPTION
    if context.is_timeout:
        return ConsumeContextCode.TIMEOUT
    if context.verdict is not None and not context.verdict.fate.is_success:
        return ConsumeContextCode.FAILED
    return ConsumeContextCode.SUCCESS
