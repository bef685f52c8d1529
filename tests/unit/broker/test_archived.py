"""Retention waits for a group that archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_world import BrokerWorld

from skylark.broker.config import BrokerConfig
from skylark.config.load import load, parse_set
from skylark.model.group import ARCHIVE_GROUP
from skylark.protocol.codes import RequestCode


@pytest.mark.parametrize(
    ("group", "settings"),
    [
        ("lake", {"retention_waits_for_group": "lake"}),
        (ARCHIVE_GROUP, {"retention_wait_for_archive": True}),
        ("lake", {"retention_waits_for_group": "lake", "retention_wait_for_archive": True}),
    ],
)
def test_what_the_group_has_not_read_is_spared(
    world: BrokerWorld, group: str, settings: dict[str, Any]
) -> None:
    async def main() -> None:
        async with world.serving(**settings) as client:
            undelivered = world.parts.retention._undelivered_from
            sent = [await client.send("T", b"%d" % number) for number in range(4)]
            assert all(answer.code == 0 for answer in sent)
            assert undelivered() is None, "the group has not begun"
            await client.pull("T", group=group)
            for offset, expected in ((0, 0), (2, 2), (4, None)):
                answer = await client.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset},
                )
                assert answer.code == 0
                queue = world.parts.store.queues.get("T", 0)
                assert queue is not None
                entry = None if expected is None else queue.entry(expected)
                assert undelivered() == (None if entry is None else entry.physical_offset)

    world.run(main)


def test_queues_that_a_topic_gets_later_are_waited_for(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(retention_wait_for_archive=True) as client:
            undelivered = world.parts.retention._undelivered_from
            for queue_id in (0, 1):
                await client.send("T", b"x", queue_id=queue_id)
                await client.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {
                        "consumerGroup": ARCHIVE_GROUP,
                        "topic": "T",
                        "queueId": queue_id,
                        "commitOffset": 1,
                    },
                )
            await client.send("Another", b"x")
            assert undelivered() is None
            end = world.parts.store.log.appended
            await client.send("T", b"x", queue_id=2)  # While the archive is down.
            assert undelivered() == end

    world.run(main)


def test_without_the_setting_nobody_is_waited_for(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"x")
            await client.pull("T", group="lake")
            await client.call(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "lake", "topic": "T", "queueId": 0, "commitOffset": 0},
            )
            assert world.parts.retention._undelivered_from() is None

    world.run(main)


@pytest.mark.parametrize("waits", [True, False])
def test_a_queue_that_is_archived_does_not_begin_anew_when_all_of_it_has_expired(
    world: BrokerWorld, waits: bool
) -> None:
    async def main() -> None:
        async with world.serving(retention_wait_for_archive=waits) as client:
            for topic, group in (("T", ARCHIVE_GROUP), ("U", "another")):
                await client.send(topic, b"x")
                await client.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1},
                )
            store = world.parts.store
            with pytest.MonkeyPatch.context() as patch:  # All of it has left the log.
                patch.setattr(type(store.log), "start", store.log.appended)
                await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
            assert (("T", 0) in store.queues.names) is waits
            assert ("U", 0) not in store.queues.names

    world.run(main)


def test_the_setting_is_known_by_its_dotted_name(tmp_path: Path) -> None:
    flags = [parse_set("retention.wait_for_archive=true")]
    assert load(BrokerConfig, env={}, flags=flags).config.retention_wait_for_archive
    file = tmp_path / "broker.conf"
    file.write_text("retention.wait_for_archive=true\n")
    assert load(BrokerConfig, file=file, env={}).config.retention_wait_for_archive
    assert not load(BrokerConfig, env={}).config.retention_wait_for_archive
