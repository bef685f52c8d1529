"""Message, MessageExt and their companions, with Java's getters and setters."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, overload

from ..client.pull_consumer import PullResult as _PullResult
from ..client.receipts import SendReceipt
from ..client.received import ReceivedMessage
from ..client.subscriptions import SqlFilter
from ..model.group import ConsumeFromWhere as ConsumeFromWhere
from ..model.group import MessageModel as MessageModel
from ..model.message import Message as _Message
from ..model.message import Property, StoredMessage, require_user_property
from ..model.queue import MessageQueue as _MessageQueue
from ..model.topic import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, retry_topic
from ..protocol.compression import plain_body


class MessageConst:
    """Names of properties."""

    PROPERTY_KEYS = Property.KEYS
    PROPERTY_TAGS = Property.TAGS
    PROPERTY_WAIT_STORE_MSG_OK = Property.WAIT
    PROPERTY_DELAY_TIME_LEVEL = Property.DELAY
    PROPERTY_RETRY_TOPIC = Property.RETRY_TOPIC
    PROPERTY_REAL_TOPIC = Property.REAL_TOPIC
    PROPERTY_ORIGIN_MESSAGE_ID = Property.ORIGIN_MESSAGE_ID
    PROPERTY_MIN_OFFSET = Property.MIN_OFFSET
    PROPERTY_MAX_OFFSET = Property.MAX_OFFSET
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX = Property.UNIQ_KEY


class MixAll:
    """The few names out of MixAll that programs use."""

    RETRY_GROUP_TOPIC_PREFIX = RETRY_PREFIX
    DLQ_GROUP_TOPIC_PREFIX = DLQ_PREFIX

    @staticmethod
    def getRetryTopic(group: str) -> str:
        """The topic that brings a group's failed messages back."""
        return retry_topic(group)

    @staticmethod
    def getDLQTopic(group: str) -> str:
        """The topic of messages that a group has given up on."""
        return dlq_topic(group)


class Message:
    """A message to send: Message(topic[, tags[, keys[, flag]]], body[, waitStoreMsgOK])."""

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, topic: str, body: bytes, /) -> None: ...
    @overload
    def __init__(self, topic: str, tags: str, body: bytes, /) -> None: ...
    @overload
    def __init__(self, topic: str, tags: str, keys: str, body: bytes, /) -> None: ...
    @overload
    def __init__(
        self, topic: str, tags: str, keys: str, flag: int, body: bytes, wait: bool, /
    ) -> None: ...
    def __init__(self, *given: Any) -> None:
        """Take what Java's constructors take; raises TypeError."""
        topic, tags, keys, flag, body, wait = "", "", "", 0, b"", True
        match given:
            case ():
                pass
            case (topic, body):
                pass
            case (topic, tags, body):
                pass
            case (topic, tags, keys, body):
                pass
            case (topic, tags, keys, flag, body, wait):
                pass
            case _:
                raise TypeError(f"no Message is made of {len(given)} arguments; see its docstring")
        self._topic = topic
        self._body: bytes | None = body
        self._flag = flag
        self._properties: dict[str, str] = {}
        if tags:
            self.setTags(tags)
        if keys:
            self.setKeys(keys)
        self.setWaitStoreMsgOK(wait)

    def getTopic(self) -> str:
        return self._topic

    def setTopic(self, topic: str) -> None:
        self._topic = topic

    def getBody(self) -> bytes | None:
        return self._body

    def setBody(self, body: bytes) -> None:
        self._body = body

    def getFlag(self) -> int:
        return self._flag

    def setFlag(self, flag: int) -> None:
        self._flag = flag

    def getTags(self) -> str | None:
        return self.getProperty(Property.TAGS)

    def setTags(self, tags: str) -> None:
        self._properties[Property.TAGS] = tags

    def getKeys(self) -> str | None:
        return self.getProperty(Property.KEYS)

    def setKeys(self, keys: str | Iterable[str]) -> None:
        self._properties[Property.KEYS] = keys if isinstance(keys, str) else " ".join(keys)

    def getDelayTimeLevel(self) -> int:
        return int(self._properties.get(Property.DELAY, "0"))

    def setDelayTimeLevel(self, level: int) -> None:
        self._properties[Property.DELAY] = str(level)

    def getDelayTimeSec(self) -> int:
        return int(self._properties.get(Property.TIMER_DELAY_SEC, "0"))

    def setDelayTimeSec(self, seconds: int) -> None:
        self._properties[Property.TIMER_DELAY_SEC] = str(seconds)

    def getDelayTimeMs(self) -> int:
        return int(self._properties.get(Property.TIMER_DELAY_MS, "0"))

    def setDelayTimeMs(self, ms: int) -> None:
        self._properties[Property.TIMER_DELAY_MS] = str(ms)

    def getDeliverTimeMs(self) -> int:
        return int(self._properties.get(Property.TIMER_DELIVER_MS, "0"))

    def setDeliverTimeMs(self, time_ms: int) -> None:
        self._properties[Property.TIMER_DELIVER_MS] = str(time_ms)

    def isWaitStoreMsgOK(self) -> bool:
        return self._properties.get(Property.WAIT, "true") == "true"

    def setWaitStoreMsgOK(self, wait: bool) -> None:
        self._properties[Property.WAIT] = "true" if wait else "false"

    def putUserProperty(self, name: str, value: str) -> None:
        """Add a property; raises LocalProtocolError for a reserved or empty one."""
        require_user_property(name, value)
        self._properties[name] = value

    def getUserProperty(self, name: str) -> str | None:
        return self.getProperty(name)

    def getProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def getProperties(self) -> dict[str, str]:
        return self._properties

    def getTransactionId(self) -> str | None:
        return self.getProperty(Property.UNIQ_KEY)

    def __str__(self) -> str:
        return (
            f"Message{{topic='{self._topic}', flag={self._flag}, "
            f"properties={self._properties}, body={self.getBody()!r}}}"
        )

    def _times(self) -> dict[str, int]:
        """When to deliver it: as in 5.x, a level wins over a time, and seconds over the others."""
        if self.getDelayTimeLevel() > 0:
            return {}
        if Property.TIMER_DELAY_SEC in self._properties:
            return {"delay_ms": self.getDelayTimeSec() * 1000}
        if Property.TIMER_DELAY_MS in self._properties:
            return {"delay_ms": self.getDelayTimeMs()}
        if Property.TIMER_DELIVER_MS in self._properties:
            return {"deliver_at_ms": self.getDeliverTimeMs()}
        return {}

    def to_model(self) -> _Message:
        """The same for skylark's own clients."""
        user = {
            name: value for name, value in self._properties.items() if name not in _OF_THE_CLIENT
        }
        return _Message(
            self._topic,
            self._body or b"",
            tag=self.getTags() or None,
            keys=tuple((self.getKeys() or "").split()),
            properties=user,
            flag=self._flag,
            delay_level=self.getDelayTimeLevel(),
            **self._times(),
            wait_stored=self.isWaitStoreMsgOK(),
        )


# Fields of their own in our messages, and the id that a message got when it was sent before.
_OF_THE_CLIENT = frozenset(
    {
        Property.TAGS,
        Property.KEYS,
        Property.DELAY,
        Property.TIMER_DELAY_SEC,
        Property.TIMER_DELAY_MS,
        Property.TIMER_DELIVER_MS,
        Property.WAIT,
        Property.UNIQ_KEY,
    }
)


class MessageExt(Message):
    """A message as a consumer gets it."""

    def __init__(self, received: ReceivedMessage) -> None:
        self.received = received
        self._topic = received.topic
        self._flag = received.flag
        self._body = None
        self._properties = dict(received.properties)
        self._properties[Property.MIN_OFFSET] = str(received.min_offset)
        self._properties[Property.MAX_OFFSET] = str(received.max_offset)

    @classmethod
    def of(cls, record: StoredMessage, broker_name: str = "") -> MessageExt:
        """Coat a stored message."""
        place = _MessageQueue(record.topic, broker_name, record.queue_id)
        return cls(ReceivedMessage(record, place, record.topic))

    def getBody(self) -> bytes:
        if self._body is None:
            self._body = plain_body(self.received.record)
        return self._body

    def getMsgId(self) -> str:
        """The producer's id, the same over all retries."""
        return self.received.message_id

    def getOffsetMsgId(self) -> str:
        return self.received.offset_id

    def getQueueId(self) -> int:
        return self.received.queue_id

    def getQueueOffset(self) -> int:
        return self.received.queue_offset

    def getCommitLogOffset(self) -> int:
        return self.received.record.physical_offset

    def getBrokerName(self) -> str:
        return self.received.broker_name

    def getReconsumeTimes(self) -> int:
        return self.received.reconsume_times

    def getBornTimestamp(self) -> int:
        return self.received.born_at_ms

    def getStoreTimestamp(self) -> int:
        return self.received.stored_at_ms

    def getBornHost(self) -> str:
        return str(self.received.record.born_host)

    def getStoreHost(self) -> str:
        return str(self.received.record.store_host)

    def getStoreSize(self) -> int:
        return self.received.size_bytes

    def getSysFlag(self) -> int:
        return self.received.record.sys_flag

    def getBodyCRC(self) -> int:
        return self.received.record.body_crc

    def getPreparedTransactionOffset(self) -> int:
        return self.received.record.prepared_transaction_offset

    def __str__(self) -> str:
        return (
            f"MessageExt [brokerName={self.getBrokerName()}, queueId={self.getQueueId()}, "
            f"storeSize={self.getStoreSize()}, queueOffset={self.getQueueOffset()}, "
            f"sysFlag={self.getSysFlag()}, bornTimestamp={self.getBornTimestamp()}, "
            f"bornHost={self.getBornHost()}, storeTimestamp={self.getStoreTimestamp()}, "
            f"storeHost={self.getStoreHost()}, msgId={self.getMsgId()}, "
            f"commitLogOffset={self.getCommitLogOffset()}, bodyCRC={self.getBodyCRC()}, "
            f"reconsumeTimes={self.getReconsumeTimes()}, "
            f"preparedTransactionOffset={self.getPreparedTransactionOffset()}, "
            f"toString()={super().__str__()}]"
        )

    __repr__ = __str__


class MessageQueue:
    """One queue of a topic on one broker; usable as a key, sorted as Java sorts."""

    def __init__(self, topic: str = "", brokerName: str = "", queueId: int = 0) -> None:
        self._topic, self._broker_name, self._queue_id = topic, brokerName, queueId

    @classmethod
    def of(cls, queue: _MessageQueue) -> MessageQueue:
        """Coat a queue."""
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    def to_model(self) -> _MessageQueue:
        """The same for skylark's own clients."""
        return _MessageQueue(self._topic, self._broker_name, self._queue_id)

    def getTopic(self) -> str:
        return self._topic

    def setTopic(self, topic: str) -> None:
        self._topic = topic

    def getBrokerName(self) -> str:
        return self._broker_name

    def setBrokerName(self, name: str) -> None:
        self._broker_name = name

    def getQueueId(self) -> int:
        return self._queue_id

    def setQueueId(self, queue_id: int) -> None:
        self._queue_id = queue_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageQueue) and self.to_model() == other.to_model()

    def __lt__(self, other: MessageQueue) -> bool:
        return self.to_model() < other.to_model()

    def __hash__(self) -> int:
        return hash(self.to_model())

    def __str__(self) -> str:
        return (
            f"MessageQueue [topic={self._topic}, brokerName={self._broker_name}, "
            f"queueId={self._queue_id}]"
        )

    __repr__ = __str__


class SendStatus(Enum):
    """How far a message had come when the broker answered."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"

    def __str__(self) -> str:
        return self.value


class SendResult:
    """Where a message went."""

    def __init__(self, receipt: SendReceipt, message_ids: Iterable[str] = ()) -> None:
        self._receipt = receipt
        self._ids = ",".join(message_ids) or receipt.message_id

    def getSendStatus(self) -> SendStatus:
        return SendStatus[self._receipt.status.name]

    def getMsgId(self) -> str:
        """The producer's id; those of a batch are joined by commas."""
        return self._ids

    def getOffsetMsgId(self) -> str:
        return self._receipt.offset_id

    def getMessageQueue(self) -> MessageQueue:
        return MessageQueue.of(self._receipt.queue)

    def getQueueOffset(self) -> int:
        return self._receipt.queue_offset

    def getTransactionId(self) -> str | None:
        return self._receipt.transaction_id

    def getRegionId(self) -> str | None:
        return self._receipt.region

    def isTraceOn(self) -> bool:
        return self._receipt.trace_on

    def __str__(self) -> str:
        return (
            f"SendResult [sendStatus={self.getSendStatus()}, msgId={self.getMsgId()}, "
            f"offsetMsgId={self.getOffsetMsgId()}, messageQueue={self.getMessageQueue()}, "
            f"queueOffset={self.getQueueOffset()}]"
        )

    __repr__ = __str__


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"

    def __str__(self) -> str:
        return self.value


class PullResult:
    """What a pull found, and where to go on."""

    def __init__(self, result: _PullResult) -> None:
        self._result = result
        self._messages = [MessageExt(message) for message in result.messages]

    def getPullStatus(self) -> PullStatus:
        return PullStatus[self._result.status.name]

    def getMsgFoundList(self) -> list[MessageExt] | None:
        """The messages; None where there are none, as in Java."""
        return self._messages or None

    def getNextBeginOffset(self) -> int:
        return self._result.next_begin_offset

    def getMinOffset(self) -> int:
        return self._result.min_offset

    def getMaxOffset(self) -> int:
        return self._result.max_offset

    def __str__(self) -> str:
        return (
            f"PullResult [pullStatus={self.getPullStatus()}, "
            f"nextBeginOffset={self.getNextBeginOffset()}, minOffset={self.getMinOffset()}, "
            f"maxOffset={self.getMaxOffset()}, msgFoundList={len(self._messages)}]"
        )


class MessageSelector:
    """What to subscribe to: by tags, or by an SQL92 expression."""

    def __init__(self, expression: str | SqlFilter | None) -> None:
        self.expression = expression

    @classmethod
    def bySql(cls, sql: str) -> MessageSelector:
        """Messages whose properties satisfy an expression."""
        return cls(SqlFilter(sql))

    @classmethod
    def byTag(cls, tags: str | None) -> MessageSelector:
        """Messages with one of these tags."""
        return cls(tags)

    def getExpression(self) -> str:
        given = self.expression
        return given.expression if isinstance(given, SqlFilter) else given or "*"

    def getExpressionType(self) -> str:
        return "SQL92" if isinstance(self.expression, SqlFilter) else "TAG"
