"""The commands as a user runs them: real processes, real files, real signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skylark.cli import mqshutdown

BIN = Path(sys.executable).parent
TIMEOUT_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    home.mkdir()
    ours = ("SKYLARK_", "RMQ_", "NAMESRV_", "ROCKETMQ_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    for name in ("SKYLARK_PURE",):
        if name in os.environ:
            kept[name] = os.environ[name]
    return {**kept, "HOME": str(home)}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a server and wait for its boot line; whatever still runs at the end is killed."""
    children: list[subprocess.Popen[str]] = []

    def run(*words: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def boot_port(child: "subprocess.Popen[str]") -> int:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith("The Name Server boot success. serializeType=JSON"), line
    found = re.search(r":(\d+)", line)
    assert found is not None, line
    return int(found[1])


def run(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("words", [("mqnamesrv",), ("skylark", "namesrv")])
def test_a_name_server_boots_logs_and_stops_on_sigterm(
    words: tuple[str, ...], start: Start, home: Path
) -> None:
    child = start(*words, "-p", "0", "--host", "127.0.0.1")
    port = boot_port(child)
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=TIMEOUT_S) == 0
    assert child.stderr is not None
    assert child.stderr.read() == ""
    assert (home / "logs" / "rocketmqlogs" / "namesrv.log").exists()


def test_mqshutdown_stops_a_running_name_server(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = start("mqnamesrv", "-p", "0", "--host", "127.0.0.1")
    boot_port(child)
    # A view of /proc with this one process in it: other servers of this user are not ours to stop.
    proc = tmp_path / "proc"
    proc.mkdir()
    os.symlink(f"/proc/{child.pid}", proc / str(child.pid))
    assert mqshutdown.main(["namesrv"], proc=str(proc)) == 0
    assert f"Send shutdown request to mqnamesrv({child.pid}) OK" in capsys.readouterr().out
    assert child.wait(timeout=TIMEOUT_S) == 0


def test_a_file_gives_the_port_and_says_that_it_was_loaded(start: Start, tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text(
        "# comment\nlistenPort=0\nlistenHost=127.0.0.1\nserverWorkerThreads=8\nbrokerName=b\n"
    )
    child = start("mqnamesrv", "-c", "namesrv.conf")
    assert child.stdout is not None
    assert child.stdout.readline() == "load config properties file OK, namesrv.conf\n"
    assert boot_port(child) > 0


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(environment, "mqnamesrv", "--host", "127.0.0.1", "-p", str(port))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(port) in done.stderr
    assert "-p" in done.stderr


def test_a_bad_value_in_a_file_is_one_line_and_exit_code_2(
    environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "n.conf"
    path.write_text("\nlistenPort=ninety\n")
    done = run(environment, "mqnamesrv", "-c", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mqnamesrv: {path}:2: listenPort=ninety: expected a whole number from 0 to 65535; "
        "correct it or leave it out for 9876\n"
    )


@pytest.mark.parametrize("setting", ["logDir", "kvConfigPath"])
def test_a_path_that_cannot_be_used_is_one_line_and_exit_code_2(
    setting: str, environment: dict[str, str], tmp_path: Path
) -> None:
    # A file where a directory is needed stops even the super-user, whom permissions do not.
    (tmp_path / "file").write_text("")
    wrong = f"{setting}={tmp_path / 'file' / 'below'}"
    done = run(environment, "mqnamesrv", "-p", "0", "--host", "127.0.0.1", "--set", wrong)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(tmp_path / "file") in done.stderr


def test_config_explain_shows_the_source_of_a_value(environment: dict[str, str]) -> None:
    environment["SKYLARK_LISTEN_PORT"] = "4321"
    done = run(environment, "skylark", "config", "explain", "listenPort", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    [explained, *_] = json.loads(done.stdout)
    assert (explained["value"], explained["source"]) == (
        "4321",
        "environment SKYLARK_LISTEN_PORT",
    )


def test_a_reader_that_leaves_early_is_no_error(environment: dict[str, str]) -> None:
    command = f"'{BIN / 'skylark'}' config list --json | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")
