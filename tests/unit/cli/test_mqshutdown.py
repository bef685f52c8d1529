"""`mqshutdown`: whom it finds, whom it leaves alone, and what it prints."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.cli.mqshutdown import is_server, main, servers


@pytest.mark.parametrize(
    "line",
    [
        "/v/bin/python /v/bin/mqnamesrv",
        "/v/bin/python3.11 -X dev -u -W error /v/bin/mqnamesrv -p 9876",
        "/v/bin/mqnamesrv",
        "python /v/bin/skylark namesrv -p 1",
        "skylark namesrv",
        "python -m skylark.cli namesrv",
        "python -m skylark.cli.main namesrv",
        "python3 -m skylark.cli.mqnamesrv",
    ],
)
def test_a_name_server_is_recognised_however_it_was_started(line: str) -> None:
    assert is_server(line.split(), "namesrv")
    assert not is_server(line.split(), "broker")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "vim mqnamesrv",
        "grep mqnamesrv /var/log/x",
        "tail -f /home/a/logs/rocketmqlogs/namesrv.log",
        "/v/bin/python /v/bin/mqshutdown namesrv",
        "/v/bin/python /v/bin/skylark config explain namesrv",
        "python -c mqnamesrv",
        "python -m pytest mqnamesrv",
        "python edit.py mqnamesrv",
        "bash -c mqnamesrv",
        "java org.apache.rocketmq.namesrv.NamesrvStartup",
    ],
)
def test_what_only_mentions_a_server_is_left_alone(line: str) -> None:
    assert not is_server(line.split(), "namesrv")


def test_a_broker_is_not_a_name_server() -> None:
    assert is_server(["python", "/v/bin/mqbroker", "-n", "a:1"], "broker")
    assert not is_server(["python", "/v/bin/mqbroker", "-n", "a:1"], "namesrv")


def fake_process(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes("".join(word + "\0" for word in words).encode())


def test_processes_are_found_in_order_and_gone_ones_are_skipped(tmp_path: Path) -> None:
    fake_process(tmp_path, 20, "python", "/v/bin/mqnamesrv")
    fake_process(tmp_path, 3, "mqnamesrv")
    fake_process(tmp_path, 4, "vim")
    (tmp_path / "5").mkdir()
    (tmp_path / "self").mkdir()
    assert list(servers("namesrv", str(tmp_path))) == [3, 20]


def test_none_running_is_said_with_the_scripts_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["namesrv"], proc=str(tmp_path)) == 255
    assert capsys.readouterr().out == "No mqnamesrv running.\n"
    assert main(["broker"], proc=str(tmp_path)) == 255
    assert capsys.readouterr().out == "No mqbroker running.\n"


@pytest.mark.parametrize("arguments", [[], ["controller"], ["namesrv", "broker"]])
def test_anything_else_is_wrong_use(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, proc=str(tmp_path)) == 2
    assert capsys.readouterr().err == "Usage: mqshutdown namesrv | broker\n"


def test_a_running_server_gets_sigterm_and_nobody_else_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A private view of /proc with one process in it, so that no real server of this user is met.
    program = tmp_path / "mqnamesrv"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    child = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        proc = tmp_path / "proc"
        proc.mkdir()
        os.symlink(f"/proc/{child.pid}", proc / str(child.pid))
        assert main(["broker"], proc=str(proc)) == 255
        capsys.readouterr()
        assert main(["namesrv"], proc=str(proc)) == 0
        assert capsys.readouterr().out == (
            f"The mqnamesrv({child.pid}) is running...\n"
            f"Send shutdown request to mqnamesrv({child.pid}) OK\n"
        )
        assert child.wait(timeout=30) == -signal.SIGTERM
    finally:
        child.kill()
        child.communicate()


def test_a_server_that_ends_in_between_is_not_reported_as_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    fake_process(tmp_path, ended.pid, "python", "/v/bin/mqnamesrv")
    assert main(["namesrv"], proc=str(tmp_path)) == 255
    assert capsys.readouterr().out.endswith("No mqnamesrv running.\n")
