"""What becomes of messages that fail: tried again later, and given up in the end.

    python examples/retry_and_dead_letter.py

Without a word the broker waits longer before each try: 10 s, 30 s, 1 min, up to 2 h, sixteen times.
RetryLater chooses the delay; a message that has had its tries is kept in the group's dead letters.
"""

import asyncio
import os

import skylark
from skylark import Message, ReceivedMessage, RetryLater

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    healed = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        print(f"{message.body.decode()}, try {message.reconsume_times + 1}")
        if message.body == b"hopeless" or message.reconsume_times == 0:
            raise RetryLater(level=1)
        healed.set()

    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("payments") as producer:
            for body in (b"unlucky", b"hopeless"):
                await producer.send(Message("PaymentTopic", body))
        async with mq.consumer(
            "payers", "PaymentTopic", handle, consume_from="first", max_reconsume_times=1
        ):
            await asyncio.wait_for(healed.wait(), 30)
            async with mq.consumer("undertaker", "%DLQ%payers", consume_from="first") as dead:
                async for message in dead:
                    print(f"{message.body.decode()} is a dead letter")
                    message.ack()
                    break


if __name__ == "__main__":
    asyncio.run(main())
