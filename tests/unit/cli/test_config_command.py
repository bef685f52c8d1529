"""`skylark config`."""

import json
from pathlib import Path

import pytest

from skylark.cli.main import main
from skylark.config import settings_of
from skylark.nameserver.config import NameServerConfig


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "ROCKETMQ_HOME", "SKYLARK_LISTEN_PORT", "RMQ_LISTEN_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_explain_says_value_source_default_and_when_a_change_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKYLARK_LISTEN_PORT", "1234")
    assert main(["config", "explain", "listenPort", "--component", "nameserver"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["value"].strip() == "1234"
    assert lines["source"].strip() == "environment SKYLARK_LISTEN_PORT"
    assert lines["default"].strip() == "9876"
    assert lines["a change counts"].strip() == "after a restart"
    assert lines["RocketMQ's default"].strip() == "9876"


def test_explain_reads_a_file_and_sets_as_a_server_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n.conf"
    path.write_text("\nlistenPort=7\n")
    assert main(["config", "explain", "listen_port", "-c", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["source"] == f"{path}:2"
    set_port = ["--set", "listenPort=8"]
    assert main(["config", "explain", "listen_port", "-c", str(path), *set_port, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["value"] == "8"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("listenPrt", "skylark: unknown key listenPrt; did you mean listenPort?\n"),
        ("zzzzz", "skylark: unknown key zzzzz; see `skylark config list`\n"),
    ],
)
def test_explain_of_an_unknown_key_offers_the_nearest(
    key: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "explain", key]) == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("serverWorkerThreads", "has no effect here: one event loop"),
        ("tls.server.keyPassword", "is not supported: give a key file"),
        ("highSpeedMode", "no component here has it"),
    ],
)
def test_explain_knows_rocketmqs_other_keys(
    key: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "explain", key]) == 2
    assert words in capsys.readouterr().err


def test_list_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "list", "--component", "nameserver", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(settings_of(NameServerConfig))
    assert main(["config", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(rows)


def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n.conf"
    path.write_text("listenPort=x\n")
    assert main(["config", "list", "-c", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"skylark: {path}:1: listenPort=x: expected a whole number from 0 to 65535; "
        "correct it or leave it out for 9876\n"
    )


def test_an_unknown_component_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "list", "--component", "namserver"]) == 2
    assert "did you mean nameserver?" in capsys.readouterr().err


def test_the_reference_is_what_the_docs_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "reference", "nameserver"]) == 0
    stored = Path(__file__).parents[3] / "docs" / "reference" / "config-nameserver.md"
    assert capsys.readouterr().out == stored.read_text(encoding="utf-8")


def test_a_key_that_belongs_to_several_components_is_explained_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "explain", "listenPort", "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert {one["component"]: one["default"] for one in explained} == {
        "nameserver": "9876",
        "broker": "10911",
    }
