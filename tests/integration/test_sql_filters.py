"""Python consumers of every kind filter by SQL92 against a real broker, and the example runs."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import skylark
from skylark import Message, SqlFilter
from skylark.cli.main import main as cli
from skylark.compat import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    DefaultMQPullConsumer,
    DefaultMQPushConsumer,
    MessageListenerConcurrently,
    MessageSelector,
)
from skylark.errors import BrokerError
from skylark.protocol.codes import ResponseCode
from skylark.testing import DiskBroker

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "sql_filter.py"
WANTED = SqlFilter("a > 5 AND b IS NOT NULL")
BODIES = [b"6", b"8", b"10"]


@pytest.fixture(scope="module", params=["plain", "bits"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    bits = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
    settings = bits if request.param == "bits" else {}
    folder = tmp_path_factory.mktemp("filters")
    with DiskBroker(folder, enable_property_filter=True, **settings) as broker:
        asyncio.run(_fill(broker.address, "Filtered", 12))
        yield broker.address


async def _fill(address: str, topic: str, count: int) -> None:
    async with skylark.connect(address) as mq, mq.producer("fillers") as producer:
        for number in range(count):
            properties = {"a": str(number)} | ({"b": "x"} if number % 2 == 0 else {})
            await producer.send(Message(topic, b"%d" % number, properties=properties))


def test_a_push_consumer_gets_what_matches(address: str) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []
        async with skylark.connect(address) as mq:
            subscription = {"Filtered": WANTED}
            async with mq.consumer("pushers", subscription, consume_from="first") as consumer:
                async for message in consumer:
                    seen.append(message.body)
                    message.ack()
                    if len(seen) == len(BODIES):
                        break
        return seen

    assert sorted(asyncio.run(main()), key=int) == BODIES


def test_a_lite_pull_consumer_gets_what_matches(address: str) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []
        async with skylark.connect(address) as mq:
            subscription = {"Filtered": WANTED}
            async with mq.lite_pull_consumer(
                "pollers", subscription, consume_from="first"
            ) as consumer:
                while len(seen) < len(BODIES):
                    seen += [one.body for one in await consumer.poll(timeout_ms=1_000)]
        return seen

    assert sorted(asyncio.run(main()), key=int) == BODIES


def test_a_pull_consumer_gets_what_matches(address: str) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []
        async with skylark.connect(address) as mq, mq.pull_consumer("pullers") as consumer:
            for queue in await consumer.fetch_queues("Filtered"):
                offset, end = 0, await consumer.max_offset(queue)
                while offset < end:
                    page = await consumer.pull(queue, WANTED, offset=offset)
                    seen += [one.body for one in page.messages]
                    offset = page.next_begin_offset
        return seen

    assert sorted(asyncio.run(main()), key=int) == BODIES


def test_selectors_under_javas_names(address: str) -> None:
    pulled = []
    puller = DefaultMQPullConsumer("java-pullers")
    puller.setNamesrvAddr(address)
    puller.start()
    for queue in sorted(puller.fetchSubscribeMessageQueues("Filtered")):
        result = puller.pull(queue, MessageSelector.bySql(WANTED.expression), 0, 32)
        pulled += [one.getBody() for one in result.getMsgFoundList() or []]
    puller.shutdown()
    assert sorted(pulled, key=int) == BODIES

    class Listener(MessageListenerConcurrently):
        def consumeMessage(self, msgs, context):  # type: ignore[no-untyped-def]
            pushed.extend(one.getBody() for one in msgs)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    pushed: list[bytes] = []
    pusher = DefaultMQPushConsumer("java-pushers")
    pusher.setNamesrvAddr(address)
    pusher.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    pusher.subscribe("Filtered", MessageSelector.bySql(WANTED.expression))
    pusher.registerMessageListener(Listener())
    pusher.start()

    async def arrived() -> None:
        while len(pushed) < len(BODIES):
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(arrived(), 30))
    pusher.shutdown()
    assert sorted(pushed, key=int) == BODIES


def test_a_consumer_with_a_wrong_expression_does_not_start(address: str) -> None:
    async def main() -> None:
        wanted = {"Filtered": SqlFilter("a > > 5")}
        async with skylark.connect(address) as mq, mq.consumer("wrong", wanted):
            raise AssertionError("it has started")

    with pytest.raises(BrokerError) as refusal:
        asyncio.run(main())
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "has '>' at position 5" in str(refusal.value)


def test_a_broker_without_filters_refuses_the_consumer(tmp_path: pathlib.Path) -> None:
    async def main(where: str) -> None:
        await _fill(where, "Filtered", 1)
        async with skylark.connect(where) as mq, mq.consumer("refused", {"Filtered": WANTED}):
            raise AssertionError("it has started")

    with DiskBroker(tmp_path) as broker, pytest.raises(BrokerError) as refusal:
        asyncio.run(main(broker.address))
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    assert "set enablePropertyFilter=true" in str(refusal.value)


def test_the_example_takes_two_of_twelve(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE],
        env={**os.environ, "NAMESRV_ADDR": address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "of 12 messages these were wanted: [7, 9]\n"


def test_the_command_line_filters_too(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["consume", "Filtered", "-n", address, "--json", "--sql"]
    assert cli([*words, WANTED.expression]) == 0
    assert capsys.readouterr().out.count("\n") == len(BODIES)
    assert cli([*words, "a > > 5"]) == 1
    assert "position 5" in capsys.readouterr().err
    assert cli([*words, "a > 5", "--tag", "TagA"]) == 2
    assert "give one of them" in capsys.readouterr().err
