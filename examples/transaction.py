"""A transfer between two banks: money leaves an account if, and only if, its message goes.

    python examples/transaction.py

Leaving the block commits, an exception rolls back. The third transfer is left in doubt, as if the
process had died in the middle: the broker asks the group, and the check looks into the database.
"""

import asyncio
import os
import sqlite3

import skylark
from skylark import Message, StoredMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "TransferTopic"


class Bank:
    """Accounts, and the transfers that have left them."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        with self.database:
            self.database.execute("create table account (name text primary key, cents integer)")
            self.database.execute("create table transfer (id text primary key)")
            self.database.execute("insert into account values ('A', 3000)")

    def withdraw(self, cents: int, transfer: str) -> None:
        """Take money off A and note the transfer, both or neither."""
        with self.database:
            self.database.execute("update account set cents = cents - ? where name = 'A'", (cents,))
            self.database.execute("insert into transfer values (?)", (transfer,))
            if self.balance() < 0:
                raise ValueError("not enough money")

    def balance(self) -> int:
        query = self.database.execute("select cents from account where name = 'A'")
        return int(query.fetchone()[0])

    def check(self, half: StoredMessage) -> bool:
        """Whether the transfer of a half message has left its account."""
        query = "select count(*) from transfer where id = ?"
        return bool(self.database.execute(query, (half.keys[0],)).fetchone()[0])


async def main() -> None:
    bank, received = Bank(), 0
    async with (
        skylark.connect(ADDRESS) as mq,
        mq.producer("bank-a", check=bank.check) as producer,
        mq.consumer("bank-b", {TOPIC: "*"}, consume_from="first") as consumer,
    ):
        async with producer.transaction() as transaction:
            await transaction.send(Message(TOPIC, b"1000", keys=["transfer-1"]))
            bank.withdraw(1000, "transfer-1")
        try:
            async with producer.transaction() as transaction:
                await transaction.send(Message(TOPIC, b"9999", keys=["transfer-2"]))
                bank.withdraw(9999, "transfer-2")
        except ValueError as error:
            print(f"rolled back: {error}")
        async with producer.transaction() as transaction:
            await transaction.send(Message(TOPIC, b"500", keys=["transfer-3"]))
            bank.withdraw(500, "transfer-3")
            await transaction.leave()  # Nobody tells the broker.
        async for message in consumer:
            received += int(message.body)
            print(f"{message.keys[0]} has arrived: {message.body.decode()}")
            if received == 1500:
                break
    print(f"A has {bank.balance()}, B got {received}")


if __name__ == "__main__":
    asyncio.run(main())
