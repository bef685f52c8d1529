"""Retention waits for a group that archives."""

from __future__ import annotations

from broker_world import BrokerWorld

from skylark.protocol.codes import RequestCode


def test_what_the_group_has_not_read_is_spared(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(retention_waits_for_group="lake") as client:
            undelivered = world.parts.retention._undelivered_from
            sent = [await client.send("T", b"%d" % number) for number in range(4)]
            assert all(answer.code == 0 for answer in sent)
            assert undelivered() is None, "the group has not begun"
            await client.pull("T", group="lake")
            for offset, expected in ((0, 0), (2, 2), (4, None)):
                answer = await client.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": "lake", "topic": "T", "queueId": 0, "commitOffset": offset},
                )
                assert answer.code == 0
                queue = world.parts.store.queues.get("T", 0)
                assert queue is not None
                entry = None if expected is None else queue.entry(expected)
                assert undelivered() == (None if entry is None else entry.physical_offset)

    world.run(main)


def test_without_the_setting_nobody_is_waited_for(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"x")
            await client.pull("T", group="lake")
            await client.call(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "lake", "topic": "T", "queueId": 0, "commitOffset": 0},
            )
            assert world.parts.retention._undelivered_from() is None

    world.run(main)
