"""Send log lines without waiting for anything.

    python examples/oneway_producer.py

A oneway message is written to the socket and forgotten: it takes microseconds, is never tried
again, and may be lost. That suits logs, and nothing that anybody would miss.
"""

import asyncio
import os
import time

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 1_000


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq, mq.producer("log-shipper") as producer:
        await producer.send(Message("LogTopic", b"the first one finds the way"))
        began = time.perf_counter()
        for number in range(COUNT):
            await producer.send_oneway(Message("LogTopic", f"GET /page/{number} 200".encode()))
        took_us = (time.perf_counter() - began) / COUNT * 1e6
    print(f"{COUNT} lines handed over in {took_us:.0f} microseconds each")


if __name__ == "__main__":
    asyncio.run(main())
