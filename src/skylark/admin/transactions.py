"""Transactions that nobody has ended: who holds them, and ending them in their producer's place."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BrokerError, ClientError
from ..remote import RemoteBroker
from ..remote.broker import HalfMessage, HalfMessageList

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


async def ask(
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
