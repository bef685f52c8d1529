"""TransactionalProducer: half message, local transaction and end in one call, as in RocketMQ."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import BrokerError
from ..model.message import Message
from ..model.queue import MessageQueue
from .hooks import ForbiddenHook, SendHook
from .producer import Producer, ProducerConfig
from .receipts import SendReceipt
from .session import Session
from .transactions import TransactionListener, TransactionState, state_of

logger = logging.getLogger(__name__)


class TransactionReceipt(NamedTuple):
    """Where the half message lies, and how the local transaction ended."""

    receipt: SendReceipt
    state: TransactionState
    error: Exception | None = None  # What the local transaction raised; the state is then unknown.


class TransactionalProducer(Producer):
    """A producer with a TransactionListener; use mq.transactional_producer(group, listener)."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        listener: TransactionListener,
        *,
        send_hooks: Iterable[SendHook] = (),
        forbidden_hooks: Iterable[ForbiddenHook] = (),
    ) -> None:
        super().__init__(
            session,
            config,
            send_hooks=send_hooks,
            forbidden_hooks=forbidden_hooks,
            check=listener.check,
        )
        self.listener = listener

    async def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        listener: TransactionListener | None = None,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
        strips_delay: bool = False,
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and end the message as that ended.

        Where the half message is not stored, ClientError is raised and nothing is run. A local
        transaction that raises leaves the end to the checks, since nobody knows how far it came.
        """
        self._require_open()
        half = await self._transactions.send_half(
            message, queue=queue, key=key, timeout_ms=timeout_ms, strips_delay=strips_delay
        )
        failure: Exception | None = None
        try:
            answer = (listener or self.listener).execute(message, argument, half.receipt.message_id)
            if inspect.isawaitable(answer):
                answer = await answer
            state = state_of(answer)
        except Exception as error:
            logger.exception("id=%s the local transaction failed", half.receipt.message_id)
            failure, state = error, TransactionState.UNKNOWN
        if state is TransactionState.UNKNOWN:
            self._transactions.forget(half.receipt.message_id)
        else:
            try:
                await self._transactions.end(half, state)
            except BrokerError as error:
                failure = error
        return TransactionReceipt(half.receipt, state, failure)
