"""What operators do with messages that wait, and with messages that repeat."""

from __future__ import annotations

import logging
import re

from ....errors import BrokerError, ConfigError
from ....model.message import Property, StoredMessage
from ....model.names import check_topic_name
from ....model.recurrence import parse_recurrence
from ....model.topic import TIMER_TOPIC, UNSENDABLE_TOPICS
from ....protocol.bodies import WaitingList, WaitingMessage
from ....protocol.codes import ResponseCode
from ....protocol.exchange import Peer, Request, Response
from ....protocol.headers import timer as headers
from ....protocol.properties import (
    PROPERTIES_BYTES_MAX,
    encode_text,
    format_properties,
    parse_properties,
    require_sound_properties,
)
from ....store import PutMessage, PutResult, PutStatus
from ....store.timer.store import DueTimer
from ...deferral import TIMER_QUEUE
from ...durability import is_safe
from ...parts import Parts
from ...timers import REPEATS_MAX

logger = logging.getLogger(__name__)

_COUNT_MAX = 1_000
_ID_MAX = 255
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_FORBIDDEN = (Property.TRAN_MSG, Property.DELAY, Property.TIMER_DEL_UNIQKEY)


class TimerAdmin:
    """Lists, cancels, fires and repeats."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._timers = parts.timers
        self._store = parts.store

    def waiting(self, request: Request[headers.ListTimersRequest], peer: Peer) -> Response:
        """Serve LIST_TIMERS."""
        header = request.header
        count_max = max(1, min(header.count_max, _COUNT_MAX))
        if header.repeats:
            shown = [
                self._shown(repeat.due_ms, repeat.queue_offset, stored)
                for repeat in sorted(self._timers.repeats.values(), key=lambda r: r.due_ms)
                if (stored := self._timers.stored(repeat.queue_offset)) is not None
            ]
            total = len(shown)
        else:
            after = DueTimer(header.after_ms, header.after_offset)
            shown = [
                self._shown(item.due_ms, item.queue_offset, item.message)
                for item in self._timers.waiting(after, count_max, header.topic)
            ]
            total = self._timers.pending_count
        return Response(body=WaitingList(tuple(shown[:count_max]), total).to_json())

    @staticmethod
    def _shown(due_ms: int, queue_offset: int, stored: StoredMessage) -> WaitingMessage:
        properties = stored.properties
        queue_text = properties.get(Property.REAL_QID, "0")
        count_text = properties.get(Property.REPEAT_COUNT, "0")
        return WaitingMessage(
            topic=properties.get(Property.REAL_TOPIC, ""),
            queue_id=int(queue_text) if queue_text.isdigit() else 0,
            due_ms=due_ms,
            stored_at_ms=stored.stored_at_ms,
            queue_offset=queue_offset,
            offset_id=stored.offset_id,
            unique_id=stored.unique_id,
            keys=properties.get(Property.KEYS),
            tag=stored.tag,
            size_bytes=stored.size_bytes,
            repeat_id=properties.get(Property.REPEAT_ID),
            rule=properties.get(Property.REPEAT_RULE),
            zone=properties.get(Property.REPEAT_ZONE),
            repeat_count=int(count_text) if count_text.isdigit() else 0,
        )

    async def cancel(self, request: Request[headers.CancelTimerRequest], peer: Peer) -> Response:
        """Serve CANCEL_TIMER."""
        self._require_master()
        found = self._found(request.header.id, request.header.topic)
        result = self._timers.cancel(found)
        if result is None:
            raise _missing(request.header.id)
        await self._stored(result)
        logger.info("id=%s timers=%d cancelled by peer=%s", request.header.id, len(found),
                    peer.address)  # fmt: skip
        return Response(header=headers.TimerResponse(count=len(found)))

    async def fire(self, request: Request[headers.FireTimerRequest], peer: Peer) -> Response:
        """Serve FIRE_TIMER."""
        self._require_master()
        found = self._found(request.header.id, request.header.topic)
        status = self._timers.fire(found)
        if status is None:
            raise _missing(request.header.id)
        if status is not PutStatus.PUT_OK:
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, status.name)
        await self._flushed(self._store.log.appended)
        logger.info("id=%s timers=%d fired by peer=%s", request.header.id, len(found),
                    peer.address)  # fmt: skip
        return Response(header=headers.TimerResponse(count=len(found)))

    def _found(self, text: str, topic: str | None) -> list[int]:
        found = self._timers.find(text.strip()) if len(text) <= _ID_MAX else []
        if topic is not None:
            found = [
                offset
                for offset in found
                if (stored := self._timers.stored(offset)) is not None
                and stored.properties.get(Property.REAL_TOPIC) == topic
            ]
        if not found:
            raise _missing(text)
        return found

    async def add(self, request: Request[headers.AddRepeatRequest], peer: Peer) -> Response:
        """Serve ADD_REPEAT."""
        self._require_master()
        header = request.header
        topic = self._parts.topics.get(header.topic)
        check_topic_name(header.topic)
        if header.topic in UNSENDABLE_TOPICS:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"topic {header.topic} is written by the broker alone"
            )
        if topic is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {header.topic} not exist; make it with updateTopic first",
            )
        if not -1 <= header.queue_id < topic.write_queue_nums:
            raise _illegal(
                f"queue {header.queue_id} does not exist, topic {topic.name} has "
                f"{topic.write_queue_nums}"
            )
        if len(request.body) > self._store.config.max_message_size:
            raise _illegal(f"the body has {len(request.body)} bytes")
        rule, due_ms = self._rule(header)
        repeat_id = header.id or f"repeat-{self._parts.rng.getrandbits(64):016x}"
        if not _ID.fullmatch(repeat_id):
            raise _illegal(f"id {repeat_id[:64]!r}: use letters, digits, - and _, at most 200")
        if repeat_id in self._timers.repeats:
            raise _illegal(f"there is a message that repeats with the id {repeat_id}; cancel it")
        if len(self._timers.repeats) >= REPEATS_MAX:
            raise _illegal(f"{REPEATS_MAX} messages repeat already, more are not allowed")
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._parts.rng.randrange(max(1, topic.write_queue_nums))
        properties = self._properties(header)
        properties |= {
            Property.REAL_TOPIC: topic.name,
            Property.REAL_QID: str(queue_id),
            Property.TIMER_OUT_MS: str(due_ms),
            Property.REPEAT_ID: repeat_id,
            Property.REPEAT_RULE: rule,
            Property.REPEAT_ZONE: header.zone,
            Property.REPEAT_COUNT: "0",
            Property.UNIQ_KEY: repeat_id,
        }
        text = encode_text(format_properties(properties, as_read=True))
        if len(text) > PROPERTIES_BYTES_MAX:
            raise _illegal(f"properties take {len(text)} bytes")
        host = self._parts.identity.store_host
        now_ms = self._parts.clock.now_ms()
        result = self._timers.add_repeat(
            PutMessage(TIMER_TOPIC, TIMER_QUEUE, bytes(request.body), text, now_ms, host, host)
        )
        await self._stored(result)
        logger.info("repeat=%s topic=%s rule=%r by peer=%s", repeat_id, topic.name, rule,
                    peer.address)  # fmt: skip
        return Response(header=headers.TimerResponse(count=1, id=repeat_id, due_ms=due_ms))

    def _rule(self, header: headers.AddRepeatRequest) -> tuple[str, int]:
        now_ms = self._parts.clock.now_ms()
        try:
            recurrence = parse_recurrence(header.rule, header.zone)
        except ConfigError as error:
            raise _illegal(str(error)) from None
        due_ms = header.first_ms
        if due_ms is None:
            due_ms = recurrence.next_after(now_ms)
        limit_ms = self._parts.live.current.timer_max_delay_sec * 1000
        if due_ms is None or due_ms < 0 or due_ms - now_ms > limit_ms:
            raise _illegal(
                f"the first time is too far ahead: at most {limit_ms // 1000} seconds are allowed "
                "(timerMaxDelaySec)"
            )
        return str(recurrence), due_ms

    @staticmethod
    def _properties(header: headers.AddRepeatRequest) -> dict[str, str]:
        text = encode_text(header.properties or "")
        require_sound_properties(text)
        properties = parse_properties(text)
        for name in _FORBIDDEN:
            if name in properties:
                raise _illegal(f"a message that repeats can have no {name}")
        properties.pop(Property.WAIT, None)
        return properties

    def _require_master(self) -> None:
        if self._store.is_replica:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, "this is a replica; ask the master of its name"
            )

    async def _stored(self, result: PutResult) -> None:
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, result.status.name)
        await self._flushed(result.end)

    async def _flushed(self, end: int) -> None:
        if self._store.config.is_sync_flush and not is_safe(self._store, end):
            await self._parts.waiter.flushed(end)


def _missing(text: str) -> BrokerError:
    return BrokerError(
        ResponseCode.QUERY_NOT_FOUND,
        f"nothing that waits here has the id {text[:64]!r}: it was delivered, or never was; "
        "skylark schedule list shows what waits",
    )


def _illegal(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {problem}")
