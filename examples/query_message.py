"""Find a message again: by its key, by the id its producer gave, and by where it is stored.

python examples/query_message.py
"""

import asyncio
import os

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("post") as producer:
            receipt = await producer.send(Message("LetterTopic", b"dear all", keys=["letter-1"]))
        by_key = await mq.query_messages("LetterTopic", "letter-1")
        print(f"by key: {by_key[-1].body.decode()}")
        by_id = await mq.view_message(receipt.message_id, "LetterTopic")
        print(f"by the producer's id {receipt.message_id}: {by_id.body.decode()}")
        by_offset = await mq.view_message(receipt.offset_id)
        print(f"by the broker's id {receipt.offset_id}: {by_offset.body.decode()}")


if __name__ == "__main__":
    asyncio.run(main())
