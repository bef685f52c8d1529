"""The official Java client finds Apache's brokers through our name servers."""

from __future__ import annotations

import pytest
from cluster import Cluster
from peers import GoClient, JavaClient, Peers
from wire import Probe, loads_lenient

pytestmark = pytest.mark.interop

COUNT = 10_000


def test_two_brokers_of_one_cluster_are_listed_by_both_name_servers(cluster: Cluster) -> None:
    for server in cluster.subjects:
        with Probe(server.address) as probe:
            listed = loads_lenient(probe.call(106).body)
        assert sorted(listed["clusterAddrTable"]["interop"]) == ["broker-a", "broker-b"]
        for broker in cluster.brokers:
            data = listed["brokerAddrTable"][broker.broker_name]
            assert data == {
                "brokerAddrs": {"0": broker.address},
                "brokerName": broker.broker_name,
                "cluster": "interop",
            }


def test_every_message_of_the_official_producer_reaches_the_official_consumer(
    peers: Peers, cluster: Cluster
) -> None:
    topic = "Traffic"
    with JavaClient(
        peers, cluster.home / "producer", "produce", cluster.address, topic, "producers", str(COUNT)
    ) as producer:
        assert producer.wait_for_line("sent", 120) == f"sent {COUNT} failed 0"
        assert producer.wait_ended() == 0
    with JavaClient(
        peers,
        cluster.home / "consumer",
        "consume",
        cluster.address,
        topic,
        "consumers",
        str(COUNT),
        "60",
    ) as consumer:
        assert consumer.wait_for_line("received", 90) == f"received {COUNT} duplicates 0"
        assert consumer.wait_ended() == 0


def test_a_client_with_binary_headers_is_served_as_well(peers: Peers, cluster: Cluster) -> None:
    binary = ("-Drocketmq.serialize.type=ROCKETMQ",)
    arguments = (cluster.address, "BinaryTraffic")
    with JavaClient(
        peers,
        cluster.home / "binary",
        "produce",
        *arguments,
        "producers",
        "100",
        java_options=binary,
    ) as producer:
        assert producer.wait_for_line("sent", 60) == "sent 100 failed 0"
    with JavaClient(
        peers,
        cluster.home / "binary",
        "consume",
        *arguments,
        "consumers",
        "100",
        "30",
        java_options=binary,
    ) as consumer:
        assert consumer.wait_for_line("received", 60) == "received 100 duplicates 0"


def test_a_new_topic_is_known_to_every_name_server(peers: Peers, cluster: Cluster) -> None:
    with JavaClient(
        peers, cluster.home / "maker", "produce", cluster.address, "Fresh", "producers", "10"
    ) as producer:
        assert producer.wait_for_line("sent", 60) == "sent 10 failed 0"
    for server in cluster.subjects:
        with Probe(server.address) as probe:
            answer = probe.call(105, {"topic": "Fresh"})
            assert answer.code == 0
            assert loads_lenient(answer.body)["queueDatas"]


def test_the_official_go_client_reads_our_routes(peers: Peers, cluster: Cluster) -> None:
    """This release of it takes broker ids only without quotes, as old clients are answered."""
    arguments = (cluster.address, "GoTraffic")
    with GoClient(cluster.home / "go", "produce", *arguments, "producers", "100") as producer:
        assert producer.wait_for_line("sent", 60) == "sent 100 failed 0"
        assert producer.wait_ended() == 0
    with JavaClient(
        peers, cluster.home / "go-consumer", "consume", *arguments, "consumers", "100", "30"
    ) as consumer:
        assert consumer.wait_for_line("received", 60) == "received 100 duplicates 0"
