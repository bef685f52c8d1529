"""`skylark prove` without a run: what it explains, what it judges, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skylark.cli.main import main
from skylark.prove import fabric, runner
from skylark.prove.history import INVOKE, OK, Event, History
from skylark.prove.nodes import NodeDied


def kept(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    assert main(["prove", "--explain", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    return {one["fault"]: one["kept"] for one in found["promises"]}


def test_it_explains_what_a_configuration_promises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["prove", "--explain", "--mode", "sync-master"]) == 0
    said = capsys.readouterr().out
    assert "SEND_OK means that the message survives when" in said
    assert "one machine loses its disk  yes" in said
    assert "all machines lose power     NO" in said
    assert kept(capsys)["disk-lost"] is False
    assert kept(capsys, "--set", "flushDiskType=SYNC_FLUSH")["power-cut"] is True
    assert all(kept(capsys, "--mode", "raft").values())
    master, replica = tmp_path / "a.conf", tmp_path / "a-s.conf"
    master.write_text("brokerName=a\nbrokerRole=SYNC_MASTER\nflushDiskType=SYNC_FLUSH\n")
    replica.write_text("brokerName=a\nbrokerId=1\nbrokerRole=SLAVE\nflushDiskType=SYNC_FLUSH\n")
    assert all(kept(capsys, "-c", str(master), "-c", str(replica)).values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "quorum"], "--mode quorum: use alone, master-slave, sync-master, raft"),
        (["--faults", "kill,flood"], "--faults flood: there is no such fault; use kill, stop"),
        (["--seconds", "soon"], "--seconds soon: expected a whole number from 1 to 86400"),
        (["--seed", "-1"], "--seed -1: expected a whole number"),
        (["--network", "wifi"], "--network wifi: use auto, namespaces or proxies"),
        (["--set", "flushDiskType=NEVER"], "flushDiskType"),
        (["-c", "no-such.conf"], "no-such.conf"),
        (["--mode", "alone", "-c", "a.conf"], "--mode and -c exclude each other"),
        (
            ["--set", "brokerRole=SYNC_MASTER"],
            "a SYNC_MASTER without a replica never answers SEND_OK; give the file of its SLAVE",
        ),
        (["--set", "brokerRole=SLAVE", "--set", "brokerId=1"], "0 masters; give one file"),
        (["check", "no-such.jsonl"], "cannot use no-such.jsonl"),
    ],
)
def test_wrong_use_is_one_line_with_the_next_step(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prove", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_directory_with_something_in_it_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["prove", "--network", "proxies", "--keep", str(tmp_path)]) == 2
    assert "it is there already; name an empty or new directory" in capsys.readouterr().err


def test_a_kept_history_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    sent = Event(0, INVOKE, "send", "Proof", 0, -1, 7, 1, 1, "")
    fault = Event(-1, INVOKE, "fault", "kill", -1, -1, -1, 3, 3, "broker-a.0")
    events = [sent, sent._replace(type=OK, off=0, node="broker-a"), fault, fault._replace(type=OK)]
    drained = sent._replace(p=-1, type=OK, f="drain", off=0, node="broker-a")
    for last, code, word in (
        (drained, 0, "nothing is wrong"),
        (drained._replace(id=-1), 1, "lost"),
    ):
        with path.open("w") as out:
            History([*events, last]).write(out)
        assert main(["prove", "check", str(path)]) == code
        assert word in capsys.readouterr().out
    assert main(["prove", "check", "--json", str(path)]) == 1
    (anomaly,) = json.loads(capsys.readouterr().out)["anomalies"]
    assert anomaly["kind"] == "lost"
    assert anomaly["faults"] == ["kill broker-a.0 from 3 to 3 ms"]
    path.write_text(path.read_text() + "{}\n")
    assert main(["prove", "check", str(path)]) == 2
    assert "history.jsonl:6: not an object" in capsys.readouterr().err


def test_a_cluster_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prove(*_: object, **__: object) -> None:
        raise NodeDied("broker-a.0 ended by itself with 2: the disk is on fire")

    monkeypatch.setattr(runner, "prove", prove)
    monkeypatch.setattr(fabric, "leave_the_world", lambda **_: None)
    assert main(["prove", "--network", "proxies", "--faults", "kill"]) == 1
    assert capsys.readouterr().err == (
        "skylark prove: the cluster did not start: broker-a.0 ended by itself with 2: the disk is "
        "on fire; see its log with --keep DIR\n"
    )
