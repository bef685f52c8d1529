"""Timeline: virtual time, and the order of everything that happens in a simulation.

Time is a count of microseconds that jumps to the next event when nothing is ready. Events of one
microsecond run in the order in which they were added, or, with `shuffle`, in a seeded one. An event
belongs to a process (a SimLoop), which may be paused or dead when the event comes due.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
from asyncio import format_helpers
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .loop import SimLoop

# Callbacks at one instant before the run is called stuck: a busy wait never lets time move.
LIVELOCK_CALLBACKS = 1_000_000
# Callbacks between two passes of the cyclic collector.
COLLECT_CALLBACKS = 500_000
_COMPACT_MIN = 1_000


class SimulationError(Exception):
    """The simulation cannot go on as asked. Not a SkylarkError: product code must not handle it."""


class Deadlock(SimulationError):
    """Nothing is scheduled and the main coroutine still waits."""


class Livelock(SimulationError):
    """Callbacks go on for ever at one instant of virtual time."""


class OutOfTime(SimulationError):
    """The main coroutine is not done at the virtual time it was given."""


class RealWorldRefused(SimulationError):
    """Simulated code asked for a socket, a thread, a signal or a child process."""


class Event(Protocol):
    """What the timeline runs: an asyncio handle, or something arriving from outside the process."""

    _cancelled: bool
    _loop: SimLoop

    def _run(self) -> None: ...

    def _run_frozen(self) -> None:
        """Run while the process that it is meant for is paused or dead."""
        ...


class SimHandle(asyncio.TimerHandle):
    """A callback of one process, soon or at a time."""

    __slots__ = ()

    # The base classes' constructors are left out on purpose: this one runs once per event.
    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._scheduled = False
        self._when = 0.0
        self._source_traceback = (
            format_helpers.extract_stack(sys._getframe(2)) if loop._debug else None
        )

    def _run(self) -> None:
        self._context.run(self._callback, *self._args)

    def _run_frozen(self) -> None:
        if not self._loop._dead:
            self._loop._held.append(self)


class KernelTimer:
    """A callback that belongs to no process: the network, the machine, a fault."""

    __slots__ = ("_args", "_callback", "_cancelled", "_loop", "_timeline")

    def __init__(
        self, timeline: Timeline, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._timeline = timeline
        self._loop = timeline.root
        self._callback = callback
        self._args = args
        self._cancelled = False

    def _run(self) -> None:
        self._callback(*self._args)

    def _run_frozen(self) -> None:
        self._run()

    def cancel(self) -> None:
        """Forget it; harmless after it has run."""
        if not self._cancelled:
            self._cancelled = True
            self._timeline.count_cancelled()


class Timeline:
    """Virtual time and the order of all events, shared by the processes of one simulation."""

    def __init__(self, root: SimLoop, shuffle: random.Random | None) -> None:
        self.root = root
        self.now_us = 0
        self.callbacks = 0
        self.ready: deque[Event] = deque()
        self.processes: list[SimLoop] = []
        self._heap: list[tuple[int, int, Event]] = []
        self._sequence = 0
        self._numbers = 0
        self._cancelled = 0
        self._shuffle = shuffle
        self._failure: BaseException | None = None
        self._limit_us: int | None = None

    def next_number(self) -> int:
        """Return 1, 2, 3 …: names for things that would otherwise be told apart by address."""
        self._numbers += 1
        return self._numbers

    def push(self, when_us: int, event: Event) -> None:
        """Run an event at a time; now, if that is past."""
        order = self._sequence = self._sequence + 1
        if self._shuffle is not None:
            order |= self._shuffle.getrandbits(24) << 48
        heapq.heappush(self._heap, (when_us, order, event))

    def call_at_us(
        self, when_us: int, callback: Callable[..., object], *args: object
    ) -> KernelTimer:
        """Run a callback that belongs to no process, hence goes on while processes stand or die."""
        timer = KernelTimer(self, callback, args)
        self.push(when_us, timer)
        return timer

    def count_cancelled(self) -> None:
        """Note that an event on the heap will not run; drop such events when they are the most."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_MIN and self._cancelled * 2 > len(self._heap):
            # In place: the driver holds on to this list.
            self._heap[:] = [entry for entry in self._heap if not entry[2]._cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def fail(self, error: BaseException, where: str) -> None:
        """End the run with an error, the first one if there are several."""
        if self._failure is None:
            error.add_note(f"in the simulation at {self.now_us / 1000:.3f} ms, {where}")
            self._failure = error

    def drive(self, limit_us: int | None) -> None:
        """Run events in order until the root loop is stopped, a failure, or the limit."""
        ready = self.ready
        popleft, append = ready.popleft, ready.append
        heap, heappop = self._heap, heapq.heappop
        root = self.root
        current: SimLoop | None = None
        set_running_loop = asyncio._set_running_loop
        callbacks = self.callbacks
        next_collect = callbacks + COLLECT_CALLBACKS
        next_check = min(next_collect, callbacks + LIVELOCK_CALLBACKS)
        moved_at = callbacks
        event: Event
        try:
            while True:
                try:
                    while ready:
                        event = popleft()
                        if event._cancelled:
                            continue
                        owner = event._loop
                        if owner._frozen:
                            event._run_frozen()
                            continue
                        if owner is not current:
                            set_running_loop(owner)
                            current = owner
                        callbacks += 1
                        if callbacks >= next_check:
                            if callbacks - moved_at >= LIVELOCK_CALLBACKS:
                                raise Livelock(
                                    f"{LIVELOCK_CALLBACKS} callbacks without a step of virtual "
                                    f"time, now {event!r}; let the busy wait sleep"
                                )
                            if callbacks >= next_collect:
                                gc.collect(0 if callbacks & 1 else 1)
                                next_collect = callbacks + COLLECT_CALLBACKS
                            next_check = min(next_collect, moved_at + LIVELOCK_CALLBACKS)
                        event._run()
                except (SystemExit, KeyboardInterrupt, SimulationError):
                    raise
                except BaseException as error:
                    if isinstance(event, SimHandle):
                        event._loop.call_exception_handler(
                            {
                                "message": f"in callback {event!r}",
                                "exception": error,
                                "handle": event,
                            }
                        )
                    else:
                        self.fail(error, f"process {event._loop.name}")
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if ready:
                    continue
                if root._stopping:
                    return
                while heap and heap[0][2]._cancelled:
                    heappop(heap)
                    self._cancelled -= 1
                if not heap:
                    if limit_us is not None:
                        self.now_us = max(self.now_us, limit_us)
                        return
                    raise Deadlock(self._describe_deadlock())
                when_us = heap[0][0]
                if limit_us is not None and when_us > limit_us:
                    self.now_us = max(self.now_us, limit_us)
                    return
                if when_us > self.now_us:
                    self.now_us = when_us
                    moved_at = callbacks
                    next_check = min(next_collect, moved_at + LIVELOCK_CALLBACKS)
                while heap and heap[0][0] <= when_us:
                    append(heappop(heap)[2])
        finally:
            self.callbacks = callbacks

    def _describe_deadlock(self) -> str:
        waiting = [
            f"  {loop.name}{' (paused)' if loop.is_paused else ''}: {describe_task(task)}"
            for loop in self.processes
            for task in loop.tasks()
        ]
        head = f"nothing is scheduled at {self.now_us / 1000:.3f} ms, yet these tasks wait:"
        return "\n".join([head, *waiting])


def describe_task(task: asyncio.Task[Any]) -> str:
    place = ""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{task.get_name()} in {place or task!r}"
