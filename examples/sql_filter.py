"""Take only messages whose properties satisfy an SQL92 expression.

    skylark up --set enablePropertyFilter=true
    python examples/sql_filter.py

The broker looks at the properties, so what does not match never crosses the network. TAGS is a
property as well. `skylark message explain-filter` says why a message passes, or does not.
"""

import asyncio
import os

import skylark
from skylark import Message, SqlFilter

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
WANTED = SqlFilter(
    "(TAGS IS NOT NULL AND TAGS IN ('TagA', 'TagB')) "
    "AND (test IS NOT NULL AND test BETWEEN 7 AND 9)"
)


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("testers") as producer:
            for number in range(12):
                tag = ("TagA", "TagB", "TagC")[number % 3]
                properties = {"test": str(number)}
                await producer.send(
                    Message("TestTopic", b"%d" % number, tag=tag, properties=properties)
                )
        seen = []
        async with mq.consumer("readers", {"TestTopic": WANTED}, consume_from="first") as consumer:
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 2:
                    message.ack()
                    break
    print(f"of 12 messages these were wanted: {sorted(seen)}")


if __name__ == "__main__":
    asyncio.run(main())
