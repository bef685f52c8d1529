"""How long sends waited: the longest, the shares, the percentiles."""

from __future__ import annotations

import json

from broker_world import BrokerWorld
from test_flow import SYNC, _set_latency, slow  # noqa: F401 - a fixture

from skylark.broker.put_times import GENERATION_MS, PutTimes
from skylark.protocol.codes import RequestCode


def test_sends_that_never_waited_took_no_time() -> None:
    times = PutTimes(0)
    assert (times.longest_ms, times.percentile_ms(0.99, 1_000_000)) == (0, 0)
    assert times.shares(1_000_000).startswith("[<=0ms]:1000000 [0~10ms]:0 ")


def test_a_percentile_counts_those_that_did_not_wait() -> None:
    times = PutTimes(0)
    times.waited(5, 80)  # Of 1,000: half of a per cent.
    times.waited(1, 900)
    assert times.percentile_ms(0.99, 1_000) == 0
    assert times.percentile_ms(0.995, 1_000) == 89  # The step that 80 ms lie in.
    assert times.percentile_ms(0.999, 1_000) == 89
    assert times.percentile_ms(1.0, 1_000) == 900 == times.longest_ms
    assert "[50~100ms]:5" in times.shares(1_000)
    assert "[500ms~1s]:1" in times.shares(1_000)
    assert times.shares(1_000).startswith("[<=0ms]:994 ")


def test_old_waits_leave_the_percentile_after_two_minutes_and_stay_in_the_shares() -> None:
    times = PutTimes(0)
    times.waited(10, 400)
    assert times.percentile_ms(0.99, 10) == 400
    times.turn(10, GENERATION_MS)
    assert times.percentile_ms(0.99, 11) == 400
    times.turn(20, 2 * GENERATION_MS)
    assert times.percentile_ms(0.99, 30) == 0
    assert "[200~500ms]:10" in times.shares(30)
    assert times.longest_ms == 400


def test_an_operator_sees_how_long_a_slow_disk_makes_senders_wait(
    slow: BrokerWorld,  # noqa: F811
) -> None:
    async def main() -> None:
        async with slow.serving(**SYNC) as client:
            _set_latency(slow, 120)
            for _ in range(5):
                assert (await client.send("T")).code == 0
            answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(bytes(answer.body))["table"]
            assert 120 <= int(table["putMessageEntireTimeMax"]) <= 250
            assert 120 <= float(table["putLatency99"]) <= 250
            assert "[100~200ms]:5" in table["putMessageDistributeTime"]

    slow.run(main)


def test_without_a_wait_for_the_disk_they_read_zero(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(bytes(answer.body))["table"]
            assert (table["putMessageEntireTimeMax"], table["putLatency99"]) == ("0", "0.00")
            assert table["putMessageDistributeTime"].startswith("[<=0ms]:1 ")

    world.run(main)
