"""SQL92 at the broker: who may use it, what pulls get, what is kept and for how long."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.broker.filters import PARTS_A_PULL_COMPILED_MAX, PARTS_A_PULL_MAX, _reader
from skylark.model.group import Subscription
from skylark.model.topic import retry_topic
from skylark.protocol.bodies import CheckClientConfigBody, ConsumerData, QueryConsumeQueueBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.properties import parse_properties
from skylark.protocol.record import encode_record, pack_host, properties_text

ON = {"enable_property_filter": True}
BITS = {**ON, "enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
SQL = "SQL92"


async def _fill(client: Client, count: int, topic: str = "T") -> None:
    for number in range(count):
        properties = {"a": str(number), "TAGS": "TagA" if number % 2 else "TagB"}
        assert (await client.send(topic, b"m%d" % number, properties=properties)).code == 0


def _wanted(
    expression: str, version: int = 1, group: str = "group", topic: str = "T"
) -> ConsumerData:
    return ConsumerData(
        group,
        subscriptions=(
            Subscription(topic=topic, expression=expression, expression_type=SQL, version=version),
        ),
    )


async def _drain(client: Client, topic: str = "T", **asked: Any) -> list[bytes]:
    """Everything from the first message on, as a consumer would read it."""
    bodies, offset = [], 0
    for _ in range(1_000):
        answer = await client.pull(topic, offset=offset, **asked)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return bodies
        if answer.code == ResponseCode.SUCCESS:
            bodies += [message.body for message in records(answer)]
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, answer
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    raise AssertionError("the queue has no end")


# Whether at all.


def test_expressions_are_refused_unless_they_are_switched_on(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            answer = await client.pull("T", tags="a > 0", expressionType=SQL)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "The broker does not support consumer to filter message by SQL92; "
                "set enablePropertyFilter=true"
            )
            await client.heartbeat(_wanted("a > 0"))
            assert (await client.pull("T", tags=None)).code == ResponseCode.SYSTEM_ERROR
            text = b"enablePropertyFilter=true\n"
            assert (await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == 0
            answer = await client.pull("T", tags="a = 0", expressionType=SQL)
            assert [message.body for message in records(answer)] == [b"m0"]

    world.run(main)


@pytest.mark.parametrize(
    ("expression", "kind", "code"),
    [
        ("a > 5 AND b IS NOT NULL", SQL, 0),
        ("a >", SQL, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("", SQL, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("a > 5", "SQL93", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("(" * 100_000, SQL, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("TagA", "", 0),
    ],
)
def test_a_client_hears_at_its_start_whether_its_expression_is_sound(
    world: BrokerWorld, expression: str, kind: str, code: int
) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            wanted = Subscription(topic="T", expression=expression, expression_type=kind)
            body = CheckClientConfigBody("client", "group", wanted).to_json()
            answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            assert answer.code == code
            if expression == "a >":
                assert answer.remark == (
                    "expression 'a >' ends where a property, a number, a text, TRUE, FALSE, NULL "
                    "or ( is expected"
                )
            assert len(answer.remark or "") < 300

    world.run(main)


# What pulls get.


def test_a_pull_with_an_expression_gets_what_matches(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 30)
            seed = "(TAGS is not null and TAGS in ('TagA', 'TagC')) and (a between 7 and 9)"
            assert await _drain(client, tags=seed, expressionType=SQL) == [b"m7", b"m9"]
            assert await _drain(client, tags="b is null and a < 2", expressionType=SQL) == [
                b"m0",
                b"m1",
            ]
            answer = await client.pull("T", tags="a = 99", expressionType=SQL)
            assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
            assert answer.fields["nextBeginOffset"] == "30"

    world.run(main)


def test_an_expression_that_is_wrong_is_refused_and_matches_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 1)
            answer = await client.pull("T", tags="a = ", expressionType=SQL)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "position" in (answer.remark or "") or "ends where" in (answer.remark or "")
            answer = await client.pull("T", tags="a", expressionType="GROOVY")
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    world.run(main)


def test_a_group_is_served_by_what_its_heartbeat_said(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 10)
            assert (await client.heartbeat(_wanted("a > 7", 5))).code == 0
            assert await _drain(client, tags=None, subVersion=5) == [b"m8", b"m9"]
            # A newer version with another expression takes over.
            assert (await client.heartbeat(_wanted("a = 3", 6))).code == 0
            assert await _drain(client, tags=None, subVersion=6) == [b"m3"]
            # An older one does not.
            assert (await client.heartbeat(_wanted("a = 1", 2))).code == 0
            known = world.parts.filters.get("T", "group")
            assert known is not None
            assert known.data.expression == "a = 3"

    world.run(main)


def test_a_heartbeat_with_a_wrong_expression_leaves_no_filter(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 3)
            await client.heartbeat(_wanted("a > ", 5))
            answer = await client.pull("T", tags=None, subVersion=5)
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            await client.heartbeat(_wanted("a > 1", 6))
            assert len(records(await client.pull("T", tags=None, subVersion=6))) == 1
            await client.heartbeat(_wanted("a > > 1", 7))
            answer = await client.pull("T", tags=None, subVersion=7)
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST

    world.run(main)


def test_filter_data_older_than_the_pull_is_told_so(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 3)
            await client.heartbeat(_wanted("a > 1", 9))
            known = world.parts.filters.get("T", "group")
            assert known is not None
            world.parts.filters._change(known, client_version=8)
            answer = await client.pull("T", tags=None, subVersion=9)
            assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST

    world.run(main)


def test_each_member_of_a_group_is_served_by_its_own_expression(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**BITS) as client, world.connected("client-2") as other:
            await client.heartbeat(_wanted("a < 2", 5))
            await other.heartbeat(_wanted("a > 7", 6))
            await world.clock.sleep_ms(10)
            await _fill(client, 10)
            assert await _drain(client, tags=None, subVersion=5) == [b"m0", b"m1"]
            assert await _drain(other, tags=None, subVersion=6) == [b"m8", b"m9"]

    world.run(main)


# Waiting.


def test_a_held_pull_sleeps_through_what_it_does_not_want(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 2)
            held = asyncio.ensure_future(
                client.pull("T", offset=2, tags="a = 7", expressionType=SQL, suspend_ms=15_000)
            )
            await world.clock.sleep_ms(100)
            for number in (3, 4, 5):
                await client.send("T", b"no", properties={"a": str(number)})
                await world.clock.sleep_ms(100)
                assert not held.done()
            await client.send("T", b"yes", properties={"a": "7"})
            answer = await held
            assert [message.body for message in records(answer)] == [b"yes"]
            assert len(world.parts.arrivals) == 0

    world.run(main)


def test_a_held_pull_that_found_nothing_to_want_goes_on_behind_it(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 1)
            started_ms = world.clock.monotonic_ms()
            held = asyncio.ensure_future(
                client.pull("T", offset=1, tags="a = 7", expressionType=SQL, suspend_ms=5_000)
            )
            await world.clock.sleep_ms(1_000)
            await client.send("T", b"no", properties={"a": "1"})
            answer = await held
            assert answer.code in (19, 20)
            assert answer.fields["nextBeginOffset"] == "2"
            assert 5_000 <= world.clock.monotonic_ms() - started_ms <= 5_300

    world.run(main)


# How much one pull may cost.


def test_a_long_expression_looks_at_few_messages_in_one_pull(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 90)
            # Two properties that are compared are left to the pure evaluator.
            costly = " OR ".join(["b <> b"] * 240)
            answer = await client.pull("T", tags=costly, expressionType=SQL)
            assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
            parts = 4 * 240 + 1
            assert int(answer.fields["nextBeginOffset"]) == PARTS_A_PULL_MAX // parts < 90
            assert await _drain(client, tags=f"{costly} OR a = 89", expressionType=SQL) == [b"m89"]
            costly = " OR ".join(["a = 99"] * 330)
            answer = await client.pull("T", tags=costly, expressionType=SQL)
            compiled_max = PARTS_A_PULL_COMPILED_MAX // (3 * 330 + 1)
            assert int(answer.fields["nextBeginOffset"]) <= compiled_max < 90

    world.run(main)


# Retries.


@pytest.mark.parametrize(
    ("settings", "bodies"), [({}, [b"x", b"y"]), ({"filter_support_retry": True}, [b"y"])]
)
def test_retried_messages_are_filtered_by_their_first_topic_if_asked_for(
    world: BrokerWorld, settings: dict[str, Any], bodies: list[bytes]
) -> None:
    async def main() -> None:
        async with world.serving(**ON, **settings) as client:
            await client.heartbeat(_wanted("a > 5", 5))
            topic = retry_topic("group")
            for body, value in ((b"x", "1"), (b"y", "6")):
                await client.send(topic, body, properties={"a": value, "RETRY_TOPIC": "T"})
            assert await _drain(client, topic, tags="*") == bodies
            other = {"a": "1", "RETRY_TOPIC": "Unfiltered"}
            await client.send(topic, b"z", properties=other)
            assert await _drain(client, topic, tags="*") == [*bodies, b"z"]

    world.run(main)


# The table and its file.


def test_filters_live_die_come_back_and_are_forgotten(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.running(**ON, filter_data_clean_time_span=60_000):
            filters = world.parts.filters
            async with world.connected() as client:
                await _fill(client, 1)
                await client.heartbeat(_wanted("a > 5", 5))
                born_ms = world.clock.now_ms()
                known = filters.get("T", "group")
                assert known is not None
                assert not known.data.is_dead
                assert abs(known.data.born_ms - born_ms) < 5
            await world.clock.sleep_ms(1_000)
            assert known.data.is_dead
            async with world.connected() as client:
                await client.heartbeat(_wanted("a > 5", 5))
                assert not known.data.is_dead
                assert known is filters.get("T", "group")
                # The group goes on without the topic.
                gone = ConsumerData("group", subscriptions=(Subscription(topic="U", version=9),))
                await client.heartbeat(gone)
                assert known.data.is_dead
            await world.clock.sleep_ms(80_000)
            assert filters.get("T", "group") is None
            assert filters.body().filters == ()

    world.run(main)


def test_the_file_is_rocketmqs_and_is_read_back(world: BrokerWorld) -> None:
    path = "/store/config/consumerFilter.json"

    async def main() -> None:
        async with world.serving(**ON) as client:
            await _fill(client, 1)
            await client.heartbeat(_wanted("a > 1 OR a IS NULL", 7, group="CID_1", topic="T"))
            await world.clock.sleep_ms(11_000)
            written = json.loads(world.files.read(path))
            found = written["filterDataByTopic"]["T"]["groupFilterData"]["CID_1"]
            assert found.pop("bornTime") > 0
            bloom = found.pop("bloomFilterData")
            assert bloom["bitNum"] == 112
            assert len(bloom["bitPos"]) == 3
            assert found == {
                "clientVersion": 7,
                "consumerGroup": "CID_1",
                "dead": False,
                "deadTime": 0,
                "expression": "a > 1 OR a IS NULL",
                "expressionType": "SQL92",
                "topic": "T",
            }
        async with world.running(**ON):
            known = world.parts.filters.get("T", "CID_1")
            assert known is not None
            assert known.data.is_dead
            async with world.connected() as client:
                await client.heartbeat(_wanted("a > 1 OR a IS NULL", 7, group="CID_1"))
                assert not known.data.is_dead
        # Bits of another size: the whole file is left aside.
        async with world.running(**ON, expect_consumer_num_use_filter=64):
            assert world.parts.filters.get("T", "CID_1") is None

    world.run(main)


# Bits.


def test_results_are_the_same_with_bits_and_without() -> None:
    expressions = ["a > 5", "a < 3", "TAGS = 'TagA' AND a > 2", "b IS NULL", "a = 'x' OR a = '4'"]

    def run(settings: dict[str, Any]) -> list[list[bytes]]:
        own = BrokerWorld()
        found: list[list[bytes]] = []

        async def main() -> None:
            async with own.serving(**settings) as client:
                await _fill(client, 5)  # Before anybody has said what is wanted.
                for number, text in enumerate(expressions):
                    await client.heartbeat(_wanted(text, 5, group=f"g{number}"))
                await own.clock.sleep_ms(10)
                await _fill(client, 10)
                # One changes its mind, so that old bits mean something else.
                await client.heartbeat(_wanted("a > 8", 6, group="g0"))
                await own.clock.sleep_ms(10)
                await _fill(client, 10)
                for number in range(len(expressions)):
                    version = 6 if number == 0 else 5
                    found.append(
                        await _drain(client, tags=None, group=f"g{number}", subVersion=version)
                    )
                figures = own.parts.filters.figures
                if settings is BITS:
                    assert figures.spared > 20
                    assert figures.evaluated < 25 * len(expressions) - 20
                else:
                    assert figures.spared == figures.computed == 0

        own.run(main)
        own.loop.close()
        return found

    without, with_bits = run(ON), run(BITS)
    assert without == with_bits
    assert all(without)


def test_bits_in_the_ext_file_are_those_of_the_groups_that_want_the_message(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(**BITS) as client:
            await client.heartbeat(_wanted("a = 1", 5, group="CID_1", topic="TopicTest"))
            await world.clock.sleep_ms(10)
            for value in ("1", "2"):
                await client.send("TopicTest", properties={"a": value, "TAGS": "TagA"})
            ext = world.parts.store.queues.ext("TopicTest", 0)
            queue = world.parts.store.queues.get("TopicTest", 0)
            assert ext is not None
            assert queue is not None
            units = [ext.get(entry.tag_code) for n in (0, 1) if (entry := queue.entry(n))]
            # Positions 6, 38 and 41 of 112, as Apache's filter has them for this name.
            assert [unit.bitmap.hex() for unit in units if unit] == [
                "4000000040020000000000000000",
                "0000000000000000000000000000",
            ]
            answer = await client.call(
                RequestCode.QUERY_CONSUME_QUEUE,
                {"topic": "TopicTest", "queueId": 0, "index": 0, "count": 2,
                 "consumerGroup": "CID_1"},
            )  # fmt: skip
            shown = QueryConsumeQueueBody.from_json(answer.body)
            assert [entry.passes for entry in shown.entries] == [True, False]
            bits = shown.entries[0].bit_map or ""
            assert [at for at, bit in enumerate(bits) if bit == "1"] == [6, 38, 41]
            assert '"expression":"a = 1"' in (shown.filter_data or "")

    world.run(main)


def test_with_bits_the_evaluations_are_far_fewer_than_the_messages(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**BITS) as client:
            await client.heartbeat(_wanted("a = 7", 5))
            await world.clock.sleep_ms(10)
            await _fill(client, 200)
            assert await _drain(client, tags=None, subVersion=5) == [b"m7"]
            figures = world.parts.filters.figures
            assert (figures.evaluated, figures.spared, figures.computed) == (1, 199, 200)

    world.run(main)


def test_too_many_costly_filters_leave_messages_without_bits(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**BITS) as client:
            costly = " OR ".join(["a = 5"] * 250)
            for number in range(14):
                await client.heartbeat(_wanted(costly, 5, group=f"g{number}"))
            await world.clock.sleep_ms(10)
            await _fill(client, 8)
            assert world.parts.filters.figures.computed == 0
            assert await _drain(client, tags=None, group="g3", subVersion=5) == [b"m5"]

    world.run(main)


# Reading properties.


def test_properties_picked_from_a_record_are_those_that_reading_all_of_them_gives() -> None:
    rng = random.Random(5)
    pieces = [b"a\x015", b"b\x01x y", b"a\x01", b"\x01a", b"a", b"", b"aa\x017", b"a\x016\x01z",
              "c\x01ä☃".encode(), b"c\x01\xff\xfe", b"TAGS\x01TagA", b"x\x01a\x015"]  # fmt: skip
    for _ in range(2_000):
        text = b"\x02".join(rng.choice(pieces) for _ in range(rng.randint(0, 6)))
        host = pack_host(rng.choice(("10.0.0.1", "::1")), 5)
        record = encode_record(
            topic="T" * rng.randint(1, 127),
            body=bytes(rng.randint(0, 300)),
            properties=text,
            born_host=host,
            store_host=host,
        )
        found = properties_text(record)
        assert found == text
        everything = parse_properties(text)
        wanted = {name: everything[name] for name in ("a", "c", "zz") if name in everything}
        assert _reader(("a", "c", "zz"))(found) == wanted
        # A record whose lengths lie has no properties, and raises nothing.
        broken = bytearray(record)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.choice((0, 0x7F, 0x80, 0xFF))
        assert isinstance(properties_text(broken), bytes)
        assert isinstance(properties_text(record[: rng.randrange(len(record))]), bytes)
