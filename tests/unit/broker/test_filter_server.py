"""Predicates at the broker: who may upload them, which pulls they answer, what a bad one costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.broker.filter_server import QUESTIONS_MAX, VERSIONS_KEPT
from skylark.errors import ConnectionLost
from skylark.model.group import Subscription
from skylark.protocol import acl
from skylark.protocol.bodies import CheckClientConfigBody, ConsumerData
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.sandbox import PredicateFailed

KEYS = {"filter_server_access_key": "admin", "filter_server_secret_key": "secret-of-admin"}
ON = {"filter_server_nums": 2, **KEYS}


class FakeWorker:
    """Stands for a process; its source is a name, and what to do is looked up."""

    def __init__(self, home: FakeWorkers) -> None:
        self._home = home
        self.layers = ("nothing",)
        self.source = ""
        self.is_alive = True

    async def load(self, source: str) -> None:
        if source.startswith("bad"):
            raise PredicateFailed(f"SyntaxError: {source} (line 1)")
        self.source = source

    async def judge(self, batch: bytes, count: int) -> bytes:
        self._home.asked += 1
        await self._home.clock.sleep_ms(5)
        if self.source == "loops":
            await self._home.clock.sleep_ms(1_000)
            self.is_alive = False
            raise PredicateFailed("it took longer than 1000 ms, and was stopped", was_stopped=True)
        if self.source == "raises":
            raise PredicateFailed("ValueError: no (line 2)")
        return bytes(number % 2 == 0 for number in range(count))

    async def close(self) -> None:
        self.is_alive = False
        self._home.closed += 1


class FakeWorkers:
    """Makes them, and counts."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.started = self.closed = self.asked = 0

    async def start(self) -> FakeWorker:
        self.started += 1
        return FakeWorker(self)


async def _upload(
    client: Client, name: str, version: int, source: str, *, secret: str = "secret-of-admin"
) -> Command:
    fields = {"className": name, "version": str(version)}
    signed = acl.sign_fields(fields, source.encode(), access_key="admin", secret_key=secret)
    return await client.call(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, signed, source.encode())


async def _fill(client: Client, count: int) -> None:
    for number in range(count):
        assert (await client.send("T", b"m%d" % number)).code == 0


@pytest.fixture
def workers(world: BrokerWorld) -> FakeWorkers:
    world.workers = FakeWorkers(world.clock)
    return world.workers


def _serving(world: BrokerWorld, main: Callable[[Client], Any], **settings: Any) -> None:
    async def run() -> None:
        async with world.serving(**{**ON, **settings}) as client:
            await world.clock.sleep_ms(10)
            await main(client)

    world.run(run)


def test_a_pull_gets_what_the_predicate_lets_pass(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 6)
        assert (await _upload(client, "even", 1, "even")).code == 0
        answer = await client.pull("T", tags="even", expressionType="PYTHON")
        assert [one.body for one in records(answer)] == [b"m0", b"m2", b"m4"]
        assert answer.fields["nextBeginOffset"] == "6"
        answer = await client.pull("T", offset=1, count=1, tags="even@1", expressionType="PYTHON")
        assert [one.body for one in records(answer)] == [b"m1"]
        wanted = Subscription(topic="T", expression="even", expression_type="PYTHON", version=3)
        await client.heartbeat(ConsumerData("group", subscriptions=(wanted,)))
        answer = await client.pull("T", tags=None, subVersion=3)
        assert len(records(answer)) == 3

    _serving(world, main)


def test_a_held_pull_is_judged_when_something_arrives(
    world: BrokerWorld, workers: FakeWorkers
) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 1)
        await _upload(client, "even", 1, "even")
        held = asyncio.ensure_future(
            client.pull("T", offset=1, tags="even", expressionType="PYTHON", suspend_ms=9_000)
        )
        await world.clock.sleep_ms(100)
        assert not held.done()
        await client.send("T", b"new")
        assert [one.body for one in records(await held)] == [b"new"]

    _serving(world, main)


def test_workers_are_there_from_the_start_and_gone_at_the_end(
    world: BrokerWorld, workers: FakeWorkers
) -> None:
    async def main(client: Client) -> None:
        assert workers.started == 3

    _serving(world, main, filter_server_nums=3)
    assert workers.closed == 3


def test_only_the_admin_may_upload(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        for secret in ("", "guessed"):
            answer = await _upload(client, "p", 1, "even", secret=secret)
            assert answer.code == ResponseCode.NO_PERMISSION
        plain = {"className": "p", "version": "1"}
        answer = await client.call(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, plain, b"even")
        assert answer.code == ResponseCode.NO_PERMISSION
        fields = acl.sign_fields(plain, b"even", access_key="admin", secret_key="secret-of-admin")
        answer = await client.call(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, fields, b"other")
        assert answer.code == ResponseCode.NO_PERMISSION
        answer = await client.pull("T", tags="p", expressionType="PYTHON")
        assert answer.code != 0
        # Once it is right, it works once: an old upload cannot be played again.
        answer = await client.call(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, fields, b"even")
        assert (answer.code, answer.remark) == (0, "p@1")
        answer = await client.call(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, fields, b"even")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "version '1' of p: the next one is 2"

    _serving(world, main)


def test_without_an_admin_nobody_may_upload(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        answer = await _upload(client, "p", 1, "even", secret="")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "set filterServerAccessKey" in (answer.remark or "")

    _serving(world, main, filter_server_access_key="", filter_server_secret_key="")


def test_without_workers_there_are_no_predicates(world: BrokerWorld) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 1)
        answer = await _upload(client, "p", 1, "even")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await client.pull("T", tags="p", expressionType="PYTHON")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "set filterServerNums=1" in (answer.remark or "")
        wanted = Subscription(topic="T", expression="p", expression_type="PYTHON")
        body = CheckClientConfigBody("client", "group", wanted).to_json()
        assert (await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == 1

    _serving(world, main, filter_server_nums=0)


def test_uploads_that_are_no_use_are_refused(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        for name, version, source, words in (
            ("a/b", 1, "even", "name"),
            ("", 1, "even", "name"),
            ("p", 1, "", "1 to 65536 bytes"),
            ("p", 1, "x" * 65_537, "1 to 65536 bytes"),
            ("p", 2, "even", "the next one is 1"),
            ("p", 1, "bad source", "predicate p is not taken: SyntaxError: bad source (line 1)"),
        ):
            answer = await _upload(client, name, version, source)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert words in (answer.remark or "")
        for expression in ("nobody", "p@1", "p@x"):
            answer = await client.pull("TBW102", tags=expression, expressionType="PYTHON")
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    _serving(world, main)


def test_versions_stay_and_are_read_back(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def first(client: Client) -> None:
        await _fill(client, 2)
        for version in range(1, VERSIONS_KEPT + 3):
            assert (await _upload(client, "p", version, f"v{version}")).code == 0

    async def second(client: Client) -> None:
        last = VERSIONS_KEPT + 2
        for expression, code in (("p", 0), (f"p@{last}", 0), ("p@3", 0), ("p@2", 23)):
            answer = await client.pull("T", tags=expression, expressionType="PYTHON")
            assert answer.code == code
        assert (await _upload(client, "p", last + 1, "newer")).code == 0

    _serving(world, first)
    _serving(world, second)


def test_a_predicate_that_is_stopped_rests_and_the_broker_goes_on(
    world: BrokerWorld, workers: FakeWorkers
) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 2)
        await _upload(client, "hostile", 1, "loops")
        await _upload(client, "even", 1, "even")
        asked = asyncio.ensure_future(client.pull("T", tags="hostile", expressionType="PYTHON"))
        await world.clock.sleep_ms(100)
        for expression, kind in (("*", "TAG"), ("even", "PYTHON")):
            before_ms = world.clock.monotonic_ms()
            answer = await client.pull("T", tags=expression, expressionType=kind)
            assert answer.code == 0
            assert world.clock.monotonic_ms() - before_ms < 20
        answer = await asked
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "predicate hostile@1 failed: it took longer than 1000 ms, and was stopped; it rests "
            "for 5 s, upload a better version"
        )
        count = workers.asked
        again = await client.pull("T", tags="hostile", expressionType="PYTHON")
        assert (again.code, again.remark) == (answer.code, answer.remark)
        assert workers.asked == count
        assert world.parts.predicates.stopped_total == 1
        await world.clock.sleep_ms(5_100)
        answer = await client.pull("T", tags="hostile", expressionType="PYTHON")
        assert "it rests for 10 s" in (answer.remark or "")
        # A better version is not held back.
        await _upload(client, "hostile", 2, "even")
        assert (await client.pull("T", tags="hostile", expressionType="PYTHON")).code == 0

    _serving(world, main)


def test_a_stop_does_not_wait_for_a_predicate(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def run() -> None:
        async with world.connected() as client:
            async with world.running(**ON, stop_grace_ms=0):
                await world.clock.sleep_ms(10)
                await _fill(client, 1)
                await _upload(client, "hostile", 1, "loops")
                asked = asyncio.ensure_future(
                    client.pull("T", tags="hostile", expressionType="PYTHON")
                )
                await world.clock.sleep_ms(50)
                stopped_at_ms = world.clock.monotonic_ms()
            assert world.clock.monotonic_ms() - stopped_at_ms < 500
            with pytest.raises(ConnectionLost):
                await asked

    world.run(run)
    assert workers.started == workers.closed


def test_a_predicate_that_raises_says_so(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 1)
        await _upload(client, "wrong", 1, "raises")
        answer = await client.pull("T", tags="wrong", expressionType="PYTHON")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "wrong@1 failed: ValueError: no (line 2); it rests for 1 s" in (answer.remark or "")

    _serving(world, main)


def test_more_predicates_than_workers_take_turns(world: BrokerWorld, workers: FakeWorkers) -> None:
    async def main(client: Client) -> None:
        await _fill(client, 1)
        for number in range(5):
            await _upload(client, f"p{number}", 1, f"source {number}")
        for _ in range(3):
            pulls = [
                client.pull("T", tags=f"p{number}", expressionType="PYTHON") for number in range(5)
            ]
            assert [answer.code for answer in await asyncio.gather(*pulls)] == [0] * 5
        assert workers.started - workers.closed <= 2
        assert QUESTIONS_MAX > 5

    _serving(world, main)
