"""Why a message could not be sent, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import BrokerBusy, BrokerError, CallTimeout, SendFailed, SkylarkError, TransportError
from ..model.queue import MessageQueue
from ..protocol.codes import ResponseCode
from .hints import hint_for
from .outgoing import Outgoing

BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})


def refused_send(
    error: BrokerError, queue: MessageQueue, tried: Sequence[str], is_ambiguous: bool
) -> SendFailed:
    """A broker said no, and another try would not help."""
    kind = BrokerBusy if error.code in BUSY_CODES else SendFailed
    return kind(
        f"broker {queue.broker_name} ({error.address}) refused a message for topic"
        f" {queue.topic!r} with code {error.code}: {error.remark or 'no remark'}",
        hint=hint_for(error.code),
        code=error.code,
        broker=queue.broker_name,
        brokers_tried=tuple(tried),
        is_ambiguous=is_ambiguous,
    )


def failed_send(
    outgoing: Outgoing,
    tried: Sequence[str],
    cost_ms: int,
    last_error: SkylarkError | None,
    is_ambiguous: bool,
) -> SendFailed:
    """No try went well, or no time was left for one."""
    code = last_error.code if isinstance(last_error, BrokerError) else None
    if isinstance(last_error, TransportError):
        hint = (
            "it may be stored all the same: send it again only if that is harmless"
            if is_ambiguous
            else "start the broker or check the network, then send again"
        )
        if isinstance(last_error, CallTimeout):
            hint += "; raise send_msg_timeout_ms if brokers are slow"
    else:
        hint = hint_for(code)
    return SendFailed(
        f"Send [{len(tried)}] times, still failed, cost [{cost_ms}]ms, Topic: {outgoing.topic},"
        f" BrokersSent: [{', '.join(tried)}], last: {last_error or 'no time was left'}",
        hint=hint,
        code=code,
        broker=tried[-1] if tried else None,
        brokers_tried=tuple(tried),
        is_ambiguous=is_ambiguous,
    )
