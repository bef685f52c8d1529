"""Our consumers against Apache's broker and ours, beside Apache's consumer, under mqadmin's eyes.

Members of a group are processes of their own where they are killed: nothing else dies as a process
does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from our_broker import OurBroker
from peers import (
    ApacheBroker,
    ApacheNameServer,
    JavaClient,
    MqAdmin,
    OurNameServer,
    Peers,
    Process,
    wait_until,
)

import skylark
from skylark import Message, MessageQueue, ReceivedMessage, RetryLater, ToDlq
from skylark.model.group import MessageModel
from skylark.model.topic import TopicConfig
from skylark.remote import RemoteBroker

pytestmark = pytest.mark.interop

COUNT = 10_000


@dataclasses.dataclass
class Cluster:
    """A name server and a broker of one maker."""

    kind: str
    address: str
    broker_address: str
    home: Path
    peers: Peers

    def admin(self, *arguments: str) -> str:
        """Run Apache's mqadmin."""
        return MqAdmin(self.peers, self.home / "admin").run(self.address, *arguments)


@pytest.fixture(scope="module", params=["apache", "skylark"])
def cluster(
    request: pytest.FixtureRequest, peers: Peers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp(f"consumers-{request.param}")
    server: ApacheNameServer | OurNameServer
    broker: ApacheBroker | OurBroker
    if request.param == "apache":
        server = ApacheNameServer(peers, home / "namesrv")
        broker = ApacheBroker(peers, home / "b", name="broker-a", name_servers=[server.address])
    else:
        server = OurNameServer(home / "namesrv")
        broker = OurBroker(home / "b", name="broker-a", name_servers=[server.address])
    with server, broker:
        if isinstance(broker, ApacheBroker):
            broker.wait_registered([server])
        yield Cluster(request.param, server.address, broker.address, home, peers)


async def make_topic(mq: skylark.Client, cluster: Cluster, topic: str, queues: int = 8) -> None:
    """Create a topic and wait until its route is known."""
    session = mq.session
    broker: RemoteBroker = session.broker(cluster.broker_address)
    await broker.put_topic(TopicConfig(topic, queues, queues))
    for _ in range(100):
        if await session.routes.refresh(topic):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{topic} has no route")


async def send(mq: skylark.Client, topic: str, count: int, **fields: Any) -> None:
    async with mq.producer("consumer-tests") as producer:
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            await asyncio.gather(
                *(producer.send(Message(topic, b"%d" % number, **fields)) for number in numbers)
            )


async def until(condition: Any, *, seconds: float = 30, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


def test_two_members_consume_everything_once_and_mqadmin_sees_no_lag(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Shared")
            got: list[list[bytes]] = [[], []]

            def handler(number: int) -> Any:
                async def handle(message: ReceivedMessage) -> None:
                    got[number].append(message.body)

                return handle

            async with (
                mq.consumer("shared", "Shared", handler(0), consume_from="first") as one,
                mq.consumer("shared", "Shared", handler(1), consume_from="first") as two,
            ):
                await until(lambda: len(one.assignment | two.assignment) == 9)
                await until(lambda: not one.assignment & two.assignment)
                await send(mq, "Shared", COUNT)
                await until(lambda: sum(map(len, got)) >= COUNT)
            assert Counter([*got[0], *got[1]]) == Counter(b"%d" % n for n in range(COUNT))
            assert min(map(len, got)) > COUNT // 4

    asyncio.run(main())
    text = cluster.admin("consumerProgress", "-g", "shared")
    assert "Diff Total: 0" in text


def test_an_apache_consumer_and_ours_share_a_group(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Mixed")
            got: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

            async with mq.consumer("mixed", "Mixed", handle, consume_from="first") as ours:
                java = JavaClient(
                    cluster.peers,
                    tmp_path,
                    "listen",
                    cluster.address,
                    "Mixed",
                    "mixed",
                    "concurrent",
                )
                with java:
                    await until(lambda: len(ours.assignment) <= 5, what="a share for Java")
                    await send(mq, "Mixed", 2000)
                    await until(
                        lambda: len(got) + _seen(java) >= 2000,
                        what=f"{len(got)} here, {_seen(java)} there",
                    )
                    assert 600 < len(got) < 1400
                await until(lambda: len(ours.assignment) >= 8, seconds=10, what="all queues back")

    def _seen(java: JavaClient) -> int:
        return sum(line.startswith("got ") for line in java.lines)

    asyncio.run(main())


def test_order_is_kept_for_each_key_while_members_come_and_go(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Ordered")
            seen: dict[str, list[int]] = {}
            running: Counter[MessageQueue] = Counter()

            async def handle(message: ReceivedMessage) -> None:
                running[message.queue] += 1
                assert running[message.queue] == 1, "two handlers of one queue at once"
                seen.setdefault(message.keys[0], []).append(int(message.body))
                await asyncio.sleep(0.001)
                running[message.queue] -= 1

            def member() -> skylark.PushConsumer:
                return mq.consumer("ordered", "Ordered", handle, consume_from="first", orderly=True)

            async def produce() -> None:
                async with mq.producer("ordered-producer") as producer:
                    for number in range(20):
                        for key in range(100):
                            await producer.send(
                                Message("Ordered", b"%d" % number, keys=[f"k{key}"]), key=f"k{key}"
                            )

            async with AsyncExitStack() as parts:
                await parts.enter_async_context(member())
                sending = asyncio.ensure_future(produce())
                await parts.enter_async_context(member())
                await asyncio.sleep(1)
                async with member():
                    await asyncio.sleep(1)
                await sending
                await until(lambda: sum(map(len, seen.values())) >= 2000, seconds=60)
            for key, numbers in seen.items():
                assert list(dict.fromkeys(numbers)) == list(range(20)), key
                assert numbers == sorted(numbers), f"{key} went back: {numbers}"

    asyncio.run(main())


def test_a_failed_message_comes_again_and_a_hopeless_one_is_dead(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Failing", 1)
            tries: dict[bytes, list[ReceivedMessage]] = {}

            async def handle(message: ReceivedMessage) -> None:
                tries.setdefault(message.body, []).append(message)
                if message.body == b"later" and message.reconsume_times < 2:
                    raise RetryLater(1)
                if message.body == b"never":
                    raise RetryLater(level=1)
                if message.body == b"dead":
                    raise ToDlq

            async with mq.consumer(
                "failing", "Failing", handle, consume_from="first", max_reconsume_times=1
            ):
                async with mq.producer("failing-producer") as producer:
                    for body in (b"later", b"never", b"dead"):
                        await producer.send(Message("Failing", body, tag="T", keys=["k"]))
                await until(lambda: len(tries.get(b"never", [])) == 2)
                await asyncio.sleep(2.5)
            assert [message.reconsume_times for message in tries[b"never"]] == [0, 1]
            assert len({message.message_id for message in tries[b"later"]}) == 1
            assert {message.topic for message in tries[b"later"]} == {"Failing"}
            assert len(tries[b"dead"]) == 1
            dead = []
            async with mq.consumer("undertaker", "%DLQ%failing", consume_from="first") as graves:
                async for message in graves:
                    dead.append(message.body)
                    message.ack()
                    if len(dead) == 3:
                        break
            assert sorted(dead) == [b"dead", b"later", b"never"]

    asyncio.run(main())


def test_broadcasting_members_all_get_everything(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Everyone")
            counts = [0, 0]

            def handler(number: int) -> Any:
                async def handle(message: ReceivedMessage) -> None:
                    counts[number] += 1

                return handle

            settings: dict[str, Any] = {
                "consume_from": "first",
                "message_model": MessageModel.BROADCASTING,
            }
            async with (
                mq.consumer(
                    "all", "Everyone", handler(0), offsets_folder=str(tmp_path / "1"), **settings
                ),
                mq.consumer(
                    "all", "Everyone", handler(1), offsets_folder=str(tmp_path / "2"), **settings
                ),
            ):
                await send(mq, "Everyone", 1000)
                await until(lambda: counts == [1000, 1000])

    asyncio.run(main())


def test_pull_and_lite_pull_consumers_read_every_message(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Pulled")
            await send(mq, "Pulled", COUNT)
            got: list[bytes] = []
            async with mq.lite_pull_consumer(
                "lite", "Pulled", consume_from="first", pull_batch_size=32
            ) as lite:
                while len(got) < COUNT:
                    got += [message.body for message in await lite.poll()]
                await lite.commit()
                queue = (await lite.fetch_queues("Pulled"))[0]
                end = await mq.max_offset(queue)
                assert await lite.committed(queue) == end
                await lite.seek(queue, 1)
                assert (await lite.poll())[0].queue_offset == 1
            assert Counter(got) == Counter(b"%d" % number for number in range(COUNT))
            read = 0
            async with mq.pull_consumer("puller") as puller:
                for queue in await puller.fetch_queues("Pulled"):
                    offset = 0
                    while True:
                        found = await puller.pull(queue, offset=offset)
                        if not found.messages:
                            break
                        read += len(found.messages)
                        offset = found.next_begin_offset
                    middle = await puller.pull(queue, offset=offset // 2, count_max=1)
                    at_ms = middle.messages[0].stored_at_ms
                    since = await puller.offset_since(queue, at_ms)
                    first = (await puller.pull(queue, offset=since, count_max=1)).messages[0]
                    assert first.stored_at_ms == at_ms
                    if since:
                        before = (await puller.pull(queue, offset=since - 1, count_max=1)).messages
                        assert before[0].stored_at_ms < at_ms
            assert read == COUNT

    asyncio.run(main())


def test_tags_are_filtered_exactly(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Tagged", 2)
            for tag in ("Aa", "BB", "C"):  # The first two have the same hash.
                await send(mq, "Tagged", 100, tag=tag)
            got: list[str | None] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.tag)

            async with mq.consumer("tags", {"Tagged": "Aa || C"}, handle, consume_from="first"):
                await until(lambda: len(got) >= 200)
                await asyncio.sleep(0.5)
            assert Counter(got) == {"Aa": 100, "C": 100}

    asyncio.run(main())


def test_operators_ask_reset_and_look_at_our_consumer(cluster: Cluster) -> None:
    async def main() -> None:
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Watched", 2)
            got: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

            async with mq.consumer("watched", "Watched", handle, consume_from="first") as consumer:
                await send(mq, "Watched", 100)
                await until(lambda: len(got) == 100)
                await asyncio.sleep(6)  # Apache's broker resets only what has been committed.
                broker = mq.session.broker(cluster.broker_address)
                info = await broker.get_consumer_running_info("watched", consumer.client_id)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
                assert len(info.queues) == 3
                offsets = await broker.reset_offset("Watched", "watched", 0)
                assert set(offsets.values()) == {0}
                await until(lambda: len(got) == 200, seconds=15, what="everything once more")

    asyncio.run(main())


MEMBER = """
import asyncio, sys, time
import skylark

async def main(address, group, topic):
    async def handle(message):
        at = time.monotonic()
        print(f"got {message.body.decode()} {message.queue_id} {at:.3f}", flush=True)
    def changed(topic_, every, mine):
        if topic_ == topic:
            print("has " + ",".join(str(queue.queue_id) for queue in sorted(mine)), flush=True)
    async with skylark.connect(address) as mq:
        consumer = mq.consumer(group, topic, handle, consume_from="first")
        consumer.add_queue_listener(changed)
        async with consumer:
            print("ready", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


class MemberProcess(Process):
    """A consumer as a process; closing its input ends it well, kill does not."""

    def __init__(self, home: Path, address: str, group: str, topic: str) -> None:
        command = [sys.executable, "-c", MEMBER, address, group, topic]
        super().__init__(f"member of {group}", command, home=home)

    def wait_ready(self) -> None:
        self.wait_for_line("ready")

    @property
    def queues(self) -> list[str]:
        shares = [line[4:] for line in list(self.lines) if line.startswith("has ")]
        return [queue for queue in shares[-1].split(",") if queue] if shares else []

    @property
    def got(self) -> list[str]:
        return [line.split()[1] for line in list(self.lines) if line.startswith("got ")]

    def pause_s(self, queue: str, since: float) -> float:
        """The longest time without a message of a queue; clocks of processes are the same here."""
        words = [line.split() for line in list(self.lines) if line.startswith("got ")]
        times = [float(at) for _, _, one, at in words if one == queue and float(at) >= since]
        return max((later - at for at, later in pairwise(times)), default=0.0)


def test_members_join_and_are_killed_under_load_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    sent = 0
    shared_in: list[float] = []
    pauses: list[float] = []

    async def main() -> None:
        nonlocal sent
        async with skylark.connect(cluster.address) as mq:
            await make_topic(mq, cluster, "Churn")
            stopped = asyncio.Event()

            async def produce() -> None:
                nonlocal sent
                async with mq.producer("churn-producer") as producer:
                    while not stopped.is_set():
                        await producer.send(Message("Churn", b"%d" % sent))
                        sent += 1
                        await asyncio.sleep(0.002)

            sending = asyncio.ensure_future(produce())
            members: list[MemberProcess] = []
            everyone: list[MemberProcess] = []

            def is_shared() -> bool:
                owned = Counter(queue for one in members for queue in one.queues)
                return len(owned) == 8 and set(owned.values()) == {1}

            async def change(what: Callable[[], None]) -> None:
                """Change the group; note how long until it is shared, and who stood still."""
                before = {queue: one for one in members for queue in one.queues}
                began = time.monotonic()
                await asyncio.to_thread(what)
                changed = time.monotonic()
                await until(is_shared, seconds=15, what=f"{len(members)} members share")
                shared_in.append(time.monotonic() - changed)
                await asyncio.sleep(0.3)
                for one in members:
                    for queue in one.queues:
                        if before.get(queue) is one:
                            pauses.append(one.pause_s(queue, began))

            def join() -> None:
                home = tmp_path / str(len(everyone))
                everyone.append(MemberProcess(home, cluster.address, "churn", "Churn"))
                everyone[-1].start()
                members.append(everyone[-1])

            def kill() -> None:
                members.pop(0).kill()

            try:
                for _ in range(8):
                    await change(join)
                while len(members) > 1:
                    await change(kill)
                stopped.set()
                await sending
                got: set[str] = set()

                def all_there() -> bool:
                    got.update(*(one.got for one in everyone))
                    return len(got) == sent

                await until(all_there, seconds=30, what=f"{sent} sent, {len(got)} handled")
            finally:
                stopped.set()
                for member in everyone:
                    member.kill()

    asyncio.run(main())
    # How long is asserted in virtual time, by tests/simulation/test_group_changes.py; this machine
    # may be busy.
    print(
        f"{cluster.kind}: shared in {sorted(round(s, 2) for s in shared_in)} s, longest pause of a "
        f"queue that did not move {max(pauses):.2f} s, {sent} sent"
    )


def test_consumption_goes_on_within_five_seconds_of_the_broker_s_return(
    peers: Peers, tmp_path: Path
) -> None:
    server = OurNameServer(tmp_path / "namesrv")
    with server:
        broker = OurBroker(tmp_path / "b", name="broker-a", name_servers=[server.address])

        async def main() -> None:
            got: set[bytes] = set()

            async def handle(message: ReceivedMessage) -> None:
                got.add(message.body)

            async with skylark.connect(server.address) as mq:
                cluster = Cluster("skylark", server.address, broker.address, tmp_path, peers)
                await make_topic(mq, cluster, "Outage", 4)
                async with mq.consumer("outage", "Outage", handle, consume_from="first"):
                    for round_ in range(3):
                        await send(mq, "Outage", (round_ + 1) * 100)
                        await until(lambda count=(round_ + 1) * 100: len(got) == count)
                        await asyncio.to_thread(broker.kill)
                        await asyncio.sleep(1)
                        await asyncio.to_thread(broker.start)
                        began = time.monotonic()
                        async with mq.producer("after") as producer:
                            while True:
                                try:
                                    await producer.send(Message("Outage", b"after %d" % round_))
                                    break
                                except skylark.SkylarkError:
                                    assert time.monotonic() - began < 5
                                    await asyncio.sleep(0.1)
                        await until(lambda body=b"after %d" % round_: body in got, seconds=5)
                        got.discard(b"after %d" % round_)

        with broker:
            asyncio.run(main())
        wait_until(lambda: not broker.running, timeout_s=5, what="the end")
