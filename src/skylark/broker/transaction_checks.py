"""TransactionChecks: asks producers about half messages that nobody has ended.

Before each check a half is written again with its new count, and the question is about that copy:
so the count survives, and what is old does not hold up what is over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ..clock import Clock
from ..errors import BrokerError, ConnectionLost, LocalProtocolError, StoreError
from ..model.message import Property, StoredMessage
from ..model.topic import TRANS_CHECK_MAX_TIME_TOPIC
from ..protocol.codes import RequestCode
from ..protocol.command import Command
from ..protocol.headers import CheckTransactionStateRequest
from ..store import MessageStore
from . import half_messages
from .clients import Clients
from .config import LiveConfig
from .durability import FlushWaiter, is_safe
from .half_messages import Ending, Half, Target
from .identity import Identity
from .pending_halves import PendingHalves

if TYPE_CHECKING:
    from .transactions import TransactionService

logger = logging.getLogger(__name__)

IDLE_MS: Final = 3_600_000
_BATCH_MAX: Final = 64
_RETRY_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
_OPS_MAX: Final = 16_384  # So many ops behind a half that nobody can be asked about move it on.


class Check(NamedTuple):
    """A question to be asked once the half is safe where the question says it is."""

    half: StoredMessage
    place: Target
    queue_offset: int
    physical_offset: int
    end: int = 0  # The log must be on the disk up to here.


class TransactionChecks:
    """Looks at half messages whose time is up."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        service: TransactionService,
        *,
        halves: PendingHalves,
        clients: Clients,
        store: MessageStore,
        flusher: FlushWaiter,
        clock: Clock,
    ) -> None:
        self._live = live
        self._identity = identity
        self._service = service
        self._halves = halves
        self._clients = clients
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._turns: dict[str, int] = {}  # Group → how often one of it was asked.
        self.asked_total = 0

    async def run_due(self) -> int:
        """Ask about a batch of what is due; return for how long nothing more will be."""
        if self._store.is_replica:
            return IDLE_MS
        now_ms = self._clock.monotonic_ms()
        checks = []
        for queue_offset in self._halves.take_due(now_ms, _BATCH_MAX):
            try:
                check = self._look_at(self._halves[queue_offset], now_ms)
            except (StoreError, BrokerError) as error:
                # One that fails must not hold up the others.
                logger.warning("half=%d looked at again later: %s", queue_offset, error)
                self._halves.look_later(queue_offset, now_ms + max(_RETRY_MS, self._interval_ms))
                continue
            if check is not None:
                checks.append(check)
        if checks and not await self._are_safe(checks):
            return IDLE_MS
        for check in checks:
            self._ask(check)
        due_ms = self._halves.next_due_ms()
        if due_ms is None:
            return IDLE_MS
        return max(0, min(IDLE_MS, due_ms - self._clock.monotonic_ms()))

    async def _are_safe(self, checks: list[Check]) -> bool:
        end = max(check.end for check in checks)
        if not self._store.config.is_sync_flush or is_safe(self._store, end):
            return True
        try:
            return await self._flusher.flushed(end)
        except StoreError as error:
            logger.error("checks are not made, the store has failed: %s", error)
            return False

    @property
    def _interval_ms(self) -> int:
        return self._live.current.transaction_check_interval

    def _look_at(self, half: Half, now_ms: int) -> Check | None:
        """Decide what becomes of a half whose time is up."""
        stored = self._service.stored(half)
        if stored is None:
            # What cannot be read must not hold up what can.
            self._service.pass_over(half)
            return None
        times = half_messages.check_times(stored.properties)
        place = half_messages.real_place(stored.properties)
        if place is None or self._is_enough(stored, times):
            logger.warning(
                "group=%s half=%d id=%s given up after %d checks, now in %s",
                half.id.group, half.queue_offset, half.id.key, times, TRANS_CHECK_MAX_TIME_TOPIC,
            )  # fmt: skip
            self._service.finish(half, stored, Ending.GIVEN_UP)
            return None
        if not any(not one.peer.is_closed for one in self._clients.producers_of(half.id.group)):
            self._not_heard(half, stored, times, now_ms)
            return None
        copy = half_messages.copy_message(stored, times + 1)
        if copy is None:  # There is no room to count, so it is asked about for as long as it lasts.
            self._halves.look_later(half.queue_offset, now_ms + self._interval_ms)
            return Check(stored, place, half.queue_offset, half.physical_offset)
        results = self._service.replace(half, copy)
        first, last = results[0], results[-1]
        return Check(stored, place, first.queue_offset, first.physical_offset, last.end)

    def _is_enough(self, stored: StoredMessage, times: int) -> bool:
        if times >= self._live.current.transaction_check_max:
            return True
        age_ms = self._clock.now_ms() - half_messages.since_ms(stored)
        return age_ms > self._store.config.file_reserved_time * _HOUR_MS

    def _not_heard(self, half: Half, stored: StoredMessage, times: int, now_ms: int) -> None:
        """Nobody is there: it does not count, and is made up for when somebody comes."""
        if self._service.op_count >= _OPS_MAX:
            copy = half_messages.copy_message(stored, times)
            if copy is not None:
                self._service.replace(half, copy)
                return
        self._halves.note_unheard(half)
        self._halves.look_later(half.queue_offset, now_ms + self._interval_ms)

    def _ask(self, check: Check) -> None:
        """Send a question to one producer of the group, each in turn."""
        command = self._question(check)
        if command is None:
            return
        group = check.half.properties.get(Property.PGROUP, "")
        members = self._clients.producers_of(group)
        turn = self._turns[group] = self._turns.get(group, -1) + 1
        for step in range(len(members)):
            peer = members[(turn + step) % len(members)].peer
            if peer.is_closed:
                continue
            try:
                peer.notify(command)
            except ConnectionLost as error:
                logger.info("peer=%s not asked about a half message: %s", peer.address, error)
                continue
            self.asked_total += 1
            return
        logger.info("group=%s half=%d nobody is there to ask", group, check.queue_offset)

    def _question(self, check: Check) -> Command | None:
        key = check.half.properties.get(Property.UNIQ_KEY)
        header = CheckTransactionStateRequest(
            tran_state_table_offset=check.queue_offset,
            commit_log_offset=check.physical_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=f"{self._identity.id_prefix}{check.physical_offset:016X}",
            broker_name=self._identity.name,
        )
        try:
            body = half_messages.check_body(
                check.half, check.place, half=(check.queue_offset, check.physical_offset)
            )
        except LocalProtocolError as error:
            logger.error("half=%d cannot be asked about: %s", check.queue_offset, error)
            return None
        return Command.request(
            RequestCode.CHECK_TRANSACTION_STATE, header.to_fields(), body, oneway=True
        )
