"""`skylark doctor`: is this machine fit to run a broker, and what would make it better?

It looks and changes nothing. Each line is a finding: "ok", "advice" where something would be better
otherwise, "bad" where a broker would fail or lose. Only "bad" makes the exit code 1.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..clock import SystemClock
from ..errors import ConfigError
from ..store import StoreConfig
from . import exits, render

_GOOD_FILE_SYSTEMS = ("ext4", "xfs")
_VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")
_REMOTE_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "fuse.sshfs")
_GOOD_SCHEDULERS = ("none", "mq-deadline", "deadline")
_MAPS_ADVISED = 65_530
_OPEN_FILES_ADVISED = 20_000
_COMPILED = ("skylark.protocol._frame", "skylark.protocol._record", "skylark.store._append")
_YEAR_2020_MS = 1_577_836_800_000


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do about it."""

    what: str
    state: str
    found: str
    advice: str = ""


def command(
    data: Annotated[
        Path | None, typer.Option("--data", help="Where a broker keeps or would keep its store.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether this machine is fit to run a broker."""
    directory = data if data is not None else Path(StoreConfig().store_path_root_dir)
    findings = list(examine(directory))
    columns = {"what": "what", "state": "state", "found": "found", "advice": "advice"}
    render.show_table([finding._asdict() for finding in findings], columns, as_json=json)
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(exits.FAILED)


def examine(directory: Path, *, root: Path = Path("/")) -> Iterator[Finding]:
    """Look at everything; `root` stands for the root of the file system with /proc and /sys."""
    place = _existing(directory)
    yield _python()
    yield _compiled()
    yield _file_system(place, root)
    yield _scheduler(place, root)
    yield _space(place)
    yield _maps(root)
    yield _open_files()
    yield _clock()


def _existing(directory: Path) -> Path:
    for place in (directory, *directory.absolute().parents):
        if place.is_dir():
            return place.resolve()
        if place.exists():
            raise ConfigError(f"{place} is not a directory; name one with --data")
    raise ConfigError(f"{directory} has no existing parent; name another with --data")


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if importlib.util.find_spec("uvloop") is None:
        return Finding("python", "advice", version, "pip install uvloop: about 15 % less CPU")
    return Finding("python", "ok", f"{version}, uvloop")


def _compiled() -> Finding:
    missing = [name for name in _COMPILED if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding("compiled modules", "ok", "all there")
    return Finding(
        "compiled modules",
        "advice",
        f"missing: {', '.join(missing)}",
        "install gcc and install skylarkmq again: sends cost a fifth",
    )


class _Mount(NamedTuple):
    point: str
    device: str
    kind: str


def _mount_of(place: Path, root: Path) -> _Mount | None:
    """The mount that holds a directory: the longest mount point above it."""
    best: _Mount | None = None
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        holds = place.is_relative_to(point)
        if holds and (best is None or len(point) >= len(best.point)):
            best = _Mount(point, fields[2], after.split()[0])
    return best


def _file_system(place: Path, root: Path) -> Finding:
    mount = _mount_of(place, root)
    if mount is None:
        return Finding("file system", "advice", "unknown", "ext4 or xfs on a local disk is tested")
    found = f"{mount.kind} at {mount.point}"
    if mount.kind in _GOOD_FILE_SYSTEMS:
        return Finding("file system", "ok", found)
    if mount.kind in _VOLATILE_FILE_SYSTEMS:
        return Finding("file system", "bad", found, "it is gone after a restart: use a disk")
    if mount.kind in _REMOTE_FILE_SYSTEMS:
        return Finding("file system", "bad", found, "its fsync and locks are not local: use a disk")
    return Finding("file system", "advice", found, "ext4 or xfs on a local disk is tested")


def _scheduler(place: Path, root: Path) -> Finding:
    mount = _mount_of(place, root)
    what = "I/O scheduler"
    if mount is None:
        return Finding(what, "ok", "no block device")
    device = root / "sys/dev/block" / mount.device
    for queue in (device / "queue/scheduler", device / "../queue/scheduler"):
        try:
            text = queue.read_text()
        except OSError:
            continue
        chosen = text.partition("[")[2].partition("]")[0] or text.strip()
        if chosen in _GOOD_SCHEDULERS:
            return Finding(what, "ok", chosen)
        return Finding(what, "advice", chosen, f"mq-deadline suits a log; of: {text.strip()}")
    return Finding(what, "ok", "none of its own")


def _space(place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    config = StoreConfig()
    used = -(-usage.used * 100 // max(1, usage.used + usage.free))
    found = f"{used} % used, {usage.free / 2**30:.1f} GiB free"
    if used > config.disk_space_warning_level_ratio:
        limit = config.disk_space_warning_level_ratio
        return Finding("disk space", "bad", found, f"above {limit} % a broker takes no writes")
    if used > config.disk_max_used_space_ratio:
        limit = config.disk_max_used_space_ratio
        return Finding("disk space", "advice", found, f"above {limit} % old files go early")
    return Finding("disk space", "ok", found)


def _maps(root: Path) -> Finding:
    try:
        maps = int((root / "proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return Finding("mapped files", "ok", "no limit known")
    if maps < _MAPS_ADVISED:
        advice = f"sysctl vm.max_map_count={_MAPS_ADVISED}"
        return Finding("mapped files", "advice", f"at most {maps}", advice)
    return Finding("mapped files", "ok", f"at most {maps}")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _OPEN_FILES_ADVISED:
        advice = f"ulimit -n {_OPEN_FILES_ADVISED}, for as many connections and files"
        return Finding("open files", "advice", f"{soft} (hard limit {hard})", advice)
    return Finding("open files", "ok", str(soft))


def _clock() -> Finding:
    if SystemClock().now_ms() < _YEAR_2020_MS:
        return Finding("clock", "bad", "before 2020", "set it: retention and delays go by it")
    return Finding("clock", "ok", "plausible")
