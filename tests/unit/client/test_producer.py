"""Producer: what goes out, where it goes, and what comes back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from send_world import TOPIC, World

from skylark.client.hooks import CommunicationMode, SendContext
from skylark.client.producer import Producer, ProducerConfig
from skylark.client.receipts import SendReceipt
from skylark.errors import (
    BrokerBusy,
    ClientClosed,
    ConfigError,
    InvalidMessage,
    InvalidName,
    NoRoute,
    SendFailed,
)
from skylark.model.message import CompressionType, Message
from skylark.model.queue import MessageQueue
from skylark.model.topic import TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.compression import expand
from skylark.protocol.properties import parse_properties
from skylark.remote import SendStatus
from skylark.testing.fake_broker import Delay, Step

MIB = 1024 * 1024


async def warm_up(world: World, producer: Producer) -> int:
    """Send one message to every queue, so that all connections are up; return how many."""
    queues = await producer.fetch_queues(TOPIC)
    for queue in queues:
        await producer.send(Message(TOPIC, b"warm"), queue=queue)
    return len(queues)


def test_a_sent_message_is_stored_with_everything_that_the_protocol_asks_for() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            message = Message(TOPIC, b"five", tag="Paid", keys=["o-1", "c-2"], flag=9)
            receipt = await producer.send(message)
        (stored,) = world.brokers[0].stored
        header = stored.header
        assert (header.producer_group, header.topic, header.broker_name) == (
            "shop",
            TOPIC,
            "broker-a",
        )
        assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
        assert (header.sys_flag, header.flag, header.reconsume_times) == (0, 9, 0)
        assert (header.unit_mode, header.batch) == (False, False)
        assert header.born_timestamp > 1_000_000
        assert stored.properties == {
            "TAGS": "Paid",
            "KEYS": "o-1 c-2",
            "WAIT": "true",
            "UNIQ_KEY": receipt.message_id,
        }
        assert stored.code == RequestCode.SEND_MESSAGE_V2
        assert receipt.status is SendStatus.SEND_OK
        assert receipt.queue == MessageQueue(TOPIC, "broker-a", header.queue_id)
        assert receipt.queue_offset == 0
        assert receipt.offset_id.startswith("0A000001")
        assert receipt.message_id.startswith("0A000064")
        assert (receipt.region, receipt.trace_on) == ("DefaultRegion", True)

    world.run(scenario)


def test_messages_are_spread_evenly_over_all_queues() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            receipts = [await producer.send(Message(TOPIC, b"x")) for _ in range(80)]
        counts = Counter(receipt.queue for receipt in receipts)
        assert len(counts) == 8
        assert set(counts.values()) == {10}

    world.run(scenario)


def test_two_producers_of_one_client_do_not_start_at_the_same_queue() -> None:
    world = World(brokers=1, topics=[TopicConfig(TOPIC, 64, 64)])

    async def scenario() -> None:
        async with world.connect() as mq:
            firsts = set()
            for n in range(4):
                async with mq.producer(f"shop-{n}") as producer:
                    firsts.add((await producer.send(Message(TOPIC, b"x"))).queue.queue_id)
            assert len(firsts) > 1

    world.run(scenario)


def test_the_route_is_asked_for_once_and_then_known() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            asked = world.name_server.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC]
            await producer.send(Message(TOPIC, b"x"))
            assert world.name_server.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC] == asked == 1

    world.run(scenario)


def test_new_queues_are_used_within_30_seconds() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].topics[TOPIC] = TopicConfig(TOPIC, 6, 6)
            await world.clock.sleep_ms(31_000)
            used = {(await producer.send(Message(TOPIC, b"x"))).queue.queue_id for _ in range(6)}
            assert used == set(range(6))

    world.run(scenario)


def test_a_broker_that_left_the_route_is_not_tried_after_one_poll() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.name_server.hidden.add("broker-a")
            await world.clock.sleep_ms(31_000)
            before = len(world.brokers[0].stored)
            for _ in range(16):
                await producer.send(Message(TOPIC, b"x"))
            assert len(world.brokers[0].stored) == before

    world.run(scenario)


# Where a message goes by the caller's wish.


def test_a_message_goes_to_the_queue_it_is_sent_to() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            queue = MessageQueue(TOPIC, "broker-b", 3)
            assert (await producer.send(Message(TOPIC, b"x"), queue=queue)).queue == queue

    world.run(scenario)


def test_a_queue_of_another_topic_is_refused() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(InvalidMessage, match="message's topic not equal mq's topic"):
                await producer.send(
                    Message(TOPIC, b"x"), queue=MessageQueue("Others", "broker-a", 0)
                )

    world.run(scenario)


def test_a_queue_of_an_unknown_broker_is_refused_with_its_name() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(NoRoute, match=r"The broker\[broker-z\] not exist") as caught:
                await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-z", 0))
            assert caught.value.broker == "broker-z"

    world.run(scenario)


def test_equal_keys_share_a_queue_and_keep_their_order() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            places = {}
            for step in range(5):
                for key in ("alice", "bob", "carol", "dave", "erin"):
                    message = Message(TOPIC, f"{key} {step}".encode())
                    receipt = await producer.send(message, key=key)
                    assert places.setdefault(key, receipt.queue) == receipt.queue
            assert len(set(places.values())) > 1

    world.run(scenario)


def test_a_selector_sees_all_queues_and_decides() -> None:
    world = World(brokers=2)
    seen: list[tuple[int, object]] = []

    def last(queues: object, message: Message, argument: object) -> MessageQueue:
        assert isinstance(queues, tuple)
        seen.append((len(queues), argument))
        chosen = queues[-1]
        assert isinstance(chosen, MessageQueue)
        return chosen

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            receipt = await producer.send(Message(TOPIC, b"x"), selector=last, argument=42)
            assert receipt.queue == MessageQueue(TOPIC, "broker-b", 3)
            assert seen == [(8, 42)]
            with pytest.raises(InvalidMessage, match="more than one of queue, key and selector"):
                await producer.send(Message(TOPIC, b"x"), selector=last, key="k")

    world.run(scenario)


# What is refused before it goes out.


@pytest.mark.parametrize("name", ["a b", "x" * 128, "topic/one"])
def test_an_illegal_topic_name_is_refused_here(name: str) -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(InvalidName):
                await producer.send(Message(name, b"x"))
            assert not world.brokers[0].seen

    world.run(scenario)


def test_topics_of_the_system_are_refused_here() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(InvalidMessage, match="forbidden"):
                await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))

    world.run(scenario)


def test_bodies_have_at_least_one_byte_and_at_most_four_mebibytes() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with (
            world.connect() as mq,
            mq.producer("shop", compress_msg_body_over_howmuch=2**31) as producer,
        ):
            with pytest.raises(InvalidMessage, match="no body"):
                await producer.send(Message(TOPIC, b""))
            with pytest.raises(InvalidMessage, match="4194305 bytes, the limit is 4194304"):
                await producer.send(Message(TOPIC, bytes(4 * MIB + 1)))
            receipt = await producer.send(Message(TOPIC, bytes(4 * MIB)))
            assert receipt.status is SendStatus.SEND_OK

    world.run(scenario)


def test_properties_beyond_the_record_are_refused_here() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(InvalidMessage, match="limit is 32767"):
                await producer.send(Message(TOPIC, b"x", properties={"a": "ä" * 17_000}))

    world.run(scenario)


@pytest.mark.parametrize("group", ["", "a b", "x" * 256])
def test_an_illegal_group_is_refused(group: str) -> None:
    with pytest.raises(InvalidName):
        ProducerConfig(group=group)


def test_settings_out_of_range_are_refused_with_a_next_step() -> None:
    for settings in (
        {"send_msg_timeout_ms": 0},
        {"retry_times_when_send_failed": -1},
        {"linger_ms": -1},
        {"batch_bytes_max": 100, "buffer_bytes_max": 10},
    ):
        with pytest.raises(ConfigError):
            ProducerConfig(group="shop", **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name it"):
        ProducerConfig(group="DEFAULT_PRODUCER")


def test_the_defaults_are_those_of_4_9_8() -> None:
    config = ProducerConfig(group="shop")
    assert config.send_msg_timeout_ms == 3_000
    assert config.retry_times_when_send_failed == 2
    assert config.retry_times_when_send_async_failed == 2
    assert config.retry_another_broker_when_not_store_ok is False
    assert config.compress_msg_body_over_howmuch == 4_096
    assert config.max_message_size == 4 * MIB
    assert config.send_latency_fault_enable is False
    assert (config.create_topic_key, config.default_topic_queue_nums) == ("TBW102", 4)


# Bodies.


def test_a_large_body_travels_compressed_and_says_so() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"0" * 4_095))
            await producer.send(Message(TOPIC, b"0" * 5_000))
        small, large = world.brokers[0].stored
        assert (small.header.sys_flag, len(small.body)) == (0, 4_095)
        assert large.header.sys_flag == 0x301
        assert len(large.body) < 200
        assert expand(large.body, CompressionType.ZLIB) == b"0" * 5_000

    world.run(scenario)


def test_a_body_that_does_not_shrink_goes_as_it_is() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        body = random.Random(3).randbytes(5_000)
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, body))
        (stored,) = world.brokers[0].stored
        assert (stored.header.sys_flag, stored.body) == (0, body)

    world.run(scenario)


def test_delays_and_wait_travel_as_properties() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x", delay_level=3, wait_stored=False))
            await producer.send(Message(TOPIC, b"x", properties={"region": "eu"}))
        first, second = world.brokers[0].stored
        assert (first.properties["DELAY"], first.properties["WAIT"]) == ("3", "false")
        assert second.properties["region"] == "eu"

    world.run(scenario)


# Answers.


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_message_that_is_stored_but_less_safe_says_so(code: int, status: SendStatus) -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.append(code)
        async with world.connect() as mq, mq.producer("shop") as producer:
            receipt = await producer.send(Message(TOPIC, b"x"))
            assert receipt.status is status
            assert receipt.queue_offset == 0
        assert sum(len(broker.seen) for broker in world.brokers) == 1

    world.run(scenario)


def test_another_broker_is_tried_when_less_safe_is_not_enough() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        world.brokers[0].script.extend([11] * 9)
        settings = {"retry_another_broker_when_not_store_ok": True}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            for _ in range(4):
                receipt = await producer.send(Message(TOPIC, b"x"))
                assert (receipt.status, receipt.queue.broker_name) == (
                    SendStatus.SEND_OK,
                    "broker-b",
                )

    world.run(scenario)


def test_flow_control_is_not_retried() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.extend([ResponseCode.SYSTEM_BUSY] * 5)
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(BrokerBusy, match="SCRIPTED") as caught:
                await producer.send(Message(TOPIC, b"x"))
        assert sum(len(broker.seen) for broker in world.brokers) == 1
        assert caught.value.code == ResponseCode.SYSTEM_BUSY
        assert caught.value.broker in ("broker-a", "broker-b")
        assert "retry" in caught.value.hint

    world.run(scenario)


def test_flow_control_is_retried_after_a_pause_where_that_is_wished() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([ResponseCode.SYSTEM_BUSY] * 2)
        async with world.connect() as mq, mq.producer("shop", retry_system_busy=True) as producer:
            began_ms = world.clock.monotonic_ms()
            await producer.send(Message(TOPIC, b"x"))
            assert 300 <= world.clock.monotonic_ms() - began_ms < 400

    world.run(scenario)


def test_a_message_that_the_broker_finds_illegal_is_not_retried() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.extend([ResponseCode.MESSAGE_ILLEGAL] * 5)
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message(TOPIC, b"x"))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert "smaller" in caught.value.hint
        assert sum(len(broker.seen) for broker in world.brokers) == 1

    world.run(scenario)


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
def test_other_refusals_are_retried_at_another_broker(code: int) -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        world.brokers[0].script.extend([code] * 9)
        async with world.connect() as mq, mq.producer("shop") as producer:
            for _ in range(4):
                assert (await producer.send(Message(TOPIC, b"x"))).queue.broker_name == "broker-b"

    world.run(scenario)


def test_three_tries_are_all_there_are() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.extend([1] * 9)
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(SendFailed, match=r"Send \[3\] times, still failed") as caught:
                await producer.send(Message(TOPIC, b"x"))
        assert sum(len(broker.seen) for broker in world.brokers) == 3
        assert len(caught.value.brokers_tried) == 3
        assert set(caught.value.brokers_tried) == {"broker-a", "broker-b"}
        assert not caught.value.is_ambiguous

    world.run(scenario)


def test_all_tries_of_a_message_carry_the_same_id() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.append(1)
        async with world.connect() as mq, mq.producer("shop") as producer:
            receipt = await producer.send(Message(TOPIC, b"x"))
        seen = [request for broker in world.brokers for request in broker.seen]
        ids = {parse_properties(request.header.properties)["UNIQ_KEY"] for request in seen}
        assert ids == {receipt.message_id}
        assert len(seen) == 3

    world.run(scenario)


def test_a_silent_broker_costs_the_whole_budget_and_no_more() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.extend([Step.SILENCE] * 5)
        async with world.connect() as mq, mq.producer("shop") as producer:
            began_ms = world.clock.monotonic_ms()
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message(TOPIC, b"x"))
            assert 3_000 <= world.clock.monotonic_ms() - began_ms < 3_050
        assert caught.value.is_ambiguous
        assert "may be stored" in caught.value.hint
        assert sum(len(broker.seen) for broker in world.brokers) == 1

    world.run(scenario)


def test_a_late_answer_is_an_answer_as_long_as_there_is_time() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.append(Delay(2_900))
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].script.append(Delay(500))
            with pytest.raises(SendFailed):
                await producer.send(Message(TOPIC, b"x"), timeout_ms=200)

    world.run(scenario)


def test_a_connection_lost_under_way_is_retried_elsewhere() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await warm_up(world, producer)
            for broker in world.brokers:
                broker.script.append(Step.DROP)
            receipt = await producer.send(Message(TOPIC, b"x"))
        assert receipt.status is SendStatus.SEND_OK
        assert sum(broker.messages(TOPIC).count(b"x") for broker in world.brokers) == 1

    world.run(scenario)


def test_a_doubtful_send_is_repeated_with_the_same_id_and_so_can_be_told_apart() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await warm_up(world, producer)
            world.brokers[0].script.append(Step.STORE_AND_DROP)
            receipt = await producer.send(Message(TOPIC, b"x"))
        stored = world.brokers[0].stored[-2:]
        assert [one.properties["UNIQ_KEY"] for one in stored] == [receipt.message_id] * 2

    world.run(scenario)


def test_a_send_to_a_chosen_queue_is_tried_once() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        world.brokers[0].script.extend([1, 1])
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-a", 0))
        assert len(world.brokers[0].seen) == 1
        assert not world.brokers[1].seen

    world.run(scenario)


# New topics.


def test_a_new_topic_is_created_by_sending_to_it() -> None:
    world = World(brokers=2, topics=[])

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            for _ in range(16):
                await producer.send(Message("Fresh", b"x"))
            # Both brokers have it, not only the first that was met.
            assert [broker.topics["Fresh"].write_queue_nums for broker in world.brokers] == [4, 4]
            await world.clock.sleep_ms(1_100)
            await producer.send(Message("Fresh", b"x"))
            await world.clock.sleep_ms(100)
            assert mq.session.routes.known("Fresh") is not None

    world.run(scenario)


def test_a_topic_that_may_not_be_created_says_what_to_do() -> None:
    world = World(brokers=1, topics=[])
    world.brokers[0].topics.clear()

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(NoRoute, match="No route info of this topic: Fresh") as caught:
                await producer.send(Message("Fresh", b"x"))
            assert "autoCreateTopicEnable" in caught.value.hint
            assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST

    world.run(scenario)


def test_a_topic_that_nobody_may_write_to_says_so_and_recovers() -> None:
    world = World(brokers=1, topics=[TopicConfig(TOPIC, 4, 4, perm=4)])

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            with pytest.raises(NoRoute, match="look at perm"):
                await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].topics[TOPIC] = TopicConfig(TOPIC, 4, 4)
            await world.clock.sleep_ms(31_000)
            await producer.send(Message(TOPIC, b"x"))

    world.run(scenario)


# Callbacks, oneway, batches.


class Callback:
    def __init__(self) -> None:
        self.receipts: list[SendReceipt] = []
        self.errors: list[Exception] = []

    def on_success(self, receipt: SendReceipt) -> None:
        self.receipts.append(receipt)

    def on_exception(self, error: Exception) -> None:
        self.errors.append(error)


def test_a_callback_hears_of_success_or_failure_once() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        callback = Callback()
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send_async(Message(TOPIC, b"x"), callback)
            assert (len(callback.receipts), len(callback.errors)) == (1, 0)
            world.brokers[0].script.append(ResponseCode.SYSTEM_ERROR)
            producer.send_async(Message(TOPIC, b"x"), callback)
            await producer.flush()
        assert (len(callback.receipts), len(callback.errors)) == (1, 1)
        assert isinstance(callback.errors[0], SendFailed)

    world.run(scenario)


def test_an_async_send_is_retried_after_network_errors_and_not_after_refusals() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            warm = await warm_up(world, producer)
            for broker in world.brokers:
                broker.script.append(Step.DROP)
            receipt = await producer.send_async(Message(TOPIC, b"x"))
            assert receipt.status is SendStatus.SEND_OK
            tries = sum(len(broker.seen) for broker in world.brokers)
            assert tries == warm + 3
            for broker in world.brokers:
                broker.script.append(ResponseCode.SYSTEM_ERROR)
            with pytest.raises(SendFailed):
                await producer.send_async(Message(TOPIC, b"x"))
            assert sum(len(broker.seen) for broker in world.brokers) == tries + 1

    world.run(scenario)


def test_async_retries_stay_with_the_broker_where_that_is_wished() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        settings = {"retry_async_on_same_broker": True}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            await warm_up(world, producer)
            before = [len(broker.seen) for broker in world.brokers]
            for broker in world.brokers:
                broker.script.append(Step.DROP)
            await producer.send_async(Message(TOPIC, b"x"))
            after = [len(broker.seen) for broker in world.brokers]
            assert sorted(n - m for n, m in zip(after, before, strict=True)) == [0, 2]

    world.run(scenario)


def test_closing_waits_for_what_is_under_way() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        callback = Callback()
        async with world.connect() as mq:
            async with mq.producer("shop") as producer:
                world.brokers[0].script.extend([Delay(1_000)] * 10)
                for _ in range(10):
                    producer.send_async(Message(TOPIC, b"x"), callback)
            assert len(callback.receipts) == 10
            with pytest.raises(ClientClosed):
                await producer.send(Message(TOPIC, b"x"))

    world.run(scenario)


def test_a_closed_producer_may_be_started_again() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            producer = mq.producer("shop")
            for _ in range(2):
                async with producer:
                    await producer.send(Message(TOPIC, b"x"))
                await producer.close()

    world.run(scenario)


def test_a_oneway_message_is_stored_and_nothing_is_waited_for() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"connects"))
            began = world.loop.time()
            await producer.send_oneway(Message(TOPIC, b"gone"))
            assert world.loop.time() == began
            await world.clock.sleep_ms(10)
        assert world.brokers[0].messages(TOPIC) == [b"connects", b"gone"]

    world.run(scenario)


def test_a_oneway_message_to_a_dead_broker_is_lost_without_an_error() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.fetch_queues(TOPIC)
            world.brokers[0].kill()
            await producer.send_oneway(Message(TOPIC, b"lost"))
        assert not world.brokers[0].seen

    world.run(scenario)


def test_a_batch_is_one_request_and_gives_each_message_a_receipt() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            messages = [Message(TOPIC, f"{n}".encode(), tag="T") for n in range(5)]
            receipts = await producer.send_batch(messages)
        broker = world.brokers[0]
        assert broker.requests[RequestCode.SEND_BATCH_MESSAGE] == 1
        assert broker.messages(TOPIC) == [b"0", b"1", b"2", b"3", b"4"]
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3, 4]
        assert [one.properties["UNIQ_KEY"] for one in broker.stored] == [
            receipt.message_id for receipt in receipts
        ]
        assert len({receipt.offset_id for receipt in receipts}) == 5
        assert broker.stored[0].header.properties == "WAIT\x01true"
        assert broker.stored[0].header.sys_flag == 0

    world.run(scenario)


def test_a_batch_that_cannot_be_one_is_refused() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            for batch, why in (
                ([], "without messages"),
                ([Message("A", b"x"), Message("B", b"x")], "for the topics"),
                ([Message(TOPIC, b"x", delay_level=1)], "delayed"),
                ([Message("%RETRY%g", b"x")], "retry topic"),
                ([Message(TOPIC, b"x"), Message(TOPIC, b"x", wait_stored=False)], "wait_stored"),
                ([Message(TOPIC, bytes(2 * MIB)), Message(TOPIC, bytes(2 * MIB))], "limit"),
            ):
                with pytest.raises(InvalidMessage, match=why):
                    await producer.send_batch(batch)
        assert not world.brokers[0].seen

    world.run(scenario)


# Hooks.


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, SendContext]] = []

    def before_send(self, context: SendContext) -> None:
        assert not context.receipts
        self.calls.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        self.calls.append(("after", context))
        raise RuntimeError("a hook that fails afterwards changes nothing")


class Censor:
    def check_forbidden(self, context: SendContext) -> None:
        if b"secret" in context.messages[0].body:
            raise PermissionError("no secrets")


def test_hooks_see_each_try_with_its_data() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        recorder = Recorder()
        async with (
            world.connect() as mq,
            mq.producer("shop", send_hooks=[recorder], forbidden_hooks=[Censor()]) as producer,
        ):
            world.brokers[0].script.append(1)
            receipt = await producer.send(Message(TOPIC, b"x"))
            with pytest.raises(PermissionError):
                await producer.send(Message(TOPIC, b"secret"))
        assert [name for name, _ in recorder.calls] == ["before", "after"] * 2
        failed, stored = recorder.calls[1][1], recorder.calls[3][1]
        assert failed.error is not None
        assert not failed.receipts
        assert stored.receipts == (receipt,)
        assert (stored.group, stored.mode) == ("shop", CommunicationMode.SYNC)
        assert stored.broker_address == world.brokers[0].address

    world.run(scenario)


def test_a_send_that_is_cancelled_leaves_nothing_behind() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            world.brokers[0].script.append(Delay(1_000))
            task = asyncio.ensure_future(producer.send(Message(TOPIC, b"x")))
            await world.clock.sleep_ms(100)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await producer.send(Message(TOPIC, b"y"))

    world.run(scenario)
