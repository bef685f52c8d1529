"""A writer that gets killed, and a machine that loses power under it; on real files.

Every message says who sent it, which one it is and how long it must be, so that whatever is found
afterwards can be checked without having been there. The writer streams what it acknowledges, what
it shows and what it has flushed through a pipe; the judge holds the store to that.

    python tests/crash/killed_writer.py --cycles 100 --seed 1 --lanes 4          kill -9
    python tests/crash/killed_writer.py --power --cycles 200 --seed 1 --lanes 2  power cuts on ext4

It runs as a program of its own, with one thread, so that forking a writer is cheap and safe. The
result is one line of JSON; exit status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from skylark.clock import SystemClock
from skylark.errors import SkylarkError
from skylark.protocol.properties import encode_properties
from skylark.protocol.record import decode_record, pack_host
from skylark.store import FlushDiskType, MessageStore, OsFiles, PutMessage, PutStatus, StoreConfig
from skylark.store.flusher import Flusher
from skylark.testing.stores import derived_files

HOSTS = (pack_host("127.0.0.1", 10911), pack_host("2001:db8::1", 10911))
PRODUCERS = 8
EVENT = struct.Struct(">cHIqqId")  # kind, producer, number, physical, queue offset, size, when
ACKED, SHOWN, FLUSHED, READY = b"A", b"S", b"F", b"R"
FLUSH_INTERVAL_MS = 50

_READY_SHARE = 0.6  # Of the writers, that are let come to work, however long it takes them.
_READY_SECONDS = 30.0
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_DISK_BYTES = 128 << 20
_SYNC_WRITE = 7  # Wait for what is under way, write, wait.


class Event(NamedTuple):
    """One line of the writer's history."""

    kind: bytes
    producer: int
    number: int
    physical_offset: int
    queue_offset: int
    size_bytes: int
    at: float

    @property
    def end(self) -> int:
        return self.physical_offset + self.size_bytes


def config_of(root: str, flush: FlushDiskType) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=256 << 10,
        mapped_file_size_consume_queue=4_000,
        max_hash_slot_num=97,
        max_index_num=500,
        max_message_size=8 << 10,
        flush_disk_type=flush,
        flush_interval_commit_log=FLUSH_INTERVAL_MS,
        flush_commit_log_least_pages=0,
        flush_interval_consume_queue=20,
        flush_consume_queue_least_pages=0,
        flush_consume_queue_thorough_interval=60,
    )


# Messages.


def place_of(producer: int) -> tuple[str, int]:
    return f"Topic{producer % 3}", producer % 4


def body_of(producer: int, number: int) -> bytes:
    length = 20 + (number * 7919 + producer * 104_729) % 1_500
    return (b"%d:%d;" % (producer, number) * (length // 4 + 1))[:length]


def message_of(producer: int, number: int) -> PutMessage:
    topic, queue_id = place_of(producer)
    host = HOSTS[number % 7 == 0]
    keys = f"p{producer}-{number // 10}" if number % 2 else None
    return PutMessage(
        topic,
        queue_id,
        body_of(producer, number),
        encode_properties({"KEYS": keys, "TAGS": f"tag{number % 3}", "N": f"{producer}:{number}"}),
        1_700_000_000_000 + number,
        host,
        HOSTS[0],
        sys_flag=0x10 if len(host) == 20 else 0,
    )


# The writer, in its own process.


async def write(config: StoreConfig, pipe: int, first_number: int) -> None:
    """Put messages until somebody ends this process."""
    clock = SystemClock()
    store = MessageStore.open(config, OsFiles(), clock)
    os.write(pipe, EVENT.pack(READY, 0, 0, store.log.appended, 0, 0, time.monotonic()))
    flusher = Flusher(store, clock)

    async def produce(producer: int) -> None:
        number = first_number
        while True:
            messages = [message_of(producer, number + i) for i in range(1 + number % 4)]
            results = store.put(messages)
            if config.is_sync_flush:
                for result in results:
                    assert result.status is PutStatus.PUT_OK
                assert await flusher.wait_flushed(results[-1].end)
            acks = [
                EVENT.pack(
                    ACKED,
                    producer,
                    number + i,
                    r.physical_offset,
                    r.queue_offset,
                    r.size_bytes,
                    time.monotonic(),
                )
                for i, r in enumerate(results)
            ]
            os.write(pipe, b"".join(acks))
            number += len(messages)
            await asyncio.sleep(0.0005)

    async def watch() -> None:
        shown: dict[tuple[str, int], int] = {}
        flushed = 0
        while True:
            for producer in range(PRODUCERS):
                topic, queue_id = place_of(producer)
                newest = int(store.max_offset(topic, queue_id))
                if newest > shown.get((topic, queue_id), 0):
                    shown[topic, queue_id] = newest
                    os.write(pipe, EVENT.pack(SHOWN, producer, 0, 0, newest, 0, time.monotonic()))
            if store.log.flushed > flushed:
                flushed = store.log.flushed
                os.write(pipe, EVENT.pack(FLUSHED, 0, 0, flushed, 0, 0, time.monotonic()))
            await asyncio.sleep(0.001)

    async with flusher.running(), asyncio.TaskGroup() as group:
        for producer in range(PRODUCERS):
            group.create_task(produce(producer))
        group.create_task(watch())


@contextlib.contextmanager
def forked_writer(config: StoreConfig, first_number: int) -> Iterator[tuple[int, int]]:
    """A writer at work: its process id and the pipe to read from; it is dead at the end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            asyncio.run(write(config, writing, first_number))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(3)
    os.close(writing)
    try:
        yield pid, reading
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


class Wrong(AssertionError):
    """The store is not what the writer had said."""


class History:
    """What the writers of one store have said so far."""

    def __init__(self, *, may_lose: bool = False) -> None:
        self.may_lose = may_lose  # ASYNC_FLUSH under power cuts: what was not flushed may go.
        self.lost: list[float] = []  # When it was acknowledged, before the cut; in seconds.
        self.acked: list[Event] = []
        self.shown: dict[tuple[str, int], int] = defaultdict(int)
        self.flushed = 0
        self.ready_count = 0
        self.stopped_at = 0.0  # When the last writer said its last word.
        self._rest = b""

    def wait_ready(self, pipe: int) -> None:
        """Take in events until the writer is at work; on a busy machine that takes a while."""
        before, until = self.ready_count, time.monotonic() + _READY_SECONDS
        while self.ready_count == before and time.monotonic() < until:
            if not self.read(pipe, time.monotonic() + 0.02):
                return

    def read(self, pipe: int, until: float | None) -> bool:
        """Take in events until a moment, or until the pipe ends; False if it has."""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready, _, _ = select.select([pipe], [], [], left)
            if not ready:
                return True
            piece = os.read(pipe, 1 << 16)
            if not piece:
                self._rest = b""  # A record that the kill cut short was said to nobody.
                return False
            data = self._rest + piece
            whole = len(data) // EVENT.size * EVENT.size
            self._rest = data[whole:]
            for fields in EVENT.iter_unpack(data[:whole]):
                self._take(Event._make(fields))
            if until is not None and time.monotonic() >= until:
                return True

    def _take(self, event: Event) -> None:
        if event.kind == ACKED:
            self.acked.append(event)
        elif event.kind == SHOWN:
            place = place_of(event.producer)
            self.shown[place] = max(self.shown[place], event.queue_offset)
        elif event.kind == FLUSHED:
            self.flushed = max(self.flushed, event.physical_offset)
        else:
            self.ready_count += 1
            if self.may_lose:
                self.recovered(event.physical_offset)

    def recovered(self, end: int) -> None:
        """Forget what a power cut took, before somebody else writes in its place."""
        if end < self.flushed:
            raise Wrong(f"flushed up to {self.flushed}, the log ends at {end}")
        self.lost += [self.stopped_at - event.at for event in self.acked if event.end > end]
        self.acked = [event for event in self.acked if event.end <= end]
        self.shown.clear()


@dataclass
class Result:
    """What a campaign did and found."""

    cycles: int = 0
    acked: int = 0
    recovered_bytes: int = 0
    writers_ready: int = 0  # The others were killed while they recovered.
    lost_unflushed: int = 0  # ASYNC_FLUSH and a power cut: acknowledged, not flushed, gone.
    loss_ms_max: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.cycles += other.cycles
        self.acked += other.acked
        self.recovered_bytes += other.recovered_bytes
        self.writers_ready += other.writers_ready
        self.lost_unflushed += other.lost_unflushed
        self.loss_ms_max = max(self.loss_ms_max, other.loss_ms_max)
        self.findings += other.findings


def check(config: StoreConfig, history: History, result: Result) -> None:
    """Open the store and hold it to the history; forget what an ASYNC power cut may take."""
    with MessageStore.open(config, OsFiles(), SystemClock()) as store:
        end = store.log.appended
        found = everything(store)
        result.recovered_bytes += end
        if history.may_lose:
            history.recovered(end)
        if end < history.flushed:
            raise Wrong(f"flushed up to {history.flushed}, the log ends at {end}")
        for event in history.acked:
            who = (event.producer, event.number)
            if found.get(event.physical_offset) != (*who, event.queue_offset, event.size_bytes):
                raise Wrong(
                    f"acknowledged {who} at {event.physical_offset}, queue offset"
                    f" {event.queue_offset}: found {found.get(event.physical_offset)}"
                )
        for (topic, queue_id), newest in history.shown.items():
            reached = store.max_offset(topic, queue_id)
            if reached < newest:
                raise Wrong(f"{topic}/{queue_id} was seen up to {newest}, ends at {reached}")


def everything(store: MessageStore) -> dict[int, tuple[int, int, int, int]]:
    """Walk the log and all queues; physical offset -> producer, number, queue offset, size."""
    found: dict[int, tuple[int, int, int, int]] = {}
    in_queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    newest: dict[int, int] = {}
    at = store.log.start
    while at < store.log.appended:
        record = store.get_by_physical_offset(at)
        if record is None:
            blank = store.log.blank_end(at)
            if blank is None:
                raise Wrong(f"nothing at {at}, before the end of the log")
            at = blank
            continue
        message = decode_record(record)
        producer, _, number = message.properties["N"].partition(":")
        who = (int(producer), int(number))
        if message.body != body_of(*who) or (message.topic, message.queue_id) != place_of(who[0]):
            raise Wrong(f"the record at {at} is not message {who}")
        if newest.get(who[0], -1) >= who[1]:
            raise Wrong(f"message {who} comes after {newest[who[0]]} of the same producer")
        newest[who[0]] = who[1]
        place = in_queues[message.topic, message.queue_id]
        if message.queue_offset != len(place):
            raise Wrong(f"{message.topic}/{message.queue_id}: offset {message.queue_offset} twice")
        place.append(at)
        found[at] = (*who, message.queue_offset, len(record))
        at += len(record)
    for (topic, queue_id), places in in_queues.items():
        if store.max_offset(topic, queue_id) != len(places):
            raise Wrong(f"{topic}/{queue_id} ends at {store.max_offset(topic, queue_id)}")
        queue = store.queues.queue(topic, queue_id)
        for number, place_at in enumerate(places):
            entry = queue.entry(number)
            if entry is None or entry.physical_offset != place_at:
                raise Wrong(f"{topic}/{queue_id} at {number}: {entry}, the log has {place_at}")
    return found


def check_rebuild(config: StoreConfig, scratch: str) -> None:
    """Queues and index equal what the log alone makes, byte for byte."""
    copy = config_of(os.path.join(scratch, "rebuilt"), config.flush_disk_type)
    shutil.rmtree(copy.store_path_root_dir, ignore_errors=True)
    shutil.copytree(config.commit_log_directory, copy.commit_log_directory)
    MessageStore.open(copy, OsFiles(), SystemClock()).close()
    files = OsFiles()
    found, wanted = derived_files(files, config), derived_files(files, copy)  # type: ignore[arg-type]
    shutil.rmtree(copy.store_path_root_dir)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise Wrong(f"{name} differs from a rebuild")


# Kill -9.


def kill_lane(root: str, cycles: int, seed: int, flush: FlushDiskType) -> Result:
    """Kill writers of one store again and again."""
    rng = random.Random(seed)
    config = config_of(os.path.join(root, "store"), flush)
    history, result = History(), Result()
    for cycle in range(cycles):
        with forked_writer(config, cycle << 20) as (pid, pipe):
            # From the very first moment on: some die while they recover from the kill before.
            if rng.random() < _READY_SHARE:
                history.wait_ready(pipe)
            history.read(pipe, time.monotonic() + rng.uniform(0, 0.8))
            os.kill(pid, signal.SIGKILL)
            history.read(pipe, None)
        result.cycles += 1
        if rng.random() < 0.5 or cycle == cycles - 1:
            _judge(config, history, result, f"kill seed={seed} cycle={cycle}")
        if result.findings:
            return result
    result.acked = len(history.acked)
    result.writers_ready = history.ready_count
    with _findings(result, f"kill seed={seed} rebuild"):
        check_rebuild(config, root)
    return result


@contextlib.contextmanager
def _findings(result: Result, where: str) -> Iterator[None]:
    try:
        yield
    except (AssertionError, SkylarkError) as error:
        result.findings.append(f"{where}: {type(error).__name__}: {error}")


def _judge(config: StoreConfig, history: History, result: Result, where: str) -> None:
    with _findings(result, where):
        check(config, history, result)


# Power cuts.


def can_cut_power() -> bool:
    """Whether a file system can be mounted here and shut down under a writer."""
    if os.geteuid() != 0 or not (shutil.which("mkfs.ext4") and os.path.exists("/dev/loop-control")):
        return False
    with tempfile.TemporaryDirectory(prefix="skylark-power-") as root:
        try:
            with mounted(root):
                cut_power(os.path.join(root, "mnt"))
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


@contextlib.contextmanager
def mounted(root: str) -> Iterator[str]:
    """The disk image in a directory, made if need be, mounted; unmounted in any case."""
    image, place = os.path.join(root, "disk.img"), os.path.join(root, "mnt")
    if not os.path.exists(image):
        with open(image, "wb") as file:
            file.truncate(_DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
        os.makedirs(place, exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    if not _is_alive(place):
        # A process elsewhere, in a mount namespace of its own, still holds the file system that was
        # shut down, and the system gives out the same one again. A copy of the image is another.
        subprocess.run(["umount", place], check=True, capture_output=True)
        subprocess.run(["cp", "--sparse=always", image, f"{image}.copy"], check=True)
        os.replace(f"{image}.copy", image)
        subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    try:
        yield place
    finally:
        for _ in range(50):
            if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def _is_alive(place: str) -> bool:
    """Whether a file system takes writes; one that was shut down does not."""
    probe = os.path.join(place, ".probe")
    try:
        with open(probe, "wb"):
            pass
        os.unlink(probe)
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise
    return True


def cut_power(place: str) -> None:
    """What is not on the disk by now never will be."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(descriptor)


def write_back_some(root: str, rng: random.Random) -> None:
    """Push random pages to the disk, as the kernel might at any time, in any order."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = [os.path.join(d, name) for d, _, names in os.walk(root) for name in names]
    for path in rng.sample(paths, min(len(paths), rng.randrange(8))):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            pages = max(1, os.fstat(descriptor).st_size // 4096)
            for _ in range(rng.randrange(6)):
                libc.sync_file_range(
                    descriptor,
                    ctypes.c_int64(rng.randrange(pages) * 4096),
                    ctypes.c_int64(rng.randrange(1, 4) * 4096),
                    _SYNC_WRITE,
                )
        finally:
            os.close(descriptor)


def power_lane(root: str, cycles: int, seed: int, flush: FlushDiskType) -> Result:
    """Cut the power under writers of one store again and again."""
    rng = random.Random(seed)
    config = config_of(os.path.join(root, "mnt", "store"), flush)
    may_lose = not config.is_sync_flush
    history, result = History(may_lose=may_lose), Result()

    def close_book() -> None:
        result.acked += len(history.acked)
        result.writers_ready += history.ready_count
        result.lost_unflushed += len(history.lost)
        result.loss_ms_max = max(result.loss_ms_max, *(int(s * 1000) for s in history.lost), 0)

    for cycle in range(cycles):
        where = f"power seed={seed} cycle={cycle}"
        with mounted(root) as place:
            if rng.random() < 0.7 or cycle == 0:
                # Most of the time the judge is the first to see what is left.
                _judge(config, history, result, where)
                if result.findings:
                    return result
            ready_before = history.ready_count
            with (
                _findings(result, where),
                forked_writer(config, cycle << 20) as (pid, pipe),
            ):
                if rng.random() < _READY_SHARE:
                    history.wait_ready(pipe)
                history.read(pipe, time.monotonic() + rng.uniform(0.005, 0.2))
                os.kill(pid, signal.SIGSTOP)  # So that nothing is said after the cut.
                stopped_at = time.monotonic()
                write_back_some(place, rng)
                cut_power(place)
                os.kill(pid, signal.SIGKILL)
                history.read(pipe, None)
                if history.ready_count > ready_before:
                    history.stopped_at = stopped_at  # One that was not ready said nothing.
        if result.findings:
            return result
        result.cycles += 1
        if history.flushed > _DISK_BYTES // 2:
            # A new disk before this one is full.
            close_book()
            os.unlink(os.path.join(root, "disk.img"))
            history = History(may_lose=may_lose)
    with mounted(root):
        _judge(config, history, result, "power at the end")
        if not result.findings:
            with _findings(result, f"power seed={seed} rebuild"):
                check_rebuild(config, root)
    close_book()
    return result


# The program.


def run_lanes(kind: str, cycles: int, seed: int, lanes: int) -> Result:
    """Share the cycles among stores, in turn with SYNC_FLUSH and ASYNC_FLUSH, all at once."""
    lane_of = {"kill": kill_lane, "power": power_lane}[kind]
    total = Result()
    with tempfile.TemporaryDirectory(prefix="skylark-lanes-") as root:
        running = []
        for lane in range(lanes):
            share = cycles // lanes + (lane < cycles % lanes)
            flush = (FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)[lane % 2]
            place = os.path.join(root, str(lane))
            os.makedirs(place)
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                outcome = Result(findings=["the lane ended early"])
                try:
                    outcome = lane_of(place, share, seed * 1000 + lane, flush)
                except BaseException:
                    outcome = Result(findings=[traceback.format_exc()])
                finally:
                    os.write(writing, json.dumps(vars(outcome)).encode()[: 1 << 16])
                    os._exit(0)
            os.close(writing)
            running.append((pid, reading))
        for pid, reading in running:
            with open(reading, "rb") as file:
                answer = file.read()
            os.waitpid(pid, 0)
            total.add(Result(**json.loads(answer)))
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--can-cut-power", action="store_true", help="only say whether it can")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.can_cut_power:
        return 0 if can_cut_power() else 1
    result = run_lanes(
        "power" if arguments.power else "kill", arguments.cycles, arguments.seed, arguments.lanes
    )
    print(json.dumps(vars(result)))
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
