"""Every program of examples/ runs to its end against one broker, and says what it should.

All delay levels of that broker are a second, so that nobody waits for hours.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from skylark.testing import DiskBroker

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PATIENCE_S = 60

# What each program prints, as patterns that must be found in this order.
SAYS = {
    "sync_producer.py": [r"SEND_OK [0-9A-F]{32} queue \d offset 0\n"] * 3,
    "async_producer.py": ["^100 stored, 0 failed$"],
    "oneway_producer.py": [r"^1000 lines handed over in \d+ microseconds each$"],
    "batch_producer.py": ["^10 messages in 1 queue, by one request$", "^1000 single sends"],
    "ordered.py": ["^20 orders, each step in its place; one was tried again$"],
    "push_consumer.py": [r"^100 messages: [1-9]\d* to the first, [1-9]\d* to the second$"],
    "iterate.py": [r"queue \d offset \d: b'part \d'"] * 5,
    "pull_consumer.py": ["^50 messages read, and every queue's offset committed$"],
    "lite_pull_consumer.py": ["^20 read and committed$", r"^back at the start .*: \d+ kWh$"],
    "broadcast.py": [r"^3 members got 10 messages each: \{0: 10, 1: 10, 2: 10\}$"],
    "delayed.py": [r"^level 0 came after \d+\.\d s$", r"^level 1 came after \d+\.\d s$"],
    "timers.py": [
        r"^\d+ wait, the last until ", "^came: after a while, at a time, not in a year, tick$",
    ],
    "tag_filter.py": ["^TagA 10, TagB 0, TagC 10$"],
    "retry_and_dead_letter.py": ["^unlucky, try 2$", "^hopeless is a dead letter$"],
    "idempotent.py": ["known already, nothing done", "^the balance is 300$"],
    "consume_from.py": [
        r"^from the first: \['new', 'old'\]$", r"^where it stopped: \['newest'\]$",
        r"^again since then: \['new', 'newest'\]$",
    ],
    "query_message.py": [
        "^by key: dear all$", "^by the producer's id .*: dear all$",
        "^by the broker's id .*: dear all$",
    ],
    "request_reply.py": ["^apples cost 9.99$"],
    "outbox.py": ["kept for later"] * 3 + ["^3 in the outbox$", "^3 sent, 0 left$"],
    "skip_backlog.py": [r"^2\d\d skipped, \d\d handled$"],
    "order_scenario.py": [
        "^the shop took 100 orders with nobody there",
        r"^the bank was asked \d+ times a second, 100 at most$",
        r"^each service got every order: \{'payment': 100, 'statistics': 100, 'stock': 100\}$",
    ],
    "transaction.py": [
        "^rolled back: not enough money$", "^transfer-1 has arrived: 1000$",
        "^transfer-3 has arrived: 500$", "^A has 1500, B got 1500$",
    ],
    "transaction_database.py": [
        "^order-1 is there already: neither row nor message$",
        r"^orders \['order-1', 'order-2'\], messages \['order-1', 'order-2'\]$",
    ],
    "java_names/tx_producer.py": [
        "^executeLocalTransaction hello skylark - tx - 0 0$", "^SEND_OK COMMIT_MESSAGE$",
        "^SEND_OK ROLLBACK_MESSAGE$", "^SEND_OK UNKNOW$",
        "^checkLocalTransaction hello skylark - tx - 2$",
    ],
    "java_names/tx_consumer.py": [r"^consumed \['tx - 0', 'tx - 2'\]$"],
    "java_names/quickstart.py": ["sendStatus=SEND_OK"] * 10
    + ["Receive New Messages: MessageExt"] * 10,
    "java_names/my_producer.py": ["^SEND_OK$", "^[0-9A-F]{32}$", "^[0-9A-F]{32}$"],
    "java_names/send_to_queue.py": ["^SEND_OK .*queueId=5", "message's topic not equal mq's topic"],
    "java_names/delayed_pair.py": [
        r"^tp_demo_06\t\d\t[0-9A-F]{32}\t0\thello skylark - 0$",
        r"^tp_demo_06\t\d\t[0-9A-F]{32}\t0\thello skylark - 1$",
    ],
    "java_names/my_consumer.py": ["MessageExt .*brokerName=broker-a"] * 8,
    "java_names/querying_message_demo.py": ["MessageExt .*tp_demo_08", "^[0-9A-F]{32}$"],
    "java_names/my_concurrently_message_listener.py": [
        r"^came again: \['later', 'nothing', 'raise'\]$"
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    levels = " ".join(["1s"] * 18)
    with DiskBroker(
        tmp_path_factory.mktemp("examples"),
        message_delay_level=levels,
        transaction_time_out=300,
        transaction_check_interval=1_000,
    ) as broker:
        yield broker.address


def test_every_example_is_run_by_a_test() -> None:
    here = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert set(SAYS) <= here, "a program that is tested here does not exist"
    text = "".join(path.read_text() for path in pathlib.Path(__file__).parent.glob("test_*.py"))
    assert {name for name in here - set(SAYS) if name not in text} == set()


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    here = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert {name for name in here if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_should(name: str, address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        env={**os.environ, "NAMESRV_ADDR": address},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    at = 0
    for pattern in SAYS[name]:
        found = re.compile(pattern, re.MULTILINE).search(done.stdout, at)
        assert found is not None, f"no {pattern!r} in\n{done.stdout[at:]}\n{done.stderr}"
        at = found.end()
