"""The inside of a worker: reads a predicate, gives up every right, and answers which messages pass.

Run as a file by a bare interpreter (`python -I -S child.py MEMORY_BYTES`), so it imports nothing of
skylark. Standard input and output are its only two ways to the world:

    in    S source                 out   H what it gave up, or why it cannot
    in    B messages               out   L, once the source has run; then V one byte for each
                                         message, or E what went wrong, in words

All that a user's code may use is imported first. Then, in this order and before any of that code
runs: no core files, no files of any size, no further descriptors, no processes, a bound on memory
and on time; another network, mount and IPC namespace where the system allows it; the user nobody,
where we are root; and at last a seccomp filter that lets through reading, writing, memory and the
clock, and answers everything else with EPERM. Without the filter nothing is run.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import types

# What predicates may import; nothing can be read from the disk later on.
import base64  # noqa: F401  isort: skip
import binascii  # noqa: F401  isort: skip
import bisect  # noqa: F401  isort: skip
import collections  # noqa: F401  isort: skip
import datetime  # noqa: F401  isort: skip
import decimal  # noqa: F401  isort: skip
import functools  # noqa: F401  isort: skip
import hashlib  # noqa: F401  isort: skip
import itertools  # noqa: F401  isort: skip
import json

import math  # noqa: F401  isort: skip
import operator  # noqa: F401  isort: skip
import re  # noqa: F401  isort: skip
import statistics  # noqa: F401  isort: skip
import string  # noqa: F401  isort: skip
import time  # noqa: F401  isort: skip
import traceback

import typing  # noqa: F401  isort: skip
import zlib

_FRAME = struct.Struct(">I")
_FACTS = struct.Struct(">iiqqqi")
_FRAME_BYTES_MAX = 64 << 20
_BODY_BYTES_MAX = 16 << 20
_CPU_SECONDS_MAX = 3_600
_NOBODY = 65_534

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_NAMESPACES = {
    "network": 0x40000000,
    "mounts": 0x00020000,
    "ipc": 0x08000000,
    "host name": 0x04000000,
}
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # Go on; answer EPERM.
_KILL = 0x80000000

# Audit number and the system calls that a computation needs: read write close fstat lseek mmap
# mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn sched_yield mremap madvise getpid
# exit exit_group gettimeofday futex clock_gettime clock_nanosleep nanosleep getrandom sigaltstack
# restart_syscall membarrier rseq.
_MACHINES = {
    "x86_64": (
        0xC000003E,
        (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 39, 60, 231, 96, 202, 228, 230, 35,
         318, 131, 219, 324, 334, 201),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 124, 216, 233, 172, 93, 94, 169,
         98, 113, 115, 101, 278, 132, 128, 283, 293),
    ),
}  # fmt: skip


class Message:
    """What a predicate sees."""

    __slots__ = (
        "body", "born_at_ms", "properties", "queue_id", "queue_offset", "reconsume_times",
        "stored_at_ms", "topic",
    )  # fmt: skip

    topic: str
    properties: dict[str, str]
    body: bytes
    queue_id: int
    queue_offset: int
    born_at_ms: int
    stored_at_ms: int
    reconsume_times: int

    @property
    def tag(self) -> str | None:
        """Its tag."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """Its keys."""
        return self.properties.get("KEYS", "").split()


# Giving up.


def _limit(memory_bytes: int) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CPU, _CPU_SECONDS_MAX),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, 3),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    os.nice(10)


def _lock_down(memory_bytes: int) -> list[str]:
    """Give up every right; the layers that hold. Raises OSError where the last of them does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    layers = ["limits"]
    for name, flag in _NAMESPACES.items():
        if libc.unshare(flag) == 0:
            layers.append(name)
    _limit(memory_bytes)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        layers.append("nobody")
    libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
    _filter_calls(libc)
    layers.append("seccomp")
    return layers


def _filter_calls(libc: ctypes.CDLL) -> None:
    audit, calls = _MACHINES[platform.machine()]
    # Load the machine; another than ours is killed. Load the call; x32's are refused, each of ours
    # is let through.
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, audit), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    code += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, _KILL)]
    for number in calls:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, _ALLOW)]
    code.append((0x06, 0, 0, _REFUSE))
    packed = b"".join(struct.pack("=HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    program = Program(len(code), ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp was refused")


# Frames.


def _read(size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            os._exit(0)  # The broker is gone, or has no more for us.
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _receive() -> tuple[bytes, bytes]:
    (size,) = _FRAME.unpack(_read(4))
    if not 0 < size <= _FRAME_BYTES_MAX:
        os._exit(3)
    content = _read(size)
    return content[:1], content[1:]


def _send(kind: bytes, content: bytes = b"") -> None:
    data = _FRAME.pack(1 + len(content)) + kind + content
    while data:
        data = data[os.write(1, data) :]


def _messages(content: bytes) -> list[Message]:
    (count,) = _FRAME.unpack_from(content)
    at = 4
    found = []
    for _ in range(count):
        texts = []
        for _ in range(3):
            (size,) = _FRAME.unpack_from(content, at)
            texts.append(content[at + 4 : at + 4 + size])
            at += 4 + size
        topic, properties, body = texts
        sys_flag, *facts = _FACTS.unpack_from(content, at)
        at += _FACTS.size
        one = Message()
        one.topic = topic.decode()
        one.properties = {}
        for piece in properties.decode("utf-8", "replace").split("\x02"):
            name, _, value = piece.partition("\x01")
            if name and value:
                one.properties[name] = value
        one.body = zlib.decompressobj().decompress(body, _BODY_BYTES_MAX) if sys_flag & 1 else body
        (one.queue_id, one.queue_offset, one.born_at_ms, one.stored_at_ms,
         one.reconsume_times) = facts  # fmt: skip
        found.append(one)
    return found


# A user's code.


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """There is nothing to flush."""


def _words(error: BaseException) -> bytes:
    """An error in one line, with the line of the predicate that it comes from."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<predicate>"
    ]
    if isinstance(error, SyntaxError) and error.lineno is not None:
        lines = [error.lineno]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{' '.join(text.split())[:300]}{where}".encode("utf-8", "replace")


def _main() -> None:
    memory_bytes = int(sys.argv[1])
    nowhere = _Nowhere()
    sys.stdin = None
    sys.stdout = sys.stderr = nowhere
    try:
        layers = _lock_down(memory_bytes)
    except (OSError, KeyError, ValueError, AttributeError) as error:
        _send(b"H", json.dumps({"ok": False, "problem": str(error)}).encode())
        os._exit(2)
    _send(b"H", json.dumps({"ok": True, "layers": layers}).encode())
    _, source = _receive()
    try:
        module = types.ModuleType("predicate")
        code = compile(source.decode(), "<predicate>", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - this process can do nothing but compute
        matches = module.__dict__.get("matches")
        if not callable(matches):
            raise TypeError("the source defines no function matches(message)")
    except BaseException as error:
        _send(b"E", _words(error))
        os._exit(0)
    _send(b"L")
    while True:
        _, content = _receive()
        try:
            verdicts = bytes(1 if matches(message) else 0 for message in _messages(content))
        except BaseException as error:
            _send(b"E", _words(error))
        else:
            _send(b"V", verdicts)


if __name__ == "__main__":
    _main()
