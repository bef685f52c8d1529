"""What operators ask about groups' progress, and how they change it."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ....errors import BrokerError, InvalidBody, TransportError
from ....model.queue import MessageQueue
from ....model.topic import TopicConfig
from ....protocol.bodies import (
    BrokerConsumeStatsBody,
    ConsumeOffset,
    ConsumerStatusBody,
    ConsumeStatsBody,
    CorrectionOffsetBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
)
from ....protocol.codes import Language, RequestCode, ResponseCode
from ....protocol.command import Command
from ....protocol.exchange import AnyRequest, Peer, Request, Response
from ....protocol.headers import admin_groups as headers
from ...clients import Member
from ...parts import Parts

logger = logging.getLogger(__name__)

STATUS_TIMEOUT_MS: Final = 5_000
NEWEST: Final = -1  # In place of a time: the end of every queue.
_LONG_MAX: Final = 2**63 - 1


class OffsetAdmin:
    """Shows how far groups are, and sets them elsewhere."""

    def __init__(self, parts: Parts) -> None:
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._identity = parts.identity
        self._store = parts.store
        self._stats = parts.stats
        self._delay = parts.delay
        self._clock = parts.clock

    # How far groups are.

    def consume_stats(
        self, request: Request[headers.GetConsumeStatsRequest], peer: Peer
    ) -> Response:
        """Serve GET_CONSUME_STATS."""
        group = request.header.consumer_group
        wanted = request.header.topic
        topics = [wanted] if wanted else sorted(self._offsets.topics_of(group))
        offsets: dict[MessageQueue, ConsumeOffset] = {}
        rate = 0.0
        for topic in self._consumed(group, topics):
            offsets |= self._progress(group, topic, range(topic.read_queue_nums))
            rate += self._stats.get_rate(group, topic.name)
        return Response(body=ConsumeStatsBody(offsets, rate).to_json())

    def all_consume_stats(
        self, request: Request[headers.GetBrokerConsumeStatsRequest], peer: Peer
    ) -> Response:
        """Serve GET_BROKER_CONSUME_STATS."""
        topics_of: dict[str, list[str]] = {}
        for topic_name, group in sorted(self._offsets.pairs()):
            topics_of.setdefault(group, []).append(topic_name)
        groups: list[Mapping[str, tuple[ConsumeStatsBody, ...]]] = []
        behind = 0
        for group in self._groups.groups:
            shown = []
            for topic in self._consumed(group, topics_of.get(group, ())):
                if request.header.is_order and not topic.order:
                    continue
                offsets = self._progress(group, topic, range(topic.write_queue_nums))
                behind += sum(at.broker_offset - at.consumer_offset for at in offsets.values())
                shown.append(ConsumeStatsBody(offsets, self._stats.get_rate(group, topic.name)))
            groups.append({group: tuple(shown)})
        body = BrokerConsumeStatsBody(self._identity.address, tuple(groups), behind)
        return Response(body=body.to_json())

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Those topics that exist, and that a group still wants if it has members."""
        members = self._clients.consumer_group(group)
        for name in topics:
            topic = self._topics.get(name)
            is_wanted = (
                members is None or not members.subscriptions or name in members.subscriptions
            )
            if topic is not None and is_wanted:
                yield topic

    def _progress(
        self, group: str, topic: TopicConfig, queue_ids: Iterable[int]
    ) -> dict[MessageQueue, ConsumeOffset]:
        found = {}
        for queue_id in queue_ids:
            offset = self._offsets.get(topic.name, group, queue_id) or 0
            stored_at_ms = 0
            if offset:
                stored_at_ms = max(0, self._store.stored_at_ms(topic.name, queue_id, offset - 1))
            queue = MessageQueue(topic.name, self._identity.name, queue_id)
            found[queue] = ConsumeOffset(
                broker_offset=self._store.max_offset(topic.name, queue_id),
                consumer_offset=offset,
                last_timestamp=stored_at_ms,
            )
        return found

    def time_span(
        self, request: Request[headers.QueryConsumeTimeSpanRequest], peer: Peer
    ) -> Response:
        """Serve QUERY_CONSUME_TIME_SPAN."""
        header = request.header
        topic = self._topics.get(header.topic)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:127]}] not exist")
        spans = tuple(
            self._span(header.group, topic.name, queue_id)
            for queue_id in range(topic.write_queue_nums)
        )
        return Response(body=QueryConsumeTimeSpanBody(spans).to_json())

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first_ms = store.earliest_stored_at_ms(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        last_ms = store.stored_at_ms(topic, queue_id, end - 1)
        offset = self._offsets.get(topic, group, queue_id) or 0
        read_ms = store.stored_at_ms(topic, queue_id, offset - 1) if offset else first_ms
        next_ms = store.stored_at_ms(topic, queue_id, offset) if offset < end else -1
        return QueueTimeSpan(
            queue=MessageQueue(topic, self._identity.name, queue_id),
            min_timestamp=first_ms,
            max_timestamp=last_ms,
            consume_timestamp=read_ms,
            delay_time=self._clock.now_ms() - next_ms if next_ms >= 0 else 0,
            min_timestamp_text=_time_text(first_ms),
            max_timestamp_text=_time_text(last_ms),
            consume_timestamp_text=_time_text(read_ms),
        )

    def correction(
        self, request: Request[headers.QueryCorrectionOffsetRequest], peer: Peer
    ) -> Response:
        """Serve QUERY_CORRECTION_OFFSET: by queue, the least offset of all groups but some.

        A queue in which one group is already behind all others gets the largest number there is.
        """
        header = request.header
        passed_over = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic) - passed_over:
            for queue_id, offset in self._offsets.of(header.topic, group).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self._offsets.of(header.topic, header.compare_group).items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = _LONG_MAX
        return Response(body=CorrectionOffsetBody(least).to_json())

    # For replicas.

    def all_offsets(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_ALL_CONSUMER_OFFSET."""
        return Response(body=self._offsets.body().to_json())

    def all_delay_offsets(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_ALL_DELAY_OFFSET."""
        return Response(body=self._delay.body().to_json())

    # Changes.

    def reset(self, request: Request[headers.ResetOffsetRequest], peer: Peer) -> Response:
        """Serve INVOKE_BROKER_TO_RESET_OFFSET.

        The offsets change here at once, and the members are told; a commit of one that has not
        heard of it yet is not taken. Where nobody is online the tool sets the offsets itself.
        """
        header = request.header
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic[:127]}",
            )
        members = self._clients.consumer_group(header.group)
        if members is None and not self._offsets.of(topic.name, header.group):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"The consumer group <{header.group[:255]}> not exist"
            )
        if members is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group[:255]} "
                f"Topic: {topic.name} Timestamp: {header.timestamp}",
            )
        targets = {
            MessageQueue(topic.name, self._identity.name, queue_id): self._target(
                topic.name, header.group, queue_id, header.timestamp, is_force=header.is_force
            )
            # Queues that are no longer written to, or not yet read, are the group's as well.
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        }
        for queue, offset in targets.items():
            self._offsets.reset(topic.name, header.group, queue.queue_id, offset)
        body = ResetOffsetBody(targets)
        self._push_reset(members.members.values(), header, body)
        logger.info(
            "topic=%s group=%s reset to %d, force %s, by peer=%s",
            topic.name, header.group, header.timestamp, header.is_force, peer.address,
        )  # fmt: skip
        return Response(body=body.to_json())

    def _target(
        self, topic: str, group: str, queue_id: int, timestamp_ms: int, *, is_force: bool
    ) -> int:
        if timestamp_ms == NEWEST:
            target = int(self._store.max_offset(topic, queue_id))
        else:
            target = int(self._store.offset_by_time(topic, queue_id, timestamp_ms))
        now = self._offsets.get(topic, group, queue_id)
        if now is not None and target > now and not is_force:
            return int(now)  # Skipping messages is asked for by name only.
        return target

    def _push_reset(
        self, members: Iterable[Member], header: headers.ResetOffsetRequest, body: ResetOffsetBody
    ) -> None:
        fields = headers.ResetOffsetRequest(
            topic=header.topic, group=header.group, timestamp=header.timestamp
        ).to_fields()
        as_map, as_list = body.to_json(), body.to_list_json()
        for member in members:
            # The C++ client reads nothing but a list; whoever asks has no part in that.
            form = as_list if member.language == Language.CPP else as_map
            self._clients.notify(
                (member.peer,), RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, form
            )

    async def status(
        self, request: Request[headers.GetConsumerStatusRequest], peer: Peer
    ) -> Response:
        """Serve INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ask every member, or the one named."""
        header = request.header
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group[:255]}]",
            )
        asked = [
            member
            for member in group.members.values()
            if not header.client_addr or member.client_id == header.client_addr
        ]
        fields = headers.GetConsumerStatusRequest(topic=header.topic, group=header.group)
        answers = await asyncio.gather(
            *(self._ask_status(member, fields.to_fields()) for member in asked)
        )
        consumers = {
            member.client_id: queues
            for member, queues in zip(asked, answers, strict=True)
            if queues is not None
        }
        return Response(body=ConsumerStatusBody(consumers=consumers).to_json())

    @staticmethod
    async def _ask_status(
        member: Member, fields: dict[str, str]
    ) -> Mapping[MessageQueue, int] | None:
        """One member's own account; None where it does not give one, as the C++ client."""
        command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        try:
            answer = await member.peer.call(command, STATUS_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                logger.info("client=%s gave no status: %s", member.client_id, answer.remark)
                return None
            return ConsumerStatusBody.from_json(answer.body).queues
        except (TransportError, InvalidBody) as error:
            logger.info("client=%s gave no status: %s", member.client_id, error)
            return None

    def clone(self, request: Request[headers.CloneGroupOffsetRequest], peer: Peer) -> Response:
        """Serve CLONE_GROUP_OFFSET."""
        header = request.header
        self._groups.require(header.dest_group)
        topics = (
            [header.topic] if header.topic else sorted(self._offsets.topics_of(header.src_group))
        )
        source = self._clients.consumer_group(header.src_group)
        for name in topics:
            is_wanted = header.offline or source is None or name in source.subscriptions
            if self._topics.get(name) is not None and is_wanted:
                self._offsets.clone(name, header.src_group, header.dest_group)
                logger.info(
                    "topic=%s group=%s has the offsets of %s, by peer=%s",
                    name, header.dest_group, header.src_group, peer.address,
                )  # fmt: skip
        return Response()


def _time_text(time_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(max(0, time_ms) // 1000)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{max(0, time_ms) % 1000:03d}"
