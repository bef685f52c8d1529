"""Keep the steps of each order in their order, with many orders at once.

    python examples/ordered.py

Messages with the same key go to the same queue, and an orderly consumer handles a queue one message
at a time, holding it by a lock. A step that fails holds up its own queue, and is tried again.
"""

import asyncio
import os
from collections import defaultdict

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ("created", "paid", "sent", "received")
ORDERS = 20


async def main() -> None:
    steps: dict[str, list[str]] = defaultdict(list)
    has_failed = False
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal has_failed
        order, step = message.body.decode().split()
        if (order, step) == ("order-7", "paid") and not has_failed:
            has_failed = True
            raise ValueError("the bank does not answer; tried again in a moment")
        steps[order].append(step)
        if sum(map(len, steps.values())) == ORDERS * len(STEPS):
            done.set()

    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("shop") as producer:
            for step in STEPS:
                for number in range(ORDERS):
                    order = f"order-{number}"
                    await producer.send(Message("StepTopic", f"{order} {step}".encode()), key=order)
        async with mq.consumer(
            "warehouse", "StepTopic", handle, consume_from="first", orderly=True, suspend_ms=100
        ):
            await asyncio.wait_for(done.wait(), 30)
    assert all(seen == list(STEPS) for seen in steps.values()), steps
    print(f"{ORDERS} orders, each step in its place; one was tried again")


if __name__ == "__main__":
    asyncio.run(main())
