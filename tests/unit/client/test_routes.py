"""RouteCache: asked once, refreshed every 30 seconds, and kept through every outage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylark.client.routes import RouteCache
from skylark.errors import BrokerError, ConnectFailed, InvalidBody, TransportError
from skylark.model.route import BrokerData, QueueData, TopicRoute
from skylark.testing import SimClock, SimLoop

ROUTE = TopicRoute((BrokerData("c", "b", {0: "10.0.0.1:10911"}),), (QueueData("b", 4, 4, 6),))
OTHER = TopicRoute((BrokerData("c", "b", {0: "10.0.0.2:10911"}),), (QueueData("b", 8, 8, 6),))


class Servers:
    """Name servers that answer what they are told to."""

    def __init__(self) -> None:
        self.answer: TopicRoute | Exception = ROUTE
        self.asked = 0
        self.slow = False

    async def get_route(self, topic: str) -> TopicRoute:
        self.asked += 1
        if self.slow:
            await asyncio.sleep(1)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    find_route = get_route


class Scene:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.clock = SimClock(self.loop)
        self.servers = Servers()
        self.changes: list[tuple[str, TopicRoute]] = []
        fake: Any = self.servers
        self.cache = RouteCache(
            fake, self.clock, on_change=lambda topic, route: self.changes.append((topic, route))
        )

    def play(self, story: Any) -> None:
        with self.loop:
            self.loop.run(story())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_first_use_asks_and_the_second_does_not(scene: Scene) -> None:
    async def story() -> None:
        assert scene.cache.known("T") is None
        assert await scene.cache.get("T") is ROUTE
        assert await scene.cache.get("T") is ROUTE
        assert scene.servers.asked == 1
        assert scene.cache.topics == ["T"]

    scene.play(story)


def test_a_change_is_seen_within_30_seconds_and_told_once(scene: Scene) -> None:
    async def story() -> None:
        async with scene.cache.running():
            await scene.cache.get("T")
            scene.servers.answer = OTHER
            await scene.clock.sleep_ms(29_000)
            assert scene.cache.known("T") is ROUTE
            await scene.clock.sleep_ms(1_001)
            assert scene.cache.known("T") is OTHER
            await scene.clock.sleep_ms(90_000)
            assert scene.servers.asked == 5
        assert scene.changes == [("T", ROUTE), ("T", OTHER)]

    scene.play(story)


@pytest.mark.parametrize(
    "outage",
    [
        ConnectFailed("10.0.0.1:9876", "nothing listens"),
        TransportError("10.0.0.1:9876", "no name server answers"),
        BrokerError(17, "No topic route info"),
        InvalidBody("not JSON"),
    ],
)
def test_the_last_good_route_stays_through_an_outage(scene: Scene, outage: Exception) -> None:
    async def story() -> None:
        async with scene.cache.running():
            await scene.cache.get("T")
            scene.servers.answer = outage
            await scene.clock.sleep_ms(600_000)
            assert await scene.cache.get("T") is ROUTE
            assert scene.cache.age_ms("T") == 600_000
            assert not await scene.cache.refresh("T")
            scene.servers.answer = OTHER
            await scene.clock.sleep_ms(30_001)
            assert scene.cache.known("T") is OTHER

    scene.play(story)


def test_a_topic_that_nobody_knows_is_not_remembered(scene: Scene) -> None:
    async def story() -> None:
        scene.servers.answer = BrokerError(17, "No topic route info")
        for _ in range(2):
            with pytest.raises(BrokerError):
                await scene.cache.get("T")
        assert scene.servers.asked == 2
        assert scene.cache.topics == []
        assert scene.cache.age_ms("T") is None
        scene.servers.answer = ROUTE
        assert await scene.cache.get("T") is ROUTE

    scene.play(story)


def test_one_question_serves_all_who_wait(scene: Scene) -> None:
    async def story() -> None:
        scene.servers.slow = True
        routes = await asyncio.gather(*(scene.cache.get("T") for _ in range(50)))
        assert set(map(id, routes)) == {id(ROUTE)}
        assert scene.servers.asked == 1
        assert scene.cache._asking == {}

    scene.play(story)


def test_one_who_gives_up_does_not_end_it_for_the_others(scene: Scene) -> None:
    async def story() -> None:
        scene.servers.slow = True
        first = asyncio.ensure_future(scene.cache.get("T"))
        second = asyncio.ensure_future(scene.cache.get("T"))
        await scene.clock.sleep_ms(500)
        first.cancel()
        assert await second is ROUTE
        assert scene.cache._asking == {}

    scene.play(story)


def test_a_forgotten_topic_is_asked_for_again(scene: Scene) -> None:
    async def story() -> None:
        await scene.cache.get("T")
        scene.cache.forget("T")
        assert scene.cache.known("T") is None
        await scene.cache.get("T")
        assert scene.servers.asked == 2

    scene.play(story)


def test_there_is_a_limit_on_kept_topics(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.client.routes.TOPICS_MAX", 2)

    async def story() -> None:
        for topic in ("A", "B", "C"):
            await scene.cache.get(topic)
        assert scene.cache.topics == ["B", "C"]

    scene.play(story)


def test_a_bug_in_a_listener_comes_out_of_the_block(scene: Scene) -> None:
    def broken(topic: str, route: TopicRoute) -> None:
        raise ZeroDivisionError

    async def story() -> None:
        await scene.cache.get("T")
        scene.cache._on_change = broken
        scene.servers.answer = OTHER
        with pytest.raises(ZeroDivisionError):
            async with scene.cache.running():
                await scene.clock.sleep_ms(40_000)

    scene.play(story)
