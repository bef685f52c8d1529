"""Every setting of a client by code, by file and by the environment."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from skylark.client.config import ClientConfig
from skylark.client.connect import connect
from skylark.client.settings import PREFIX, settings_from_outside
from skylark.errors import ConfigError
from skylark.testing import SimLoop, SimNetwork

VALUES: dict[str, tuple[str, object]] = {
    "namesrv_addr": ("10.0.0.1:9876", "10.0.0.1:9876"),
    "client_ip": ("10.0.0.9", "10.0.0.9"),
    "instance_name": ("till", "till"),
    "unit_name": ("u", "u"),
    "namespace": ("shop", "shop"),
    "poll_name_server_interval_ms": ("40000", 40_000),
    "heartbeat_broker_interval_ms": ("20000", 20_000),
    "persist_consumer_offset_interval_ms": ("1000", 1_000),
    "api_timeout_ms": ("5000", 5_000),
    "vip_channel_enabled": ("true", True),
    "access_key": ("me", "me"),
    "secret_key": ("12345678", "12345678"),
    "security_token": ("t", "t"),
}


def test_every_setting_is_in_the_table_above() -> None:
    names = {item.name for item in dataclasses.fields(ClientConfig)}
    assert set(VALUES) == names - {"properties", "tls"}


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_comes_from_file_or_environment(name: str, tmp_path: Path) -> None:
    text, expected = VALUES[name]
    file = tmp_path / "client.properties"
    file.write_text(f"# a file for many programs\nbrokerName=b\n{name}={text}\n")
    assert settings_from_outside(str(file), {}) == {name: expected}
    table = tmp_path / "skylark.toml"
    shown = text if isinstance(expected, int) else f'"{text}"'
    table.write_text(f"[client]\n{name} = {shown}\n[broker]\nlistenPort = 1\n")
    assert settings_from_outside(str(table), {}) == {name: expected}
    assert settings_from_outside(None, {PREFIX + name.upper(): text}) == {name: expected}
    assert settings_from_outside(None, {PREFIX + "CONFIG": str(file)}) == {name: expected}


def test_java_s_names_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("clientIP=10.0.0.9\npollNameServerInterval=40000\nvipChannelEnabled=yes\n")
    assert settings_from_outside(str(file), {}) == {
        "client_ip": "10.0.0.9",
        "poll_name_server_interval_ms": 40_000,
        "vip_channel_enabled": True,
    }


def test_code_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("namesrvAddr=a:1\ninstanceName=file\nunitName=file\nclientIP=10.0.0.1\n")
    env = {PREFIX + "UNIT_NAME": "environment", PREFIX + "INSTANCE_NAME": "environment"}
    loop = SimLoop()

    async def main() -> ClientConfig:
        network = SimNetwork(loop, random.Random(1)).host("10.0.0.7")
        client = connect(config_file=str(file), env=env, instance_name="code", network=network)
        return client._make_session(1).config

    config = loop.run(main())
    loop.close()
    assert (config.namesrv_addr, config.client_ip) == ("a:1", "10.0.0.1")
    assert (config.instance_name, config.unit_name) == ("code", "environment")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({PREFIX + "INSTANCE_NAM": "x"}, "did you mean SKYLARK_CLIENT_INSTANCE_NAME"),
        ({PREFIX + "API_TIMEOUT_MS": "soon"}, "SKYLARK_CLIENT_API_TIMEOUT_MS=soon: expected"),
        ({PREFIX + "VIP_CHANNEL_ENABLED": "perhaps"}, "true or false"),
        ({PREFIX + "CONFIG": "/nowhere/client.toml"}, "/nowhere/client.toml"),
    ],
)
def test_what_cannot_be_is_one_line(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from_outside(None, env)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
