"""Traces of scripted runs, played again on ext4, with a real power cut at their end.

The model of SimFiles must not be kinder than a file system. So a run is recorded, its changes are
done again on a mounted ext4 up to some point, the kernel is asked to write some pages back, and the
file system is shut down as a power cut would. What is found after the next mount must be among the
states that the model allows, and the store in it must keep the run's promises.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator

from crash_judge import Judge, promises
from crash_script import ScriptedRun, record
from crash_states import Finding, Tally
from killed_writer import cut_power, mounted, write_back_some

from skylark.errors import SkylarkError
from skylark.testing.files import DiskChange, SimFiles

PAGE_BYTES = 4096  # The kernel's.


class _Player:
    """Does changes of a trace under a directory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._scratch = os.path.join(root, ".unnamed")
        self._descriptors: dict[int, int] = {}
        self._unnamed: set[int] = set()
        os.makedirs(self._scratch)

    def play(self, change: DiskChange) -> None:
        kind, place = change.kind, self._root + change.path
        if kind == "make":
            path = self._unnamed_path(change.inode)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._descriptors[change.inode] = descriptor
            self._unnamed.add(change.inode)
            os.pwrite(descriptor, change.data, 0)
            os.ftruncate(descriptor, change.size)
        elif kind == "write":
            os.pwrite(self._descriptors[change.inode], change.data, change.at)
        elif kind == "resize":
            os.ftruncate(self._descriptors[change.inode], change.size)
        elif kind == "sync":
            os.fdatasync(self._descriptors[change.inode])
        elif kind == "link":
            source = self._root + change.data.decode()
            if change.inode in self._unnamed:
                self._unnamed.discard(change.inode)
                source = self._unnamed_path(change.inode)
            os.rename(source, place)
        elif kind == "unlink":
            os.unlink(place)
        elif kind == "mkdir":
            os.mkdir(place)
        elif kind == "rmdir":
            os.rmdir(place)
        else:
            assert kind == "sync_directory"
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)

    def _unnamed_path(self, inode: int) -> str:
        return os.path.join(self._scratch, str(inode))

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def read_tree(root: str) -> tuple[dict[str, bytes], list[str]]:
    """Files and directories under a root, by the names they have in the model."""
    tree, directories = {}, []
    for directory, folders, names in os.walk(root):
        inside = directory[len(root) :]
        if inside.startswith("/.unnamed"):
            continue
        directories += [f"{inside}/{name}" for name in folders if name != ".unnamed"]
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                tree[f"{inside}/{name}"] = file.read()
    return tree, directories


@contextlib.contextmanager
def _workplace() -> Iterator[str]:
    # In memory where that can be: the power is cut above the image, whatever lies below it.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="skylark-replay-", dir=memory) as root:
        yield root


def replay(run: ScriptedRun, changes: int, place: str, root: str, rng: random.Random) -> None:
    """Do the first changes of a run's trace, and cut the power."""
    player = _Player(root)
    try:
        for change in run.files.trace[:changes]:
            player.play(change)
        write_back_some(root, rng)
        cut_power(place)
    finally:
        player.close()


def campaign(names: list[str], *, seed: int, cuts_each: int) -> tuple[Tally, int]:
    """Cut the power of so many replays; also return how many found something lost."""
    tally, losses = Tally(), 0
    with _workplace() as workplace:
        for name in names:
            run = record(name, seed=seed, page_bytes=PAGE_BYTES)
            judge = Judge(run.config, run.clock.now_ms())
            rng = random.Random(f"{name} {seed}")
            for number in sorted(rng.sample(range(1, len(run.files.trace) + 1), cuts_each)):
                where = f"{name} seed={seed} changes={number} on ext4"
                with mounted(workplace) as place:
                    root = os.path.join(place, f"{name}-{number}")
                    os.mkdir(root)
                    outside = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
                    os.fsync(outside)  # It is there before the story begins.
                    os.close(outside)
                    replay(run, number, place, root, rng)
                with mounted(workplace) as place:
                    tree, directories = read_tree(os.path.join(place, f"{name}-{number}"))
                model = SimFiles.replay(run.files.trace[:number], page_bytes=PAGE_BYTES)
                losses += tree != {path: model.read(path) for path in model.all_paths()}
                tally.states += 1
                problem = model.misfit(tree)
                if problem is not None:
                    tally.findings.append(Finding(where, f"the model is kinder: {problem}"))
                    continue
                promise, possible, _ = promises(run, number)
                try:
                    store = judge.judge(
                        SimFiles.from_tree(tree, directories), promise, possible, goes_on=False
                    )
                    assert store is None
                except (AssertionError, SkylarkError) as error:
                    tally.findings.append(Finding(where, f"{type(error).__name__}: {error}"))
    return tally, losses
