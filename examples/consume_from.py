"""Where a group begins, where it goes on, and how it goes back.

    python examples/consume_from.py

A new group begins with the next message ("last", the default), with the first, or at a time. Where
a queue is young, so that its very first message is still at hand, a broker lets a new group begin
with that one whatever it asks for, as RocketMQ does. A group that has committed offsets goes on
where it stopped; rewind() takes it back to a time.
"""

import asyncio
import os
import time

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "HistoryTopic"


async def main() -> None:
    seen: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())

    async def take(count: int) -> list[str]:
        async with asyncio.timeout(30):
            while len(seen) < count:
                await asyncio.sleep(0.01)
        taken = sorted(seen)
        seen.clear()
        return taken

    async with skylark.connect(ADDRESS) as mq, mq.producer("clock") as producer:
        await producer.send(Message(TOPIC, b"old"))
        await asyncio.sleep(0.05)
        between_ms = int(time.time() * 1000)
        await asyncio.sleep(0.05)
        await producer.send(Message(TOPIC, b"new"))
        async with mq.consumer("historians", TOPIC, handle, consume_from="first"):
            print(f"from the first: {await take(2)}")
        await producer.send(Message(TOPIC, b"newest"))
        async with mq.consumer("historians", TOPIC, handle, consume_from="first") as consumer:
            print(f"where it stopped: {await take(1)}")
            queues = await mq.fetch_queues(TOPIC)
            while not consumer.assignment >= set(queues):  # A member rewinds the queues it has.
                await asyncio.sleep(0.01)
            await consumer.rewind(TOPIC, between_ms)
            print(f"again since then: {await take(2)}")


if __name__ == "__main__":
    asyncio.run(main())
