"""What to do next, by the code that a broker answered."""

from __future__ import annotations

from typing import Final

from ..protocol.codes import ResponseCode

_OTHER: Final = "see the remark, and the broker's log at that time"

_HINTS: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_ERROR: _OTHER,
    ResponseCode.SYSTEM_BUSY: (
        "the broker is overloaded, its remark names the cause: send slower or retry after a pause"
        " (retry_system_busy=True does that)"
    ),
    ResponseCode.FLOW_CONTROL: "the broker holds senders back: send slower or retry after a pause",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server is too old for this, or no broker at all",
    ResponseCode.MESSAGE_ILLEGAL: "make body, properties or batch smaller (maxMessageSize)",
    ResponseCode.SERVICE_NOT_AVAILABLE: (
        "the broker cannot store now: look at its disk, its role and its log"
    ),
    ResponseCode.NO_PERMISSION: "make topic and broker writable (perm, brokerPermission)",
    ResponseCode.TOPIC_NOT_EXIST: (
        "create the topic, or let brokers create topics (autoCreateTopicEnable)"
    ),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group, or let brokers create groups (autoCreateSubscriptionGroup)"
    ),
}


def hint_for(code: int | None) -> str:
    """What a caller may do about an answer with this code."""
    return _OTHER if code is None else _HINTS.get(code, _OTHER)
