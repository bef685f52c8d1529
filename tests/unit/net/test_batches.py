"""Requests served in batches, and answers that come later without a task."""

from __future__ import annotations

import asyncio

from sim_peers import ECHO, World

from skylark.net import BatchHandler, RawHandler
from skylark.protocol.command import Command
from skylark.protocol.exchange import Answers, Deferred, Peer
from skylark.protocol.frame import encode_frames

BATCH, TWIN, RAW = 310, 320, 11


class Served:
    """What the handlers saw, and how they answer."""

    def __init__(self, world: World) -> None:
        self.batches: list[list[int]] = []
        self.deferred: list[Deferred] = []
        self.dropped = 0
        self.weight: int | None = None  # None: answer at once.
        self.error: Exception | None = None
        world.handlers[BATCH] = BatchHandler(self.batch)  # type: ignore[assignment]
        world.handlers[TWIN] = BatchHandler(self.batch)  # type: ignore[assignment]
        world.handlers[RAW] = RawHandler(self.raw)  # type: ignore[assignment]

    def _answers(self, commands: list[Command]) -> list[Command]:
        return [command.reply(0, None, {}, command.body) for command in commands]

    def batch(self, commands: list[Command], peer: Peer) -> Answers | Deferred:
        self.batches.append([int(command.body) for command in commands])
        if self.error is not None:
            raise self.error
        wanted = [command for command in commands if not command.is_oneway]
        if self.weight is None:
            return encode_frames(self._answers(wanted))
        deferred = Deferred(weight=self.weight * len(commands), on_dropped=self._drop)
        self.deferred.append(deferred)
        asyncio.get_running_loop().call_later(1, lambda: deferred.answer(self._answers(wanted)))
        return deferred

    def raw(self, command: Command, peer: Peer) -> Command | bytes | Deferred | None:
        if command.body == b"bytes":
            return encode_frames(self._answers([command]))
        if command.body == b"early":
            early = Deferred()
            early.answer(self._answers([command]))
            return early
        deferred = Deferred(on_dropped=self._drop)
        self.deferred.append(deferred)
        return deferred

    def _drop(self, deferred: Deferred) -> None:
        self.dropped += 1


def _requests(*codes: int) -> list[Command]:
    return [Command(code, number, 0, {}, b"%d" % number) for number, code in enumerate(codes)]


def test_neighbours_of_one_read_are_served_as_one_batch(world: World) -> None:
    served = Served(world)

    async def main() -> None:
        async with world.listener():
            peer = await world.peer()
            peer.send(*_requests(BATCH, TWIN, ECHO, BATCH, BATCH))
            answers = await peer.wait_answers(5)
            assert served.batches == [[0, 1], [3, 4]]
            assert {answer.opaque: bytes(answer.body) for answer in answers} == {
                number: b"%d" % number for number in range(5)
            }

    world.run(main)


def test_a_batch_is_no_larger_than_what_may_be_under_way(world: World) -> None:
    served = Served(world)
    served.weight = 1

    async def main() -> None:
        async with world.listener(in_flight_max=3):
            peer = await world.peer()
            peer.send(*_requests(*[BATCH] * 8))
            await peer.wait_answers(8)
            assert served.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]

    world.run(main)


def test_an_error_in_a_batch_is_answered_to_each_but_the_oneways(world: World) -> None:
    served = Served(world)
    served.error = RuntimeError("broken")

    async def main() -> None:
        async with world.listener():
            peer = await world.peer()
            commands = _requests(BATCH, BATCH, ECHO)
            commands[0].flag = 2
            peer.send(*commands)
            answers = await peer.wait_answers(2)
            assert {answer.opaque: answer.code for answer in answers} == {1: 1, 2: 0}

    world.run(main)


def test_answers_that_wait_do_not_count_as_under_way_unless_they_say_so(world: World) -> None:
    served = Served(world)

    async def main() -> None:
        async with world.listener(in_flight_max=2):
            peer = await world.peer()
            peer.send(*_requests(*[RAW] * 20, ECHO))
            (answer,) = await peer.wait_answers(1)
            assert answer.opaque == 20
            assert len(served.deferred) == 20
            for deferred in served.deferred:
                deferred.answer([Command(0, 99, 1)])
                deferred.answer([Command(0, 98, 1)])  # The second time nobody listens.
            answers = await peer.wait_answers(21)
            assert [answer.opaque for answer in answers[1:]] == [99] * 20

    world.run(main)


def test_encoded_and_early_answers_arrive(world: World) -> None:
    Served(world)

    async def main() -> None:
        async with world.listener():
            peer = await world.peer()
            peer.send(
                Command(RAW, 1, 0, {}, b"bytes"),
                Command(RAW, 2, 2, {}, b"bytes"),
                Command(RAW, 3, 0, {}, b"early"),
            )
            answers = await peer.wait_answers(2)
            assert sorted(answer.opaque for answer in answers) == [1, 3]

    world.run(main)


def test_answers_that_wait_are_dropped_with_the_connection(world: World) -> None:
    served = Served(world)

    async def main() -> None:
        async with world.listener():
            peer = await world.peer()
            peer.send(*_requests(RAW, RAW))
            await asyncio.sleep(0.1)
            peer.transport.abort()
            await asyncio.sleep(0.1)
            assert served.dropped == 2
            for deferred in served.deferred:
                deferred.answer([Command(0, 0, 1)])  # Nobody is there; nothing happens.

    world.run(main)


def test_the_end_of_a_listener_does_not_wait_for_held_answers_but_for_weighty_ones(
    world: World,
) -> None:
    served = Served(world)

    async def main() -> None:
        begun = world.loop.time()
        async with world.listener():
            peer = await world.peer()
            peer.send(*_requests(RAW))
            await asyncio.sleep(0.1)
        assert world.loop.time() - begun < 0.5
        assert served.dropped == 1
        served.weight = 1
        begun = world.loop.time()
        async with world.listener():
            peer = await world.peer()
            peer.send(*_requests(BATCH))
            await asyncio.sleep(0.1)
        assert 1 <= world.loop.time() - begun < 2
        assert len(peer.answers) == 1

    world.run(main)
