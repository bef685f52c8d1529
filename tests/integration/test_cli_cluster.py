"""`skylark topic`, `group`, `message` and `lag` against a running cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_ports import free_port

import skylark
from skylark.cli import main as cli
from skylark.model.message import Message

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("up")
    namesrv, broker = free_port(), free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark.cli", "up", "--data", str(data), "--no-console",
         "--namesrv-port", str(namesrv), "--broker-port", str(broker), "--log-dir", "-",
         "--set", "mappedFileSizeCommitLog=1048576", "--set", "diskSpaceAmpleBytes=1048576",
         "--set", "maxIndexNum=20000", "--set", "maxHashSlotNum=5000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "HOME": str(data)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("skylark is up"), line
        yield f"127.0.0.1:{namesrv}"
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def run(cluster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NAMESRV_ADDR", cluster)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _json(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def _send(cluster: str, topic: str, bodies: list[bytes]) -> None:
    async def main() -> None:
        async with skylark.connect(cluster) as mq, mq.producer("producers") as producer:
            for number, body in enumerate(bodies):
                await producer.send(Message(topic, body, tag="A", keys=[f"key-{number}"]))

    asyncio.run(main())


def _consume(cluster: str, topic: str, group: str, count: int) -> None:
    async def main() -> None:
        seen = 0
        async with (
            skylark.connect(cluster) as mq,
            mq.consumer(group, {topic: "*"}, consume_from="first") as consumer,
        ):
            async for message in consumer:
                message.ack()
                seen += 1
                if seen == count:
                    break

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_topic_lives_from_create_to_delete(run: Run) -> None:
    rows = _json(run, "topic", "create", "Life", "-r", "3", "-w", "2", "-p", "RW")
    assert [(row["topic"], row["permissions"]) for row in rows] == [("Life", "RW-")]
    (listed,) = [row for row in _json(run, "topic", "list") if row["topic"] == "Life"]
    assert (listed["read_queues"], listed["write_queues"], listed["kind"]) == (3, 2, "normal")
    shown = _json(run, "topic", "describe", "Life")
    assert [queue["queue"] for queue in shown["queues"]] == [0, 1]
    code, out, _ = run("topic", "describe", "Life")
    assert code == 0
    assert re.search(r"^topic +Life$", out, re.M)
    assert _json(run, "topic", "delete", "Life", "--yes") == {"deleted": "Life"}
    assert "Life" not in {row["topic"] for row in _json(run, "topic", "list", "--all")}
    code, out, err = run("topic", "describe", "Life")
    assert (code, out) == (1, "")
    assert err.startswith("skylark: no broker has a topic 'Life'; ")


def test_a_group_is_seen_consuming_rewound_and_deleted(run: Run, cluster: str) -> None:
    _json(run, "topic", "create", "Work", "-r", "2", "-w", "2")
    _send(cluster, "Work", [b"one", b"two", b"three", b"four"])
    _consume(cluster, "Work", "workers", 4)
    rows = _json(run, "lag", "workers", "-t", "Work")
    assert [(row["end"], row["at"], row["lag"]) for row in rows] == [(2, 2, 0), (2, 2, 0)]
    changes = _json(run, "group", "rewind", "workers", "Work", "--to", "first", "--yes")
    assert [(change["before"], change["after"]) for change in changes] == [(2, 0), (2, 0)]
    code, out, _ = run("lag", "workers")
    assert code == 0
    assert out.endswith("total lag: 4\n")
    assert {"group": "workers", "members": 0, "lag": 4}.items() <= next(
        row for row in _json(run, "lag") if row["group"] == "workers"
    ).items()
    shown = _json(run, "group", "describe", "workers")
    assert (shown["lag"], shown["members"], shown["mismatches"]) == (4, [], [])
    assert "workers" in run("group", "list")[1]
    assert _json(run, "group", "delete", "workers", "-y") == {"deleted": "workers"}
    code, _, err = run("group", "describe", "workers")
    assert code == 1
    assert "no broker knows a group 'workers'" in err


def test_messages_are_found_and_shown_whatever_their_bodies_hold(run: Run, cluster: str) -> None:
    _json(run, "topic", "create", "Notes", "-r", "1", "-w", "1")
    _send(cluster, "Notes", [b"plain \x1b[31mtext", b"\xff\xfe", b"x" * 9_000])
    (first,) = _json(run, "message", "find", "Notes", "key-0")
    assert (first["body"], first["tag"], first["keys"]) == ("plain \x1b[31mtext", "A", ["key-0"])
    for given in ((first["id"], "-t", "Notes"), (first["offset_id"],)):
        shown = _json(run, "message", "show", *given)
        assert (shown["offset_id"], shown["groups"]) == (first["offset_id"], [])
    (second,) = _json(run, "message", "find", "Notes", "key-1")
    assert (second["body"], second["body_base64"]) == ("2 bytes that are no text", "//4=")
    (third,) = _json(run, "message", "find", "Notes", "key-2")
    assert third["size"] == 9_000  # It went compressed, and is shown as it was sent.
    code, out, _ = run("message", "show", first["offset_id"])
    assert code == 0
    assert "\x1b" not in out
    assert _json(run, "message", "find", "Notes", "nothing") == []
    assert _json(run, "message", "find", "Notes", "key-0", "--until", "1h") == []
    code, _, err = run("message", "show", "0A00000900002A9F0000000000000000")
    assert code == 1
    assert "name the topic as well" in err
