"""The broker's commands as real processes: ready, served, killed, restarted, stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_ports import free_port

from skylark.protocol.command import Command
from skylark.protocol.frame import FrameDecoder, encode_frames
from skylark.protocol.record import decode_records

SMALL = [
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=20000",
    "diskSpaceAmpleBytes=1048576",
]


class Running:
    """A command of ours, started and ready."""

    def __init__(self, arguments: list[str], ready: str, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skylark.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "HOME": str(home)},
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if re.search(ready, line):
                break
        else:
            raise AssertionError("\n".join(self.lines))
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def broker(home: Path, port: int, *settings: str) -> Iterator[Running]:
    words = [f"storePathRootDir={home / 'store'}", f"listenPort={port}", "listenHost=127.0.0.1"]
    arguments = ["broker", "--log-dir", "-"]
    for word in (*words, "brokerName=broker-a", *SMALL, *settings):
        arguments += ["--set", word]
    running = Running(arguments, r"^The broker\[broker-a, 127\.0\.0\.1:\d+\] boot success", home)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)


class Wire:
    """A plain socket that speaks frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._decoder = FrameDecoder()
        self._opaque = 0

    def close(self) -> None:
        self.socket.close()

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        self._opaque += 1
        self.socket.sendall(encode_frames([Command(code, self._opaque, 0, fields, body)]))
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            for answer in self._decoder.feed(data):
                if answer.is_response:
                    return answer

    def send(self, body: bytes, queue_id: int = 0) -> Command:
        fields = {
            "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": "1700000000000", "h": "0", "i": "WAIT\x01true", "j": "0", "k": "false",
        }  # fmt: skip
        return self.call(310, fields, body)

    def read_all(self, queue_id: int) -> list[bytes]:
        """All bodies of a queue, in order."""
        bodies: list[bytes] = []
        while True:
            fields = {
                "consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": str(queue_id),
                "queueOffset": str(len(bodies)), "maxMsgNums": "32", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                "subVersion": "0",
            }  # fmt: skip
            answer = self.call(11, fields)
            if answer.code != 0:
                return bodies
            bodies += [message.body for message in decode_records(answer.body)]


def test_skylark_up_prints_one_line_with_all_addresses_and_stops_cleanly(tmp_path: Path) -> None:
    namesrv, port = free_port(), free_port()
    arguments = [
        "up", "--data", str(tmp_path / "data"), "--namesrv-port", str(namesrv),
        "--broker-port", str(port), "--no-console", "--set", "mappedFileSizeCommitLog=1048576",
    ]  # fmt: skip
    running = Running(arguments, "^skylark is up", tmp_path)
    assert running.lines == [
        f"skylark is up: name server 127.0.0.1:{namesrv}, broker broker-a 127.0.0.1:{port}, "
        f"data {tmp_path / 'data'}"
    ]
    wire = Wire(port)
    assert wire.send(b"hello").code == 0
    asked = Wire(namesrv)
    assert asked.call(105, {"topic": "T"}).code == 0
    for one in (wire, asked):
        one.close()
    assert running.end() == 0
    assert not (tmp_path / "data" / "broker-a" / "abort").exists()
    assert (tmp_path / "data" / "logs" / "skylark.log").exists()
    for folder in (tmp_path / "data" / "broker-a" / "config").iterdir():
        assert folder.stat().st_mode & 0o077 == 0


def test_a_second_broker_on_the_same_store_or_port_says_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    with broker(tmp_path, port):
        for store, taken, words in (
            (tmp_path / "store", free_port(), "stop that broker first"),
            (tmp_path / "other", port, "is taken"),
        ):
            arguments = [sys.executable, "-m", "skylark.cli", "broker", "--log-dir", "-"]
            for word in (
                f"storePathRootDir={store}",
                f"listenPort={taken}",
                "brokerName=b",
                *SMALL,
            ):
                arguments += ["--set", word]
            done = subprocess.run(
                arguments, capture_output=True, text=True, check=False, timeout=30
            )
            assert done.returncode == 2
            assert words in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["brokerRole=SLAVE", "flushDiskType=MAYBE", "listenPort=x"])
def test_a_setting_that_cannot_be_is_refused_in_one_line(tmp_path: Path, setting: str) -> None:
    arguments = [sys.executable, "-m", "skylark.cli", "broker", "--log-dir", "-", "--set", setting]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert setting.partition("=")[0] in done.stderr


def test_sigterm_finishes_what_is_under_way_and_the_next_start_is_clean(tmp_path: Path) -> None:
    port = free_port()
    with broker(tmp_path, port) as running:
        wire = Wire(port)
        for number in range(100):
            assert wire.send(b"%d" % number).code == 0
        assert running.end() == 0
        wire.close()
    assert not (tmp_path / "store" / "abort").exists()
    with broker(tmp_path, port) as running:
        assert any(", clean" in line for line in running.lines)
        wire = Wire(port)
        assert wire.read_all(0) == [b"%d" % number for number in range(100)]
        wire.close()
