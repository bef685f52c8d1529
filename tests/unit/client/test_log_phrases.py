"""Phrases of RocketMQ's logs that operators' alerts look for, where they are due."""

from __future__ import annotations

import logging

import pytest

from skylark import Message, ReceivedMessage
from skylark.testing import MemoryBroker


async def handle(message: ReceivedMessage) -> None:
    return None


def test_a_share_that_changed_and_a_topic_that_is_not_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client:
                async with client.producer("makers") as producer:
                    await producer.send(Message("Orders", b"x"))
                wanted = {"Orders": "*", "Nowhere": "*"}
                async with client.consumer("readers", wanted, handle):
                    await mq.clock.advance(seconds=1)

        mq.run(scenario)
    assert "rebalanced result changed. allocateMessageQueueStrategyName=AVG" in caplog.text
    assert "doRebalance, readers, but the topic[Nowhere] not exist." in caplog.text


def test_a_list_of_members_that_cannot_be_had(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client:
                async with client.producer("makers") as producer:
                    await producer.send(Message("Orders", b"x"))
                async with client.consumer("readers", "Orders", handle):
                    await mq.clock.advance(seconds=1)
                    mq.faults.kill()
                    await mq.clock.advance(seconds=30)
                    mq.faults.start()
                    await mq.wait_ready()

        mq.run(scenario)
    assert "get consumer id list failed" in caplog.text
