"""Consume messages with a handler, in a group of two members.

    python examples/push_consumer.py

The handler is a coroutine, or a plain function, which then runs in a thread. What it returns from
is done; what it raises at comes again later. Members of a group share the queues among them.
"""

import asyncio
import os
from collections import Counter

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 100


async def main() -> None:
    handled: Counter[str] = Counter()
    done = asyncio.Event()

    def note(who: str) -> None:
        handled[who] += 1
        if handled.total() == COUNT:
            done.set()

    async def first(message: ReceivedMessage) -> None:
        note("first")

    async def second(message: ReceivedMessage) -> None:
        note("second")

    async with skylark.connect(ADDRESS) as mq:
        await mq.create_topic("MailTopic", queue_count=8)
        async with (
            mq.consumer("mailers", "MailTopic", first, consume_from="first") as one,
            mq.consumer("mailers", "MailTopic", second, consume_from="first") as two,
        ):
            while not (one.assignment and two.assignment):
                await asyncio.sleep(0.01)
            async with mq.producer("web") as producer:
                for number in range(COUNT):
                    await producer.send(Message("MailTopic", f"mail {number}".encode()))
            await asyncio.wait_for(done.wait(), 30)
    print(f"{COUNT} messages: {handled['first']} to the first, {handled['second']} to the second")


if __name__ == "__main__":
    asyncio.run(main())
