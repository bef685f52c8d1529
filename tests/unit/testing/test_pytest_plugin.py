"""The fixtures that users get: a real broker, hours in a moment, faults at a call."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from skylark import Message, ReceivedMessage, SendStatus, ToDlq, sync
from skylark.errors import ClientError, ConfigError, NoRoute
from skylark.testing import (
    DiskBroker,
    MemoryBroker,
    MemoryCluster,
    SimulationError,
    pytest_plugin,
)

# The fixtures as a module of tests sees them; users get them from the plugin's entry point.
skylark_broker = pytest_plugin.skylark_broker
skylark_cluster = pytest_plugin.skylark_cluster
skylark_disk = pytest_plugin.skylark_disk

MakeCluster = Callable[..., MemoryCluster]

LADDER_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


@pytest.fixture
def quick() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


def test_a_message_goes_round_in_virtual_time(skylark_broker: MemoryBroker) -> None:
    async def scenario() -> list[bytes]:
        async with skylark_broker.connect() as mq:
            async with mq.producer("makers") as producer:
                receipt = await producer.send(Message("Orders", b"one", tag="Paid"))
                assert receipt.status is SendStatus.SEND_OK
            got: list[bytes] = []
            async with mq.consumer("readers", {"Orders": "Paid"}, consume_from="first") as consumer:
                async for message in consumer:
                    got.append(message.body)
                    message.ack()
                    break
            return got

    assert skylark_broker.run(scenario) == [b"one"]
    assert [message.body for message in skylark_broker.messages("Orders")] == [b"one"]
    assert skylark_broker.lag("readers", "Orders") == 0


def test_the_whole_retry_ladder_to_the_dead_letter_takes_no_time(
    skylark_broker: MemoryBroker,
) -> None:
    tries: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        tries.append(skylark_broker.clock.now_ms())
        raise ValueError("never")

    async def scenario() -> None:
        async with skylark_broker.connect() as mq:
            async with mq.producer("makers") as producer:
                await producer.send(Message("Orders", b"poison"))
            async with mq.consumer("billing", "Orders", handle, consume_from="first"):
                await skylark_broker.clock.advance(hours=4, minutes=45)
                assert skylark_broker.dead_letters("billing") == []
                await skylark_broker.clock.advance(minutes=1)

    began = time.process_time()
    skylark_broker.run(scenario)
    assert time.process_time() - began < 5
    waits = [(later - earlier) / 1000 for earlier, later in itertools.pairwise(tries)]
    assert waits == pytest.approx(LADDER_S, abs=0.5)
    assert [letter.body for letter in skylark_broker.dead_letters("billing")] == [b"poison"]


def test_time_stands_still_between_two_runs_and_goes_only_forward(quick: MemoryBroker) -> None:
    before = quick.clock.now_ms()
    quick.run(lambda: quick.clock.advance(hours=1, minutes=1, seconds=1, ms=1))
    assert quick.clock.now_ms() - before == 3_661_001
    with pytest.raises(ValueError, match="does not go back"):
        quick.run(lambda: quick.clock.advance(seconds=-1))


def test_waiting_for_what_never_comes_ends_with_virtual_time(quick: MemoryBroker) -> None:
    with pytest.raises(TimeoutError, match="0:00:05"):
        quick.run(lambda: quick.clock.wait_for(lambda: False, limit=timedelta(seconds=5)))


@pytest.mark.parametrize("way", ["kill", "cut_power", "stop"])
def test_nothing_acknowledged_is_lost_however_the_broker_ends(
    skylark_broker: MemoryBroker, way: str
) -> None:
    async def scenario() -> None:
        async with skylark_broker.connect() as mq, mq.producer("makers") as producer:
            for number in range(20):
                await producer.send(Message("Orders", b"%d" % number))
            if way == "stop":
                await skylark_broker.faults.stop()
            elif way == "kill":
                skylark_broker.faults.kill()
            else:
                skylark_broker.faults.cut_power()
            with pytest.raises(SimulationError, match="the broker is down"):
                skylark_broker.messages("Orders")
            with pytest.raises(ClientError):
                await producer.send(Message("Orders", b"lost"))
            skylark_broker.faults.start()
            await skylark_broker.wait_ready()
            await skylark_broker.clock.advance(seconds=5)
            await producer.send(Message("Orders", b"again"))

    skylark_broker.run(scenario)
    bodies = sorted(message.body for message in skylark_broker.messages("Orders"))
    assert bodies == sorted([*(b"%d" % number for number in range(20)), b"again"])


def test_a_partition_fails_sends_until_it_heals(skylark_broker: MemoryBroker) -> None:
    async def scenario() -> None:
        async with skylark_broker.connect() as mq, mq.producer("makers") as producer:
            await producer.send(Message("Orders", b"before"))
            cut = skylark_broker.faults.partition()
            with pytest.raises(ClientError):
                await producer.send(Message("Orders", b"into the void"))
            cut.heal()
            await skylark_broker.clock.advance(seconds=10)
            await producer.send(Message("Orders", b"after"))

    skylark_broker.run(scenario)
    assert b"after" in [message.body for message in skylark_broker.messages("Orders")]


def test_a_slow_broker_is_slow_by_as_much_as_asked(skylark_broker: MemoryBroker) -> None:
    clock = skylark_broker.clock

    async def scenario() -> tuple[int, int]:
        async with skylark_broker.connect() as mq, mq.producer("makers") as producer:
            await producer.send(Message("Orders", b"warm"))
            took = []
            for extra_ms in (200, 0):
                skylark_broker.faults.slow(extra_ms)
                began = clock.monotonic_ms()
                await producer.send(Message("Orders", b"x"))
                took.append(clock.monotonic_ms() - began)
            return took[0], took[1]

    slow, fast = skylark_broker.run(scenario)
    assert 400 <= slow < 450
    assert fast < 100


def test_a_paused_broker_answers_when_it_goes_on(skylark_broker: MemoryBroker) -> None:
    async def scenario() -> int:
        async with skylark_broker.connect() as mq, mq.producer("makers") as producer:
            await producer.send(Message("Orders", b"warm"))
            skylark_broker.faults.pause()
            sending = asyncio.ensure_future(producer.send(Message("Orders", b"x")))
            await skylark_broker.clock.advance(seconds=2)
            assert not sending.done()
            skylark_broker.faults.resume()
            await sending
            return len(skylark_broker.messages("Orders"))

    assert skylark_broker.run(scenario) == 2


def test_a_fault_of_an_unknown_server_names_the_known_ones(quick: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="no server 'borker'; there are namesrv, broker"):
        quick.faults.kill("borker")


def test_the_same_seed_gives_the_same_run() -> None:
    def once(seed: int) -> list[tuple[bytes, int, int]]:
        with MemoryBroker(seed) as broker:

            async def scenario() -> None:
                async with broker.connect() as mq, mq.producer("makers") as producer:
                    for number in range(10):
                        await producer.send(Message("Orders", b"%d" % number))

            broker.run(scenario)
            return [(m.body, m.queue_id, m.stored_at_ms) for m in broker.messages("Orders")]

    assert once(1) == once(1)


def test_a_run_does_not_depend_on_the_process_that_it_runs_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def once(pid: int) -> tuple[str, str]:
        monkeypatch.setattr("os.getpid", lambda: pid)
        with MemoryBroker(1) as broker:

            async def scenario() -> tuple[str, str]:
                async with (
                    broker.connect(instance_name="DEFAULT") as mq,
                    mq.producer("makers") as producer,
                ):
                    sent = await producer.send(Message("Orders", b"x"))
                    return mq.client_id, sent.message_id

            return broker.run(scenario)

    assert once(7) == once(4_194_304)


@pytest.mark.skylark(auto_create_topic_enable=False)
def test_a_marker_changes_settings(skylark_broker: MemoryBroker) -> None:
    async def scenario() -> None:
        async with skylark_broker.connect() as mq, mq.producer("makers") as producer:
            with pytest.raises(NoRoute):
                await producer.send(Message("Orders", b"x"))

    skylark_broker.run(scenario)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises((ConfigError, TypeError), match="flush_disk_kind"):
        MemoryBroker(flush_disk_kind="x")


def test_the_memory_broker_starts_in_under_50_ms_of_processor_time() -> None:
    def start() -> float:
        began = time.process_time()
        with MemoryBroker():
            return time.process_time() - began

    assert min(start() for _ in range(5)) < 0.05


def test_the_disk_broker_starts_in_under_50_ms_of_processor_time(tmp_path: Path) -> None:
    def start(number: int) -> float:
        began = time.process_time()
        with DiskBroker(tmp_path / str(number)):
            return time.process_time() - began

    assert min(start(number) for number in range(5)) < 0.05


def test_the_disk_broker_keeps_its_messages_over_a_restart(skylark_disk: DiskBroker) -> None:
    async def send() -> None:
        async with skylark_disk.connect() as mq, mq.producer("makers") as producer:
            await producer.send(Message("Orders", b"kept"))

    async def receive() -> bytes:
        async with (
            skylark_disk.connect() as mq,
            mq.consumer("readers", "Orders", consume_from="first") as consumer,
        ):
            async for message in consumer:
                message.ack()
                return message.body
        raise AssertionError("the consumer ended")

    skylark_disk.run(send)
    skylark_disk.restart()
    assert skylark_disk.run(receive) == b"kept"
    assert (Path(skylark_disk.folder) / "store" / "commitlog").is_dir()


def test_the_disk_broker_serves_blocking_clients_too(skylark_disk: DiskBroker) -> None:
    with sync.connect(skylark_disk.address) as mq, mq.producer("makers") as producer:
        assert producer.send(Message("Orders", b"x")).status is SendStatus.SEND_OK


def test_a_disk_broker_that_cannot_start_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TypeError), match="no_such_setting"):
        DiskBroker(tmp_path, no_such_setting=1)


def test_dead_letters_come_at_once_where_the_handler_gives_up(
    skylark_broker: MemoryBroker,
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        raise ToDlq

    async def scenario() -> None:
        async with skylark_broker.connect() as mq:
            async with mq.producer("makers") as producer:
                await producer.send(Message("Orders", b"bad"))
            async with mq.consumer("billing", "Orders", handle, consume_from="first"):
                await skylark_broker.clock.wait_for(lambda: skylark_broker.dead_letters("billing"))

    skylark_broker.run(scenario)
    assert len(skylark_broker.dead_letters("billing")) == 1


def test_loading_the_plugin_loads_no_broker_and_no_client() -> None:
    code = (
        "import sys, skylark.testing.pytest_plugin;"
        "heavy = [name for name in sys.modules if name.startswith(('skylark.broker',"
        "'skylark.client', 'skylark.store', 'skylark.net', 'skylark.protocol'))];"
        "print(heavy); sys.exit(bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_messages_of_today_are_kept_through_the_hour_in_which_old_files_go() -> None:
    with MemoryBroker(mapped_file_size_commit_log=64 << 10, max_message_size=16 << 10) as mq:

        async def scenario() -> int:
            async with mq.connect() as client, client.producer("orders") as producer:
                for _ in range(20):
                    await producer.send(Message("Orders", random.Random(1).randbytes(8_000)))
            await mq.clock.advance(hours=25)
            return len(mq.messages("Orders"))

        assert mq.run(scenario) == 20


def test_a_cluster_has_as_many_brokers_as_were_asked_for_and_outlives_one(
    skylark_cluster: MakeCluster,
) -> None:
    cluster = skylark_cluster(3)

    async def scenario() -> set[str]:
        async with cluster.connect() as mq, mq.producer("makers") as producer:
            for number in range(12):
                await producer.send(Message("Orders", b"%d" % number))
            cluster.faults.kill("broker-b")
            after = [await producer.send(Message("Orders", b"more")) for _ in range(8)]
            cluster.faults.start("broker-b")
            await cluster.wait_ready()
            return {receipt.queue.broker_name for receipt in after}

    assert cluster.run(scenario) == {"broker-a", "broker-c"}
    assert len(cluster.messages("Orders")) == 20
    assert cluster.lag("nobody", "Orders") == 20
    assert sorted(cluster.broker_addresses) == ["broker-a", "broker-b", "broker-c"]


@pytest.mark.skylark(broker_cluster_name="blue")
def test_brokers_of_a_cluster_have_the_markers_settings_and_their_own(
    skylark_cluster: MakeCluster,
) -> None:
    cluster = skylark_cluster(2, auto_create_topic_enable=False)
    for parts in cluster._parts():
        assert parts.live.current.broker_cluster_name == "blue"
        assert not parts.live.current.auto_create_topic_enable


@pytest.mark.parametrize("count", [0, 27])
def test_a_cluster_of_no_or_too_many_brokers_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="choose 1 to 26"):
        MemoryCluster(count)
