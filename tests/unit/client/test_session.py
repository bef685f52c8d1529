"""Session: identity, routes, heartbeats, and what brokers ask of a client."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from typing import Any

import pytest
from send_world import TOPIC, World

from skylark.client.channels import ClientChannels
from skylark.client.config import ClientConfig
from skylark.client.session import Session
from skylark.errors import ClientClosed, ClientError, ConfigError, NoRoute
from skylark.model.message import Message, StoredMessage
from skylark.model.queue import MessageQueue
from skylark.model.route import TopicRoute
from skylark.model.topic import TopicConfig
from skylark.protocol.acl import is_signature_valid
from skylark.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ResetOffsetBody,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Command
from skylark.protocol.record import encode_record, pack_host
from skylark.testing.fake_broker import FakeBroker, FakeNameServer, with_template


class Consumer:
    """A member that only notes what it is told."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.changes = 0
        self.routes: list[str] = []
        self.resets: list[tuple[str, Mapping[MessageQueue, int]]] = []
        self.consumed: list[bytes] = []
        self.lost: list[str] = []

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(self.group)

    def broker_lost(self, address: str) -> None:
        self.lost.append(address)

    def members_changed(self) -> None:
        self.changes += 1

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        self.routes.append(topic)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append((topic, offsets))

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 0): 7}

    def running_info(self, *, jstack: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={"jstack": str(jstack)})

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        self.consumed.append(message.body)
        return ConsumeMessageDirectlyResult(ConsumeResult.CR_SUCCESS)

    async def close(self) -> None:
        return


def record(**properties: str) -> bytes:
    return encode_record(
        topic=TOPIC,
        body=b"half",
        properties="\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode(),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_at_ms=1,
        born_host=pack_host("127.0.0.1", 1),
        stored_at_ms=1,
        store_host=pack_host("127.0.0.1", 1),
    )


# Identity.


def test_a_client_id_is_ip_at_pid_and_nanoseconds() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        one = Session(ClientConfig(client_ip="10.1.2.3"), env={}, pid=77, rng=random.Random(1))
        two = Session(ClientConfig(client_ip="10.1.2.3"), env={}, pid=77, rng=random.Random(2))
        ip, _, name = one.client_id.partition("@")
        pid, _, nano = name.partition("#")
        assert (ip, pid) == ("10.1.2.3", "77")
        assert nano.isdigit()
        assert one.client_id != two.client_id

    world.run(scenario)


def test_instance_and_unit_names_are_part_of_the_client_id() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        config = ClientConfig(client_ip="10.1.2.3", instance_name="till-1", unit_name="eu")
        assert Session(config, env={}).client_id == "10.1.2.3@till-1@eu"

    world.run(scenario)


@pytest.mark.parametrize(
    "settings",
    [
        {"access_key": "only"},
        {"poll_name_server_interval_ms": 0},
        {"instance_name": "a@b"},
        {"api_timeout_ms": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClientConfig(**settings)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    world = World(brokers=1)
    with pytest.raises(ConfigError, match="instance_name"):
        world.connect(instancename="x")
    with pytest.raises(ConfigError, match="not a name server address"):
        world.connect(namesrv_addr="::::")
    world.loop.close()


def test_unique_ids_of_two_sessions_never_meet() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        sessions = [
            Session(ClientConfig(client_ip="10.0.0.1"), env={}, clock=world.clock, pid=1)
            for _ in range(8)
        ]
        ids = {session.unique_ids.next() for session in sessions for _ in range(10_000)}
        assert len(ids) == 80_000

    world.run(scenario)


# Name servers.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_gives_ids_of_its_own() -> None:
    """Two children of one parent, and the parent: same memory, same random numbers, other ids."""
    session = Session(ClientConfig(namesrv_addr="ns:9876", client_ip="10.0.0.9"), env={})
    kept = session.unique_ids
    before = kept.next()

    def ids_of_child() -> list[str]:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:  # Leave at once: nothing of the test's own may run on in here.
            try:
                lines = [session.unique_ids.next() for _ in range(100)]
                os.write(write_end, "\n".join(lines).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            found = pipe.read().split()
        os.waitpid(child, 0)
        return found

    children = [ids_of_child(), ids_of_child()]
    assert session.unique_ids is kept
    own = [session.unique_ids.next() for _ in range(100)]
    ids = [before, *own, *children[0], *children[1]]
    assert len(set(ids)) == len(ids) == 301
    assert len({one[:20] for one in ids}) == 3  # Address, process and mark.


def test_clients_spread_over_name_servers_and_keep_one_connection_each() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        others = [
            FakeNameServer(world.network.host(f"10.0.0.{n}"), f"10.0.0.{n}", brokers=world.brokers)
            for n in (201, 202)
        ]
        servers = [world.name_server, *others]
        addresses = ";".join(server.address for server in servers)
        for server in others:
            await server.__aenter__()
        for seed in range(20):
            config = ClientConfig(namesrv_addr=addresses, client_ip="10.0.0.100")
            rng = random.Random(seed)
            options: dict[str, Any] = {"network": world.client_host, "clock": world.clock}
            async with Session(config, env={}, rng=rng, **options) as session:
                await session.route(TOPIC)
                await session.routes.refresh(TOPIC)
                assert len(session.channels.links) == 1
        asked = [server.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC] for server in servers]
        assert sum(asked) == 40
        assert min(asked) >= 4
        for server in others:
            await server.__aexit__(None, None, None)

    world.run(scenario)


def test_a_dead_name_server_in_the_list_does_no_harm() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        addresses = f"10.0.0.250:9876;{world.name_server.address}"
        world.network.host("10.0.0.250")
        async with world.connect(namesrv_addr=addresses) as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))

    world.run(scenario)


def test_without_any_name_server_a_known_topic_still_works_and_a_new_one_says_why_not() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            cut = world.network.isolate("10.0.0.200")
            for _ in range(10):
                await world.clock.sleep_ms(60_000)
                await producer.send(Message(TOPIC, b"x"))
            with pytest.raises(NoRoute, match="no name server can say") as caught:
                await producer.send(Message("Unknown", b"x"))
            assert "namesrv_addr" in caught.value.hint
            cut.heal()

    world.run(scenario)


def test_the_address_comes_from_the_environment_where_code_gives_none() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        env = {"NAMESRV_ADDR": world.name_server.address}
        async with world.connect(namesrv_addr=None, env=env) as mq:
            assert mq.session.name_servers.addresses == (world.name_server.address,)
            await mq.fetch_queues(TOPIC)

    world.run(scenario)


def test_the_property_beats_the_environment_and_code_beats_both() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        env = {"NAMESRV_ADDR": "10.9.9.9:1"}
        properties = {"rocketmq.namesrv.addr": "10.8.8.8:1"}
        async with world.connect(namesrv_addr=None, env=env, properties=properties) as mq:
            assert mq.session.name_servers.addresses == ("10.8.8.8:1",)
        async with world.connect(namesrv_addr="10.7.7.7:1", env=env, properties=properties) as mq:
            assert mq.session.name_servers.addresses == ("10.7.7.7:1",)

    world.run(scenario)


class AddressService(asyncio.Protocol):
    """Serves a text at any URL, and counts who asks."""

    text = ""
    asked: list[float]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        type(self).asked.append(asyncio.get_running_loop().time())
        body = type(self).text.encode()
        self.transport.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()


def test_the_whole_set_of_name_servers_may_change_behind_the_address_service() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        AddressService.asked = []
        AddressService.text = world.name_server.address
        host = world.network.host("10.0.0.80")
        server = await host.listen(AddressService, "", 8080)
        properties = {"rocketmq.namesrv.domain": "10.0.0.80"}
        async with (
            world.connect(namesrv_addr=None, properties=properties) as mq,
            mq.producer("shop") as producer,
        ):
            await producer.send(Message(TOPIC, b"x"))
            other = FakeNameServer(
                world.network.host("10.0.0.201"), "10.0.0.201", brokers=world.brokers
            )
            async with other:
                AddressService.text = other.address
                cut = world.network.isolate("10.0.0.200")
                for _ in range(15):
                    await world.clock.sleep_ms(10_000)
                    await producer.send(Message(TOPIC, b"x"))
                assert mq.session.name_servers.addresses == (other.address,)
                await producer.send(Message("New", b"x"))
                times = [round(at) for at in AddressService.asked]
                assert times[:3] == [0, 10, 130]
                AddressService.text = ""
                await world.clock.sleep_ms(240_000)
                assert mq.session.name_servers.addresses == (other.address,)
            cut.heal()
        server.close()

    world.run(scenario)


# Heartbeats.


def test_a_producer_is_known_to_every_master_at_once_and_every_30_seconds() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            await world.clock.sleep_ms(200)
            assert all(broker.heartbeats for broker in world.brokers)
            before = [len(broker.heartbeats) for broker in world.brokers]
            await world.clock.sleep_ms(300_000)
            after = [len(broker.heartbeats) for broker in world.brokers]
            assert [n - m for n, m in zip(after, before, strict=True)] == [10, 10]
            beat = world.brokers[0].heartbeats[-1]
            assert (beat.client_id, beat.producer_groups) == (mq.client_id, ("shop",))

    world.run(scenario)


def test_producers_leave_replicas_alone_and_consumers_do_not() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop"):
            session = mq.session
            await session.route(TOPIC)
            data = session.broker_data("broker-a")
            assert data is not None
            session._brokers["broker-a"] = type(data)(
                data.cluster, data.broker_name, {0: "m:1", 1: "s:1"}
            )
            assert session.heartbeat_addresses() == ["m:1"]
            consumer = Consumer("billing")
            session.join_consumer(consumer)
            assert session.heartbeat_addresses() == ["m:1", "s:1"]
            assert session.read_address("broker-a", 1) == "s:1"
            assert session.read_address("broker-a", 5) == "m:1"
            session._brokers["broker-a"] = data
            await session.leave_consumer(consumer)

    world.run(scenario)


def test_leaving_unregisters_at_once() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            async with mq.producer("shop") as producer:
                await producer.send(Message(TOPIC, b"x"))
                async with mq.producer("shop") as second:
                    await second.send(Message(TOPIC, b"x"))
                assert not world.brokers[0].unregistered
            (gone,) = world.brokers[0].unregistered
            assert (gone.client_id, gone.producer_group) == (mq.client_id, "shop")

    world.run(scenario)


def test_a_member_that_did_not_leave_is_unregistered_with_the_session() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            await mq.fetch_queues(TOPIC)
            mq.session.join_consumer(Consumer("billing"))
            await world.clock.sleep_ms(100)
        (gone,) = world.brokers[0].unregistered
        assert gone.consumer_group == "billing"

    world.run(scenario)


def test_a_broker_that_restarts_hears_from_us_within_5_seconds() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop"):
            await mq.fetch_queues(TOPIC)
            await world.clock.sleep_ms(100)
            world.brokers[0].kill()
            await world.clock.sleep_ms(20_000)
            again = FakeBroker(
                world.network.host("10.0.0.1"), world.clock, "10.0.0.1", topics=with_template()
            )
            async with again:
                await world.clock.sleep_ms(5_000)
                assert again.heartbeats
                assert again.heartbeats[-1].producer_groups == ("shop",)

    world.run(scenario)


# Recovery of sends.


def test_sends_work_again_within_5_seconds_of_a_broker_s_return_even_if_it_lost_everything() -> (
    None
):
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].kill()
            for _ in range(20):
                with pytest.raises(ClientError) as caught:
                    await producer.send(Message(TOPIC, b"x"))
                assert "10.0.0.1:10911" in str(caught.value)
                await world.clock.sleep_ms(1_000)
            again = FakeBroker(
                world.network.host("10.0.0.1"), world.clock, "10.0.0.1", topics=with_template()
            )
            async with again:
                back_ms = world.clock.monotonic_ms()
                while not again.stored:
                    try:
                        await producer.send(Message(TOPIC, b"back"))
                    except ClientError:
                        await world.clock.sleep_ms(100)
                assert world.clock.monotonic_ms() - back_ms < 5_000

    world.run(scenario)


def test_a_broker_that_comes_back_elsewhere_is_found_within_5_seconds() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            cut = world.network.isolate("10.0.0.1")
            with pytest.raises(ClientError):
                await producer.send(Message(TOPIC, b"x"))
            topics = with_template([TopicConfig(TOPIC, 4, 4)])
            again = FakeBroker(
                world.network.host("10.0.0.9"), world.clock, "10.0.0.9", topics=topics
            )
            async with again:
                world.name_server.brokers = [again]
                back_ms = world.clock.monotonic_ms()
                while not again.stored:
                    try:
                        await producer.send(Message(TOPIC, b"back"), timeout_ms=500)
                    except ClientError:
                        await world.clock.sleep_ms(100)
                assert world.clock.monotonic_ms() - back_ms < 5_000
            cut.heal()

    world.run(scenario)


def test_one_dead_broker_of_two_costs_no_message() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].kill()
            for _ in range(50):
                assert (await producer.send(Message(TOPIC, b"x"))).queue.broker_name == "broker-b"
                await world.clock.sleep_ms(50)

    world.run(scenario)


def test_channels_to_brokers_that_no_route_mentions_are_dropped() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            await world.clock.sleep_ms(200)
            assert len(mq.session.channels.links) == 3
            world.name_server.hidden.add("broker-b")
            await world.clock.sleep_ms(31_000)
            assert len(mq.session.channels.links) == 2

    world.run(scenario)


# What brokers ask.


def test_what_a_broker_asks_reaches_the_consumer_of_the_group() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            await mq.fetch_queues(TOPIC)
            consumer = Consumer("billing")
            mq.session.join_consumer(consumer)
            await world.clock.sleep_ms(100)
            peer = world.brokers[0].peers[mq.client_id]

            def oneway(code: int, fields: dict[str, str], body: bytes = b"") -> None:
                peer.notify(Command.request(code, fields, body, oneway=True))

            oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "billing"})
            oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "stranger"})
            offsets = {MessageQueue(TOPIC, "broker-a", 0): 5}
            fields = {"topic": TOPIC, "group": "billing", "timestamp": "1", "isForce": "false"}
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            oneway(code, fields, ResetOffsetBody(offsets).to_json())

            async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
                return await peer.call(Command.request(code, fields, body), 1_000)

            code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            answer = await ask(code, {"topic": TOPIC, "group": "billing"})
            found = ConsumerStatusBody.from_json(answer.body)
            assert found.queues == {MessageQueue(TOPIC, "broker-a", 0): 7}
            fields = {"consumerGroup": "billing", "clientId": "x", "jstackEnable": "true"}
            answer = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
            assert ConsumerRunningInfo.from_json(answer.body).properties == {"jstack": "True"}
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            answer = await ask(code, {"consumerGroup": "billing"}, record())
            result = ConsumeMessageDirectlyResult.from_json(answer.body)
            assert result.consume_result is ConsumeResult.CR_SUCCESS
            fields = {"consumerGroup": "stranger", "clientId": "x"}
            answer = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
            assert (answer.code, "stranger" in (answer.remark or "")) == (1, True)
            assert consumer.changes == 1
            assert consumer.resets == [(TOPIC, offsets)]
            assert consumer.consumed == [b"half"]
            await mq.session.leave_consumer(consumer)

    world.run(scenario)


def test_a_check_reaches_a_producer_of_the_message_s_group() -> None:
    world = World(brokers=1)

    class Answerer:
        group = "payments"

        def __init__(self) -> None:
            self.asked: list[tuple[str, str]] = []

        async def check_transaction(self, header: Any, half: StoredMessage, address: str) -> None:
            self.asked.append((header.msg_id, address))

    async def scenario() -> None:
        async with world.connect() as mq:
            member = Answerer()
            await mq.fetch_queues(TOPIC)
            mq.session.join_producer(member)
            await world.clock.sleep_ms(100)
            peer = world.brokers[0].peers[mq.client_id]
            fields = {"tranStateTableOffset": "1", "commitLogOffset": "2", "msgId": "M"}
            for group in ("payments", "strangers"):
                code = RequestCode.CHECK_TRANSACTION_STATE
                body = record(PGROUP=group)
                peer.notify(Command.request(code, fields, body, oneway=True))
            await world.clock.sleep_ms(10)
            assert member.asked == [("M", world.brokers[0].address)]

    world.run(scenario)


def test_a_group_has_one_consumer_in_a_session_and_the_client_opens_another_for_a_second() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            first = await mq.session_for_consumer("billing")
            assert first is mq.session
            first.join_consumer(Consumer("billing"))
            with pytest.raises(ClientError, match="connect once more"):
                first.join_consumer(Consumer("billing"))
            second = await mq.session_for_consumer("billing")
            assert second.client_id != first.client_id
            assert await mq.session_for_consumer("other") is first

    world.run(scenario)


def test_members_of_one_client_are_told_apart_whatever_it_is_called() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect(instance_name="till-7", client_ip="10.9.9.9") as mq:
            ids = []
            for _ in range(3):
                session = await mq.session_for_consumer("billing")
                session.join_consumer(Consumer("billing"))
                ids.append(session.client_id)
            assert ids == ["10.9.9.9@till-7", "10.9.9.9@till-7-2", "10.9.9.9@till-7-3"]

    world.run(scenario)


def test_a_consumer_hears_of_new_routes() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            consumer = Consumer("billing")
            mq.session.join_consumer(consumer)
            await mq.fetch_queues(TOPIC)
            world.brokers[0].topics[TOPIC] = TopicConfig(TOPIC, 9, 9)
            await world.clock.sleep_ms(31_000)
            assert consumer.routes == [TOPIC, TOPIC]
            assert len(await mq.fetch_queues(TOPIC)) == 9

    world.run(scenario)


def test_a_client_outside_its_block_says_so() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        mq = world.connect()
        with pytest.raises(ClientClosed, match="async with"):
            mq.producer("shop")
        async with mq:
            producer = mq.producer("shop")
        with pytest.raises(ClientClosed):
            await producer.start()

    world.run(scenario)


# Signatures, hooks, fast port.


def test_every_request_is_signed_where_an_account_is_given() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        account = {"access_key": "rocketmq2", "secret_key": "12345678"}
        async with world.connect(**account) as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            await producer.send_oneway(Message(TOPIC, b"x"))
            await world.clock.sleep_ms(10)
        assert len(world.brokers[0].seen) == 2
        for request in world.brokers[0].seen:
            assert request.fields["AccessKey"] == "rocketmq2"
            assert is_signature_valid(request.fields, request.body, secret_key="12345678")

    world.run(scenario)


def test_a_secret_is_not_shown() -> None:
    assert "12345678" not in repr(ClientConfig(access_key="a", secret_key="12345678"))


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def before_request(self, address: str, request: Command) -> None:
        request.fields["team"] = "till"
        self.seen.append(("before", request.code))

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.seen.append(("after", request.code))
        raise RuntimeError("too late to matter")


def test_rpc_hooks_see_requests_and_answers_and_their_changes_are_signed() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        watcher = Watcher()
        settings = {"access_key": "rocketmq2", "secret_key": "12345678", "hooks": [watcher]}
        async with world.connect(**settings) as mq, mq.producer("shop") as producer:
            await producer.send(Message(TOPIC, b"x"))
            assert ("before", RequestCode.SEND_MESSAGE_V2) in watcher.seen
            assert ("after", RequestCode.SEND_MESSAGE_V2) in watcher.seen
        request = world.brokers[0].seen[0]
        assert request.fields["team"] == "till"
        assert is_signature_valid(request.fields, request.body, secret_key="12345678")

    world.run(scenario)


def test_the_fast_port_is_two_below() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        fast = FakeBroker(
            world.network.host("10.0.0.1"),
            world.clock,
            "10.0.0.1",
            port=10909,
            topics=world.brokers[0].topics,
        )
        async with (
            fast,
            world.connect(vip_channel_enabled=True) as mq,
            mq.producer("shop") as producer,
        ):
            await producer.send(Message(TOPIC, b"x"))
        assert len(fast.stored) == 1

    world.run(scenario)


def test_the_channels_of_a_session_are_its_own() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as one, world.connect() as two:
            assert isinstance(one.session.channels, ClientChannels)
            assert one.session.channels is not two.session.channels

    world.run(scenario)
