"""Request and reply: a message that asks, and the message that answers it.

The requester marks its message with a correlation id, its own client id and how long it waits; the
replier copies the three into its answer, which the broker pushes over the requester's connection
instead of letting it be pulled. So a requester must have sent a heartbeat to every broker that may
get the reply.

    property          of the request        of the reply
    CORRELATION_ID    a UUID                the same
    REPLY_TO_CLIENT   the requester's id    the same
    TTL               milliseconds          the same
    MSG_TYPE                                "reply"
    CLUSTER           set by the broker     names the topic: <cluster>_REPLY_TOPIC
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid

from ..clock import Clock
from ..errors import InvalidMessage
from ..model.message import HostAddress, Message, Property, StoredMessage, SysFlag
from ..model.topic import reply_topic
from ..protocol.headers import PushReplyMessageRequest
from ..protocol.properties import parse_properties

logger = logging.getLogger(__name__)

REPLY_TYPE = "reply"
_NOWHERE = HostAddress("0.0.0.0", 0)  # noqa: S104, no address to listen on but none to name


class ReplyTable:
    """Who waits for which reply."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self) -> tuple[str, asyncio.Future[StoredMessage]]:
        """Return a new correlation id and the future of its reply."""
        correlation_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        answer: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        return correlation_id, answer

    def forget(self, correlation_id: str) -> None:
        """Stop waiting; a late reply is dropped."""
        self._waiting.pop(correlation_id, None)

    def arrived(self, header: PushReplyMessageRequest, body: bytes) -> bool:
        """A reply has come; return whether anybody waited for it."""
        properties = parse_properties(header.properties or "")
        properties[Property.ARRIVE_TIME] = str(self._clock.now_ms())
        correlation_id = properties.get(Property.CORRELATION_ID, "")
        answer = self._waiting.pop(correlation_id, None)
        if answer is None or answer.done():
            logger.info("correlation=%s a reply that nobody waits for", correlation_id[:64])
            return False
        answer.set_result(_message_of(header, properties, body))
        return True


def request_properties(correlation_id: str, client_id: str, ttl_ms: int) -> dict[str, str]:
    """Return what makes a message a request."""
    return {
        Property.CORRELATION_ID: correlation_id,
        Property.REPLY_TO_CLIENT: client_id,
        Property.TTL: str(ttl_ms),
    }


def reply_to(request: StoredMessage, body: bytes) -> tuple[Message, dict[str, str]]:
    """Return the reply to a request, and the properties that make it one."""
    cluster = request.properties.get(Property.CLUSTER)
    copied = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
    marks = {name: request.properties[name] for name in copied if name in request.properties}
    if not cluster or Property.CORRELATION_ID not in marks or Property.REPLY_TO_CLIENT not in marks:
        raise InvalidMessage(
            f"message {request.unique_id or request.offset_id} is no request",
            hint="reply only to messages that were sent with Producer.request",
        )
    marks[Property.MSG_TYPE] = REPLY_TYPE
    return Message(reply_topic(cluster), body), marks


def _message_of(
    header: PushReplyMessageRequest, properties: dict[str, str], body: bytes
) -> StoredMessage:
    return StoredMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        body=body,
        properties=properties,
        flag=header.flag,
        sys_flag=header.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        born_at_ms=header.born_timestamp,
        born_host=_host_of(header.born_host),
        stored_at_ms=header.store_timestamp,
        store_host=_host_of(header.store_host),
        physical_offset=0,
        size_bytes=len(body),
        body_crc=0,
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        magic=0,
    )


def _host_of(text: str) -> HostAddress:
    host, _, port = text.lstrip("/").rpartition(":")
    return HostAddress(host, int(port)) if port.isascii() and port.isdigit() else _NOWHERE
