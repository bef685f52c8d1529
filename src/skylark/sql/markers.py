"""Markers: one row of the application's own database says how a transaction ended.

    skylark_transaction
    id            the transaction's id, which every message of it carries; the primary key
    state         commit: written in the application's transaction, so it is there if that is
                  rollback: a tombstone, written by whoever was asked and found no row
    messages      the half messages that count: unique id @ broker, separated by spaces
    created_ms    wall time, for cleaning up

The primary key decides the race. A transaction that is slow and not dead finds the tombstone when
it writes its own row, and fails; or it was first, and whoever asks waits for it and finds its row.
So an answer, once given, stays true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy
from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text
from sqlalchemy.exc import IntegrityError, OperationalError

from ..client.receipts import SendReceipt
from ..model.message import StoredMessage
from ..protocol.message_id import parse_offset_id

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

MARKER_TABLE: Final = "skylark_transaction"
COMMITTED: Final = "commit"
ROLLED_BACK: Final = "rollback"
LOCK_TIMEOUT_MS: Final = 3_000
KEEP_MS: Final = 7 * 86_400_000  # Longer than any broker keeps a half message by default.


def marker_table(metadata: MetaData) -> Table:
    """The table of markers, for an application that makes its tables itself."""
    known = metadata.tables.get(MARKER_TABLE)
    if known is not None:
        return known
    return Table(
        MARKER_TABLE,
        metadata,
        Column("id", String(64), primary_key=True),
        Column("state", String(8), nullable=False),
        Column("messages", Text, nullable=False, default=""),
        Column("created_ms", BigInteger, nullable=False, index=True),
    )


_TABLE: Final = marker_table(MetaData())


class Marker(NamedTuple):
    """How a transaction ended, and which messages were part of it."""

    state: str
    messages: frozenset[str]


def make_table(connection: Connection) -> None:
    """Make the table where it is missing."""
    _TABLE.metadata.create_all(connection, checkfirst=True)


def marker_row(id: str, receipts: Iterable[SendReceipt], now_ms: int) -> Any:
    """The statement that marks a transaction as committed, in that very transaction."""
    messages = " ".join(message_name(receipt) for receipt in receipts)
    return sqlalchemy.insert(_TABLE).values(
        id=id, state=COMMITTED, messages=messages, created_ms=now_ms
    )


def message_name(receipt: SendReceipt) -> str:
    """A half message by its id and the broker that has it."""
    return f"{receipt.message_id}@{parse_offset_id(receipt.offset_id).host}"


def half_name(half: StoredMessage) -> str:
    """The same of a half message that a broker asks about."""
    return f"{half.unique_id}@{half.store_host}"


def find_marker(connection: Connection, id: str) -> Marker | None:
    """The marker of a transaction; None where there is none, or none that is committed."""
    row = connection.execute(
        sqlalchemy.select(_TABLE.c.state, _TABLE.c.messages).where(_TABLE.c.id == id)
    ).first()
    return None if row is None else Marker(row[0], frozenset(row[1].split()))


def bury(connection: Connection, id: str, now_ms: int) -> bool:
    """Write a tombstone; False where the transaction has a row already."""
    if connection.dialect.name == "postgresql":
        # Whoever holds the key has it for as long as its transaction lasts; ask again then.
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
    try:
        connection.execute(
            sqlalchemy.insert(_TABLE).values(
                id=id, state=ROLLED_BACK, messages="", created_ms=now_ms
            )
        )
    except IntegrityError:
        return False
    return True


def clean(connection: Connection, before_ms: int) -> int:
    """Delete markers that nobody will ask for any more; returns how many."""
    gone = connection.execute(sqlalchemy.delete(_TABLE).where(_TABLE.c.created_ms < before_ms))
    return int(gone.rowcount)


def is_duplicate(error: BaseException) -> bool:
    """Whether a row could not be written because another one has its key."""
    return isinstance(error, IntegrityError)


def is_locked(error: BaseException) -> bool:
    """Whether somebody else holds what was asked for."""
    return isinstance(error, OperationalError)
