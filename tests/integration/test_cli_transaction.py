"""`skylark transaction` against a broker with transactions in doubt."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import skylark.sync
from skylark import Message, StoredMessage
from skylark.cli.main import main
from skylark.errors import NoRoute
from skylark.model.topic import TRANS_CHECK_MAX_TIME_TOPIC
from skylark.testing import DiskBroker

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBroker]:
    folder: pathlib.Path = tmp_path_factory.mktemp("doubt")
    with DiskBroker(folder, transaction_check_max=1, transaction_check_interval=300) as broker:
        yield broker


@contextmanager
def in_doubt(broker: DiskBroker, topic: str, **properties: str) -> Iterator[str]:
    """A transaction that its producer has left; yields the id of its message."""
    with skylark.sync.connect(broker.address) as mq, mq.producer("doubters") as producer:
        with producer.transaction() as transaction:
            receipt = transaction.send(
                Message(topic, b"money", tag="TagA", keys=["k1"], properties=properties)
            )
            transaction.leave()
        yield receipt.message_id


def run(broker: DiskBroker, capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(["transaction", *words, "-n", broker.address])
    said = capsys.readouterr()
    return code, said.out, said.err


def count(broker: DiskBroker, topic: str) -> int:
    with skylark.sync.connect(broker.address) as mq:
        return sum(map(mq.max_offset, mq.fetch_queues(topic)))


def test_what_is_in_doubt_is_listed_shown_and_resolved(broker: DiskBroker, capsys: Capture) -> None:
    with in_doubt(broker, "Resolved") as id:
        code, out, _ = run(broker, capsys, "list", "--group", "doubters", "--json")
        assert code == 0
        (row,) = json.loads(out)
        assert (row["transaction_id"], row["topic"], row["keys"]) == (id, "Resolved", "k1")
        code, out, _ = run(broker, capsys, "show", id)
        assert code == 0
        assert "doubters" in out
        code, out, err = run(broker, capsys, "resolve", id, "commit")
        assert code == 2
        assert "--yes" in err
        assert count(broker, "Resolved") == 0
        code, out, _ = run(broker, capsys, "resolve", id, "commit", "--yes", "--json")
        assert code == 0
        assert json.loads(out)["end"] == "commit"
        assert count(broker, "Resolved") == 1
        code, _, err = run(broker, capsys, "show", id)
        assert code == 1
        assert "is pending" in err
    with in_doubt(broker, "Resolved") as id:
        assert run(broker, capsys, "resolve", id.lower(), "rollback", "-y")[0] == 0
        assert count(broker, "Resolved") == 1
    code, out, _ = run(broker, capsys, "figures", "--json")
    (figures,) = json.loads(out)
    assert (figures["committed"], figures["rolled_back"], figures["pending"]) == (1, 1, 0)
    assert run(broker, capsys, "resolve", "x", "maybe", "-y")[0] == 2


def test_what_was_given_up_is_checked_again(broker: DiskBroker, capsys: Capture) -> None:
    with in_doubt(broker, "Resumed", CHECK_IMMUNITY_TIME_IN_SECONDS="1") as id:
        deadline = time.monotonic() + 20
        found: list[StoredMessage] = []
        with skylark.sync.connect(broker.address) as mq:
            while not found and time.monotonic() < deadline:
                time.sleep(0.1)
                with suppress(NoRoute):  # The topic is made when it is needed.
                    found = mq.query_messages(TRANS_CHECK_MAX_TIME_TOPIC, id, unique=True)
        code, out, _ = run(broker, capsys, "list", "--json")
        assert json.loads(out) == []
        resume = ("resume", found[0].offset_id, "--broker", "broker-a")
        assert run(broker, capsys, *resume)[0] == 0
        code, out, _ = run(broker, capsys, "list", "--json")
        (row,) = json.loads(out)
        assert (code, row["transaction_id"], row["checks"]) == (0, id, 0)
        assert run(broker, capsys, "resolve", id, "rollback", "-y")[0] == 0
        assert run(broker, capsys, "resume", "0" * 32, "--broker", "broker-a")[0] == 1


def test_a_resolver_needs_a_database_it_understands(broker: DiskBroker, capsys: Capture) -> None:
    for words, problem in [
        (("--database", "nonsense"), "not usable"),
        (("--database", "nosuch://x"), "not usable"),
        (("--database", "sqlite://", "--patience", "soon"), "span of time"),
    ]:
        code, _, err = run(broker, capsys, "resolver", "--group", "g", *words)
        assert (code, problem in err) == (2, True), err
