"""What operators ask about messages: where they are, and what became of them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from ..client.received import ReceivedMessage
from ..errors import BrokerError, ClientError, InvalidBody
from ..model.group import MessageModel
from ..model.message import HostAddress, StoredMessage
from ..model.queue import MessageQueue
from ..model.route import BrokerData
from .asking import each
from .figures import FoundMessage, MessageTrack, TrackState
from .members import MemberActions
from .reach import master_address

_OFFSET_ID: Final = re.compile(r"([0-9A-F]{8}|[0-9A-F]{32})([0-9A-F]{8})([0-9A-F]{16})", re.I)


class MessageActions(MemberActions):
    """The part of AdminClient that is about messages."""

    async def message(self, message_id: str, topic: str | None = None) -> FoundMessage:
        """The message with an id of either kind, and what became of it; raises ClientError.

        An offset id says by itself where the message is; the id that a producer gave does not, and
        needs the topic.
        """
        found = await self._by_offset_id(message_id, is_sure=topic is None)
        if found is None and topic is not None:
            await self._route(topic)
            found = next(
                iter(await self._client.query_messages(topic, message_id.strip(), unique=True)),
                None,
            )
        if found is None:
            raise ClientError(
                f"no message {f'of {topic} ' if topic else ''}has the id {message_id[:64]}",
                hint="check the topic; messages go when their log file expires"
                if topic
                else "for an id that a producer gave, name the topic as well",
            )
        return FoundMessage(found, _body_of(found), await self.tracks(found))

    async def _by_offset_id(self, text: str, *, is_sure: bool) -> StoredMessage | None:
        host, offset = _place_of(text)
        if host is None:
            return None
        for data in await self.brokers():
            if host in data.addresses.values():
                try:
                    return await self._remote(host).view_message(offset)
                except BrokerError:
                    if is_sure:
                        raise
        return None

    async def messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[FoundMessage]:
        """The messages of a topic with a key, oldest first."""
        await self._route(topic)
        found = await self._client.query_messages(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        return [FoundMessage(message, _body_of(message)) for message in found]

    async def tracks(self, message: StoredMessage) -> tuple[MessageTrack, ...]:
        """What became of a message in every group of its topic."""
        address = str(message.store_host)
        brokers = await self.brokers()
        broker = next((b for b in brokers if address in b.addresses.values()), None)
        if broker is None:
            return ()
        groups = await self._remote(address).get_groups_of_topic(message.topic)

        async def track(group: str) -> MessageTrack:
            return MessageTrack(group, await self._track(group, message, broker))

        return tuple(await each(track, sorted(groups)))

    async def _track(self, group: str, message: StoredMessage, broker: BrokerData) -> TrackState:
        found = await self._connections(group, [broker])
        if found is None:
            return TrackState.OFFLINE
        if found.message_model == MessageModel.BROADCASTING:
            return TrackState.BROADCAST
        lags, _ = await self._progress(group, message.topic, [broker])
        place = next((lag for lag in lags if lag.queue_id == message.queue_id), None)
        if place is None:
            return TrackState.UNKNOWN
        if place.consumer_offset <= message.queue_offset:
            return TrackState.NOT_YET
        wanted = found.wanted.get(message.topic)
        if wanted is not None and wanted.tags and message.tag not in wanted.tags:
            return TrackState.FILTERED
        return TrackState.CONSUMED

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> str:
        """Let one member consume one message now; returns how that went, as CR_SUCCESS."""
        host, _ = _place_of(offset_id)
        for data in await self.brokers():
            if host in data.addresses.values():
                remote = self._remote(master_address(data))
                result = await remote.consume_directly(group, client_id, offset_id)
                return str(result.consume_result.value)
        raise ClientError(
            f"message id {offset_id[:64]} names no broker here",
            hint="give the offset id, not the one of the producer",
        )


def _place_of(message_id: str) -> tuple[str | None, int]:
    """Which broker an offset id names, and where in its log; None for what is none."""
    matched = _OFFSET_ID.fullmatch(message_id.strip())
    if matched is None or int(matched[2], 16) > 0xFFFF:
        return None, 0
    ip = str(ipaddress.ip_address(bytes.fromhex(matched[1])))
    return str(HostAddress(ip, int(matched[2], 16))), int(matched[3], 16)


def _body_of(message: StoredMessage) -> bytes:
    """The body as its producer gave it, or as it is stored where that cannot be had."""
    queue = MessageQueue(message.topic, "", message.queue_id)
    try:
        return ReceivedMessage(message, queue, message.topic).body
    except InvalidBody:
        return message.body
