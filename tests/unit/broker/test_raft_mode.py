"""A broker in a Raft group: what it is before, while and after it leads."""

from __future__ import annotations

import pytest
from broker_world import records
from fake_raft import PEERS, SETTINGS, RaftWorld
from fake_raft import raft as raft

from skylark.broker.config import BrokerConfig
from skylark.errors import ConfigError, TransportError
from skylark.model.group import Subscription
from skylark.model.queue import MessageQueue
from skylark.model.topic import RAFT_STATE_TOPIC, SCHEDULE_TOPIC
from skylark.protocol.bodies import (
    ConsumerData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionGroupConfigBody,
)
from skylark.protocol.codes import Language, RequestCode, ResponseCode
from skylark.protocol.command import Command


def topic_fields(name: str, queues: int = 4) -> dict[str, object]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
    }


def offset_fields(offset: int | None = None, group: str = "g") -> dict[str, object]:
    found: dict[str, object] = {"consumerGroup": group, "topic": "T", "queueId": 0}
    return found if offset is None else {**found, "commitOffset": offset}


# Roles.


def test_a_member_is_registered_nowhere_until_it_knows_a_leader_and_as_master_while_it_serves(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group:
            identity = raft.parts.identity
            assert identity.broker_id == -1
            group.lose("n1")
            assert (identity.broker_id, identity.leader_term) == (1, None)
            await raft.leading()
            assert (identity.broker_id, identity.leader_term) == (0, 1)
            group.lose()
            assert (identity.broker_id, identity.leader_term) == (1, None)

    raft.run(main)


def test_a_follower_sends_producers_and_operators_away_and_names_the_leader(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            group.lose("n2")
            for answer in (
                await client.send("T"),
                await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T")),
                await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1)),
                await client.call(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields()),
            ):
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert answer.remark is not None
                assert answer.remark.startswith("[NOT_LEADER]")
                assert "n2" in answer.remark

    raft.run(main)


def test_an_offset_query_of_java_is_not_answered_by_a_follower(raft: RaftWorld) -> None:
    """It takes an error for "a new group", and would skip messages; it asks again by itself."""

    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            group.lose("n2")
            fields = {key: str(value) for key, value in offset_fields().items()}
            command = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            command.language = Language.JAVA
            with pytest.raises(TransportError):
                await client.channels.call(raft.address, command, 500)

    raft.run(main)


def test_a_send_that_waits_when_leadership_is_lost_is_answered_with_an_error(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            assert (await client.send("T")).code == ResponseCode.SUCCESS
            group.is_holding = True
            sending = raft.loop.create_task(client.send("T", b"lost"))
            await raft.clock.sleep_ms(100)
            assert not sending.done()
            group.lose("n1")
            answer = await sending
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert [m.body for m in records(await client.pull("T"))] == [b"hello"]

    raft.run(main)


def test_a_send_that_the_group_does_not_agree_on_in_time_is_an_error_that_clients_retry(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member(slave_timeout=500) as group, raft.connected() as client:
            await raft.leading()
            group.is_holding = True
            answer = await client.send("T")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "busy" in (answer.remark or "")

    raft.run(main)


def test_services_begin_and_end_with_every_turn_and_leave_nothing_behind(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await client.send("T", properties={"DELAY": "1"})
            group.lose("n1")
            await raft.clock.sleep_ms(10)
            cursor = raft.parts.store.queues.table[SCHEDULE_TOPIC][0]
            before = cursor.watchers, len(raft.loop.timeline._heap) // 1_000
            for _ in range(20):
                await raft.leading()
                group.lose("n1")
                await raft.clock.sleep_ms(10)
            assert before == (cursor.watchers, len(raft.loop.timeline._heap) // 1_000)
            assert cursor.watchers == 0
            await raft.clock.sleep_ms(2_000)
            assert (await client.pull("T")).code != ResponseCode.SUCCESS
            await raft.leading()
            await raft.clock.sleep_ms(100)
            assert len(records(await client.pull("T"))) == 1

    raft.run(main)


def test_a_delivery_that_the_group_did_not_agree_on_is_made_again_by_whoever_leads_next(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await client.send("T", properties={"DELAY": "1", "UNIQ_KEY": "K1"})
            await client.send("T", properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": "K2"})
            await raft.clock.sleep_ms(200)
            group.is_holding = True
            await raft.clock.sleep_ms(2_000)
            assert raft.parts.delay.delivered_total == 1
            assert raft.parts.timers.delivered_total == 1
            group.lose("n1")
            await group.cut()
            group.is_holding = False
            await raft.leading()
            await raft.clock.sleep_ms(500)
            found = records(await client.pull("T"))
            assert sorted(m.properties["UNIQ_KEY"] for m in found) == ["K1", "K2"]

    raft.run(main)


def test_delayed_messages_are_not_delivered_twice_by_the_next_leader(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            for number in range(5):
                key = f"K{number}"
                await client.send("T", properties={"DELAY": "1", "UNIQ_KEY": key})
            await raft.clock.sleep_ms(1_500)
            for _ in range(3):
                group.lose("n1")
                await raft.leading()
                await raft.clock.sleep_ms(500)
            assert len(records(await client.pull("T"))) == 5

    raft.run(main)


def test_a_leader_that_stops_hands_over_first(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group:
            await raft.leading()
        assert group.transfers == 1

    raft.run(main)


def test_a_leader_without_room_on_its_disk_becomes_master_when_there_is_some(
    raft: RaftWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with raft.member() as group:
            store = raft.parts.store
            monkeypatch.setattr(raft.parts.retention, "look", lambda: None)
            store.is_disk_full = True
            group.lead()
            await raft.clock.sleep_ms(3_000)
            assert raft.parts.identity.broker_id == 1
            store.is_disk_full = False
            await raft.clock.sleep_ms(1_000)
            assert raft.parts.identity.broker_id == 0

    raft.run(main)


def test_a_transaction_is_ended_once_whoever_leads_and_not_by_an_end_that_was_not_agreed_on(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            half = await client.send(
                "T", b"money", properties={"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "K"}
            )
            assert half.code == ResponseCode.SUCCESS
            stored = raft.parts.store.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0)
            assert stored is not None
            entry = stored.entry(0)
            assert entry is not None
            end = {
                "producerGroup": "P",
                "tranStateTableOffset": 0,
                "commitLogOffset": entry.physical_offset,
                "commitOrRollback": 8,
                "fromTransactionCheck": False,
                "msgId": "K",
            }
            group.is_holding = True
            ending = raft.loop.create_task(client.call(RequestCode.END_TRANSACTION, end))
            await raft.clock.sleep_ms(100)
            group.lose("n1")
            assert (await ending).code != ResponseCode.SUCCESS
            await group.cut()
            assert (await client.pull("T")).code != ResponseCode.SUCCESS
            group.is_holding = False
            await raft.leading()
            assert len(raft.parts.transactions) == 1
            for _ in range(2):
                answer = await client.call(RequestCode.END_TRANSACTION, end)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert [m.body for m in records(await client.pull("T"))] == [b"money"]

    raft.run(main)


# Tables.


def test_a_topic_is_answered_and_counts_only_when_the_group_has_agreed(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            group.is_holding = True
            making = raft.loop.create_task(
                client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 8))
            )
            await raft.clock.sleep_ms(100)
            assert not making.done()
            assert raft.parts.topics.get("T") is None
            group.is_holding = False
            group.agree()
            assert (await making).code == ResponseCode.SUCCESS
            topic = raft.parts.topics.get("T")
            assert topic is not None
            assert topic.write_queue_nums == 8

    raft.run(main)


def test_a_change_whose_leader_is_lost_is_answered_with_an_error_and_never_counts(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            group.is_holding = True
            making = raft.loop.create_task(
                client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
            )
            await raft.clock.sleep_ms(100)
            group.lose("n1")
            assert (await making).code == ResponseCode.SERVICE_NOT_AVAILABLE
            await group.cut()
            group.is_holding = False
            await raft.leading()
            assert raft.parts.topics.get("T") is None

    raft.run(main)


def test_a_topic_that_the_first_message_makes_lies_before_it_in_the_log(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            group.is_holding = True
            sending = [raft.loop.create_task(client.send("T", b"%d" % n)) for n in range(3)]
            await raft.clock.sleep_ms(50)
            written = raft.parts.store.queues.table[RAFT_STATE_TOPIC][0].next_offset
            group.is_holding = False
            group.agree()
            for task in sending:
                assert (await task).code == ResponseCode.SUCCESS
            assert raft.parts.topics.get("T") is not None
            state = raft.parts.raft.state if raft.parts.raft is not None else None
            assert state is not None
            assert state.applied == written  # Made once, whoever else sent meanwhile.

    raft.run(main)


def test_an_offset_is_told_to_nobody_before_the_group_has_agreed(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            for _ in range(5):
                await client.send("T")
            assert (
                await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
            ).code == ResponseCode.SUCCESS
            group.is_holding = True
            await client.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(4))
            await raft.clock.sleep_ms(500)
            answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields())
            assert answer.fields["offset"] == "2"
            group.lose("n1")
            await group.cut()
            group.is_holding = False
            await raft.leading()
            answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields())
            assert answer.fields["offset"] == "2"

    raft.run(main)


def test_commits_of_a_moment_are_one_record(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member(), raft.connected() as client:
            await raft.leading()
            for _ in range(50):
                await client.send("T")
            await raft.clock.sleep_ms(500)
            before = raft.parts.store.max_offset(RAFT_STATE_TOPIC, 0)
            await raft.clock.sleep_ms(300)
            for offset in range(1, 50):
                await client.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(offset))
            await raft.clock.sleep_ms(500)
            answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields())
            assert answer.fields["offset"] == "49"
            # The group that committed, and its offsets.
            assert raft.parts.store.max_offset(RAFT_STATE_TOPIC, 0) <= before + 3

    raft.run(main)


def test_a_lock_is_kept_by_the_next_leader_and_free_a_lease_later(raft: RaftWorld) -> None:
    async def main() -> None:
        async with (
            raft.member() as group,
            raft.connected("one") as one,
            raft.connected("two") as two,
        ):
            await raft.leading()
            consumer = ConsumerData("g", subscriptions=(Subscription(topic="T"),))
            await one.send("T")

            async def lock(client: object, name: str) -> int:
                await client.heartbeat(consumer)  # type: ignore[attr-defined]
                body = LockBatchRequestBody(name, "g", (MessageQueue("T", "broker-a", 0),))
                answer = await client.call(  # type: ignore[attr-defined]
                    RequestCode.LOCK_BATCH_MQ, body=body.to_json()
                )
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                return len(LockBatchResponseBody.from_json(answer.body).locked)

            assert await lock(one, "one") == 1
            await raft.clock.sleep_ms(50_000)
            group.lose("n1")
            await raft.leading()
            assert await lock(two, "two") == 0
            await raft.clock.sleep_ms(59_000)
            assert await lock(two, "two") == 0
            await raft.clock.sleep_ms(2_000)
            assert await lock(two, "two") == 1
            assert await lock(one, "one") == 0

    raft.run(main)


def test_owners_and_tokens_survive_a_restart_whose_tables_are_newer_than_their_records(
    raft: RaftWorld,
) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    async def life(*, is_first: bool) -> None:
        async with raft.member(), raft.connected("one") as client:
            await raft.leading()
            if is_first:
                await client.send("T")
                body = LockBatchRequestBody("one", "g", (queue,))
                await client.call(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
            lock = raft.parts.locks.owner("g", queue)
            assert lock is not None
            assert (lock.client_id, lock.token) == ("one", 1)

    raft.run(lambda: life(is_first=True))
    raft.files = raft.files.copy()
    raft.run(lambda: life(is_first=False))


def test_a_lock_is_granted_to_nobody_before_the_group_has_agreed(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected("one") as client:
            await raft.leading()
            await client.send("T")
            group.is_holding = True
            body = LockBatchRequestBody("one", "g", (MessageQueue("T", "broker-a", 0),))
            locking = raft.loop.create_task(
                client.call(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
            )
            await raft.clock.sleep_ms(500)
            assert not locking.done()
            group.lose("n1")
            assert (await locking).code == ResponseCode.SERVICE_NOT_AVAILABLE

    raft.run(main)


def test_a_topic_is_deleted_with_its_queues_and_a_new_one_of_its_name_begins_at_zero(
    raft: RaftWorld,
) -> None:
    async def main() -> None:
        async with raft.member(), raft.connected() as client:
            await raft.leading()
            for _ in range(3):
                await client.send("T")
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
            answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert answer.code == ResponseCode.SUCCESS
            assert raft.parts.topics.get("T") is None
            assert raft.parts.offsets.get("T", "g", 0) is None
            assert (await client.send("T", b"new")).fields["queueOffset"] == "0"
            assert [m.body for m in records(await client.pull("T"))] == [b"new"]

    raft.run(main)


def test_after_a_crash_records_are_applied_again_and_younger_topics_are_spared(
    raft: RaftWorld,
) -> None:
    async def life(*, is_first: bool) -> None:
        async with raft.member() as group, raft.connected() as client:
            if is_first:
                await raft.leading()
                await client.send("T", b"old")
                await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
                await client.send("T", b"new")
                body = SubscriptionGroupConfigBody.from_json(b'{"groupName":"made"}')
                await client.call(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body.to_json()
                )
                await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
                await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Other"})
            else:
                group.store.agree(group.store.log.appended)
            assert [m.body for m in records(await client.pull("T"))] == [b"new"]
            assert raft.parts.offsets.get("T", "g", 0) == 1
            assert raft.parts.groups.get("made") is not None
            raft.files = raft.files.kill()

    raft.run(lambda: life(is_first=True))
    raft.run(lambda: life(is_first=False))


def test_a_snapshot_says_everything_to_a_member_whose_log_begins_late(raft: RaftWorld) -> None:
    async def main() -> None:
        async with raft.member() as group, raft.connected() as client:
            await raft.leading()
            await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Early", 5))
            await client.send("T")
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
            state = raft.parts.raft.state if raft.parts.raft is not None else None
            assert state is not None
            first = state.undelivered_from()
            while state.undelivered_from() == first:
                await client.send("T", bytes(8_000))
                await raft.clock.sleep_ms(150)
            at = state.undelivered_from()
            assert at is not None
            # Another member forgets all it knew, and reads from the snapshot on.
            queue = raft.parts.store.queues.get(RAFT_STATE_TOPIC, 0)
            assert queue is not None
            group.lose("n1")
            tables = raft.parts.topics, raft.parts.groups, raft.parts.offsets
            known = [table.body() for table in tables]
            raft.parts.topics._topics.clear()
            raft.parts.offsets._table.clear()
            state.applied = next(
                offset
                for offset in range(queue.min_offset, queue.max_offset)
                if queue.entry(offset).physical_offset >= at  # type: ignore[union-attr]
            )
            state.apply_new()
            assert known == [table.body() for table in tables]

    raft.run(main)


def test_a_snapshot_finds_its_moment_where_some_change_is_always_on_its_way(
    raft: RaftWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with raft.member(), raft.connected() as client:
            await raft.leading()
            await client.send("T")
            await raft.clock.sleep_ms(500)
            state = raft.parts.raft.state if raft.parts.raft is not None else None
            assert state is not None
            first = state.undelivered_from()
            # No look at a regular time finds nothing on its way.
            monkeypatch.setattr("skylark.broker.state_log.GATHER_MS", 3_600_000)
            await raft.clock.sleep_ms(200)
            while raft.parts.store.log.appended < 80 << 10:
                await client.send("T", bytes(8_000))
            assert state.undelivered_from() == first
            state._is_due = True
            await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 9))
            await raft.clock.sleep_ms(50)
            assert state.undelivered_from() != first

    raft.run(main)


# Settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"d_leger_peers": ""}, "needs dLegerPeers"),
        ({"d_leger_peers": "n0-h:1;x"}, "'x' is not id-host:port"),
        ({"d_leger_peers": "n0-h:1;n1-h:99999"}, "is not id-host:port"),
        ({"d_leger_peers": "n0-h:1;n0-i:1"}, "two members have the number 0"),
        ({"d_leger_peers": "n0-h:1;n1-h:1"}, "two members have the address h:1"),
        ({"d_leger_self_id": "n7"}, "dLegerSelfId=n7: set it to one of the ids"),
        ({"d_leger_self_id": ""}, "dLegerSelfId is not set"),
        ({"preferred_leader_id": "n9"}, "preferredLeaderId=n9"),
        ({"listen_port": 40911}, "is what clients connect to"),
        ({"raft_election_timeout_ms": 300}, "three times"),
        ({"d_leger_group": "a b"}, "dLegerGroup=a b"),
        ({"broker_name": ""}, "needs brokerName"),
    ],
)
def test_settings_of_a_group_that_cannot_work_are_refused_with_the_next_step(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**{**SETTINGS, **settings})
    assert words in str(caught.value)


def test_settings_that_the_group_overrules_and_even_numbers_are_warned_of() -> None:
    config = BrokerConfig(
        **{**SETTINGS, "broker_role": "SLAVE", "broker_id": 3, "d_leger_peers": f"{PEERS};n3-h:1"}
    )
    warnings = " ".join(config.raft_warnings())
    assert "brokerRole" in warnings
    assert "brokerId" in warnings
    assert "4 members" in warnings
    assert config.store_config().is_sync_flush
    assert BrokerConfig(**SETTINGS).raft_warnings() == []
