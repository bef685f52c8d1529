"""`skylark schedule` against a running broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

import skylark
from skylark.cli import main as cli
from skylark.model.message import Message
from skylark.testing import DiskBroker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBroker]:
    with DiskBroker(tmp_path_factory.mktemp("schedule")) as broker:
        yield broker


@pytest.fixture
def run(broker: DiskBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(["schedule", *words, "-n", broker.address])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def send(broker: DiskBroker, *messages: Message) -> list[str]:
    async def main() -> list[str]:
        async with skylark.connect(broker.address) as mq, mq.producer("p") as producer:
            return [(await producer.send(message)).message_id for message in messages]

    return asyncio.run(main())


def rows(run: Run, *words: str) -> list[dict[str, object]]:
    code, out, _ = run("list", *words, "--json")
    assert code == 0
    found: list[dict[str, object]] = json.loads(out)
    return found


def test_what_waits_is_listed_cancelled_and_fired(broker: DiskBroker, run: Run) -> None:
    first, second = send(
        broker,
        Message("Later", b"one", tag="A", keys=["k1"], delay_ms=3_600_000),
        Message("Later", b"two", keys=["k2"], delay_ms=7_200_000),
    )
    found = rows(run, "-t", "Later")
    assert [row["id"] for row in found] == [first, second]
    assert found[0]["tag"] == "A"
    code, out, _ = run("list", "-t", "Later")
    assert code == 0
    assert first in out
    code, out, _ = run("cancel", first, "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"cancelled": 1})
    code, out, _ = run("fire", "k2", "--json")
    assert (code, json.loads(out)) == (0, {"fired": 1})
    assert rows(run, "-t", "Later") == []
    code, _, err = run("cancel", first, "--yes")
    assert code == 1
    assert "nothing that waits has the id" in err


def test_a_message_repeats_until_it_is_cancelled(broker: DiskBroker, run: Run) -> None:
    send(broker, Message("Ticks", b"first"))
    words = ("add", "Ticks", "--body", "tick", "--id", "minute", "--tag", "T")
    code, out, _ = run(*words, "--cron", "0 8 * * MON-FRI", "--zone", "Europe/Berlin", "--json")
    assert code == 0
    assert json.loads(out)["id"] == "minute"
    (row,) = rows(run, "--repeating")
    assert (row["id"], row["rule"], row["zone"]) == (
        "minute", "cron 0 8 * * MON-FRI", "Europe/Berlin",
    )  # fmt: skip
    code, _, err = run(*words, "--every", "5m")
    assert code == 1
    assert "cancel it" in err
    assert run("cancel", "minute", "--yes")[0] == 0
    assert run(*words, "--every", "5m")[0] == 0
    assert run("cancel", "minute", "--yes")[0] == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--every", "often"), "write a number with"),
        (("--cron", "99 * * * *"), "minute"),
        (("--cron", "0 8 * * *", "--zone", "Nowhere/City"), "time zone"),
        ((), "one of them"),
        (("--every", "5m", "--cron", "0 8 * * *"), "one of them"),
        (("--every", "5m", "--tag", "a||b"), "tag"),
    ],
)
def test_a_wrong_word_is_told_before_anybody_is_asked(
    run: Run, words: tuple[str, ...], problem: str
) -> None:
    code, _, err = run("add", "Ticks", "--body", "tick", *words)
    assert code == 2
    assert problem in err
    assert err.count("\n") == 1


def test_cancelling_must_be_meant(run: Run) -> None:
    code, _, err = run("cancel", "anything")
    assert code == 2
    assert "--yes" in err


def test_produce_takes_a_span_or_a_time(
    broker: DiskBroker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def produce(*words: str) -> int:
        code = cli.main(["produce", "Spans", "--body", "x", *words, "-n", broker.address])
        capsys.readouterr()
        return code

    assert produce("--delay", "2h") == 0
    assert produce("--at", "2026-01-01T08:00") == 0  # Past: it is there at once.
    (row,) = rows(run, "-t", "Spans")
    assert row["topic"] == "Spans"
    with pytest.raises(SystemExit) as refused:
        produce("--delay", "soon")
    assert refused.value.code == 2
    assert produce("--delay", "1h", "--delay-level", "3") == 2
