"""RocketMQ's own clients and tools with a Raft group of ours, through the leader's death."""

from __future__ import annotations

from pathlib import Path

import pytest
from our_broker import OurBroker
from peers import JavaClient, MqAdmin, OurNameServer, Peers, free_broker_port, wait_until
from wire import Probe, loads_lenient

pytestmark = pytest.mark.interop

RATE = 100
NAME = "group-r"


def members(home: Path, name_server: OurNameServer) -> list[OurBroker]:
    ports = [free_broker_port() for _ in range(3)]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    return [
        OurBroker(
            home / f"n{number}",
            name=NAME,
            name_servers=[name_server.address],
            settings={
                "enableDLegerCommitLog": "true",
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "defaultTopicQueueNums": "4",
            },
        )
        for number in range(3)
    ]


def leader_of(brokers: list[OurBroker]) -> OurBroker | None:
    for broker in brokers:
        try:
            with Probe(broker.address) as probe:
                table = loads_lenient(probe.call(28).body)["table"]
        except OSError:
            continue
        if table["haRole"] == "RAFT_LEADER" and table["raftBrokerId"] == "0":
            return broker
    return None


def test_java_clients_follow_the_leader_and_lose_nothing(peers: Peers, tmp_path: Path) -> None:
    with OurNameServer(tmp_path / "namesrv") as name_server:
        brokers = members(tmp_path, name_server)
        servers = name_server.address
        producer = JavaClient(peers, tmp_path / "p", "stream", servers, "Led", "P", str(RATE))
        consumer = JavaClient(peers, tmp_path / "c", "listen", servers, "Led", "G", "concurrent")
        try:
            for broker in brokers:
                broker.start()
            leader = wait_until(lambda: leader_of(brokers), timeout_s=30, what="a leader")
            listed = MqAdmin(peers, tmp_path / "admin").run(servers, "clusterList")
            rows = [line.split() for line in listed.splitlines() if NAME in line]
            number = brokers.index(leader)
            assert {(row[2], row[3]) for row in rows} == {
                ("0" if n == number else str(n + 1), broker.address)
                for n, broker in enumerate(brokers)
            }, listed
            with Probe(leader.address) as probe:
                fields = {
                    "topic": "Led", "defaultTopic": "TBW102", "readQueueNums": "4",
                    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0", "order": "false",
                }  # fmt: skip
                assert probe.call(17, fields).code == 0
            consumer.start()
            consumer.wait_for_line("ready", timeout_s=60)
            producer.start()

            def got() -> set[str]:
                return {line[4:] for line in list(consumer.lines) if line.startswith("got ")}

            wait_until(lambda: len(got()) > 2 * RATE, timeout_s=60, what="consumption")
            leader.kill()
            at_death = len(got())
            wait_until(lambda: leader_of(brokers), timeout_s=30, what="another leader")
            leader.start()
            wait_until(
                lambda: len(got()) > at_death + 5 * RATE, timeout_s=60, what="consumption again"
            )
            producer.end_input()
            line = producer.wait_for_line("sent", timeout_s=60)
            sent, failed = int(line.split()[1]), int(line.split()[3])
            lines = list(producer.lines)
            refused = {one.split()[1] for one in lines if one.startswith("failed message-")}
            acked = {f"message-{n}" for n in range(sent + failed)} - refused
            wait_until(lambda: acked <= got(), timeout_s=60, what=f"all of {len(acked)}")
            print(f"{line}; {len(got())} received")
            assert sent > 5 * RATE
        finally:
            for process in (producer, consumer, *brokers):
                process.kill()
