"""Consumers against the real broker in virtual time, where the two must go together."""

from __future__ import annotations

from skylark import Message, ReceivedMessage
from skylark.testing import MemoryBroker


def test_a_consumer_rewinds_its_queues_to_a_time_and_the_broker_goes_along() -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client:
                async with client.producer("makers") as producer:
                    for number in range(12):
                        await producer.send(Message("Orders", b"%d" % number))
                        await mq.clock.advance(seconds=1)
                        if number == 5:
                            between_ms = mq.clock.now_ms()
                async with client.consumer(
                    "readers", "Orders", handle, consume_from="first"
                ) as consumer:
                    await mq.clock.wait_for(lambda: len(seen) == 12)
                    await mq.clock.advance(seconds=6)
                    assert mq.lag("readers", "Orders") == 0
                    await consumer.rewind("Orders", between_ms)
                    assert mq.lag("readers", "Orders") == 6
                    await mq.clock.wait_for(lambda: len(seen) == 18)
                    assert sorted(map(int, seen[12:])) == list(range(6, 12))
                    await mq.clock.advance(seconds=6)
                    assert mq.lag("readers", "Orders") == 0

        mq.run(scenario)
