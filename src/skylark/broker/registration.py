"""Registration: keeps name servers informed.

    at the start, and every 30 s     all topics, to all name servers at once; the answer is awaited
    a topic has changed              that topic, oneway, at once; all of them where the name server
                                     may not have the others
    an operator makes a topic        that topic, and the operator's answer waits for it
    a connection was lost            all topics again, after a moment
    a member of a Raft group has     all topics, under the new id, at once
    another role
    at the end                       the broker's leave

One keeper for each name server, so that a silent one holds nobody up. Between full registrations a
name server is asked for its data version only, if forceRegister is off.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Iterable, Mapping

from ..clock import Clock
from ..errors import BrokerError, InvalidBody, RemoteProtocolError, TransportError
from ..model.topic import TopicConfig
from ..model.version import DataVersion
from ..protocol.bodies import RegisterBrokerBody, TopicConfigTable
from ..protocol.exchange import Peer
from ..protocol.headers import RegisterBrokerResponse
from ..remote import RemoteNameServer
from .config import LiveConfig
from .identity import Identity
from .topics import TopicTable

logger = logging.getLogger(__name__)

RETRY_MS = 2_000
UNREGISTER_TIMEOUT_MS = 3_000
ANNOUNCE_TIMEOUT_MS = 3_000  # An operator's tool gives up after 5 s.
_READABLE_AND_WRITABLE = 6


class _Keeper:
    """What is known of one name server."""

    def __init__(self, server: RemoteNameServer) -> None:
        self.server = server
        self.news = asyncio.Event()
        self.is_confirmed = False  # On the present connection, with all topics.
        self.changed: dict[str, TopicConfig] = {}
        self.is_down = False
        self.is_urgent = False


class Registration:
    """The broker's word to its name servers."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        topics: TopicTable,
        servers: Iterable[RemoteNameServer],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._live = live
        self._identity = identity
        self._topics = topics
        self._clock = clock
        self._rng = rng
        self._keepers = [_Keeper(server) for server in servers]
        self._tasks: dict[_Keeper, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None  # While they are kept informed.
        self._encoded: tuple[tuple[DataVersion, int], bytes] | None = None
        self._is_leaving = False
        # Told where the master is, by each answer that says so.
        self.on_master: Callable[[RegisterBrokerResponse], None] = lambda answer: None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers, as they were given."""
        return tuple(keeper.server.address for keeper in self._keepers)

    @property
    def confirmed(self) -> tuple[str, ...]:
        """Those that have all topics, as far as known."""
        return tuple(k.server.address for k in self._keepers if k.is_confirmed)

    # Events.

    def topics_changed(self, topics: Iterable[TopicConfig]) -> None:
        """Topics were made or changed; the name servers hear of it at once."""
        changed = list(topics)
        for keeper in self._keepers:
            keeper.changed.update((topic.name, topic) for topic in changed)
            keeper.news.set()

    def connection_lost(self, peer: Peer) -> None:
        """A connection that we opened has ended."""
        for keeper in self._keepers:
            if keeper.server.address == peer.address:
                keeper.is_confirmed = False
                keeper.news.set()

    def register_soon(self) -> None:
        """Register again in full: something that concerns all topics has changed."""
        for keeper in self._keepers:
            keeper.is_confirmed = False
            keeper.news.set()

    def role_changed(self) -> None:
        """The broker has another id from now on; clients look for it already."""
        self._encoded = None
        for keeper in self._keepers:
            keeper.is_confirmed = False
            keeper.is_urgent = True
            keeper.news.set()

    def replace_servers(self, servers: Iterable[RemoteNameServer]) -> None:
        """Keep these name servers informed from now on: new ones at once, former ones no more."""
        known = {keeper.server.address: keeper for keeper in self._keepers}
        wanted = {server.address: server for server in servers}
        for address, keeper in known.items():
            if address not in wanted and keeper in self._tasks:
                self._tasks.pop(keeper).cancel()
        self._keepers = [
            known.get(address) or _Keeper(server) for address, server in wanted.items()
        ]
        for keeper in self._keepers:
            if keeper.server.address not in known:
                keeper.news.set()
                self._begin(keeper)

    # Work.

    async def register(self) -> None:
        """Tell all name servers at once; those that cannot be reached hear it later."""
        await asyncio.gather(*(self._register(keeper) for keeper in self._keepers))

    async def announce(self, topics: Iterable[TopicConfig]) -> None:
        """Tell the name servers of topics, and wait until those that are there have heard it."""
        names = [topic.name for topic in topics]

        async def announce(keeper: _Keeper) -> None:
            now = {name: topic for name in names if (topic := self._topics.get(name)) is not None}
            if not await self._tell(keeper, now, oneway=False):
                keeper.news.set()

        await asyncio.gather(*(announce(keeper) for keeper in self._keepers))

    async def leave(self) -> None:
        """Take the broker's leave of all name servers."""
        self._is_leaving = True
        await asyncio.gather(*(self._unregister(keeper) for keeper in self._keepers))

    async def keep(self) -> None:
        """Keep all of them informed, for ever; the first registration is register()'s."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for keeper in self._keepers:
                self._begin(keeper)
            try:
                await asyncio.Event().wait()  # More may come, though there be none now.
            finally:
                self._group = None

    def _begin(self, keeper: _Keeper) -> None:
        if self._group is not None:
            name = f"register {keeper.server.address}"
            self._tasks[keeper] = self._group.create_task(self._keep(keeper), name=name)

    async def _keep(self, keeper: _Keeper) -> None:
        due_ms = self._next_due_ms(keeper.is_confirmed)
        while True:
            timeout_ms = max(0, due_ms - self._clock.monotonic_ms())
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await keeper.news.wait()
            except TimeoutError:
                is_heartbeat = True
            else:
                is_heartbeat = False
            keeper.news.clear()
            if is_heartbeat:
                is_done = await self._register(keeper)
            elif keeper.is_confirmed:
                is_done = await self._tell_changes(keeper)
                if is_done:
                    continue  # The heartbeat is still due when it was.
            else:
                # Many brokers lose a name server in the same moment, and must not come at once.
                if not keeper.is_urgent:
                    await self._clock.sleep_ms(self._rng.randint(0, RETRY_MS // 2))
                keeper.is_urgent = False
                is_done = await self._register(keeper)
            due_ms = self._next_due_ms(is_done)

    def _next_due_ms(self, is_done: bool) -> int:
        wait_ms = self._live.current.register_name_server_period if is_done else RETRY_MS
        return self._clock.monotonic_ms() + wait_ms

    async def _register(self, keeper: _Keeper) -> bool:
        """Register in full; whether that succeeded."""
        if self._is_leaving or self._identity.broker_id < 0:
            return True
        broker_id = self._identity.broker_id
        server, config = keeper.server, self._live.current
        try:
            if keeper.is_confirmed and not config.force_register:
                changed, _ = await server.query_data_version(
                    self._topics.version,
                    cluster=self._identity.cluster,
                    broker_name=self._identity.name,
                    broker_id=self._identity.broker_id,
                    address=self._identity.address,
                    timeout_ms=config.register_broker_timeout_mills,
                )
                if not changed:
                    return True
            version = self._topics.version
            answer, order_conf = await server.register_broker(
                cluster=self._identity.cluster,
                broker_name=self._identity.name,
                broker_id=self._identity.broker_id,
                address=self._identity.address,
                ha_address=self._identity.ha_address,
                leader_term=self._identity.leader_term,
                body=self._body(),
                compressed=config.compressed_register,
                timeout_ms=config.register_broker_timeout_mills,
            )
        except (TransportError, BrokerError, InvalidBody, RemoteProtocolError) as error:
            if not keeper.is_down:
                logger.warning("namesrv=%s not registered: %s", server.address, error)
            keeper.is_down, keeper.is_confirmed = True, False
            return False
        if keeper.is_down or not keeper.is_confirmed:
            logger.info(
                "namesrv=%s registered, %d topics", server.address, len(self._topics.topics)
            )
        keeper.is_down = False
        keeper.is_confirmed = broker_id == self._identity.broker_id
        if version == self._topics.version:
            keeper.changed.clear()
        elif keeper.changed:
            keeper.news.set()
        self.on_master(answer)
        # Name servers may differ for a while; the first that is there decides what is ordered.
        if order_conf is not None and keeper is self._first_confirmed():
            try:
                self._topics.apply_order_conf(order_conf)
            except BrokerError as error:
                logger.warning("ordered topics are marked later: %s", error.remark)
        return True

    def _first_confirmed(self) -> _Keeper | None:
        return next((keeper for keeper in self._keepers if keeper.is_confirmed), None)

    async def _tell_changes(self, keeper: _Keeper) -> bool:
        """Tell a name server that has all other topics of those that changed."""
        if not keeper.changed or self._is_leaving or self._identity.broker_id < 0:
            return True
        changed, keeper.changed = keeper.changed, {}
        return await self._tell(keeper, changed, oneway=True)

    async def _tell(
        self, keeper: _Keeper, changed: Mapping[str, TopicConfig], *, oneway: bool
    ) -> bool:
        if not keeper.is_confirmed or self._is_leaving:
            return True  # It hears of all topics when it is there again, or of none.
        try:
            await keeper.server.register_broker(
                cluster=self._identity.cluster,
                broker_name=self._identity.name,
                broker_id=self._identity.broker_id,
                address=self._identity.address,
                ha_address=self._identity.ha_address,
                leader_term=self._identity.leader_term,
                body=RegisterBrokerBody(
                    TopicConfigTable(self._shown(changed), self._topics.version)
                ).to_json(),
                oneway=oneway,
                timeout_ms=ANNOUNCE_TIMEOUT_MS,
            )
        except (TransportError, BrokerError, InvalidBody, RemoteProtocolError) as error:
            logger.warning("namesrv=%s not told of a topic: %s", keeper.server.address, error)
            keeper.is_confirmed = False
            return False
        return True

    def _body(self) -> bytes:
        """All topics, encoded once for all name servers and heartbeats."""
        config = self._live.current
        key = (self._topics.version, config.broker_permission)
        if self._encoded is None or self._encoded[0] != key:
            table = TopicConfigTable(self._shown(self._topics.topics), self._topics.version)
            body = RegisterBrokerBody(table)
            self._encoded = (
                key, body.to_compressed() if config.compressed_register else body.to_json(),
            )  # fmt: skip
        return self._encoded[1]

    def _shown(self, topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
        """Topics as clients may use them; a broker that is taken offline shows it in each."""
        permission = self._live.current.broker_permission
        if permission & _READABLE_AND_WRITABLE == _READABLE_AND_WRITABLE:
            return dict(topics)
        return {name: dataclasses.replace(topic, perm=permission) for name, topic in topics.items()}

    async def _unregister(self, keeper: _Keeper) -> None:
        if self._identity.broker_id < 0:
            return
        try:
            await keeper.server.unregister_broker(
                cluster=self._identity.cluster,
                broker_name=self._identity.name,
                broker_id=self._identity.broker_id,
                address=self._identity.address,
                timeout_ms=UNREGISTER_TIMEOUT_MS,
            )
        except (TransportError, BrokerError, RemoteProtocolError) as error:
            logger.info("namesrv=%s not told of the end: %s", keeper.server.address, error)
        else:
            logger.info("namesrv=%s unregistered", keeper.server.address)
