"""ST-46: a backlog larger than memory is written and read within a cap."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CAP_BYTES = 64 << 20
BACKLOG_BYTES = 192 << 20
PROGRAM = """
import json, os, sys
from pathlib import Path
if sys.argv[2]:
    Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
else:
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]), int(sys.argv[3])))
from skylark.clock import SystemClock
from skylark.store import GetStatus, MessageStore, OsFiles, PutStatus, StoreConfig
from skylark.testing.stores import make_message

def anonymous_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10

config = StoreConfig(
    store_path_root_dir=sys.argv[1], mapped_file_size_commit_log=16 << 20, max_hash_slot_num=5000,
    max_index_num=200_000, disk_space_warning_level_ratio=100, disk_max_used_space_ratio=100,
)
some = [make_message("TopicA", n % 4, bytes([n]) * 4000, keys=f"k{n}") for n in range(64)]
written = found = highest = 0
with MessageStore.open(config, OsFiles(), SystemClock()) as store:
    while store.log.appended < int(sys.argv[4]):
        assert all(result.status is PutStatus.PUT_OK for result in store.put(some))
        written += len(some)
        if written % 4096 == 0:
            store.flush()
            highest = max(highest, anonymous_bytes())
    size = store.log.appended
    for queue_id in range(4):
        offset = 0
        while (read := store.get("TopicA", queue_id, offset, 32)).status is GetStatus.FOUND:
            found += sum(record[100] == record[101] for record in read.records())
            offset = read.next_offset
            if offset % 1024 < 32:
                highest = max(highest, anonymous_bytes())
print(json.dumps({"written": written, "found": found, "size": size, "anonymous": highest}))
"""


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A control group with a limit on memory, page cache included; None where none can be made."""
    for base, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(base, f"skylark-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(limit_bytes))
            yield group
            return
        except OSError:
            continue
        finally:
            _remove(group.rmdir)
    yield None


def _remove(rmdir: Callable[[], None]) -> None:
    for _ in range(100):
        try:
            return rmdir()
        except OSError:
            time.sleep(0.05)  # Its last process has ended a moment ago.
    raise TimeoutError("the control group has processes left")


def run(root: Path, group: str, cap_bytes: int, backlog_bytes: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), group, str(cap_bytes), str(backlog_bytes)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    figures: dict[str, int] = json.loads(done.stdout)
    assert figures["found"] == figures["written"]
    assert figures["size"] >= backlog_bytes
    return figures


def test_a_backlog_of_three_times_the_memory_is_written_and_read_within_the_cap(tmp_path):
    with memory_group(CAP_BYTES) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
        figures = run(tmp_path, str(group), CAP_BYTES, BACKLOG_BYTES)
        peak = group / "memory.max_usage_in_bytes"
        if peak.exists():
            # It was at the cap, page cache and all, and nobody was killed for it.
            assert CAP_BYTES * 0.9 < int(peak.read_text()) <= CAP_BYTES
    assert figures["anonymous"] < CAP_BYTES


def test_what_is_not_page_cache_does_not_grow_with_the_backlog(tmp_path):
    small = run(tmp_path / "small", "", CAP_BYTES, 24 << 20)
    large = run(tmp_path / "large", "", CAP_BYTES, 96 << 20)
    assert large["size"] >= 3 * small["size"]
    assert large["anonymous"] < small["anonymous"] + (4 << 20)
