"""DatabaseCheck: answers brokers from the markers; any process of the group may have one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Connection, Engine, create_engine

from ..client.transactions import TRANSACTION_PROPERTY
from ..clock import Clock, SystemClock
from ..model.message import StoredMessage
from . import markers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class DatabaseCheck:
    """Says how transactions ended; give it to a producer as its check.

    Where a transaction has no row it may be under way still. After patience_ms it is taken for
    dead: a tombstone is written first, so that it cannot commit after all, and then it is rolled
    back.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine | str,
        *,
        patience_ms: int = 30_000,
        keep_ms: int = markers.KEEP_MS,
        clock: Clock | None = None,
    ) -> None:
        """The engine, sync or async, or the URL of a sync one, is for short transactions only."""
        self.engine = create_engine(engine) if isinstance(engine, str) else engine
        self.patience_ms = patience_ms
        self.keep_ms = keep_ms
        self._clock = SystemClock() if clock is None else clock

    async def __call__(self, half: StoredMessage) -> bool | None:
        id = half.properties.get(TRANSACTION_PROPERTY)
        if id is None:
            logger.warning(
                "half message %s of %s was not sent together with a database",
                half.unique_id, half.topic,
            )  # fmt: skip
            return None
        marker = await self._run(lambda connection: markers.find_marker(connection, id))
        if marker is None:
            if self._clock.now_ms() - half.born_at_ms < self.patience_ms:
                return None
            marker = await self._bury(id)
        if marker is None:
            return None
        return marker.state == markers.COMMITTED and markers.half_name(half) in marker.messages

    async def _bury(self, id: str) -> markers.Marker | None:
        now_ms = self._clock.now_ms()
        try:
            if await self._run(lambda connection: markers.bury(connection, id, now_ms)):
                return markers.Marker(markers.ROLLED_BACK, frozenset())
        except Exception as error:
            if not markers.is_locked(error):
                raise
            logger.info("transaction=%s is under way still: %s", id, error)
            return None
        return await self._run(lambda connection: markers.find_marker(connection, id))

    async def prepare(self) -> None:
        """Make the table where it is missing."""
        await self._run(markers.make_table)

    async def clean(self) -> int:
        """Delete markers that are older than keep_ms; returns how many."""
        before_ms = self._clock.now_ms() - self.keep_ms
        return await self._run(lambda connection: markers.clean(connection, before_ms))

    async def _run(self, action: Callable[[Connection], _T]) -> _T:
        """Run something in a transaction of its own."""
        engine: Any = self.engine
        if isinstance(engine, Engine):
            return await asyncio.to_thread(self._run_sync, engine, action)
        async with engine.connect() as connection:
            try:
                found: _T = await connection.run_sync(action)
            except BaseException:
                await connection.rollback()
                raise
            if found is False:  # What failed has spoiled the transaction.
                await connection.rollback()
            else:
                await connection.commit()
            return found

    @staticmethod
    def _run_sync(engine: Engine, action: Callable[[Connection], _T]) -> _T:
        with engine.connect() as connection:
            found = action(connection)
            if found is False:
                connection.rollback()
            else:
                connection.commit()
            return found
