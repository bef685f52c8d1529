"""`skylark produce` and `skylark consume` as processes, against `skylark up`."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_broker_process import Running, free_port


def skylark(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "skylark.cli", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("cli")
    namesrv = free_port()
    running = Running(
        [
            "up", "--data", str(home / "data"), "--namesrv-port", str(namesrv),
            "--broker-port", "0", "--no-console", "--set", "mappedFileSizeCommitLog=4194304",
        ],
        "^skylark is up",
        home,
    )  # fmt: skip
    yield f"127.0.0.1:{namesrv}"
    assert running.end() == 0


def test_one_message_with_tag_and_keys_goes_round(address: str) -> None:
    code, out, err = skylark(
        "produce", "One", "--body", "héllo", "--tag", "Paid", "--key", "o-1", "--key", "o-2",
        "-n", address,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.startswith("SEND_OK ")
    code, out, err = skylark("consume", "One", "-n", address, "--json")
    assert (code, err) == (0, "")
    (got,) = objects(out)
    assert (got["body"], got["tag"], got["keys"]) == ("héllo", "Paid", ["o-1", "o-2"])
    code, out, _ = skylark("consume", "One", env={"NAMESRV_ADDR": address})
    assert code == 0
    assert out.rstrip().endswith("[Paid] (o-1 o-2) héllo")


def test_each_line_of_standard_input_is_a_message_and_filters_choose(address: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1_000))
    code, out, _ = skylark("produce", "Lines", "--tag", "A", "-n", address, stdin=lines)
    assert (code, out) == (0, "1000 messages sent\n")
    code, out, _ = skylark("produce", "Lines", "--tag", "B", "-n", address, stdin=b"x\r\n\nend")
    assert (code, out) == (0, "2 messages sent\n")
    _, out, _ = skylark("consume", "Lines", "--tag", "A", "-n", address, "--json")
    assert sorted(got["body"] for got in objects(out)) == sorted(f"line {n}" for n in range(1_000))
    _, out, _ = skylark("consume", "Lines", "--tag", "A || B", "--count", "7", "-n", address)
    assert len(out.splitlines()) == 7


def test_a_file_is_sent_as_it_is_and_as_often_as_asked(address: str, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00\n")
    code, out, _ = skylark(
        "produce", "Filed", "--file", str(path), "--count", "300", "-n", address, "--json"
    )
    assert code == 0
    receipts = objects(out)
    assert len({receipt["message_id"] for receipt in receipts}) == 300
    assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}
    _, out, _ = skylark("consume", "Filed", "-n", address, "--json")
    bodies = [base64.b64decode(got["body_base64"]) for got in objects(out)]
    assert bodies == [b"\xff\x00\n"] * 300


def test_what_a_terminal_would_obey_is_escaped(address: str) -> None:
    skylark("produce", "Escapes", "--body", "\x1b[31mred", "-n", address)
    _, out, _ = skylark("consume", "Escapes", "-n", address)
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_reading_from_a_time_begins_there(address: str) -> None:
    skylark("produce", "Timed", "--body", "old", "--count", "5", "-n", address)
    time.sleep(0.05)
    now_ms = int(time.time() * 1000)
    skylark("produce", "Timed", "--body", "new", "--count", "5", "-n", address)
    _, out, _ = skylark("consume", "Timed", "--from", str(now_ms), "-n", address, "--json")
    assert [got["body"] for got in objects(out)] == ["new"] * 5
    _, out, _ = skylark("consume", "Timed", "--from", "2020-01-01T00:00:00", "-n", address)
    assert len(out.splitlines()) == 10
    _, out, _ = skylark("consume", "Timed", "--from", "last", "-n", address)
    assert out == ""


def test_a_group_goes_on_where_it_stopped(address: str) -> None:
    skylark("produce", "Grouped", "--body", "x", "--count", "10", "-n", address)
    flags = ("consume", "Grouped", "--group", "readers", "--from", "first", "-n", address, "--json")
    code, first, err = skylark(*flags, "--count", "4")
    assert (code, err) == (0, "")
    code, second, err = skylark(*flags)
    assert (code, err) == (0, "")
    ids = [got["message_id"] for got in objects(first) + objects(second)]
    assert len(objects(first)) == 4
    assert len(ids) == len(set(ids)) == 10


def test_following_shows_what_comes_and_ends_with_the_count(address: str) -> None:
    skylark("produce", "Followed", "--body", "before", "-n", address)
    with subprocess.Popen(
        [
            sys.executable, "-m", "skylark.cli", "consume", "Followed", "--follow", "--from",
            "first", "--count", "3", "-n", address, "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"] == "before"
        skylark("produce", "Followed", "--body", "after", "--count", "2", "-n", address)
        assert [got["body"] for got in objects(process.stdout.read())] == ["after", "after"]
        assert process.wait(20) == 0


def test_an_interruption_ends_it_quietly(address: str) -> None:
    skylark("produce", "Interrupted", "--body", "x", "-n", address)
    for arguments in (
        ["consume", "Interrupted", "--follow", "--from", "first", "--json"],
        ["produce", "Interrupted", "--json"],
    ):
        with subprocess.Popen(
            [sys.executable, "-m", "skylark.cli", *arguments, "-n", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell in the background lets its children ignore it, and they theirs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write("y\n")
            process.stdin.flush()
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["produce"], "TOPIC"),
        (["produce", "T", "--body", "x", "--file", "y"], "not allowed with"),
        (["produce", "T", "--body", "x", "--delay-level", "19"], "from 0 to 18"),
        (["produce", "T", "--body", "x", "--count", "0"], "whole number from 1"),
        (["produce", "T", "--count", "2"], "--body or --file"),
        (["produce", "bad topic", "--body", "x"], "bad topic"),
        (["produce", "T", "--body", "x", "--tag", "a||b"], "tag"),
        (["produce", "T", "--body", "x", "--key", "a b"], "key"),
        (["produce", "T", "--file", "/nowhere/at/all"], "/nowhere/at/all"),
        (["consume", "T", "--from", "yesterday"], "--from 'yesterday' is not understood"),
        (["consume", "T", "--group", "bad group"], "bad group"),
        (["consume", "T", "--tag", "||"], "names no tag"),
        (["consume", "T", "-n", "no port"], "no port"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    code, out, err = skylark(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_a_server_out_of_reach_is_one_line_and_exit_code_3() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for arguments in (["produce", "T", "--body", "x"], ["consume", "T"]):
        code, out, err = skylark(*arguments, "-n", nowhere)
        assert (code, out, err.count("\n")) == (3, "", 1), err
        assert nowhere in err


def test_a_topic_that_does_not_exist_is_one_line_and_exit_code_1(address: str) -> None:
    code, out, err = skylark("consume", "NeverMade", "-n", address)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "NeverMade" in err
    assert "create the topic" in err
