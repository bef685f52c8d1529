"""Let every member of a group get every message.

    python examples/broadcast.py

Each member keeps its own progress in a local file. What fails is not tried again.
"""

import asyncio
import os
import tempfile
from collections import Counter

import skylark
from skylark import Message, ReceivedMessage
from skylark.model.group import MessageModel

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
MEMBERS, COUNT = 3, 10


async def main() -> None:
    got: Counter[int] = Counter()
    done = asyncio.Event()

    def member(mq: skylark.Client, number: int, folder: str) -> skylark.PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            got[number] += 1
            if got.total() == MEMBERS * COUNT:
                done.set()

        return mq.consumer(
            "caches",
            "PriceTopic",
            handle,
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            offsets_folder=os.path.join(folder, str(number)),
        )

    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("prices") as producer:
            for number in range(COUNT):
                await producer.send(Message("PriceTopic", f"price {number}".encode()))
        with tempfile.TemporaryDirectory() as folder:
            async with (
                member(mq, 0, folder),
                member(mq, 1, folder),
                member(mq, 2, folder),
            ):
                await asyncio.wait_for(done.wait(), 30)
    print(f"{MEMBERS} members got {COUNT} messages each: {dict(sorted(got.items()))}")


if __name__ == "__main__":
    asyncio.run(main())
