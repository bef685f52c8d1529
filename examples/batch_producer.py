"""Send several messages in one request.

    python examples/batch_producer.py

Messages of one batch go to one queue of one topic, are stored all or none, and may not be delayed.
Where single sends come thick and fast, `linger_ms` packs them into batches by itself.
"""

import asyncio
import os

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("readings") as producer:
            messages = [Message("ReadingTopic", f"{n} degrees".encode()) for n in range(10)]
            receipts = await producer.send_batch(messages)
            queues = {receipt.queue.queue_id for receipt in receipts}
            print(f"{len(receipts)} messages in {len(queues)} queue, by one request")
        async with mq.producer("readings", linger_ms=5) as producer:
            sends = [producer.send(Message("ReadingTopic", b"%d" % n)) for n in range(1_000)]
            stored = await asyncio.gather(*sends)
            print(f"{len(stored)} single sends, packed on the way")


if __name__ == "__main__":
    asyncio.run(main())
