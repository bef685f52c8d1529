"""Catch up when far behind: what is too old to matter is passed over.

    python examples/skip_backlog.py

Each message says how many are behind it in its queue.
"""

import asyncio
import os

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT, TOO_FAR = 300, 50


async def main() -> None:
    handled = skipped = 0
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal handled, skipped
        if message.behind > TOO_FAR:
            skipped += 1  # Done with it, without doing anything.
        else:
            handled += 1
        if handled + skipped == COUNT:
            done.set()

    async with skylark.connect(ADDRESS) as mq:
        await mq.create_topic("QuoteTopic", queue_count=1)
        async with mq.producer("exchange") as producer:
            for number in range(COUNT):
                await producer.send(Message("QuoteTopic", b"quote %d" % number))
        async with mq.consumer("traders", "QuoteTopic", handle, consume_from="first"):
            await asyncio.wait_for(done.wait(), 30)
    print(f"{skipped} skipped, {handled} handled")


if __name__ == "__main__":
    asyncio.run(main())
