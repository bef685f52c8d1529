"""Why one uses a queue: three scenes of a shop.

    python examples/order_scenario.py

Decoupling: the warehouse is down, and customers can order all the same; it catches up later.
Peak shaving: a rush of orders comes ten times as fast as the bank may be asked; it waits.
Distribution: stock, payment and statistics each get every order, and the shop knows none of them.
"""

import asyncio
import os
import time
from collections import Counter

import skylark
from skylark import Message, ReceivedMessage

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS, RATE = 100, 100


async def main() -> None:
    got: Counter[str] = Counter()

    def service(mq: skylark.Client, group: str, rate_max: float | None) -> skylark.PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            got[group] += 1

        return mq.consumer(group, "ShopTopic", handle, consume_from="first", rate_max=rate_max)

    async def until(group: str, count: int) -> None:
        async with asyncio.timeout(30):
            while got[group] < count:
                await asyncio.sleep(0.01)

    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("shop") as producer:
            began = time.monotonic()
            for number in range(ORDERS):
                await producer.send(Message("ShopTopic", b"order %d" % number))
            pace = ORDERS / (time.monotonic() - began)
        print(f"the shop took {ORDERS} orders with nobody there, {pace:,.0f} a second")
        async with service(mq, "stock", None), service(mq, "statistics", None):
            began = time.monotonic()
            async with service(mq, "payment", RATE):
                await until("payment", ORDERS)
                took = time.monotonic() - began
            await until("stock", ORDERS)
            await until("statistics", ORDERS)
        print(f"the bank was asked {ORDERS / took:.0f} times a second, {RATE} at most")
        print(f"each service got every order: {dict(sorted(got.items()))}")


if __name__ == "__main__":
    asyncio.run(main())
