"""Handle every message once, though it may come twice.

    python examples/idempotent.py

Delivery is at least once: after a lost answer, a rebalance or a crash a message comes again. The
handler notes the business key in the same database transaction as its work; the second time the key
is there already, and nothing is done.
"""

import asyncio
import os
import sqlite3

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Accounts:
    """A balance, and which transfers are in it."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table done (transfer text primary key)")
        self.database.execute("create table account (balance integer)")
        self.database.execute("insert into account values (0)")

    def pay_in(self, transfer: str, amount: int) -> bool:
        """Add an amount, unless it was added before; whether it was added now."""
        with self.database:  # One transaction: both or none.
            new = self.database.execute("insert or ignore into done values (?)", (transfer,))
            if new.rowcount == 0:
                return False
            self.database.execute("update account set balance = balance + ?", (amount,))
            return True

    @property
    def balance(self) -> int:
        return int(self.database.execute("select balance from account").fetchone()[0])


async def main() -> None:
    accounts = Accounts()
    count = 0
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal count
        (transfer,) = message.keys
        is_new = accounts.pay_in(transfer, int(message.body))
        print(f"{transfer}: {'paid in' if is_new else 'known already, nothing done'}")
        count += 1
        if count == 6:
            done.set()

    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("bank") as producer:
            for number in range(3):
                for _ in range(2):  # The sender was not sure, and sent it again.
                    transfer = f"transfer-{number}"
                    await producer.send(Message("PayInTopic", b"100", keys=[transfer]))
        async with mq.consumer("ledger", "PayInTopic", handle, consume_from="first"):
            await asyncio.wait_for(done.wait(), 30)
    print(f"the balance is {accounts.balance}")


if __name__ == "__main__":
    asyncio.run(main())
