"""Delay levels and any delivery time, as the official Java clients ask for them, on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from java_programs import JavaProgram
from our_broker import our_cluster
from peers import Peers

pytestmark = pytest.mark.interop

LATE_MS = 2_000  # Of a busy machine; what may not be is early.


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    home = tmp_path_factory.mktemp("timers")
    settings = {"flushDiskType": request.param, "messageDelayLevel": "1s 2s 3s"}
    with our_cluster(home, **settings) as (name_server, _):
        yield name_server.address


def run(peers: Peers, home: Path, address: str, topic: str, *specs: str) -> list[list[str]]:
    with JavaProgram(peers, "TimerPeer", address, topic, *specs, home=home) as program:
        program.wait_for_line("> done", timeout_s=90)
        return [line.split(" ") for line in program.lines if line.startswith("> ")]


def judge(lines: list[list[str]], topic: str, specs: tuple[str, ...]) -> None:
    got = {words[2]: words[3:] for words in lines if words[1] == "got"}
    assert got.keys() == set(specs)
    assert sum(words[1] == "got" for words in lines) == len(specs), "one came twice"
    for spec, (late, level, at_topic, tag) in got.items():
        assert 0 <= int(late) <= LATE_MS, spec
        assert (level, at_topic, tag) == ("0", topic, "TagA"), spec


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_delay_levels_of_the_official_client(
    peers: Peers, clients5: Peers, address: str, tmp_path: Path, version: str
) -> None:
    chosen = peers if version == "4.9.8" else clients5
    specs = ("level:1", "level:2", "level:3", "level:18")
    topic = f"Levels{version.replace('.', '')}"
    judge(run(chosen, tmp_path, address, topic, *specs), topic, specs)


def test_any_delivery_time_of_the_5x_client(clients5: Peers, address: str, tmp_path: Path) -> None:
    specs = ("deliver:1234", "deliver:2500", "sec:2", "ms:700", "ms:1", "deliver:4000")
    judge(run(clients5, tmp_path, address, "Timed", *specs), "Timed", specs)


def test_the_5x_client_is_told_why_a_time_is_refused(
    clients5: Peers, address: str, tmp_path: Path
) -> None:
    specs = ("sec:40000000", "deliver:-5000", "ms:500")
    lines = run(clients5, tmp_path, address, "Refused", *specs)
    refused = [words for words in lines if words[1] == "refused"]
    assert [words[2:4] for words in refused] == [["sec:40000000", "13"]]
    assert "too far ahead" in " ".join(refused[0])
    got = {words[2] for words in lines if words[1] == "got"}
    assert got == {"deliver:-5000", "ms:500"}  # What is past comes at once.
