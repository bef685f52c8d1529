"""Transactions: half messages of one producer, their ends, and what to answer when asked about one.

    async with producer.transaction() as transaction:
        await transaction.send(Message("Transfers", b"..."))
        ...                                   # What must happen together with the message.

Leaving the block commits, an exception rolls back. Where the end does not reach the broker it asks,
and a check is answered by the first who knows:

    this process       it remembers what it decided, for as long as it lives
    the check          a function of the application, which any process of the group may have; it
                       looks where the decision is kept, a database say

A half that was sent twice because an answer was lost may lie on two brokers: the one that the
receipt does not name is rolled back.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from ..errors import (
    BrokerError,
    ClientError,
    InvalidBody,
    InvalidMessage,
    InvalidMessageId,
    NoRoute,
    SendFailed,
    SkylarkError,
    TransportError,
)
from ..model.message import Message, Property, StoredMessage, TransactionType
from ..model.queue import MessageQueue
from ..protocol.codes import ResponseCode
from ..protocol.compression import plain_body
from ..protocol.headers import CheckTransactionStateRequest, EndTransactionRequest
from ..protocol.message_id import parse_offset_id
from ..remote import SendStatus
from .destinations import Destinations, wanted_queue
from .hooks import MessageType
from .receipts import SendReceipt
from .session import Session
from .trace import EndTransactionTrace, TraceWriter

if TYPE_CHECKING:
    from .delivery import Delivery
    from .packing import Packer
    from .producer_config import ProducerConfig

logger = logging.getLogger(__name__)

OWN_MAX: Final = 100_000  # How many of its transactions a producer remembers.
END_TRIES: Final = 3
TRANSACTION_PROPERTY: Final = "TRAN_ID"  # In every message of a transaction: its id.


class TransactionState(IntEnum):
    """How a transaction shall end; the numbers are those of the wire."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


# As traces name them.
_TRACED: Final = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}

CheckAnswer = TransactionState | bool | None
Check = Callable[[StoredMessage], CheckAnswer | Awaitable[CheckAnswer]]
"""Says how the transaction of a half message ended: True commits, False rolls back, None: unknown.

A plain function must not block; a coroutine function may wait.
"""


class HalfReceipt(NamedTuple):
    """A half message that a broker has stored, and who stored it."""

    receipt: SendReceipt
    address: str
    message: Message


class _Own:
    """What this process knows of one of its half messages."""

    __slots__ = ("broker_name", "state")

    def __init__(self) -> None:
        self.state = TransactionState.UNKNOWN
        self.broker_name: str | None = None


class Transactions:
    """All transactions of one producer."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: ProducerConfig,
        *,
        packer: Packer,
        delivery: Delivery,
        destinations: Destinations,
        check: Check | None,
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._packer = packer
        self._delivery = delivery
        self._destinations = destinations
        self.check_function = check
        self._own: dict[str, _Own] = {}  # By the message's unique id.
        self._checks_under_way = 0
        self._has_warned = False
        self.tracer: TraceWriter | None = None

    # Halves.

    async def send_half(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
        transaction_id: str | None = None,
        strips_delay: bool = False,
    ) -> HalfReceipt:
        """Send a half message; raises ClientError unless it is stored as safely as asked."""
        if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
            if not strips_delay:
                raise InvalidMessage(
                    "a transactional message cannot be delayed: RocketMQ's brokers lose those",
                    hint="send it without a delay, or let its consumer send the delayed one",
                )
            message = replace(message, delay_level=0, delay_ms=None, deliver_at_ms=None)
        topic = self._session.wrap(message.topic)
        message_id = self._session.unique_ids.next()
        marks = {Property.TRAN_MSG: "true", Property.PGROUP: self._group}
        if transaction_id is not None:
            marks[TRANSACTION_PROPERTY] = transaction_id
        outgoing = self._packer.half(message, topic, marks, message_id)
        outgoing.sys_flag |= TransactionType.PREPARED
        outgoing.message_type = MessageType.TRANS_HALF
        own = self._own[message_id] = _Own()
        if len(self._own) > OWN_MAX:
            del self._own[next(iter(self._own))]
        budget_ms = self._config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        try:
            if queue is None and key is None:
                (receipt,) = await self._delivery.deliver(outgoing, budget_ms)
            else:
                info = await self._destinations.find(topic)
                chosen = wanted_queue(info, message, queue, key, None, None)
                (receipt,) = await self._delivery.deliver_to(outgoing, info, chosen, budget_ms)
        except BaseException:
            own.state = TransactionState.ROLLBACK  # It may be stored all the same.
            raise
        own.broker_name = receipt.queue.broker_name
        receipt = receipt._replace(transaction_id=message_id)
        half = HalfReceipt(receipt, self._address(receipt), message)
        if receipt.status is not SendStatus.SEND_OK:
            own.state = TransactionState.ROLLBACK
            await self.end(half, TransactionState.ROLLBACK)
            raise SendFailed(
                f"the half message is stored, but not as safely as asked: {receipt.status.name}",
                hint="it is rolled back; send it again",
                broker=receipt.queue.broker_name,
            )
        return half

    def _address(self, receipt: SendReceipt) -> str:
        address = self._session.master_address(receipt.queue.broker_name)
        if address is not None:
            return address
        return str(parse_offset_id(receipt.offset_id).host)

    # Ends.

    async def end(
        self, half: HalfReceipt, state: TransactionState, *, remark: str | None = None
    ) -> bool:
        """Tell the broker how a half message ends; False where it could not be told, and will ask.

        Raises BrokerError where it refuses: the half message has ended in another way.
        """
        receipt = half.receipt
        own = self._own.get(receipt.message_id)
        if own is not None:
            own.state = state
        message = half.message
        self._trace(
            state, message.topic, receipt.message_id, message.tag, tuple(message.keys), half.address
        )
        if state is TransactionState.UNKNOWN:
            return False
        try:
            place = parse_offset_id(receipt.offset_id)
        except InvalidMessageId as error:
            raise ClientError(
                f"the broker gave a half message no usable id: {error}",
                hint="look at the broker's log",
                broker=receipt.queue.broker_name,
            ) from error
        header = EndTransactionRequest(
            producer_group=self._group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=place.physical_offset,
            commit_or_rollback=int(state),
            msg_id=receipt.message_id,
            transaction_id=receipt.transaction_id,
            broker_name=receipt.queue.broker_name,
        )
        for _ in range(END_TRIES):
            address = self._session.master_address(receipt.queue.broker_name) or half.address
            try:
                # To say the same twice is harmless, and not to be heard is not.
                await self._session.broker(address).confirm_transaction(
                    header, timeout_ms=self._config.send_msg_timeout_ms, remark=remark
                )
            except (TransportError, NoRoute) as error:
                logger.info("id=%s end not confirmed: %s", receipt.message_id, error)
                continue
            except BrokerError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:
                    raise
                logger.info("id=%s end not stored: %s", receipt.message_id, error)
                continue
            return True
        logger.warning(
            "id=%s: broker %s was not told of the %s, and will ask",
            receipt.message_id, half.address, state.name.lower(),
        )  # fmt: skip
        return False

    # Checks.

    async def check(
        self, header: CheckTransactionStateRequest, half: StoredMessage, address: str
    ) -> bool:
        """Answer a broker's question about a half message; False where nothing is known of it."""
        state = self._remembered(half, header)
        if state is TransactionState.UNKNOWN and not self._is_under_way(half):
            state = await self._asked(half)
        self._trace(
            state, half.topic, half.unique_id or "", half.tag, half.keys, address, from_check=True
        )
        if state is TransactionState.UNKNOWN:
            return False
        answer = EndTransactionRequest(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=int(state),
            from_transaction_check=True,
            msg_id=header.msg_id,
            transaction_id=header.transaction_id,
            broker_name=header.broker_name,
        )
        try:
            await self._session.broker(address).end_transaction(answer)
        except TransportError as error:
            logger.info("id=%s answer to a check lost: %s", header.msg_id, error)
        return True

    def _is_under_way(self, half: StoredMessage) -> bool:
        own = self._own.get(half.unique_id or "")
        return own is not None and own.state is TransactionState.UNKNOWN

    def _remembered(
        self, half: StoredMessage, header: CheckTransactionStateRequest
    ) -> TransactionState:
        own = self._own.get(half.unique_id or "")
        if own is None:
            return TransactionState.UNKNOWN
        asker = header.broker_name
        if own.broker_name is not None and asker is not None and asker != own.broker_name:
            return TransactionState.ROLLBACK  # A try whose answer was lost; another one counts.
        return own.state

    async def _asked(self, half: StoredMessage) -> TransactionState:
        check = self.check_function
        if check is None:
            if self._has_warned:
                return TransactionState.UNKNOWN
            self._has_warned = True
            logger.warning(
                "group=%s asked about half message %s of %s, and has nobody who knows: give the "
                "producer a check", self._group, half.unique_id, half.topic,
            )  # fmt: skip
            return TransactionState.UNKNOWN
        if self._checks_under_way >= self._config.check_request_hold_max:
            logger.warning("group=%s too many checks under way, this one is dropped", self._group)
            return TransactionState.UNKNOWN
        self._checks_under_way += 1
        try:
            answer = check(self._as_sent(half))
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception:
            # The application's error: it is asked again, and others of the group are as well.
            logger.exception("group=%s the check of %s failed", self._group, half.unique_id)
            return TransactionState.UNKNOWN
        finally:
            self._checks_under_way -= 1
        return state_of(answer)

    def _as_sent(self, half: StoredMessage) -> StoredMessage:
        try:
            body = plain_body(half)
        except InvalidBody as error:
            logger.warning("id=%s body is shown as it is: %s", half.unique_id, error)
            body = half.body
        return replace(half, topic=self._session.unwrap(half.topic), body=body)

    def _trace(
        self,
        state: TransactionState,
        topic: str,
        message_id: str,
        tag: str | None,
        keys: tuple[str, ...],
        address: str,
        *,
        from_check: bool = False,
    ) -> None:
        if self.tracer is not None:
            self.tracer.add(
                EndTransactionTrace(
                    at_ms=self._session.clock.now_ms(),
                    group=self._config.group,
                    topic=self._session.unwrap(topic),
                    message_id=message_id,
                    transaction_id=message_id,
                    state=_TRACED[state],
                    from_check=from_check,
                    tag=tag or "",
                    message_keys=keys,
                    store_host=address,
                )
            )

    def forget(self, message_id: str) -> None:
        """This process does not know how a transaction ended: the check decides."""
        self._own.pop(message_id, None)

    def new_id(self) -> str:
        """An id for a transaction."""
        return self._session.unique_ids.next()


def state_of(answer: CheckAnswer) -> TransactionState:
    """What an answer of a check stands for; what is none of them is unknown."""
    if answer is True:
        return TransactionState.COMMIT
    if answer is False:
        return TransactionState.ROLLBACK
    return answer if isinstance(answer, TransactionState) else TransactionState.UNKNOWN


class Transaction:
    """Messages that are seen together with what else the block does, or not at all."""

    def __init__(self, owner: Transactions, *, id: str | None = None) -> None:
        self._owner = owner
        self._halves: list[HalfReceipt] = []
        self._is_open = False
        self.id = owner.new_id() if id is None else id
        self.state = TransactionState.UNKNOWN
        self.is_confirmed = False  # Whether every broker knows how it ended.

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_open:
            return
        if error is None:
            await self.commit()
        else:
            await self.rollback(remark=repr(error)[:500])

    @property
    def receipts(self) -> tuple[SendReceipt, ...]:
        """Of the half messages, in the order in which they were sent."""
        return tuple(half.receipt for half in self._halves)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message that nobody sees before the commit; raises ClientError."""
        if not self._is_open:
            raise ClientError(
                "the transaction is not open", hint="use it inside `async with` and before its end"
            )
        half = await self._owner.send_half(
            message, queue=queue, key=key, timeout_ms=timeout_ms, transaction_id=self.id
        )
        self._halves.append(half)
        return half.receipt

    async def commit(self) -> None:
        """Let the messages be seen; raises BrokerError where that is too late."""
        await self._end(TransactionState.COMMIT, None)

    async def rollback(self, *, remark: str | None = None) -> None:
        """Let the messages never be seen; what a broker does not hear now, it asks."""
        await self._end(TransactionState.ROLLBACK, remark)

    async def leave(self) -> None:
        """Leave the end to the checks: this process does not know it."""
        self._is_open = False
        for half in self._halves:
            self._owner.forget(half.receipt.message_id)

    async def _end(self, state: TransactionState, remark: str | None) -> None:
        self._is_open = False
        self.state = state
        confirmed = True
        refused: SkylarkError | None = None
        for half in self._halves:
            try:
                confirmed = await self._owner.end(half, state, remark=remark) and confirmed
            except BrokerError as error:
                confirmed = False
                refused = error
                logger.warning("id=%s %s refused: %s", self.id, state.name.lower(), error)
        self.is_confirmed = confirmed
        if refused is not None and state is TransactionState.COMMIT:
            raise refused


class TransactionListener:
    """What a TransactionalProducer calls; subclass it. Both may be coroutine functions."""

    def execute(
        self, message: Message, argument: Any, transaction_id: str
    ) -> CheckAnswer | Awaitable[CheckAnswer]:
        """The half message is stored: do what belongs to it, and say how that ended."""
        raise NotImplementedError

    def check(self, half: StoredMessage) -> CheckAnswer | Awaitable[CheckAnswer]:
        """How did the transaction of a half message end that any of the group may have sent?"""
        raise NotImplementedError
