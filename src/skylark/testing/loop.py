"""SimLoop: an asyncio event loop in virtual time, in which the same seed gives the same run.

Nothing waits: when no callback is ready, the clock jumps to the next timer. There are no sockets,
no threads and no system clock behind it, so an hour of heartbeats takes as long as their code does.

Each simulated process has a SimLoop of its own on one Timeline: `SimLoop()` starts a timeline,
`loop.fork("broker-a")` adds a process. So a process can be paused (its callbacks are held), can die
(its callbacks are dropped) and can have a clock that runs fast or slow, while its code sees an
ordinary asyncio loop.

What makes a run repeat itself, besides the timeline's order:

    sets of tasks  tasks and futures hash by number, not by address (TaskGroup iterates a set)
    finalizers     the cyclic collector runs at fixed counts of callbacks only
    executors      run_in_executor runs the function inline
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from .timeline import (
    OutOfTime,
    RealWorldRefused,
    SimHandle,
    SimulationError,
    Timeline,
    describe_task,
)

T = TypeVar("T")

# How often the tasks of a dead process may refuse their cancellation.
LAST_RITES_ROUNDS = 100
# A timer may fire this much early, in microseconds: less than the error of a float after 100 days.
_TOLERANCE_US = 1e-3


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks iterate alike in every run."""

    __slots__ = ("number",)

    def __init__(self, coro: Any, *, number: int, **kwargs: Any) -> None:
        self.number = number  # Before the base class, which puts the task into a set.
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future that hashes by a number, given when it is first put into a set."""

    __slots__ = ("number",)

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            loop = self.get_loop()
            assert isinstance(loop, SimLoop)
            self.number: int = loop.timeline.next_number()
            return self.number


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process.

    `executor_latency_us` says how long a function handed to run_in_executor takes in virtual time.
    """

    _debug: bool
    _stopping: bool
    _thread_id: int | None

    def __init__(
        self,
        *,
        name: str = "main",
        shuffle: random.Random | None = None,
        executor_latency_us: Callable[[], int] | int = 0,
    ) -> None:
        self._start(name, Timeline(self, shuffle), executor_latency_us)

    def _start(
        self, name: str, timeline: Timeline, executor_latency_us: Callable[[], int] | int
    ) -> None:
        super().__init__()
        self.name = name
        self.timeline = timeline
        self._executor_latency_us = executor_latency_us
        self._frozen = False  # paused or dead: look before running anything
        self._dead = False
        self._held: deque[SimHandle] = deque()
        self._last: deque[SimHandle] = deque()
        self._queue: Callable[[SimHandle], None] = timeline.ready.append
        self._tasks: dict[int, weakref.ref[SimTask]] = {}
        self._tasks_swept = 64
        self._agens: dict[int, SimLoop] = {}
        # local seconds = _anchor_s + (timeline - _anchor_us) * _scale
        self._anchor_us = timeline.now_us
        self._anchor_s = timeline.now_us / 1e6
        self._scale = 1e-6
        self._per_second = 1e6
        timeline.processes.append(self)

    def fork(self, name: str, *, like: SimLoop | None = None) -> SimLoop:
        """Add a process to this timeline; its clock goes on from that of `like`, if given."""
        loop = SimLoop.__new__(SimLoop)
        loop._start(name, self.timeline, self._executor_latency_us)
        loop.set_debug(self.get_debug())
        if like is not None:
            loop._anchor_s = like.time()
            loop._scale, loop._per_second = like._scale, like._per_second
        return loop

    # Time

    def time(self) -> float:
        """Return this process's monotonic seconds."""
        return self._anchor_s + (self.timeline.now_us - self._anchor_us) * self._scale

    @property
    def now_ms(self) -> float:
        """Virtual milliseconds since the timeline began, the same for all processes."""
        return self.timeline.now_us / 1000

    def set_rate(self, rate: float) -> None:
        """Let this process's clock gain or lose from now on: 1.01 is one per cent fast."""
        if not 0.5 <= rate <= 2:
            raise ValueError(f"rate {rate} is not a clock's; give one between 0.5 and 2")
        self._anchor_s, self._anchor_us = self.time(), self.timeline.now_us
        self._scale, self._per_second = rate * 1e-6, 1e6 / rate

    # Scheduling

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, self, context)
        self._queue(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        running = self.timeline.root._thread_id
        if running is not None and running != threading.get_ident():
            raise RealWorldRefused("a simulated process has one thread; use run_in_executor")
        handle = SimHandle(callback, args, self, context)
        self._queue(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, self, context)
        self._schedule(self.time() + delay, handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, self, context)
        self._schedule(when, handle)
        return handle

    def _schedule(self, when: float, handle: SimHandle) -> None:
        handle._when = when
        if self._dead:
            return
        timeline = self.timeline
        exact_us = (when - self._anchor_s) * self._per_second + self._anchor_us
        when_us = -int((_TOLERANCE_US - exact_us) // 1)  # rounded up
        if when_us <= timeline.now_us and when > self.time():
            # A wait that is not over must move time, or "sleep until the deadline" spins for ever.
            when_us = timeline.now_us + 1
        handle._scheduled = True
        timeline.push(when_us, handle)

    def _timer_handle_cancelled(self, handle: SimHandle) -> None:
        if handle._scheduled:
            self.timeline.count_cancelled()

    def create_task(self, coro: Any, **kwargs: Any) -> SimTask:
        number = self.timeline.next_number()
        if kwargs.get("name") is None:
            kwargs["name"] = f"{self.name}#{number}"  # The usual counter outlives a run.
        task = SimTask(coro, number=number, loop=self, **kwargs)
        tasks = self._tasks
        tasks[number] = weakref.ref(task)
        if len(tasks) > self._tasks_swept:
            self._tasks = {n: ref for n, ref in tasks.items() if _worth_keeping(ref())}
            self._tasks_swept = 64 + 2 * len(self._tasks)
        return task

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def tasks(self) -> list[SimTask]:
        """Return the tasks of this process that are not done, oldest first."""
        alive = (ref() for ref in self._tasks.values())
        return [task for task in alive if task is not None and not task.done()]

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function inline, after the executor's latency; the executor itself is not used."""
        future = self.create_future()
        latency = self._executor_latency_us
        latency_us = latency if isinstance(latency, int) else latency()
        if latency_us > 0:
            self.call_later(latency_us / 1e6, _run_into, future, func, args)
        else:
            self.call_soon(_run_into, future, func, args)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no thread to wait for."""

    # Failures

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Make the run fail with what nobody handled."""
        if self._dead or self.is_closed():
            return
        if self._exception_handler_set:
            super().call_exception_handler(context)
            return
        error = context.get("exception") or SimulationError(context.get("message"))
        self.timeline.fail(error, f"process {self.name}: {context.get('message')}")

    @property
    def _exception_handler_set(self) -> bool:
        return self.get_exception_handler() is not None

    def check_tasks(self) -> None:
        """Raise the error of a task that ended with one which nobody looked at."""
        for ref in list(self._tasks.values()):
            task = ref()
            if task is not None and task.done() and task._log_traceback:
                error = task.exception()
                assert error is not None
                error.add_note(f"nobody awaited task {task.get_name()} of process {self.name}")
                raise error

    # Running

    def run_forever(self) -> None:
        """Drive all processes of the timeline until stop(); only its first loop can."""
        if self is not self.timeline.root:
            raise SimulationError(f"process {self.name} is driven by the loop it was forked from")
        self._check_closed()  # type: ignore[attr-defined]
        self._check_running()  # type: ignore[attr-defined]
        old_hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        self._thread_id = threading.get_ident()
        try:
            gc.disable()
            sys.set_asyncgen_hooks(self._agen_started, self._agen_dropped)
            self._set_coroutine_origin_tracking(self._debug)  # type: ignore[attr-defined]
            self.timeline.drive(self.timeline._limit_us)
        finally:
            self._stopping = False
            self._thread_id = None
            asyncio._set_running_loop(None)
            self._set_coroutine_origin_tracking(False)  # type: ignore[attr-defined]
            sys.set_asyncgen_hooks(*old_hooks)
            if collecting:
                gc.enable()

    def run(
        self, main: Coroutine[Any, Any, T] | Generator[Any, None, T], *, until_ms: int | None = None
    ) -> T:
        """Run a coroutine to its end, by the given virtual time at the latest; return its result.

        Raises what the coroutine raises, and whatever any process left unhandled. Other tasks stand
        still afterwards, and go on in the next run.
        """
        if self is not self.timeline.root:
            main.close()
            raise SimulationError(f"process {self.name} is driven by the loop it was forked from")
        self.timeline._limit_us = None if until_ms is None else until_ms * 1000
        task = self.create_task(main)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        try:
            task.add_done_callback(_stop_loop)
            self.run_forever()
            if not task.done():
                raise OutOfTime(f"not done at {until_ms} ms of virtual time: {describe_task(task)}")
            result: T = task.result()
        except BaseException:
            # Other errors come second: the first one says why.
            if task.done() and not task.cancelled():
                task.exception()
            raise
        finally:
            task.remove_done_callback(_stop_loop)
            self.timeline._limit_us = None
        for process in self.timeline.processes:
            process.check_tasks()
        return result

    def run_for(self, duration_ms: int) -> None:
        """Let virtual time pass, with whatever happens in it."""
        self.timeline._limit_us = self.timeline.now_us + duration_ms * 1000
        try:
            self.run_forever()
        finally:
            self.timeline._limit_us = None

    # Life and death of a process

    @property
    def is_paused(self) -> bool:
        """Whether callbacks are held back."""
        return self._frozen and not self._dead

    @property
    def is_dead(self) -> bool:
        """Whether nothing will run here again."""
        return self._dead

    def pause(self) -> None:
        """Hold all callbacks of this process, as SIGSTOP does; time goes on around it."""
        if self is self.timeline.root:
            raise SimulationError("the loop that drives the simulation cannot be paused")
        self._frozen = True

    def resume(self) -> None:
        """Let the held callbacks run, in the order in which they came due."""
        if self._dead or not self._frozen:
            return
        self._frozen = False
        self.timeline.ready.extend(self._held)
        self._held.clear()

    def kill(self) -> None:
        """End this process where it stands.

        Its timers never fire and nobody hears its errors. Its tasks are cancelled, without time
        passing for them, only so that Python's own bookkeeping ends well: whoever calls this has
        cut their files and connections off before.
        """
        if self._dead:
            return
        timeline = self.timeline
        self._dead = self._frozen = True
        self._last.extend(self._held)
        self._held.clear()
        for _ in range(len(timeline.ready)):
            event = timeline.ready.popleft()
            if event._loop is self and isinstance(event, SimHandle):
                self._last.append(event)
            else:
                timeline.ready.append(event)
        self._queue = self._last.append
        if timeline.root._thread_id is None:
            self._last_rites()
        else:
            timeline.call_at_us(timeline.now_us, self._last_rites)

    def _last_rites(self) -> None:
        if self.is_closed():
            return
        last = self._last
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(LAST_RITES_ROUNDS):
                tasks = self.tasks()
                if not tasks and not last:
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(len(last)):
                    handle = last.popleft()
                    if not handle._cancelled:
                        # The dead do not complain.
                        with contextlib.suppress(Exception, asyncio.CancelledError):
                            handle._run()
            else:
                left = ", ".join(describe_task(task) for task in self.tasks())
                raise SimulationError(
                    f"killed process {self.name} has tasks that refuse cancellation: {left}"
                )
            for ref in self._tasks.values():
                dead = ref()
                if dead is not None and not dead.cancelled():
                    dead.exception()  # looked at, hence not reported later
            self._tasks.clear()
        finally:
            asyncio._set_running_loop(before)
            self.timeline.processes.remove(self)
            super().close()

    def close(self) -> None:
        """End this process; of the loop that drives the simulation, all processes."""
        if self.is_closed():
            return
        if self.is_running():
            raise RuntimeError("the loop is running; close it after run()")
        if self is self.timeline.root:
            with contextlib.ExitStack() as all_of_them:  # whatever one of them raises
                for process in reversed(self.timeline.processes):
                    all_of_them.callback(process._last_rites)
                    all_of_them.callback(process.kill)
            self.timeline.ready.clear()
            self.timeline._heap.clear()
        else:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Asynchronous generators that were left before their end

    def _agen_started(self, agen: Any) -> None:
        loop = asyncio._get_running_loop()
        assert isinstance(loop, SimLoop)
        self._agens[id(agen)] = loop

    def _agen_dropped(self, agen: Any) -> None:
        loop = self._agens.pop(id(agen), self)
        if not loop.is_closed():
            loop.call_soon(loop.create_task, agen.aclose())

    # The real world

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RealWorldRefused(
            "simulated code reached for the operating system through its event loop; "
            "hand it a SimNetwork host, a SimClock or SimFiles instead"
        )

    async def _refuse_waiting(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse()


def _stop_loop(task: asyncio.Task[Any]) -> None:
    task.get_loop().stop()


def _worth_keeping(task: SimTask | None) -> bool:
    return task is not None and (not task.done() or task._log_traceback)


def _run_into(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except StopIteration as error:
        # A future cannot carry it; the real executor hangs here.
        future.set_exception(RuntimeError(f"{func!r} raised {error!r}"))
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_REFUSED = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "remove_reader",
    "remove_signal_handler",
    "remove_writer",
    "set_default_executor",
)
_REFUSED_WAITING = (
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)
for _name in _REFUSED:
    setattr(SimLoop, _name, SimLoop._refuse)
for _name in _REFUSED_WAITING:
    setattr(SimLoop, _name, SimLoop._refuse_waiting)
