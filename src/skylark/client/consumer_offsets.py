"""Offsets: how far a group has come, kept where it survives.

    clustering     at the broker that has the queue: RemoteOffsets
    broadcasting   in a file of this client, since every member has its own: LocalOffsets

    ~/.rocketmq_offsets/<client>/<group>/offsets.json, and the one before as offsets.json.bak
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}

The file is RocketMQ's, so a Java program's progress is taken over. It is replaced whole and synced
before it takes the place of the old one; one that cannot be read is set aside for its backup.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ..errors import BrokerError, InvalidBody, NoRoute, TransportError
from ..model.queue import MessageQueue
from ..net.tasks import to_the_end
from ..protocol.bodies import ResetOffsetBody
from .session import Session

logger = logging.getLogger(__name__)

OffsetTable = ResetOffsetBody  # The same shape on disk as on the wire.


class ConsumerOffsets(Protocol):
    """Where committed offsets live."""

    async def load(self) -> None:
        """Get ready."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """How far the group has come; None if it never was here. Raises NoRoute,
        TransportError or BrokerError where nobody can say."""
        ...

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Keep these; what cannot be kept now is logged, and comes again with the next commit.

        False if something could not be kept.
        """
        ...

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these, though they go back."""
        ...

    def noted(self, queue: MessageQueue, offset: int) -> None:
        """This was committed on another way."""
        ...

    def is_confirmed_by(self, queue: MessageQueue, committed: int | None) -> bool:
        """Whether what is found in store may follow from what we have put there.

        False where we have committed something, and the store knows nothing of it any more.
        """
        ...

    def forget(self, queue: MessageQueue) -> None:
        """The queue has left; somebody else may commit to it from now on."""
        ...


class RemoteOffsets:
    """Offsets at the brokers."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        # What the brokers have, as far as we know, and which master said so: another one, after
        # a failover, is told again.
        self._kept: dict[MessageQueue, tuple[int, str | None]] = {}

    async def load(self) -> None:
        """Get ready."""

    async def read(self, queue: MessageQueue) -> int | None:
        """How far the group has come."""
        address = self._session.read_address(queue.broker_name)
        if address is None:
            raise NoRoute(
                f"no address of broker {queue.broker_name!r} is known",
                hint="wait for it to register again",
            )
        offset = await self._session.broker(address).query_consumer_offset(self._group, queue)
        # It is not noted as kept: brokers answer 0 for a young queue without keeping anything.
        return offset if offset is not None and offset >= 0 else None

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Keep these."""
        changed = [
            (queue, offset) for queue, offset in offsets.items() if not self._has(queue, offset)
        ]
        await asyncio.gather(*(self._commit(queue, offset) for queue, offset in changed))
        return all(self._has(queue, offset) for queue, offset in changed)

    def _has(self, queue: MessageQueue, offset: int) -> bool:
        master = self._session.master_address(queue.broker_name)
        return self._kept.get(queue) == (offset, master)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these, though they go back."""
        await asyncio.gather(
            *(self._commit(queue, offset, reset=True) for queue, offset in offsets.items())
        )

    async def _commit(self, queue: MessageQueue, offset: int, *, reset: bool = False) -> None:
        address = master = self._session.master_address(queue.broker_name)
        if address is None and not reset:
            # A replica of ours hands it to the master when that comes back; RocketMQ's forgets it.
            address = self._session.read_address(queue.broker_name)
        if address is None:
            logger.info("queue=%s offset=%d not committed: no master is known", queue, offset)
            return
        try:
            broker = self._session.broker(address)
            await broker.update_consumer_offset(self._group, queue, offset, reset=reset)
        except (TransportError, BrokerError) as error:
            logger.info("queue=%s offset=%d not committed: %s", queue, offset, error)
            self._session.doubt_route(queue.topic)  # Another member may lead by now.
            return
        if master is not None:  # Else it is said again, until a master has heard it.
            self._kept[queue] = offset, master

    def noted(self, queue: MessageQueue, offset: int) -> None:
        """This was committed on another way."""
        self._kept[queue] = offset, self._session.master_address(queue.broker_name)

    def is_confirmed_by(self, queue: MessageQueue, committed: int | None) -> bool:
        """Whether what is found in store may follow from what we have put there."""
        kept, _ = self._kept.get(queue, (0, None))
        return not kept or bool(committed)

    def forget(self, queue: MessageQueue) -> None:
        """The queue has left."""
        self._kept.pop(queue, None)


class LocalOffsets:
    """Offsets in a file of this client."""

    def __init__(self, folder: Path, client: str, group: str) -> None:
        self._saving = asyncio.Lock()
        self._path = folder.expanduser() / client / group / "offsets.json"
        self._kept: dict[MessageQueue, int] = {}

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def load(self) -> None:
        """Read the file, or its backup."""
        for path in (self._path, self._backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                self._kept = dict(OffsetTable.from_json(text).offsets)
                return
            except InvalidBody as error:
                logger.warning("file=%s offsets cannot be read, using the backup: %s", path, error)

    async def read(self, queue: MessageQueue) -> int | None:
        """How far this client has come."""
        return self._kept.get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Keep these."""
        if all(self._kept.get(queue) == offset for queue, offset in offsets.items()):
            return True
        self._kept.update(offsets)
        try:
            text = OffsetTable(dict(sorted(self._kept.items()))).to_json(pretty=True)
            async with self._saving:
                await to_the_end(self._save, text)
        except OSError as error:
            logger.warning("file=%s offsets not kept: %s", self._path, error)
            for queue in offsets:  # So that the next commit tries again.
                self._kept.pop(queue, None)
            return False
        return True

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these, though they go back."""
        await self.commit(offsets)

    def noted(self, queue: MessageQueue, offset: int) -> None:
        """This was committed on another way: no other way exists."""

    def is_confirmed_by(self, queue: MessageQueue, committed: int | None) -> bool:
        """Whether what is found in store may follow from what we have put there: it is a file."""
        return True

    def forget(self, queue: MessageQueue) -> None:
        """The queue has left; what was committed stays in the file."""

    @property
    def _backup(self) -> Path:
        return self._path.with_name(self._path.name + ".bak")

    def _save(self, text: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            os.replace(self._path, self._backup)
        os.replace(fresh, self._path)
