"""Delivery: one message or batch on its way, with all its tries.

A try is repeated at another broker after a network error and, where the caller waits, after the
codes of RETRY_CODES. SYSTEM_BUSY is flow control: it goes to the caller, unless retry_system_busy
is set.
"""

from __future__ import annotations

from typing import Final

from ..errors import BrokerError, ConnectFailed, SkylarkError, TransportError
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
        config = self._config
        clock = self._clock
        topic = outgoing.topic
        began_ms = clock.monotonic_ms() if failed is None else failed[0]
        is_sync = mode is CommunicationMode.SYNC
        tries_max = 1 + (
            config.retry_times_when_send_failed
            if is_sync
            else config.retry_times_when_send_async_failed
        )
        tried: list[str] = []
        last_error: SkylarkError | None = None
        receipts: tuple[SendReceipt, ...] = ()
        avoid: str | None = None
        is_ambiguous = False
        refusals = 0
        while len(tried) < tries_max:
            info = await self._destinations.find(topic)
            queue = self._destinations.next_queue(info, avoid) if failed is None else failed[1]
            rest_ms = budget_ms - (clock.monotonic_ms() - began_ms)
            if rest_ms <= 0 and failed is None:
                break
            if avoid is not None and config.retry_async_on_same_broker and not is_sync:
                count = info.write_counts.get(avoid, 0)
                if count:
                    queue = MessageQueue(topic, avoid, queue.queue_id % count)
            avoid = queue.broker_name
            tried.append(queue.broker_name)
            try:
                if failed is not None:
                    failure, failed = failed[2], None
                    raise failure
                receipts = await self._try(outgoing, info, queue, rest_ms, mode, is_reply=is_reply)
            except TransportError as error:
                last_error = error
                is_ambiguous = is_ambiguous or not isinstance(error, ConnectFailed)
                self._session.doubt_route(topic)
                continue
            except BrokerError as error:
                last_error = error
                if is_sync and error.code in RETRY_CODES:
                    if error.code == ResponseCode.TOPIC_NOT_EXIST:
                        self._session.doubt_route(topic)
                    continue
                if config.retry_system_busy and error.code in BUSY_CODES:
                    pause_ms = config.busy_backoff_ms << refusals
                    refusals += 1
                    await clock.sleep_ms(min(pause_ms, max(0, rest_ms)))
                    continue
                if receipts:
                    break
                raise refused_send(error, queue, tried, is_ambiguous) from error
            if info.is_borrowed:
                self._destinations.note_stored(info, queue)
            if (
                receipts[0].status is SendStatus.SEND_OK
                or not is_sync
                or not config.retry_another_broker_when_not_store_ok
            ):
                return receipts
        if receipts:
            return receipts  # Stored, and not as safe as asked for: still the best we have.
        cost_ms = clock.monotonic_ms() - began_ms
        raise failed_send(outgoing, tried, cost_ms, last_error, is_ambiguous) from last_error

    async def deliver_to(
        self, outgoing: Outgoing, info: PublishInfo, queue: MessageQueue, budget_ms: int
    ) -> tuple[SendReceipt, ...]:
        """One try, to the queue that the caller wants."""
        began_ms = self._clock.monotonic_ms()
        tried = [queue.broker_name]
        try:
            mode = CommunicationMode.SYNC
            receipts = await self._try(outgoing, info, queue, budget_ms, mode)
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
