"""Half messages: what a transaction leaves in the log, as RocketMQ 4.9.8 writes and reads it.

    record    topic, queue                       holds
    half      RMQ_SYS_TRANS_HALF_TOPIC, 0        the message; REAL_TOPIC and REAL_QID say where it
                                                 is meant to go, PGROUP who may end it
    copy      the same                           a half again, before each check, with
                                                 TRANSACTION_CHECK_TIMES; the half before it is over
    real      REAL_TOPIC, REAL_QID               a commit: sysFlag 8, preparedTransactionOffset is
                                                 where the half lies
    op        RMQ_SYS_TRANS_OP_HALF_TOPIC, 0     tag d; the body is the queue offset of a half that
                                                 is over
    given up  TRANS_CHECK_MAX_TIME_TOPIC, 0      a half that was checked too often

Our ops say more, in properties that RocketMQ passes over: TRAN_STATE, how the half ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from ..errors import BrokerError, InvalidName, LocalProtocolError
from ..model.message import TRANSACTION_TYPE_MASK, Property, StoredMessage, TransactionType
from ..model.names import check_topic_name
from ..model.topic import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    UNSENDABLE_TOPICS,
)
from ..protocol.properties import LazyProperties, encode_properties
from ..protocol.record import encode_record, pack_host
from ..store import PutMessage
from .deferral import TIMER_PROPERTIES, TIMER_QUEUE, defer

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"  # Its offsets are the progress, in Apache's files.
HALF_QUEUE: Final = 0
STATE_PROPERTY: Final = "TRAN_STATE"
SINCE_PROPERTY: Final = "TRAN_SINCE_MS"  # In copies: when the first half was stored.
_OP_TAG: Final = "d"
_DIGITS_MAX: Final = 12
_SECONDS_MAX: Final = 365 * 86_400


class Ending(StrEnum):
    """Why a half message is over."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    GIVEN_UP = "given-up"
    MOVED = "moved"  # Another copy of it goes on.
    DAMAGED = "damaged"


_ENDINGS: Final = {str(ending): ending for ending in Ending}


class TransactionId(NamedTuple):
    """Which transaction a half belongs to: all halves of one producer group with one unique id.

    A send that was repeated after a lost answer leaves two halves of one transaction; so does every
    check. A half without a unique id is a transaction by itself, known by its first queue offset.
    """

    group: str
    key: str


class Half(NamedTuple):
    """A half message that is not over."""

    queue_offset: int
    physical_offset: int
    size_bytes: int
    stored_at_ms: int
    id: TransactionId


class Target(NamedTuple):
    """Where a commit is stored."""

    topic: str
    queue_id: int


def id_of(properties: Mapping[str, str], queue_offset: int) -> TransactionId:
    """The transaction that a half belongs to."""
    group = properties.get(Property.PGROUP, "")
    key = properties.get(Property.UNIQ_KEY)
    if key is None:
        first = properties.get(Property.TRAN_PREPARED_QUEUE_OFFSET, str(queue_offset))
        key = f"@{first}"
    return TransactionId(group, key)


def check_times(properties: Mapping[str, str]) -> int:
    """How often a half was checked."""
    return _number(properties.get(Property.TRANSACTION_CHECK_TIMES)) or 0


def immunity_ms(properties: Mapping[str, str], timeout_ms: int) -> int:
    """For how long after it was stored a half is not checked."""
    seconds = _number(properties.get(Property.CHECK_IMMUNITY_TIME_IN_SECONDS))
    return timeout_ms if seconds is None else min(seconds, _SECONDS_MAX) * 1000


def since_ms(stored: StoredMessage) -> int:
    """When the first half of a transaction was stored."""
    return _number(stored.properties.get(SINCE_PROPERTY), digits_max=19) or stored.stored_at_ms


def _number(text: str | None, *, digits_max: int = _DIGITS_MAX) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > digits_max:
        return None
    return int(text)


def real_place(properties: Mapping[str, str]) -> Target | None:
    """Topic and queue that a half is meant for; None where it names none that it could go to."""
    topic = properties.get(Property.REAL_TOPIC, "")
    queue_id = _number(properties.get(Property.REAL_QID), digits_max=9)
    try:
        check_topic_name(topic)
    except InvalidName:
        return None
    if queue_id is None or topic in UNSENDABLE_TOPICS:
        return None
    return Target(topic, queue_id)


def commit_places(properties: Mapping[str, str], level_max: int) -> list[Target]:
    """Where a commit may have been stored: at the real place, or where deferred messages wait."""
    place = real_place(properties)
    if place is None:
        return []
    level = _number(properties.get(Property.DELAY))
    if level and level_max:
        return [Target(SCHEDULE_TOPIC, min(level, level_max) - 1)]
    if any(name in properties for name in TIMER_PROPERTIES):
        return [place, Target(TIMER_TOPIC, TIMER_QUEUE)]
    return [place]


# What is written.


def _text(stored: StoredMessage) -> bytes:
    properties = stored.properties
    if isinstance(properties, LazyProperties):
        return properties.text
    return encode_properties(properties, as_read=True)


def _again(
    stored: StoredMessage,
    target: Target,
    properties: bytes,
    sys_flag: int,
    prepared_offset: int = 0,
) -> PutMessage:
    return PutMessage(
        target.topic,
        target.queue_id,
        stored.body,
        properties,
        stored.born_at_ms,
        pack_host(*stored.born_host),
        pack_host(*stored.store_host),
        stored.flag,
        sys_flag,
        stored.reconsume_times,
        prepared_offset,
    )


def real_message(
    stored: StoredMessage, place: Target, *, level_max: int, now_ms: int, delay_ms_max: int
) -> PutMessage:
    """What a commit stores; a message with a delay or a time begins to wait."""
    text, target = _text(stored), place
    if Property.DELAY in stored.properties or any(
        name in stored.properties for name in TIMER_PROPERTIES
    ):
        properties = dict(stored.properties)
        try:
            found = defer(
                properties,
                *place,
                level_max=level_max,
                now_ms=now_ms,
                delay_ms_max=delay_ms_max,
            )
            target, text = Target(*found), encode_properties(properties, as_read=True)
        except (BrokerError, LocalProtocolError):
            # It was sound when it was sent. Rather too early than never.
            target = place
    sys_flag = stored.sys_flag & ~TRANSACTION_TYPE_MASK | TransactionType.COMMIT
    return _again(stored, target, text, sys_flag, stored.physical_offset)


def copy_message(stored: StoredMessage, times: int) -> PutMessage | None:
    """A half again, with how often it was checked; None where its properties have no room."""
    properties = dict(stored.properties)
    properties[Property.TRANSACTION_CHECK_TIMES] = str(times)
    properties.setdefault(Property.TRAN_PREPARED_QUEUE_OFFSET, str(stored.queue_offset))
    properties[SINCE_PROPERTY] = str(since_ms(stored))
    try:
        text = encode_properties(properties, as_read=True)
    except LocalProtocolError:
        return None
    return _again(stored, Target(HALF_TOPIC, HALF_QUEUE), text, stored.sys_flag)


def resumed_message(stored: StoredMessage) -> PutMessage:
    """A half that was given up, to be checked from the beginning; may raise LocalProtocolError."""
    properties = dict(stored.properties)
    properties[Property.TRANSACTION_CHECK_TIMES] = "0"
    properties.pop(Property.TRAN_PREPARED_QUEUE_OFFSET, None)
    properties.pop(SINCE_PROPERTY, None)
    text = encode_properties(properties, as_read=True)
    return _again(stored, Target(HALF_TOPIC, HALF_QUEUE), text, stored.sys_flag)


def given_up_message(stored: StoredMessage) -> PutMessage:
    """A half as it is put aside for an operator."""
    target = Target(TRANS_CHECK_MAX_TIME_TOPIC, 0)
    return _again(stored, target, _text(stored), stored.sys_flag)


def op_message(queue_offset: int, ending: Ending, now_ms: int, host: bytes) -> PutMessage:
    """The mark that a half is over."""
    properties = f"{Property.TAGS}\x01{_OP_TAG}\x02{STATE_PROPERTY}\x01{ending}".encode()
    return PutMessage(
        OP_HALF_TOPIC, HALF_QUEUE, b"%d" % queue_offset, properties, now_ms, host, host
    )


def read_op(stored: StoredMessage) -> tuple[list[int], Ending | None]:
    """The halves that an op says are over, and how they ended where it tells.

    RocketMQ 5 writes several in one, with commas. What is not an op names none.
    """
    if stored.tag != _OP_TAG or len(stored.body) > 1 << 20:
        return [], None
    offsets = []
    for piece in stored.body.split(b","):
        if piece.isdigit() and len(piece) <= 18:
            offsets.append(int(piece))
    state = stored.properties.get(STATE_PROPERTY)
    return offsets, _ENDINGS.get(state or "")


def check_body(stored: StoredMessage, place: Target, *, half: tuple[int, int]) -> bytes:
    """The half as a producer is asked about it: under its real topic; half is its newest place."""
    queue_offset, physical_offset = half
    return encode_record(
        topic=place.topic,
        body=stored.body,
        properties=_text(stored),
        queue_id=place.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_at_ms=stored.born_at_ms,
        born_host=pack_host(*stored.born_host),
        stored_at_ms=stored.stored_at_ms,
        store_host=pack_host(*stored.store_host),
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )
