"""Rows RE and the tag rows of FI of the seeds' checklist, on the real servers in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.admin.client import AdminClient
from skylark.client.received import ReceivedMessage
from skylark.client.verdicts import RetryLater, ToDlq
from skylark.model.group import SubscriptionGroupConfig
from skylark.model.message import Message
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import Command
from skylark.protocol.hashes import tag_hash
from skylark.protocol.record import decode_records
from skylark.testing import MemoryBroker


@pytest.fixture
def mq() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


class Handler:
    """Notes what it gets and when, and fails as long as told to."""

    def __init__(self, mq: MemoryBroker, problem: Any = RetryLater) -> None:
        self.mq = mq
        self.problem = problem
        self.got: list[ReceivedMessage] = []
        self.times: list[int] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.got.append(message)
        self.times.append(self.mq.clock.now_ms())
        if self.problem is not None:
            raise self.problem()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def test_a_handler_that_catches_everything_is_never_called_again(mq: MemoryBroker) -> None:
    """RE-08."""
    calls: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.body)
        try:
            raise ValueError("the application's own trouble")
        except ValueError:
            return

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("makers") as producer:
                await producer.send(Message("Orders", b"x"))
            async with client.consumer("billing", "Orders", handle, consume_from="first"):
                await mq.clock.advance(minutes=30)

    mq.run(scenario)
    assert calls == [b"x"]
    assert mq.dead_letters("billing") == []
    assert mq.lag("billing", "Orders") == 0


def test_each_member_brings_its_own_number_of_tries(mq: MemoryBroker) -> None:
    """RE-10: the number goes with every message given back, so it holds for that member."""
    patient, hasty = Handler(mq), Handler(mq)

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("makers") as producer:
                for queue in await _queues(client, "Orders", 2):
                    await producer.send(Message("Orders", b"x"), queue=queue)
            async with client.consumer(
                "billing", "Orders", hasty, consume_from="first", max_reconsume_times=0
            ):
                await mq.clock.wait_for(lambda: len(mq.dead_letters("billing")) == 2)
                assert len(hasty.got) == 2
            async with client.producer("makers") as producer:
                await producer.send(Message("Orders", b"y"))
            async with client.consumer(
                "billing", "Orders", patient, consume_from="first", max_reconsume_times=2
            ):
                await mq.clock.advance(minutes=5)
        assert len(patient.got) == 3
        assert len(mq.dead_letters("billing")) == 3

    mq.run(scenario)


def test_the_retry_topic_has_as_many_queues_as_the_group_is_given(mq: MemoryBroker) -> None:
    """RE-13: one by default; with more, a message goes to any of them."""
    handler = Handler(mq)

    async def scenario() -> None:
        async with mq.connect() as client:
            admin = AdminClient(client)
            broker = client.session.broker(mq.broker_address)
            await broker.put_group(
                SubscriptionGroupConfig(group_name="billing", retry_queue_nums=4)
            )
            async with client.producer("makers") as producer:
                for number in range(40):
                    await producer.send(Message("Orders", b"%d" % number))
            async with (
                client.consumer("billing", "Orders", handler, consume_from="first"),
                client.consumer("plain", "Orders", Handler(mq, None), consume_from="first"),
            ):
                await mq.clock.wait_for(lambda: len(handler.got) >= 80)
            topics = {topic.name: topic for topic in await admin.topics(with_system=True)}
            assert topics["%RETRY%billing"].read_queues == 4
            assert topics["%RETRY%plain"].read_queues == 1

    mq.run(scenario)
    used = Counter(message.queue_id for message in mq.messages("%RETRY%billing"))
    assert used.keys() == {0, 1, 2, 3}


def test_a_failed_message_travels_as_a_request_to_the_broker(mq: MemoryBroker) -> None:
    """RE-12, RE-15 and RE-17."""
    seen: list[Command] = []

    class Wire:
        def before_request(self, address: str, request: Command) -> None:
            if request.code == Code.CONSUMER_SEND_MSG_BACK:
                seen.append(request)

        def after_response(self, address: str, request: Command, response: Command) -> None: ...

    handler = Handler(mq)

    async def scenario() -> None:
        async with mq.connect() as client:
            client.session.channels.hooks.append(Wire())
            async with client.producer("makers") as producer:
                sent = await producer.send(Message("Orders", b"x"))
            async with client.consumer("billing", "Orders", handler, consume_from="first"):
                await mq.clock.wait_for(lambda: len(handler.got) == 2)
                group = await AdminClient(client).group("billing")
                assert set(group.subscriptions) == {"Orders", "%RETRY%billing"}
        assert seen[0].fields["originTopic"] == "Orders"
        assert seen[0].fields["group"] == "billing"
        first, again = handler.got
        assert again.offset_id != first.offset_id == sent.offset_id
        assert again.origin_id == first.offset_id
        assert again.properties["RETRY_TOPIC"] == "Orders"
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert again.topic == "Orders"

    mq.run(scenario)


def test_dead_letters_of_all_topics_and_members_share_one_topic_that_was_not_there_before(
    mq: MemoryBroker,
) -> None:
    """RE-20, RE-21, RE-22 and RE-23."""
    handler = Handler(mq, lambda: ToDlq("hopeless"))

    async def scenario() -> None:
        async with mq.connect() as client:
            admin = AdminClient(client)
            async with client.producer("makers") as producer:
                for topic in ("Orders", "Payments"):
                    await producer.send(Message(topic, topic.encode()))

            async def names() -> set[str]:
                return {topic.name for topic in await admin.topics(with_system=True)}

            assert "%DLQ%billing" not in await names()
            topics = {"Orders": "*", "Payments": "*"}
            async with (
                client.consumer("billing", topics, handler, consume_from="first"),
                client.consumer("billing", topics, handler, consume_from="first"),
            ):
                await mq.clock.wait_for(lambda: len(mq.dead_letters("billing")) == 2)
                dead = {name for name in await names() if name.startswith("%DLQ%")}
                assert dead == {"%DLQ%billing"}
                await mq.clock.advance(minutes=30)
        assert len(handler.got) == 2

    mq.run(scenario)
    origins = {letter.properties["RETRY_TOPIC"] for letter in mq.dead_letters("billing")}
    assert origins == {"Orders", "Payments"}


def test_a_dead_letter_can_be_read_and_sent_once_more(mq: MemoryBroker) -> None:
    """RE-25, and of RE-26 what a program can do: list, look, send again, and see it handled."""
    handler = Handler(mq, lambda: ToDlq("hopeless"))
    letters = Handler(mq, None)

    async def scenario() -> None:
        async with mq.connect() as client, client.producer("makers") as producer:
            await producer.send(Message("Orders", b"x", keys=["o-1"]))
            async with client.consumer("billing", "Orders", handler, consume_from="first"):
                await mq.clock.wait_for(lambda: mq.dead_letters("billing"))
                async with client.consumer(
                    "undertaker", "%DLQ%billing", letters, consume_from="first"
                ):
                    await mq.clock.wait_for(lambda: letters.got)
                (letter,) = letters.got
                assert (letter.body, letter.keys) == (b"x", ("o-1",))
                handler.problem = None
                origin = letter.properties["RETRY_TOPIC"]
                await producer.send(Message(origin, letter.body, keys=list(letter.keys)))
                await mq.clock.wait_for(lambda: len(handler.got) == 2)
        assert handler.bodies == [b"x", b"x"]

    mq.run(scenario)


def test_an_operator_sends_a_dead_letter_to_its_group_again(mq: MemoryBroker) -> None:
    """RE-26: only that group sees it, once more, from its first try on."""
    handler = Handler(mq, lambda: ToDlq("hopeless"))
    others = Handler(mq, None)

    async def scenario() -> None:
        async with mq.connect() as client, client.producer("makers") as producer:
            await producer.send(Message("Orders", b"x", tag="T", keys=["o-1"]))
            async with (
                client.consumer("billing", "Orders", handler, consume_from="first"),
                client.consumer("shipping", "Orders", others, consume_from="first"),
                AdminClient(mq.connect()) as admin,
            ):
                await mq.clock.wait_for(lambda: mq.dead_letters("billing"))
                assert [one async for one in admin.dead_letters("shipping")] == []
                (letter,) = [one async for one in admin.dead_letters("billing")]
                assert (letter.origin, letter.message.body) == ("Orders", b"x")
                handler.problem = None
                await admin.resend_dead_letter(letter)
                await mq.clock.wait_for(lambda: len(handler.got) == 2)
                await mq.clock.advance(minutes=1)
        _, again = handler.got
        assert (again.body, again.tag, again.keys) == (b"x", "T", ("o-1",))
        assert again.topic == "Orders"
        assert again.reconsume_times == 0
        assert len(others.got) == 1
        assert len(handler.got) == 2

    mq.run(scenario)


def test_dead_letters_expire_with_the_log() -> None:
    """RE-24: after fileReservedTime, which is 72 hours unless set, as for all messages."""
    hours = ";".join(f"{hour:02}" for hour in range(24))
    with MemoryBroker(
        mapped_file_size_commit_log=64 << 10,
        max_message_size=16 << 10,
        file_reserved_time=2,
        delete_when=hours,
    ) as mq:

        async def scenario() -> None:
            async with mq.connect() as client, client.producer("makers") as producer:
                await producer.send(Message("Orders", b"x"))
                handler = Handler(mq, lambda: ToDlq("hopeless"))
                async with client.consumer("billing", "Orders", handler, consume_from="first"):
                    await mq.clock.wait_for(lambda: mq.dead_letters("billing"))
                rng = random.Random(1)
                for _ in range(20):  # The last file of a log is never deleted.
                    await producer.send(Message("Filler", rng.randbytes(12_000)))
            await mq.clock.advance(minutes=115)
            assert len(mq.dead_letters("billing")) == 1
            await mq.clock.advance(minutes=10)
            assert mq.dead_letters("billing") == []

        mq.run(scenario)


# Tags.


def test_what_has_another_tag_does_not_leave_the_broker(mq: MemoryBroker) -> None:
    """FI-01, FI-02 and FI-16: the hash in the consume queue decides before the body is read."""
    bytes_out = Counter[str]()

    class Wire:
        def __init__(self, name: str) -> None:
            self.name = name

        def before_request(self, address: str, request: Command) -> None: ...

        def after_response(self, address: str, request: Command, response: Command) -> None:
            is_found = request.code == Code.PULL_MESSAGE and response.code == 0
            if is_found and request.fields["topic"] == "Orders":
                bytes_out[self.name] += len(response.body)
                tags[self.name].update(one.tag for one in decode_records(response.body))

    tags: dict[str, set[str | None]] = {}
    handlers = {}

    async def scenario() -> None:
        async with mq.connect() as client, client.producer("makers") as producer:
            for number in range(100):
                tag = f"Tag{number % 10}"
                await producer.send(Message("Orders", b"-" * 1_000, tag=tag))
        for name, expression in (("all", "*"), ("two", "Tag1 || Tag2"), ("none", "Other")):
            tags[name] = set()
            handler = handlers[name] = Handler(mq, None)
            async with mq.connect() as client:
                client.session.channels.hooks.append(Wire(name))
                async with client.consumer(
                    name, {"Orders": expression}, handler, consume_from="first"
                ):
                    await mq.clock.advance(seconds=20)
            assert mq.lag(name, "Orders") == 0

    mq.run(scenario)
    assert {name: len(handler.got) for name, handler in handlers.items()} == {
        "all": 100,
        "two": 20,
        "none": 0,
    }
    assert tags["two"] == {"Tag1", "Tag2"}
    assert bytes_out["none"] == 0
    assert bytes_out["two"] == pytest.approx(bytes_out["all"] / 5, rel=0.01)


def test_tags_that_hash_alike_are_told_apart_by_the_consumer(mq: MemoryBroker) -> None:
    """FI-03."""
    assert tag_hash("Aa") == tag_hash("BB")
    handler = Handler(mq, None)

    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("makers") as producer:
                for number in range(10):
                    tag = ("Aa", "BB")[number % 2]
                    await producer.send(Message("Orders", b"%d" % number, tag=tag))
            async with client.consumer("billing", {"Orders": "Aa"}, handler, consume_from="first"):
                await mq.clock.advance(seconds=20)

    mq.run(scenario)
    assert sorted(handler.bodies) == [b"0", b"2", b"4", b"6", b"8"]
    assert mq.lag("billing", "Orders") == 0


async def _queues(client: Any, topic: str, count: int) -> list[Any]:
    async with client.producer("makers") as producer:
        del producer
        await AdminClient(client).create_topic(topic, read_queues=count, write_queues=count)
        found: list[Any] = await client.fetch_queues(topic)
        return found
