"""Queue locks: one owner at a time, by lease, and late owners are fenced off."""

from __future__ import annotations

from broker_world import BrokerWorld, Client

from skylark.broker.locks import QueueLocks
from skylark.model.group import Subscription
from skylark.model.queue import MessageQueue
from skylark.protocol.bodies import ConsumerData, LockBatchRequestBody, LockBatchResponseBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing.stores import HandClock

Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


def _locks() -> tuple[QueueLocks, HandClock]:
    clock = HandClock()
    return QueueLocks(clock, lease_ms=lambda: 60_000), clock


def test_a_queue_has_one_owner_and_the_others_wait_for_the_lease_to_end() -> None:
    locks, clock = _locks()
    assert locks.lock("g", "one", [Q0, Q1]) == (Q0, Q1)
    assert locks.lock("g", "two", [Q0]) == ()
    clock.advance_ms(59_999)
    assert locks.lock("g", "two", [Q0]) == ()
    clock.advance_ms(1)
    assert locks.lock("g", "two", [Q0]) == (Q0,)
    assert locks.lock("g", "one", [Q0, Q1]) == (Q1,)


def test_an_owner_renews_its_lease_and_another_group_has_its_own() -> None:
    locks, clock = _locks()
    locks.lock("g", "one", [Q0])
    for _ in range(10):
        clock.advance_ms(20_000)
        assert locks.lock("g", "one", [Q0]) == (Q0,)
    assert locks.lock("h", "two", [Q0]) == (Q0,)


def test_each_new_owner_has_a_larger_token_and_a_renewal_keeps_it() -> None:
    locks, clock = _locks()
    locks.lock("g", "one", [Q0])
    first = locks.owner("g", Q0)
    assert first is not None
    locks.lock("g", "one", [Q0])
    renewed = locks.owner("g", Q0)
    assert renewed is not None
    assert renewed.token == first.token
    clock.advance_ms(60_000)
    assert locks.owner("g", Q0) is None
    locks.lock("g", "one", [Q0])
    again = locks.owner("g", Q0)
    assert again is not None
    assert again.token > first.token


def test_only_the_owner_can_unlock() -> None:
    locks, _ = _locks()
    locks.lock("g", "one", [Q0])
    assert locks.unlock("g", "two", [Q0]) == 0
    assert locks.lock("g", "two", [Q0]) == ()
    assert locks.unlock("g", "one", [Q0]) == 1
    assert locks.lock("g", "two", [Q0]) == (Q0,)


def test_expired_locks_are_forgotten() -> None:
    locks, clock = _locks()
    locks.lock("g", "one", [Q0])
    clock.advance_ms(60_000)
    locks.drop_expired()
    assert locks.owned() == {}
    assert locks._locks == {}


# By request.


async def _lock(
    client: Client, client_id: str, *queues: MessageQueue, code: int = RequestCode.LOCK_BATCH_MQ
) -> tuple[MessageQueue, ...] | int:
    body = LockBatchRequestBody(client_id, "g", queues).to_json()
    answer = await client.call(code, body=body)
    if answer.code != 0:
        return answer.code
    if code == RequestCode.UNLOCK_BATCH_MQ:
        return ()
    return LockBatchResponseBody.from_json(answer.body).locked


def test_members_lock_and_unlock_queues_that_exist_here(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            await one.send("T")
            for client in (one, two):
                await client.heartbeat(ConsumerData("g", subscriptions=(Subscription(topic="T"),)))
            elsewhere = MessageQueue("T", "broker-b", 0)
            beyond = MessageQueue("T", "broker-a", 4)
            unknown = MessageQueue("Nothing", "broker-a", 0)
            assert await _lock(one, "client-1", Q0, elsewhere, beyond, unknown) == (Q0,)
            assert await _lock(two, "client-2", Q0, Q1) == (Q1,)
            unlock = RequestCode.UNLOCK_BATCH_MQ
            assert await _lock(two, "client-2", Q0, code=unlock) == ()
            assert await _lock(two, "client-2", Q0) == ()
            await _lock(one, "client-1", Q0, code=unlock)
            assert await _lock(two, "client-2", Q0) == (Q0,)

    world.run(main)


def test_nobody_locks_or_unlocks_in_the_name_of_another(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            await one.send("T")
            for client in (one, two):
                await client.heartbeat(ConsumerData("g", subscriptions=(Subscription(topic="T"),)))
            await _lock(one, "client-1", Q0)
            no = ResponseCode.NO_PERMISSION
            assert await _lock(two, "client-1", Q0) == no
            assert await _lock(two, "client-1", Q0, code=RequestCode.UNLOCK_BATCH_MQ) == no
            async with world.connected("stranger") as stranger:
                assert await _lock(stranger, "stranger", Q1) == no
            assert await _lock(two, "client-2", Q0) == ()

    world.run(main)


def test_after_a_restart_members_can_lock_before_their_next_heartbeat(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            assert await _lock(client, "client-1", Q0) == (Q0,)

    world.run(main)


def test_the_late_commit_of_a_former_owner_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            for _ in range(5):
                await one.send("T")
            data = ConsumerData("g", subscriptions=(Subscription(topic="T"),))
            await one.heartbeat(data)
            await two.heartbeat(data)
            commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
            await _lock(one, "client-1", Q0)
            assert (await one.call(15, commit)).code == 0
            await world.clock.sleep_ms(60_000)  # Its lease ends; it was held up somewhere.
            await two.heartbeat(data)
            await one.heartbeat(data)
            assert await _lock(two, "client-2", Q0) == (Q0,)
            late = await one.call(15, {**commit, "commitOffset": 3})
            assert late.code == ResponseCode.NO_PERMISSION
            assert world.parts.offsets.get("T", "g", 0) == 1
            assert (await two.call(15, {**commit, "commitOffset": 2})).code == 0

    world.run(main)
