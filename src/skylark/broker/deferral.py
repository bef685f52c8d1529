"""Deferral: a message that is not for now is stored under another topic, and comes back from there.

    property             stored under                          comes back
    DELAY=n              SCHEDULE_TOPIC_XXXX, queue n - 1      after the delay of level n
    TIMER_DELAY_SEC      rmq_sys_wheel_timer, queue 0          so many seconds after it was sent
    TIMER_DELAY_MS       the same                              so many milliseconds
    TIMER_DELIVER_MS     the same                              at this wall time
    TIMER_DEL_UNIQKEY    the same, with one of the three       never: it cancels the timer of that
                                                               unique key in the same topic

REAL_TOPIC and REAL_QID say where it is to go, TIMER_OUT_MS says when. A level wins over a time, as
in RocketMQ 5. What is due already is stored where it is to go, at once.
"""

from __future__ import annotations

from typing import Final

from ..errors import BrokerError, InvalidName
from ..model.message import Property, StoredMessage
from ..model.names import check_topic_name
from ..model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_retry_topic
from ..protocol.codes import ResponseCode
from ..protocol.properties import LazyProperties, encode_properties, parse_properties
from ..protocol.record import pack_host
from ..store import PutMessage

TIMER_QUEUE: Final = 0  # Of rmq_sys_wheel_timer: what waits.
DONE_QUEUE: Final = 1  # And which of them are done.
TIMER_PROPERTIES: Final = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)
_DIGITS_MAX: Final = 9  # Of a level; more is more than any table has.
_TIME_DIGITS_MAX: Final = 15
# What only the broker writes; a client that sends it must not be believed.
_OWN: Final = (
    Property.TIMER_OUT_MS,
    Property.TIMER_REPLACES,
    Property.TIMER_ROLL_TIMES,
    Property.REPEAT_ID,
    Property.REPEAT_RULE,
    Property.REPEAT_ZONE,
    Property.REPEAT_COUNT,
)
# What a message that has come back need not carry.
_SPENT: Final = (
    Property.REAL_TOPIC,
    Property.REAL_QID,
    Property.TIMER_REPLACES,
    Property.TIMER_ROLL_TIMES,
    Property.REPEAT_RULE,
    Property.REPEAT_ZONE,
)


_SPENT_PIECES: Final = tuple(f"{name}\x01".encode() for name in _SPENT)
_LEVEL_PIECE: Final = (f"{Property.DELAY}\x01".encode(),)


def defer(
    properties: dict[str, str],
    topic: str,
    queue_id: int,
    *,
    level_max: int,
    now_ms: int,
    delay_ms_max: int,
) -> tuple[str, int]:
    """Where to store a message; its properties get what brings it back. Raises BrokerError."""
    for name in _OWN:
        properties.pop(name, None)
    level = delay_level(properties, level_max)
    if level > 0:
        for name in TIMER_PROPERTIES:
            properties.pop(name, None)
        place = SCHEDULE_TOPIC, level - 1
    else:
        due_ms = deliver_at_ms(properties, now_ms, delay_ms_max)
        if due_ms is None:
            return topic, queue_id
        if due_ms <= now_ms and Property.TIMER_DEL_UNIQKEY not in properties:
            return topic, queue_id
        properties[Property.TIMER_OUT_MS] = str(due_ms)
        place = TIMER_TOPIC, TIMER_QUEUE
    properties[Property.REAL_TOPIC] = topic
    properties[Property.REAL_QID] = str(queue_id)
    return place


def delay_level(properties: dict[str, str], level_max: int) -> int:
    """The delay level of a message, 0 for none, at most the highest; the property follows."""
    text = properties.get(Property.DELAY)
    if text is None:
        return 0
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise _illegal(f"delay level {text[:32]!r} is not a number")
    if text.startswith("-"):
        return 0
    level = level_max if len(digits) > _DIGITS_MAX else min(int(digits), level_max)
    if level > 0:
        properties[Property.DELAY] = str(level)
    return level


def deliver_at_ms(properties: dict[str, str], now_ms: int, delay_ms_max: int) -> int | None:
    """The wall time at which a message is to be delivered, None where it names none."""
    for name in TIMER_PROPERTIES:
        text = properties.get(name)
        if text is None:
            continue
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdigit()):
            raise _illegal(f"{name} {text[:32]!r} is not a number")
        if text.startswith("-") and digits.strip("0"):
            raise _illegal(f"{name} {text[:32]} is negative")
        value = int(digits) if len(digits) <= _TIME_DIGITS_MAX else 10**_TIME_DIGITS_MAX
        if name == Property.TIMER_DELAY_SEC:
            value = now_ms + value * 1000
        elif name == Property.TIMER_DELAY_MS:
            value += now_ms
        if value - now_ms > delay_ms_max:
            raise _illegal(
                f"{name} {text[:32]} is too far ahead: at most {delay_ms_max // 1000} seconds are "
                "allowed (timerMaxDelaySec)"
            )
        return value
    return None


def restored(message: StoredMessage, changes: dict[str, str] | None = None) -> PutMessage | None:
    """A deferred message as it goes to its real topic; None for what has none to go to."""
    lazy = message.properties
    text = lazy.text if isinstance(lazy, LazyProperties) else encode_properties(lazy, as_read=True)
    found = parse_properties(text)
    topic = found.get(Property.REAL_TOPIC, "")
    queue_text = found.get(Property.REAL_QID, "")
    try:
        check_topic_name(topic)
    except InvalidName:
        return None
    if not (queue_text.isascii() and queue_text.isdigit() and len(queue_text) <= _DIGITS_MAX):
        return None
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        return None
    dropped: tuple[bytes, ...] = ()
    if message.topic == TIMER_TOPIC:
        dropped = _SPENT_PIECES
    elif not is_retry_topic(topic):
        # RocketMQ means to clear it and leaves it in the text; a consumer that passes the message
        # on would delay it once more. Retries are told by it how long they have waited.
        dropped = _LEVEL_PIECE
    if changes:
        dropped += tuple(f"{name}\x01".encode() for name in changes)
    pieces = [piece for piece in text.split(b"\x02") if piece and not piece.startswith(dropped)]
    if changes:
        pieces.append(encode_properties(changes))
    return PutMessage(
        topic,
        int(queue_text),
        message.body,
        b"\x02".join(pieces),
        message.born_at_ms,
        pack_host(*message.born_host),
        pack_host(*message.store_host),
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )


def _illegal(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {problem}")
