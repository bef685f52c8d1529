"""RouteTable: registration, claims, expiry, permissions, lists, and the bytes of its answers."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.errors import BrokerError
from skylark.model.topic import TopicConfig
from skylark.model.version import DataVersion
from skylark.nameserver import route_table
from skylark.nameserver.route_table import BrokerIdentity, MasterAddress, RouteTable
from skylark.protocol.bodies import TopicConfigTable, TopicRouteBody

MASTER = BrokerIdentity(cluster="c", name="b", id=0, address="10.0.0.1:10911")
REPLICA = BrokerIdentity(cluster="c", name="b", id=1, address="10.0.0.2:10911")
OTHER = BrokerIdentity(cluster="c", name="a", id=0, address="10.0.0.3:10911")
FOREIGN = BrokerIdentity(cluster="d", name="f", id=0, address="10.0.0.4:10911")

V1 = DataVersion(timestamp=5, counter=0)
V2 = DataVersion(timestamp=5, counter=1)


def topics(*configs: TopicConfig, version: DataVersion = V1) -> TopicConfigTable:
    return TopicConfigTable({config.name: config for config in configs}, version)


T = TopicConfig("T", 4, 4)
TABLE = topics(T)


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def register(
    table: RouteTable,
    broker: BrokerIdentity,
    content: TopicConfigTable = TABLE,
    *,
    owner: object = "conn",
    now_ms: int = 0,
    ha_address: str | None = None,
    filter_servers: tuple[str, ...] = (),
    leader_term: int | None = None,
) -> MasterAddress | None:
    return table.register(
        broker,
        table=content,
        owner=owner,
        now_ms=now_ms,
        ha_address=ha_address,
        filter_servers=filter_servers,
        leader_term=leader_term,
    )


# The answer's bytes.


def test_a_route_for_old_clients_has_bare_ids(table: RouteTable) -> None:
    register(table, dataclasses.replace(MASTER, cluster="c"))
    register(table, REPLICA, owner="other")
    assert table.route_body("T", standard=False, order_conf="b:4") == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b",'
        b'"cluster":"c"}],"filterServerTable":{},"orderTopicConf":"b:4","queueDatas":[{"brokerName":'
        b'"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_a_route_for_new_clients_has_quoted_ids_and_no_order_unless_asked(
    table: RouteTable,
) -> None:
    register(table, MASTER)
    assert table.route_body("T", standard=True) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,'
        b'"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_other_scripts_are_escaped_only_for_new_clients(table: RouteTable) -> None:
    register(table, dataclasses.replace(MASTER, cluster="集群"))
    assert "集群".encode() in (table.route_body("T", standard=False) or b"")
    assert b"\\u96c6\\u7fa4" in (table.route_body("T", standard=True) or b"").lower()


def test_cluster_info_has_bare_ids_for_everybody(table: RouteTable) -> None:
    register(table, MASTER)
    register(table, REPLICA, owner="other")
    assert table.cluster_body() == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"b","cluster":"c"}},"clusterAddrTable":{"c":["b"]}}'
    )


def test_an_empty_table_answers_empty_maps(table: RouteTable) -> None:
    assert table.cluster_body() == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    assert table.route_body("T", standard=True) is None
    assert table.topics() == []
    assert table.system_topics() == ([], None)


def test_brokers_and_queues_are_sorted_whatever_the_order_of_arrival(table: RouteTable) -> None:
    names = [f"broker-{i}" for i in range(20)]
    for order in range(5):
        fresh = RouteTable()
        for name in random.Random(order).sample(names, len(names)):
            number = int(name[7:])
            register(fresh, BrokerIdentity(cluster="c", name=name, id=0, address=f"h:{number + 1}"))
        route = fresh.route("T")
        assert route is not None
        assert [queue.broker_name for queue in route.queues] == sorted(names)
        assert [broker.broker_name for broker in route.brokers] == sorted(names)


def test_filter_servers_are_in_the_route_until_the_broker_has_none(table: RouteTable) -> None:
    register(table, MASTER, filter_servers=("10.0.0.9:1",))
    assert b'"filterServerTable":{"10.0.0.1:10911":["10.0.0.9:1"]}' in (
        table.route_body("T", standard=True) or b""
    )
    register(table, MASTER)
    assert b'"filterServerTable":{}' in (table.route_body("T", standard=True) or b"")


# Which topics count.


def test_topics_of_a_replica_do_not_count(table: RouteTable) -> None:
    register(table, REPLICA)
    assert table.topics() == []
    assert sorted(table.cluster_info().brokers) == ["b"]


def test_topics_with_a_known_version_do_not_count_again(table: RouteTable) -> None:
    register(table, MASTER)
    register(table, MASTER, topics(TopicConfig("T", 8, 8), TopicConfig("U", 1, 1)))
    assert table.topics() == ["T"]
    assert table.route("T").queues[0].read_queue_nums == 4  # type: ignore[union-attr]


def test_topics_with_another_version_are_added_and_changed_but_not_removed(
    table: RouteTable,
) -> None:
    register(table, MASTER, topics(T, TopicConfig("OLD", 1, 1)))
    register(table, MASTER, topics(TopicConfig("T", 8, 2), TopicConfig("NEW", 1, 1), version=V2))
    assert table.topics() == ["NEW", "OLD", "T"]
    route = table.route("T")
    assert route is not None
    assert (route.queues[0].read_queue_nums, route.queues[0].write_queue_nums) == (8, 2)


def test_an_older_version_counts_as_another_one(table: RouteTable) -> None:
    """A broker whose clock was years ahead must be able to register after it was set right."""
    register(table, MASTER, topics(T, version=DataVersion(timestamp=2**41, counter=7)))
    register(table, MASTER, topics(TopicConfig("T", 9, 9), version=V1))
    assert table.route("T").queues[0].read_queue_nums == 9  # type: ignore[union-attr]


def test_a_master_that_returns_brings_its_topics_though_a_replica_kept_the_name(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="m")
    register(table, REPLICA, owner="r")
    table.owner_gone("m")
    table.delete_topic("T")
    register(table, MASTER, owner="m2")
    assert table.topics() == ["T"]


def test_while_a_replica_is_left_the_route_stays(table: RouteTable) -> None:
    register(table, MASTER, owner="m")
    register(table, REPLICA, owner="r")
    table.owner_gone("m")
    route = table.route("T")
    assert route is not None
    assert dict(route.brokers[0].addresses) == {1: REPLICA.address}
    table.owner_gone("r")
    assert table.route("T") is None
    assert table.cluster_info().clusters == {}


# One address, one place.


def test_a_replica_that_becomes_master_leaves_its_old_id(table: RouteTable) -> None:
    register(table, REPLICA)
    promoted = dataclasses.replace(REPLICA, id=0)
    register(table, promoted)
    assert dict(table.cluster_info().brokers["b"].addresses) == {0: REPLICA.address}


def test_an_address_that_changes_its_broker_name_leaves_nothing_behind(table: RouteTable) -> None:
    register(table, MASTER, owner="old")
    register(table, dataclasses.replace(MASTER, name="renamed"), owner="new")
    assert sorted(table.cluster_info().brokers) == ["renamed"]
    assert table.owner_gone("old") == []
    assert table.route("T").brokers[0].broker_name == "renamed"  # type: ignore[union-attr]


def test_a_broker_that_moves_to_another_address_keeps_its_route_when_the_old_one_ends(
    table: RouteTable,
) -> None:
    moved = dataclasses.replace(MASTER, address="10.0.0.7:10911")
    register(table, MASTER, owner="old")
    register(table, moved, owner="new")
    assert table.unregister(MASTER, owner="old")
    assert dict(table.cluster_info().brokers["b"].addresses) == {0: moved.address}


def test_what_was_replaced_and_outlives_its_successor_is_back_at_once_and_ends_quietly(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="old")
    register(table, dataclasses.replace(MASTER, address="10.0.0.7:10911"), owner="new")
    table.owner_gone("new")
    assert dict(table.cluster_info().brokers["b"].addresses) == {0: MASTER.address}
    assert table.topics() == ["T"]
    assert [gone.broker for gone in table.owner_gone("old")] == [MASTER]
    assert table.live == []


def test_a_replaced_master_that_registers_again_is_back(table: RouteTable) -> None:
    register(table, MASTER, owner="old")
    register(table, dataclasses.replace(MASTER, address="10.0.0.7:10911"), owner="new")
    table.owner_gone("new")
    register(table, MASTER, owner="old")
    assert table.topics() == ["T"]


def test_a_late_heartbeat_of_a_replaced_broker_does_not_take_its_place_back(
    table: RouteTable,
) -> None:
    """N1, N2: the old process lingers, or what it sent was long under way."""
    moved = dataclasses.replace(MASTER, address="10.0.0.7:10911")
    register(table, MASTER, owner="old")
    register(table, moved, topics(T, TopicConfig("U"), version=V2), owner="new")
    for counter in (2, 3):
        later = topics(T, TopicConfig("Old"), version=DataVersion(5, counter))
        register(table, MASTER, later, owner="old")
        assert dict(table.cluster_info().brokers["b"].addresses) == {0: moved.address}
        assert table.topics() == ["T", "U"]
    assert table.owner_gone("old")
    assert dict(table.cluster_info().brokers["b"].addresses) == {0: moved.address}


def test_a_replaced_broker_that_comes_again_on_a_new_connection_has_its_place(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="old")
    register(table, dataclasses.replace(MASTER, address="10.0.0.7:10911"), owner="new")
    register(table, MASTER, owner="newer")
    assert dict(table.cluster_info().brokers["b"].addresses) == {0: MASTER.address}


def test_a_former_leader_is_not_made_leader_by_the_end_of_its_successor(table: RouteTable) -> None:
    register(table, MASTER, owner="old", leader_term=3)
    register(
        table, dataclasses.replace(MASTER, address="10.0.0.7:10911"), owner="new", leader_term=5
    )
    table.owner_gone("new")
    assert "b" not in table.cluster_info().brokers


# Whose registration it is.


def test_the_end_of_an_older_connection_changes_nothing(table: RouteTable) -> None:
    register(table, MASTER, owner="old")
    register(table, MASTER, owner="new")
    assert table.owner_gone("old") == []
    assert table.topics() == ["T"]
    assert [gone.broker for gone in table.owner_gone("new")] == [MASTER]
    assert table.topics() == []


def test_a_late_unregister_on_an_older_connection_changes_nothing(table: RouteTable) -> None:
    register(table, MASTER, owner="old")
    register(table, MASTER, owner="new")
    assert not table.unregister(MASTER, owner="old")
    assert table.topics() == ["T"]
    assert table.unregister(MASTER, owner="new")
    assert table.topics() == []


def test_a_late_registration_of_an_older_connection_takes_nothing_with_it(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="new")
    register(table, MASTER, owner="old")
    table.unregister(MASTER, owner="old")
    table.owner_gone("old")
    assert table.topics() == ["T"]


def test_a_stranger_cannot_unregister_a_broker(table: RouteTable) -> None:
    register(table, MASTER, owner="owner")
    assert not table.unregister(MASTER, owner="stranger")
    assert table.topics() == ["T"]


def test_to_unregister_what_is_not_there_is_no_error(table: RouteTable) -> None:
    assert table.unregister(MASTER, owner="anyone")


def test_an_unregister_that_names_another_id_changes_nothing(table: RouteTable) -> None:
    register(table, MASTER)
    assert table.unregister(dataclasses.replace(MASTER, id=1), owner="conn")
    assert table.topics() == ["T"]


def test_a_connection_that_carries_several_brokers_takes_all_of_them_along(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="shared")
    register(table, OTHER, owner="shared")
    assert sorted(gone.broker.name for gone in table.owner_gone("shared")) == ["a", "b"]
    assert table.cluster_info().clusters == {}


def test_a_question_about_the_version_keeps_a_broker_alive_on_its_new_connection(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="old", now_ms=0)
    assert table.refresh(MASTER, V1, owner="new", now_ms=100_000)
    assert table.owner_gone("old") == []
    assert table.expire(now_ms=200_000, expiry_ms=120_000)[0] == []
    assert not table.refresh(MASTER, V2, owner="new", now_ms=100_000)


# Expiry.


def test_a_broker_expires_after_more_than_the_allowed_silence(table: RouteTable) -> None:
    register(table, MASTER, now_ms=1_000)
    assert table.expire(now_ms=121_000, expiry_ms=120_000) == ([], [])
    gone, silent = table.expire(now_ms=121_001, expiry_ms=120_000)
    assert [known.broker for known in gone] == [MASTER]
    assert silent == ["conn"]
    assert table.topics() == []


def test_a_silent_old_connection_expires_alone(table: RouteTable) -> None:
    register(table, MASTER, owner="old", now_ms=0)
    register(table, MASTER, owner="new", now_ms=100_000)
    gone, silent = table.expire(now_ms=130_000, expiry_ms=120_000)
    assert (gone, silent) == ([], ["old"])
    assert table.topics() == ["T"]


def test_a_connection_that_still_carries_another_broker_is_not_reported_silent(
    table: RouteTable,
) -> None:
    register(table, MASTER, owner="shared", now_ms=0)
    register(table, OTHER, owner="shared", now_ms=100_000)
    gone, silent = table.expire(now_ms=130_000, expiry_ms=120_000)
    assert [known.broker for known in gone] == [MASTER]
    assert silent == []


def test_time_in_which_nobody_listened_is_not_held_against_brokers(table: RouteTable) -> None:
    register(table, MASTER, now_ms=0)
    table.forgive(500_000, now_ms=510_000)
    assert table.expire(now_ms=510_000, expiry_ms=120_000)[0] == []
    table.forgive(10**9, now_ms=510_000)  # Never into the future.
    assert len(table.expire(now_ms=630_001, expiry_ms=120_000)[0]) == 1


# What a repeated registration skips, and what it must not.


def test_a_repeated_registration_is_recognised_and_keeps_the_broker_alive(
    table: RouteTable,
) -> None:
    table.register(MASTER, table=TABLE, owner="conn", now_ms=0, fingerprint=b"x")
    same = table.repeat(MASTER, b"x", owner="conn", now_ms=100_000)
    assert same == (True, None)
    assert table.expire(now_ms=200_000, expiry_ms=120_000)[0] == []


@pytest.mark.parametrize(
    ("broker", "fingerprint", "ha_address"),
    [
        (MASTER, b"y", None),
        (MASTER, b"x", "10.0.0.1:1"),
        (REPLICA, b"x", None),
        (dataclasses.replace(MASTER, id=1), b"x", None),
        (dataclasses.replace(MASTER, name="n"), b"x", None),
        (dataclasses.replace(MASTER, cluster="d"), b"x", None),
    ],
)
def test_a_registration_that_says_anything_new_is_not_a_repetition(
    table: RouteTable, broker: BrokerIdentity, fingerprint: bytes, ha_address: str | None
) -> None:
    table.register(MASTER, table=TABLE, owner="conn", now_ms=0, fingerprint=b"x")
    assert table.repeat(broker, fingerprint, owner="c", now_ms=0, ha_address=ha_address) == (
        False,
        None,
    )


def test_the_same_bytes_are_read_again_after_the_broker_lost_its_place(table: RouteTable) -> None:
    table.register(MASTER, table=TABLE, owner="old", now_ms=0, fingerprint=b"x")
    register(table, dataclasses.replace(MASTER, address="10.0.0.7:10911"), owner="new")
    assert not table.repeat(MASTER, b"x", owner="old", now_ms=0)[0]


def test_a_replica_learns_where_its_master_is(table: RouteTable) -> None:
    assert register(table, REPLICA, owner="r") is None
    register(table, MASTER, owner="m", ha_address="10.0.0.1:10912")
    expected = MasterAddress("10.0.0.1:10911", "10.0.0.1:10912")
    assert register(table, REPLICA, owner="r") == expected
    table.register(REPLICA, table=TABLE, owner="r", now_ms=0, fingerprint=b"x")
    assert table.repeat(REPLICA, b"x", owner="r", now_ms=0) == (True, expected)


# What operators do.


def test_wiping_takes_writing_from_every_topic_of_the_broker_and_counts_them(
    table: RouteTable,
) -> None:
    register(
        table, MASTER, topics(T, TopicConfig("R", 1, 1, perm=4), TopicConfig("X", 1, 1, perm=7))
    )
    register(table, OTHER, owner="other")
    assert table.route_body("T", standard=True) is not None  # In the cache now.
    assert table.wipe_write_perm("b") == 3
    perms = {name: table.route(name).queues[-1].perm for name in ("R", "T", "X")}  # type: ignore[union-attr]
    assert perms == {"R": 4, "T": 4, "X": 5}
    assert table.route("T").queues[0].perm == 6  # type: ignore[union-attr]
    assert b'"perm":4' in (table.route_body("T", standard=True) or b"")


def test_adding_write_permission_sets_read_and_write_exactly(table: RouteTable) -> None:
    register(table, MASTER, topics(TopicConfig("X", 1, 1, perm=1)))
    assert table.add_write_perm("b") == 1
    assert table.route("X").queues[0].perm == 6  # type: ignore[union-attr]


def test_a_wipe_lasts_until_the_topics_change(table: RouteTable) -> None:
    register(table, MASTER)
    table.wipe_write_perm("b")
    register(table, MASTER)
    assert table.route("T").queues[0].perm == 4  # type: ignore[union-attr]
    register(table, MASTER, topics(T, version=V2))
    assert table.route("T").queues[0].perm == 6  # type: ignore[union-attr]


def test_an_unknown_broker_has_no_topics_to_wipe(table: RouteTable) -> None:
    assert table.wipe_write_perm("nobody") == table.add_write_perm("nobody") == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    register(table, MASTER)
    register(table, FOREIGN, owner="f")
    assert table.route_body("T", standard=True) is not None
    table.delete_topic("T", cluster="nowhere")
    table.delete_topic("T", cluster="d")
    assert b'"f"' not in (table.route_body("T", standard=True) or b"")
    assert table.topics_of_cluster("d") == []
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics() == []
    register(table, MASTER)
    assert table.topics() == []  # Its version is known: as in RocketMQ, the broker must change it.


# Lists.


def test_lists_of_topics(table: RouteTable) -> None:
    register(
        table,
        MASTER,
        topics(
            T,
            TopicConfig("unit", 1, 1, sys_flag=1),
            TopicConfig("sub", 1, 1, sys_flag=2),
            TopicConfig("both", 1, 1, sys_flag=3),
        ),
    )
    register(table, FOREIGN, topics(TopicConfig("far", 1, 1)), owner="f")
    assert table.topics() == ["T", "both", "far", "sub", "unit"]
    assert table.topics_of_cluster("c") == ["T", "both", "sub", "unit"]
    assert table.topics_of_cluster("x") == []
    assert table.unit_topics() == ["both", "unit"]
    assert table.unit_sub_topics() == ["both", "sub"]
    assert table.unit_sub_not_unit_topics() == ["sub"]
    assert table.system_topics() == (["b", "c", "d", "f"], MASTER.address)


def test_a_broker_that_names_another_cluster_is_listed_in_both_while_it_is_there(
    table: RouteTable,
) -> None:
    register(table, MASTER)
    assert table.cluster_body() == table.cluster_body()
    register(table, dataclasses.replace(MASTER, cluster="d"))
    assert b'"clusterAddrTable":{"c":["b"],"d":["b"]}' in table.cluster_body()
    table.owner_gone("conn")
    assert table.cluster_body() == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


# Limits.


def test_there_is_a_limit_on_brokers(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "ADDRESSES_MAX", 1)
    register(table, MASTER)
    with pytest.raises(BrokerError, match="1 brokers are registered already"):
        register(table, OTHER)
    register(table, MASTER)  # Those who are in stay in.


def test_there_is_a_limit_on_topics(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "TOPICS_MAX", 2)
    register(table, MASTER, topics(T, TopicConfig("U", 1, 1)))
    register(table, OTHER, topics(T, TopicConfig("U", 1, 1)), owner="o")
    with pytest.raises(BrokerError, match="2 topics are registered already"):
        register(table, FOREIGN, topics(TopicConfig("V", 1, 1)), owner="f")
    assert table.topics() == ["T", "U"]


def test_the_cache_of_routes_is_bounded(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "CACHED_ROUTES_MAX", 3)
    register(table, MASTER, topics(*(TopicConfig(f"T{i}", 1, 1) for i in range(10))))
    for i in range(10):
        assert table.route_body(f"T{i}", standard=True)
    assert len(table._routes) <= 3


# Whatever happens, the caches say what the tables say, and the tables agree with each other.

NAMES = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from(["T", "U", "V"])
OWNERS = st.sampled_from(["w", "x", "y", "z"])
BROKERS = st.builds(
    BrokerIdentity,
    cluster=st.sampled_from(["c1", "c2"]),
    name=NAMES,
    id=st.integers(0, 2),
    address=st.sampled_from([f"h:{port}" for port in range(1, 6)]),
)


class Caches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ms = 0

    @rule(
        broker=BROKERS,
        owner=OWNERS,
        names=st.lists(TOPICS, max_size=3),
        queues=st.integers(1, 3),
        version=st.integers(0, 3),
        servers=st.sampled_from([(), ("s",)]),
    )
    def register(
        self,
        broker: BrokerIdentity,
        owner: str,
        names: list[str],
        queues: int,
        version: int,
        servers: tuple[str, ...],
    ) -> None:
        content = topics(
            *(TopicConfig(name, queues, queues, sys_flag=queues) for name in names),
            version=DataVersion(counter=version),
        )
        register(
            self.table, broker, content, owner=owner, now_ms=self.now_ms, filter_servers=servers
        )

    @rule(broker=BROKERS, owner=OWNERS, version=st.integers(0, 3))
    def refresh(self, broker: BrokerIdentity, owner: str, version: int) -> None:
        self.table.refresh(broker, DataVersion(counter=version), owner=owner, now_ms=self.now_ms)

    @rule(broker=BROKERS, owner=OWNERS)
    def unregister(self, broker: BrokerIdentity, owner: str) -> None:
        self.table.unregister(broker, owner=owner)

    @rule(owner=OWNERS)
    def close(self, owner: str) -> None:
        self.table.owner_gone(owner)
        assert not any(owner in known.claims for known in self.table.live)

    @rule(wait_ms=st.integers(0, 100))
    def wait(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.table.expire(now_ms=self.now_ms, expiry_ms=120)

    @rule(name=NAMES, add=st.booleans())
    def change_perm(self, name: str, add: bool) -> None:
        if add:
            self.table.add_write_perm(name)
        else:
            self.table.wipe_write_perm(name)

    @rule(topic=TOPICS, cluster=st.sampled_from([None, "c1", "c2"]))
    def delete(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster=cluster)

    @invariant()
    def caches_are_true(self) -> None:
        for topic in ("T", "U", "V"):
            route = self.table.route(topic)
            for standard in (False, True):
                body = self.table.route_body(topic, standard=standard)
                expected = route and TopicRouteBody(route).to_json(standard=standard)
                assert body == expected
        fresh, self.table._cluster_body = self.table.cluster_body(), None
        assert self.table.cluster_body() == fresh

    @invariant()
    def tables_agree(self) -> None:
        table = self.table
        for known in table._live.values():
            assert known.claims
            assert all(known.broker.address in table._owned[owner] for owner in known.claims)
        for owner, addresses in table._owned.items():
            assert addresses
            assert all(owner in table._live[address].claims for address in addresses)
        for name, entry in table._brokers.items():
            assert entry.addresses
            for broker_id, address in entry.addresses.items():
                held = table._live[address].broker
                assert (held.name, held.id) == (name, broker_id)
            assert any(name in members for members in table._clusters.values())
        for topic, queues in table._topics.items():
            assert queues
            assert all(topic in table._brokers[name].topics for name in queues)
        for entry in table._brokers.values():
            assert all(entry.name in table._topics[topic] for topic in entry.topics)
        for members in table._clusters.values():
            assert members
            assert all(name in table._brokers for name in members)


Caches.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestCaches = Caches.TestCase
