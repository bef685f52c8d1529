"""Disks of proven nodes: a directory, a small file system in memory, or an ext4 that loses power.

The power of an ext4 is cut with its own shutdown request: what the kernel has not written back is
gone. So it tests that the page cache is lost, not a disk that lies about its flushes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

PROBE_BYTES: Final = 64 << 20
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH: Final = 2
_UNMOUNT_TRIES: Final = 100


class Disk:
    """A directory of the machine's own disk."""

    can_fill = False
    can_lose_power = False

    def __init__(self, root: Path, size_bytes: int = PROBE_BYTES) -> None:
        self.place = root / "disk"
        self.place.mkdir(parents=True)

    def wipe(self) -> None:
        """Put in a new, empty one; nothing may have it open."""
        for entry in self.place.iterdir():
            if entry.name != "lost+found":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def fill(self) -> None:
        """Leave no room."""
        with (self.place / "ballast").open("wb", buffering=0) as ballast:
            step, at = 16 << 20, 0
            while step >= 4_096:
                try:
                    os.posix_fallocate(ballast.fileno(), at, step)
                    at += step
                except OSError:
                    step //= 2

    def free(self) -> None:
        """Give the room back."""
        (self.place / "ballast").unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Lose what is not written yet; the process that has it open is then to be ended."""
        raise AssertionError("this disk has no power of its own")

    def power_on(self) -> None:
        """Mount it again."""
        raise AssertionError("this disk has no power of its own")

    def close(self) -> None:
        """Give back what the system holds for it."""


class MemoryDisk(Disk):
    """A tmpfs: small, and gone with the run."""

    can_fill = True

    def __init__(self, root: Path, size_bytes: int = PROBE_BYTES) -> None:
        super().__init__(root, size_bytes)
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(self.place))

    def close(self) -> None:
        _unmount(self.place)


class LoopDisk(Disk):
    """An ext4 in a file."""

    can_fill = True
    can_lose_power = True

    def __init__(self, root: Path, size_bytes: int = PROBE_BYTES) -> None:
        super().__init__(root, size_bytes)
        self._image = root / "disk.img"
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.power_on()

    def cut_power(self) -> None:
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        if os.path.ismount(self.place):
            _unmount(self.place)
        _run("mount", "-o", "loop", str(self._image), str(self.place))

    def close(self) -> None:
        if os.path.ismount(self.place):
            _unmount(self.place)


def missing_for(kind: type[Disk]) -> str | None:
    """Why such a disk cannot be had here, or None; the mounts are tried and undone."""
    if kind is Disk:
        return None
    if os.geteuid() != 0:
        return "mounting needs root"
    needed = ("mount", "umount", *(("mkfs.ext4",) if kind is LoopDisk else ()))
    for program in needed:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    with tempfile.TemporaryDirectory(prefix="skylark-prove-") as root:
        try:
            disk = kind(Path(root) / "probe")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or str(error).encode()
            return said.decode(errors="replace").strip().splitlines()[0]
        disk.close()
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _unmount(place: Path) -> None:
    """The process that had it open may take a moment to be gone."""
    for _ in range(_UNMOUNT_TRIES):
        done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.05)
    subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
