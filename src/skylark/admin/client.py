"""AdminClient: every operator action as a typed coroutine; it prints nothing.

    async with connect("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", read_queues=8, write_queues=8)
        for queue in (await admin.group("billing")).queues: ...

Actions go to the masters of all brokers, or of those of one cluster or name. Only brokers that the
name servers know are ever dialled, whatever address a message id holds.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..client import Client
from ..client.connect import connect as connect_client
from ..remote import RegistrationKey
from .brokers import BrokerActions
from .dead_letters import DeadLetterActions
from .groups import GroupActions
from .messages import MessageActions
from .rolling import RollingActions
from .timers import TimerActions
from .transactions import TransactionActions


def connect(
    namesrv_addr: str | None = None, *, registration_key: str | None = None, **settings: Any
) -> AdminClient:
    """Return an AdminClient for a cluster; other arguments are those of skylark.connect.

    The registration key is needed where the name servers have one, to change what they hold.
    """
    return AdminClient(connect_client(namesrv_addr, **settings), registration_key=registration_key)


class AdminClient(
    BrokerActions,
    GroupActions,
    MessageActions,
    TransactionActions,
    TimerActions,
    DeadLetterActions,
    RollingActions,
):
    """An operator's view of a cluster; an async context manager."""

    def __init__(self, client: Client, *, registration_key: str | None = None) -> None:
        super().__init__(client)
        self._registration_key = registration_key

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        if self._registration_key:
            self._name_servers.use_key(RegistrationKey(self._registration_key))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)
