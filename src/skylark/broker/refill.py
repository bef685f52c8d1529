"""Refill: a master that starts gets back what its replicas have and it has lost.

With ASYNC_FLUSH a power cut takes the end of the master's log, and a dead disk takes all of it,
while a replica has every message that was acknowledged under SYNC_MASTER. So before a master
serves, it looks for its replicas at the name servers and asks how far their logs go:

    none is further              nothing to do
    one is, and agrees           its log is copied over the HA stream, as a replica would
    one is, and does not         refused under SYNC_MASTER: an operator must say who is right

Consumers may have gone on at a replica meanwhile, so committed offsets are taken over as well,
where they are further on. An empty store gets the tables of the replica too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable
from typing import Final

from ..clock import Clock
from ..errors import BrokerError, InvalidBody, RemoteProtocolError, StoreDamaged, TransportError
from ..model.route import MASTER_ID
from ..protocol.bodies import ConsumerOffsetTable
from ..remote import RemoteBroker, RemoteNameServer
from ..replication import LogsDiffer, Replica
from ..replication.links import MasterLine, Network, Secret
from ..store import Files, MessageStore
from .config import HA_PORT_STEP, BrokerConfig
from .replication import FOLLOW_ERRORS, ask_for_agreement, log_extent_of

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3_000
PROGRESS_MS: Final = 10_000
ASK_AGAIN_MS: Final = 500
PATIENCE_MS: Final = 30_000


class KnownReplicas:
    """Where replicas of a SYNC_MASTER were when they last confirmed something.

        file    config/replicas.json
        {"replicas":["10.0.0.2:10911"]}

    A name server forgets a replica as soon as its connection breaks, and just then the power of the
    master may go as well. Only the last moments matter: what is older is on the master's own disk.
    """

    def __init__(self, root: str, files: Files) -> None:
        self._path = os.path.join(root, "config", "replicas.json")
        self._files = files
        self.addresses: list[str] = []

    def load(self) -> None:
        """Read the file; one that cannot be read knows of nobody."""
        if not self._files.exists(self._path):
            return
        try:
            found = json.loads(self._files.read(self._path))["replicas"]
            self.addresses = [address for address in found if isinstance(address, str)]
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("file=%s cannot be read, passed over: %s", self._path, error)

    def note(self, addresses: list[str]) -> None:
        """These are there now; durable when this returns."""
        if addresses != self.addresses:
            self._files.make_directory(os.path.dirname(self._path))
            self._files.replace(self._path, json.dumps({"replicas": addresses}).encode())
            self.addresses = addresses


async def replica_addresses(
    name_servers: Iterable[RemoteNameServer], broker_name: str
) -> list[str] | None:
    """The replicas of a name, as the first name server that answers knows them; else None."""
    for server in name_servers:
        try:
            cluster = await server.get_cluster_info(timeout_ms=CALL_TIMEOUT_MS)
        except (TransportError, BrokerError, InvalidBody) as error:
            logger.info("namesrv=%s cannot be asked: %s", server.address, error)
            continue
        broker = cluster.brokers.get(broker_name)
        members = {} if broker is None else broker.addresses
        return [address for id, address in sorted(members.items()) if id != MASTER_ID]
    return None


class Refill:
    """One look at the replicas, before a master serves."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        files: Files,
        clock: Clock,
        network: Network,
        *,
        remote: Callable[[str], RemoteBroker],
        name_servers: Iterable[RemoteNameServer],
        secret: Secret | None,
        known: KnownReplicas,
    ) -> None:
        self._known = known
        self._config = config
        self._store = store
        self._files = files
        self._clock = clock
        self._network = network
        self._remote = remote
        self._name_servers = list(name_servers)
        self._secret = secret

    async def run(self) -> ConsumerOffsetTable | None:
        """Take back what was lost; return the offsets that a replica has, if there is one.

        Raises StoreDamaged where a replica of a SYNC_MASTER has more, and it cannot be had.
        """
        give_up_ms = self._clock.monotonic_ms() + self._patience_ms
        while True:
            found = await replica_addresses(self._name_servers, self._config.broker_name)
            addresses = list(dict.fromkeys([*(found or ()), *self._known.addresses]))
            best = await self._find_best(addresses)
            if best is not None or not addresses or self._clock.monotonic_ms() >= give_up_ms:
                break
            await self._clock.sleep_ms(ASK_AGAIN_MS)
        if best is None:
            if addresses:
                logger.error(
                    "replicas=%s none can be asked; going on with the log up to %d",
                    ",".join(addresses), self._store.log.appended,
                )  # fmt: skip
            return None
        end, replica, extent = best
        if end > self._store.log.appended:
            await self._take_log(replica, extent)
        try:
            return await replica.get_all_consumer_offsets(timeout_ms=CALL_TIMEOUT_MS)
        except (TransportError, BrokerError, InvalidBody) as error:
            logger.warning("replica=%s its offsets cannot be had: %s", replica.address, error)
            return None

    @property
    def _patience_ms(self) -> int:
        """How long to wait for a replica that is known and does not answer.

        Only where something acknowledged may be missing here.
        """
        store = self._store
        is_whole = store.recovery.was_clean or store.config.is_sync_flush
        is_promised = self._config.broker_role == "SYNC_MASTER"
        return PATIENCE_MS if is_promised and (not is_whole or not store.log.mapped.files) else 0

    async def _find_best(
        self, addresses: list[str]
    ) -> tuple[int, RemoteBroker, tuple[int, int]] | None:
        """The replica whose log goes furthest."""
        best: tuple[int, RemoteBroker, tuple[int, int]] | None = None
        for replica in map(self._remote, addresses):
            try:
                extent = await log_extent_of(replica, has_key=self._secret is not None)
            except (TransportError, BrokerError, InvalidBody, RemoteProtocolError) as error:
                logger.warning("replica=%s cannot be asked: %s", replica.address, error)
                continue
            if best is None or extent[1] > best[0]:
                best = extent[1], replica, extent
        return best

    async def _take_log(self, replica: RemoteBroker, extent: tuple[int, int]) -> None:
        store = self._store
        was_empty = not store.log.mapped.files
        before = store.log.appended
        try:
            if not was_empty:
                agreed = await ask_for_agreement(store, replica, extent)
                if agreed != before and store.log.blank_end(agreed) != before:
                    raise LogsDiffer(f"our log and that of {replica.address} part at {agreed}")
                if agreed != before:
                    store.truncate(agreed)
            else:
                await self._take_tables(replica)
            await self._copy(await self._ha_address(replica), extent)
        except FOLLOW_ERRORS as error:
            text = (
                f"{replica.address} has the log up to {extent[1]}, this master up to "
                f"{store.log.appended}, and it cannot be had: {error}"
            )
            if self._config.broker_role == "SYNC_MASTER":
                raise StoreDamaged(
                    store.config.commit_log_directory,
                    store.log.appended,
                    text,
                    "make the replica the master, or set haRecoverFromSlave=false to go without",
                ) from error
            logger.error("%s; the replica will give it up", text)
            return
        logger.warning(
            "replica=%s gave back the log from %d to %d", replica.address, before,
            store.log.appended,
        )  # fmt: skip

    async def _ha_address(self, replica: RemoteBroker) -> str:
        info = await replica.get_runtime_info(timeout_ms=CALL_TIMEOUT_MS)
        host, _, port = replica.address.rpartition(":")
        return f"{host}:{info.get('haPort') or int(port) + HA_PORT_STEP}"

    async def _take_tables(self, replica: RemoteBroker) -> None:
        folder = os.path.join(self._store.config.store_path_root_dir, "config")
        self._files.make_directory(folder)
        for name, body in (
            ("topics.json", await replica.get_topics(timeout_ms=CALL_TIMEOUT_MS)),
            ("subscriptionGroup.json", await replica.get_groups(timeout_ms=CALL_TIMEOUT_MS)),
            ("delayOffset.json", await replica.get_all_delay_offsets(timeout_ms=CALL_TIMEOUT_MS)),
        ):
            path = os.path.join(folder, name)
            if not self._files.exists(path):
                self._files.replace(path, body.to_json(pretty=True))

    async def _copy(self, address: str, extent: tuple[int, int]) -> None:
        """Follow a replica until there is nothing more."""
        store = self._store
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        line = MasterLine(
            address,
            Replica(store),
            self._clock,
            flushed=lambda offset: done,
            is_sync_flush=False,  # What is taken back is flushed in one go at the end.
            heartbeat_ms=self._config.ha_send_heartbeat_interval,
            silence_ms=self._config.ha_housekeeping_interval,
            secret=self._secret,
            first_report=None if store.log.mapped.files else extent[0],
        )
        following = asyncio.create_task(line.follow(self._network), name=f"refill from {address}")
        try:
            while store.log.appended < extent[1] and not following.done():
                seen = store.log.appended
                for _ in range(PROGRESS_MS // 10):
                    if following.done() or store.log.appended >= extent[1]:
                        break
                    await self._clock.sleep_ms(10)
                else:
                    if store.log.appended == seen:
                        raise TransportError(address, f"nothing came in {PROGRESS_MS} ms")
                logger.info("refill: %d of %d bytes", store.log.appended, extent[1])
            if following.done():
                following.result()
        finally:
            following.cancel()
            await asyncio.wait((following,))
        store.flush()
