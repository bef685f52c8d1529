"""Flow control: sends are refused with the cause, and taken again when it is over."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing import SimLoop, SimNetwork
from skylark.testing.clock import SimClock
from skylark.testing.files import SimFiles

SYNC: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"}


@pytest.fixture
def slow() -> Iterator[BrokerWorld]:
    """A world whose disk takes as long as the test says."""
    world = BrokerWorld()
    world.loop.close()
    latency_us: list[int] = [0]
    world.loop = SimLoop(executor_latency_us=lambda: latency_us[0])
    world.network = SimNetwork(world.loop, random.Random(1), config=world.network.config)
    world.server, world.client = world.network.host("10.0.0.1"), world.network.host("10.0.0.2")
    world.clock = SimClock(world.loop)
    world.files = SimFiles(now_ms=world.clock.now_ms)
    world.disk_latency_us = latency_us  # type: ignore[attr-defined]
    yield world
    world.loop.close()


def _set_latency(world: BrokerWorld, latency_ms: int) -> None:
    world.disk_latency_us[0] = latency_ms * 1_000  # type: ignore[attr-defined]


def test_a_flush_that_takes_too_long_is_answered_as_such_and_the_message_is_there(
    slow: BrokerWorld,
) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC, sync_flush_timeout=2_000) as client:
            await client.send("T", b"first")
            _set_latency(slow, 3_000)
            begun = slow.clock.monotonic_ms()
            answer = await client.send("T", b"slow")
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert answer.fields["queueOffset"] == "1"
            assert 2_000 <= slow.clock.monotonic_ms() - begun <= 2_010
            _set_latency(slow, 0)
            await slow.clock.sleep_ms(3_000)
            found = records(await client.pull("T"))
            assert [message.body for message in found] == [b"first", b"slow"]
            assert slow.parts.flow.waiting == 0

    slow.run(main)


def test_while_the_disk_hangs_further_sends_are_refused_with_the_cause(slow: BrokerWorld) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC) as client:
            await client.send("T")
            _set_latency(slow, 3_000)
            hanging = asyncio.create_task(client.send("T", b"hangs"))
            await slow.clock.sleep_ms(500)
            also = asyncio.create_task(client.send("T", b"waits"))
            await slow.clock.sleep_ms(600)
            refused = await client.send("T")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert (refused.remark or "").startswith("[PCBUSY_CLEAN_QUEUE]broker busy")
            assert "not flushed for 1" in (refused.remark or "")
            assert slow.parts.flow.counts == {"PCBUSY_CLEAN_QUEUE": 1}
            _set_latency(slow, 0)
            assert (await hanging).code == 0
            assert (await also).code == 0
            assert (await client.send("T")).code == 0

    slow.run(main)


def test_more_sends_than_may_wait_are_refused(slow: BrokerWorld) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC, waiting_sends_max=3) as client:
            await client.send("T")
            _set_latency(slow, 500)
            waiting = []
            for _ in range(3):
                waiting.append(asyncio.create_task(client.send("T")))
                await slow.clock.sleep_ms(5)
            refused = await client.send("T")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "[OVERLOAD]" in (refused.remark or "")
            assert {answer.code for answer in await asyncio.gather(*waiting)} == {0}

    slow.run(main)


def test_flow_control_can_be_switched_off(slow: BrokerWorld) -> None:
    async def main() -> None:
        settings = {**SYNC, "broker_fast_failure_enable": False, "waiting_sends_max": 1}
        async with slow.serving(**settings) as client:
            await client.send("T")
            _set_latency(slow, 500)
            answers = await asyncio.gather(*(client.send("T") for _ in range(4)))
            assert {answer.code for answer in answers} == {0}

    slow.run(main)


def test_a_sender_that_hangs_up_while_it_waits_is_not_counted_any_more(slow: BrokerWorld) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC) as client:
            await client.send("T")
            _set_latency(slow, 500)
            async with slow.connected("brief") as brief:
                waiting = asyncio.create_task(brief.send("T"))
                await slow.clock.sleep_ms(50)
                assert slow.parts.flow.waiting == 1
                waiting.cancel()
            await slow.clock.sleep_ms(50)
            assert slow.parts.flow.waiting == 0
            # It was stored all the same.
            await slow.clock.sleep_ms(1_000)
            assert len(records(await client.pull("T"))) == 2

    slow.run(main)


def test_many_senders_share_one_flush(slow: BrokerWorld) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC) as client:
            await client.send("T")
            _set_latency(slow, 50)
            before = slow.parts.flusher.figures.flush_count
            answers = await asyncio.gather(*(client.send("T") for _ in range(64)))
            assert {answer.code for answer in answers} == {0}
            assert slow.parts.flusher.figures.flush_count - before <= 3

    slow.run(main)


# Power cuts.


async def _all_of(client: Client) -> list[bytes]:
    """Every body of the first queue."""
    found: list[bytes] = []
    while (page := await client.pull("T", offset=len(found))).code == 0:
        found += [message.body for message in records(page)]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_what_was_acknowledged_survives_a_power_cut_and_offsets_stay_within(seed: int) -> None:
    rng = random.Random(seed)
    world = BrokerWorld()
    acknowledged: list[bytes] = []
    committed = 0

    async def main() -> None:
        nonlocal committed
        for boot in range(3):
            async with world.serving(**SYNC) as client:
                found = await _all_of(client)
                assert [body for body in found if body in set(acknowledged)] == acknowledged
                offset = world.parts.offsets.get("T", "g", 0)
                assert (offset or 0) <= len(found)
                for number in range(rng.randrange(5, 40)):
                    body = b"%d/%d" % (boot, number)
                    if (await client.send("T", body)).code == 0:
                        acknowledged.append(body)
                    if rng.random() < 0.3:
                        committed = len(found) + number
                        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0}
                        commit = {**fields, "commitOffset": committed}
                        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
                    await world.clock.sleep_ms(rng.randrange(0, 800))
                after = world.files.crash(rng)
            world.files = after

    world.run(main)
    world.loop.close()
    assert len(acknowledged) > 10


# Sends that wait their turn.


def test_a_send_that_waited_too_long_for_its_turn_is_refused(slow: BrokerWorld) -> None:
    async def main() -> None:
        settings = {**SYNC, "in_flight_max": 4, "wait_time_mills_in_send_queue": 200}
        async with slow.serving(**settings) as client:
            await client.send("T")
            _set_latency(slow, 300)
            sends = [asyncio.create_task(client.send("T", b"%d" % n)) for n in range(12)]
            answers = await asyncio.gather(*sends)
            # Four are under way; the others wait for them, and that is longer than they may.
            codes = [answer.code for answer in answers]
            assert codes[:4] == [0] * 4
            assert set(codes[4:]) == {ResponseCode.SYSTEM_BUSY}
            remark = answers[-1].remark or ""
            assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")
            assert re.search(r"period in queue: (299|3\d\d)ms", remark)
            _set_latency(slow, 0)
            assert (await client.send("T")).code == 0

    slow.run(main)


def test_a_send_that_waited_a_little_is_taken(slow: BrokerWorld) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC, in_flight_max=4) as client:
            await client.send("T")
            _set_latency(slow, 40)
            answers = await asyncio.gather(*(client.send("T") for _ in range(12)))
            assert {answer.code for answer in answers} == {0}

    slow.run(main)


def test_the_smallest_transient_pool_never_runs_short(world: BrokerWorld) -> None:
    async def main() -> None:
        settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 1}
        async with world.serving(**settings, commit_interval_commit_log=5_000) as client:
            # A full buffer is written out before the next file begins, so one is always enough.
            bodies = [b"%04d" % number + bytes(8_000) for number in range(32)]
            answers = [await client.send("T", body) for body in bodies]
            assert {answer.code for answer in answers} == {0}
            assert len(world.parts.store.log.mapped) > 3
            await world.clock.sleep_ms(6_000)
            found = await _all_of(client)
            assert found == bodies
            assert world.parts.flow.counts == {}

    world.run(main)


# Senders that do not want to wait.


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_message_that_need_not_wait_is_answered_before_the_disk_has_it(
    slow: BrokerWorld, code: int
) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC) as client:
            await client.send("T")
            _set_latency(slow, 300)
            began = slow.clock.monotonic_ms()
            answer = await client.send("T", b"quick", properties={"WAIT": "false"})
            assert answer.code == ResponseCode.SUCCESS
            assert slow.clock.monotonic_ms() - began < 10
            # Nobody sees it before it is safe.
            assert (await client.pull("T", offset=1)).code == ResponseCode.PULL_NOT_FOUND
            assert (await client.send("T", b"waits")).code == ResponseCode.SUCCESS
            assert slow.clock.monotonic_ms() - began >= 300
            found = records(await client.pull("T", offset=1))
            assert [message.body for message in found] == [b"quick", b"waits"]
            assert "WAIT" not in found[0].properties

    slow.run(main)
