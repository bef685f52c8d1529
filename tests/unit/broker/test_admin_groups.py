"""What operators do with groups, ask about members, and have handed on to them."""

from __future__ import annotations

import asyncio
import random

import pytest
from broker_world import BrokerWorld, Client

from skylark.model.group import Subscription, SubscriptionGroupConfig
from skylark.model.queue import MessageQueue
from skylark.net import Channels, Handler, Switchboard
from skylark.protocol.bodies import (
    ConsumerConnectionBody,
    ConsumerData,
    ConsumerStatusBody,
    ProducerConnectionBody,
    ProducerTableBody,
    ResetOffsetBody,
    SubscriptionGroupConfigBody,
    SubscriptionGroupTable,
)
from skylark.protocol.codes import Language, RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.record import decode_records

GROUP = "g"
WANTED = Subscription(topic="TopicTest")
QUEUE = MessageQueue("TopicTest", "broker-a", 0)


class Member(Client):
    """A consumer that answers what a broker may ask of one, unless it is mute."""

    def __init__(
        self, world: BrokerWorld, client_id: str, *, language: int = Language.JAVA
    ) -> None:
        super().__init__(world, client_id)
        self.language = language
        self.is_mute = False
        self.answer = Response()
        codes = (
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
        )
        board = Switchboard({code: Handler(None, self._asked) for code in codes})
        self.channels = Channels(world.client, world.clock, random.Random(4), switchboard=board)

    async def _asked(self, request: AnyRequest, peer: Peer) -> Response:
        if request.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.told.append(request)
        if self.is_mute:
            await asyncio.Event().wait()
        return self.answer

    async def join(self, group: str = GROUP) -> None:
        from skylark.protocol.bodies import HeartbeatData

        data = HeartbeatData(
            self.client_id, ("producers",), (ConsumerData(group, subscriptions=(WANTED,)),)
        )
        command = Command.request(RequestCode.HEART_BEAT, body=data.to_json())
        command.language = self.language
        answer = await self.channels.call(self._world.address, command, 5_000)
        assert answer.code == ResponseCode.SUCCESS


async def reset(
    client: Client, timestamp: int, *, force: bool = True, group: str = GROUP
) -> Command:
    fields = {"topic": "TopicTest", "group": group, "timestamp": timestamp, "isForce": force}
    return await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


async def commit(client: Client, offset: int, *, group: str = GROUP, queue_id: int = 0) -> Command:
    return await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": group,
            "topic": "TopicTest",
            "queueId": queue_id,
            "commitOffset": offset,
        },
    )


def test_a_group_is_made_listed_and_deleted_with_its_offsets(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=3)
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            answer = await client.call(code, body=SubscriptionGroupConfigBody(config).to_json())
            assert answer.code == ResponseCode.SUCCESS
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            table = SubscriptionGroupTable.from_json((await client.call(code)).body)
            assert table.groups[GROUP] == config
            await client.send()
            await commit(client, 1)
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            await client.call(code, {"groupName": GROUP})
            assert world.parts.groups.get(GROUP) is None
            assert world.parts.offsets.get("TopicTest", GROUP, 0) == 1
            answer = await client.call(code, {"groupName": GROUP, "removeOffset": True})
            assert answer.code == ResponseCode.SUCCESS
            assert world.parts.offsets.get("TopicTest", GROUP, 0) is None

    world.run(main)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"groupName":"../x"}', b'{"groupName":"g","retryQueueNums":100000}',
     b'{"groupName":"%s"}' % (b"x" * 256)],
)  # fmt: skip
def test_a_group_that_is_none_is_refused(world: BrokerWorld, body: bytes) -> None:
    async def main() -> None:
        async with world.serving() as client:
            before = world.parts.groups.version
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            assert (await client.call(code, body=body)).code == ResponseCode.SYSTEM_ERROR
            assert world.parts.groups.version == before

    world.run(main)


def test_one_group_is_shown_as_tools_of_5_x_ask(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            assert (await client.call(code, {"group": "made"})).code == (
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
            made = SubscriptionGroupConfig(group_name="made", retry_max_times=3)
            body = SubscriptionGroupConfigBody(made).to_json()
            await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
            answer = await client.call(code, {"group": "made"})
            assert SubscriptionGroupConfigBody.from_json(answer.body).config == made

    world.run(main)


def test_members_are_listed_with_language_and_subscriptions(world: BrokerWorld) -> None:
    async def main() -> None:
        member = Member(world, "member-1", language=Language.GO)
        async with world.serving() as client, member.channels:
            ask = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await client.call(ask, {"consumerGroup": GROUP})
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            await member.join()
            body = ConsumerConnectionBody.from_json(
                (await client.call(ask, {"consumerGroup": GROUP})).body
            )
            (connection,) = body.connections
            assert (connection.client_id, connection.language) == ("member-1", "GO")
            assert set(body.subscriptions) == {"TopicTest"}

            ask = RequestCode.GET_PRODUCER_CONNECTION_LIST
            body2 = ProducerConnectionBody.from_json(
                (await client.call(ask, {"producerGroup": "producers"})).body
            )
            assert [one.client_id for one in body2.connections] == ["member-1"]
            answer = await client.call(ask, {"producerGroup": "nobody"})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            await world.clock.sleep_ms(5_000)
            answer = await client.call(RequestCode.GET_ALL_PRODUCER_INFO)
            (info,) = ProducerTableBody.from_json(answer.body).groups["producers"]
            assert info.remote_ip == f"/{connection.client_addr}"
            assert 5_000 <= world.clock.now_ms() - info.last_update_timestamp < 5_100

    world.run(main)


# Handing on.


def test_a_question_reaches_the_member_without_the_signature_and_its_answer_comes_back(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        member = Member(world, "member-1")
        async with world.serving() as client, member.channels:
            await member.join()
            member.answer = Response(7, "as it is", body=b"{}")
            fields = {
                "consumerGroup": GROUP, "clientId": "member-1", "jstackEnable": True,
                "AccessKey": "operator", "Signature": "c2VjcmV0", "SecurityToken": "t",
            }  # fmt: skip
            answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
            assert (answer.code, answer.remark, bytes(answer.body)) == (7, "as it is", b"{}")
            (asked,) = member.told
            assert asked.fields == {
                "consumerGroup": GROUP, "clientId": "member-1", "jstackEnable": "true"
            }  # fmt: skip

    world.run(main)


def test_a_message_is_handed_to_the_member_that_is_named(world: BrokerWorld) -> None:
    async def main() -> None:
        member = Member(world, "member-1")
        async with world.serving() as client, member.channels:
            await member.join()
            sent = await client.send(body=b"again")
            fields = {
                "consumerGroup": GROUP, "clientId": "member-1", "msgId": sent.fields["msgId"]
            }  # fmt: skip
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            assert (await client.call(code, fields)).code == ResponseCode.SUCCESS
            (asked,) = member.told
            assert asked.fields["brokerName"] == "broker-a"
            assert [message.body for message in decode_records(asked.body)] == [b"again"]
            for wrong in ("", "nonsense", sent.fields["msgId"][:-1] + "9", "F" * 32):
                answer = await client.call(code, {**fields, "msgId": wrong})
                assert answer.code == ResponseCode.SYSTEM_ERROR
            assert len(member.told) == 1

    world.run(main)


def test_a_member_that_is_silent_or_gone_is_told_from_one_that_was_never_there(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        member = Member(world, "member-1")
        async with world.serving() as client:
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            fields = {"consumerGroup": GROUP, "clientId": "member-1", "jstackEnable": False}
            answer = await client.call(code, fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == "The Consumer <g> <member-1> not online"
            async with member.channels:
                await member.join()
                member.is_mute = True
                begun_ms = world.clock.monotonic_ms()
                answer = await client.call(code, fields)
                assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
                assert world.clock.monotonic_ms() - begun_ms < 11_000
                leaving = asyncio.ensure_future(client.call(code, fields))
                await world.clock.sleep_ms(100)
                member.channels.drop(world.address)
                answer = await leaving
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "is gone" in (answer.remark or "")

    world.run(main)


def test_every_member_is_asked_how_far_it_is_and_one_that_is_silent_holds_nobody_up(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        first, second, third = (Member(world, f"member-{n}") for n in (1, 2, 3))
        async with (
            world.serving() as client, first.channels, second.channels, third.channels,
        ):  # fmt: skip
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            fields = {"topic": "TopicTest", "group": GROUP}
            assert (await client.call(code, fields)).code == ResponseCode.SYSTEM_ERROR
            for member in (first, second, third):
                await member.join()
            first.answer = Response(body=ConsumerStatusBody({QUEUE: 8}).to_json())
            second.is_mute = True
            third.answer = Response(body=b"not json")
            body = ConsumerStatusBody.from_json((await client.call(code, fields)).body)
            assert body.consumers == {"member-1": {QUEUE: 8}}
            first.answer = Response(ResponseCode.SYSTEM_ERROR, "no such group")
            answer = await client.call(code, {**fields, "clientAddr": "member-1"})
            assert ConsumerStatusBody.from_json(answer.body).consumers == {}
            assert len(second.told) == 1

    world.run(main)


# Resets.


def test_a_reset_moves_the_group_and_tells_each_member_in_the_form_it_reads(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        java = Member(world, "java")
        cpp = Member(world, "cpp", language=Language.CPP)
        async with world.serving() as client, java.channels, cpp.channels:
            for _ in range(5):
                await client.send()
            await java.join()
            await cpp.join()
            await commit(java, 4)
            answer = await reset(client, 0)
            assert answer.code == ResponseCode.SUCCESS
            offsets = ResetOffsetBody.from_json(answer.body).offsets
            assert offsets == {MessageQueue("TopicTest", "broker-a", n): 0 for n in range(4)}
            await world.clock.sleep_ms(10)
            (to_java,), (to_cpp,) = java.told, cpp.told
            assert bytes(to_java.body) == ResetOffsetBody(offsets).to_json()
            assert bytes(to_cpp.body) == ResetOffsetBody(offsets).to_list_json()
            assert to_java.fields == {
                "topic": "TopicTest", "group": GROUP, "timestamp": "0", "isForce": "false"
            }  # fmt: skip
            # What a member commits that has not heard of it yet does not count.
            await commit(java, 5)
            assert world.parts.offsets.get("TopicTest", GROUP, 0) == 0
            await commit(java, 0)
            await commit(java, 1)
            assert world.parts.offsets.get("TopicTest", GROUP, 0) == 1

    world.run(main)


def test_messages_are_skipped_only_by_force(world: BrokerWorld) -> None:
    async def main() -> None:
        member = Member(world, "member-1")
        async with world.serving() as client, member.channels:
            for _ in range(5):
                await client.send()
            await member.join()
            await commit(member, 2)
            answer = await reset(client, -1, force=False)
            assert ResetOffsetBody.from_json(answer.body).offsets[QUEUE] == 2
            answer = await reset(client, -1)
            assert ResetOffsetBody.from_json(answer.body).offsets[QUEUE] == 5

    world.run(main)


def test_a_reset_of_nobody_says_which_and_changes_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            assert (await reset(client, 0)).code == ResponseCode.SYSTEM_ERROR
            await client.send()
            answer = await reset(client, 0)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "not exist" in (answer.remark or "")
            await commit(client, 1)
            answer = await reset(client, 0)
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            assert world.parts.offsets.get("TopicTest", GROUP, 0) == 1

    world.run(main)
