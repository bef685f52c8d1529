"""The mqadmin of 5.3.3 on our broker: the commands that operators use most, one after the other."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from admin_session import AdminSession
from our_broker import our_cluster
from peers import JavaClient, Peers, wait_until

pytestmark = pytest.mark.interop

# What to say, and what the tool then prints.
CONVERSATION = (
    ("topicRoute -t Orders", r'"brokerAddrs":\{0:"BROKER"'),
    ("sendMessage -t Orders -p hello -k k1 -c TagA", r"SEND_OK"),
    ("topicStatus -t Orders", r"broker-a +\d +0 +1 "),
    ("clusterList", r"broker-a +0 +BROKER +V4_9_8"),
    ("brokerStatus -b BROKER", r"msgPutTotalTodayNow"),
    ("updateSubGroup -b BROKER -g billing -r 3", r"success"),
    ("getConsumerConfig -g billing", r"retryMaxTimes += +3"),
    ("consumerProgress -g billing", r"Consume Diff Total: \d+"),
    ("consumerConnection -g billing", r"JAVA +V5_3_3"),
    ("queryMsgByKey -t Orders -k k1", r"\n\w{32,} +\d +0$"),
    ("queryMsgById -t Orders -i OFFSET_ID", r"Keys: +\[k1\][\s\S]*trackType=CONSUMED"),
    ("printMsg -t Orders", r"BODY: hello"),
    ("resetOffsetByTime -g billing -t Orders -s -1", r"broker-a +\d +1 "),
    ("statsAll -t Orders", r"Orders +billing +0 "),
    ("updateBrokerConfig -b BROKER -k brokerPermission -v 6", r"success"),
    ("updateTopicPerm -b BROKER -t Orders -p 4", r"update topic perm from 6 to 4"),
    ("deleteTopic -c interop -t Orders", r"delete topic \[Orders\] from NameServer success"),
)


def test_operators_of_5_x_are_served(clients5: Peers, tmp_path: Path) -> None:
    with (
        our_cluster(tmp_path) as (name_server, broker),
        AdminSession(clients5, tmp_path / "tool", name_server.address) as tool,
    ):
        made = tool.run("updateTopic", "-b", broker.address, "-t", "Orders", "-r", "4", "-w", "4")
        assert "success" in made
        arguments = ("listen", name_server.address, "Orders", "billing", "concurrent")
        with JavaClient(clients5, tmp_path / "consumer", *arguments) as consumer:
            consumer.wait_for_line("ready", 30)
            for said, wanted in CONVERSATION:
                words = said.replace("BROKER", broker.address)
                words = words.replace("OFFSET_ID", f"7F000001{broker.port:08X}{0:016X}")
                deadline = time.monotonic() + 15
                while True:
                    answer = tool.run(*words.split()).replace(broker.address, "BROKER")
                    if re.search(wanted, answer, re.M):
                        break
                    # What a consumer has done is known when it has committed it.
                    assert time.monotonic() < deadline, f"{said}:\n{answer}"
                if said.startswith("sendMessage"):
                    consumer.wait_for_line("got hello", 30)
                    # Its offset is committed every 5 s.
                    wait_until(
                        lambda: "Diff Total: 0" in tool.run("consumerProgress", "-g", "billing"),
                        timeout_s=30,
                        what="a committed offset",
                    )
