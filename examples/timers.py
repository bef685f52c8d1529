"""Deliver messages at any time, cancel one, fire one, and let one repeat.

    python examples/timers.py

The broker keeps them on its disk until their time: up to a year ahead, to the millisecond, through
restarts. `skylark schedule list` shows what waits, and does the rest of this from a terminal.
"""

import asyncio
import os
import time

import skylark
from skylark import Message
from skylark.admin import connect as connect_admin

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq, connect_admin(ADDRESS) as admin:
        async with mq.producer("alarms") as producer:
            start = time.time()
            half_past = int((start + 0.5) * 1000)
            await producer.send(Message("AlarmTopic", b"at a time", deliver_at_ms=half_past))
            await producer.send(Message("AlarmTopic", b"after a while", delay_ms=1_000))
            unwanted = await producer.send(
                Message("AlarmTopic", b"never", keys=["alarm-3"], delay_ms=3_600_000)
            )
            await producer.send(
                Message("AlarmTopic", b"not in a year", keys=["alarm-4"], delay_ms=86_400_000)
            )
        waiting, total = await admin.timers(topic="AlarmTopic")
        print(f"{total} wait, the last until {time.ctime(waiting[-1].due_ms / 1000)}")
        await admin.cancel_timer(unwanted.message_id)
        await admin.fire_timer("alarm-4")
        tick = await admin.repeat_message(Message("AlarmTopic", b"tick"), rule="every 700")
        seen = []
        async with mq.consumer("sleepers", "AlarmTopic", consume_from="first") as consumer:
            async for message in consumer:
                seen.append(message.body.decode())
                message.ack()
                if seen.count("tick") == 2 and len(set(seen)) == 4:
                    break
        await admin.cancel_timer(tick.id)
        print("came:", ", ".join(sorted(set(seen))))


if __name__ == "__main__":
    asyncio.run(main())
