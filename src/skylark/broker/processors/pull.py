"""Pulling: messages of one queue from an offset on, at once or when one arrives.

    status of the read                                  code   held if the client allows it
    FOUND                                               0
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING            20
    OFFSET_OVERFLOW_ONE, OFFSET_FOUND_NULL              19     yes
    NO_MESSAGE_IN_QUEUE                                 19     yes, from offset 0; else 21
    OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY             21     and an event in OFFSET_MOVED_EVENT;
                                                               on a replica 19, and held

A held pull looks again once and is then answered whatever it finds, but for messages that its own
expression rules out: it stays behind them, and waits for others. Only a peer that does not read
what it is sent gets no message then, but is told to ask again (20): it does so when it has read
everything, and until then its messages stay where they are.

Numbers from outside are held to limits: a poll of 30 s, 1,024 messages. A pull whose maxMsgBytes is
above the ordinary limit is a bulk read, for jobs that go through whole topics: up to 8,192 messages
and bulkPullBytesMax in one answer, also where the records come from the disk.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import NamedTuple

from ...clock import Clock
from ...errors import BrokerError, InvalidExpression, InvalidHeader
from ...filter import parse_tags
from ...model.group import MessageModel, Subscription, SubscriptionGroupConfig
from ...model.message import Property
from ...model.queue import MessageQueue, QueueOffset
from ...model.topic import OFFSET_MOVED_EVENT_TOPIC, UNREADABLE_TOPICS
from ...protocol.bodies import OffsetMovedEvent
from ...protocol.codes import ResponseCode
from ...protocol.command import Command
from ...protocol.exchange import Deferred, Peer
from ...protocol.hashes import tag_hash
from ...protocol.headers import PullMessageRequest, PullMessageResponse
from ...protocol.properties import encode_properties
from ...protocol.record import decode_records, properties_text
from ...sandbox import Candidate, PredicateFailed
from ...store import GetResult, GetStatus, MessageFilter, MessageStore, PutMessage
from .. import fast_path
from ..arrivals import Arrivals, Waiter
from ..clients import Clients
from ..config import LiveConfig
from ..fast_path import PullFields
from ..filter_server import FilterServer, PredicateFilter
from ..filters import FilterTable, is_by_tags
from ..groups import GroupTable
from ..identity import Identity
from ..observer import Observer
from ..topics import TopicTable
from .offset import OffsetProcessor

logger = logging.getLogger(__name__)

COUNT_MAX = 1_024
BULK_COUNT_MAX = 8_192
_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4
_EVENT_INTERVAL_MS = 10_000
_EVENTS_KEPT_MAX = 10_000

_CODES: dict[GetStatus, int] = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
}


_NOT_HERE = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class Pull(NamedTuple):
    """One pull that has passed its checks."""

    command: Command
    peer: Peer
    group: SubscriptionGroupConfig
    topic: str
    queue_id: int
    offset: int
    count_max: int
    filter: MessageFilter | None
    bulk_bytes: int | None = None


class PullProcessor:
    """Serves consumers."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        *,
        topics: TopicTable,
        groups: GroupTable,
        clients: Clients,
        offsets: OffsetProcessor,
        store: MessageStore,
        arrivals: Arrivals,
        filters: FilterTable,
        predicates: FilterServer,
        clock: Clock,
        observer: Observer,
        has_near_replica: Callable[[], bool] = lambda: False,
    ) -> None:
        self._live = live
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._arrivals = arrivals
        self._expressions = filters
        self._predicates = predicates
        self._clock = clock
        self._observer = observer
        self._has_near_replica = has_near_replica
        self._filters: dict[tuple[str, ...], MessageFilter] = {}
        self._events: dict[tuple[str, str, int], int] = {}
        self._held: dict[Peer, int] = {}  # Pulls that wait, of each peer that has any.

    def pull(self, command: Command, peer: Peer) -> Command | bytes | Deferred | None:
        """Serve PULL_MESSAGE and LITE_PULL_MESSAGE."""
        header = fast_path.read_pull(command.fields)
        if header is None:
            header = _typed(command)
        pull = self._checked(command, header, peer)
        found = self._get(pull)
        if header.sys_flag & _COMMIT and not self._store.is_replica:
            self._offsets.commit_quietly(
                pull.topic, pull.group.group_name, pull.queue_id, header.commit_offset, peer
            )
        code = self._code(pull, found)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & _SUSPEND:
            held = self._hold(pull, header.suspend_ms)
            if held is not None:
                return held
        if code == ResponseCode.SUCCESS and isinstance(pull.filter, PredicateFilter):
            deferred = Deferred()
            self._judge(pull, pull.filter, found, deferred)
            return deferred
        return self._answer(pull, found, code)

    # Checks.

    def _checked(self, command: Command, header: PullFields, peer: Peer) -> Pull:
        config = self._live.current
        if not config.broker_permission & 4:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_name}] pulling message is forbidden",
            )
        group = self._groups.require(header.group)
        if not group.consume_enable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {group.group_name}: consumeEnable is false",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please",
            )
        if topic.name in UNREADABLE_TOPICS:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"topic {topic.name} is read by the broker alone; LIST_TRANSACTIONS shows its half "
                "messages",
            )
        if not topic.is_readable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        if header.count_max <= 0:
            raise InvalidHeader("PullMessageRequest", "maxMsgNums", "must be positive")
        bulk_bytes = self._bulk_bytes(command)
        return Pull(
            command,
            peer,
            group,
            topic.name,
            header.queue_id,
            header.offset,
            min(header.count_max, COUNT_MAX if bulk_bytes is None else BULK_COUNT_MAX),
            self._filter(header, group, peer),
            bulk_bytes,
        )

    def _bulk_bytes(self, command: Command) -> int | None:
        text = command.fields.get("maxMsgBytes")
        if text is None:
            return None
        asked = _typed_bytes(text)
        if asked <= self._store.config.max_transfer_bytes_on_message_in_memory:
            return None
        return min(asked, self._live.current.bulk_pull_bytes_max)

    def _filter(
        self, header: PullFields, group: SubscriptionGroupConfig, peer: Peer
    ) -> MessageFilter | None:
        retries = self._expressions.of_retries(header.topic)
        if retries is not None:
            return retries
        kind = header.expression_type
        if header.sys_flag & _SUBSCRIPTION:
            if kind is not None and not is_by_tags(kind):
                return self._expressions.of_pull(
                    header.topic, group.group_name, header.subscription or "", kind
                )
            try:
                return self._tag_filter(parse_tags(header.subscription))
            except InvalidExpression as error:
                raise BrokerError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
        subscription = self._subscription(header, group, peer)
        if not is_by_tags(subscription.expression_type):
            return self._expressions.of_subscription(
                group.group_name, subscription, header.sub_version
            )
        return self._tag_filter(subscription.tags)

    def _subscription(
        self, header: PullFields, group: SubscriptionGroupConfig, peer: Peer
    ) -> Subscription:
        name = group.group_name
        members = self._clients.consumer_group(name)
        if members is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: group {name} has sent no heartbeat here",
            )
        if (
            not group.consume_broadcast_enable
            and members.message_model is MessageModel.BROADCASTING
        ):
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] can not consume by broadcast way",
            )
        subscription = members.subscription(header.topic, peer)
        if subscription is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {name} does not subscribe "
                f"{header.topic}",
            )
        if subscription.version < header.sub_version:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: group {name} topic {header.topic}",
            )
        return subscription

    def _tag_filter(self, tags: tuple[str, ...]) -> MessageFilter | None:
        if not tags:
            return None
        known = self._filters.get(tags)
        if known is None:
            if len(self._filters) >= 10_000:
                self._filters.clear()
            hashes = frozenset(tag_hash(tag) for tag in tags)
            known = self._filters[tags] = MessageFilter(tag_hashes=hashes)
        return known

    # Reading.

    def _get(self, pull: Pull) -> GetResult:
        found = self._store.get(
            pull.topic,
            pull.queue_id,
            pull.offset,
            pull.count_max,
            pull.filter,
            bulk_bytes=pull.bulk_bytes,
        )
        if self._is_the_masters_to_say(found):
            found.next_offset = QueueOffset(pull.offset)
        return found

    def _is_the_masters_to_say(self, found: GetResult) -> bool:
        """Whether an offset that a replica does not have may be all right at its master.

        A replica may lag behind, and may have been copied from the middle. If it corrected offsets,
        groups would begin anew whenever their master is away. So the pull waits here for what is to
        come, and its answer leads back to the master.
        """
        return (
            found.status in _NOT_HERE
            and self._store.is_replica
            and not self._live.current.offset_check_in_slave
        )

    def _code(self, pull: Pull, found: GetResult) -> int:
        if self._is_the_masters_to_say(found):
            return ResponseCode.PULL_NOT_FOUND
        code = _CODES.get(found.status)
        if code is None:  # No message in the queue, or no queue.
            code = ResponseCode.PULL_OFFSET_MOVED if pull.offset else ResponseCode.PULL_NOT_FOUND
        return code

    def _answer(self, pull: Pull, found: GetResult, code: int) -> Command | bytes:
        group, topic, queue_id = pull.group.group_name, pull.topic, pull.queue_id
        next_offset = int(found.next_offset)
        if code == ResponseCode.SUCCESS:
            self._observer.delivered(group, topic, queue_id, found.message_count, found.byte_count)
        else:
            self._observer.missed(group, topic, queue_id)
            if code == ResponseCode.PULL_OFFSET_MOVED:
                next_offset = self._moved_to(pull, found)
                self._note_moved(pull, found, next_offset)
        chunks = found.chunks if code == ResponseCode.SUCCESS else ()
        suggestion, status = self._suggestion(pull, found), found.status.value
        offsets = (next_offset, found.min_offset, found.max_offset)
        frame = fast_path.pull_answer(pull.command, code, status, suggestion, offsets, chunks)
        if frame is not None:
            return frame
        header = PullMessageResponse(
            suggest_which_broker_id=int(suggestion),
            next_begin_offset=next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
        )
        return pull.command.reply(code, status, header.to_fields(), b"".join(chunks))

    def _suggestion(self, pull: Pull, found: GetResult) -> str:
        if not self._live.current.slave_read_enable:
            return "0"
        group = pull.group
        if found.is_far_behind and (self._store.is_replica or self._has_near_replica()):
            return str(group.which_broker_when_consume_slowly)
        return str(group.broker_id)

    # Holding.

    def _hold(self, pull: Pull, asked_ms: int) -> Deferred | None:
        config = self._live.current
        if self._arrivals.is_closed:
            return None
        if len(self._arrivals) >= config.held_pulls_max:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{len(self._arrivals)} pulls wait already (heldPullsMax); "
                "try again in a second",
            )
        held = self._held.get(pull.peer, 0)
        if held >= config.held_pulls_per_peer_max:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{held} pulls of this client wait already (heldPullsPerPeerMax); "
                "try again in a second",
            )
        timeout_ms = config.short_polling_time_mills
        if config.long_polling_enable:
            timeout_ms = max(0, min(asked_ms, config.suspend_timeout_ms_max))
        deferred = Deferred()
        self._wait(pull, deferred, self._clock.monotonic_ms() + timeout_ms)
        return deferred

    def _wait(self, pull: Pull, deferred: Deferred, deadline_ms: int) -> None:
        self._held[pull.peer] = self._held.get(pull.peer, 0) + 1
        waiter: Waiter = self._arrivals.wait(
            pull.topic,
            pull.queue_id,
            pull.offset,
            None if pull.filter is None else pull.filter.tag_hashes,
            deadline_ms - self._clock.monotonic_ms(),
            lambda: self._resume(pull, deferred, deadline_ms),
        )

        def dropped(_: Deferred) -> None:
            self._release(pull.peer)
            self._arrivals.cancel(waiter)

        deferred.on_dropped = dropped

    def _release(self, peer: Peer) -> None:
        left = self._held[peer] - 1
        if left:
            self._held[peer] = left
        else:
            del self._held[peer]

    def _resume(self, pull: Pull, deferred: Deferred, deadline_ms: int) -> None:
        if deferred.is_done:
            return
        self._release(pull.peer)
        if pull.peer.unsent_bytes * 2 > self._live.current.unsent_bytes_max:
            deferred.answer((self._ask_again(pull),))
            return
        found = self._get(pull)
        if (
            found.status is GetStatus.NO_MATCHED_MESSAGE
            and found.next_offset == found.max_offset
            and self._clock.monotonic_ms() < deadline_ms
            and not self._arrivals.is_closed
        ):
            self._wait(pull._replace(offset=found.next_offset), deferred, deadline_ms)
            return
        if found.status is GetStatus.FOUND and isinstance(pull.filter, PredicateFilter):
            self._judge(pull, pull.filter, found, deferred)
            return
        answer = self._answer(pull, found, self._code(pull, found))
        deferred.answer(answer if isinstance(answer, bytes) else (answer,))

    def _ask_again(self, pull: Pull) -> Command:
        self._observer.missed(pull.group.group_name, pull.topic, pull.queue_id)
        header = PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=pull.offset,
            min_offset=self._store.min_offset(pull.topic, pull.queue_id),
            max_offset=self._store.max_offset(pull.topic, pull.queue_id),
        )
        return pull.command.reply(
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "the answers before this one have not been read yet",
            header.to_fields(),
        )

    # Predicates.

    def _judge(
        self, pull: Pull, wanted: PredicateFilter, found: GetResult, deferred: Deferred
    ) -> None:
        """Answer with the messages that a predicate lets pass, when it has said which."""
        assert wanted.predicate is not None
        records, candidates = _candidates(found)

        def judged(verdicts: bytes | PredicateFailed) -> None:
            if isinstance(verdicts, PredicateFailed):
                refusal = pull.command.reply(ResponseCode.SYSTEM_ERROR, str(verdicts), {}, b"")
                deferred.answer((refusal,))
                return
            kept = [record for record, passes in zip(records, verdicts, strict=True) if passes]
            passed = dataclasses.replace(
                found,
                status=GetStatus.FOUND if kept else GetStatus.NO_MATCHED_MESSAGE,
                chunks=kept,
                message_count=len(kept),
                byte_count=sum(map(len, kept)),
            )
            answer = self._answer(pull, passed, self._code(pull, passed))
            deferred.answer(answer if isinstance(answer, bytes) else (answer,))

        self._predicates.judge(wanted.predicate, candidates, judged)

    # Offsets that are not there.

    def _moved_to(self, pull: Pull, found: GetResult) -> int:
        """Where to go on instead: RocketMQ says the end, and so a group skips what it never saw."""
        if pull.offset <= found.max_offset:
            return int(found.next_offset)
        place = self._offsets.place_of_push(
            pull.topic, pull.group.group_name, pull.queue_id, first=int(found.min_offset)
        )
        return int(found.next_offset) if place is None else min(place, int(found.max_offset))

    def _note_moved(self, pull: Pull, found: GetResult, next_offset: int) -> None:
        """Leave an event for whoever watches over consumers; not more often than is of use."""
        key = (pull.group.group_name, pull.topic, pull.queue_id)
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._events.get(key, now_ms):
            return
        if len(self._events) >= _EVENTS_KEPT_MAX:
            self._events.clear()
        self._events[key] = now_ms + _EVENT_INTERVAL_MS
        logger.info(
            "group=%s topic=%s queue=%d asked for offset %d, now %d of %d to %d",
            *key, pull.offset, next_offset, found.min_offset, found.max_offset,
        )  # fmt: skip
        if not self._store.is_writable:
            return
        queue = MessageQueue(pull.topic, self._identity.name, pull.queue_id)
        event = OffsetMovedEvent(pull.group.group_name, queue, pull.offset, next_offset)
        group = pull.group.group_name
        properties = encode_properties({Property.KEYS: group, Property.TAGS: group})
        store_host = self._identity.store_host
        self._store.put(
            [
                PutMessage(
                    OFFSET_MOVED_EVENT_TOPIC,
                    0,
                    event.to_json(),
                    properties,
                    self._clock.now_ms(),
                    store_host,
                    store_host,
                )
            ]
        )


def _candidates(found: GetResult) -> tuple[list[bytes | memoryview], list[Candidate]]:
    """The records of a read one by one, and what a predicate is told of each."""
    records: list[bytes | memoryview] = []
    candidates = []
    for chunk in found.chunks:
        at = 0
        for one in decode_records(chunk, check_crc=False):
            records.append(chunk[at : at + one.size_bytes])
            at += one.size_bytes
            text = properties_text(records[-1])
            candidates.append(
                Candidate(
                    one.topic,
                    text,
                    one.body,
                    one.sys_flag,
                    one.queue_id,
                    one.queue_offset,
                    one.born_at_ms,
                    one.stored_at_ms,
                    one.reconsume_times,
                )
            )
    return records, candidates


def _typed(command: Command) -> PullFields:
    header = PullMessageRequest.from_fields(command.fields)
    return PullFields(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        header.sys_flag,
        header.commit_offset,
        header.suspend_timeout_millis,
        header.subscription,
        header.sub_version,
        header.expression_type,
    )


def _typed_bytes(text: str) -> int:
    # Decimal digits only, as every number of a header; a negative one asks for nothing special.
    if not text.removeprefix("-").isdecimal() or len(text) > 11:
        raise InvalidHeader("PullMessageRequest", "maxMsgBytes", f"not a number: {text[:32]}")
    return int(text)
