"""Poll for messages, go back with seek, and commit by hand.

python examples/lite_pull_consumer.py
"""

import asyncio
import os

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("meters") as producer:
            for number in range(20):
                await producer.send(Message("MeterTopic", f"{number} kWh".encode()))
        async with mq.lite_pull_consumer("billing") as consumer:
            # Without a subscription: this consumer says itself which queues it reads.
            queues = await consumer.fetch_queues("MeterTopic")
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek_to_begin(queue)
            seen: list[skylark.ReceivedMessage] = []
            while len(seen) < 20:
                seen += await consumer.poll(timeout_ms=1_000)
            await consumer.commit()
            print(f"{len(seen)} read and committed")
            await consumer.seek(queues[0], 0)
            again = await consumer.poll(timeout_ms=1_000)
            print(f"back at the start of a queue: {again[0].body.decode()}")


if __name__ == "__main__":
    asyncio.run(main())
