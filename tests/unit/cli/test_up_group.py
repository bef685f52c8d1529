"""`skylark up` with brokers that are one Raft group."""

from __future__ import annotations

import pytest

from skylark.cli.up import Plan, _parser
from skylark.errors import ConfigError


def plan(*words: str) -> Plan:
    return Plan(_parser("skylark up").parse_args(["--data", "/d", *words]))


def test_three_brokers_with_the_raft_setting_are_one_group_with_a_store_each() -> None:
    made = plan("--brokers", "3", "--set", "enableDLegerCommitLog=true")
    configs = [loaded.config for loaded in made.brokers]
    assert {config.broker_name for config in configs} == {"broker-a"}
    assert [config.d_leger_self_id for config in configs] == ["n0", "n1", "n2"]
    assert {config.d_leger_peers for config in configs} == {
        "n0-127.0.0.1:10912;n1-127.0.0.1:10922;n2-127.0.0.1:10932"
    }
    assert len({config.store_path_root_dir for config in configs}) == 3


def test_a_group_whose_ports_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="must know their ports"):
        plan("--brokers", "3", "--broker-port", "0", "--set", "enableDLegerCommitLog=true")


def test_brokers_without_it_are_each_their_own() -> None:
    configs = [loaded.config for loaded in plan("--brokers", "2").brokers]
    assert [config.broker_name for config in configs] == ["broker-a", "broker-b"]
    assert not any(config.is_raft for config in configs)


def test_brokers_join_their_own_name_server_whatever_clients_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    assert [loaded.config.namesrv_addr for loaded in plan().brokers] == [""]
    (loaded,) = plan("--set", "namesrvAddr=10.0.0.2:9876").brokers
    assert loaded.config.namesrv_addr == "10.0.0.2:9876"
