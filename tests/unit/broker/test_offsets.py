"""Committed offsets: they go forward, stay within their queue, and survive."""

from __future__ import annotations

import random

import pytest
from broker_world import BrokerWorld, Client

from skylark.broker.offsets import (
    RESET_PATIENCE_MS,
    RETURN_PATIENCE_MS,
    CommitOutcome,
    ConsumerOffsets,
)
from skylark.errors import CorruptRecord
from skylark.model.group import ConsumeType, Subscription
from skylark.protocol.bodies import ConsumerData
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock

PATH = "/store/config/consumerOffset.json"


def _table(files: SimFiles | None = None, end: int = 100) -> tuple[ConsumerOffsets, HandClock]:
    clock = HandClock()
    files = files or SimFiles()
    table = ConsumerOffsets(PATH, files, clock, max_offset=lambda topic, queue_id: end)
    table.load()
    return table, clock


def test_a_commit_goes_forward_and_a_smaller_one_is_ignored() -> None:
    table, _ = _table()
    assert table.commit("T", "g", 0, 10, may_go_back=False) is CommitOutcome.TAKEN
    assert table.commit("T", "g", 0, 10, may_go_back=False) is CommitOutcome.TAKEN
    assert table.commit("T", "g", 0, 9, may_go_back=False) is CommitOutcome.KEPT
    assert table.get("T", "g", 0) == 10
    assert table.commit("T", "g", 0, 9, may_go_back=True) is CommitOutcome.TAKEN
    assert table.get("T", "g", 0) == 9


@pytest.mark.parametrize("may_go_back", [False, True])
def test_a_commit_beyond_the_end_is_not_taken(may_go_back: bool) -> None:
    table, _ = _table(end=7)
    for offset in (8, 10**12):
        outcome = table.commit("T", "g", 0, offset, may_go_back=may_go_back)
        assert outcome is CommitOutcome.BEYOND
        assert table.get("T", "g", 0) is None
    table.commit("T", "g", 0, 7, may_go_back=False)
    assert table.commit("T", "g", 0, 8, may_go_back=may_go_back) is CommitOutcome.BEYOND
    assert table.get("T", "g", 0) == 7


def test_a_reset_holds_against_members_that_have_not_heard_of_it() -> None:
    table, clock = _table()
    table.commit("T", "g", 0, 50, may_go_back=False)
    table.reset("T", "g", 0, 20)
    assert table.commit("T", "g", 0, 55, may_go_back=False) is CommitOutcome.KEPT
    assert table.get("T", "g", 0) == 20
    assert table.commit("T", "g", 0, 20, may_go_back=False) is CommitOutcome.TAKEN
    assert table.commit("T", "g", 0, 21, may_go_back=False) is CommitOutcome.TAKEN
    table.reset("T", "g", 0, 5)
    clock.advance_ms(RESET_PATIENCE_MS)
    assert table.commit("T", "g", 0, 60, may_go_back=False) is CommitOutcome.TAKEN


def test_what_is_saved_is_read_again_and_a_damaged_file_is_replaced_by_its_backup() -> None:
    files = SimFiles()
    table, _ = _table(files)
    table.commit("T", "g", 3, 10, may_go_back=False)
    table.save()
    table.commit("T", "g", 3, 11, may_go_back=False)
    table.save()
    again, _ = _table(files)
    assert again.get("T", "g", 3) == 11
    files.replace(PATH, b'{"offsetTable":{"T@g":')
    files.replace(f"{PATH}.bak", b'{"offsetTable":{"T@g":{3:10}}}')
    again, _ = _table(files)
    assert again.get("T", "g", 3) == 10


def test_two_damaged_files_refuse_the_start_and_say_what_to_do() -> None:
    files = SimFiles()
    _table(files)
    files.replace(PATH, b"{")
    files.replace(f"{PATH}.bak", b"")
    with pytest.raises(CorruptRecord, match=r"remove it and its \.bak"):
        _table(files)


def test_a_file_of_rocketmq_is_read_and_odd_keys_are_passed_over() -> None:
    files = SimFiles()
    files.make_directory("/store/config")
    files.replace(PATH, b'{"offsetTable":{"T@g":{0:5,1:6},"nonsense":{0:1},"%RETRY%g@g":{0:2}}}')
    table, _ = _table(files)
    assert dict(table.of("T", "g")) == {0: 5, 1: 6}
    assert sorted(table.topics_of("g")) == ["%RETRY%g", "T"]


def test_offsets_beyond_a_log_that_a_crash_cut_are_cut_as_well() -> None:
    files = SimFiles()
    table, _ = _table(files, end=100)
    table.commit("T", "g", 0, 90, may_go_back=False)
    table.save()
    again, _ = _table(files, end=40)
    assert again.get("T", "g", 0) == 40


def test_groups_and_topics_can_be_forgotten_and_copied() -> None:
    table, _ = _table()
    for topic in ("A", "B"):
        for group in ("g", "h"):
            table.commit(topic, group, 0, 5, may_go_back=False)
    table.clone("A", "g", "copy")
    table.forget_group("g")
    table.forget_topic("B")
    assert sorted(table.pairs()) == [("A", "copy"), ("A", "h")]


# By request.


async def _commit(client: Client, offset: int, **changes: object) -> tuple[int, str | None]:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset, **changes}
    answer = await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    return answer.code, answer.remark


async def _query(client: Client, **changes: object) -> tuple[int, str | None]:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, **changes}
    answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return answer.code, answer.fields.get("offset")


def test_a_commit_is_answered_by_the_next_query(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for _ in range(5):
                await client.send("T")
            assert await _query(client) == (0, "0")  # A young queue is read from its start.
            assert await _commit(client, 3) == (0, None)
            assert await _query(client) == (0, "3")
            code, remark = await _commit(client, 99)
            assert (code, "beyond the end" in (remark or "")) == (0, True)
            assert await _query(client) == (0, "3")

    world.run(main)


def test_push_consumers_cannot_go_back_and_pull_consumers_can(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for _ in range(5):
                await client.send("T")
            await _commit(client, 4)
            wanted = (Subscription(topic="T"),)
            await client.heartbeat(ConsumerData("g", subscriptions=wanted))
            code, remark = await _commit(client, 1)
            assert (code, "kept" in (remark or "")) == (0, True)
            assert await _query(client) == (0, "4")
            await client.heartbeat(
                ConsumerData("g", ConsumeType.CONSUME_ACTIVELY, subscriptions=wanted)
            )
            await _commit(client, 1)
            assert await _query(client) == (0, "1")

    world.run(main)


def test_a_member_that_says_so_goes_back_and_a_stranger_does_not(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, world.connected("stranger") as stranger:
            for _ in range(5):
                await client.send("T")
            await _commit(client, 4)
            await client.heartbeat(ConsumerData("g", subscriptions=(Subscription(topic="T"),)))
            code, remark = await _commit(stranger, 1, reset="true")
            assert (code, "kept" in (remark or "")) == (0, True)
            assert await _query(client) == (0, "4")
            await _commit(client, 1, reset="true")
            assert await _query(client) == (0, "1")

    world.run(main)


def test_after_a_restart_a_commit_from_nobody_known_does_not_go_back_unless_it_says_so(
    world: BrokerWorld,
) -> None:
    """A member that was cut off may commit before anybody has sent a heartbeat again."""

    async def main() -> None:
        async with world.serving() as client:
            for _ in range(5):
                await client.send("T")
            await _commit(client, 4)
        async with world.serving() as client:
            code, remark = await _commit(client, 2)
            assert (code, "4 is kept" in (remark or "")) == (0, True)
            await client.pull("T", group="g", offset=2, sysFlag=1 | 4, commitOffset=2)
            assert await _query(client) == (0, "4")
            assert await _commit(client, 3, reset=True) == (0, None)
            assert await _query(client) == (0, "3")
            await world.clock.sleep_ms(RETURN_PATIENCE_MS)
            await _commit(client, 1)
            assert await _query(client) == (0, "1")

    world.run(main)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "Nothing"}, 17),
        ({"queueId": 99}, 1),
        ({"queueId": -1}, 1),
        ({"commitOffset": -5}, 1),
        ({"consumerGroup": "a/b"}, 1),
    ],
)
def test_a_commit_of_what_does_not_exist_is_refused(
    world: BrokerWorld, changes: dict[str, object], code: int
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            assert (await _commit(client, 0, **changes))[0] == code
            assert list(world.parts.offsets.pairs()) == []

    world.run(main)


def test_a_group_that_never_committed_is_told_so_where_the_start_is_gone(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            queue = world.parts.store.queues.get("T", 0)
            assert queue is not None
            queue.update_min(world.parts.store.log.appended)
            assert queue.min_offset > 0
            assert await _query(client) == (ResponseCode.QUERY_NOT_FOUND, None)
            assert await _query(client, setZeroIfNotFound=True) == (0, "0")

    world.run(main)


def test_queues_tell_their_ends_and_times(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            begun = world.clock.now_ms()
            for _ in range(3):
                await client.send("T")
                await world.clock.sleep_ms(1_000)
            queue = {"topic": "T", "queueId": 0}
            assert (await client.call(30, queue)).fields["offset"] == "3"
            assert (await client.call(31, queue)).fields["offset"] == "0"
            found = await client.call(29, {**queue, "timestamp": begun + 1_000})
            assert found.fields["offset"] == "1"
            earliest = int((await client.call(32, queue)).fields["timestamp"])
            assert begun <= earliest <= begun + 10
            for code, key, value in (
                (30, "offset", "0"),
                (31, "offset", "0"),
                (32, "timestamp", "-1"),
            ):
                nothing = await client.call(code, {"topic": "No", "queueId": 9})
                assert nothing.fields[key] == value

    world.run(main)


def test_offsets_are_saved_every_five_seconds_and_survive_a_kill(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for _ in range(5):
                await client.send("T")
            await _commit(client, 2)
            await world.clock.sleep_ms(5_100)
            await _commit(client, 3)
            killed = world.files.kill()
            cut = world.files.crash(random.Random(4))
        for files, offset in ((killed, 2), (cut, 2)):
            table = ConsumerOffsets(PATH, files, HandClock(), max_offset=lambda *_: 100)
            table.load()
            assert table.get("T", "g", 0) == offset
        # A clean end saves the rest.
        table = ConsumerOffsets(PATH, world.files, HandClock(), max_offset=lambda *_: 100)
        table.load()
        assert table.get("T", "g", 0) == 3

    world.run(main)
