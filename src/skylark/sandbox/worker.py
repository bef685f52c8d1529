"""OsWorkers: starts workers, asks them, and ends those that do not answer in time.

The broker never waits for a worker: every question has a deadline, at which the process is killed,
and what it sends is read piece by piece with a bound. A worker holds one predicate for its life.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from ..errors import SkylarkError

_FRAME: Final = struct.Struct(">I")
_ANSWER_BYTES_MAX: Final = 64 << 10
_CHILD: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
_START_PATIENCE_S: Final = 10.0


class PredicateFailed(SkylarkError):
    """A predicate could not be loaded, raised, or was stopped; the worker may be gone."""

    def __init__(self, problem: str, *, was_stopped: bool = False) -> None:
        super().__init__(problem)
        self.was_stopped = was_stopped  # It had to be killed, or died.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What a worker may use."""

    memory_bytes: int = 128 << 20
    timeout_ms: int = 1_000


class Worker(Protocol):
    """One process, or what stands for it in a test."""

    layers: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        ...

    async def load(self, source: str) -> None:
        """Give it its predicate; raises PredicateFailed."""
        ...

    async def judge(self, batch: bytes, count: int) -> bytes:
        """One byte for each message, 1 where it passes; raises PredicateFailed."""
        ...

    async def close(self) -> None:
        """End it, and wait until it is gone."""
        ...


class Workers(Protocol):
    """Where workers come from."""

    async def start(self) -> Worker:
        """Start one that has no predicate yet; raises PredicateFailed where it cannot be safe."""
        ...


class OsWorkers:
    """Workers that are processes of this system."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits

    async def start(self) -> Worker:
        """Start a process, and wait until it has given up its rights."""
        if not sys.platform.startswith("linux"):
            raise PredicateFailed(
                f"predicates need Linux and seccomp, and this is {sys.platform}; "
                "set filterServerNums=0 and filter by SQL92"
            )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-B", _CHILD, str(self._limits.memory_bytes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PredicateFailed(f"no process could be started: {error.strerror}") from None
        worker = _Process(process, self._limits)
        await worker.greet()
        return worker


class _Process:
    def __init__(self, process: asyncio.subprocess.Process, limits: WorkerLimits) -> None:
        self._process = process
        self._limits = limits
        self.layers: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.returncode is None

    async def greet(self) -> None:
        """Wait for its word that it has given up its rights."""
        kind, content = await self._answer(_START_PATIENCE_S, "did not start")
        word = json.loads(content) if kind == b"H" else {}
        if not word.get("ok"):
            await self.close()
            raise PredicateFailed(
                f"this system does not let a worker be locked in: {word.get('problem')}; "
                "set filterServerNums=0 and filter by SQL92"
            )
        self.layers = tuple(word["layers"])

    async def load(self, source: str) -> None:
        """Run the source, which must define matches(message)."""
        await self._ask(b"S", source.encode(), b"L", "while its source ran")

    async def judge(self, batch: bytes, count: int) -> bytes:
        """Ask about messages."""
        verdicts = await self._ask(b"B", batch, b"V", "over a batch of messages")
        if len(verdicts) != count:
            await self.close()
            raise PredicateFailed("it answered what it was not asked", was_stopped=True)
        return verdicts

    async def _ask(self, kind: bytes, content: bytes, wanted: bytes, when: str) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(_FRAME.pack(1 + len(content)) + kind)
        self._process.stdin.write(content)
        got, answer = await self._answer(self._limits.timeout_ms / 1000, when)
        if got == wanted:
            return answer
        if got == b"E":
            raise PredicateFailed(answer.decode("utf-8", "replace"))
        await self.close()
        raise PredicateFailed("it spoke out of turn", was_stopped=True)

    async def _answer(self, patience_s: float, when: str) -> tuple[bytes, bytes]:
        stream = self._process.stdout
        assert stream is not None
        try:
            async with asyncio.timeout(patience_s):
                (size,) = _FRAME.unpack(await stream.readexactly(4))
                if not 0 < size <= _ANSWER_BYTES_MAX:
                    self._kill()
                    raise PredicateFailed("it spoke out of turn", was_stopped=True)
                content = await stream.readexactly(size)
                return content[:1], content[1:]
        except TimeoutError:
            await self.close()
            raise PredicateFailed(
                f"it took longer than {patience_s * 1000:.0f} ms {when}, and was stopped",
                was_stopped=True,
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            code = self._process.returncode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise PredicateFailed(f"its process ended {when} ({how})", was_stopped=True) from None
        except BaseException:
            self._kill()
            raise

    async def close(self) -> None:
        """End it, whatever it does; it has no children, for it cannot have any."""
        self._kill()
        await self._process.wait()

    def _kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
