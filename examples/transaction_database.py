"""An order in a database and its message, both or neither, by one row in the same transaction.

    python examples/transaction_database.py

Needs SQLAlchemy (pip install 'skylarkmq[sql]'). If the process dies anywhere in the block, the
broker asks the group, and whoever has the check looks for the row: it is there, or it is not.
"""

import os
import pathlib
import tempfile
from itertools import islice

from sqlalchemy import String, create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import skylark.sync
from skylark import Message
from skylark.sql import DatabaseCheck, marker_table, transaction

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "PaidOrders"


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)


def main(folder: str) -> None:
    engine = create_engine(f"sqlite:///{pathlib.Path(folder) / 'shop.db'}")
    marker_table(Base.metadata)
    Base.metadata.create_all(engine)
    with (
        skylark.sync.connect(ADDRESS) as mq,
        mq.producer("shop", check=DatabaseCheck(engine)) as producer,
    ):
        for name in ("order-1", "order-1", "order-2"):
            try:
                with Session(engine) as session, transaction(session, producer) as together:
                    together.send(Message(TOPIC, name.encode()))
                    session.add(Order(id=name))
                    session.flush()
            except IntegrityError:
                print(f"{name} is there already: neither row nor message")
        with mq.consumer("stock", {TOPIC: "*"}, consume_from="first") as consumer:
            arrived = sorted(message.body.decode() for message in islice(consumer, 2))
    with Session(engine) as session:
        stored = sorted(session.scalars(select(Order.id)))
    print(f"orders {stored}, messages {arrived}")
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
