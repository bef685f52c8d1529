"""Puller: reads one queue, as long as it is ours.

One request is under way for each queue. The broker holds it while there is nothing to read, so a
new message arrives as soon as it is stored, and an idle queue costs one request in 15 seconds.

    answer                        what follows
    messages                      the next pull at once
    nothing new, nothing matched  the next pull at once, from where the broker says
    offset moved, from a master   the queue starts over where the broker says
    offset moved, from a replica  it lags behind: the next pull goes to the master
    a refusal, or no answer       the next pull after a second, from another member if there is one
    slow down (code 215)          the next pull after 20 ms

Every pull carries the subscription itself. The broker then does not look at what the group's last
heartbeat said, so a member whose subscription differs cannot make us miss messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ..clock import Clock
from ..errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    InvalidBody,
    RemoteProtocolError,
    TransportError,
)
from ..model.group import Subscription
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..model.route import MASTER_ID
from ..model.topic import is_retry_topic
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.headers import PullSysFlag
from ..protocol.record import decode_records
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .session import Session
from .subscriptions import tag_check

logger = logging.getLogger(__name__)

SLOW_DOWN_MS: Final = 20
AVOID_MS: Final = 2_000  # A member that did not answer is passed over for so long.

_FLOW_CONTROL: Final = 215
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_NO_MATCH: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class PullOwner(Protocol):
    """What a puller asks of its consumer."""

    def subscription_of(self, topic: str) -> Subscription | None:
        """What it wants of a topic; None once it wants nothing."""
        ...

    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""
        ...

    def offset_moved(self, queue: ProcessQueue, offset: int) -> None:
        """A queue no longer has what we asked for; it goes on elsewhere."""
        ...

    def broker_in_trouble(self, address: str) -> None:
        """A broker is gone."""
        ...

    async def confirm(self, queue: ProcessQueue) -> bool:
        """Ask whether what is held of a doubtful queue still counts; False: ask again later."""
        ...

    def commit_noted(self, queue: MessageQueue, offset: int) -> None:
        """A pull has taken our progress along."""
        ...

    def exceeded(self, queue: ProcessQueue) -> str | None:
        """Why pulling should wait, in words."""
        ...


class Puller:
    """Pulls for one ProcessQueue."""

    def __init__(
        self,
        session: Session,
        group: str,
        queue: ProcessQueue,
        owner: PullOwner,
        *,
        batch_size: int,
        interval_ms: int = 0,
        retry_ms: int = 1_000,
        suspend_ms: int = 15_000,
        timeout_ms: int = 30_000,
        commits: bool = True,
        lite: bool = False,
    ) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._group = group
        self._queue = queue
        self._owner = owner
        self._figures = queue.figures
        self._batch_size = batch_size
        self._interval_ms = interval_ms
        self._retry_ms = retry_ms
        self._suspend_ms = suspend_ms
        self._timeout_ms = timeout_ms
        self._commits = commits
        self._flags = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
        if lite:
            self._flags |= int(PullSysFlag.LITE_PULL)
        self._broker_id = MASTER_ID
        self._avoided: dict[str, int] = {}  # Address → until when; monotonic.
        self._subscription: Subscription | None = None
        self._fields: dict[str, str] = {}
        self._has_tag: Callable[[StoredMessage], bool] | None = None
        self._is_retry = is_retry_topic(queue.queue.topic)
        self._said: object = None

    async def run(self) -> None:
        """Pull until the queue is dropped; cancel to stop at once."""
        queue = self._queue
        while not queue.is_dropped:
            queue.pulled_at_ms = self._clock.monotonic_ms()
            pause_ms = await self._turn()
            if pause_ms:
                await self._clock.sleep_ms(pause_ms)

    async def _turn(self) -> int:
        """Pull once; return how long to wait before the next time."""
        queue = self._queue
        is_confirmed = not queue.is_doubtful or await self._owner.confirm(queue)
        if queue.is_dropped:
            return 0
        if queue.is_paused or (reason := self._owner.exceeded(queue)) is not None:
            await self._wait_for_room("paused" if queue.is_paused else reason)
            return 0
        subscription = self._owner.subscription_of(queue.queue.topic)
        if subscription is None:
            return self._retry_ms
        if subscription is not self._subscription:
            self._adopt(subscription)
        address = self._address()
        if address is None:
            logger.info("queue=%s no address of its broker is known", queue)
            self._session.doubt_route(queue.queue.topic)
            return self._retry_ms
        master = self._session.master_address(queue.queue.broker_name)
        is_master = address == master
        if master is None:
            self._session.doubt_route(queue.queue.topic)  # Somebody may have become one.
        if is_master and not is_confirmed:
            # Nor may it be asked for messages yet. A replica may, and takes no commits.
            self._avoided[address] = self._clock.monotonic_ms() + AVOID_MS
            address, is_master = self._address(), False
            if address is None or address == self._session.master_address(queue.queue.broker_name):
                return self._retry_ms
        offset, committed = queue.next_offset, queue.commit_offset
        started_ms = self._clock.monotonic_ms()
        try:
            answer = await self._session.call(
                address, self._command(offset, committed if is_master else 0), self._timeout_ms
            )
            if queue.is_dropped:
                return 0
            now_ms = self._clock.monotonic_ms()
            queue.pulled_at_ms = now_ms
            self._figures.pulls += 1
            self._figures.pull_ms += now_ms - started_ms
            if answer.code not in (_SUCCESS, _NOT_FOUND, _NO_MATCH, _MOVED):
                raise BrokerError(answer.code, answer.remark, address)
            if queue.next_offset != offset:
                return 0  # Somebody has set the queue elsewhere while this was under way.
            if is_master and self._commits and committed > 0:
                self._owner.commit_noted(queue.queue, committed)
            return self._take(answer, offset, is_master)
        except TransportError as error:
            self._avoided[address] = self._clock.monotonic_ms() + AVOID_MS
            if isinstance(error, ConnectFailed | ConnectionLost):
                self._owner.broker_in_trouble(address)
            self._session.doubt_route(queue.queue.topic)
            return self._say(error)
        except BrokerError as error:
            if error.code == _FLOW_CONTROL:
                return SLOW_DOWN_MS
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._session.doubt_route(queue.queue.topic)
            return self._say(error)
        except (InvalidBody, RemoteProtocolError, KeyError, ValueError) as error:
            return self._say(error)

    def _take(self, answer: Command, offset: int, is_master: bool) -> int:
        queue = self._queue
        fields = answer.fields
        next_offset = int(fields["nextBeginOffset"])
        min_offset, max_offset = int(fields["minOffset"]), int(fields["maxOffset"])
        queue.max_offset = max_offset
        self._broker_id = int(fields["suggestWhichBrokerId"])
        if answer.code == _MOVED:
            if is_master:
                self._owner.offset_moved(queue, next_offset)
                return 0
            # A replica that lags has less than the group has read. Its word must not set us back.
            self._broker_id = MASTER_ID
            return self._retry_ms
        if answer.code == _SUCCESS:
            records = decode_records(answer.body)
            self._require_in_order(records, offset, next_offset)
            self._figures.pulled += len(records)
            if self._has_tag is not None:
                records = list(filter(self._has_tag, records))
            messages = self._received(records, min_offset, max_offset)
            queue.add(messages, next_offset)
            if messages:
                self._owner.messages_arrived(queue, messages)
        else:
            if next_offset < offset:
                raise RemoteProtocolError(f"asked for {offset}, sent back to {next_offset}")
            queue.add((), next_offset)
        self._said = None
        return self._interval_ms

    def _received(
        self, records: list[StoredMessage], min_offset: int, max_offset: int
    ) -> list[ReceivedMessage]:
        place = self._queue.queue
        if not self._is_retry:
            topic = self._session.unwrap(place.topic)
            return [ReceivedMessage(one, place, topic, min_offset, max_offset) for one in records]
        return [
            ReceivedMessage(
                one,
                place,
                self._session.unwrap(one.properties.get(Property.RETRY_TOPIC) or one.topic),
                min_offset,
                max_offset,
            )
            for one in records
        ]

    @staticmethod
    def _require_in_order(records: list[StoredMessage], offset: int, next_offset: int) -> None:
        before = offset - 1
        for record in records:
            if record.queue_offset <= before:
                raise RemoteProtocolError(
                    f"offset {record.queue_offset} came after {before}, asked for {offset}"
                )
            before = record.queue_offset
        if next_offset <= before:
            raise RemoteProtocolError(f"offset {before} came, and the next is {next_offset}")

    # Where to, and what to ask.

    def _address(self) -> str | None:
        """The member that the broker suggested, the master, or any that has answered lately."""
        data = self._session.broker_data(self._queue.queue.broker_name)
        if data is None:
            return None
        now_ms = self._clock.monotonic_ms()
        first = self._session.read_address(data.broker_name, self._broker_id)
        others = [address for _, address in sorted(data.addresses.items())]
        for address in (first, *others):
            if address is not None and self._avoided.get(address, 0) <= now_ms:
                return address
        return first

    def _adopt(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._has_tag = tag_check(subscription)
        place = self._queue.queue
        self._fields = {
            "consumerGroup": self._group,
            "topic": place.topic,
            "queueId": str(place.queue_id),
            "queueOffset": "0",
            "maxMsgNums": str(self._batch_size),
            "sysFlag": str(self._flags),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(self._suspend_ms),
            "subscription": subscription.expression,
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type,
            "bname": place.broker_name,
        }

    def _command(self, offset: int, committed: int) -> Command:
        fields = self._fields.copy()
        fields["queueOffset"] = str(offset)
        if self._commits and committed > 0:
            fields["commitOffset"] = str(committed)
            fields["sysFlag"] = str(self._flags | int(PullSysFlag.COMMIT_OFFSET))
        return Command.request(RequestCode.PULL_MESSAGE, fields)

    # Waiting.

    async def _wait_for_room(self, reason: str | None) -> None:
        queue = self._queue
        logger.debug("queue=%s pulling waits: %s", queue, reason)
        queue.is_flow_limited = True
        try:
            while not (queue.is_dropped or queue.is_doubtful) and (
                queue.is_paused or self._owner.exceeded(queue) is not None
            ):
                queue.wakes_puller = asyncio.get_running_loop().create_future()
                await queue.wakes_puller
        finally:
            queue.wakes_puller = None
            queue.is_flow_limited = False

    def _say(self, error: Exception) -> int:
        # A broker that is gone is worth one line, not one in every second.
        what = (type(error), getattr(error, "code", None))
        is_damage = isinstance(error, InvalidBody | RemoteProtocolError | KeyError | ValueError)
        level = logging.WARNING if is_damage else logging.INFO
        level = logging.DEBUG if what == self._said else level
        logger.log(level, "queue=%s pull failed: %s", self._queue, error)
        self._said = what
        return self._retry_ms
