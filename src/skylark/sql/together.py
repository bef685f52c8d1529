"""transaction: messages and rows, both or neither.

    step                                       if the process dies here
    half messages are sent                     no row: rolled back
    the application writes its rows            no row: rolled back
    the marker is written                      no row: rolled back
    the database commits                       the row is there: committed
    the broker is told                         done

The application's session is committed here, when the block ends, and rolled back when it raises.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from sqlalchemy.orm import Session

from ..client.producer import Producer
from ..client.receipts import SendReceipt
from ..client.transactions import Transaction
from ..clock import Clock, SystemClock
from ..errors import ClientError
from ..model.message import Message
from ..model.queue import MessageQueue
from ..sync import Producer as SyncProducer
from ..sync import Transaction as SyncTransaction
from . import markers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


class TooLate(ClientError):
    """The transaction took so long that it was rolled back, in the database and at the broker."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"transaction {id} was taken for dead and rolled back",
            hint="do it again; shorten it, or give DatabaseCheck more patience_ms",
        )


@overload
def transaction(
    session: Session, producer: SyncProducer, *, clock: Clock | None = None
) -> Together: ...


@overload
def transaction(
    session: AsyncSession | Session, producer: Producer, *, clock: Clock | None = None
) -> AsyncTogether: ...


def transaction(
    session: Any, producer: Producer | SyncProducer, *, clock: Clock | None = None
) -> AsyncTogether | Together:
    """A block whose messages are seen if, and only if, what the session wrote is committed."""
    clock = SystemClock() if clock is None else clock
    if isinstance(producer, Producer):
        return AsyncTogether(session, producer.transaction(), clock)
    return Together(session, producer.transaction(), clock)


class AsyncTogether:
    """Over an AsyncSession, or a Session that is quick enough for the event loop."""

    def __init__(self, session: Any, messages: Transaction, clock: Clock) -> None:
        self.session = session
        self._messages = messages
        self._clock = clock
        self._is_async = not isinstance(session, Session)

    @property
    def id(self) -> str:
        """The transaction's id: the key of its marker."""
        return self._messages.id

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message that nobody sees before the commit; raises ClientError."""
        return await self._messages.send(message, queue=queue, key=key, timeout_ms=timeout_ms)

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            await self._database("rollback")
            await self._messages.rollback(remark=repr(error)[:500])
            return
        try:
            row = markers.marker_row(self.id, self._messages.receipts, self._clock.now_ms())
            await self._database("execute", row)
        except BaseException as failure:
            await self._database("rollback")
            await self._messages.rollback(remark=repr(failure)[:500])
            if markers.is_duplicate(failure):
                raise TooLate(self.id) from failure
            raise
        try:
            await self._database("commit")
        except BaseException as failure:
            await self._not_committed(failure)
            raise
        await self._messages.commit()

    async def _not_committed(self, failure: BaseException) -> None:
        if _is_certain(failure):
            await self._database("rollback")
            await self._messages.rollback(remark=repr(failure)[:500])
        else:
            await self._messages.leave()  # The database may have committed: its row will tell.

    async def _database(self, name: str, *arguments: Any) -> None:
        answer = getattr(self.session, name)(*arguments)
        if self._is_async:
            await answer


class Together:
    """The same for threads: over a Session and a producer of skylark.sync."""

    def __init__(self, session: Session, messages: SyncTransaction, clock: Clock) -> None:
        self.session = session
        self._messages = messages
        self._clock = clock

    @property
    def id(self) -> str:
        """The transaction's id: the key of its marker."""
        return self._messages.id

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message that nobody sees before the commit; raises ClientError."""
        return self._messages.send(message, queue=queue, key=key, timeout_ms=timeout_ms)

    def __enter__(self) -> Self:
        self._messages.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.session.rollback()
            self._messages.rollback()
            return
        try:
            row = markers.marker_row(self.id, self._messages.receipts, self._clock.now_ms())
            self.session.execute(row)
        except BaseException as failure:
            self.session.rollback()
            self._messages.rollback()
            if markers.is_duplicate(failure):
                raise TooLate(self.id) from failure
            raise
        try:
            self.session.commit()
        except BaseException as failure:
            if _is_certain(failure):
                self.session.rollback()
                self._messages.rollback()
            else:
                self._messages.leave()
            raise
        self._messages.commit()


def _is_certain(failure: BaseException) -> bool:
    """Whether a commit that failed has certainly not happened: the database itself said no."""
    return markers.is_duplicate(failure)
