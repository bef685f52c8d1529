"""A process that sends a message together with a row, and may die by SIGKILL at a given step.

python sql_producer.py NAMESRV DATABASE-URL GROUP TOPIC KEY STEP KIND

STEP   half, rows, marker, commit, end: after which it dies; raise: the block raises; late, slow,
       marked: it waits for a line on its input, before it has written anything, after its row,
       and after the marker; none: nothing
KIND   sync, async
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from sqlalchemy import Column, MetaData, String, Table, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import skylark
import skylark.sync
from skylark import Message
from skylark.sql import TooLate, transaction

ORDERS = Table("orders", MetaData(), Column("id", String(64), primary_key=True))


def die_at(step: str, wanted: str) -> None:
    if step == wanted:
        print(f"dies at {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def watched(session: Any, wanted: str, *, is_async: bool) -> Any:
    """A session that dies after the marker, or after the commit, where that is wanted."""
    execute, commit = session.execute, session.commit
    if is_async:

        async def execute_async(*arguments: Any) -> Any:
            found = await execute(*arguments)
            if "skylark_transaction" in str(arguments[0]):
                die_at("marker", wanted)
                if wanted == "marked":
                    print("waits", flush=True)
                    await asyncio.to_thread(sys.stdin.readline)
            return found

        async def commit_async() -> None:
            await commit()
            die_at("commit", wanted)

        session.execute, session.commit = execute_async, commit_async
        return session

    def execute_sync(*arguments: Any) -> Any:
        found = execute(*arguments)
        if "skylark_transaction" in str(arguments[0]):
            die_at("marker", wanted)
            if wanted == "marked":
                print("waits", flush=True)
                sys.stdin.readline()
        return found

    def commit_sync() -> None:
        commit()
        die_at("commit", wanted)

    session.execute, session.commit = execute_sync, commit_sync
    return session


def run_sync(address: str, url: str, group: str, topic: str, key: str, step: str) -> None:
    engine = create_engine(url)
    with (
        skylark.sync.connect(address) as mq,
        mq.producer(group) as producer,
        Session(engine) as plain,
    ):
        session = watched(plain, step, is_async=False)
        with transaction(session, producer) as together:
            together.send(Message(topic, key.encode(), keys=[key]))
            die_at("half", step)
            if step == "late":
                print("waits", flush=True)
                sys.stdin.readline()
            session.execute(ORDERS.insert().values(id=key))
            die_at("rows", step)
            if step == "raise":
                raise ZeroDivisionError
            if step == "slow":
                print("waits", flush=True)
                sys.stdin.readline()
        die_at("end", step)


async def run_async(address: str, url: str, group: str, topic: str, key: str, step: str) -> None:
    engine = create_async_engine(url)
    async with (
        skylark.connect(address) as mq,
        mq.producer(group) as producer,
        AsyncSession(engine) as plain,
    ):
        session = watched(plain, step, is_async=True)
        async with transaction(session, producer) as together:
            await together.send(Message(topic, key.encode(), keys=[key]))
            die_at("half", step)
            if step == "late":
                print("waits", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            await session.execute(ORDERS.insert().values(id=key))
            die_at("rows", step)
            if step == "raise":
                raise ZeroDivisionError
            if step == "slow":
                print("waits", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
        die_at("end", step)
    await engine.dispose()


if __name__ == "__main__":
    *words, kind = sys.argv[1:]
    try:
        if kind == "sync":
            run_sync(*words)
        else:
            asyncio.run(run_async(*words))
    except ZeroDivisionError:
        print("raised", flush=True)
    except TooLate:
        print("too late", flush=True)
    else:
        print("done", flush=True)
