"""Consume with `async for`: a message is done when the next one is asked for.

python examples/iterate.py
"""

import asyncio
import os

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("makers") as producer:
            for number in range(5):
                await producer.send(Message("PartTopic", f"part {number}".encode()))
        async with mq.consumer("fitters", "PartTopic", consume_from="first") as consumer:
            left = 5
            async for message in consumer:
                print(f"queue {message.queue_id} offset {message.queue_offset}: {message.body!r}")
                left -= 1
                if not left:
                    message.ack()
                    break


if __name__ == "__main__":
    asyncio.run(main())
