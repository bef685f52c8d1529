"""A table of SQLite that writes down its own changes, and a shipper that sends them in order.

Triggers put every change into a table `changes`, in the transaction that makes it: what is not
committed is not there, and what is committed is. The shipper sends from where it was, and notes how
far it is after the broker has confirmed; if it dies between the two, it sends some changes again.
"""

from __future__ import annotations

import sqlite3

import skylark
from skylark import Message

COLUMNS = "id int, name string, city string"
_SCHEMA = """
create table customers (id integer primary key, name text, city text);
create table changes (seq integer primary key autoincrement, op text, id integer, row text);
create table shipped (seq integer);
insert into shipped values (0);
create trigger inserted after insert on customers begin
  insert into changes (op, id, row) values ('insert', new.id,
    json_object('id', new.id, 'name', new.name, 'city', new.city));
end;
create trigger updated after update on customers begin
  insert into changes (op, id, row) values ('update', new.id,
    json_object('id', new.id, 'name', new.name, 'city', new.city));
end;
create trigger deleted after delete on customers begin
  insert into changes (op, id, row) values ('delete', old.id, json_object('id', old.id));
end;
"""


def create(path: str) -> sqlite3.Connection:
    """A new database."""
    database = sqlite3.connect(path)
    database.executescript(_SCHEMA)
    return database


async def ship(database: sqlite3.Connection, address: str, topic: str, *, step: int = 50) -> int:
    """Send the changes that are new, those of one row in order; how many."""
    count = 0
    async with skylark.connect(address) as mq, mq.producer("cdc") as producer:
        while True:
            rows = database.execute(
                "select seq, op, id, row from changes where seq > (select seq from shipped) "
                "order by seq limit ?",
                (step,),
            ).fetchall()
            if not rows:
                return count
            for seq, op, key, row in rows:
                body = f'{{"op": "{op}", "seq": {seq}, "row": {row}}}'
                # Rows with one key go to one queue, and stay in their order there.
                await producer.send(Message(topic, body.encode(), keys=[str(key)]), key=str(key))
            count += len(rows)
            database.execute("update shipped set seq = ?", (rows[-1][0],))
            database.commit()
