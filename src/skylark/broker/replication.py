"""Replication: a broker's copies of its log, or its own copy of another's.

    role             does
    either master    listens for replicas and ships its log; answers wait for them in SYNC_MASTER
    SLAVE            finds its master, makes sure that both logs are one, follows; listens as well,
                     so that a master that lost its disk can get its log back

Before a replica follows, it compares (replication/agreement.py). Where its log goes beyond the
common part it gives up the rest, durably, and keeps the bytes in a file:

    <store>/diverged/<offset in twenty digits>-<bytes>

More than haTruncateBytesMax is not given up without an operator, nor is a log that has nothing in
common with the master's.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Final

from ..clock import Clock
from ..errors import (
    BrokerError,
    InvalidBody,
    RemoteProtocolError,
    SkylarkError,
    StoreClosed,
    StoreError,
    TransportError,
)
from ..protocol.headers import RegisterBrokerResponse
from ..remote import RemoteBroker
from ..replication import EpochTable, LogsDiffer, Master, Quorum, Replica, find_agreement
from ..replication.links import MasterLine, MasterPort, Network, Secret
from ..store import Files, MessageStore
from ..store.flusher import Flusher
from .config import HA_PORT_STEP, BrokerConfig, LiveConfig

logger = logging.getLogger(__name__)

RETRY_MS: Final = 500
RETRY_MS_MAX: Final = 2_000
ASK_AGAIN_MS: Final = 5_000
CALL_TIMEOUT_MS: Final = 3_000
KEY_FIGURE: Final = "haHasClusterKey"

# What may end one try to follow; the next one may go better.
FOLLOW_ERRORS: Final = (
    TransportError,
    RemoteProtocolError,
    BrokerError,
    InvalidBody,
    LogsDiffer,
    StoreError,
)


class Replication:
    """The replication side of a broker, whatever its role."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        flusher: Flusher,
        files: Files,
        clock: Clock,
        network: Network,
        *,
        remote: Callable[[str], RemoteBroker],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        config = live.current
        self._live = live
        self._store = store
        self._flusher = flusher
        self._files = files
        self._clock = clock
        self._network = network
        self._remote = remote
        self.is_replica = config.is_replica
        self.epochs = EpochTable(
            os.path.join(store.config.store_path_root_dir, "config", "epochs.json"), files
        )
        self.secret = make_secret(config, self.epochs, random_bytes)
        if self.secret is not None:
            self.epochs.load()
            if not self.is_replica and not config.is_raft:
                mark = int.from_bytes(random_bytes(8), "big")
                epoch = self.epochs.begin(mark, store.log.appended)
                logger.info("epoch=%d begins at %d", epoch.number, epoch.start)
        self.master = Master(
            store.log,
            lambda: store.visible_end,
            file_bytes=store.config.mapped_file_size_commit_log,
            batch_bytes=config.ha_transfer_batch_size,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            silence_ms=config.ha_housekeeping_interval,
        )
        self.quorum = Quorum(self.master, fall_behind_max=config.ha_slave_fallbehind_max)
        self.replica = Replica(store)
        self._port: MasterPort | None = None
        self._line: MasterLine | None = None
        self._ha_address = config.ha_master_address
        self._master_address = _beside(config.ha_master_address)
        self.problem = ""  # What keeps a replica from following, for operators.
        # Asks the name servers again where the master is.
        self.ask_again: Callable[[], None] = lambda: None
        self.on_truncated: Callable[[], None] = lambda: None
        self.on_replaced: Callable[[int], None] = lambda epoch: None

    # As a master.

    @property
    def sync_quorum(self) -> Quorum | None:
        """What answers wait for; None unless the role is SYNC_MASTER."""
        return self.quorum if self._live.current.broker_role == "SYNC_MASTER" else None

    @property
    def port(self) -> int:
        """Where replicas connect."""
        assert self._port is not None, "replication does not listen"
        return self._port.address[1]

    @contextlib.asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        """Accept replicas, and ship to them what becomes visible."""
        self._port = MasterPort(
            self.master,
            self.quorum,
            self._network,
            self._clock,
            host=self._live.current.listen_host,
            port=port,
            secret=self.secret,
            log_extent=lambda: (self._store.log.start, self._store.visible_end),
        )
        self._port.on_replaced = self.on_replaced
        async with self._port.running():
            self._store.on_visible = self._port.log_grew
            try:
                yield
            finally:
                self._store.on_visible = None

    def has_near_replica(self) -> bool:
        """Whether readers of old messages can be sent to a replica."""
        lag = self.master.lag_bytes()
        return lag is not None and lag < self._live.current.ha_slave_fallbehind_max

    # As a replica.

    def master_seen(self, answer: RegisterBrokerResponse) -> None:
        """A name server says where the master is."""
        if answer.ha_server_addr and not self._live.current.ha_master_address:
            self._ha_address = answer.ha_server_addr
        if answer.master_addr:
            self._master_address = answer.master_addr

    def remote_master(self) -> RemoteBroker | None:
        """The master's ordinary port; None while it is not known."""
        return self._remote(self._master_address) if self._master_address else None

    @property
    def is_following(self) -> bool:
        """Whether a connection to the master is up, and the master has answered."""
        return self._line is not None and self._line.is_answered

    async def follow(self) -> None:
        """Follow the master for ever."""
        retry_ms = RETRY_MS
        asked_ms = self._clock.monotonic_ms()
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                await self._follow_once()
            except FOLLOW_ERRORS as error:
                self._note_problem(error)
            if self._clock.monotonic_ms() - began_ms > RETRY_MS_MAX:
                retry_ms = RETRY_MS
            if self._clock.monotonic_ms() - asked_ms >= ASK_AGAIN_MS:
                asked_ms = self._clock.monotonic_ms()
                self.ask_again()  # It may have moved, or another broker may be master now.
            await self._clock.sleep_ms(retry_ms)
            retry_ms = min(retry_ms * 2, RETRY_MS_MAX)

    def _note_problem(self, error: SkylarkError) -> None:
        if str(error) != self.problem:
            logger.error("master=%s not followed: %s", self._ha_address, error)
        self.problem = str(error)

    async def _follow_once(self) -> None:
        master = self.remote_master()
        if master is None or not self._ha_address:
            raise RemoteProtocolError(
                "the master is not known: no name server knows it, and haMasterAddress is not set"
            )
        if self._store.failure is not None:
            raise StoreClosed(f"the store takes no more writes: {self._store.failure}")
        first = await self._agree_with(master)
        if self._store.config.is_sync_flush and not self.replica.is_empty:
            await self._flusher.flushed(self.replica.appended)
        config = self._live.current
        self._line = MasterLine(
            self._ha_address,
            self.replica,
            self._clock,
            flushed=self._flusher.flushed,
            is_sync_flush=self._store.config.is_sync_flush,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            silence_ms=config.ha_housekeeping_interval,
            secret=self.secret,
            first_report=first,
        )
        self.problem = ""
        try:
            await self._line.follow(self._network)
        finally:
            self._line = None

    async def _agree_with(self, master: RemoteBroker) -> int | None:
        """Make our log a part of the master's; return what to ask for if it is empty."""
        extent = await log_extent_of(master, has_key=self.secret is not None)
        if self.replica.is_empty:
            # RocketMQ's master takes 0 for "the newest file will do", and any other value as it is.
            return extent[0]
        log = self._store.log
        agreed = await ask_for_agreement(self._store, master, extent)
        if agreed == log.appended:
            return None
        tail = log.appended - agreed
        if log.blank_end(agreed) != log.appended:
            if tail > self._live.current.ha_truncate_bytes_max:
                raise LogsDiffer(
                    f"our log and the master's part at {agreed}, and {tail} bytes would have to be "
                    "given up; raise haTruncateBytesMax if the master is the one to believe, or "
                    "make this broker the master"
                )
            self._keep_tail(agreed, tail)
        async with self._flusher.paused():
            self._store.truncate(agreed)
        self.on_truncated()
        return None

    def _keep_tail(self, agreed: int, tail: int) -> None:
        """Save what is given up; after this nothing is lost that an operator could miss."""
        log = self._store.log
        pieces = []
        at = agreed
        file_bytes = self._store.config.mapped_file_size_commit_log
        while at < agreed + tail:
            size = min(agreed + tail - at, file_bytes - at % file_bytes)
            piece = log.read(at, size)
            assert piece is not None
            pieces.append(bytes(piece))
            at += size
        folder = os.path.join(self._store.config.store_path_root_dir, "diverged")
        path = os.path.join(folder, f"{agreed:020d}-{tail}")
        self._files.make_directory(folder)
        self._files.replace(path, b"".join(pieces))
        logger.error(
            "our log and the master's part at %d; %d bytes are given up here, and kept in %s",
            agreed, tail, path,
        )  # fmt: skip

    # For operators.

    def figures(self) -> dict[str, str]:
        """The state of replication, as part of the runtime information."""
        config = self._live.current
        items = {
            "haRole": config.broker_role,
            "haEpoch": str(self.epochs.last.number),
            "haPort": str(self._port.address[1]) if self._port is not None else "0",
            "haFollowers": ", ".join(
                f"{f.address} at {f.reported}" for f in self.master.followers if f.asked >= 0
            ),
            "haFollowerCount": str(sum(f.asked >= 0 for f in self.master.followers)),
            "haConfirmedOffset": str(self.master.confirmed()),
            KEY_FIGURE: "true" if self.secret is not None else "false",
        }
        lag = self.master.lag_bytes()
        if lag is not None:
            items["haFallbehindBytes"] = str(lag)
        if self.is_replica:
            items["haMaster"] = self._ha_address
            items["haIsFollowing"] = "true" if self.is_following else "false"
            items["haReceivedBytes"] = str(self.replica.received_bytes)
        problem = self.problem or ("" if self._port is None else self._port.last_refusal)
        if problem:
            items["haProblem"] = problem
        return items


def make_secret(
    config: BrokerConfig, epochs: EpochTable, random_bytes: Callable[[int], bytes]
) -> Secret | None:
    """What proves a broker to others of its group; None without a cluster key."""
    if not config.ha_cluster_key:
        return None
    group = f"{config.broker_cluster_name}/{config.broker_name}"
    return Secret(config.ha_cluster_key.encode(), group, epochs, lambda: random_bytes(16))


async def log_extent_of(broker: RemoteBroker, *, has_key: bool) -> tuple[int, int]:
    """Where a broker's log begins and ends; raises RemoteProtocolError where keys do not fit.

    That is asked here and not found out at the replication port: RocketMQ's master would take our
    greeting for an acknowledgement of six exabytes.
    """
    info = await broker.get_runtime_info(timeout_ms=CALL_TIMEOUT_MS)
    if (info.get(KEY_FIGURE) == "true") != has_key:
        raise RemoteProtocolError(
            f"{broker.address} has no cluster key, and this broker has: set haClusterKey on both, "
            "or on neither"
            if has_key
            else f"{broker.address} has a cluster key, and this broker has not: set haClusterKey"
        )
    try:
        return max(0, int(info["commitLogMinOffset"])), int(info["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise InvalidBody(f"{broker.address} does not say how far its log goes") from None


async def ask_for_agreement(
    store: MessageStore, broker: RemoteBroker, extent: tuple[int, int]
) -> int:
    """Up to where our log is the same as another broker's; raises LogsDiffer."""
    first, end = extent
    log = store.log
    if log.appended < first:
        raise LogsDiffer(
            f"our log ends at {log.appended}, and {broker.address} keeps its own from {first} on: "
            "move this store away and start again, to copy anew"
        )
    probes = find_agreement(log, since=first)
    try:
        offset = next(probes)
        while True:
            record = None
            if first <= offset < end:
                record = await broker.view_record(offset, timeout_ms=CALL_TIMEOUT_MS)
            offset = probes.send(record)
    except StopIteration as done:
        return int(done.value)


def _beside(ha_address: str) -> str:
    """Where a broker listens that takes replicas at an address, if it follows the custom."""
    host, colon, port = ha_address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        return ""
    return f"{host}:{int(port) - HA_PORT_STEP}"
