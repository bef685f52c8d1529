"""Settings that operators change while the broker runs, and what changes with them."""

from __future__ import annotations

import pytest
from broker_world import BrokerWorld, Client

from skylark.model.topic import AUTO_CREATE_TOPIC
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command


async def update(client: Client, text: str) -> Command:
    return await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def test_files_go_earlier_once_the_time_they_are_kept_is_lowered(world: BrokerWorld) -> None:
    async def main() -> None:
        every_hour = ";".join(f"{hour:02}" for hour in range(24))
        async with world.serving(delete_when=every_hour) as client:
            body = bytes(8 << 10)
            while len(world.parts.store.log.mapped) < 3:
                await client.send("T", body)
            await world.clock.sleep_ms(60_000)
            first = (await client.pull("T", offset=0)).code
            assert first == ResponseCode.SUCCESS
            assert (await update(client, "fileReservedTime=0")).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(60_000)
            moved = await client.pull("T", offset=0)
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED
            assert int(moved.fields["minOffset"]) > 0
            assert moved.fields["nextBeginOffset"] == moved.fields["minOffset"]
            # Sends and reads go on behind what was deleted.
            again = await client.pull("T", offset=int(moved.fields["nextBeginOffset"]))
            assert again.code == ResponseCode.SUCCESS

    world.run(main)


def test_the_hours_in_which_files_go_can_be_changed(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(delete_when="", file_reserved_time=0) as client:
            while len(world.parts.store.log.mapped) < 3:
                await client.send("T", bytes(8 << 10))
            await world.clock.sleep_ms(60_000)
            assert world.parts.store.log.start == 0  # No hour is one of deleting.
            every_hour = ";".join(f"{hour:02}" for hour in range(24))
            assert (await update(client, f"deleteWhen={every_hour}")).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(60_000)
            assert world.parts.store.log.start > 0

    world.run(main)


@pytest.mark.parametrize(
    "text", ["deleteWhen=25", "deleteWhen=04;x", "fileReservedTime=-1", "fileReservedTime=99999999"]
)
def test_a_time_of_deleting_that_cannot_be_is_refused_and_the_old_one_stays(
    world: BrokerWorld, text: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            before = world.parts.live.current
            answer = await update(client, text)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "deleteWhen" in (answer.remark or "") or "fileReservedTime" in (
                answer.remark or ""
            )
            assert world.parts.live.current is before

    world.run(main)


def test_the_making_of_topics_by_sending_is_switched_off_and_on(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            assert (await client.send("First")).code == ResponseCode.SUCCESS
            assert (await update(client, "autoCreateTopicEnable=false")).code == 0
            refused = await client.send("Second")
            assert refused.code == ResponseCode.TOPIC_NOT_EXIST
            assert "autoCreateTopicEnable" in (refused.remark or "")
            template = world.parts.topics.get(AUTO_CREATE_TOPIC)
            assert template is not None
            assert not template.is_inherited
            assert (await client.send("First")).code == ResponseCode.SUCCESS  # It is there already.
            assert (await update(client, "autoCreateTopicEnable=true")).code == 0
            assert (await client.send("Second")).code == ResponseCode.SUCCESS

    world.run(main)


def test_switched_on_later_it_works_on_a_broker_that_began_without_it(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(auto_create_topic_enable=False) as client:
            assert (await client.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await update(client, "autoCreateTopicEnable=true")).code == 0
            assert (await client.send("T")).code == ResponseCode.SUCCESS
            made = world.parts.topics.get("T")
            assert made is not None
            assert made.write_queue_nums == 4

    world.run(main)


def test_other_settings_touch_no_topic(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(auto_create_topic_enable=False) as client:
            version = world.parts.topics.version
            assert (await update(client, "traceOn=false")).code == 0
            assert world.parts.topics.version == version

    world.run(main)
