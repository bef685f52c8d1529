"""A Raft group of one broker, whose elections and agreements are the test's to decide."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from broker_world import BrokerWorld

from skylark.store import MessageStore
from skylark.store.flusher import Flusher

PEERS = "n0-10.0.0.1:40911;n1-10.0.0.3:40911;n2-10.0.0.4:40911"
SETTINGS: dict[str, Any] = {
    "broker_name": "broker-a",
    "enable_d_leger_commit_log": True,
    "d_leger_peers": PEERS,
    "d_leger_self_id": "n0",
    "advertised_address_check": False,
}


class FakeGroup:
    """Looks like RaftGroup. Agrees on everything as soon as it is flushed, unless told to hold."""

    def __init__(self, config: Any, store: MessageStore, flusher: Flusher, **_: Any) -> None:
        self.store = store
        self.flusher = flusher
        self.quorum = self
        self.on_role: Callable[[], None] = lambda: None
        self.is_serving = False
        self.leader_id: str | None = None
        self.term = 0
        self.port = 40911
        self.is_holding = False
        self.transfers = 0
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeGroup]:
        self.store.on_grew = self._grew
        try:
            yield self
        finally:
            self.store.on_grew = None
            self.lose()

    @property
    def is_leader(self) -> bool:
        return self.is_serving

    def figures(self) -> dict[str, str]:
        return {"raftTerm": str(self.term)}

    async def transfer(self, timeout_ms: int) -> bool:
        self.transfers += 1
        self.lose("n1")
        return True

    # The quorum.

    def is_available(self, offset: int) -> bool:
        return self.is_serving

    def is_replicated(self, offset: int) -> bool:
        assert self.store.agreed is not None
        return self.is_serving and self.store.agreed >= offset

    def replicated(self, offset: int) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self.is_serving or self.is_replicated(offset):
            future.set_result(self.is_serving)
        else:
            self._waiters.append((offset, future))
        return future

    # What the test decides.

    def lead(self) -> None:
        """Win an election, with everything agreed that is in the log."""
        self.store.agree(self.store.log.appended)
        self.term += 1
        self.leader_id, self.is_serving, self.store.is_replica = "n0", True, False
        self.on_role()

    def lose(self, leader: str | None = None) -> None:
        """Lose the place; what is not agreed stays in the log for now."""
        self.is_serving, self.store.is_replica, self.leader_id = False, True, leader
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_result(False)
        self.on_role()

    async def cut(self) -> None:
        """Give up what was not agreed, as a new leader has it."""
        assert self.store.agreed is not None
        async with self.flusher.paused():
            self.store.truncate(self.store.agreed)

    def agree(self) -> None:
        """Agree on all that is flushed."""
        self.store.agree(self.store.log.flushed)
        for offset, future in self._waiters:
            if self.is_replicated(offset) and not future.done():
                future.set_result(True)

    def _grew(self) -> None:
        task = asyncio.get_running_loop().create_task(self._agree_soon())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _agree_soon(self) -> None:
        await self.flusher.flushed(self.store.log.appended)
        if self.is_serving and not self.is_holding:
            self.agree()


class RaftWorld(BrokerWorld):
    """A broker whose group is a FakeGroup."""

    @property
    def group(self) -> FakeGroup:
        assert self.parts.raft is not None
        group = self.parts.raft.group
        assert isinstance(group, FakeGroup)
        return group

    @contextlib.asynccontextmanager
    async def member(self, **settings: Any) -> AsyncIterator[FakeGroup]:
        """A member that knows of no leader yet."""
        async with self.running(**{**SETTINGS, **settings}):
            yield self.group

    async def leading(self) -> None:
        """Win an election, and wait until writes are taken."""
        self.group.lead()
        while self.parts.identity.broker_id != 0:
            await self.clock.sleep_ms(1)


@pytest.fixture
def raft(monkeypatch: pytest.MonkeyPatch) -> Iterator[RaftWorld]:
    monkeypatch.setattr("skylark.broker.assembly.RaftGroup", FakeGroup)
    world = RaftWorld()
    yield world
    world.loop.close()
