"""Transactions that nobody has ended: who holds them, and ending them in their producer's place."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BrokerError, ClientError
from ..model.route import BrokerData
from ..remote import RemoteBroker
from ..remote.broker import HalfMessage, HalfMessageList
from .asking import each
from .reach import Reach

NOT_SUPPORTED = 3


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """One half message that is neither committed nor rolled back."""

    broker: str
    half: HalfMessage

    @property
    def transaction_id(self) -> str | None:
        """The id that its producer gave it."""
        return self.half.transaction_id

    @property
    def offset_id(self) -> str:
        """The id that says where it lies."""
        return self.half.offset_id


@dataclass(frozen=True, slots=True)
class TransactionFigures:
    """What became of the transactions of one broker since it was started."""

    broker: str
    pending: int
    committed: int
    rolled_back: int
    given_up: int
    checks: int


class TransactionActions(Reach):
    """The part of AdminClient that is about transactions."""

    async def transactions(
        self,
        *,
        group: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        count_max: int = 100,
    ) -> list[PendingTransaction]:
        """Half messages that nobody has ended, the oldest first."""
        found = await self._transactions(group, cluster, broker, count_max)
        pending = [item for _, items in found for item in items]
        return sorted(pending, key=lambda item: item.half.since_ms)[:count_max]

    async def transaction_figures(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[TransactionFigures]:
        """What became of the transactions of each broker."""
        return [figures for figures, _ in await self._transactions(None, cluster, broker, 1)]

    async def _transactions(
        self, group: str | None, cluster: str | None, broker: str | None, count_max: int
    ) -> list[tuple[TransactionFigures, list[PendingTransaction]]]:
        async def ask(
            data: BrokerData,
        ) -> tuple[TransactionFigures, list[PendingTransaction]] | None:
            address = data.master_address
            if address is None:
                return None
            remote = self._remote(address)
            return await _ask(data.broker_name, remote, group=group, count_max=count_max)

        found = await each(ask, await self.brokers(cluster=cluster, broker=broker))
        return [item for item in found if item is not None]

    async def transaction(self, id: str) -> PendingTransaction:
        """One half message that nobody has ended, by either of its ids; raises ClientError."""
        for item in await self.transactions(count_max=1_000):
            if id.strip().upper() in (item.transaction_id, item.offset_id):
                return item
        raise ClientError(
            f"no half message with the id {id[:64]} is pending",
            hint="it is over, or the id is another one; see skylark transaction list",
        )

    async def resolve_transaction(self, id: str, *, commits: bool) -> PendingTransaction:
        """Commit or roll back a half message in its producer's place."""
        found = await self.transaction(id)
        await (await self._master_of(found.broker)).resolve_transaction(found.half, commits=commits)
        return found

    async def resume_transaction(self, offset_id: str, *, broker: str) -> None:
        """Have a half message checked again that a broker has given up."""
        await (await self._master_of(broker)).resume_check(offset_id)

    async def _master_of(self, broker: str) -> RemoteBroker:
        (address,) = await self._masters(None, broker)
        return self._remote(address)


async def _ask(
    broker: str, remote: RemoteBroker, *, group: str | None, count_max: int
) -> tuple[TransactionFigures, list[PendingTransaction]]:
    """What a broker has."""
    try:
        found: HalfMessageList = await remote.list_transactions(group=group, count_max=count_max)
    except BrokerError as error:
        if error.code == NOT_SUPPORTED:
            raise ClientError(
                f"broker {broker} cannot list its transactions",
                hint="only SkylarkMQ's brokers can; look into its store instead",
                broker=broker,
            ) from error
        raise
    figures = TransactionFigures(
        broker, found.pending, found.committed, found.rolled_back, found.given_up, found.checks
    )
    return figures, [PendingTransaction(broker, half) for half in found.messages]
