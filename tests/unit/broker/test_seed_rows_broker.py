"""Rows of the checklist on roles and the broker that no other test shows.

Most of them are of broker and clients together, so they run on the real broker in virtual time.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_world import BrokerWorld

from skylark import Message, ReceivedMessage
from skylark.broker.config import BrokerConfig
from skylark.cli import broker as broker_command
from skylark.model.group import MessageModel
from skylark.protocol.bodies import parse_properties
from skylark.protocol.codes import RequestCode
from skylark.testing import MemoryBroker

Handle = Callable[[ReceivedMessage], Awaitable[None]]


@pytest.fixture
def mq() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


def into(counter: Counter[bytes]) -> Handle:
    async def handle(message: ReceivedMessage) -> None:
        counter[message.body] += 1

    return handle


def _has(counter: Counter[bytes], count: int) -> bool:
    return len(counter) == count


# Roles and concepts.


def test_one_client_sends_to_three_topics_and_consumes_all_of_them(mq: MemoryBroker) -> None:
    topics = ("Orders", "Payments", "Parcels")
    got: Counter[str] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        got[message.topic] += 1

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("shop") as producer:
                for number in range(90):
                    await producer.send(Message(topics[number % 3], b"%d" % number))
            wanted = dict.fromkeys(topics, "*")
            async with client.consumer("all", wanted, handle, consume_from="first"):
                await mq.clock.wait_for(lambda: got.total() == 90)

    mq.run(scenario)
    assert got == dict.fromkeys(topics, 30)


def test_offsets_begin_at_zero_grow_by_one_and_outlive_a_restart(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            await client.create_topic("One", queue_count=1)
            before = [(await producer.send(Message("One", b"x"))).queue_offset for _ in range(5)]
            await mq.faults.restart()
            await mq.wait_ready()
            await mq.clock.advance(seconds=6)
            after = [(await producer.send(Message("One", b"x"))).queue_offset for _ in range(5)]
            assert before + after == list(range(10))

    mq.run(scenario)


def test_groups_get_everything_each_and_keep_their_own_progress(mq: MemoryBroker) -> None:
    """Data is distributed to as many systems as ask for it, and the producer knows none."""
    seen: dict[str, Counter[bytes]] = {name: Counter() for name in ("stock", "payment", "mail")}

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("shop") as producer:
                for number in range(60):
                    await producer.send(Message("Orders", b"%d" % number))
            async with client.consumer(
                "stock", "Orders", into(seen["stock"]), consume_from="first"
            ):
                await mq.clock.wait_for(lambda: len(seen["stock"]) == 60)
                await mq.clock.advance(seconds=6)
                assert mq.lag("stock", "Orders") == 0
                assert mq.lag("payment", "Orders") == 60
            for name in ("payment", "mail"):
                mine = seen[name]
                async with client.consumer(name, "Orders", into(mine), consume_from="first"):
                    await mq.clock.wait_for(partial(_has, mine, 60))

    mq.run(scenario)
    everything = Counter(b"%d" % number for number in range(60))
    assert seen["stock"] == seen["payment"] == seen["mail"] == everything


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING, None])
def test_three_members_share_nine_messages_or_get_nine_each(
    mq: MemoryBroker, model: MessageModel | None, tmp_path: Path
) -> None:
    seen: list[Counter[bytes]] = [Counter() for _ in range(3)]
    is_shared = model is not MessageModel.BROADCASTING

    async def scenario() -> None:
        settings: dict[str, Any] = {} if model is None else {"message_model": model}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(mq.connect())
            await client.create_topic("Nine", queue_count=9)
            members = []
            for number in range(3):
                own = await stack.enter_async_context(mq.connect())
                member = own.consumer(
                    "three",
                    "Nine",
                    into(seen[number]),
                    consume_from="first",
                    offsets_folder=str(tmp_path / str(number)),
                    **settings,
                )
                members.append(await stack.enter_async_context(member))
            share = 3 if is_shared else 9
            await mq.clock.wait_for(
                lambda: all(
                    sum(queue.topic == "Nine" for queue in one.assignment) == share
                    for one in members
                )
            )
            await mq.clock.advance(seconds=1)  # Until the last handover is over.
            producer = await stack.enter_async_context(client.producer("makers"))
            queues = await producer.fetch_queues("Nine")
            for queue in queues:
                await producer.send(Message("Nine", b"%d" % queue.queue_id), queue=queue)
            total = 9 if is_shared else 27
            await mq.clock.wait_for(lambda: sum(map(Counter.total, seen)) == total)
            await mq.clock.advance(seconds=1)
            assert [one.total() for one in seen] == ([3, 3, 3] if is_shared else [9, 9, 9])
            assert len(seen[0] + seen[1] + seen[2]) == 9

    mq.run(scenario)


def test_a_consumer_that_dies_before_it_is_done_leaves_its_message_to_another(
    mq: MemoryBroker,
) -> None:
    begun = asyncio.Event()
    seen: Counter[bytes] = Counter()

    async def never(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.sleep(3_600)

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("shop") as producer:
                await producer.send(Message("Orders", b"precious"))
            doomed = client.consumer("g", "Orders", never, consume_from="first", close_timeout_ms=0)
            await doomed.start()
            await asyncio.wait_for(begun.wait(), 30)
            await mq.clock.advance(seconds=20)  # Several rounds of commits.
            assert mq.lag("g", "Orders") == 1
            await doomed.close()
            async with client.consumer("g", "Orders", into(seen), consume_from="first"):
                await mq.clock.wait_for(lambda: seen[b"precious"] == 1)

    mq.run(scenario)


# Scenes.


def test_orders_are_taken_while_the_warehouse_is_down_and_it_catches_up(mq: MemoryBroker) -> None:
    seen: Counter[bytes] = Counter()

    async def scenario() -> None:
        async with mq.connect() as shop, shop.producer("shop") as producer:
            async with mq.connect() as warehouse:
                await producer.send(Message("Orders", b"before"))
                async with warehouse.consumer("w", "Orders", into(seen), consume_from="first"):
                    await mq.clock.wait_for(lambda: seen[b"before"] == 1)
            for second in range(60):  # It is down for a minute.
                await producer.send(Message("Orders", b"order %d" % second))
                await mq.clock.advance(seconds=1)
            assert mq.lag("w", "Orders") == 60
            async with (
                mq.connect() as warehouse,
                warehouse.consumer("w", "Orders", into(seen), consume_from="first"),
            ):
                await mq.clock.wait_for(lambda: len(seen) == 61)
                await mq.clock.advance(seconds=6)
            assert mq.lag("w", "Orders") == 0

    mq.run(scenario)
    assert set(seen.values()) == {1}


def test_a_rush_of_ten_times_the_rate_waits_its_turn_and_none_is_lost(mq: MemoryBroker) -> None:
    rate, seconds = 20, 10
    handled_ms: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        handled_ms.append(mq.clock.monotonic_ms())

    async def scenario() -> None:
        count = rate * 10 * seconds
        async with (
            mq.connect() as client,
            client.producer("shop", linger_ms=1) as producer,
            client.consumer("bank", "Orders", handle, consume_from="first", rate_max=rate),
        ):
            for second in range(seconds):
                await asyncio.gather(
                    *(
                        producer.send(Message("Orders", b"%d %d" % (second, number)))
                        for number in range(rate * 10)
                    )
                )
                await mq.clock.advance(seconds=1)
            assert mq.lag("bank", "Orders") > count // 2
            await mq.clock.wait_for(lambda: len(handled_ms) == count)
            await mq.clock.advance(seconds=6)
            assert mq.lag("bank", "Orders") == 0
        took_s = (handled_ms[-1] - handled_ms[0]) / 1_000
        assert count / rate * 0.9 <= took_s <= count / rate * 1.1
        for start in range(0, count - rate, rate):  # In no second were there more than allowed.
            assert handled_ms[start + rate] - handled_ms[start] >= 900

    mq.run(scenario)


# The process.


def test_the_default_port_and_flush_are_those_of_rocketmq(world: BrokerWorld) -> None:
    assert BrokerConfig().listen_port == 10911

    async def main() -> None:
        async with world.serving() as client:
            answer = await client.call(RequestCode.GET_BROKER_CONFIG)
            shown = parse_properties(answer.body)
            assert (shown["listenPort"], shown["flushDiskType"], shown["brokerRole"]) == (
                "10911", "ASYNC_FLUSH", "ASYNC_MASTER",
            )  # fmt: skip

    world.run(main)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[BrokerConfig]:
    """The settings of the brokers that a command would have run."""
    configs: list[BrokerConfig] = []

    def run(config: BrokerConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr("skylark.broker.process.run", run)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return configs


def test_an_edited_file_counts_after_a_restart(started: list[BrokerConfig], tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    for text in ("# mine\nenablePropertyFilter = false\n", "# mine\nenablePropertyFilter=true\n"):
        file.write_text(f"{text}namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\n")
        assert broker_command.main(["-c", str(file), "--log-dir", "-"]) == 0
    assert [config.enable_property_filter for config in started] == [False, True]
    assert started[1].name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    # What is changed by request is written there, and so counts at the next start too.
    assert started[1].broker_config_path == str(file)


def test_a_file_that_is_not_here_is_looked_for_in_rocketmq_home(
    started: list[BrokerConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "rocketmq"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "broker.conf").write_text("brokerName=from-home\n")
    assert broker_command.main(["-c", "conf/broker.conf", "--log-dir", "-"]) == 2
    assert "conf/broker.conf" in capsys.readouterr().err
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))
    assert broker_command.main(["-c", "conf/broker.conf", "--log-dir", "-"]) == 0
    assert started[-1].broker_name == "from-home"
    assert started[-1].broker_config_path == str(home / "conf" / "broker.conf")
    # What is here wins.
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "broker.conf").write_text("brokerName=from-here\n")
    assert broker_command.main(["-c", "conf/broker.conf", "--log-dir", "-"]) == 0
    assert started[-1].broker_name == "from-here"
    assert broker_command.main(["-c", "conf/other.conf", "--log-dir", "-"]) == 2
    complaint = capsys.readouterr().err
    assert "conf/other.conf" in complaint
    assert str(home) in complaint


def test_the_runtime_info_lists_the_parts_of_the_broker(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            listed = json.loads(bytes(answer.body))["table"]["components"]
            parts = dict(word.split(":") for word in listed.split())
            for duty in (
                "ConsumerManager", "DefaultMessageStore", "CommitLog", "GroupCommitService",
                "ScheduleMessageService", "TransactionalMessageService", "PullRequestHoldService",
            ):  # fmt: skip
                assert parts[duty].isidentifier()
            assert (parts["ConsumerManager"], parts["CommitLog"]) == ("Clients", "CommitLog")

    world.run(main)
