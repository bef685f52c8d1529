"""SimCluster: machines with a process each, on one virtual timeline, from one seed.

    async def name_server(node: SimNode) -> None:
        async with NameServer(config, clock=node.clock, network=node.network, rng=node.rng):
            await asyncio.Event().wait()

    with SimCluster(seed=7) as cluster:
        node = cluster.add_node("ns-a")
        node.start(name_server)
        cluster.run(scenario(cluster), until_ms=3_600_000)

The scenario runs in a process of its own that no fault touches. It looks at the nodes from outside,
injects faults and judges. How a process can end:

    stop()              its main coroutine is cancelled and may clean up; connections close in order
    crash(reset=True)   kill -9: peers see resets; what it wrote to files is still there
    crash()             power cut: peers see nothing; of what was not synced, chance keeps some
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from .clock import SimClock
from .loop import SimLoop
from .network import SimHost, SimNetwork
from .timeline import SimulationError
from .trace import Trace
from .transport import LinkConfig

if TYPE_CHECKING:
    from .files import SimFiles

T = TypeVar("T")

# A point of buggify is on in one run of four, and then fires one time in four.
_POINT_ON = _POINT_FIRES = 0.25


class ProcessDied(SimulationError):
    """The node ended before it could answer."""


class SimCluster:
    """A seed, and everything that follows from it."""

    def __init__(
        self,
        seed: int,
        *,
        link: LinkConfig | None = None,
        shuffle: bool = True,
        buggify: bool = False,
        executor_latency_us: Callable[[], int] | int = 0,
        trace: Trace | None = None,
        debug: bool = False,
    ) -> None:
        """Make a cluster without nodes.

        `debug` is asyncio's debug mode, off even where the environment asks for it: it makes a
        run thirty times slower, and a failing seed can be run again with it.
        """
        self.seed = seed
        self.loop = SimLoop(
            name="scenario",
            shuffle=self.rng("order") if shuffle else None,
            executor_latency_us=executor_latency_us,
        )
        self.loop.set_debug(debug)
        self.clock = SimClock(self.loop)
        self.trace = Trace() if trace is None else trace
        self.network = SimNetwork(self.loop, self.rng("network"), config=link, trace=self.trace)
        self.nodes: dict[str, SimNode] = {}
        # Name of the point -> how often it was asked and how often it fired.
        self.buggify_counts: dict[str, list[int]] = {}
        self._buggify = buggify
        self._points: dict[str, random.Random | None] = {}

    def rng(self, name: str) -> random.Random:
        """Return random numbers for one purpose, which no other purpose can shift."""
        return random.Random(f"{self.seed}/{name}")

    def add_node(
        self,
        name: str,
        main: NodeMain | None = None,
        *,
        address: str | None = None,
        files: SimFiles | None = None,
        drift: float = 0.0,
        offset_ms: int = 0,
    ) -> SimNode:
        """Add a machine; its process runs after start()."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        number = len(self.nodes)
        address = address or f"10.0.{number // 250}.{number % 250 + 1}"
        node = SimNode(self, name, address, main, files, drift=drift, offset_ms=offset_ms)
        self.nodes[name] = node
        return node

    def run(self, scenario: Coroutine[Any, Any, T], *, until_ms: int | None = None) -> T:
        """Run a scenario to its end; raises what it raises, or what any node left unhandled."""
        try:
            return self.loop.run(scenario, until_ms=until_ms)
        except BaseException as error:
            error.add_note(f"seed {self.seed}, {len(self.trace)} events in the trace")
            raise

    def note(self, event: str, *details: object) -> None:
        """Record something in the trace in the scenario's name."""
        self.trace.add(self.loop.timeline.now_us, "scenario", event, *details)

    def buggify(self, name: str) -> bool:
        """Say whether to do the unusual thing at a named point of the code; never, unless asked to.

        Product code gets this as a plain `Callable[[str], bool]`, with a default that says no.
        """
        if not self._buggify:
            return False
        if name not in self._points:
            rng = self.rng(f"buggify/{name}")
            self._points[name] = rng if rng.random() < _POINT_ON else None
            self.buggify_counts[name] = [0, 0]
        point = self._points[name]
        fires = point is not None and point.random() < _POINT_FIRES
        counts = self.buggify_counts[name]
        counts[0] += 1
        counts[1] += fires
        return fires

    def close(self) -> None:
        """End all processes."""
        for node in self.nodes.values():
            node.host.crash()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SimNode:
    """One machine: address, clock, randomness, disk, and at most one process."""

    def __init__(
        self,
        cluster: SimCluster,
        name: str,
        address: str,
        main: NodeMain | None,
        files: SimFiles | None,
        *,
        drift: float,
        offset_ms: int,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.address = address
        self.host: SimHost = cluster.network.host(address, name)
        if self.host.name != name:
            raise ValueError(f"address {address} belongs to {self.host.name!r} already")
        self.loop: SimLoop = cluster.loop.fork(name)
        self.clock = SimClock(self.loop, offset_ms=offset_ms, drift=drift)
        self.rng = cluster.rng(f"node/{name}")
        self.starts = 0
        self.error: BaseException | None = None  # what ended the last process, if something did
        self._files = files
        self._lost_files = files  # those of the last process that died
        self._disk_rng = cluster.rng(f"disk/{name}")
        self._main = main
        self._may_fail = False
        self._process: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "down"
        return f"<SimNode {self.name} {self.address} {state}>"

    @property
    def network(self) -> SimHost:
        """This machine's door to the network."""
        return self.host

    @property
    def files(self) -> SimFiles | None:
        """The disk. A process that died sees the one it had, which nobody else sees any more."""
        return self._lost_files if _speaker_is_dead() else self._files

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None

    @property
    def is_paused(self) -> bool:
        """Whether its process stands still."""
        return self.is_running and self.loop.is_paused

    @property
    def buggify(self) -> Callable[[str], bool]:
        """The cluster's buggify, to hand to product code."""
        return self.cluster.buggify

    def note(self, event: str, *details: object) -> None:
        """Record something in the trace; what a dead process says is not heard."""
        if not _speaker_is_dead():
            self.cluster.trace.add(self.cluster.loop.timeline.now_us, self.name, event, *details)

    def start(self, main: NodeMain | None = None, *, may_fail: bool = False) -> None:
        """Start a process with a main coroutine, by default the one it had before.

        An error out of main fails the run, unless it may fail; then it is kept in `error`.
        """
        if self.is_running:
            raise SimulationError(f"node {self.name} is running; stop or crash it first")
        if main is not None:
            self._main, self._may_fail = main, may_fail
        if self._main is None:
            raise SimulationError(f"node {self.name} has no main; give one to start()")
        if self.starts:
            self.loop = self.cluster.loop.fork(self.name, like=self.loop)
            self.clock.attach(self.loop)
        self.starts += 1
        self.error = None
        self.host.start()
        self.note("start", self.starts)
        self._process = self.loop.create_task(self._live(self._main), name=f"{self.name} main")

    async def stop(self) -> None:
        """Ask the process to end, by cancelling its main coroutine, and wait until it has."""
        if self._process is not None:
            self.note("stop")
            self._process.cancel()
            await self.wait_ended()

    async def wait_ended(self) -> None:
        """Wait until there is no process, however it ends."""
        if self._process is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def crash(self, *, reset: bool = False) -> None:
        """Cut the power, or, with reset, kill only the process."""
        if self._process is None:
            return
        self.note("kill" if reset else "crash")
        loop = self.loop
        # The world first: nothing that cleans up inside can reach it any more.
        if reset:
            self.host.crash_process()
        else:
            self.host.crash()
        self._keep_files(power_cut=not reset)
        loop.kill()
        self._ended()

    async def restart(self) -> None:
        """Stop if running, and start again."""
        await self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process in its tracks, as SIGSTOP does; its machine goes on."""
        if self._process is not None and not self.is_paused:
            self.note("pause")
            self.loop.pause()

    def resume(self) -> None:
        """Let a paused process go on."""
        if self.is_paused:
            self.note("resume")
            self.loop.resume()

    async def call(self, function: Callable[[SimNode], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function inside the process and bring its result out here.

        Raises ProcessDied if the process ends first.
        """
        if self._process is None:
            raise ProcessDied(f"node {self.name} is down")
        caller = asyncio.get_running_loop()
        answer: asyncio.Future[T] = caller.create_future()
        task: asyncio.Task[T] = self.loop.create_task(function(self))

        def bring_out(done: asyncio.Task[T]) -> None:
            error: BaseException | None
            if done.cancelled():
                error = ProcessDied(f"node {self.name} ended before it answered")
            else:
                error = done.exception()
            caller.call_soon(_settle, answer, error, None if error else done.result())

        task.add_done_callback(bring_out)
        return await answer

    async def _live(self, main: NodeMain) -> None:
        """The process: main, and then an end as that of asyncio.run."""
        loop = self.loop
        try:
            await main(self)
        except asyncio.CancelledError:
            if loop.is_dead:
                raise
        except Exception as error:
            if loop.is_dead:
                return
            self.error = error
            if not self._may_fail:
                loop.call_exception_handler(
                    {"message": f"main of node {self.name} failed", "exception": error}
                )
        others = [task for task in loop.tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if loop.is_dead:
            return  # Somebody swallowed the cancellation; the world is not ours any more.
        for task in others:
            if not task.cancelled() and (left := task.exception()) is not None:
                loop.call_exception_handler(
                    {"message": f"task {task.get_name()} failed at the end", "exception": left}
                )
        self.note("exit")
        self.host.exit_process()
        self._keep_files(power_cut=False)
        loop.kill()
        self._ended()

    def _keep_files(self, *, power_cut: bool) -> None:
        files = self._lost_files = self._files
        if files is not None:
            self._files = files.crash(self._disk_rng) if power_cut else files.kill()

    def _ended(self) -> None:
        self._process = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.get_loop().call_soon(_settle, waiter, None, None)


NodeMain: TypeAlias = Callable[[SimNode], Coroutine[Any, Any, object]]


def _speaker_is_dead() -> bool:
    running = asyncio._get_running_loop()
    return isinstance(running, SimLoop) and running.is_dead


def _settle(future: asyncio.Future[Any], error: BaseException | None, result: object) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
