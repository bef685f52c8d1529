"""Messages together with a database transaction; needs SQLAlchemy (the extra `sql`).

    check = DatabaseCheck(engine)
    async with mq.producer("orders", check=check) as producer:
        async with transaction(session, producer) as together:
            session.add(order)
            await together.send(Message("Orders", b"..."))

When the block ends, the order is in the database and the message is seen, or neither.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingExtra
from ..lazy import front_door

if find_spec("sqlalchemy") is None:
    raise MissingExtra("sql", "a transaction together with a database")

if TYPE_CHECKING:
    from .check import DatabaseCheck as DatabaseCheck
    from .markers import MARKER_TABLE as MARKER_TABLE
    from .markers import marker_table as marker_table
    from .resolver import Resolver as Resolver
    from .together import AsyncTogether as AsyncTogether
    from .together import Together as Together
    from .together import TooLate as TooLate
    from .together import transaction as transaction
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "check": ("DatabaseCheck",),
            "markers": ("MARKER_TABLE", "marker_table"),
            "resolver": ("Resolver",),
            "together": ("AsyncTogether", "Together", "TooLate", "transaction"),
        },
    )
