"""Workload: clients of every kind, on our own client library, that write down all they see.

p          who
0 …        senders: one queue after the other; what is in doubt is sometimes sent again
20 …       ordered producers: one queue each, in order
40         a sender of delayed messages
100 …      readers: every queue from its first offset, offset by offset
200 …      members of a group                     220 …   members of an ordered group
300        an auditor who commits what readers have seen, and asks how far that is
310        one who asks for the end of queues
400 …      clients that take and give back locks

Time, chance and network come from outside, so that it runs in a simulation as it does live.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..client.facade import Client
from ..client.received import ReceivedMessage
from ..clock import Clock
from ..errors import BrokerError, ConnectFailed, InvalidCompression, NoRoute, SkylarkError
from ..model.message import Message
from ..model.queue import MessageQueue
from ..protocol.codes import ResponseCode
from ..remote import SendStatus
from .history import FAIL, INFO, INVOKE, OK, Recorder
from .payload import body_of, id_of, message_id

TOPIC: Final = "Proof"
ORDERED_TOPIC: Final = "ProofOrdered"
_AUDITORS: Final = "proof-auditors"
_LOCKERS: Final = "proof-lockers"
_QUEUES_MAX: Final = 1_000
# Answers of a broker that has not stored the message. Any other error leaves it open.
_REFUSALS: Final = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
)
_OPEN: Final = -1  # An answer that says nothing.
_DELAY_LEVEL: Final = 1
_DELAY_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many of each, and how fast."""

    queues: int = 4
    senders: int = 3
    ordered: int = 2
    readers: int = 1
    members: int = 2
    lockers: int = 3
    gap_ms: int = 10
    body_bytes_max: int = 1_500
    send_timeout_ms: int = 3_000
    delays: bool = True


class Workload:
    """The clients, and how far they have come."""

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        clock: Clock,
        rng: random.Random,
        shape: Shape | None = None,
    ) -> None:
        self._mq = client
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._shape = shape or Shape()
        self._is_stopped = False
        self._sequence: dict[int, int] = {}
        self._brokers: list[str] = []
        self._seen: dict[tuple[str, int], int] = {}  # Topic, queue → how far readers are.
        self.acked: set[int] = set()
        self.delivered: set[int] = set()

    # Queues are numbered over all brokers, since offsets are counted at each.

    def _number(self, queue: MessageQueue) -> int:
        if queue.broker_name not in self._brokers:
            self._brokers.append(queue.broker_name)
        return self._brokers.index(queue.broker_name) * _QUEUES_MAX + queue.queue_id

    def number(self, broker_name: str, queue_id: int) -> int:
        """The number that a history knows a queue by."""
        return self._number(MessageQueue("", broker_name, queue_id))

    async def prepare(self, *, within_ms: int = 60_000) -> None:
        """Make the topics, and wait until they can be written to; raises what stood in the way."""
        deadline_ms = self._clock.monotonic_ms() + within_ms

        async def make() -> None:
            for topic in (TOPIC, ORDERED_TOPIC):
                await self._mq.create_topic(topic, queue_count=self._shape.queues)
                await self._mq.fetch_queues(topic)

        while True:
            try:
                return await make()
            except SkylarkError:
                if self._clock.monotonic_ms() > deadline_ms:
                    raise
                await self._clock.sleep_ms(100)

    def stop(self) -> None:
        """Let every client end after what it is doing."""
        self._is_stopped = True

    async def run(self) -> None:
        """Run all clients until stop(); the group goes on until it has what was acknowledged."""
        shape = self._shape
        async with asyncio.TaskGroup() as tasks:
            sending = [self._send_in_turn(p) for p in range(shape.senders)]
            sending += [self._send_in_order(20 + n, n) for n in range(shape.ordered)]
            sending += [self._send_for_later(40)] if shape.delays else []
            senders = [tasks.create_task(one) for one in sending]
            for number in range(shape.members):
                tasks.create_task(self._consume(200 + number, TOPIC, "deliver", senders))
                tasks.create_task(self._consume(220 + number, ORDERED_TOPIC, "ordered", senders))
            for number in range(shape.readers):
                tasks.create_task(self._read(100 + number))
            tasks.create_task(self._audit(300))
            tasks.create_task(self._ask_for_ends(310))
            for number in range(shape.lockers):
                tasks.create_task(self._take_locks(400 + number))

    # Senders.

    async def _send_in_turn(self, p: int) -> None:
        async with self._mq.producer(f"proof-{p}") as producer:
            turn = p
            while not self._is_stopped:
                queues = await self._queues(TOPIC)
                type = OK
                if queues:
                    turn += 1
                    id = self._next_id(p)
                    while True:
                        type = await self._send(producer, p, queues[turn % len(queues)], id)
                        if type != INFO or self._is_stopped or self._rng.random() < 0.5:
                            break
                await self._pause(type)

    async def _send_in_order(self, p: int, lane: int) -> None:
        async with self._mq.producer(f"proof-{p}") as producer:
            while not self._is_stopped:
                queues = await self._queues(ORDERED_TOPIC)
                type = OK
                if queues:
                    queue = queues[lane % len(queues)]
                    type = await self._send(producer, p, queue, self._next_id(p))
                await self._pause(type)

    async def _send_for_later(self, p: int) -> None:
        async with self._mq.producer(f"proof-{p}") as producer:
            while not self._is_stopped:
                queues = await self._queues(TOPIC)
                if queues:
                    queue, id = queues[0], self._next_id(p)
                    # The broker counts from when it has the message, which is not before now.
                    due_ms = self._clock.now_ms() + _DELAY_MS
                    await self._send(producer, p, queue, id, due_ms)
                await self._clock.sleep_ms(20 * self._shape.gap_ms)

    async def _send(
        self, producer: Any, p: int, queue: MessageQueue, id: int, due_ms: int | None = None
    ) -> int:
        """Send once and note what became of it."""
        note, number = self._recorder.note, self._number(queue)
        verb = "send" if due_ms is None else "schedule"
        body = body_of(id, self._rng.randrange(self._shape.body_bytes_max))
        level = 0 if due_ms is None else _DELAY_LEVEL
        message = Message(queue.topic, body, delay_level=level)
        off = -1 if due_ms is None else due_ms
        note(verb, INVOKE, p=p, topic=queue.topic, q=number, id=id, off=off)
        type = INFO
        try:
            receipt = await producer.send(
                message, queue=queue, timeout_ms=self._shape.send_timeout_ms
            )
        except SkylarkError as error:
            type = FAIL if _is_refusal(error) else INFO
        except asyncio.CancelledError:
            note(verb, INFO, p=p, topic=queue.topic, q=number, id=id, node=queue.broker_name)
            raise
        else:
            if receipt.status is SendStatus.SEND_OK:
                type = OK
                self.acked.add(id)
            off = receipt.queue_offset if due_ms is None else due_ms
        note(verb, type, p=p, topic=queue.topic, q=number, id=id, off=off, node=queue.broker_name)
        return type

    # Readers.

    async def _consume(
        self, p: int, topic: str, verb: str, senders: list[asyncio.Task[None]]
    ) -> None:
        async def handle(message: ReceivedMessage) -> None:
            id = self._id(message)
            self.delivered.add(id)
            self._recorder.note(
                verb,
                OK,
                p=p,
                topic=topic,
                q=self._number(message.queue),
                off=message.queue_offset,
                id=id,
                node=message.queue.broker_name,
            )

        async with self._mq.consumer(
            f"proof-{verb}",
            {topic: "*"},
            handle,
            consume_from="first",
            orderly=verb == "ordered",
            concurrency=4,
            pull_suspend_ms=2_000,
            pull_timeout_ms=5_000,
            rebalance_interval_ms=1_000,
            suspend_ms=100,
        ):
            while not (self._is_stopped and all(sender.done() for sender in senders)):
                await self._clock.sleep_ms(100)
            deadline_ms = self._clock.monotonic_ms() + 30_000
            while self.acked - self.delivered and self._clock.monotonic_ms() < deadline_ms:
                await self._clock.sleep_ms(100)

    async def _read(self, p: int) -> None:
        position: dict[MessageQueue, int] = {}
        async with self._mq.pull_consumer(f"proof-reader-{p}") as puller:
            while not self._is_stopped:
                for topic in (TOPIC, ORDERED_TOPIC):
                    for queue in await self._queues(topic):
                        await self._read_some(puller, p, queue, position)
                await self._pause()

    async def _read_some(
        self, puller: Any, p: int, queue: MessageQueue, position: dict[MessageQueue, int]
    ) -> None:
        topic, number = queue.topic, self._number(queue)
        if queue not in position:
            position[queue] = 0
            self._recorder.note("assign", OK, p=p, topic=topic, q=number, off=0)
        got = await _tried(puller.pull(queue, offset=position[queue], timeout_ms=2_000))
        for message in got.messages if got is not None else ():
            self._recorder.note(
                "poll",
                OK,
                p=p,
                topic=topic,
                q=number,
                off=message.queue_offset,
                id=self._id(message),
                node=queue.broker_name,
            )
            position[queue] = message.queue_offset + 1
        self._seen[topic, number] = max(self._seen.get((topic, number), 0), position[queue])

    async def _audit(self, p: int) -> None:
        while not self._is_stopped:
            for queue in await self._queues(TOPIC):
                await self.ask_committed(p, queue)  # First, so that a loss is not mended unseen.
                off = self._seen.get((TOPIC, self._number(queue)), 0)
                await self._ask("commit", p, queue, partial(_commit, off), off)
            await self._clock.sleep_ms(5 * self._shape.gap_ms)

    async def ask_committed(self, p: int, queue: MessageQueue) -> None:
        """Ask how far the auditors are, and note the answer."""

        async def ask(broker: Any, queue: MessageQueue) -> int:
            found = await broker.query_consumer_offset(_AUDITORS, queue, timeout_ms=2_000)
            return 0 if found is None else int(found)

        await self._ask("committed", p, queue, ask)

    async def _ask_for_ends(self, p: int) -> None:
        while not self._is_stopped:
            for topic in (TOPIC, ORDERED_TOPIC):
                for queue in await self._queues(topic):
                    await self._ask("max", p, queue, _end_at_the_leader)
            await self._clock.sleep_ms(5 * self._shape.gap_ms)

    async def _ask(
        self,
        verb: str,
        p: int,
        queue: MessageQueue,
        ask: Callable[[Any, MessageQueue], Awaitable[int | None]],
        off: int = -1,
    ) -> None:
        """Ask the queue's master something, and note question and answer."""
        session = self._mq.session
        address = session.master_address(queue.broker_name)
        if address is None:
            return
        spot = {"p": p, "topic": queue.topic, "q": self._number(queue)}
        self._recorder.note(verb, INVOKE, off=off, **spot)  # type: ignore[arg-type]
        try:
            answer = await ask(session.broker(address), queue)
        except SkylarkError:
            answer = _OPEN
        if answer == _OPEN:
            self._recorder.note(verb, INFO, off=off, **spot)  # type: ignore[arg-type]
        else:
            off = off if answer is None else answer
            self._recorder.note(verb, OK, off=off, node=queue.broker_name, **spot)  # type: ignore[arg-type]

    # Locks.

    async def _take_locks(self, p: int) -> None:
        name = f"locker-{p}"
        while not self._is_stopped:
            for queue in (await self._queues(TOPIC))[:2]:
                address = self._mq.session.master_address(queue.broker_name)
                if address is None:
                    continue
                broker = self._mq.session.broker(address)
                number = self._number(queue)
                self._recorder.note("lock", INVOKE, p=p, topic=TOPIC, q=number)
                held = await _tried(broker.lock_queues(name, _LOCKERS, [queue]))
                type = INFO if held is None else OK if queue in held else FAIL
                self._recorder.note("lock", type, p=p, topic=TOPIC, q=number)
                if type != OK:
                    await self._pause(FAIL)
                    continue
                await self._clock.sleep_ms(self._rng.randrange(1, 20 * self._shape.gap_ms))
                self._recorder.note("unlock", INVOKE, p=p, topic=TOPIC, q=number)
                is_back = await _tried(_done(broker.unlock_queues(name, _LOCKERS, [queue])))
                self._recorder.note("unlock", OK if is_back else INFO, p=p, topic=TOPIC, q=number)
            await self._clock.sleep_ms(self._rng.randrange(1, 10 * self._shape.gap_ms))

    # The end.

    async def drain(self, *, within_ms: int = 60_000) -> None:
        """Read every queue from 0 with a new group; raises where that cannot be done in time."""
        note = self._recorder.note
        deadline_ms = self._clock.monotonic_ms() + within_ms
        async with self._mq.pull_consumer("proof-judges") as puller:
            for topic in (TOPIC, ORDERED_TOPIC):
                queues = await self._patiently(partial(self._mq.fetch_queues, topic), deadline_ms)
                for queue in queues:
                    number, offset = self._number(queue), 0
                    note("drain", OK, topic=topic, q=number)
                    if topic == TOPIC:
                        await self.ask_committed(301, queue)
                    while True:
                        got = await self._patiently(
                            partial(puller.pull, queue, offset=offset), deadline_ms
                        )
                        if not got.messages:
                            break
                        for message in got.messages:
                            note(
                                "drain",
                                OK,
                                topic=topic,
                                q=number,
                                off=message.queue_offset,
                                id=self._id(message),
                                node=queue.broker_name,
                            )
                        offset = got.messages[-1].queue_offset + 1

    async def _patiently(self, ask: Callable[[], Awaitable[Any]], deadline_ms: int) -> Any:
        while True:
            try:
                return await ask()
            except SkylarkError:
                if self._clock.monotonic_ms() > deadline_ms:
                    raise
                await self._clock.sleep_ms(100)

    # Pieces.

    def _next_id(self, p: int) -> int:
        self._sequence[p] = self._sequence.get(p, 0) + 1
        return message_id(p, self._sequence[p])

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic; none, after a while, where nobody tells."""
        found = await _tried(self._mq.fetch_queues(topic))
        if found is None:
            await self._clock.sleep_ms(100)
            return []
        return sorted(found)

    async def _pause(self, type: int = OK) -> None:
        """A moment; a longer one where nobody was there to take what was sent."""
        gap_ms = self._shape.gap_ms * (4 if type == FAIL else 1)
        await self._clock.sleep_ms(self._rng.randrange(1, 2 * gap_ms))

    @staticmethod
    def _id(message: ReceivedMessage) -> int:
        try:
            return id_of(message.body)
        except InvalidCompression:
            return id_of(b"")


async def _tried(answer: Awaitable[Any]) -> Any:
    """An answer, or None where there was none."""
    try:
        return await answer
    except SkylarkError:
        return None


async def _end_at_the_leader(broker: Any, queue: MessageQueue) -> int:
    """The end of a queue, if the one who told it led a Raft group before and after, or has none.

    Other members answer as well, with what they know; that is no promise.
    """
    before = await _term_led(broker)
    end = await broker.get_max_offset(queue, timeout_ms=2_000)
    return int(end) if before is not None and before == await _term_led(broker) else _OPEN


async def _term_led(broker: Any) -> str | None:
    table = await broker.get_runtime_info(timeout_ms=2_000)
    if table.get("raftRole", "leader") != "leader" or table.get("raftIsServing") == "false":
        return None
    return str(table.get("raftTerm", ""))


async def _commit(off: int, broker: Any, queue: MessageQueue) -> None:
    await broker.update_consumer_offset(_AUDITORS, queue, off, timeout_ms=2_000)


async def _done(answer: Awaitable[object]) -> bool:
    await answer
    return True


def _is_refusal(error: SkylarkError) -> bool:
    """Whether the message is surely not stored."""
    if isinstance(error, (NoRoute, ConnectFailed)):
        return True
    code = getattr(error, "code", None)
    is_answer = isinstance(error, BrokerError) or code is not None
    if is_answer and code in _REFUSALS:
        return not getattr(error, "is_ambiguous", False)
    return isinstance(error.__cause__, ConnectFailed)
