"""Take only messages with certain tags.

    python examples/tag_filter.py

A message has one tag; a subscription may name several. The broker leaves out what does not match,
so it never crosses the network.
"""

import asyncio
import os
from collections import Counter

import skylark
from skylark import Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TAGS = ("TagA", "TagB", "TagC")


async def main() -> None:
    async with skylark.connect(ADDRESS) as mq:
        async with mq.producer("taggers") as producer:
            for number in range(30):
                tag = TAGS[number % 3]
                await producer.send(Message("TaggedTopic", b"%d" % number, tag=tag))
        seen: Counter[str | None] = Counter()
        subscription = {"TaggedTopic": "TagA || TagC"}
        async with mq.consumer("choosers", subscription, consume_from="first") as consumer:
            async for message in consumer:
                seen[message.tag] += 1
                if seen.total() == 20:
                    message.ack()
                    break
    print(", ".join(f"{tag} {seen[tag]}" for tag in TAGS))


if __name__ == "__main__":
    asyncio.run(main())
