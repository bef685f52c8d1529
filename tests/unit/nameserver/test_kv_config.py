"""KVConfig: RocketMQ's file both ways, durable before it is answered, and its damaged forms."""

from __future__ import annotations

import errno
import random

import pytest

from skylark.errors import BrokerError, CorruptRecord, StoreError
from skylark.nameserver import kv_config
from skylark.nameserver.kv_config import KVConfig
from skylark.testing.files import SimFiles

PATH = "/home/rocketmq/namesrv/kvConfig.json"


@pytest.fixture
def files() -> SimFiles:
    return SimFiles()


@pytest.fixture
def kv(files: SimFiles) -> KVConfig:
    return KVConfig.load(PATH, files)


def test_the_file_is_rocketmqs_to_the_byte(kv: KVConfig, files: SimFiles) -> None:
    kv.put("ORDER_TOPIC_CONFIG", "T", "b:4")
    assert files.read(PATH) == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"}}}'


def test_a_file_of_rocketmq_is_read(files: SimFiles) -> None:
    files.make_directory("/home/rocketmq/namesrv")
    files.replace(PATH, '{"configTable":{"n":{"k":"值","x":"1"},"empty":{}}}'.encode())
    kv = KVConfig.load(PATH, files)
    assert kv.namespace("n") == {"k": "值", "x": "1"}
    assert kv.namespace("empty") == {}
    assert kv.namespace("other") is None


def test_values_survive_a_restart(kv: KVConfig, files: SimFiles) -> None:
    kv.put("n", "k", "v")
    kv.put("n", "k", "w")
    kv.put("n", "gone", "v")
    kv.delete("n", "gone")
    again = KVConfig.load(PATH, files)
    assert (again.get("n", "k"), again.get("n", "gone")) == ("w", None)


def test_an_answered_change_survives_a_power_cut_at_any_later_moment(files: SimFiles) -> None:
    for seed in range(50):
        disk = SimFiles()
        kv = KVConfig.load(PATH, disk)
        for number in range(3):
            kv.put("n", "k", str(number))
        after = disk.crash(random.Random(seed))
        assert KVConfig.load(PATH, after).get("n", "k") == "2"


def test_a_change_that_cannot_be_written_is_not_made(kv: KVConfig, files: SimFiles) -> None:
    kv.put("n", "k", "old")
    files.fail("write", error=errno.ENOSPC, times=None)
    with pytest.raises(StoreError):
        kv.put("n", "k", "new")
    with pytest.raises(StoreError):
        kv.delete("n", "k")
    assert kv.get("n", "k") == "old"


def test_a_repeated_put_does_not_touch_the_disk(kv: KVConfig, files: SimFiles) -> None:
    kv.put("n", "k", "v")
    before = files.sync_count
    kv.put("n", "k", "v")
    kv.delete("n", "absent")
    kv.delete("absent", "k")
    assert files.sync_count == before


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b'{"configTable":[]}', b"[1]"])
def test_a_damaged_file_is_replaced_by_its_backup(
    kv: KVConfig, files: SimFiles, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kv.put("n", "k", "first")
    kv.put("n", "k", "second")
    _overwrite(files, damage)
    again = KVConfig.load(PATH, files)
    assert again.get("n", "k") == "first"
    assert "kvConfig.json.bak instead" in caplog.text


def test_a_missing_file_is_replaced_by_its_backup(kv: KVConfig, files: SimFiles) -> None:
    """RocketMQ removes the file before it renames the new one into place, and may stop there."""
    kv.put("n", "k", "first")
    kv.put("n", "k", "second")
    files.remove(PATH)
    assert KVConfig.load(PATH, files).get("n", "k") == "first"


def test_two_damaged_files_are_an_error_that_says_what_to_do(kv: KVConfig, files: SimFiles) -> None:
    kv.put("n", "k", "first")
    kv.put("n", "k", "second")
    _overwrite(files, b"{")
    files.rename(PATH, f"{PATH}.bak")
    _overwrite(files, b"not json")
    with pytest.raises(CorruptRecord, match=r"restore the file from a backup, or remove both"):
        KVConfig.load(PATH, files)


def test_an_empty_file_holds_no_settings(files: SimFiles) -> None:
    files.make_directory("/home/rocketmq/namesrv")
    _overwrite(files, b"\n")
    assert KVConfig.load(PATH, files).namespace("n") is None


def test_a_directory_that_is_not_there_is_made(files: SimFiles, kv: KVConfig) -> None:
    kv.put("n", "k", "v")
    assert files.exists(PATH)


def test_there_is_a_limit_on_all_settings_together(
    kv: KVConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_config, "FILE_BYTES_MAX", 100)
    kv.put("n", "k", "v")
    with pytest.raises(BrokerError, match="delete some first"):
        kv.put("n", "big", "x" * 100)
    assert kv.namespace("n") == {"k": "v"}


def test_what_is_handed_out_is_a_copy(kv: KVConfig) -> None:
    kv.put("n", "k", "v")
    handed = kv.namespace("n")
    assert handed is not None
    handed["k"] = "other"
    assert kv.get("n", "k") == "v"


def _overwrite(files: SimFiles, content: bytes) -> None:
    files.remove(PATH)
    files.replace(PATH, content)
