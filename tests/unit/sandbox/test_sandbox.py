"""Predicates in real processes: honest ones answer, hostile ones are contained."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from skylark.sandbox import Candidate, OsWorkers, PredicateFailed, WorkerLimits, encode_batch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs seccomp")

LIMITS = WorkerLimits(memory_bytes=96 << 20, timeout_ms=400)
MESSAGES = [
    Candidate("T", b"a\x01%d\x02TAGS\x01TagA\x02KEYS\x01k1 k2" % number, b"body %d" % number)
    for number in range(4)
]


def _run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


async def _judged(source: str, messages: list[Candidate] | None = None) -> bytes:
    candidates = MESSAGES if messages is None else messages
    worker = await OsWorkers(LIMITS).start()
    try:
        await worker.load(source)
        return await worker.judge(encode_batch(candidates), len(candidates))
    finally:
        await worker.close()


def test_a_predicate_sees_the_message_and_decides() -> None:
    source = (
        "import json, re\n"
        "def matches(message):\n"
        "    return (int(message.properties['a']) > 1 and message.body.startswith(b'body')\n"
        "            and message.tag == 'TagA' and message.keys == ['k1', 'k2']\n"
        "            and message.topic == 'T' and re.match('b', 'b') is not None)\n"
    )
    assert _run(lambda: _judged(source)) == b"\x00\x00\x01\x01"


def test_a_compressed_body_is_read_and_a_bomb_is_not() -> None:
    small = Candidate("T", b"", zlib.compress(b"hello"), 1)
    bomb = Candidate("T", b"", zlib.compress(bytes(512 << 20)), 1)
    source = "def matches(message): return message.body == b'hello'"
    assert _run(lambda: _judged(source, [small])) == b"\x01"
    assert _run(lambda: _judged(source, [bomb])) == b"\x00"


def test_a_worker_gives_up_its_rights_before_any_code_runs() -> None:
    async def main() -> tuple[str, ...]:
        worker = await OsWorkers(LIMITS).start()
        await worker.close()
        return worker.layers

    layers = _run(main)
    assert layers[0] == "limits"
    assert layers[-1] == "seccomp"
    if os.geteuid() == 0:
        assert "nobody" in layers


MISTAKES = {
    "no function": ("x = 1", "defines no function matches(message)"),
    "syntax": ("def matches(message)\n    return True", "SyntaxError"),
    "raises": (
        "def matches(message):\n    return 1 / 0",
        "ZeroDivisionError: division by zero (line 2)"),
    "not importable": ("import socketserver\ndef matches(m): return True", "socketserver"),
    "exits": ("import sys\ndef matches(m): sys.exit(5)", "SystemExit: 5"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_reported_with_its_line(kind: str) -> None:
    source, words = MISTAKES[kind]
    with pytest.raises(PredicateFailed) as failure:
        _run(lambda: _judged(source))
    assert words in str(failure.value)
    assert not failure.value.was_stopped
    assert "\n" not in str(failure.value)


_OS = "import sys\nos = sys.modules['os']\n"
_C = "import sys, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
HOSTILE = {
    "loops": ("def matches(m):\n    while True: pass", "longer than 400 ms"),
    "loops while loading": ("while True: pass", "longer than 400 ms"),
    "sleeps": ("import time\ndef matches(m): time.sleep(60)", "longer than 400 ms"),
    "catches everything": (
        "def matches(m):\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass", "longer than 400 ms"),
    "eats memory": ("def matches(m): return len(bytearray(1 << 30))", "MemoryError"),
    "eats memory slowly": (
        "def matches(m):\n    x = []\n    while True: x.append(bytes(1 << 20))", "MemoryError"),
    "a regular expression without end": (
        "import re\ndef matches(m): return re.match('(a+)+$', 'a' * 40 + 'b')", "longer than 400"),
    "opens a file": ("def matches(m): return open('/etc/passwd').read()", "PermissionError"),
    "opens by descriptor": (_OS + "def matches(m): return os.open('/etc/passwd', 0)", "Permission"),
    "writes a file": ("def matches(m): open('/tmp/x', 'w').write('x')", "PermissionError"),
    "lists": (_OS + "def matches(m): return os.listdir('/')", "PermissionError"),
    "forks": (_OS + "def matches(m): return os.fork()", "Error"),
    "forks while loading": (_OS + "while True: os.fork()\ndef matches(m): return 1", "Error"),
    "runs a shell": (_OS + "def matches(m): os.execv('/bin/sh', ['sh'])", "PermissionError"),
    "kills": (_OS + "def matches(m): os.kill(os.getppid(), 9)", "PermissionError"),
    "kills everybody": (_OS + "def matches(m): os.kill(-1, 9)", "PermissionError"),
    "raises its limits": (
        "import sys\nr = sys.modules['resource']\n"
        "def matches(m): r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))", "Error"),
    "becomes root": (_OS + "def matches(m): os.setuid(0)", "PermissionError"),
    "ends itself": (_OS + "def matches(m): os._exit(0)", "process ended"),
    "crashes": (_C + "def matches(m): ctypes.string_at(0)", "process ended"),
    "socket by a native call": (
        _C + "def matches(m):\n    if libc.socket(2, 1, 0) < 0:\n"
        "        raise OSError(ctypes.get_errno(), 'no socket')", "no socket"),
    "open by a native call": (
        _C + "def matches(m):\n    if libc.open(b'/etc/passwd', 0) < 0:\n"
        "        raise OSError(ctypes.get_errno(), 'no file')", "no file"),
    "thread by a native call": (
        "import sys, _thread\ndef matches(m):\n    _thread.start_new_thread(print, ())", "thread"),
    "speaks out of turn": (_OS + "def matches(m): os.write(1, b'x' * 100)", ""),
    "answers for others": (
        _OS + "def matches(m): os.write(1, b'\\0\\0\\0\\x02V\\x01')", "not asked"),
    "says too much": ("def matches(m): raise ValueError('x' * 10_000_000)", "ValueError"),
    "deep recursion": ("def matches(m): return matches(m)", "RecursionError"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_predicates_are_contained_and_reported(kind: str) -> None:
    source, words = HOSTILE[kind]
    start = time.monotonic()
    with pytest.raises(PredicateFailed) as failure:
        _run(lambda: _judged(source))
    assert words in str(failure.value)
    assert len(str(failure.value)) < 500
    assert time.monotonic() - start < 10


def test_nothing_of_a_hostile_predicate_is_left() -> None:
    async def main() -> int:
        worker = await OsWorkers(LIMITS).start()
        await worker.load("def matches(m):\n    while True: pass")
        with pytest.raises(PredicateFailed):
            await worker.judge(encode_batch(MESSAGES), len(MESSAGES))
        pid: int = worker.pid  # type: ignore[attr-defined]
        assert not worker.is_alive
        return pid

    pid = _run(main)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_loop_goes_on_while_a_predicate_does_not_answer() -> None:
    async def main() -> list[float]:
        worker = await OsWorkers(LIMITS).start()
        await worker.load("def matches(m):\n    while True: pass")
        asked = asyncio.ensure_future(worker.judge(encode_batch(MESSAGES), len(MESSAGES)))
        turns = []
        while not asked.done():
            before = time.perf_counter()
            await asyncio.sleep(0)
            turns.append(time.perf_counter() - before)
        with pytest.raises(PredicateFailed):
            await asked
        return turns

    assert len(_run(main)) > 100


def test_a_worker_whose_broker_is_gone_ends_by_itself() -> None:
    async def main() -> None:
        worker = await OsWorkers(LIMITS).start()
        process = worker._process  # type: ignore[attr-defined]
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)
        assert process.returncode == 0

    _run(main)
