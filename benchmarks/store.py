"""The store engine beside what the machine can do at best.

    .venv/bin/python benchmarks/store.py [--mib N] [--repetitions N] [--seconds S] [--quick]

Everything is measured in the same run, the baselines (baseline.c) next to what they are for; the
figures that count are the ratios.

    append     put() of one message and of batches of 32, with queue entry and two index keys each;
               beside memcpy into a mapped file and write(2), of the same bytes
    disk       1 KiB messages in batches of 32, flushed at the end; beside dd of as many bytes to
               the same disk, in turn with it (ST-22: at least 60 %)
    read       get() of 32 messages at the end of a queue, and of data that is not in memory
    backlog    the same at the end of queues with 10 million messages in the store; beside the rate
               without them, in turn with it (ST-23: at least 80 %)
    sync       1, 4, 16, 64 and 256 senders that wait for SYNC_FLUSH; beside bare fdatasync, and
               each beside one sender (ST-45: more with more senders, until the disk is the limit)
    recovery   seconds per GiB: after a crash with our marks, and of everything from the log alone
    open       a store with 10,000 queues
    memory     of the process after a million messages, less what is page cache
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from skylark.clock import SystemClock
from skylark.protocol.properties import encode_properties
from skylark.protocol.record import pack_host
from skylark.store import (
    FlushDiskType,
    GetStatus,
    MessageStore,
    OsFiles,
    PutMessage,
    PutStatus,
    StoreConfig,
    append,
)
from skylark.store.append import message_size
from skylark.store.flush_work import FlushWork
from skylark.store.flusher import Flusher

HERE = Path(__file__).resolve().parent
SIZES = {"128 B": 128, "1 KiB": 1024, "64 KiB": 64 << 10}
BATCHES = (1, 32)
WAITERS = (1, 4, 16, 64, 256)
QUEUES = 8
HOST = pack_host("127.0.0.1", 10911)
MIB = 1 << 20


class Run(NamedTuple):
    """One measurement: how many of something, in which time."""

    count: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_per_million(self) -> float:
        return self.cpu_seconds / self.count * 1e6


class Row(NamedTuple):
    """A line of the table."""

    what: str
    figure: str
    beside: str = ""


class Baseline:
    """baseline.c, compiled; None of its figures where there is no compiler."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "baseline"
        self.is_there = False
        if shutil.which("cc"):
            subprocess.run(
                ["cc", "-O2", "-o", str(self._program), str(HERE / "baseline.c")], check=True
            )
            self.is_there = True

    def run(
        self, mode: str, path: Path, size: int = 0, count: int = 0, batch: int = 1
    ) -> Run | None:
        if not self.is_there:
            return None
        count -= count % batch
        words = [mode, str(path), *([str(size), str(count), str(batch)] if size else [])]
        out = subprocess.run(
            [str(self._program), *words], check=True, capture_output=True, text=True
        ).stdout
        seconds, cpu = map(float, out.split())
        path.unlink()
        return Run(count or 1, seconds, cpu)


@contextmanager
def measured(count: int, runs: list[Run]) -> Iterator[None]:
    gc.collect()
    gc.disable()
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        gc.enable()
        runs.append(Run(count, time.perf_counter() - begin, time.process_time() - cpu))


def messages_of(size: int, count: int, topic: str = "BenchTopic") -> list[PutMessage]:
    """Messages as producers send them: tag, key and unique key."""
    body = b"x" * size
    return [
        PutMessage(
            topic,
            number % QUEUES,
            body,
            encode_properties(
                {
                    "KEYS": f"key-{number}",
                    "UNIQ_KEY": f"C0A80203ABCD{number + 0xABCDEF0123456789:020X}",
                    "WAIT": "true",
                    "TAGS": "TagA",
                    "CLUSTER": "DefaultCluster",
                }
            ),
            1_794_726_790_296,
            HOST,
            HOST,
        )
        for number in range(count)
    ]


def opened(root: Path, **settings: object) -> MessageStore:
    config = StoreConfig(store_path_root_dir=str(root), **settings)  # type: ignore[arg-type]
    store = MessageStore.open(config, OsFiles(), SystemClock())
    store.mark_open()
    return store


def fill(store: MessageStore, size: int, total: int) -> int:
    """Put messages of a size until so many bytes are in the log; return how many."""
    some = messages_of(size, 512)
    count = 0
    while store.log.appended < total:
        assert store.put(some)[-1].status is PutStatus.PUT_OK
        count += len(some)
    return count


def _append_and_flush(store: MessageStore, some: Sequence[PutMessage], rounds: int) -> None:
    """Append, and have a thread sync meanwhile; everything is on the disk in the end."""
    with ThreadPoolExecutor(1) as thread:
        under_way: Future[None] | None = None
        work: FlushWork | None = None
        step = max(1, 128 * 1024 // message_size(some[0]))  # What one read of a socket brings.
        for _ in range(rounds):
            for at in range(0, len(some), step):
                store.put(some[at : at + step])
            if under_way is not None and under_way.done():
                under_way.result()
                assert work is not None
                store.end_flush(work)
                under_way = None
            if under_way is None:
                work = store.begin_flush()
                under_way = thread.submit(work.run)
        if under_way is not None:
            under_way.result()
            assert work is not None
            store.end_flush(work)
        store.flush()


class StoreBench:
    """All measurements, on one disk."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.baseline = Baseline(folder)
        self.rows: list[Row] = []
        self.results: dict[str, object] = {}

    def note(self, name: str, row: Row, **figures: object) -> None:
        self.rows.append(row)
        self.results[name] = figures
        print(f"  {row.what:34} {row.figure:34} {row.beside}", flush=True)

    @contextmanager
    def root(self) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield place / "store"
        finally:
            shutil.rmtree(place)

    # Append.

    def append(self) -> None:
        total = self.options.mib * MIB
        for name, size in SIZES.items():
            some = messages_of(size, 4096 if size < 8192 else 256)
            record = message_size(some[0])
            count = max(len(some), total // record // len(some) * len(some))
            for batch in BATCHES:
                ours: list[Run] = []
                copies: list[Run] = []
                writes: list[Run] = []
                for _ in range(self.options.repetitions):
                    with self.root() as root:
                        self._append_once(root, some, count, batch, ours)
                    for mode, runs in (("memcpy", copies), ("write", writes)):
                        run = self.baseline.run(mode, self.folder / "raw", record, count, batch)
                        if run is not None:
                            runs.append(run)
                self._tell_append(name, batch, record, ours, copies, writes)

    def _append_once(
        self, root: Path, some: Sequence[PutMessage], count: int, batch: int, runs: list[Run]
    ) -> None:
        batches = [some[at : at + batch] for at in range(0, len(some), batch)]
        with opened(root) as store:
            for group in batches[:QUEUES]:  # Queues and the first file are made.
                store.put(group)
            with measured(count, runs):
                for _ in range(count // len(some)):
                    for group in batches:
                        store.put(group)

    def _tell_append(
        self, name: str, batch: int, record: int, ours: list[Run], copies: list[Run],
        writes: list[Run],
    ) -> None:  # fmt: skip
        rate = statistics.median(run.per_second for run in ours)
        cpu = statistics.median(run.cpu_per_million for run in ours)
        beside, figures = [], {}
        for title, runs in (("memcpy", copies), ("write", writes)):
            if runs:
                best = statistics.median(run.per_second for run in runs)
                best_cpu = statistics.median(run.cpu_per_million for run in runs)
                beside.append(f"{rate / best:5.0%} of {title}, {cpu / best_cpu:.1f} x its CPU")
                figures[title] = {"per_second": best, "cpu_per_million": best_cpu}
        self.note(
            f"append {name} x {batch}",
            Row(
                f"append {name}, batches of {batch}",
                f"{rate:10,.0f}/s {rate * record / MIB:7,.0f} MiB/s {cpu:6.2f} CPU s/M",
                "; ".join(beside),
            ),
            per_second=rate,
            cpu_per_million=cpu,
            record_bytes=record,
            runs=[run._asdict() for run in ours],
            **figures,
        )

    def disk(self) -> None:
        """ST-22: how near to what the disk takes in sequence, everything durable in the end.

        As in a broker, a thread syncs what is there while more is appended.
        """
        program = shutil.which("dd")
        total = self.options.disk_mib * MIB
        plain: list[float] = []
        for size in (1024, 65536):
            some = messages_of(size, 4 * MIB // size)
            record = message_size(some[0])
            rounds = total // (record * len(some))
            count = rounds * len(some)
            ours: list[Run] = []
            for _ in range(self.options.repetitions):
                with self.root() as root, opened(root) as store, measured(count, ours):
                    _append_and_flush(store, some, rounds)
                if program is not None:
                    runs: list[Run] = []
                    with measured(1, runs):
                        subprocess.run(
                            [program, "if=/dev/zero", f"of={self.folder / 'raw'}", "bs=1M",
                             f"count={count * record // MIB}", "conv=fdatasync"],
                            check=True, capture_output=True,
                        )  # fmt: skip
                    plain.append(count * record / MIB * runs[0].per_second)
                    (self.folder / "raw").unlink()
            rate = statistics.median(run.per_second for run in ours) * record / MIB
            figures, beside = {}, ""
            if plain:
                best = statistics.median(plain)
                beside = f"{rate / best:5.0%} of dd, {best:,.0f} MiB/s"
                figures = {"dd_mib_per_second": best, "ratio": rate / best}
            self.note(
                f"disk {size}",
                Row(f"append and flush, messages of {size:,} B", f"{rate:10,.0f} MiB/s", beside),
                mib_per_second=rate,
                **figures,
            )

    # Reads.

    def read(self) -> None:
        total = self.options.mib * MIB
        with self.root() as root:
            settings = {"mapped_file_size_commit_log": max(MIB, total // 8)}
            with opened(root, **settings) as store:
                count = fill(store, 1024, total)
            store = opened(root, **settings)
            per_queue = count // QUEUES
            self._read(store, "at the head", per_queue - per_queue // 8, per_queue)
            store.close()
            del store
            gc.collect()
            files = [*(root / "commitlog").iterdir(), *root.glob("consumequeue/*/*/*")]
            how = forget_cache(files, of_all=not self.options.quick)
            with opened(root, **settings) as store:
                # The last files are warm again: opening checks them. What is read is before.
                self._read(store, f"cold ({how})", 0, per_queue // 2)

    def backlog(self) -> None:
        """ST-23: reads at the end of queues, with and without much before it."""
        tail = min(200_000, self.options.backlog // 4)
        some = messages_of(128, 512)
        rates: dict[str, list[float]] = {"without": [], "with": []}
        with (
            self.root() as short_root,
            self.root() as long_root,
            opened(short_root) as short,
            opened(long_root) as long,
        ):
            for store, count in ((short, tail), (long, self.options.backlog)):
                for _ in range(-(-count // len(some))):
                    store.put(some)
            for _ in range(max(5, self.options.repetitions)):
                for name, store in (("without", short), ("with", long)):
                    rates[name].append(self._read_tail(store, tail // QUEUES))
        without, found = (statistics.median(rates[name]) for name in ("without", "with"))
        self.note(
            "backlog",
            Row(
                f"read 32 of 128 B, {self.options.backlog:,} before",
                f"{found:10,.0f}/s",
                f"{found / without:5.0%} of {without:,.0f}/s without",
            ),
            backlog=self.options.backlog,
            per_second=found,
            per_second_without=without,
            ratio=found / without,
        )

    def _read_tail(self, store: MessageStore, per_queue: int) -> float:
        runs: list[Run] = []
        count = 0
        with measured(1, runs):
            for queue_id in range(QUEUES):
                last = store.max_offset("BenchTopic", queue_id)
                offset = last - per_queue
                while offset < last:
                    found = store.get("BenchTopic", queue_id, offset, 32)
                    assert found.status is GetStatus.FOUND
                    for chunk in found.chunks:
                        len(bytes(chunk))
                    count += found.message_count
                    offset = found.next_offset
        return count / runs[0].seconds

    def _read(self, store: MessageStore, what: str, first: int, last: int) -> None:
        runs: list[Run] = []
        count = 0
        with measured(1, runs):
            for queue_id in range(QUEUES):
                offset = first
                while offset < last:
                    found = store.get("BenchTopic", queue_id, offset, 32)
                    assert found.status is GetStatus.FOUND
                    for chunk in found.chunks:
                        len(bytes(chunk))  # As a socket would take it.
                    count += found.message_count
                    offset = found.next_offset
        run = runs[0]._replace(count=count)
        self.note(
            f"read {what}",
            Row(
                f"read 32 of 1 KiB, {what}",
                f"{run.per_second:10,.0f}/s {run.per_second / 1024:7,.0f} MiB/s"
                f" {run.cpu_per_million:6.2f} CPU s/M",
            ),
            per_second=run.per_second,
            cpu_per_million=run.cpu_per_million,
        )

    # SYNC_FLUSH.

    def sync(self) -> None:
        bare = None
        run = self.baseline.run(
            "sync", self.folder / "raw", message_size(messages_of(1024, 1)[0]), 50
        )
        if run is not None:
            count = max(20, int(run.per_second * self.options.seconds))
            run = self.baseline.run("sync", self.folder / "raw", 1200, count)
            assert run is not None
            bare = run.per_second
            self.note("bare fdatasync", Row("bare fdatasync", f"{bare:10,.0f}/s"), per_second=bare)
        one = 0.0
        for waiters in WAITERS:
            with self.root() as root:
                run, flushes, longest_ms = asyncio.run(self._sync(root, waiters))
            one = one or run.per_second
            beside = f"{run.per_second / one:5.1f} x one sender"
            if bare is not None:
                beside += f", {run.per_second / bare:.1f} x bare fdatasync"
            self.note(
                f"sync {waiters}",
                Row(
                    f"SYNC_FLUSH 1 KiB, {waiters} waiting",
                    f"{run.per_second:10,.0f}/s {run.count / max(1, flushes):7.1f} a flush"
                    f" {run.cpu_per_million:6.2f} CPU s/M",
                    beside,
                ),
                per_second=run.per_second,
                times_one_sender=run.per_second / one,
                cpu_per_million=run.cpu_per_million,
                flushes=flushes,
                longest_flush_ms=longest_ms,
            )

    async def _sync(self, root: Path, waiters: int) -> tuple[Run, int, int]:
        some = messages_of(1024, 512)
        clock = SystemClock()
        done = 0
        runs: list[Run] = []
        with opened(root, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
            flusher = Flusher(store, clock)
            async with flusher.running():
                end = time.perf_counter() + self.options.seconds

                async def send(number: int) -> None:
                    nonlocal done
                    while time.perf_counter() < end:
                        (result,) = store.put([some[number % len(some)]])
                        await flusher.wait_flushed(result.end)
                        done += 1
                        number += waiters

                with measured(1, runs):
                    await asyncio.gather(*(send(number) for number in range(waiters)))
                figures = flusher.figures
        return runs[0]._replace(count=done), figures.flush_count, figures.longest_flush_ms

    # Recovery and opening.

    def recovery(self) -> None:
        total = self.options.recovery_mib * MIB
        settings = {"mapped_file_size_commit_log": max(MIB, total // 8)}
        with self.root() as root:
            store = opened(root, **settings)
            fill(store, 1024, total)
            store.flush()
            size = store.log.appended
            store._release()  # As kill -9 leaves it.
            del store
            for what in ("with our marks", "everything from the log"):
                if what.startswith("everything"):
                    for name in ("consumequeue", "index"):
                        shutil.rmtree(root / name)
                    (root / "checkpoint").unlink()
                (root / "abort").touch()
                runs: list[Run] = []
                with measured(1, runs):
                    store = opened(root, **settings)
                checked = size - store.recovery.checked_from
                store.close()
                del store
                seconds = runs[0].seconds
                self.note(
                    f"recovery {what}",
                    Row(
                        f"recovery, {what}",
                        f"{seconds * (1 << 30) / checked:10.2f} s per GiB checked",
                        f"{seconds:.2f} s for {checked / MIB:,.0f} of {size / MIB:,.0f} MiB",
                    ),
                    seconds=seconds,
                    checked_bytes=checked,
                    log_bytes=size,
                    seconds_per_gib=seconds * (1 << 30) / checked,
                )

    def open_many(self) -> None:
        queues = self.options.queues
        with self.root() as root:
            settings = {"mapped_file_size_commit_log": 64 * MIB}
            with opened(root, **settings) as store:
                for number in range(queues):
                    store.put([PutMessage(f"T{number // 8}", number % 8, b"x", b"", 0, HOST, HOST)])
            for what in ("clean", "after a crash"):
                if what != "clean":
                    (root / "abort").touch()
                runs: list[Run] = []
                with measured(1, runs):
                    store = opened(root, **settings)
                    store.put([PutMessage("T0", 0, b"x", b"", 0, HOST, HOST)])
                self.note(
                    f"open {what}",
                    Row(f"open {queues:,} queues, {what}", f"{runs[0].seconds:10.2f} s"),
                    seconds=runs[0].seconds,
                    cpu_seconds=runs[0].cpu_seconds,
                )
                store.close()
                del store

    def memory(self) -> None:
        with self.root() as root:
            out = subprocess.run(
                [sys.executable, __file__, "--memory-of", str(root), "--count",
                 str(self.options.count)],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
        figures = json.loads(out)
        self.note(
            "memory",
            Row(
                f"memory after {self.options.count:,} messages",
                f"{figures['anonymous_mib']:10.1f} MiB anonymous",
                f"{figures['resident_mib']:,.0f} MiB resident with mapped files",
            ),
            **figures,
        )


def memory_of(root: Path, count: int) -> None:
    """In a process of its own: put messages, and print what it takes."""
    some = messages_of(1024, 512)
    with opened(root) as store:
        for _ in range(-(-count // len(some))):
            store.put(some)
        lines = Path("/proc/self/status").read_text().splitlines()
        status = {
            line.split(":")[0]: line.split()[1]
            for line in lines
            if line.startswith(("RssAnon", "VmRSS"))
        }
        print(
            json.dumps(
                {
                    "resident_mib": int(status["VmRSS"]) / 1024,
                    "anonymous_mib": int(status["RssAnon"]) / 1024,
                }
            )
        )


def forget_cache(paths: Sequence[Path], *, of_all: bool) -> str:
    """Take files out of the page cache, or everything where that is allowed; return how."""
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    if of_all:
        with suppress(OSError):  # Only root may.
            Path("/proc/sys/vm/drop_caches").write_text("1\n")
            return "caches dropped"
    return "fadvise"


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the table, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512, help="of log per append measurement")
    parser.add_argument("--recovery-mib", type=int, default=512)
    parser.add_argument("--disk-mib", type=int, default=2048, help="to compare with dd")
    parser.add_argument("--backlog", type=int, default=10_000_000, help="messages")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages for memory")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each sync measurement")
    parser.add_argument(
        "--only", action="append", choices=list(_PARTS), help="one part, repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.memory_of is not None:
        memory_of(options.memory_of, options.count)
        return 0
    if options.quick:
        options.mib, options.recovery_mib, options.queues = 8, 16, 200
        options.disk_mib, options.backlog = 8, 20_000
        options.count, options.repetitions, options.seconds = 5_000, 1, 0.2
    compiled = bool(append.COMPILED) and os.environ.get("SKYLARK_PURE") != "1"
    implementation = "compiled" if compiled else "pure Python"
    load = os.getloadavg()[0]
    print(f"store engine, {implementation}; load average {load:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(prefix="skylark-bench-", dir=options.folder) as folder:
        bench = StoreBench(Path(folder), options)
        if not bench.baseline.is_there:
            print("no C compiler: there are no baselines")
        for name in options.only or _PARTS:
            _PARTS[name](bench)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / f"store-{today}{'-quick' if options.quick else ''}.json"
    document = {
        "date": today,
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load_average_at_start": load,
        },
        "implementation": implementation,
        "settings": {
            "mib": options.mib,
            "repetitions": options.repetitions,
            "seconds": options.seconds,
        },
        "results": bench.results,
    }
    file.write_text(json.dumps(document, indent=1) + "\n")
    print(f"ran {implementation}; written to {os.path.relpath(file)}")
    return 0


_PARTS: dict[str, Callable[[StoreBench], None]] = {
    "append": StoreBench.append,
    "disk": StoreBench.disk,
    "read": StoreBench.read,
    "backlog": StoreBench.backlog,
    "sync": StoreBench.sync,
    "recovery": StoreBench.recovery,
    "open": StoreBench.open_many,
    "memory": StoreBench.memory,
}


if __name__ == "__main__":
    raise SystemExit(main())
