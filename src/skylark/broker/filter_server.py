"""FilterServer: predicates in Python that operators upload and consumers name.

    upload      REGISTER_MESSAGE_FILTER_CLASS: className, version, the source as the body; signed
                with the keys that filterServerAccessKey and filterServerSecretKey name. The version
                must be the next one, so that an old upload cannot be played again. The source is
                tried in a worker first; what does not load is not kept.
    subscribe   type PYTHON, expression `name` or `name@version`
    pull        a batch is read from the store, a worker says which messages pass, and those go out

filterServerNums workers are there from the start. Each holds one predicate; another one that is
needed takes the place of the one that was idle longest. The broker's loop never waits for a worker:
pulls of a predicate are answered when it has answered, or with an error at its deadline.

A predicate that fails is left alone for a second, one that had to be stopped for five, and twice as
long each time after: until then its pulls are refused at once, with what went wrong. So a hostile
one costs a worker one deadline now and then.

RocketMQ's filter servers ran any uploaded class beside the broker with its rights, and were removed
for that. docs/adr/0020-predicates-that-can-only-compute.md says what is and is not kept out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..clock import Clock
from ..errors import BrokerError, InvalidName
from ..model.names import check_group_name
from ..protocol import acl
from ..protocol.bodies import PredicateTableBody, PredicateVersion
from ..protocol.codes import ResponseCode
from ..protocol.exchange import AnyRequest, Peer, Response
from ..sandbox import Candidate, PredicateFailed, Worker, Workers, encode_batch
from ..store import MessageFilter
from .config import LiveConfig
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

PYTHON: Final = "PYTHON"
SOURCE_BYTES_MAX: Final = 64 << 10
PREDICATES_MAX: Final = 100
VERSIONS_KEPT: Final = 16
BATCH_MAX: Final = 64  # Messages that one pull asks a worker about.
QUESTIONS_MAX: Final = 1_000
WAIT_MS: Final = 5_000  # For a worker that has time.
_REST_MS: Final = 1_000
_REST_AFTER_STOP_MS: Final = 5_000
_REST_MAX_MS: Final = 600_000

Done = Callable[[bytes | PredicateFailed], None]


@dataclass(frozen=True, slots=True)
class PredicateFilter(MessageFilter):
    """Stands for a predicate where a pull's filter is asked for; a worker decides afterwards."""

    predicate: PredicateVersion | None = None


@dataclass(slots=True)
class _Slot:
    worker: Worker | None = None
    holds: tuple[str, int] | None = None
    is_busy: bool = False
    used_at_ms: int = 0


@dataclass(slots=True)
class _Rest:
    until_ms: int
    length_ms: int
    problem: str


class FilterServer:
    """The predicates, and the workers that run them."""

    def __init__(
        self,
        live: LiveConfig,
        path: str,
        files: SmallFiles,
        clock: Clock,
        workers: Workers | None,
    ) -> None:
        self._live = live
        self._clock = clock
        self._workers = workers
        self._saved = SavedTable(path, files, PredicateTableBody)
        self._predicates: dict[str, dict[int, PredicateVersion]] = {}
        self._rests: dict[tuple[str, int], _Rest] = {}
        self._slots: list[_Slot] = []
        self._freed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = 0
        self.stopped_total = 0

    # Life.

    def load(self) -> None:
        """Read filterPredicates.json."""
        body = self._saved.load()
        for one in () if body is None else body.predicates:
            self._predicates.setdefault(one.name, {})[one.version] = one

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the workers; they end with the block."""
        count = self._live.current.filter_server_nums
        self._slots = [_Slot() for _ in range(count if self._workers is not None else 0)]
        async with asyncio.TaskGroup() as self._group:
            for slot in self._slots:
                self._spawn(self._prepare(slot))
            try:
                yield
            finally:
                # A stop does not wait for predicates; their pulls are gone with the connections.
                for task in self._tasks:
                    task.cancel()
        self._group = None
        for slot in self._slots:
            if slot.worker is not None:
                await slot.worker.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None
        task = self._group.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self, slot: _Slot) -> None:
        """Have a worker ready before it is needed; a failure shows when it is."""
        slot.is_busy = True
        try:
            assert self._workers is not None
            slot.worker = await self._workers.start()
            logger.info("a filter server is ready, held by %s", ", ".join(slot.worker.layers))
        except PredicateFailed as error:
            logger.warning("a filter server did not start: %s", error)
        finally:
            self._free(slot)

    # Names.

    def require(self, expression: str) -> PredicateVersion:
        """The predicate that a subscription names; raises BrokerError."""
        if not self._slots:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by PYTHON; "
                "set filterServerNums=1 or more",
            )
        name, _, number = expression.strip().partition("@")
        versions = self._predicates.get(name)
        if versions is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"there is no predicate {name[:64]!r}; upload it first",
            )
        version = max(versions) if not number else int(number) if number.isdecimal() else -1
        found = versions.get(version)
        if found is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"predicate {name[:64]} has no version {number[:20]!r}; it has "
                f"{', '.join(map(str, versions))}",
            )
        return found

    def of_pull(self, expression: str) -> PredicateFilter:
        """The filter of a pull; raises BrokerError, also while a predicate that failed rests."""
        found = self.require(expression)
        rest = self._rests.get((found.name, found.version))
        if rest is not None and self._clock.monotonic_ms() < rest.until_ms:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, rest.problem)
        return PredicateFilter(entries_max=BATCH_MAX, predicate=found)

    # Upload.

    async def upload(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve REGISTER_MESSAGE_FILTER_CLASS."""
        config = self._live.current
        if not self._slots:
            return Response(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "no predicates are taken here; set filterServerNums=1 or more",
            )
        if not config.filter_server_access_key or not config.filter_server_secret_key:
            return Response(
                ResponseCode.NO_PERMISSION,
                "nobody may upload predicates: set filterServerAccessKey and filterServerSecretKey",
            )
        fields, body = request.fields, bytes(request.body)
        is_known = fields.get(acl.ACCESS_KEY) == config.filter_server_access_key
        is_signed = acl.is_signature_valid(fields, body, secret_key=config.filter_server_secret_key)
        if not (is_known and is_signed):
            logger.warning("peer=%s upload of a predicate refused: wrong signature", peer.address)
            return Response(ResponseCode.NO_PERMISSION, "the signature of the upload is wrong")
        problem, name, version = self._problem(fields, body)
        if problem is not None:
            return Response(ResponseCode.SYSTEM_ERROR, problem)
        try:
            source = body.decode()
            await self._ask(PredicateVersion(name=name, version=version, source=source), ())
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, "the source is not UTF-8")
        except PredicateFailed as error:
            return Response(ResponseCode.SYSTEM_ERROR, f"predicate {name} is not taken: {error}")
        problem, _, _ = self._problem(fields, body)  # Another may have come first meanwhile.
        if problem is not None:
            return Response(ResponseCode.SYSTEM_ERROR, problem)
        self._add(PredicateVersion(
            name=name, version=version, source=source, uploaded_ms=self._clock.now_ms()
        ))  # fmt: skip
        logger.info("peer=%s uploaded predicate %s@%d", peer.address, name, version)
        return Response(remark=f"{name}@{version}")

    def _problem(self, fields: dict[str, str], body: bytes) -> tuple[str | None, str, int]:
        name, number = fields.get("className", ""), fields.get("version", "")
        try:
            check_group_name(name)
        except InvalidName as error:
            return f"the predicate's {error}", name, 0
        if not body or len(body) > SOURCE_BYTES_MAX:
            return f"a source has 1 to {SOURCE_BYTES_MAX} bytes, not {len(body)}", name, 0
        versions = self._predicates.get(name, {})
        following = max(versions, default=0) + 1
        if number != str(following):
            return f"version {number[:20]!r} of {name}: the next one is {following}", name, 0
        if not versions and len(self._predicates) >= PREDICATES_MAX:
            return f"there are {PREDICATES_MAX} predicates already", name, 0
        return None, name, following

    def _add(self, one: PredicateVersion) -> None:
        versions = dict(self._predicates.get(one.name, {}))
        versions[one.version] = one
        for old in sorted(versions)[:-VERSIONS_KEPT]:
            del versions[old]
        table = {**self._predicates, one.name: versions}
        kept = tuple(item for group in table.values() for item in group.values())
        self._saved.save(PredicateTableBody(kept))
        self._predicates = table

    # Questions.

    def judge(
        self, predicate: PredicateVersion, candidates: Sequence[Candidate], done: Done
    ) -> None:
        """Ask a worker about messages; done is called with its verdicts, or why there are none."""
        if self._group is None or self._questions >= QUESTIONS_MAX:
            done(PredicateFailed("the filter servers are busy; try again in a second"))
            return
        self._questions += 1
        self._spawn(self._judge(predicate, candidates, done))

    async def _judge(
        self, predicate: PredicateVersion, candidates: Sequence[Candidate], done: Done
    ) -> None:
        key = (predicate.name, predicate.version)
        try:
            verdicts = await self._ask(predicate, candidates)
        except PredicateFailed as error:
            done(self._failed(key, error))
        else:
            self._rests.pop(key, None)
            done(verdicts)
        finally:
            self._questions -= 1

    def _failed(self, key: tuple[str, int], error: PredicateFailed) -> PredicateFailed:
        least_ms = _REST_AFTER_STOP_MS if error.was_stopped else _REST_MS
        known = self._rests.get(key)
        length_ms = least_ms if known is None else min(_REST_MAX_MS, 2 * known.length_ms)
        problem = (
            f"predicate {key[0]}@{key[1]} failed: {error}; it rests for {length_ms // 1000} s, "
            "upload a better version"
        )
        self.stopped_total += error.was_stopped
        logger.warning("%s", problem)
        self._rests[key] = _Rest(self._clock.monotonic_ms() + length_ms, length_ms, problem)
        return PredicateFailed(problem, was_stopped=error.was_stopped)

    async def _ask(self, predicate: PredicateVersion, candidates: Sequence[Candidate]) -> bytes:
        """Load a predicate where it is not, and ask about messages, if there are any."""
        key = (predicate.name, predicate.version)
        slot = await self._taken(key)
        try:
            if slot.holds != key or slot.worker is None or not slot.worker.is_alive:
                await self._load(slot, predicate)
            assert slot.worker is not None
            if not candidates:
                return b""
            return await slot.worker.judge(encode_batch(candidates), len(candidates))
        except BaseException:
            # Whatever state its code is in, the next batch gets a fresh process.
            worker, slot.worker, slot.holds = slot.worker, None, None
            if worker is not None:
                await worker.close()
            raise
        finally:
            self._free(slot)

    async def _load(self, slot: _Slot, predicate: PredicateVersion) -> None:
        assert self._workers is not None
        if slot.holds is not None or slot.worker is None or not slot.worker.is_alive:
            worker, slot.worker, slot.holds = slot.worker, None, None
            if worker is not None:
                await worker.close()
            slot.worker = await self._workers.start()
        await slot.worker.load(predicate.source)
        # A name that is tried before it is kept must not be taken for the kept one.
        is_kept = self._predicates.get(predicate.name, {}).get(predicate.version) is predicate
        slot.holds = (predicate.name, predicate.version) if is_kept else ("", 0)

    async def _taken(self, key: tuple[str, int]) -> _Slot:
        deadline_ms = self._clock.monotonic_ms() + WAIT_MS
        while True:
            idle = [slot for slot in self._slots if not slot.is_busy]
            if idle:
                slot = min(
                    idle, key=lambda one: (one.holds != key, one.holds is not None, one.used_at_ms)
                )
                slot.is_busy = True
                return slot
            self._freed.clear()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(0, left_ms) / 1000):
                    await self._freed.wait()
            except TimeoutError:
                raise PredicateFailed("the filter servers are busy; try again") from None

    def _free(self, slot: _Slot) -> None:
        slot.is_busy = False
        slot.used_at_ms = self._clock.monotonic_ms()
        self._freed.set()
