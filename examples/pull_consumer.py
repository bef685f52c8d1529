"""Read a topic queue by queue and offset by offset, and keep track oneself.

python examples/pull_consumer.py
"""

import asyncio
import os

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("makers") as producer:
            for number in range(50):
                await producer.send(Message("ReportTopic", f"report {number}".encode()))
        count = 0
        async with mq.pull_consumer("archivists") as consumer:
            for queue in await consumer.fetch_queues("ReportTopic"):
                offset = await consumer.fetch_offset(queue, from_store=True) or 0
                while (page := await consumer.pull(queue, "*", offset=offset)).messages:
                    count += len(page.messages)
                    offset = page.next_begin_offset
                await consumer.commit(queue, offset)
    print(f"{count} messages read, and every queue's offset committed")


if __name__ == "__main__":
    asyncio.run(main())
