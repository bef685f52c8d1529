"""The whole thing in half a minute: servers, 10,000 messages, a group, a retry, a dead letter.

    python examples/demo.py

`skylark up` runs as a process of its own on free ports, with its files in a temporary directory, so
nothing of yours is touched. Everything else is the Python client, as an application would use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import skylark
from skylark import Client, Message, PushConsumer, ReceivedMessage, RetryLater
from skylark.errors import SkylarkError

TOPIC, GROUP = "OrderTopic", "billing"
COUNT = 10_000
QUEUES = 8
READY = "skylark is up: name server "
PATIENCE_S = 40
# The levels of RocketMQ begin with 1s 5s 10s 30s; a demo has no time for hours.
DELAY_LEVELS = " ".join(["1s"] * 18)


class Failed(Exception):
    """Something that the demo promises did not happen."""


@contextlib.asynccontextmanager
async def servers(directory: str) -> AsyncIterator[str]:
    """Run a name server and a broker as one process; gives the name server's address."""
    flags = ["--data", directory, "--namesrv-port", "0", "--broker-port", "0", "--no-console"]
    settings = [f"messageDelayLevel={DELAY_LEVELS}", f"mappedFileSizeCommitLog={64 << 20}"]
    flags += [word for setting in settings for word in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skylark.cli", "up", *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode().strip()
        if not line.startswith(READY):
            raise Failed(f"the servers did not start: {line or 'they say why above'}")
        print(f"   {line.rpartition(', data')[0]}")
        yield line.removeprefix(READY).partition(",")[0]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            code = await process.wait()
        if code != 0:
            raise Failed(f"the servers ended with exit code {code}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {PATIENCE_S} s")
        await asyncio.sleep(0.02)


async def send_all(mq: Client) -> None:
    """Send ten thousand messages; those of one moment travel together."""
    async with mq.producer("shop", linger_ms=0) as producer:
        began = time.monotonic()
        for start in range(0, COUNT, 1_000):
            await asyncio.gather(
                *(
                    producer.send(Message(TOPIC, b"order %d" % number, tag="Paid"))
                    for number in range(start, start + 1_000)
                )
            )
        took = time.monotonic() - began
    print(f"   {COUNT:,} stored in {took:.1f} s: {COUNT / took:,.0f} a second")


async def lag(mq: Client) -> int:
    """How many messages the group has not committed yet, as the broker knows it."""
    behind = 0
    for queue in await mq.fetch_queues(TOPIC):
        address = mq.session.master_address(queue.broker_name)
        if address is None:
            raise Failed(f"the broker of {queue} is gone")
        committed = await mq.session.broker(address).query_consumer_offset(GROUP, queue)
        behind += await mq.max_offset(queue) - (committed or 0)
    return behind


def queues_of(consumer: PushConsumer) -> int:
    """How many of the topic's queues a consumer has; its group's retries are a queue as well."""
    return sum(queue.topic == TOPIC for queue in consumer.assignment)


async def share_all(mq: Client) -> None:
    """Send messages while two consumers of a group hold still; then the lag falls to zero."""
    seen: list[Counter[bytes]] = [Counter(), Counter()]

    def handler(number: int) -> Callable[[ReceivedMessage], Awaitable[None]]:
        async def handle(message: ReceivedMessage) -> None:
            seen[number][message.body] += 1

        return handle

    async with contextlib.AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                mq.consumer(GROUP, {TOPIC: "Paid"}, handler(number), consume_from="first")
            )
            for number in range(2)
        ]
        await until(lambda: all(queues_of(one) == QUEUES // 2 for one in consumers), "equal shares")
        print(f"   each has {QUEUES // 2} of the {QUEUES} queues; they pause")
        for consumer in consumers:
            consumer.suspend()
        print(f"4. {COUNT:,} messages are sent.")
        await send_all(mq)
        print("5. The consumers go on.")
        print(f"   lag {await lag(mq):>6,}")
        for consumer in consumers:
            consumer.resume()
        began = time.monotonic()
        last = None
        while (behind := await lag(mq)) > 0:
            if behind != last:
                print(f"   lag {behind:>6,}")
            last = behind
            if time.monotonic() - began > PATIENCE_S:
                raise Failed(f"the lag is still {behind}")
            await asyncio.sleep(0.25)
        print(f"   lag {0:>6}")
    shares = [sum(counts.values()) for counts in seen]
    missing = {b"order %d" % number for number in range(COUNT)} - set(seen[0]) - set(seen[1])
    if missing:
        raise Failed(f"{len(missing)} messages were not consumed")
    if not all(shares):
        raise Failed(f"one consumer got everything: {shares}")
    for name, share in zip("AB", shares, strict=True):
        print(f"   consumer {name} handled {share:,} messages")
    print("   none is missing")


async def fail_some(mq: Client) -> None:
    """A message that fails once is tried again; one that always fails ends as a dead letter."""
    tries: Counter[bytes] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        tries[message.body] += 1
        print(f"   {message.body.decode()}: try {message.reconsume_times + 1}")
        if message.body == b"hopeless" or message.reconsume_times == 0:
            raise RetryLater

    dead: list[bytes] = []
    async with mq.producer("shop") as producer:
        for body in (b"unlucky", b"hopeless"):
            await producer.send(Message(TOPIC, body, tag="Refund"))
    async with mq.consumer(
        "refunds", {TOPIC: "Refund"}, handle, consume_from="first", max_reconsume_times=2
    ):
        await until(lambda: tries[b"unlucky"] == 2 and tries[b"hopeless"] == 3, "the retries")
        async with mq.pull_consumer("undertaker") as reader:
            deadline = time.monotonic() + PATIENCE_S
            while not dead and time.monotonic() < deadline:
                with contextlib.suppress(SkylarkError):  # Until the topic is there.
                    for queue in await reader.fetch_queues("%DLQ%refunds"):
                        result = await reader.pull(queue, offset=0)
                        dead += [message.body for message in result.messages]
                await asyncio.sleep(0.05)
    if dead != [b"hopeless"]:
        raise Failed(f"the dead letters are {dead}")
    print("   hopeless: a dead letter, in %DLQ%refunds")


async def main() -> None:
    """From start to end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="skylark-demo-") as directory:
        print("1. A name server and a broker start.")
        async with servers(directory) as address, skylark.connect(address) as mq:
            print(f"2. The topic {TOPIC} is created, with {QUEUES} queues.")
            await mq.create_topic(TOPIC, queue_count=QUEUES)
            print("3. Two consumers join one group.")
            await share_all(mq)
            print("6. Two messages fail: one is tried again, one is given up.")
            await fail_some(mq)
        print("7. The servers have stopped cleanly.")
    print(f"Done in {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (Failed, SkylarkError, TimeoutError) as error:
        raise SystemExit(f"the demo failed: {error or type(error).__name__}") from None
