"""The four roles as processes of their own, started and stopped by RocketMQ's commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_broker_process import SMALL, Running, free_port

from skylark.cli import mqshutdown

PATIENCE_S = 60


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_message_travels_through_four_processes_and_two_are_told_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv_port, port = free_port(), free_port()
    file = tmp_path / "broker.conf"
    store = tmp_path / "store"
    file.write_text(
        "\n".join(
            ("brokerName=broker-a", f"listenPort={port}", "listenHost=127.0.0.1",
             f"storePathRootDir={store}", *SMALL)
        )
    )  # fmt: skip
    address = f"127.0.0.1:{namesrv_port}"
    server = Running(
        ["namesrv", "-p", str(namesrv_port), "--host", "127.0.0.1", "--log-dir", "-"],
        "^The Name Server boot success. serializeType=JSON",
        tmp_path,
    )
    broker = Running(
        ["broker", "-n", address, "-c", str(file), "--log-dir", "-"],
        rf"^The broker\[broker-a, 127\.0\.0\.1:{port}\] boot success\. serializeType=JSON "
        rf"and name server is {re.escape(address)}$",
        tmp_path,
    )
    try:
        sent = run(
            tmp_path, "skylark.cli", "produce", "Letters", "-n", address, "--body", "dear reader"
        )
        assert sent.returncode == 0, sent.stderr
        read = run(
            tmp_path, "skylark.cli", "consume", "Letters", "-n", address, "--from", "first",
            "--count", "1",
        )  # fmt: skip
        assert read.returncode == 0, read.stderr
        assert "dear reader" in read.stdout
        assert (store / "abort").exists()  # While it runs, and after a kill.
        for role, running in (("broker", broker), ("namesrv", server)):
            # A view of /proc with this one process in it: others are not ours to stop.
            proc = tmp_path / f"proc-{role}"
            proc.mkdir()
            pid = running.process.pid
            os.symlink(f"/proc/{pid}", proc / str(pid))
            assert mqshutdown.main([role], proc=str(proc)) == 0
            assert f"Send shutdown request to mq{role}({pid}) OK" in capsys.readouterr().out
            assert running.process.wait(PATIENCE_S) == 0
            proc.joinpath(str(pid)).unlink()
            assert mqshutdown.main([role], proc=str(proc)) == mqshutdown.NONE_RUNNING
            assert capsys.readouterr().out == f"No mq{role} running.\n"
        assert not (store / "abort").exists()
        assert any("unregistered" in line for line in broker.lines)
    finally:
        for running in (broker, server):
            if running.process.poll() is None:
                running.end(signal.SIGKILL)
            assert running.process.stdout is not None
            running.process.stdout.close()
