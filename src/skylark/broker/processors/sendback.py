"""Giving messages back: a consumer has failed, and wants the message again later."""

from __future__ import annotations

import random

from ...errors import BrokerError, InvalidRecord
from ...model.message import Property
from ...model.topic import SCHEDULE_TOPIC, is_retry_topic
from ...protocol.codes import ResponseCode
from ...protocol.exchange import Peer, Request, Response
from ...protocol.headers import ConsumerSendMsgBackRequest
from ...protocol.properties import encode_text, format_properties
from ...protocol.record import decode_record, pack_host
from ...store import MessageStore, PutMessage, PutStatus
from .. import retry
from ..config import LiveConfig
from ..flow import FlowControl
from ..groups import GroupTable
from ..identity import Identity
from ..observer import Observer
from ..topics import TopicTable
from .send import FlushWaiter


class SendBackProcessor:
    """Stores failed messages for another try, or as dead letters."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        *,
        topics: TopicTable,
        groups: GroupTable,
        store: MessageStore,
        flusher: FlushWaiter,
        flow: FlowControl,
        rng: random.Random,
        observer: Observer,
    ) -> None:
        self._live = live
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._store = store
        self._flusher = flusher
        self._flow = flow
        self._rng = rng
        self._observer = observer
        self._level_max = len(store.config.delay_levels_ms)

    async def send_back(self, request: Request[ConsumerSendMsgBackRequest], peer: Peer) -> Response:
        """Serve CONSUMER_SEND_MSG_BACK.

        The consumer forgets the message when this succeeds. So with SYNC_FLUSH the copy is on the
        disk before, whatever RocketMQ does.
        """
        header = request.header
        group = self._groups.require(header.group)
        config = self._live.current
        if not config.broker_permission & 2:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_name}] sending message is forbidden",
            )
        refusal = self._flow.refusal()
        if refusal is not None:
            raise BrokerError(*refusal)
        if group.retry_queue_nums <= 0:
            return Response()  # The operator wants no retries: the message is done with.
        topic = retry.retry_topic_of(self._topics, group, unit_mode=header.unit_mode)
        if not topic.is_writable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden"
            )
        record = self._store.get_by_physical_offset(header.offset) if header.offset >= 0 else None
        if record is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: it is gone, or never was",
            )
        try:
            failed = decode_record(record)
        except InvalidRecord as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed: {error}"
            ) from None
        target = retry.destination(
            self._topics,
            group,
            reconsume_times=failed.reconsume_times,
            level=header.delay_level,
            tries=retry.tries_max(group, header.max_reconsume_times, request.version),
            unit_mode=header.unit_mode,
        )
        properties = dict(failed.properties)
        properties.setdefault(Property.RETRY_TOPIC, failed.topic)
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, failed.offset_id)
        properties[Property.WAIT] = "false"
        name = target.topic.name
        queue_id = self._rng.randrange(max(1, target.topic.write_queue_nums))
        # Where it came from by delay is history; these are set anew below.
        for key in (Property.DELAY, Property.REAL_TOPIC, Property.REAL_QID):
            properties.pop(key, None)
        if target.is_dead:
            properties[Property.DELAY] = "0"
        else:
            level = min(target.level, self._level_max)
            properties[Property.DELAY] = str(level)
            properties[Property.REAL_TOPIC] = name
            properties[Property.REAL_QID] = str(queue_id)
            name, queue_id = SCHEDULE_TOPIC, level - 1
        (result,) = self._store.put(
            [
                PutMessage(
                    name,
                    queue_id,
                    failed.body,
                    encode_text(format_properties(properties, as_read=True)),
                    failed.born_at_ms,
                    pack_host(*failed.born_host),
                    self._identity.store_host,
                    failed.flag,
                    failed.sys_flag & ~0xC,  # A committed half message is an ordinary one now.
                    failed.reconsume_times + 1,
                )
            ]
        )
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, result.status.name)
        if self._store.config.is_sync_flush:
            self._flow.begin_wait(1)
            try:
                await self._flusher.flushed(result.end)
            finally:
                self._flow.end_wait(1)
        origin = properties[Property.RETRY_TOPIC] if is_retry_topic(failed.topic) else failed.topic
        self._observer.sent_back(group.group_name, origin, is_dead=target.is_dead)
        return Response()
