"""The load generator: `loadgen.c` where there is a C compiler, the same thing in Python elsewhere.

In Python the generator is slower than what it measures; the figures that count then are those per
CPU second of the server, and the table says which generator was used.
"""

from __future__ import annotations

import json
import re
import selectors
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent / "loadgen.c"
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_CODE = re.compile(rb'"code":(\d+)')
_OPAQUE_DIGITS = b"100000000"


@dataclass(frozen=True)
class Load:
    """What one run did."""

    seconds: float
    answers: int
    wrong: int
    bytes: int


class LoadGenerator:
    """Asks encoded questions; each must carry the opaque 100000000 in its JSON header."""

    def __init__(self, frames: Sequence[bytes], folder: Path) -> None:
        self._frames = list(frames)
        self._places = [frame.index(_OPAQUE_DIGITS) for frame in frames]
        self._file = folder / "frames"
        self._file.write_bytes(
            b"".join(
                struct.pack(">II", len(frame), place) + frame
                for frame, place in zip(self._frames, self._places, strict=True)
            )
        )
        self._program = _compile(folder)

    @property
    def kind(self) -> str:
        """`C` or `Python`."""
        return "C" if self._program else "Python"

    def run(
        self, port: int, *, connections: int, depth: int, seconds: float, code: int = 0
    ) -> Load:
        """Ask for so many seconds; every answer must have this response code."""
        if self._program is None:
            load = _run_in_python(
                port, connections, depth, seconds, code, self._frames, self._places
            )
        else:
            arguments = ["127.0.0.1", port, connections, depth, seconds, self._file, code]
            done = subprocess.run(
                [self._program, *map(str, arguments)], check=False, capture_output=True, text=True
            )
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip())
            load = Load(**json.loads(done.stdout))
        if load.wrong:
            raise RuntimeError(f"{load.wrong} of {load.answers} answers have another code")
        return load


def _compile(folder: Path) -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / "loadgen"
    subprocess.run([compiler, "-O2", "-o", program, _SOURCE], check=True)
    return program


@dataclass
class _Connection:
    socket: socket.socket
    slots: list[int]
    received: bytearray = field(default_factory=bytearray)
    round: int = 0


def _run_in_python(
    port: int,
    connections: int,
    depth: int,
    seconds: float,
    code: int,
    frames: list[bytes],
    places: list[int],
) -> Load:
    answers = wrong = received_bytes = asked = under_way = 0

    def ask(connection: _Connection, slot: int) -> bytes:
        nonlocal asked, under_way
        index = asked % len(frames)
        asked += 1
        under_way += 1
        number = 100_000_000 + connection.round % (800_000_000 // depth) * depth + slot
        connection.round += 1
        connection.slots[slot] = number
        frame, place = frames[index], places[index]
        return frame[:place] + str(number).encode() + frame[place + 9 :]

    with selectors.DefaultSelector() as selector:
        opened = []
        for _ in range(connections):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(one, [0] * depth)
            opened.append(connection)
            selector.register(one, selectors.EVENT_READ, connection)
        start = time.perf_counter()
        for connection in opened:
            connection.socket.sendall(b"".join(ask(connection, slot) for slot in range(depth)))
        while under_way:
            stopping = time.perf_counter() - start >= seconds
            ready = selector.select(timeout=10)
            if not ready:
                raise RuntimeError("no answer for 10 s")
            for key, _ in ready:
                connection = key.data
                data = connection.socket.recv(1 << 18)
                if not data:
                    raise RuntimeError("the server hung up")
                connection.received += data
                out = []
                at = 0
                while len(connection.received) - at >= 8:
                    size = 4 + int.from_bytes(connection.received[at : at + 4], "big")
                    if len(connection.received) - at < size:
                        break
                    header = 8 + int.from_bytes(connection.received[at + 5 : at + 8], "big")
                    text = bytes(connection.received[at + 8 : at + header])
                    opaque, answer_code = _OPAQUE.search(text), _CODE.search(text)
                    assert opaque is not None
                    assert answer_code is not None
                    slot = (int(opaque[1]) - 100_000_000) % depth
                    if connection.slots[slot] != int(opaque[1]):
                        raise RuntimeError("an answer to no question")
                    answers += 1
                    under_way -= 1
                    wrong += int(answer_code[1]) != code
                    received_bytes += size
                    at += size
                    if not stopping:
                        out.append(ask(connection, slot))
                del connection.received[:at]
                if out:
                    connection.socket.sendall(b"".join(out))
        elapsed = time.perf_counter() - start
        for connection in opened:
            connection.socket.close()
    return Load(elapsed, answers, wrong, received_bytes)
