"""`skylark cluster` against broker processes: status, add, drain, restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_ports import free_port

import skylark
from skylark.cli import main as cli
from skylark.model.message import Message

Run = Callable[..., tuple[int, str, str]]
SMALL = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "40000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "20000",
    "diskSpaceAmpleBytes": "1048576",
    "listenHost": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "advertisedAddressCheck": "false",
    "stopGraceMs": "300",
}


class Supervised:
    """A process that is started again whenever it ends, as a service manager does."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._home = home
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with (self._home / "log").open("ab") as log:
            while self._is_wanted:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "skylark.cli", *self._arguments, "--log-dir", "-"],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "HOME": str(self._home)},
                )
                (self._home / "pid").write_text(str(self._process.pid))
                self._process.wait()

    def stop(self) -> None:
        self._is_wanted = False
        if self._process is not None:
            self._process.terminate()
        self._thread.join(30)
        if self._process is not None:
            self._process.kill()


class Processes:
    """A name server and two brokers, each with a config file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.servers: list[Supervised] = []
        home = root / "ns"
        home.mkdir()
        self.servers.append(
            Supervised(home, "namesrv", "-p", self.namesrv.rpartition(":")[2],
                       "--set", "listenHost=127.0.0.1")
        )  # fmt: skip
        for name in ("broker-a", "broker-b"):
            home = root / name
            home.mkdir()
            settings = {**SMALL, "brokerName": name, "listenPort": str(free_port()),
                        "storePathRootDir": str(home / "store")}  # fmt: skip
            lines = [f"{key}={value}\n" for key, value in settings.items()]
            (home / "broker.conf").write_text("".join(lines))
            self.servers.append(
                Supervised(home, "broker", "-n", self.namesrv, "-c", str(home / "broker.conf"))
            )


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    made = Processes(tmp_path_factory.mktemp("fleet"))
    try:
        yield made
    finally:
        for server in made.servers:
            server.stop()


@pytest.fixture
def run(
    processes: Processes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.setenv("NAMESRV_ADDR", processes.namesrv)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main([*(() if arguments[0] == "topic" else ("cluster",)), *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def status_of(run: Run) -> tuple[int, dict[str, Any]]:
    code, out, _ = run("status", "--json")
    return code, json.loads(out) if out else {"brokers": []}


def wait_both(run: Run) -> dict[str, Any]:
    end = time.monotonic() + 30
    while True:
        code, status = status_of(run)
        if code == 0 and len(status["brokers"]) == 2:
            return status
        assert time.monotonic() < end, status
        time.sleep(0.1)


def test_a_cluster_is_seen_grown_drained_and_restarted_without_a_failed_send(
    run: Run, processes: Processes
) -> None:
    wait_both(run)
    assert run("topic", "create", "Orders", "-b", "broker-a", "-r", "2", "-w", "2")[0] == 0
    # Grow: broker-b gets what broker-a has.
    code, out, _ = run("add", "broker-b", "--dry-run", "--json")
    assert (code, [t["state"] for t in json.loads(out)["topics"]]) == (0, ["new"])
    code, out, _ = run("add", "broker-b")
    assert code == 0
    assert "2 -> 4" in out
    code, out, _ = run("add", "broker-b", "--json")
    assert [topic["state"] for topic in json.loads(out)["topics"]] == ["same"]

    failed: list[str] = []
    sent: list[bytes] = []
    stop = threading.Event()

    async def send() -> None:
        client = skylark.connect(processes.namesrv, poll_name_server_interval_ms=500)
        async with client as mq, mq.producer("P") as producer:
            while not stop.is_set():
                try:
                    await producer.send(Message("Orders", b"%d" % len(sent)))
                    sent.append(b"%d" % len(sent))
                except skylark.errors.SkylarkError as error:
                    failed.append(str(error))
                await asyncio.sleep(0.02)

    sending = threading.Thread(target=lambda: asyncio.run(send()))
    sending.start()
    try:
        # Restart both in turn; the command is what an operator's would be.
        code, out, _ = run("restart", "--all", "--check", "--json")
        assert (code, [row["safe"] for row in json.loads(out)]) == (0, [True, True])
        before = {m["address"]: m["started"] for b in status_of(run)[1]["brokers"]
                  for m in b["members"]}  # fmt: skip
        killer = processes.root / "stop.py"
        killer.write_text("import os,sys\nos.kill(int(open(sys.argv[1]).read()), 15)\n")
        words = f"{sys.executable} {killer} {processes.root}/{{name}}/pid"
        code, out, err = run("restart", "--all", "--settle", "1s", "--command", words, "--json")
        assert code == 0, err
        assert [row["broker"] for row in json.loads(out)] == ["broker-a", "broker-b"]
        assert "2 of 2: broker-b" in err
        after = {m["address"]: m["started"] for b in wait_both(run)["brokers"]
                 for m in b["members"]}  # fmt: skip
        assert before.keys() == after.keys()
        assert all(before[address] != after[address] for address in before)
        # Drain broker-a: nobody reads it yet, so only producers have to go.
        code, out, err = run("drain", "broker-a", "--settle", "0s")
        assert (code, out) == (0, "broker-a is empty; it may be stopped now\n")
        assert "brokerPermission=4" in (processes.root / "broker-a" / "broker.conf").read_text()
        code, out, err = run("drain", "broker-b")
        assert (code, out) == (1, "")
        assert "broker-b is the last broker that takes messages for Orders" in err
        code, out, _ = run("status")
        assert "broker-a is drained" in out
        assert run("drain", "broker-a", "--undo")[0] == 0
        assert status_of(run)[1]["brokers"][0]["writable"]
    finally:
        stop.set()
        sending.join(30)
    assert failed == []
    assert len(sent) > 20


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("drain", "nowhere"), 1, "no broker named 'nowhere' is registered; brokers: broker-a"),
        (("add", "broker-b", "--topics", "Nothing"), 1, "no broker to copy from has Nothing"),
        (("add", "broker-b", "--like", "broker-b"), 1, "cannot be filled from itself"),
        (("restart",), 2, "name a broker, or say --all"),
        (("restart", "broker-a", "--command", "x {nme}"), 2, "has a field {nme}"),
        (("restart", "broker-a", "--command", ""), 2, "--command is empty"),
        (("drain", "broker-a", "--timeout", "soon"), 2, "is no span of time"),
        (("status", "-c", "Other"), 1, "no cluster 'Other'; clusters are: DefaultCluster"),
        (("status", "-n", "127.0.0.1:1"), 3, "is the server running"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    wait_both(run)
    found, out, err = run(*words)
    assert (found, out) == (code, "")
    assert said in err
    assert err.startswith("skylark: ")
    assert err.count("\n") == 1
