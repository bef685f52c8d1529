"""Messages by key, by id, and the entries of a queue."""

from __future__ import annotations

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.model.group import Subscription
from skylark.protocol.bodies import ConsumerData, QueryConsumeQueueBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.hashes import tag_hash

LONG_MAX = 2**63 - 1


async def _query(client: Client, key: str, **changes: object) -> Command:
    fields = {
        "topic": "TopicTest",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": LONG_MAX,
        **changes,
    }
    return await client.call(RequestCode.QUERY_MESSAGE, fields)


def test_messages_are_found_by_key_and_by_unique_id_oldest_first(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(4):
                await client.send(
                    body=b"%d" % number,
                    properties={"KEYS": f"all own-{number}", "UNIQ_KEY": f"ID{number}"},
                )
            found = records(await _query(client, "all"))
            assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
            assert [m.body for m in records(await _query(client, "own-2"))] == [b"2"]
            answer = await _query(client, "ID3", _UNIQUE_KEY_QUERY="true", maxNum=1)
            assert [m.body for m in records(answer)] == [b"3"]
            assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0

    world.run(main)


def test_nothing_found_is_answered_so_with_the_headers_that_clients_read(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for topic in ("TopicTest", "Nobody", "../../etc"):
                answer = await _query(client, "key", topic=topic)
                assert answer.code == ResponseCode.QUERY_NOT_FOUND
                assert answer.fields == {
                    "indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"
                }  # fmt: skip

    world.run(main)


@pytest.mark.parametrize("count", [2**31 - 1, 0, -1, -(2**31)])
def test_no_number_makes_a_query_return_more_than_the_limit(world: BrokerWorld, count: int) -> None:
    async def main() -> None:
        async with world.serving(max_msgs_num_batch=5) as client:
            for _ in range(8):
                await client.send(properties={"KEYS": "all"})
            assert 1 <= len(records(await _query(client, "all", maxNum=count))) <= 5

    world.run(main)


def test_a_range_that_ends_before_it_begins_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await _query(client, "all", beginTimestamp=2, endTimestamp=1)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "swap them" in (answer.remark or "")

    world.run(main)


def test_many_large_messages_do_not_make_an_answer_that_no_frame_can_carry(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(frame_bytes_max=128 << 10, header_bytes_max=1 << 10) as client:
            for _ in range(8):
                await client.send(body=b"x" * 15_000, properties={"KEYS": "all"})
            found = records(await _query(client, "all"))
            assert len(found) == 4  # What is left beside 64 KiB for the frame itself.

    world.run(main)


def test_a_message_is_viewed_at_its_own_offset_and_nowhere_else(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            sent = await client.send(body=b"x" * 200)
            offset = int(sent.fields["msgId"][16:], 16)
            (found,) = records(
                await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
            )
            assert found.body == b"x" * 200
            for wrong in (offset + 1, offset + 4, -1, 1 << 40, -(2**63), LONG_MAX):
                answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": wrong})
                assert answer.code == ResponseCode.SYSTEM_ERROR, wrong
                assert not answer.body

    world.run(main)


def test_the_entries_of_a_queue_are_shown_and_judged_by_a_groups_filter(world: BrokerWorld) -> None:
    async def show(client: Client, **changes: object) -> Command:
        fields = {"topic": "TopicTest", "queueId": 0, "index": 0, "count": 10, **changes}
        return await client.call(RequestCode.QUERY_CONSUME_QUEUE, fields)

    async def main() -> None:
        async with world.serving() as client:
            for tag in ("A", "B", "A"):
                await client.send(properties={"TAGS": tag})
            body = QueryConsumeQueueBody.from_json((await show(client)).body)
            assert [entry.tags_code for entry in body.entries] == [*map(tag_hash, "ABA")]
            assert (body.min_queue_index, body.max_queue_index) == (0, 3)
            assert not any(entry.passes for entry in body.entries)

            body = QueryConsumeQueueBody.from_json((await show(client, consumerGroup="g")).body)
            assert body.filter_data == "g@TopicTest is not online!"
            wanted = Subscription(topic="TopicTest", expression="A || C", tags=("A", "C"))
            await client.heartbeat(ConsumerData("g", subscriptions=(wanted,)))
            body = QueryConsumeQueueBody.from_json((await show(client, consumerGroup="g")).body)
            assert [entry.passes for entry in body.entries] == [True, False, True]

            body = QueryConsumeQueueBody.from_json((await show(client, index=2)).body)
            assert len(body.entries) == 1
            for beyond in ({"index": 3}, {"index": -1}, {"count": 0}, {"count": -(2**31)}):
                answer = await show(client, **beyond)
                assert (answer.code, bytes(answer.body)) == (ResponseCode.SUCCESS, b"")
            answer = await show(client, count=2**31 - 1)
            assert len(QueryConsumeQueueBody.from_json(answer.body).entries) == 3
            for nowhere in ({"queueId": 9}, {"queueId": -1}, {"topic": "Nobody"}):
                assert (await show(client, **nowhere)).code == ResponseCode.SYSTEM_ERROR

    world.run(main)
