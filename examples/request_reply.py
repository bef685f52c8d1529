"""Ask by message and wait for the answer, as in a remote call.

python examples/request_reply.py
"""

import asyncio
import os

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq, mq.producer("prices") as answering:

        async def answer(message: ReceivedMessage) -> None:
            await answering.reply(message.record, b"9.99")

        async with (
            mq.consumer("shop", "PriceQuestions", answer, consume_from="first"),
            mq.producer("customers") as asking,
        ):
            reply = await asking.request(Message("PriceQuestions", b"apples"), timeout_ms=10_000)
    print(f"apples cost {reply.body.decode()}")


if __name__ == "__main__":
    asyncio.run(main())
