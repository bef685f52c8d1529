"""Cluster: which queues there are, while brokers come and go."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.errors import BrokerError, ConfigError, TransportError
from skylark.model.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from skylark.protocol.bodies import ClusterInfoBody, TopicList, TopicRouteBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark import cluster as clusters
from skylark.spark.cluster import TEMPLATE_TOPIC, Cluster
from skylark.spark.offsets import QueueKey
from skylark.spark.options import Access, read_options

A, B = (QueueKey("Topic", name, 0) for name in ("a", "b"))


class NameServer(Cluster):
    """Answers with the brokers that are there, each answer with the next of a list."""

    def __init__(self, *there: str, retry_ms: int = 10_000) -> None:
        super().__init__(Access("ns:1", retry_ms=retry_ms))
        self.there = list(there)
        self.queues_each = 1
        self.replicas_only: set[str] = set()
        self.moved_to = ""  # Where the masters are now.
        self.perm = 6
        self.without_topic: set[str] = set()
        self.template_queues = 0  # 0: brokers make no topics by themselves.

    def _ask_name_servers(self, code: int, fields: dict[str, str]) -> bytes:
        names = self.there.pop(0) if len(self.there) > 1 else self.there[0]
        brokers = {
            name: BrokerData(
                "cluster", name, {int(name in self.replicas_only): self.moved_to or f"{name}:1"}
            )
            for name in names
        }
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return ClusterInfoBody(ClusterInfo(brokers)).to_json()
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return TopicList(("Topic",) if names else ()).to_json()
        count = self.queues_each
        if fields["topic"] == TEMPLATE_TOPIC and self.template_queues:
            queues = tuple(QueueData(name, 8, self.template_queues, 7) for name in names)
            return TopicRouteBody(TopicRoute(tuple(brokers.values()), queues)).to_json()
        # As name servers do, who forget a topic with its last broker.
        serving = [name for name in names if name not in self.without_topic]
        if not serving:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no route", "ns:1")
        queues = tuple(QueueData(name, count, count, self.perm) for name in serving)
        return TopicRouteBody(TopicRoute(tuple(brokers.values()), queues)).to_json()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr(clusters, "time", clock)


def test_a_queue_that_a_topic_gets_later_is_seen() -> None:
    cluster = NameServer("a")
    assert cluster.queues(["Topic"]) == [A]
    cluster.queues_each = 2
    assert cluster.queues(["Topic"], [A]) == [A, QueueKey("Topic", "a", 1)]


def test_a_broker_that_is_back_once_its_queue_was_missed_has_lost_nothing() -> None:
    # The route without it, and just then it is there again.
    cluster = NameServer("b", "ab")
    assert cluster.queues(["Topic"], [A, B]) == [A, B]


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(("b", "b", "ab"), id="it comes back late"),
        pytest.param(("b", "ab", "b", "b", "ab"), id="and it goes once more"),
    ],
)
def test_a_broker_that_is_away_is_waited_for(there: tuple[str, ...]) -> None:
    assert NameServer(*there).queues(["Topic"], [A, B]) == [A, B]


def test_a_queue_is_gone_where_its_broker_is_there_without_it() -> None:
    cluster = NameServer("ab")
    cluster.without_topic = {"a"}
    assert cluster.queues(["Topic"], [A, B]) == [B]


@pytest.mark.parametrize(
    ("there", "settling_s"),
    [
        pytest.param(["", "", "", "ab"], 0.0, id="no broker is there"),
        pytest.param(["b", "b", "b", "ab"], 5.0, id="only one without the topic"),
    ],
)
def test_a_sinks_topic_is_looked_for_while_its_broker_restarts(
    there: list[str], settling_s: float
) -> None:
    cluster = NameServer(*there)
    cluster.without_topic = {"b"}
    assert cluster.writable_queues("Topic", settling_s=settling_s) == [A]


def test_a_sinks_topic_that_nobody_has_is_said_at_once() -> None:
    cluster = NameServer("b")
    cluster.without_topic = {"b"}
    with pytest.raises(ConfigError, match="option topic: there is no topic Topic at ns:1; make"):
        cluster.writable_queues("Topic")
    assert clusters.time.monotonic() == 0.0


@pytest.mark.parametrize(("allowed", "made"), [(8, 4), (2, 2)])
def test_a_new_topic_has_the_queues_that_a_producer_asks_for(allowed: int, made: int) -> None:
    cluster = NameServer("ab")
    cluster.without_topic = {"a", "b"}
    cluster.template_queues = allowed
    wanted = [QueueKey("Topic", name, number) for name in "ab" for number in range(made)]
    assert cluster.writable_queues("Topic") == wanted
    assert cluster.writable_queues("Topic") == wanted  # Also from what is remembered.


def test_a_topic_is_gone_where_its_broker_is_there_without_it() -> None:
    cluster = NameServer("ab")
    cluster.without_topic = {"a", "b"}
    assert cluster.queues(["Topic"], [A]) == []


def test_a_topic_whose_only_broker_restarts_is_waited_for() -> None:
    assert NameServer("", "", "", "a").queues(["Topic"], [A]) == [A]


def test_a_pattern_keeps_a_topic_that_name_servers_forget_while_its_broker_restarts() -> None:
    options = read_options({"namesrv": "ns:1", "topicsPattern": "To.*"}, is_stream=True)
    cluster = NameServer("a", "")
    assert cluster.topics(options) == ("Topic",)
    assert cluster.topics(options) == ()
    assert cluster.topics(options, ["Topic", "Other"]) == ("Topic",)


def test_a_broker_that_stays_away_is_named() -> None:
    with pytest.raises(TransportError, match="no broker a, of Topic/a/0, is there now"):
        NameServer("b", retry_ms=1_000).queues(["Topic"], [A, B])


def test_a_replica_that_is_back_before_its_master_takes_no_queues_away() -> None:
    cluster = NameServer("ab", retry_ms=1_000)
    cluster.without_topic = cluster.replicas_only = {"a"}
    with pytest.raises(TransportError, match="no broker a, of Topic/a/0, is there now"):
        cluster.queues(["Topic"], [A, B])


def test_a_master_that_has_become_a_replica_is_not_believed_any_more() -> None:
    # In a Raft group roles change under connections that stay, and workers keep what they know.
    cluster = NameServer("a", retry_ms=1_000)
    cluster.require_master(A, "ends at 8")
    cluster.replicas_only = {"a"}
    with pytest.raises(TransportError, match="ends at 8, at a replica"):
        cluster.require_master(A, "ends at 8")


def test_a_new_master_that_is_known_meanwhile_says_where_a_queue_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = NameServer("a")
    ends = {True: 40, False: 8}  # At the new master, and at the one that was.
    monkeypatch.setattr(
        cluster, "max_offset", lambda queue: ends[cluster.broker_address(*queue[:2]) == "new:1"]
    )
    assert cluster.settled_end(A, 8) == 8
    cluster.moved_to = "new:1"
    assert cluster.settled_end(A, 40) == 40


def test_who_may_lose_data_goes_on_without_a_broker_until_it_is_back() -> None:
    cluster = NameServer("b", retry_ms=1_000)
    assert cluster.queues(["Topic"], [A, B], may_be_gone=True) == [B]
    waited = clusters.time.monotonic()
    assert waited >= 0.5
    assert cluster.queues(["Topic"], [A, B], may_be_gone=True) == [B]
    assert clusters.time.monotonic() == waited, "it is not waited for again"
    cluster.there = ["ab"]
    assert cluster.queues(["Topic"], [A, B], may_be_gone=True) == [A, B]
    cluster.there = ["b"]
    assert cluster.queues(["Topic"], [A, B], may_be_gone=True) == [B]
    assert clusters.time.monotonic() > waited, "it may just restart"


def test_who_may_lose_data_does_not_go_on_without_name_servers() -> None:
    cluster = Cluster(Access("127.0.0.1:1", retry_ms=0))
    with pytest.raises(TransportError, match="no name server"):
        cluster.queues(["Topic"], [A], may_be_gone=True)


def test_a_pattern_passes_over_topics_that_may_not_be_read_or_are_gone() -> None:
    cluster = NameServer("ab")
    cluster.perm = 2
    with pytest.raises(ConfigError, match="Topic may not be read"):
        cluster.queues(["Topic"])
    assert cluster.queues(["Topic"], of_pattern=True) == []
    cluster.without_topic = {"a", "b"}
    assert cluster.queues(["Topic"], of_pattern=True) == []


def test_a_topic_is_looked_for_while_no_broker_is_there_at_all() -> None:
    assert NameServer("", "", "", "", "a").queues(["Topic"]) == [A]


def test_a_name_server_that_is_silent_is_not_waited_for_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(Access("ns:1;ns:2"))
    asked = []

    def wire(address: str) -> Any:
        asked.append(address)
        if address == silent:
            raise TransportError(address, "cannot be reached: timed out")
        return SimpleNamespace(call=lambda code, fields: Command(0, body=b"found"))

    monkeypatch.setattr(cluster, "wire", wire)
    silent = "ns:1"
    for _ in range(3):
        assert cluster._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {}) == b"found"
    assert asked == ["ns:1", "ns:2", "ns:2", "ns:2"]
    silent = "ns:2"
    assert cluster._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {}) == b"found"


class Remembering(Cluster):
    """Two name servers that remember what they are told."""

    def __init__(self, *kept: str | None) -> None:
        super().__init__(Access("ns:1;ns:2"))
        self.kept = dict(zip(("ns:1", "ns:2"), kept, strict=True))

    def wire(self, address: str) -> Any:
        @dataclass
        class Asked:
            kept: dict[str, str | None]

            def call(self, code: int, fields: dict[str, str]) -> Command:
                if code == RequestCode.PUT_KV_CONFIG:
                    self.kept[address] = fields["value"]
                found = self.kept[address]
                if found is None:
                    raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "none", address)
                return Command(0, fields={"value": found})

        return Asked(self.kept)

    def brokers(self) -> dict[str, BrokerData]:
        return {"a": BrokerData("cluster", "a", {0: "a:1"})}


@pytest.mark.parametrize("kept", [("b", None), (None, "b"), ("b", "b")])
def test_a_new_name_server_is_told_who_keeps_decisions(kept: tuple[str | None, ...]) -> None:
    cluster = Remembering(*kept)
    assert cluster.coordinator() == "b"
    assert set(cluster.kept.values()) == {"b"}, "also when the other one is replaced"


def test_name_servers_that_do_not_agree_who_keeps_decisions_are_named() -> None:
    cluster = Remembering("b", "a")
    with pytest.raises(ConfigError, match=r"do not agree .*a \(ns:2\), b \(ns:1\).*mqadmin"):
        cluster.coordinator()
    assert cluster.kept == {"ns:1": "b", "ns:2": "a"}


def test_all_name_servers_are_told_who_keeps_decisions() -> None:
    cluster = Remembering(None, None)
    assert cluster.coordinator() == "a"
    assert set(cluster.kept.values()) == {"a"}


@pytest.mark.parametrize("text", ["", ";", " ; "])
def test_a_list_of_no_name_servers_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=r"option namesrv=.*: it names no server"):
        Cluster(Access(text))
