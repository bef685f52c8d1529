"""Delivery: one message or batch on its way, with all its tries.

A try is repeated at another broker after a network error and, where the caller waits, after the
codes of RETRY_CODES. SYSTEM_BUSY is flow control: it goes to the caller, unless retry_system_busy
is set.

A broker group that chooses its master itself has none for a moment after it lost one. Such a try
does not count: the route is asked for again, and the next try follows, as long as there is time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..errors import BrokerError, ConnectFailed, NoRoute, SkylarkError, TransportError
from ..model.queue import MessageQueue
from ..protocol.codes import ResponseCode
from ..remote import SendStatus
from .destinations import Destinations
from .hooks import CommunicationMode
from .latency import LatencyTable
from .outgoing import Outgoing
from .producer_config import ProducerConfig
from .queue_choice import PublishInfo
from .receipts import SendReceipt
from .send_failures import BUSY_CODES, failed_send, refused_send
from .send_hooks import SendHooks
from .send_requests import SendRequests, receipts_of
from .session import Session

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)


ELECTION_PAUSE_MS: Final = 150
NOT_LEADER: Final = "[NOT_LEADER]"  # What such a remark begins with.
_MEMBERS_MIN: Final = 2  # That are left of a group of three.


@dataclass(slots=True)
class _Tries:
    """What the tries of one message have come to so far."""

    brokers: list[str] = field(default_factory=list)
    receipts: tuple[SendReceipt, ...] = ()
    last_error: SkylarkError | None = None
    is_ambiguous: bool = False  # A broker may have stored it and not been heard.
    busy_count: int = 0

    @property
    def last_broker(self) -> str | None:
        return self.brokers[-1] if self.brokers else None


class Delivery:
    """Brings the messages of one producer to brokers."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        destinations: Destinations,
        requests: SendRequests,
        hooks: SendHooks,
        latency: LatencyTable | None,
    ) -> None:
        self._session = session
        self._config = config
        self._clock = session.clock
        self._destinations = destinations
        self._requests = requests
        self._hooks = hooks
        self._latency = latency

    async def deliver(
        self,
        outgoing: Outgoing,
        budget_ms: int,
        mode: CommunicationMode = CommunicationMode.SYNC,
        *,
        is_reply: bool = False,
        failed: tuple[int, MessageQueue, TransportError | BrokerError] | None = None,
    ) -> tuple[SendReceipt, ...]:
        """Try until a broker has stored it; the first try may have failed already, at a time."""
        clock = self._clock
        is_sync = mode is CommunicationMode.SYNC
        began_ms = clock.monotonic_ms() if failed is None else failed[0]
        tries_max = self._tries_max(is_sync)
        tries = _Tries()
        while len(tries.brokers) < tries_max:
            rest_ms = budget_ms - (clock.monotonic_ms() - began_ms)
            try:
                info = await self._destinations.find(outgoing.topic)
            except NoRoute:
                if await self._elects(outgoing.topic, None, rest_ms):
                    continue
                self._session.doubt_route(outgoing.topic)
                raise
            if failed is None:
                queue = self._next_queue(info, tries.last_broker, is_sync)
            else:
                queue = failed[1]
            rest_ms = budget_ms - (clock.monotonic_ms() - began_ms)
            if rest_ms <= 0 and failed is None:
                break
            tries.brokers.append(queue.broker_name)
            try:
                if failed is not None:
                    failure, failed = failed[2], None
                    raise failure
                receipts = await self._try(outgoing, info, queue, rest_ms, mode, is_reply=is_reply)
            except TransportError as error:
                tries.last_error = error
                tries.is_ambiguous = tries.is_ambiguous or not isinstance(error, ConnectFailed)
                if await self._elects(outgoing.topic, queue.broker_name, rest_ms):
                    tries_max += 1
                else:
                    self._session.doubt_route(outgoing.topic)
                continue
            except BrokerError as error:
                tries.last_error = error
                if is_not_leader(error):
                    if await self._pause(outgoing.topic, rest_ms):
                        tries_max += 1
                    continue
                if await self._may_try_again(error, tries, outgoing.topic, is_sync, rest_ms):
                    continue
                if tries.receipts:
                    break
                raise refused_send(error, queue, tries.brokers, tries.is_ambiguous) from error
            tries.receipts = receipts
            if info.is_borrowed:
                self._destinations.note_stored(info, queue)
            if self._is_good_enough(receipts, is_sync):
                return receipts
        if tries.receipts:
            return tries.receipts  # Stored, and not as safe as asked for: still the best we have.
        cost_ms = clock.monotonic_ms() - began_ms
        raise failed_send(
            outgoing, tries.brokers, cost_ms, tries.last_error, tries.is_ambiguous
        ) from tries.last_error

    async def _elects(self, topic: str, broker_name: str | None, rest_ms: int) -> bool:
        """Whether a group may just be choosing its master; then a moment has passed."""
        route = self._session.routes.known(topic)
        for data in () if route is None else route.brokers:
            if broker_name is None:
                is_likely = data.master_address is None
            else:
                left = len(data.addresses) - (data.master_address is not None)
                is_likely = broker_name == data.broker_name and left >= _MEMBERS_MIN
            if is_likely:
                return await self._pause(topic, rest_ms)
        return False

    async def _pause(self, topic: str, rest_ms: int) -> bool:
        """Wait a moment and ask for the route again; False where there is no time for it."""
        if rest_ms <= ELECTION_PAUSE_MS:
            return False
        await self._clock.sleep_ms(ELECTION_PAUSE_MS)
        await self._session.routes.refresh(topic)
        return True

    def _tries_max(self, is_sync: bool) -> int:
        if is_sync:
            return 1 + self._config.retry_times_when_send_failed
        return 1 + self._config.retry_times_when_send_async_failed

    def _next_queue(self, info: PublishInfo, last: str | None, is_sync: bool) -> MessageQueue:
        queue = self._destinations.next_queue(info, last)
        if last is not None and self._config.retry_async_on_same_broker and not is_sync:
            count = info.write_counts.get(last, 0)
            if count:
                return MessageQueue(info.topic, last, queue.queue_id % count)
        return queue

    async def _may_try_again(
        self, error: BrokerError, tries: _Tries, topic: str, is_sync: bool, rest_ms: int
    ) -> bool:
        """Whether a refusal may be followed by another try; a busy broker is given a moment."""
        if is_sync and error.code in RETRY_CODES:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._session.doubt_route(topic)
            return True
        if self._config.retry_system_busy and error.code in BUSY_CODES:
            pause_ms = self._config.busy_backoff_ms << tries.busy_count
            tries.busy_count += 1
            await self._clock.sleep_ms(min(pause_ms, max(0, rest_ms)))
            return True
        return False

    def _is_good_enough(self, receipts: tuple[SendReceipt, ...], is_sync: bool) -> bool:
        return (
            receipts[0].status is SendStatus.SEND_OK
            or not is_sync
            or not self._config.retry_another_broker_when_not_store_ok
        )

    async def deliver_to(
        self, outgoing: Outgoing, info: PublishInfo, queue: MessageQueue, budget_ms: int
    ) -> tuple[SendReceipt, ...]:
        """One try, to the queue that the caller wants; one at each leader that is not one."""
        began_ms = self._clock.monotonic_ms()
        tried = [queue.broker_name]
        rest_ms = budget_ms
        try:
            while True:
                try:
                    mode = CommunicationMode.SYNC
                    receipts = await self._try(outgoing, info, queue, rest_ms, mode)
                    break
                except (BrokerError, ConnectFailed) as error:
                    # Nothing was stored, so the order is not in danger.
                    rest_ms = budget_ms - (self._clock.monotonic_ms() - began_ms)
                    if isinstance(error, ConnectFailed):
                        again = await self._elects(outgoing.topic, queue.broker_name, rest_ms)
                    else:
                        again = is_not_leader(error) and await self._pause(outgoing.topic, rest_ms)
                    if not again:
                        raise
                    rest_ms -= ELECTION_PAUSE_MS
                    info = await self._destinations.find(outgoing.topic)
        except BrokerError as error:
            raise refused_send(error, queue, tried, False) from error
        except TransportError as error:
            self._session.doubt_route(outgoing.topic)
            cost_ms = self._clock.monotonic_ms() - began_ms
            is_ambiguous = not isinstance(error, ConnectFailed)
            raise failed_send(outgoing, tried, cost_ms, error, is_ambiguous) from error
        if info.is_borrowed:
            self._destinations.note_stored(info, queue)
        return receipts

    async def _try(
        self,
        outgoing: Outgoing,
        info: PublishInfo,
        queue: MessageQueue,
        timeout_ms: int,
        mode: CommunicationMode,
        *,
        is_reply: bool = False,
    ) -> tuple[SendReceipt, ...]:
        address = self._destinations.address_of(info, queue)
        context = self._hooks.before(outgoing, queue, address, mode)
        command = self._requests.command(outgoing, queue, is_reply=is_reply)
        latency = self._latency
        if context is None and latency is None:
            answer = await self._session.channels.call(address, command, timeout_ms)
            return receipts_of(outgoing, queue, answer, address)
        began_ms = self._clock.monotonic_ms()
        receipts: tuple[SendReceipt, ...] = ()
        failure: Exception | None = None
        try:
            answer = await self._session.channels.call(address, command, timeout_ms)
            receipts = receipts_of(outgoing, queue, answer, address)
            return receipts
        except SkylarkError as error:
            failure = error
            raise
        finally:
            cost_ms = self._clock.monotonic_ms() - began_ms
            if latency is not None:
                latency.update(queue.broker_name, cost_ms, failed=failure is not None)
            if context is not None:
                self._hooks.after(context, cost_ms, receipts, failure)


def is_not_leader(error: BrokerError) -> bool:
    """Whether a broker was asked that does not lead its group, or not any more."""
    return error.code == ResponseCode.SERVICE_NOT_AVAILABLE and (error.remark or "").startswith(
        NOT_LEADER
    )
