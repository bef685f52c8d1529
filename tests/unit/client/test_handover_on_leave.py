"""A member leaves, and queues change hands among those that stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from skylark import Message, ReceivedMessage
from skylark.testing import MemoryBroker


def test_members_that_stay_hand_queues_over_when_another_leaves() -> None:
    seen: list[tuple[int, bytes]] = []

    def handler(number: int) -> Callable[[ReceivedMessage], Awaitable[None]]:
        async def handle(message: ReceivedMessage) -> None:
            seen.append((number, message.body))

        return handle

    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(mq.connect())
                await client.create_topic("Nine", queue_count=9)
                for number in range(3):
                    own = await stack.enter_async_context(mq.connect())
                    member = own.consumer("three", "Nine", handler(number), consume_from="first")
                    await stack.enter_async_context(member)
                await mq.clock.advance(seconds=2)
                async with client.producer("makers") as producer:
                    for queue in await producer.fetch_queues("Nine"):
                        await producer.send(Message("Nine", b"%d" % queue.queue_id), queue=queue)
                await mq.clock.wait_for(lambda: len(seen) == 9)
                # The last one leaves; by the usual strategy others pass queues among them as well.
                await member.close()
                await mq.clock.advance(seconds=2)

        mq.run(scenario)
    assert sorted(body for _, body in seen) == [b"%d" % number for number in range(9)]
