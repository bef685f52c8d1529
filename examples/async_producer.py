"""Send many messages at once, and hear by callback how each of them ended.

    python examples/async_producer.py

For what must be quick and may not wait: a hundred messages are under way together. With asyncio a
callback is seldom needed, since `await producer.send(...)` in many tasks does the same.
"""

import asyncio
import os

import skylark
from skylark import Message, SendReceipt

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Count:
    """Told of each message, once."""

    def __init__(self) -> None:
        self.stored = self.failed = 0

    def on_success(self, receipt: SendReceipt) -> None:
        self.stored += 1

    def on_exception(self, error: Exception) -> None:
        self.failed += 1


async def main() -> None:
    count = Count()
    async with skylark.connect(ADDRESS) as mq, mq.producer("uploads") as producer:
        for number in range(100):
            producer.send_async(Message("UploadTopic", f"file {number}".encode()), count)
        await producer.flush()
    print(f"{count.stored} stored, {count.failed} failed")


if __name__ == "__main__":
    asyncio.run(main())
