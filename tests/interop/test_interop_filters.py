"""Message selectors of the official Java client: push, pull and lite pull by SQL92, and by tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from filter_peer import ask as ask_apache
from java_programs import JavaSession
from our_broker import OurBroker, our_cluster
from peers import ApacheBroker, ApacheNameServer, OurNameServer, Peers

from skylark.filter import SqlExpression

pytestmark = pytest.mark.interop

COUNT = 120
ON = {"enablePropertyFilter": "true"}
BITS = {**ON, "enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}
EXPRESSIONS = [
    "(TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 7 and 19)",
    "b IS NULL AND a >= 100",
    "b = TRUE OR a < 5",
    "NOT (a > 3) OR a NOT BETWEEN 0 AND 117",
    "a > 110.5",
]


def properties_of(number: int) -> dict[str, str]:
    """What the Java program gives to a message."""
    found = {"a": str(number), "TAGS": ("TagA", "TagB", "TagC")[number % 3]}
    if number % 3 == 0:
        found["b"] = "true" if number % 2 == 0 else "text"
    return found


@dataclass
class Place:
    """A running cluster, and one process that holds the official client."""

    kind: str
    address: str
    client: JavaSession
    home: Path

    def run(self, command: str, *arguments: str | int) -> str:
        """Run one command of the Java program and return what it says."""
        words = [command, self.address, *map(str, arguments)]
        (line,) = (one for one in self.client.ask(*words, timeout_s=120) if one[:1] == ">")
        return line[2:]

    def got(self, command: str, *arguments: str | int) -> list[int]:
        """The numbers of the messages received."""
        return [int(word) for word in self.run(command, *arguments).split()]


@pytest.fixture(scope="module", params=["ours", "ours-5.x", "ours-with-bits", "apache-with-bits"])
def place(
    request: pytest.FixtureRequest,
    peers: Peers,
    clients5: Peers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    kind = request.param
    chosen = clients5 if kind.endswith("5.x") else peers
    home = tmp_path_factory.mktemp("filters")
    settings = BITS if kind.endswith("bits") else ON
    with ExitStack() as stack:
        if kind.startswith("ours"):
            name_server, _ = stack.enter_context(our_cluster(home, **settings))
            address = name_server.address
        else:
            apache = stack.enter_context(ApacheNameServer(peers, home / "namesrv"))
            broker = ApacheBroker(
                peers,
                home / "broker",
                name="broker-a",
                name_servers=[apache.address],
                settings=settings,
            )
            stack.enter_context(broker)
            broker.wait_registered([apache])
            address = apache.address
        client = stack.enter_context(
            JavaSession(chosen, "FilterClient", "session", home=home / "client")
        )
        made = Place(kind, address, client, home)
        assert made.run("produce", "Filtered", 0, COUNT) == f"sent {COUNT}"
        yield made


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
@pytest.mark.parametrize("way", ["push", "pull", "lite"])
def test_exactly_the_messages_that_match_are_received(place: Place, way: str, number: int) -> None:
    text = EXPRESSIONS[number]
    expression = SqlExpression(text)
    wanted = [one for one in range(COUNT) if expression.matches(properties_of(one))]
    assert 0 < len(wanted) < COUNT / 2
    got = place.got(way, "Filtered", f"{way}-{number}", len(wanted), text)
    assert got == wanted


def test_messages_sent_after_the_consumer_came_are_filtered_by_their_bits_too(
    place: Place,
) -> None:
    text = "a BETWEEN 5 AND 9"
    assert place.got("push", "Filtered", "regulars", 5, text) == [5, 6, 7, 8, 9]
    place.run("produce", "Filtered", 0, 20)  # Their bits are worked out for the group above.
    place.run("produce", "Filtered", 1_000, 10)
    assert place.got("push", "Filtered", "regulars", 5, text) == [5, 6, 7, 8, 9]
    assert place.got("push", "Filtered", "late", 10, "a >= 1000") == list(range(1_000, 1_010))


def test_tags_are_selected_as_well(place: Place) -> None:
    place.run("produce", "Tagged", 0, 30)
    wanted = [one for one in range(30) if one % 3 != 1]
    assert place.got("tags", "Tagged", "taggers", len(wanted), "TagA || TagC") == wanted


def test_an_expression_that_is_wrong_stops_the_consumer_at_its_start(place: Place) -> None:
    answer = place.run("start", "Filtered", "wrong", 0, "a >")
    assert answer.startswith("refused 23 ")


def test_a_broker_without_expressions_refuses_the_consumer(peers: Peers, tmp_path: Path) -> None:
    with (
        our_cluster(tmp_path) as (name_server, _),
        JavaSession(peers, "FilterClient", "session", home=tmp_path / "client") as client,
    ):
        place = Place("ours", name_server.address, client, tmp_path)
        place.run("produce", "Filtered", 0, 1)
        answer = place.run("start", "Filtered", "unheard", 0, "a > 5")
        assert answer.startswith("refused 1 ")
        assert "does not support consumer to filter message by SQL92" in answer


def test_filters_and_their_bits_change_hands(peers: Peers, tmp_path: Path) -> None:
    """Either broker opens the other's store, with the filters and bits that it left there."""
    text = "a BETWEEN 5 AND 9"
    store = tmp_path / "store"
    settings = {**BITS, "storePathRootDir": str(store), "storePathCommitLog": f"{store}/commitlog"}
    settings |= {"maxIndexNum": "20000", "maxHashSlotNum": "5000"}
    wanted = [5, 6, 7, 8, 9]
    for turn, kind in enumerate(("ours", "apache", "ours")):
        with ExitStack() as stack:
            home = tmp_path / f"{kind}-{turn}"
            server = stack.enter_context(OurNameServer(home / "namesrv"))
            broker: OurBroker | ApacheBroker
            if kind == "ours":
                broker = OurBroker(
                    home, name="broker-a", name_servers=[server.address], settings=settings
                )
            else:
                broker = ApacheBroker(
                    peers, home, name="broker-a", name_servers=[server.address], settings=settings
                )
            stack.enter_context(broker)
            client = stack.enter_context(
                JavaSession(peers, "FilterClient", "session", home=home / "client")
            )
            place = Place(kind, server.address, client, home)
            if turn:
                # The group's bits, written by the other broker, lead to the same messages.
                assert place.got("push", "Swapped", f"late-{turn}", 5, text) == wanted
                assert place.got("push", "Swapped", "regulars", 5, text) == wanted
            else:
                place.run("produce", "Swapped", 0, 1)  # So that there is a route.
                assert place.got("push", "Swapped", "regulars", 0, text) == []
            place.run("produce", "Swapped", 0, 20)
            assert broker.stop() in (0, 143)
            found = json.loads((store / "config" / "consumerFilter.json").read_text())
            known = found["filterDataByTopic"]["Swapped"]["groupFilterData"]["regulars"]
            assert known["expression"] == text
            assert known["bloomFilterData"]["bitNum"] == 112


def test_the_recorded_answers_are_still_apaches(peers: Peers) -> None:
    assert ask_apache(peers, ["bloom\t20\t32\tQ0lEXzEjVG9waWNUZXN0"]) == [
        "3 112 6,38,41 4000000040020000000000000000"
    ]
