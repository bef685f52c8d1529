"""Our producer against Apache's brokers, with Apache's consumer and mqadmin as witnesses."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers import ApacheBroker, ApacheNameServer, JavaClient, MqAdmin, Peers, wait_until

import skylark
import skylark.sync
from skylark import Message, MessageQueue, ReceivedMessage
from skylark.errors import BrokerError, ClientError, NoRoute, SendFailed
from skylark.model.group import Subscription, SubscriptionGroupConfig
from skylark.model.message import CompressionType
from skylark.model.topic import TRACE_TOPIC, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.compression import plain_body
from skylark.remote import PullStatus, RemoteBroker, SendStatus

pytestmark = pytest.mark.interop

COUNT = 10_000


class GuardedPeers(Peers):
    """Apache's programs with the file that names the guard; our build of them has sources only."""

    def __init__(self, folder: Path, services: Path) -> None:
        super().__init__(folder)
        self.services = services
        (services / "META-INF" / "service").mkdir(parents=True)
        (services / "META-INF" / "service" / "org.apache.rocketmq.acl.AccessValidator").write_text(
            "org.apache.rocketmq.acl.plain.PlainAccessValidator\n"
        )

    @property
    def class_path(self) -> str:
        return f"{self.services}:{super().class_path}"


class GuardedBroker(ApacheBroker):
    """A broker that answers nobody without a signature."""

    def wait_ready(self) -> None:
        self.wait_for_line("The broker[", timeout_s=60)


@dataclasses.dataclass
class Apache:
    """A name server and two brokers, all Apache's."""

    peers: Peers
    home: Path
    name_server: ApacheNameServer
    brokers: list[ApacheBroker]

    @property
    def address(self) -> str:
        return self.name_server.address


@pytest.fixture(scope="module")
def apache(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    home = tmp_path_factory.mktemp("apache")
    name_server = ApacheNameServer(peers, home / "ns")
    brokers = [
        ApacheBroker(
            peers,
            home / name,
            name=name,
            name_servers=[name_server.address],
            settings={"traceTopicEnable": "true", "enablePropertyFilter": "true"},
        )
        for name in ("broker-a", "broker-b")
    ]
    try:
        for process in (name_server, *brokers):
            process.start()
        for broker in brokers:
            broker.wait_registered([name_server])
        yield Apache(peers, home, name_server, brokers)
    finally:
        for process in (*brokers, name_server):
            process.kill()


def test_every_message_of_ours_reaches_the_official_consumer(apache: Apache) -> None:
    topic = "PythonTraffic"

    async def send() -> None:
        async with skylark.connect(apache.address) as mq:
            async with mq.producer("py-single") as producer:
                singles = [Message(topic, f"single {n}".encode()) for n in range(COUNT // 4)]
                for start in range(0, len(singles), 100):
                    await asyncio.gather(*map(producer.send, singles[start : start + 100]))
                batches = [Message(topic, f"batch {n}".encode()) for n in range(COUNT // 4)]
                for start in range(0, len(batches), 50):
                    receipts = await producer.send_batch(batches[start : start + 50])
                    assert len({receipt.offset_id for receipt in receipts}) == 50
                for n in range(COUNT // 4):
                    await producer.send_oneway(Message(topic, f"oneway {n}".encode()))
            async with mq.producer("py-auto", linger_ms=2) as producer:
                autos = [Message(topic, f"auto {n}".encode()) for n in range(COUNT // 4)]
                receipts = tuple(await asyncio.gather(*map(producer.send, autos)))
                assert len({receipt.offset_id for receipt in receipts}) == COUNT // 4
                assert len({receipt.message_id for receipt in receipts}) == COUNT // 4

    asyncio.run(send())
    arguments = (apache.address, topic, "java-readers", str(COUNT), "60")
    with JavaClient(apache.peers, apache.home / "consumer", "consume", *arguments) as consumer:
        assert consumer.wait_for_line("received", 90) == f"received {COUNT} duplicates 0"


def test_an_auto_created_topic_is_on_every_broker_with_four_queues(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py") as producer:
            for _ in range(16):
                await producer.send(Message("PyFresh", b"x"))
            tables = [await mq.session.broker(b.address).get_topics() for b in apache.brokers]
            assert [table.topics["PyFresh"].write_queue_nums for table in tables] == [4, 4]

    asyncio.run(main())


def test_keyed_messages_keep_their_order_at_the_official_orderly_consumer(apache: Apache) -> None:
    topic = "PyOrdered"

    async def send() -> None:
        async with skylark.connect(apache.address) as mq:
            await mq.create_topic(topic, queue_count=4)
            async with mq.producer("py", linger_ms=1) as producer:
                tasks = []
                for n in range(200):
                    for key in ("a", "b", "c", "d"):
                        message = Message(topic, f"{key} {n}".encode())
                        tasks.append(asyncio.ensure_future(producer.send(message, key=key)))
                await asyncio.gather(*tasks)

    asyncio.run(send())
    arguments = (apache.address, topic, "java-ordered", "orderly")
    with JavaClient(apache.peers, apache.home / "orderly", "listen", *arguments) as consumer:
        consumer.wait_for_line("ready", 60)
        wait_until(
            lambda: sum(line.startswith("got ") for line in list(consumer.lines)) == 800,
            timeout_s=60,
            what="800 messages",
        )
        for key in "abcd":
            seen = [line for line in consumer.lines if line.startswith(f"got {key} ")]
            assert seen == [f"got {key} {n}" for n in range(200)]


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_compressed_body_is_stored_as_such(apache: Apache, kind: CompressionType) -> None:
    if kind is not CompressionType.ZLIB:
        pytest.importorskip("lz4.frame" if kind is CompressionType.LZ4 else "zstandard")

    async def main() -> None:
        async with (
            skylark.connect(apache.address) as mq,
            mq.producer("py", compression=kind) as producer,
        ):
            body = b"all work and no play " * 500
            receipt = await producer.send(Message("PyLarge", body))
            stored = await mq.view_message(receipt.offset_id)
            assert stored.sys_flag == 1 | kind.value
            assert len(stored.body) < 1_000
            assert plain_body(stored) == body

    asyncio.run(main())


def test_a_message_is_found_by_either_id_and_by_key(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py") as producer:
            message = Message("PyFind", b"x", tag="T", keys=["k-1", "k-2"], flag=5)
            receipt = await producer.send(message)
            by_offset = await mq.view_message(receipt.offset_id)
            assert (by_offset.tag, by_offset.keys, by_offset.flag) == ("T", ("k-1", "k-2"), 5)
            deadline = time.monotonic() + 10
            found = []
            while not found:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
                # Apache's broker answers a send before the name server has heard of its new topic.
                with contextlib.suppress(NoRoute):
                    found = await mq.query_messages("PyFind", "k-2")
            assert [one.unique_id for one in found] == [receipt.message_id]
            by_unique = await mq.view_message(receipt.message_id, "PyFind")
            assert by_unique.offset_id == receipt.offset_id
            with pytest.raises(BrokerError):
                await mq.view_message("F" * 32, "PyFind")
            queue = receipt.queue
            assert await mq.min_offset(queue) == 0
            assert await mq.max_offset(queue) == 1
            assert await mq.search_offset(queue, 0) == 0

    asyncio.run(main())


def test_mqadmin_sees_the_producer_while_it_lives(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq:
            async with mq.producer("py-visible") as producer:
                await producer.send(Message("PyVisible", b"x"))
                await asyncio.sleep(0.3)
                arguments = ("producerConnection", "-g", "py-visible", "-t", "PyVisible")
                admin = MqAdmin(apache.peers, apache.home / "admin")
                shown = await asyncio.to_thread(admin.run, apache.address, *arguments)
                assert mq.client_id in shown
                assert "PYTHON" in shown
            address = apache.brokers[0].address
            table = await mq.session.broker(address).get_all_producers()
            assert "py-visible" not in table.groups

    asyncio.run(main())


def test_mqadmin_finds_our_trace(apache: Apache) -> None:
    async def main() -> str:
        async with (
            skylark.connect(apache.address) as mq,
            mq.producer("py-traced", enable_msg_trace=True) as producer,
        ):
            return (await producer.send(Message("PyTraced", b"x", tag="T"))).message_id

    message_id = asyncio.run(main())
    admin = MqAdmin(apache.peers, apache.home / "admin")
    shown = wait_until(
        lambda: (
            text
            if "py-traced"
            in (text := admin.run(apache.address, "queryMsgTraceById", "-i", message_id))
            else None
        ),
        timeout_s=60,
        what=f"the trace of {message_id} in {TRACE_TOPIC}",
    )
    assert "Pub" in shown
    assert "success" in shown


def test_the_official_consumer_answers_our_request(apache: Apache) -> None:
    async def prepare() -> None:
        async with skylark.connect(apache.address) as mq:
            await mq.create_topic("PyAsk")

    asyncio.run(prepare())
    arguments = (apache.address, "PyAsk", "java-repliers", "replying")
    with JavaClient(apache.peers, apache.home / "replier", "listen", *arguments) as replier:
        replier.wait_for_line("ready", 60)

        async def main() -> None:
            async with skylark.connect(apache.address) as mq, mq.producer("py-asker") as producer:
                for n in range(5):
                    message = Message("PyAsk", f"question {n}".encode())
                    answer = await producer.request(message, timeout_ms=20_000)
                    assert answer.body == f"re: question {n}".encode()

        asyncio.run(main())


def test_we_answer_the_request_of_the_official_producer(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py-replier") as producer:
            await mq.create_topic("PyAnswer", queue_count=1)
            arguments = (apache.address, "PyAnswer", "java-askers")
            asker = JavaClient(apache.peers, apache.home / "asker", "request", *arguments)
            with asker:
                queues = await mq.fetch_queues("PyAnswer")
                deadline = time.monotonic() + 20
                request = None
                while request is None:
                    assert time.monotonic() < deadline, asker.tail()
                    for queue in queues:
                        address = mq.session.master_address(queue.broker_name)
                        assert address is not None
                        answer = await mq.session.broker(address).peek(
                            group="TOOLS_CONSUMER", queue=queue, offset=0
                        )
                        request = next(iter(answer.messages()), request)
                    await asyncio.sleep(0.05)
                await producer.reply(request, b"an answer")
                line = await asyncio.to_thread(asker.wait_for_line, "answered", 30)
                assert line == "answered an answer"

    asyncio.run(main())


def test_errors_name_the_broker_the_code_and_a_next_step(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py") as producer:
            queue = MessageQueue("PyErrors", "broker-a", 99)
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message("PyErrors", b"x"), queue=queue)
            assert caught.value.code == ResponseCode.SYSTEM_ERROR
            assert caught.value.broker == "broker-a"
            assert caught.value.hint
            big = Message("PyErrors", bytes(5 * 1024 * 1024))
        async with mq, mq.producer("py", max_message_size=1 << 24) as producer:
            settings = {"compress_msg_body_over_howmuch": 1 << 24, "max_message_size": 1 << 24}
            async with mq.producer("py2", **settings) as bold:
                with pytest.raises(SendFailed) as caught:
                    await bold.send(big)
                assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL

    asyncio.run(main())


def test_every_question_that_a_client_or_tool_asks_is_understood(apache: Apache) -> None:
    """Each coroutine of RemoteBroker against Apache's broker, by what it answers."""
    name = "PyQuestions"

    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py-q") as producer:
            broker = mq.session.broker(apache.brokers[0].address)
            queue = MessageQueue(name, "broker-a", 0)
            await broker.put_topic(TopicConfig(name, 2, 2))
            await asyncio.sleep(0.2)
            receipt = await producer.send(Message(name, b"x", tag="T", keys=["k"]), queue=queue)
            await _offsets(broker, queue)
            await _groups(broker, mq.client_id, queue)
            await _broker_itself(broker, name)
            viewed = await mq.view_message(receipt.offset_id)
            assert viewed.body == b"x"
            shown = await broker.query_consume_queue(name, 0, 0, 5, group="py-group")
            assert shown is not None
            assert shown.entries[0].physic_offset == viewed.physical_offset
            await broker.send_back(group="py-group", physical_offset=viewed.physical_offset)
            await broker.delete_group("py-group", remove_offset=True)
            await broker.delete_topic(name)
            assert name not in (await broker.get_topics()).topics

    async def _offsets(broker: RemoteBroker, queue: MessageQueue) -> None:
        assert await broker.get_min_offset(queue) == 0
        async with asyncio.timeout(10):  # Apache's broker answers before its queue has the entry.
            while await broker.get_max_offset(queue) < 1:
                await asyncio.sleep(0.01)
        assert await broker.search_offset(queue, 0) == 0
        assert (await broker.get_earliest_store_time(queue) or 0) > 1_000_000
        empty = dataclasses.replace(queue, queue_id=1)
        assert await broker.get_earliest_store_time(empty) is None
        await broker.put_group(SubscriptionGroupConfig(group_name="py-group"))
        await broker.update_consumer_offset("py-group", queue, 1)
        assert await broker.query_consumer_offset("py-group", queue) == 1
        await broker.update_consumer_offset("py-group", queue, 0, oneway=True)
        found = await broker.peek(group="py-group", queue=queue, offset=0)
        assert found.status is PullStatus.FOUND
        assert [one.body for one in found.messages()] == [b"x"]
        end = await broker.peek(group="py-group", queue=queue, offset=1)
        assert (end.status, end.max_offset) == (PullStatus.NO_NEW_MSG, 1)
        moved = await broker.peek(group="py-group", queue=queue, offset=9)
        assert (moved.status, moved.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
        table = await broker.get_all_consumer_offsets()
        assert f"{queue.topic}@py-group" in table.offsets
        await broker.get_all_delay_offsets()

    async def _groups(broker: RemoteBroker, client_id: str, queue: MessageQueue) -> None:
        subscription = Subscription(
            topic=queue.topic, expression="a > 1", expression_type="SQL92", version=1
        )
        await broker.check_client_config(client_id, "py-group", subscription)
        bad = dataclasses.replace(subscription, expression="a >")
        with pytest.raises(BrokerError) as caught:
            await broker.check_client_config(client_id, "py-group", bad)
        assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert await broker.lock_queues(client_id, "py-group", [queue]) == (queue,)
        assert await broker.lock_queues("other", "py-group", [queue]) == ()
        await broker.unlock_queues(client_id, "py-group", [queue])
        with pytest.raises(BrokerError):
            await broker.get_consumer_ids("py-group")
        with pytest.raises(BrokerError) as caught:
            await broker.get_consumer_connections("py-group")
        assert caught.value.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert "py-group" in (await broker.get_groups()).groups
        assert queue in (await broker.get_consume_stats("py-group")).offsets
        assert (await broker.get_all_consume_stats()).broker_addr == broker.address
        connections = await broker.get_producer_connections("py-q")
        assert [one.client_id for one in connections.connections] == [client_id]
        assert "py-q" in (await broker.get_all_producers()).groups
        assert "py-group" in await broker.get_groups_of_topic(queue.topic)
        assert (await broker.get_consume_time_span(queue.topic, "py-group")).spans
        await broker.get_correction_offsets(queue.topic, "py-group")
        await broker.clone_group_offset("py-group", "py-clone", topic=queue.topic, offline=True)
        with pytest.raises(BrokerError):
            await broker.reset_offset(queue.topic, "py-group", -1)
        with pytest.raises(BrokerError):
            await broker.get_consumer_running_info("py-group", "nobody")
        with pytest.raises(BrokerError):
            await broker.consume_directly("py-group", "nobody", "0" * 32)

    async def _broker_itself(broker: RemoteBroker, topic: str) -> None:
        stats = await broker.get_topic_stats(topic)
        assert len(stats.offsets) == 2
        config = await broker.get_config()
        assert config.settings["brokerName"] == "broker-a"
        await broker.update_config({"traceOn": "true"})
        assert (await broker.get_config()).version.counter > config.version.counter
        assert (await broker.get_runtime_info())["brokerVersionDesc"] == "V4_9_8"
        assert "SELF_TEST_TOPIC" in await broker.get_system_topics()
        await broker.get_stats("TOPIC_PUT_NUMS", topic)
        await broker.clean_expired_consume_queues()
        await broker.clean_unused_topics()
        await broker.delete_expired_commit_log()
        with pytest.raises(BrokerError):
            await broker.resume_check_half_message("7F00000100002A9F7FFFFFFFFFFFFFFF")

    asyncio.run(main())


def test_the_sync_client_does_the_same(apache: Apache) -> None:
    with skylark.sync.connect(apache.address) as mq, mq.producer("py-sync") as producer:
        receipt = producer.send(Message("PySync", b"x", keys=["k"]))
        assert mq.view_message(receipt.offset_id).body == b"x"
        futures = [producer.send_async(Message("PySync", b"y")) for _ in range(100)]
        assert {future.result(10).status for future in futures} == {SendStatus.SEND_OK}


def test_the_sync_client_consumes_in_every_way(apache: Apache) -> None:
    topic = "PySyncConsume"
    with skylark.sync.connect(apache.address) as mq:
        mq.create_topic(topic, queue_count=2)
        with mq.producer("py-sync") as producer:
            for n in range(40):
                producer.send(Message(topic, b"%d" % n))
        wanted = {b"%d" % n for n in range(40)}
        with mq.consumer("py-iterate", {topic: "*"}, consume_from="first") as consumer:
            seen = set()
            for message in consumer:
                seen.add(message.body)
                if seen == wanted:
                    message.ack()
                    break
            assert consumer.assignment
        handled: list[bytes] = []
        done = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            if set(handled) >= wanted:
                done.set()

        with mq.consumer("py-handle", {topic: "*"}, handle, consume_from="first"):
            assert done.wait(30)
        with mq.lite_pull_consumer("py-poll", {topic: "*"}, consume_from="first") as poller:
            polled: set[bytes] = set()
            deadline = time.monotonic() + 30
            while polled != wanted:
                assert time.monotonic() < deadline
                polled |= {message.body for message in poller.poll(1_000)}
            poller.commit()
        with mq.pull_consumer("py-pull", [topic]) as puller:
            pulled = {
                message.body
                for queue in puller.fetch_queues(topic)
                for message in puller.pull(queue, offset=0, count_max=40).messages
            }
            assert pulled <= wanted
            assert len(pulled) > 10


def test_tls_is_spoken_where_it_is_wished(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address, tls=True) as mq, mq.producer("py") as producer:
            receipt = await producer.send(Message("PyTls", b"x"))
            assert receipt.status is SendStatus.SEND_OK

    asyncio.run(main())


def test_a_signed_producer_passes_and_others_do_not(apache: Apache) -> None:
    home = apache.home / "guarded"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses: []\n"
        "accounts:\n"
        "- accessKey: producer-1\n"
        "  secretKey: very-secret\n"
        "  defaultTopicPerm: PUB|SUB\n"
        "  defaultGroupPerm: PUB|SUB\n"
    )
    name_server = ApacheNameServer(apache.peers, home / "ns")
    broker = GuardedBroker(
        GuardedPeers(apache.peers.folder, home / "services"),
        home,
        name="guarded",
        name_servers=[name_server.address],
        settings={"aclEnable": "true", "brokerRole": "SYNC_MASTER"},
    )

    async def send(message: Message, **account: str) -> SendStatus:
        async with (
            skylark.connect(name_server.address, **account) as mq,
            mq.producer("py") as producer,
        ):
            status = (await producer.send(message)).status
            await producer.send_batch([message, message])
            return status

    with name_server, broker:
        wait_until(lambda: broker.is_known_to(name_server), timeout_s=30, what="the guarded broker")
        account = {"access_key": "producer-1", "secret_key": "very-secret"}
        # A master that waits for a replica it does not have stores the message and says so.
        status = asyncio.run(send(Message("PyAcl", b"x"), **account))
        assert status is SendStatus.SLAVE_NOT_AVAILABLE
        hasty = Message("PyAcl", b"x", wait_stored=False)
        assert asyncio.run(send(hasty, **account)) is SendStatus.SEND_OK
        for wrong in ({"access_key": "producer-1", "secret_key": "guessed"}, {}):
            with pytest.raises(ClientError) as caught:
                asyncio.run(send(Message("PyAcl", b"x"), **wrong))
            assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_a_broker_that_is_killed_and_comes_back_is_used_within_5_seconds(apache: Apache) -> None:
    async def main() -> None:
        async with skylark.connect(apache.address) as mq, mq.producer("py") as producer:
            for _ in range(16):
                await producer.send(Message("PyKilled", b"x"))
            victim = apache.brokers[1]
            queue = MessageQueue("PyKilled", victim.broker_name, 0)
            await producer.send(Message("PyKilled", b"x"), queue=queue)
            await asyncio.to_thread(victim.kill)
            for _ in range(20):  # The other one takes everything.
                receipt = await producer.send(Message("PyKilled", b"x"))
                assert receipt.queue.broker_name == apache.brokers[0].broker_name
            with pytest.raises((SendFailed, NoRoute)):
                await producer.send(Message("PyKilled", b"x"), queue=queue)
            await asyncio.to_thread(victim.start)
            back = time.monotonic()
            while True:
                try:
                    await producer.send(Message("PyKilled", b"x"), queue=queue)
                except (SendFailed, NoRoute):
                    await asyncio.sleep(0.1)
                else:
                    break
            assert time.monotonic() - back < 5

    asyncio.run(main())
