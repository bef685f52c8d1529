"""Growing, shrinking and restarting a cluster under traffic."""

from __future__ import annotations

import asyncio

import pytest
from fleet_world import TOPIC, Fleet, Traffic

from skylark.admin import Planned, Step
from skylark.client.transactions import TransactionState
from skylark.errors import BrokerError, ClientError
from skylark.model.message import Message

PAIR = {"broker_role": "SYNC_MASTER", "flush_disk_type": "ASYNC_FLUSH"}
SLAVE = {"broker_role": "SLAVE", "broker_id": 1, "flush_disk_type": "ASYNC_FLUSH"}


def pair_and_one(fleet: Fleet) -> None:
    """A SYNC_MASTER with its replica, and a master alone."""
    fleet.add("a-0", "broker-a", **PAIR)
    fleet.add("a-1", "broker-a", **SLAVE)
    fleet.add("b-0", "broker-b")


def test_twenty_restarts_in_turn_fail_no_send_and_lose_nothing() -> None:
    """I34: a pair and a master alone, seven rounds, under traffic."""
    with Fleet(1) as fleet:
        pair_and_one(fleet)

        async def scenario() -> None:
            await fleet.serving()
            traffic = Traffic(fleet, 600)
            async with fleet.admin() as admin:
                await admin.create_topic(TOPIC, read_queues=2, write_queues=2)
                async with traffic.flowing("readers"):
                    restarts = 0
                    for _ in range(7):
                        async for event in admin.rolling_restart(fleet.restart):
                            restarts += event.step is Step.BACK
                assert restarts == 21
                traffic.check()
                assert set(traffic.statuses) == {"SEND_OK"}
                assert (await admin.cluster_status()).problems == ()

        fleet.run(scenario)


def test_a_producer_that_sends_rarely_always_knows_a_broker_that_is_there() -> None:
    """It may have asked for routes while the first broker was away, and know the next only."""
    with Fleet(7) as fleet:
        for name in ("broker-a", "broker-b"):
            fleet.add(name, name, stop_grace_ms=4_000)

        async def scenario() -> None:
            await fleet.serving()
            traffic = Traffic(fleet, *range(9_000, 12_000, 500))
            async with fleet.admin() as admin:
                await admin.create_topic(TOPIC, read_queues=1, write_queues=1)
                async with traffic.flowing("readers"):
                    for _ in range(3):
                        async for _ in admin.rolling_restart(fleet.restart):
                            pass
                traffic.check()

        fleet.run(scenario)


def test_name_servers_are_restarted_in_turn_and_no_send_fails() -> None:
    """N2, I38: a name server that comes back knows nobody, and is told within seconds."""
    with Fleet(10) as fleet:
        for name in ("broker-a", "broker-b"):
            fleet.add(name, name)

        async def scenario() -> None:
            await fleet.serving()
            traffic = Traffic(fleet, 300)
            async with fleet.admin() as admin:
                await admin.create_topic(TOPIC, read_queues=2, write_queues=2)
                async with traffic.flowing("readers"):
                    for turn in range(10):
                        await fleet.cluster.nodes[f"ns-{turn % 2 + 1}"].restart()
                        await fleet.clock.sleep_ms(4_000)
                        # Far less than a heartbeat, and everybody is known again.
                        assert (await admin.cluster_status()).problems == ()
                        async with fleet.client() as client, client.producer("New") as producer:
                            receipt = await producer.send(Message(TOPIC, b"new-%d" % turn))
                            traffic.sent[b"new-%d" % turn] = receipt.queue.broker_name
                traffic.check()

        fleet.run(scenario)


def test_a_broker_is_added_and_another_drained_and_stopped_under_traffic() -> None:
    """AD-02, AD-04: three brokers for a while, then two others than at the beginning."""
    with Fleet(2) as fleet:
        fleet.add("a-0", "broker-a")
        fleet.add("b-0", "broker-b")

        async def scenario() -> None:
            await fleet.serving()
            traffic = Traffic(fleet, 200)
            async with fleet.admin() as admin:
                await admin.create_topic(TOPIC, read_queues=4, write_queues=4)
                async with traffic.flowing("readers", "auditors"):
                    await fleet.clock.sleep_ms(5_000)
                    fleet.add("c-0", "broker-c")
                    await fleet.serving()
                    await fleet.clock.sleep_ms(31_000)
                    # AD-03: by itself it has nothing of what was there.
                    assert [p.broker for p in (await admin.topic(TOPIC)).places] == [
                        "broker-a",
                        "broker-b",
                    ]
                    plan = await admin.plan_growth("broker-c")
                    assert {group.group.group_name for group in plan.groups} >= traffic.seen.keys()
                    (grown,) = await admin.grow(plan)
                    assert (grown.queues_before, grown.queues_after) == (8, 12)
                    await fleet.clock.sleep_ms(31_000)
                    at = len(traffic.sent)
                    await fleet.clock.sleep_ms(3_000)
                    assert traffic.brokers_since(at) == {"broker-a", "broker-b", "broker-c"}
                    async for progress in admin.drain("broker-a"):
                        last = progress
                    assert last.is_done
                    at = len(traffic.sent)
                    await fleet.cluster.nodes["a-0"].stop()
                    await fleet.clock.sleep_ms(40_000)
                    assert traffic.brokers_since(at) == {"broker-b", "broker-c"}
                traffic.check()
                assert set(traffic.statuses) == {"SEND_OK"}
                assert (await admin.cluster_status()).problems == ()

        fleet.run(scenario)


def test_a_drained_broker_stays_so_over_restarts_until_it_is_undone() -> None:
    with Fleet(3) as fleet:
        fleet.add("a-0", "broker-a")
        fleet.add("b-0", "broker-b")

        async def scenario() -> None:
            await fleet.serving()
            async with fleet.admin() as admin:
                await admin.create_topic(TOPIC, read_queues=2, write_queues=2)
                await admin.create_topic("ReadOnly", perm=4, read_queues=2, write_queues=2)
                async for progress in admin.drain("broker-a", settle_ms=0):
                    assert progress.notes == ()
                for restarts in (0, 1):
                    if restarts:
                        await fleet.cluster.nodes["a-0"].restart()
                        await fleet.serving()
                    perms = {p.broker: p.perm for p in (await admin.topic(TOPIC)).places}
                    assert perms == {"broker-a": 4, "broker-b": 6}
                    assert not (await admin.cluster_status()).group("broker-a").is_writable
                with pytest.raises(ClientError, match="last broker that takes messages for Orders"):
                    async for _ in admin.drain("broker-b"):
                        pass
                await admin.undrain("broker-a")
                assert {p.perm for p in (await admin.topic(TOPIC)).places} == {6}
                assert {p.perm for p in (await admin.topic("ReadOnly")).places} == {4}

        fleet.run(scenario)


def test_a_drain_waits_for_readers_and_for_delayed_and_retried_messages() -> None:
    with Fleet(4) as fleet:
        fleet.add("a-0", "broker-a")
        fleet.add("b-0", "broker-b")

        async def scenario() -> None:
            await fleet.serving()
            seen: list[bytes] = []

            async def handle(message: object) -> None:
                body = message.body  # type: ignore[attr-defined]
                if body == b"again" and message.reconsume_times == 0:  # type: ignore[attr-defined]
                    raise RuntimeError("once more, please")
                seen.append(body)

            async with fleet.admin() as admin, fleet.client() as client:
                await admin.create_topic(TOPIC, broker="broker-a", read_queues=1, write_queues=1)
                async with client.producer("P") as producer:
                    await producer.send(Message(TOPIC, b"again"))
                    await producer.send(Message(TOPIC, b"later", delay_level=5))  # One minute.
                await admin.create_topic(TOPIC, broker="broker-b", read_queues=1, write_queues=1)
                waited = []

                async def drain() -> None:
                    async for progress in admin.drain("broker-a", settle_ms=2_000):
                        waited.append(progress)

                draining = asyncio.create_task(drain())
                await fleet.clock.sleep_ms(10_000)
                # Nobody reads yet, and no group is known: only the delayed message holds it.
                assert (waited[-1].delayed, waited[-1].unread) == (1, ())
                async with client.consumer("readers", {TOPIC: "*"}, handle, consume_from="first"):
                    await fleet.clock.sleep_ms(30_000)
                    assert not draining.done()
                    await asyncio.wait_for(draining, 300)
                assert sorted(seen) == [b"again", b"later"]
                assert waited[-1].is_done

        fleet.run(scenario)


def test_with_a_registration_key_only_who_has_it_is_believed() -> None:
    """S20: a fake broker is not shown to clients, and a stranger takes nobody's writes away."""
    key = "the key of this cluster"
    with Fleet(5, registration_key=key) as fleet:
        fleet.add("a-0", "broker-a", registration_key=key)
        fleet.add("b-0", "broker-b", registration_key=key)
        fleet.add("x-0", "broker-a")
        fleet.add("y-0", "broker-y", registration_key="the key of another cluster")

        async def scenario() -> None:
            await fleet.serving()
            async with fleet.admin() as stranger:
                brokers = await stranger.brokers()
                assert {data.broker_name for data in brokers} == {"broker-a", "broker-b"}
                assert {data.master_address for data in brokers} == {
                    "10.1.0.1:10911",
                    "10.1.0.2:10911",
                }
                await stranger.create_topic(TOPIC, read_queues=1, write_queues=1)
                with pytest.raises(BrokerError, match="SKYLARK_REGISTRATION_KEY"):
                    await stranger._name_servers.wipe_write_perm("broker-a")
            async with fleet.admin(registration_key="not the key of this one") as stranger:
                with pytest.raises(BrokerError, match="no proof"):
                    await stranger._name_servers.wipe_write_perm("broker-a")
            async with fleet.admin(registration_key=key) as admin:
                async for _ in admin.drain("broker-a", settle_ms=0):
                    pass
                await admin.undrain("broker-a")
                # Whoever has the key is back at once after a name server was away.
                for name in ("ns-1", "ns-2"):
                    await fleet.cluster.nodes[name].restart()
                    await fleet.clock.sleep_ms(3_000)
                    status = await admin.cluster_status()
                    assert [group.name for group in status.groups] == ["broker-a", "broker-b"]
                    assert status.problems == ()
                # A new topic is announced oneway, with a proof as well.
                async with fleet.client() as client, client.producer("P") as producer:
                    await producer.send(Message("Fresh", b"1"))
                await fleet.clock.sleep_ms(100)
                assert (await admin.topic("Fresh")).places
                await fleet.clock.sleep_ms(200_000)  # Heartbeats go on being believed.
                assert (await admin.cluster_status()).problems == ()

        fleet.run(scenario)


def test_a_raft_group_is_restarted_in_turn_and_drained_under_traffic() -> None:
    """The group of three goes on with two, whoever leads; a drain holds over a change of leader."""
    peers = ";".join(f"n{n}-10.1.0.{n + 1}:40911" for n in range(3))
    with Fleet(6) as fleet:
        for number in range(3):
            fleet.add(
                f"r-{number}", "broker-r", enable_d_leger_commit_log=True, d_leger_peers=peers,
                d_leger_self_id=f"n{number}",
            )  # fmt: skip
        fleet.add("b-0", "broker-b")

        async def scenario() -> None:
            await fleet.serving()
            traffic = Traffic(fleet, 600)
            async with fleet.admin() as admin:
                await fleet.clock.sleep_ms(2_000)
                await admin.create_topic(TOPIC, read_queues=2, write_queues=2)
                status = await admin.cluster_status()
                group = status.group("broker-r")
                assert (status.problems, group.is_raft, len(group.members)) == ((), True, 3)
                leaders = {member.raft.leader for member in group.members}
                assert len(leaders) == 1
                assert "" not in leaders
                async with traffic.flowing("readers"):
                    restarted = [
                        event.address
                        async for event in admin.rolling_restart(fleet.restart, broker="broker-r")
                        if event.step is Step.CAUGHT_UP
                    ]
                    assert sorted(restarted) == [f"10.1.0.{n}:10911" for n in (1, 2, 3)]
                    await fleet.clock.sleep_ms(35_000)
                    async for progress in admin.drain("broker-r"):
                        assert progress.notes == ()
                    group = (await admin.cluster_status()).group("broker-r")
                    assert group.master is not None
                    await fleet.machine_at(group.master.address).restart()
                    await fleet.serving()
                    await fleet.clock.sleep_ms(3_000)
                    assert not (await admin.cluster_status()).group("broker-r").is_writable
                    assert {
                        place.broker: place.perm for place in (await admin.topic(TOPIC)).places
                    } == {"broker-r": 4, "broker-b": 6}
                traffic.check()
                # Two of three are enough, and not to be touched.
                fleet.cluster.nodes["r-1"].crash()
                await fleet.clock.sleep_ms(5_000)
                checks = await admin.check_restart("broker-r")
                assert all(check.obstacles for check in checks)

        fleet.run(scenario)


class Undecided:
    """A local transaction of which nobody knows how it ended."""

    def execute(self, message: object, argument: object, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: object) -> TransactionState:
        return TransactionState.UNKNOWN


def test_a_drain_names_half_messages_and_groups_that_are_away() -> None:
    with Fleet(8) as fleet:
        fleet.add("a-0", "broker-a")

        async def scenario() -> None:
            await fleet.serving()
            async with fleet.admin() as admin, fleet.client() as client:
                await admin.create_topic(TOPIC, read_queues=1, write_queues=1)
                async with client.consumer("away", {TOPIC: "*"}, consume_from="first"):
                    await fleet.clock.sleep_ms(6_000)
                async with client.transactional_producer("P", Undecided()) as producer:
                    await producer.send(Message(TOPIC, b"1"))
                    await producer.send_in_transaction(Message(TOPIC, b"2"))
                fleet.add("b-0", "broker-b")
                await fleet.serving()
                await admin.grow(await admin.plan_growth("broker-b"))
                waited = []

                async def drain(*ignored: str) -> None:
                    async for progress in admin.drain(
                        "broker-a", settle_ms=0, ignore_groups=ignored
                    ):
                        waited.append(progress)

                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(drain(), 20)
                (unread,) = waited[-1].unread
                assert (unread.group, unread.messages, unread.members) == ("away", 1, 0)
                assert waited[-1].half_messages == 1
                # Repeated, and without the group: the half message alone holds it.
                draining = asyncio.create_task(drain("away"))
                await fleet.clock.sleep_ms(3_000)
                assert (waited[-1].unread, waited[-1].half_messages) == ((), 1)
                (pending,) = await admin.transactions()
                await admin.resolve_transaction(pending.offset_id, commits=False)
                await asyncio.wait_for(draining, 10)
                assert waited[-1].is_done

        fleet.run(scenario)


def test_ordered_topics_are_left_alone_unless_they_are_meant() -> None:
    with Fleet(9) as fleet:
        for name in ("broker-a", "broker-b", "broker-c"):
            fleet.add(name, name)

        async def scenario() -> None:
            await fleet.serving()
            async with fleet.admin() as admin:
                for name in ("broker-a", "broker-b"):
                    await admin.create_topic(TOPIC, broker=name, read_queues=2, write_queues=2)
                for server in admin._name_servers.each():
                    await server.put_kv("ORDER_TOPIC_CONFIG", TOPIC, "broker-a:2;broker-b:2")
                plan = await admin.plan_growth("broker-c")
                assert [topic.state for topic in plan.topics] == [Planned.ORDERED]
                (grown,) = await admin.grow(plan)
                assert grown.brokers == ("broker-a", "broker-b")
                await admin.grow(await admin.plan_growth("broker-c", order_topics=True))
                shown = await admin.topic(TOPIC)
                assert shown.order_conf == "broker-a:2;broker-b:2;broker-c:2"
                assert len(shown.places) == 3
                with pytest.raises(ClientError, match="queues of ordered topics: Orders"):
                    await admin.check_drain("broker-a")
                async for _ in admin.drain("broker-a", order_topics=True, settle_ms=0):
                    pass
                assert (await admin.topic(TOPIC)).order_conf == "broker-b:2;broker-c:2"

        fleet.run(scenario)
