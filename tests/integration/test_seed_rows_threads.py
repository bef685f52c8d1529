"""OR-08 and CO-16: handlers in real threads, and the one of them that has a queue."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from skylark.client.received import ReceivedMessage
from skylark.model.message import Message
from skylark.testing import DiskBroker


def test_threads_compete_for_queues_and_each_queue_has_one_at_a_time(tmp_path: Path) -> None:
    guard = threading.Lock()
    running = Counter[int]()
    order: dict[int, list[int]] = defaultdict(list)
    most = 0
    names = set()

    def handle(message: ReceivedMessage) -> None:
        nonlocal most
        with guard:
            running[message.queue_id] += 1
            assert running[message.queue_id] == 1, "two threads in one queue"
            most = max(most, sum(running.values()))
            names.add(threading.current_thread().name)
            order[message.queue_id].append(message.queue_offset)
        time.sleep(0.001)
        with guard:
            running[message.queue_id] -= 1

    with DiskBroker(tmp_path) as mq:

        async def scenario() -> None:
            async with mq.connect() as client:
                await client.create_topic("Orders", queue_count=4)
                async with client.producer("makers") as producer:
                    await asyncio.gather(
                        *(producer.send(Message("Orders", b"%d" % n)) for n in range(400))
                    )
                async with client.consumer(
                    "billing",
                    "Orders",
                    handle,
                    consume_from="first",
                    orderly=True,
                    concurrency=8,
                ) as consumer:
                    async with asyncio.timeout(30):
                        while sum(map(len, order.values())) < 400:
                            await asyncio.sleep(0.01)
                    status = consumer.running_info(jstack=False).statuses["Orders"]
                    assert status.consume_failed_msgs == 0

        mq.run(scenario)
    assert len(order) == 4
    assert all(offsets == list(range(len(offsets))) for offsets in order.values())
    assert 1 < most <= 4
    assert all(name.startswith("skylark-billing") for name in names)
