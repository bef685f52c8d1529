"""TransactionMQProducer and what belongs to it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, ClassVar

from ..client.transactional_producer import TransactionReceipt
from ..client.transactions import TransactionListener as _TransactionListener
from ..client.transactions import TransactionState
from ..model.message import Message as _Message
from ..model.message import StoredMessage
from ..sync import Producer as _Producer
from ..sync import TransactionalProducer as _TransactionalProducer
from .clients import Instance
from .errors import MQClientException, translated
from .messages import Message, MessageExt, SendResult
from .producers import DefaultMQProducer


class LocalTransactionState(Enum):
    """How a local transaction ended."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"

    def __str__(self) -> str:
        return self.value


_STATES = {
    LocalTransactionState.COMMIT_MESSAGE: TransactionState.COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: TransactionState.ROLLBACK,
    LocalTransactionState.UNKNOW: TransactionState.UNKNOWN,
}
_NAMES = {state: name for name, state in _STATES.items()}


class TransactionListener(ABC):
    """Runs local transactions, and says how they ended when a broker asks."""

    @abstractmethod
    def executeLocalTransaction(self, msg: Message, arg: Any) -> LocalTransactionState | None:
        """The half message is stored. Returning None and raising mean UNKNOW."""

    @abstractmethod
    def checkLocalTransaction(self, msg: MessageExt) -> LocalTransactionState | None:
        """How did the transaction of a half message end?"""


class LocalTransactionExecuter(ABC):
    """Deprecated: the first half of a TransactionListener."""

    @abstractmethod
    def executeLocalTransactionBranch(self, msg: Message, arg: Any) -> LocalTransactionState | None:
        """The half message is stored: run the local transaction."""


class TransactionCheckListener(ABC):
    """Deprecated: the second half of a TransactionListener."""

    @abstractmethod
    def checkLocalTransactionState(self, msg: MessageExt) -> LocalTransactionState | None:
        """How did the transaction of a half message end?"""


class TransactionSendResult(SendResult):
    """Where the half message lies, and how the local transaction ended."""

    def __init__(self, sent: TransactionReceipt) -> None:
        super().__init__(sent.receipt)
        self._state = _NAMES[sent.state]

    def getLocalTransactionState(self) -> LocalTransactionState:
        return self._state


class TransactionMQProducer(DefaultMQProducer):
    """Sends messages that are seen if a local transaction commits, and never if it does not."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "transactionListener": None,
        "transactionCheckListener": None,
        "executorService": None,
        "checkThreadPoolMinSize": 1,
        "checkThreadPoolMaxSize": 1,
        "checkRequestHoldMax": 2_000,
    }

    _check_threads: ThreadPoolExecutor | None = None  # Ours, where no executorService was given.

    def _made(self, instance: Instance, group: str, settings: dict[str, Any]) -> _Producer:
        values = self._values
        settings["check_request_hold_max"] = values["checkRequestHoldMax"]
        threads = values["executorService"]
        if threads is None:
            threads = self._check_threads = ThreadPoolExecutor(
                max(values["checkThreadPoolMinSize"], values["checkThreadPoolMaxSize"]),
                thread_name_prefix="skylark-check",
            )
        return instance.client.transactional_producer(
            group, _Listener(self), check_threads=threads, **settings
        )

    def _end(self, instance: Instance) -> None:
        super()._end(instance)
        if self._check_threads is not None:
            self._check_threads.shutdown()

    @translated
    def sendMessageInTransaction(self, msg: Message, *rest: Any) -> TransactionSendResult:
        """sendMessageInTransaction(msg, arg), and the deprecated (msg, executer, arg)."""
        self._require_running()
        executer: LocalTransactionExecuter | None = None
        if rest and isinstance(rest[0], LocalTransactionExecuter):
            warnings.warn(
                "LocalTransactionExecuter is deprecated: set a TransactionListener",
                DeprecationWarning,
                stacklevel=3,
            )
            executer, *rest_of_it = rest
            rest = tuple(rest_of_it)
        argument = rest[0] if rest else None
        if executer is None and self._values["transactionListener"] is None:
            raise MQClientException("tranExecutor is null: call setTransactionListener first")
        assert isinstance(self._producer, _TransactionalProducer)
        sent = self._producer.send_in_transaction(
            msg.to_model(),
            argument,
            listener=_Execution(self, msg, executer),
            strips_delay=True,
        )
        msg.getProperties()["UNIQ_KEY"] = sent.receipt.message_id
        return TransactionSendResult(sent)


class _Listener(_TransactionListener):
    """The listener as it is set when it is asked, which may be after the start."""

    def __init__(self, producer: TransactionMQProducer) -> None:
        self._producer = producer

    def check(self, half: StoredMessage) -> TransactionState:
        values = self._producer._values
        message = MessageExt.of(half)
        state: LocalTransactionState | None = None
        if values["transactionListener"] is not None:
            state = values["transactionListener"].checkLocalTransaction(message)
        elif values["transactionCheckListener"] is not None:
            state = values["transactionCheckListener"].checkLocalTransactionState(message)
        return _STATES[state or LocalTransactionState.UNKNOW]


class _Execution(_Listener):
    """One local transaction: it gets the very message that was sent."""

    def __init__(
        self,
        producer: TransactionMQProducer,
        message: Message,
        executer: LocalTransactionExecuter | None,
    ) -> None:
        super().__init__(producer)
        self._message = message
        self._executer = executer

    def execute(self, message: _Message, argument: Any, transaction_id: str) -> TransactionState:
        self._message.getProperties()["UNIQ_KEY"] = transaction_id
        if self._executer is not None:
            state = self._executer.executeLocalTransactionBranch(self._message, argument)
        else:
            listener = self._producer._values["transactionListener"]
            state = listener.executeLocalTransaction(self._message, argument)
        return _STATES[state or LocalTransactionState.UNKNOW]
