"""SendReceipt: what a producer knows of a message that a broker has stored."""

from __future__ import annotations

from typing import NamedTuple

from ..model.queue import MessageQueue
from ..remote import SendStatus


class SendReceipt(NamedTuple):
    """Where a message went. A status other than SEND_OK means stored, and not yet as safe as asked.

    message_id is the producer's own id and stays the same over retries; offset_id says where this
    copy lies (Java's getMsgId and getOffsetMsgId).
    """

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool = False
