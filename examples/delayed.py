"""Send messages that arrive later.

    python examples/delayed.py

Level 1 is a second, 2 is five, and so on to level 18, two hours; the broker's messageDelayLevel has
the whole list. Until its time a message lies in the broker and nobody sees it.
"""

import asyncio
import os
import time

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        sent_at = {}
        async with mq.producer("reminders") as producer:
            for level in (0, 1):
                name = f"level {level}"
                sent_at[name] = time.monotonic()
                await producer.send(Message("ReminderTopic", name.encode(), delay_level=level))
        async with mq.consumer("reminded", "ReminderTopic", consume_from="first") as consumer:
            async for message in consumer:
                name = message.body.decode()
                print(f"{name} came after {time.monotonic() - sent_at.pop(name):.1f} s")
                if not sent_at:
                    message.ack()
                    break


if __name__ == "__main__":
    asyncio.run(main())
