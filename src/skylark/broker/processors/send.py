"""Sending: single messages and batches, all of one read in one append.

    code   request              body
    10     SEND_MESSAGE         one message, fields under their full names
    310    SEND_MESSAGE_V2      one message, fields under one-letter names
    320    SEND_BATCH_MESSAGE   as 310; whether the body is a batch is said by the field `m`

The checks run in RocketMQ's order and the first that fails answers. What is stored:

    topic, queue         as asked; with a delay or a time as deferral.py says; after too many
                         retries %DLQ%group; a half message RMQ_SYS_TRANS_HALF_TOPIC and 0
    properties           the client's, less WAIT, plus CLUSTER; where it goes elsewhere first,
                         also REAL_TOPIC and REAL_QID

With SYNC_FLUSH or SYNC_MASTER the answers of one read wait together; see durability.py.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ...clock import Clock
from ...errors import (
    BrokerError,
    InvalidBatch,
    InvalidBody,
    InvalidHeader,
    InvalidName,
    StoreError,
)
from ...model.message import Property
from ...model.names import check_topic_name
from ...model.topic import (
    HALF_TOPIC,
    RETRY_PREFIX,
    UNSENDABLE_TOPICS,
    TopicConfig,
    TopicFilterType,
    is_retry_topic,
)
from ...model.version import DataVersion
from ...protocol.batch import decode_batch, join_properties
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from ...protocol.exchange import Answers, Deferred, Peer
from ...protocol.headers import SendMessageRequest, SendMessageRequestV2
from ...protocol.properties import (
    PROPERTIES_BYTES_MAX,
    encode_text,
    format_properties,
    parse_properties,
    require_sound_properties,
)
from ...store import MessageStore, PutEntries, PutMessage, PutResult, PutStatus
from .. import fast_path, retry
from ..config import BrokerConfig, LiveConfig
from ..deferral import defer, delay_level
from ..durability import Durability, Waiters
from ..durability import FlushWaiter as FlushWaiter
from ..fast_path import SendContext
from ..flow import FlowControl
from ..groups import GroupTable
from ..half_messages import SINCE_PROPERTY
from ..identity import Identity
from ..observer import Observer
from ..topics import TopicTable

logger = logging.getLogger(__name__)

_TRANSACTION_BITS = 0xC
_MULTI_TAGS = 0x2
_OF_COPIES = (
    Property.TRANSACTION_CHECK_TIMES,
    Property.TRAN_PREPARED_QUEUE_OFFSET,
    SINCE_PROPERTY,
)
_CONTEXTS_MAX = 4_096
_DOES_NOT_WAIT = f"{Property.WAIT}\x01false"
_ALONE = frozenset({Property.DELAY, Property.TRAN_MSG})  # What no message of a batch may have.
_ALONE_MARKS = tuple(f"{name}\x01".encode() for name in sorted(_ALONE))

_Header = SendMessageRequest | SendMessageRequestV2

_STATUS_CODES: dict[PutStatus, tuple[int, str]] = {
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, "the disk is slow"),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, "the replica is slow"),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, "there is no replica"),
    PutStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the store takes no writes now; see the broker's log",
    ),
    PutStatus.CREATE_MAPEDFILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken: there is no room for the next file",
    ),
    PutStatus.OS_PAGECACHE_BUSY: (
        ResponseCode.SYSTEM_ERROR,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "the store failed; see the broker's log"),
}


class Stored(NamedTuple):
    """One request that has been appended: its answer but for the flush."""

    command: Command
    queue_id: int
    result: PutResult  # Of a batch, that of its first message.
    end: int  # The physical offset to wait for.
    batch: array[int] | None = None  # The physical offsets of a batch.


class SendProcessor:
    """Stores what producers send."""

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
        clock: Clock,
        rng: random.Random,
        observer: Observer,
        quorum: Waiters | None = None,
    ) -> None:
        """With a quorum, sends wait for a replica as well."""
        self._live = live
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._store = store
        self.durability = Durability(
            store, flusher, flow, quorum, replica_timeout_ms=live.current.slave_timeout
        )
        self._flow = flow
        self._clock = clock
        self._rng = rng
        self._observer = observer
        self._is_sync = self.durability.is_waited_for
        self._level_max = len(store.config.delay_levels_ms)
        self._plain_version: DataVersion | None = None
        self._plain_config: BrokerConfig | None = None
        self._plain_topics: dict[str, int] = {}
        self._contexts: dict[bytes, SendContext] = {}
        self._cluster = encode_text(
            format_properties({Property.CLUSTER: live.current.broker_cluster_name})
        )

    # Requests.

    def send(self, commands: list[Command], peer: Peer) -> Answers | Deferred:
        """Serve the sends of one read."""
        refusal = self._flow.refusal(peer.waited_ms)
        if refusal is not None:
            for _ in commands:
                self._observer.refused(refusal[1].partition("]")[0].removeprefix("["))
            return [self.refuse(command, *refusal) for command in commands if not command.flag & 2]
        born_host = self._identity.born_host(peer)
        messages: list[PutMessage] = []
        queue_ids: list[int] = []
        at = fast_path.plain_sends(commands, 0, self._context(born_host), messages, queue_ids)
        if at == len(commands):
            return self._send_plain(commands, messages, queue_ids)
        answers: list[Command] = []
        stored: list[Stored] = []
        waiting = list(zip(commands, queue_ids, messages, strict=False))
        del commands[:at]
        for command in commands:
            try:
                header = read_header(command)
                if header.batch:
                    self._append(waiting, stored)
                    stored.append(self._send_batch(command, header, born_host))
                else:
                    queue_id, message = self.prepare(command, header, born_host)
                    waiting.append((command, queue_id, message))
            except (
                BrokerError, InvalidHeader, InvalidName, InvalidBody, InvalidBatch, StoreError,
            ) as error:  # fmt: skip
                if not command.flag & 2:
                    answers.append(self._refuse_error(command, error))
        self._append(waiting, stored)
        return self._answer(stored, answers)

    def _context(self, born_host: bytes) -> SendContext:
        config, version = self._live.current, self._topics.version
        if version is not self._plain_version or config is not self._plain_config:
            self._plain_version, self._plain_config = version, config
            self._plain_topics = self._find_plain_topics()
            self._contexts.clear()
        context = self._contexts.get(born_host)
        if context is None:
            if len(self._contexts) >= _CONTEXTS_MAX:
                self._contexts.clear()
            context = self._contexts[born_host] = SendContext(
                self._plain_topics,
                self._cluster,
                born_host,
                self._identity.store_host,
                self._store.config.max_message_size,
            )
        return context

    def _find_plain_topics(self) -> dict[str, int]:
        """The topics that can be sent to without further checks, with their queues."""
        config = self._live.current
        if config.start_accept_send_request_time_stamp > 0:
            return {}
        return {
            topic.name: max(topic.write_queue_nums, topic.read_queue_nums)
            for topic in self._topics.topics.values()
            if topic.name not in UNSENDABLE_TOPICS
            and not self._topics.is_going(topic.name)
            and not is_retry_topic(topic.name)
            and topic.filter_type is TopicFilterType.SINGLE_TAG
            and (config.broker_permission & 2 or not topic.order)
        }

    def _send_plain(
        self, commands: list[Command], messages: list[PutMessage], queue_ids: list[int]
    ) -> Answers | Deferred:
        results = self._store.put(messages)
        self._count(messages, results)
        identity = self._identity
        if not self._is_sync:
            frames = fast_path.stored_answers(
                commands, 0, queue_ids, results, identity.id_prefix, identity.trace_fields()
            )
            if frames is not None:
                return frames

        def answers(status: PutStatus | None = None) -> Answers:
            if status is None:
                frames = fast_path.stored_answers(
                    commands, 0, queue_ids, results, identity.id_prefix, identity.trace_fields()
                )
                if frames is not None:
                    return frames
            stored = [
                Stored(command, queue_id, result, result.end)
                for command, queue_id, result in zip(commands, queue_ids, results, strict=True)
            ]
            return self._answers(stored, status)

        end = max(result.end for result in results)
        if self._is_sync and end > 0 and not self.durability.is_safe(end) and _wait(commands):
            return self.defer_until_safe(end, len(commands), answers)
        return answers()

    def _count(self, messages: list[PutMessage], results: list[PutResult]) -> None:
        """Report what was stored, once for each run of messages of one topic."""
        if len(messages) == 1:
            if results[0].status is PutStatus.PUT_OK:
                self._observer.stored(messages[0].topic, 1, results[0].size_bytes)
            return
        topic, count, size_bytes = "", 0, 0
        for message, result in zip(messages, results, strict=True):
            if message.topic != topic:
                if count:
                    self._observer.stored(topic, count, size_bytes)
                topic, count, size_bytes = message.topic, 0, 0
            if result.status is PutStatus.PUT_OK:
                count += 1
                size_bytes += result.size_bytes
        if count:
            self._observer.stored(topic, count, size_bytes)

    def _append(self, waiting: list[tuple[Command, int, PutMessage]], stored: list[Stored]) -> None:
        if not waiting:
            return
        messages = [message for _, _, message in waiting]
        results = self._store.put(messages)
        self._count(messages, results)
        for (command, queue_id, _), result in zip(waiting, results, strict=True):
            stored.append(Stored(command, queue_id, result, result.end))
        waiting.clear()

    # Checks.

    def prepare(
        self, command: Command, header: _Header, born_host: bytes
    ) -> tuple[int, PutMessage]:
        """Check one message; return the queue to answer and what to append."""
        topic = self.checked_topic(header)
        queue_id = self._checked_queue(topic, header.queue_id)
        reconsume_times = header.reconsume_times or 0
        text = header.properties or ""
        name, stored_queue, is_dead = topic.name, queue_id, False
        if is_retry_topic(name):
            target = self._redirect(command, header, topic)
            if target is not None:
                name, stored_queue, is_dead = target.name, 0, True
        properties = encode_text(text)
        self._require_size(command, properties)
        require_sound(properties)
        found = parse_properties(text)
        is_half = self._is_half(header.sys_flag, found)
        found.pop(Property.WAIT, None)
        found[Property.CLUSTER] = self._live.current.broker_cluster_name
        if is_dead:
            if Property.DELAY in found:
                found[Property.DELAY] = "0"
        elif is_half:  # With a delay it begins to wait when it is committed.
            self._defer(dict(found), name, stored_queue)
            found[Property.REAL_TOPIC] = name
            found[Property.REAL_QID] = str(stored_queue)
            self._topics.create_own(HALF_TOPIC, queue_nums=1)
            name, stored_queue = HALF_TOPIC, 0
        else:
            name, stored_queue = self._defer(found, name, stored_queue)
        properties = encode_text(format_properties(found, as_read=True))
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise illegal(f"properties take {len(properties)} bytes with the broker's own")
        return queue_id, PutMessage(
            name,
            stored_queue,
            command.body,
            properties,
            header.born_timestamp,
            born_host,
            self._identity.store_host,
            header.flag,
            self._sys_flag(topic, header.sys_flag & ~_TRANSACTION_BITS),
            reconsume_times,
        )

    def checked_topic(self, header: _Header) -> TopicConfig:
        """The topic of a send, made where that is allowed."""
        config = self._live.current
        if self._clock.now_ms() < config.start_accept_send_request_time_stamp:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "broker unable to service, until "
                f"{config.start_accept_send_request_time_stamp} "
                "(startAcceptSendRequestTimeStamp)",
            )
        name = header.topic
        topic = self._topics.get(name)
        if topic is not None and topic.order and not config.broker_permission & 2:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_name}] sending message is forbidden",
            )
        if name in UNSENDABLE_TOPICS:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"topic {name} is written by the broker alone"
            )
        if topic is None or self._topics.is_going(name):
            return self._make_topic(header)
        return topic

    def _make_topic(self, header: _Header) -> TopicConfig:
        name = header.topic
        check_topic_name(name)
        sys_flag = (2 if is_retry_topic(name) else 1) if header.unit_mode else 0
        if is_retry_topic(name):
            self._groups.require(name.removeprefix(RETRY_PREFIX))
        topic = self._topics.create_on_send(
            name,
            template=header.default_topic,
            queue_nums=header.default_topic_queue_nums,
            sys_flag=sys_flag,
        )
        if topic is None and is_retry_topic(name):
            topic = self._topics.create_own(name, queue_nums=1, sys_flag=sys_flag)
        if topic is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name} not exist, apply first please: make it with updateTopic, or set "
                "autoCreateTopicEnable=true",
            )
        return topic

    def _checked_queue(self, topic: TopicConfig, queue_id: int) -> int:
        if queue_id < 0:
            return self._rng.randrange(max(1, topic.write_queue_nums))
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        if queue_id >= queues:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"queue {queue_id} of topic {topic.name} does not exist, it has {queues}; "
                "fetch the route again",
            )
        return queue_id

    def _redirect(
        self, command: Command, header: _Header, topic: TopicConfig
    ) -> TopicConfig | None:
        """The dead-letter topic for a message that a consumer has re-sent too often."""
        group = self._groups.require(topic.name.removeprefix(RETRY_PREFIX))
        tries = retry.tries_max(group, header.max_reconsume_times, command.version)
        if (header.reconsume_times or 0) < tries:
            return None
        return retry.destination(
            self._topics, group, reconsume_times=header.reconsume_times or 0, level=-1, tries=tries
        ).topic

    def _require_size(self, command: Command, properties: bytes, *, more: int = 0) -> None:
        body_max = self._store.config.max_message_size
        if len(command.body) > body_max + more:
            raise illegal(f"the body has {len(command.body)} bytes, {body_max} are allowed")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise illegal(
                f"properties take {len(properties)} bytes, {PROPERTIES_BYTES_MAX} are allowed"
            )

    def _is_half(self, sys_flag: int, properties: dict[str, str]) -> bool:
        """Whether a message is the first phase of a transaction; refuse what could never end."""
        if properties.get(Property.TRAN_MSG, "").lower() != "true":
            if sys_flag & _TRANSACTION_BITS:
                raise illegal(
                    "sysFlag says that it is part of a transaction, and TRAN_MSG does not"
                )
            return False
        if self._live.current.reject_transaction_message:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._live.current.broker_name}] sending transaction message is "
                "forbidden (rejectTransactionMessage)",
            )
        if not properties.get(Property.PGROUP):
            raise illegal("a half message needs PGROUP, the producer group that ends it")
        for name in _OF_COPIES:  # What the broker counts is not the sender's to say.
            properties.pop(name, None)
        return True

    def _defer(self, properties: dict[str, str], topic: str, queue_id: int) -> tuple[str, int]:
        return defer(
            properties,
            topic,
            queue_id,
            level_max=self._level_max,
            now_ms=self._clock.now_ms(),
            delay_ms_max=self._live.current.timer_max_delay_sec * 1000,
        )

    @staticmethod
    def _sys_flag(topic: TopicConfig, sys_flag: int) -> int:
        return (
            sys_flag | _MULTI_TAGS if topic.filter_type is TopicFilterType.MULTI_TAG else sys_flag
        )

    # Batches.

    def _send_batch(self, command: Command, header: _Header, born_host: bytes) -> Stored:
        batch = self.read_batch(command, header, born_host)
        name = batch.topic
        if self.is_plain(batch):
            stored = self._store.put_entries(batch)
            if stored is not None:
                self._observer.stored(name, len(stored.physical_offsets), stored.size_bytes)
                first = PutResult(PutStatus.PUT_OK, stored.physical_offsets[0], stored.queue_offset)
                return Stored(command, batch.queue_id, first, stored.end, stored.physical_offsets)
        results = self._store.put_group(self.messages_of(batch))
        if results[0].status is PutStatus.PUT_OK:
            size_bytes = sum(result.size_bytes for result in results)
            self._observer.stored(name, len(results), size_bytes)
        offsets = array("q", [result.physical_offset for result in results])
        return Stored(command, batch.queue_id, results[0], results[-1].end, offsets)

    def read_batch(
        self, command: Command, header: _Header, born_host: bytes, *, more: int = 0
    ) -> PutEntries:
        """Check a batch but for its entries, and say what these have in common.

        It may have so many bytes more than a body; of its entries the store takes none larger.
        """
        topic = self.checked_topic(header)
        queue_id = self._checked_queue(topic, header.queue_id)
        if is_retry_topic(topic.name):
            raise illegal("a batch cannot be sent to a retry topic")
        text = encode_text(header.properties or "")
        self._require_size(command, text, more=more)
        require_sound(text)
        shared = parse_properties(text)
        if self._is_half(header.sys_flag, shared):
            raise illegal("a batch cannot be transactional")
        if delay_level(shared, self._level_max) > 0:
            raise illegal("a batch cannot be delayed")
        shared.pop(Property.WAIT, None)
        shared[Property.CLUSTER] = self._live.current.broker_cluster_name
        return PutEntries(
            topic.name,
            queue_id,
            command.body,
            encode_text(format_properties(shared, as_read=True)),
            header.born_timestamp,
            born_host,
            self._identity.store_host,
            self._sys_flag(topic, header.sys_flag),
            header.reconsume_times or 0,
        )

    @staticmethod
    def is_plain(batch: PutEntries) -> bool:
        """Whether the entries of a batch can be stored as they are."""
        return b"TIMER_" not in batch.properties and fast_path.plain_entries(batch.entries)

    def messages_of(self, batch: PutEntries) -> list[PutMessage]:
        """The entries of a batch one by one, checked."""
        try:
            entries = decode_batch(batch.entries)
        except InvalidBatch as error:
            raise illegal(str(error)) from None
        messages = []
        for entry in entries:
            require_sound(entry.properties)
            if _must_go_alone(entry.properties):
                raise illegal("a message of a batch can be neither delayed nor transactional")
            try:
                properties = join_properties(entry.properties, batch.properties)
            except InvalidBody as error:
                raise illegal(str(error)) from None
            message = batch.message(entry, properties)
            messages.append(self._deferred(message) if b"TIMER_" in properties else message)
        return messages

    def _deferred(self, message: PutMessage) -> PutMessage:
        """A message that may name a time; as it is, if it names none."""
        as_sent = parse_properties(message.properties)
        found = dict(as_sent)
        name, queue_id = self._defer(found, message.topic, message.queue_id)
        if found == as_sent:
            return message
        properties = encode_text(format_properties(found, as_read=True))
        return message._replace(topic=name, queue_id=queue_id, properties=properties)

    # Answers.

    def _answer(self, stored: list[Stored], answers: list[Command]) -> Answers | Deferred:
        end = 0
        if self._is_sync:
            end = max((item.end for item in stored), default=0)
        commands = [item.command for item in stored]
        if end <= 0 or self.durability.is_safe(end) or not _wait(commands):
            answers += self._answers(stored)
            return answers
        return self.defer_until_safe(
            end, len(stored), lambda status: [*answers, *self._answers(stored, status)]
        )

    def defer_until_safe(self, end: int, count: int, answers: AnswersOf) -> Deferred:
        """Answer when the log is as safe as promised up to an offset, or has not been for long."""
        deferred = Deferred(weight=count)
        began_ms = self._clock.monotonic_ms()

        def finish(status: PutStatus | None) -> None:
            self._observer.waited(count, self._clock.monotonic_ms() - began_ms)
            if not deferred.is_done:
                deferred.answer(answers(status))

        cancel = self.durability.when_safe(end, count, finish)
        deferred.on_dropped = lambda _: cancel()
        return deferred

    def _answers(self, stored: list[Stored], late: PutStatus | None = None) -> list[Command]:
        """The answers, all of them with the given status where they are stored at all."""
        answers = []
        for item in stored:
            if item.command.flag & 2:
                continue
            status = item.result.status
            if status is PutStatus.PUT_OK and late is not None:
                status = late
            answers.append(self._answer_one(item, status))
        return answers

    def _answer_one(self, item: Stored, status: PutStatus) -> Command:
        if status is PutStatus.PUT_OK:
            return item.command.reply(ResponseCode.SUCCESS, None, self._stored_fields(item))
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return self.refuse(
                item.command,
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched: body at "
                f"most {self._store.config.max_message_size} bytes, properties at most "
                f"{PROPERTIES_BYTES_MAX}",
            )
        code, remark = _STATUS_CODES[status]
        if status in (
            PutStatus.FLUSH_DISK_TIMEOUT,
            PutStatus.FLUSH_SLAVE_TIMEOUT,
            PutStatus.SLAVE_NOT_AVAILABLE,
        ):
            # The message is stored, only less safely than it should be.
            return item.command.reply(code, remark, self._stored_fields(item))
        if self._store.failure is not None:
            remark = f"the store takes no more writes: {self._store.failure}"
        return self.refuse(item.command, code, remark)

    def _stored_fields(self, item: Stored) -> dict[str, str]:
        """The header of the answer to a request that is stored."""
        prefix = self._identity.id_prefix
        if item.batch is None:
            ids = f"{prefix}{item.result.physical_offset:016X}"
        else:
            ids = fast_path.stored_ids(prefix, item.batch)
        return {
            "msgId": ids,
            "queueId": str(item.queue_id),
            "queueOffset": str(item.result.queue_offset),
            **self._identity.trace_fields(),
        }

    def refuse(self, command: Command, code: int, remark: str) -> Command:
        """The answer to a message that is not stored; it carries region and trace as well."""
        return command.reply(code, remark, self._identity.trace_fields())

    def _refuse_error(self, command: Command, error: Exception) -> Command:
        code: int = ResponseCode.SYSTEM_ERROR
        remark = str(error)
        if isinstance(error, BrokerError):
            code, remark = error.code, error.remark or ""
        elif isinstance(error, InvalidBatch | InvalidBody):
            code = ResponseCode.MESSAGE_ILLEGAL
        elif isinstance(error, StoreError):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        return self.refuse(command, code, remark[:1024])


class AnswersOf(Protocol):
    """Makes the answers, given a status that overrides success."""

    def __call__(self, status: PutStatus | None) -> Answers: ...


def _wait(commands: Iterable[Command]) -> bool:
    """Whether any of these sends wants to hear that its message is safe.

    Those of one read are answered together, so that one that does not may wait for one that does.
    """
    return any(
        _waits(fields.get("i") or fields.get("properties") or "")
        for fields in (command.fields for command in commands)
    )


# Texts are searched first, since most have nothing of the kind, and taken apart where that finds
# something: it may be a value, or the end of another name.


def _waits(text: str) -> bool:
    return _DOES_NOT_WAIT not in text or parse_properties(text).get(Property.WAIT) != "false"


def _must_go_alone(text: bytes) -> bool:
    return any(mark in text for mark in _ALONE_MARKS) and (
        not _ALONE.isdisjoint(parse_properties(text))
    )


def read_header(command: Command) -> _Header:
    """The typed header of any send."""
    if command.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessageRequest.from_fields(command.fields)
    return SendMessageRequestV2.from_fields(command.fields)


def require_sound(properties: bytes) -> None:
    """Refuse properties that would not read back as they were meant."""
    try:
        require_sound_properties(properties)
    except InvalidBody as error:
        raise illegal(str(error)) from None


def illegal(problem: str) -> BrokerError:
    """The refusal of a message that cannot be stored as it is."""
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {problem}")
