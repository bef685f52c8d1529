"""`skylark broker`, `mqbroker` and `skylark up`: what their arguments mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.cli import broker, up


def _plan(*arguments: str) -> up.Plan:
    return up.Plan(up._parser("skylark up").parse_args(list(arguments)))


def test_up_puts_everything_in_one_folder_and_on_one_host(tmp_path: Path) -> None:
    plan = _plan("--data", str(tmp_path), "--host", "127.0.0.2", "--brokers", "2")
    one, two = (loaded.config for loaded in plan.brokers)
    assert plan.name_server.config.listen_port == 9876
    assert plan.name_server.config.kv_config_path == str(tmp_path / "namesrv" / "kvConfig.json")
    assert (one.broker_name, one.listen_port) == ("broker-a", 10911)
    assert (two.broker_name, two.listen_port) == ("broker-b", 10921)
    assert one.store_path_root_dir == str(tmp_path / "broker-a")
    assert {one.listen_host, two.listen_host} == {"127.0.0.2"}


def test_any_broker_key_can_be_set_and_counts_for_all_brokers(tmp_path: Path) -> None:
    plan = _plan(
        "--data", str(tmp_path), "--brokers", "2", "--set", "flushDiskType=SYNC_FLUSH",
        "--set", "brokerClusterName=Mine", "--broker-port", "20911",
    )  # fmt: skip
    assert {loaded.config.flush_disk_type for loaded in plan.brokers} == {"SYNC_FLUSH"}
    assert {loaded.config.broker_cluster_name for loaded in plan.brokers} == {"Mine"}
    assert [loaded.config.listen_port for loaded in plan.brokers] == [20911, 20921]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--brokers", "0"], "--brokers 0"),
        (["--brokers", "many"], "--brokers many"),
        (["--broker-port", "70000"], "--broker-port 70000"),
        (["--namesrv-port", "x"], "--namesrv-port x"),
        (["--set", "nonsense"], "key=value"),
        (["--set", "brokerRole=SLAVE"], "brokerRole"),
        (["--frobnicate"], "unrecognized"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = up.main(arguments)
    except SystemExit as leaving:
        code = int(str(leaving.code))
    said = capsys.readouterr().err
    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_the_settings_can_be_printed_all_or_those_that_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nfileReservedTime=48\nsendMessageThreadPoolNums=8\n")
    assert broker.main(["-c", str(file), "-n", "127.0.0.1:9876", "-m"], program="mqbroker") == 0
    given = capsys.readouterr().out.splitlines()
    assert "fileReservedTime=48" in given
    assert "namesrvAddr=127.0.0.1:9876" in given
    assert not any(line.startswith("listenPort") for line in given)
    assert broker.main(["-c", str(file), "-p"], program="mqbroker") == 0
    everything = capsys.readouterr().out.splitlines()
    assert "listenPort=10911" in everything
    assert "deleteWhen=04" in everything


def test_an_unknown_key_is_a_warning_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert broker.main(["--set", "brokrName=b", "-m"], program="mqbroker") == 0
    assert "did you mean brokerName?" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert broker.main(["-c", "/no/such/broker.conf"], program="mqbroker") == 2
    assert "/no/such/broker.conf" in capsys.readouterr().err
