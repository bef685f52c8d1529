"""The filter server with real processes: uploaded by the command, used by consumers, contained."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import skylark
from skylark import Message, PythonFilter
from skylark.cli.main import main as cli
from skylark.errors import BrokerError
from skylark.testing import DiskBroker

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs seccomp")

SECRET = "secret-of-the-tests"
BIG = "import json\ndef matches(message):\n    return json.loads(message.body)['amount'] > 100\n"
HOSTILE = {
    "loops": ("def matches(m):\n    while True: pass\n", "longer than 1000 ms"),
    "eats": ("def matches(m): return len(bytearray(1 << 30))\n", "MemoryError"),
    "reads": ("def matches(m): return open('/etc/passwd').read()\n", "PermissionError"),
    "calls": (
        "import sys\ndef matches(m): return sys.modules['os'].fork()\n", "Error"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBroker]:
    with DiskBroker(
        tmp_path_factory.mktemp("predicates"),
        filter_server_nums=3,
        filter_server_timeout_ms=1_000,
        filter_server_access_key="admin",
        filter_server_secret_key=SECRET,
    ) as made:
        asyncio.run(_fill(made.address))
        yield made


async def _fill(address: str) -> None:
    async with skylark.connect(address) as mq, mq.producer("payers") as producer:
        for amount in range(0, 240, 20):
            await producer.send(Message("Paid", b'{"amount": %d}' % amount))


def _upload(
    broker: DiskBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> int:
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    monkeypatch.setenv("SKYLARK_FILTER_SECRET_KEY", SECRET)
    return cli(
        ["filter", "upload", name, str(file), "--version", "1", "--access-key", "admin",
         "-n", broker.address]
    )  # fmt: skip


async def _pulled(address: str, predicate: str) -> list[bytes]:
    found = []
    async with skylark.connect(address) as mq, mq.pull_consumer(f"group-{predicate}") as consumer:
        for queue in await consumer.fetch_queues("Paid"):
            if not await consumer.max_offset(queue):
                continue
            page = await consumer.pull(queue, PythonFilter(predicate), offset=0)
            found += [one.body for one in page.messages]
    return found


def _children() -> list[int]:
    """The workers of this process, as ps would show them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        if int(words[1]) == os.getpid() and b"sandbox/child.py" in line:
            found.append(int(path.parent.name))
    return found


def test_as_many_processes_as_configured_are_there(broker: DiskBroker) -> None:
    deadline = time.monotonic() + 20
    while len(_children()) != 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_children()) == 3


def test_an_uploaded_predicate_filters_for_every_kind_of_consumer(
    broker: DiskBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert _upload(broker, tmp_path, monkeypatch, "big", BIG) == 0
    assert capsys.readouterr().out.startswith("big@1 is at 127.0.0.1:")
    wanted = [b'{"amount": %d}' % amount for amount in (120, 140, 160, 180, 200, 220)]
    assert sorted(asyncio.run(_pulled(broker.address, "big"))) == sorted(wanted)

    async def main() -> list[bytes]:
        seen: list[bytes] = []
        async with skylark.connect(broker.address) as mq:
            subscription = {"Paid": PythonFilter("big@1")}
            async with mq.consumer("pushed", subscription, consume_from="first") as consumer:
                async for message in consumer:
                    seen.append(message.body)
                    message.ack()
                    if len(seen) == len(wanted):
                        break
        return seen

    assert sorted(asyncio.run(main())) == sorted(wanted)


def test_a_consumer_of_a_predicate_that_is_not_there_does_not_start(broker: DiskBroker) -> None:
    async def main() -> None:
        wanted = {"Paid": PythonFilter("nothing")}
        async with skylark.connect(broker.address) as mq, mq.consumer("lost", wanted):
            raise AssertionError("it has started")

    with pytest.raises(BrokerError, match="there is no predicate 'nothing'"):
        asyncio.run(main())


def test_a_wrong_secret_uploads_nothing(
    broker: DiskBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "p.py"
    file.write_text(BIG)
    words = ["filter", "upload", "stolen", str(file), "--version", "1", "--access-key", "admin"]
    monkeypatch.setenv("SKYLARK_FILTER_SECRET_KEY", "guessed")
    assert cli([*words, "-n", broker.address]) == 1
    assert "the signature of the upload is wrong" in capsys.readouterr().err
    monkeypatch.delenv("SKYLARK_FILTER_SECRET_KEY")
    assert cli([*words, "-n", broker.address]) == 2


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_predicate_fails_its_own_pulls_and_nobody_elses(
    broker: DiskBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source, words = HOSTILE[kind]
    assert _upload(broker, tmp_path, monkeypatch, kind, source) == 0

    async def main() -> tuple[str, float]:
        async with skylark.connect(broker.address) as mq, mq.producer("others") as producer:
            asked = asyncio.ensure_future(_pulled(broker.address, kind))
            slowest = 0.0
            while not asked.done():
                start = time.perf_counter()
                await producer.send(Message("Others", b"x"))
                slowest = max(slowest, time.perf_counter() - start)
                await asyncio.sleep(0.002)
            with pytest.raises(BrokerError) as failure:
                await asked
        return str(failure.value), slowest

    problem, slowest = asyncio.run(main())
    assert f"predicate {kind}@1 failed: " in problem
    assert words in problem
    assert slowest < 0.9  # Others' sends do not wait for it; the predicate has a second.
