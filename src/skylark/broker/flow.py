"""FlowControl: when sends are refused, and why.

    cause in the answer        code   when
    [REJECTREQUEST]            14     the store takes no more writes: disk full, or a flush failed
    [PCBUSY_CLEAN_QUEUE]       2      the flush that senders wait for takes too long
    [TIMEOUT_CLEAN_QUEUE]      2      the send has waited too long before it was looked at
    [OVERLOAD]                 2      too many sends wait for the disk
    [SLAVE]                    14     it is a replica; its master takes writes
    [NOT_LEADER]               14     another member of its Raft group takes writes
    [REPLACED]                 14     another broker has become master in its place
    shutting down              14     the broker stops; another one may take it

Producers turn to another broker on 14 and report 2 to the application, as RocketMQ has it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock
from ..protocol.codes import ResponseCode
from ..store import MessageStore
from .config import LiveConfig


class FlowControl:
    """Asked once for every batch of sends."""

    def __init__(self, live: LiveConfig, store: MessageStore, clock: Clock) -> None:
        self._live = live
        self._store = store
        self._clock = clock
        self.is_stopping = False
        # In a Raft group: why this member takes no writes, None where it does.
        self.not_leading: Callable[[], str | None] | None = None
        self.replaced_by = 0  # The epoch of another master, proved by a replica that follows it.
        self.waiting = 0  # Sends that wait for the disk.
        self.waiting_for_replicas = 0
        self._waiting_since_ms = 0  # When the oldest of them began, at the latest.
        self.counts: dict[str, int] = {}

    def begin_wait(self, count: int) -> None:
        """Sends begin to wait for the disk."""
        if self.waiting == 0:
            self._waiting_since_ms = self._clock.monotonic_ms()
        self.waiting += count

    def end_wait(self, count: int) -> None:
        """Some of them need not wait any more."""
        self.waiting -= count
        self._waiting_since_ms = self._clock.monotonic_ms()

    def begin_replica_wait(self, count: int) -> None:
        """Sends begin to wait for a replica; that may take long, and the disk is well."""
        self.waiting_for_replicas += count

    def end_replica_wait(self, count: int) -> None:
        """Some of them need not wait any more."""
        self.waiting_for_replicas -= count

    def refusal(self, waited_ms: int = 0) -> tuple[int, str] | None:
        """Why sends are refused now, as code and remark; None if they are not.

        waited_ms is how long they have waited since they were read.
        """
        store = self._store
        if not store.is_writable or self.is_stopping or self.replaced_by:
            return self._unavailable()
        if self.not_leading is not None and self.not_leading() is not None:
            return self._unavailable()
        if self.waiting or self.waiting_for_replicas or waited_ms:
            return self._busy(waited_ms)
        return None

    def _unavailable(self) -> tuple[int, str]:
        store = self._store
        if self.is_stopping:
            return self._count("STOPPING", "the broker is shutting down, send to another one")
        if self.not_leading is not None and (problem := self.not_leading()) is not None:
            return self._count("NOT_LEADER", problem)
        if store.is_replica:
            return self._count("SLAVE", "this broker is a replica, send to its master")
        if self.replaced_by:
            return self._count(
                "REPLACED",
                f"a replica follows the master of epoch {self.replaced_by}; stop this broker, and "
                "start it again with brokerRole=SLAVE",
            )
        if store.failure is not None:
            return self._count(
                "REJECTREQUEST",
                f"the store takes no more writes: {store.failure}; restart the broker once the "
                "disk is well",
            )
        space = store.files.disk_space(store.config.store_path_root_dir)
        return self._count(
            "REJECTREQUEST",
            f"the disk is full: CL: {space.used_ratio:5.2f} CQ: {space.used_ratio:5.2f} INDEX: "
            f"{space.used_ratio:5.2f}, {space.free_bytes} bytes free; make room or lower "
            "fileReservedTime",
        )

    def _busy(self, sends_waited_ms: int) -> tuple[int, str] | None:
        config = self._live.current
        if not config.broker_fast_failure_enable:
            return None
        if sends_waited_ms > config.wait_time_mills_in_send_queue:
            return self._count(
                "TIMEOUT_CLEAN_QUEUE",
                "broker busy, start flow control for a while, period in queue: "
                f"{sends_waited_ms}ms, size of queue: {self.waiting}; send fewer at once, or try "
                "again in a second",
                ResponseCode.SYSTEM_BUSY,
            )
        waited_ms = self._clock.monotonic_ms() - self._waiting_since_ms if self.waiting else 0
        if waited_ms > config.os_page_cache_busy_time_out_mills:
            return self._count(
                "PCBUSY_CLEAN_QUEUE",
                f"broker busy, start flow control for a while: the disk has not flushed for "
                f"{waited_ms} ms, {self.waiting} sends wait for it; try again in a second",
                ResponseCode.SYSTEM_BUSY,
            )
        waiting = self.waiting + self.waiting_for_replicas
        if waiting >= config.waiting_sends_max:
            return self._count(
                "OVERLOAD",
                f"system busy, start flow control for a while: {waiting} sends wait for disk and "
                "replicas (waitingSendsMax); try again in a second",
                ResponseCode.SYSTEM_BUSY,
            )
        return None

    def _count(
        self, cause: str, text: str, code: int = ResponseCode.SERVICE_NOT_AVAILABLE
    ) -> tuple[int, str]:
        self.counts[cause] = self.counts.get(cause, 0) + 1
        return code, f"[{cause}]{text}"
