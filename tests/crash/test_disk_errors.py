"""I07, I23, D1, K1, K2, K3: flush errors and full disks, simulated and real."""

import asyncio
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from disk_errors import ASYNC, PLACES, SYNC, flush_error, full_disk, full_disk_at_start

from skylark.errors import StoreFull
from skylark.store import MessageStore, PutStatus
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, make_message

HERE = Path(__file__).parent


@pytest.mark.parametrize("config", [SYNC, ASYNC], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("pattern", PLACES)
def test_the_first_flush_error_ends_the_store_as_a_writer(config, pattern):
    hits = 0
    for skip in range(12):
        hits += asyncio.run(flush_error(config, pattern, skip, seed=skip))
    assert hits >= 1


@pytest.mark.parametrize("config", [SYNC, ASYNC], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("operation", ["create", "reserve"])
def test_a_disk_that_fills_up_at_any_step_refuses_and_recovers_without_a_restart(operation, config):
    hits = 0
    for skip in range(60):
        if full_disk(config, operation, skip, seed=skip % 3):
            hits += 1
        elif skip > 20:
            break
    assert hits >= 15


@pytest.mark.parametrize("operation", ["create", "reserve", "write", "rename"])
def test_a_disk_that_fills_up_during_recovery_costs_nothing(operation):
    hits = 0
    for skip in range(15):
        hits += full_disk_at_start(operation, skip, seed=3)
    assert hits >= (operation == "reserve")


@pytest.mark.parametrize("operation", ["write", "rename", "sync"])
def test_a_table_that_finds_no_room_is_left_as_it_was(operation):
    for skip in range(4):
        files = SimFiles()
        files.make_directory("/store/config")
        files.replace("/store/config/t.json", b"old")
        files.replace("/store/config/t.json", b"new")
        files.fail(operation, error=errno.ENOSPC, skip=skip)
        try:
            files.replace("/store/config/t.json", b"newer")
        except StoreFull:
            # The sync of the directory comes last: the name has changed by then.
            assert files.read("/store/config/t.json") in (b"new", b"newer")
        for _, disk in files.crash_states():
            assert disk.read("/store/config/t.json") in (b"new", b"newer")


def test_writes_are_refused_at_the_mark_and_return_when_space_is_freed():
    clock = HandClock()
    files = SimFiles(now_ms=clock.now_ms, capacity_bytes=1 << 20)
    config = dataclasses.replace(TINY, delete_when="", clean_file_forcibly_enable=False)
    with MessageStore.open(config, files, clock) as store:
        retention = Retention(store, clock)
        retention.look()
        assert store.put([make_message()])[0].status is PutStatus.PUT_OK
        files.foreign_bytes = 990_000
        retention.look()
        for _ in range(10):
            assert store.put([make_message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.get("TopicTest", 0, 0, 32).message_count == 1
        files.foreign_bytes = 0
        retention.look()
        assert store.put([make_message()])[0].status is PutStatus.PUT_OK
        assert store.get("TopicTest", 0, 0, 32).message_count == 2


def test_a_disk_that_really_fills_up_raises_no_signal(tmp_path):
    """K3 on a small tmpfs; without the right to mount one, on SimFiles' capacity."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        assert full_disk(SYNC, "create", 12, seed=1)
        return
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "real_disk_errors.py"), "full", str(place)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        outcome = json.loads(done.stdout)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert outcome["refused"] > 0
    assert outcome["taken_again"] > 0
    assert outcome["lost"] == 0


@pytest.mark.parametrize("when", [9, 12, 17, 25])
def test_a_flush_error_of_the_kernel_is_not_survived_by_an_acknowledgement(tmp_path, when):
    """D1 with strace; without it, the simulated disk has shown the same above."""
    program = [sys.executable, str(HERE / "real_disk_errors.py"), "flush", str(tmp_path / "store")]
    strace = shutil.which("strace")
    injected = False
    if strace is not None:
        inject = ["-f", "-q", "-o", str(tmp_path / "trace")]
        inject += ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={when}"]
        probe = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True)
        injected = probe.returncode == 0
    if not injected:
        assert asyncio.run(flush_error(SYNC, "*/commitlog/*", when % 5, seed=when))
        return
    done = subprocess.run([strace, *inject, *program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["failure"] is not None
    assert outcome["acked_after_failure"] == 0
    assert outcome["puts_after_failure"] == ["SERVICE_NOT_AVAILABLE"]
    check = subprocess.run(
        [sys.executable, str(HERE / "real_disk_errors.py"), "check", str(tmp_path / "store")],
        input=json.dumps(outcome["acked"]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert check.returncode == 0, check.stderr
    assert json.loads(check.stdout) == {"lost": 0}
