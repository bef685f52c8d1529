"""RouteTable: who serves which topic. All of a name server's state that is not a setting.

A pure state machine: events and the monotonic time go in, answers come out.

    table      from → to                       grows by              shrinks by
    topics     topic → broker name → queues    a master's register   delete; the broker name goes
    brokers    broker name → id → address      register              unregister, expiry, close
    clusters   cluster → broker names          register              the broker name goes
    live       address → registration          register              unregister, expiry, close

Rules of a registration, as RocketMQ has them:

- Topics count only from a master (id 0), and only when their version is not the one known for that
  address, or the broker was not there before. They are added and changed, never removed.
- An address has one place: what it was before under another id (or name) is dropped.
- Of two addresses that claim the same id, the one that came later has it. The other, which may be
  a process that lingers or a heartbeat that was long under way, gets it back by coming again on a
  new connection, or when the later one goes. RocketMQ's routes follow whoever spoke last.
- A leader of a Raft group registers with its term. One of an earlier term than a leader that is
  registered is late, and refused.
- A broker name goes with its last address, and its queues go with it. While a replica is left, the
  route stays, and can be read from.

Who may end a registration: every connection speaks for itself alone. A registration is claimed by
each connection that made or refreshed it, and lives until the last claim is gone: by a close or an
unregister on that same connection, or by 120 seconds of silence on it. So what an earlier life of a
broker still has under way (a close, an unregister, even a registration with its connection's end
behind it) takes away no more than its own claim. RocketMQ goes by address, and a broker that comes
back quickly loses its routes to its own past until the next heartbeat (apache/rocketmq#11043). The
price: a broker that lost a connection unnoticed by us and leaves on another one stays in the routes
until the lost one is found dead, as a broker does whose machine loses power.

Nothing here depends on the order of a set or a hash: every list is sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..errors import BrokerError
from ..model.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRoute
from ..model.topic import Permission, TopicConfig, TopicSysFlag
from ..model.version import DataVersion
from ..protocol.bodies import ClusterInfoBody, TopicConfigTable, TopicRouteBody
from ..protocol.codes import ResponseCode

ADDRESSES_MAX = 20_000
TOPICS_MAX = 1_000_000
CACHED_ROUTES_MAX = 20_000

_READ_WRITE = int(Permission.READ | Permission.WRITE)
_WRITE = int(Permission.WRITE)
_UNIT = int(TopicSysFlag.UNIT)
_UNIT_SUB = int(TopicSysFlag.UNIT_SUB)

Owner = object
"""A connection, as far as the table knows one: something that differs from all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """Who a broker says it is."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass(slots=True)
class Registration:
    """One live address."""

    broker: BrokerIdentity
    ha_address: str | None
    data_version: DataVersion
    filter_servers: tuple[str, ...]
    fingerprint: bytes  # Of the body that it came with.
    claims: dict[Owner, int] = field(default_factory=dict)  # Connection → last heard, monotonic ms.


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where a replica finds its master."""

    address: str
    ha_address: str | None


@dataclass(slots=True)
class _Broker:
    cluster: str  # That of the first registration, as long as the name is there.
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    replaced: dict[str, None] = field(default_factory=dict)  # Still there, without their place.
    leader_term: int = 0  # Of a Raft group: the highest term in which somebody led.
    topics: dict[str, None] = field(default_factory=dict)  # Whose queues it has.


@dataclass(slots=True)
class _CachedRoute:
    order_conf: str | None
    bare: bytes | None = None
    standard: bytes | None = None


class RouteTable:
    """Brokers, their topics, and how long each has been silent."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, Registration] = {}
        self._owned: dict[Owner, dict[str, None]] = {}
        self._routes: dict[str, _CachedRoute] = {}
        self._cluster_body: bytes | None = None

    # Registration.

    def register(
        self,
        broker: BrokerIdentity,
        *,
        table: TopicConfigTable,
        owner: Owner,
        now_ms: int,
        ha_address: str | None = None,
        filter_servers: tuple[str, ...] = (),
        fingerprint: bytes = b"",
        leader_term: int | None = None,
    ) -> MasterAddress | None:
        """Take a broker in, or note that it lives; return where a replica finds its master."""
        self._require_room(broker, table)
        self._require_newest(broker, leader_term)
        before = self._live.get(broker.address)
        if before is not None and before.broker.name != broker.name:
            # The address has another broker now. Its old name would stay behind for ever, because
            # no connection and no heartbeat stands for it any more.
            self._remove(before)
            before = None
        members = self._clusters.setdefault(broker.cluster, {})
        if broker.name not in members:
            members[broker.name] = None
            self._cluster_body = None
        entry = self._brokers.get(broker.name)
        if entry is None:
            entry = self._brokers[broker.name] = _Broker(broker.cluster, broker.name)
        is_late = leader_term is None and self._is_late(entry, before, broker, owner)
        is_new = broker.id not in entry.addresses
        if not is_late:
            self._set_address(entry, broker.id, broker.address)
        if broker.id == MASTER_ID and leader_term is not None:
            entry.leader_term = max(entry.leader_term, leader_term)
        # What a replica registers is not taken over, and has to be when it becomes the master.
        is_changed = (
            before is None
            or before.data_version != table.data_version
            or before.broker.id != broker.id
        )
        if broker.id == MASTER_ID and (is_new or is_changed) and not is_late:
            for config in table.topics.values():
                self._set_queues(entry, config)
        if filter_servers != (() if before is None else before.filter_servers):
            self._forget_routes(entry.topics)
        claims = {}
        if before is not None:
            if before.broker == broker:
                claims = before.claims
            else:
                self._disown(before)  # It was a replica and is the master, or the reverse.
        self._live[broker.address] = registration = Registration(
            broker, ha_address, table.data_version, filter_servers, fingerprint, claims
        )
        self._claim(registration, owner, now_ms)
        return None if broker.id == MASTER_ID else self._master_of(entry)

    def repeat(
        self,
        broker: BrokerIdentity,
        fingerprint: bytes,
        *,
        owner: Owner,
        now_ms: int,
        ha_address: str | None = None,
    ) -> tuple[bool, MasterAddress | None]:
        """Do what register() would, if it would change nothing; return whether that was so.

        Brokers send all their topics with every heartbeat. Recognising them saves reading them.
        """
        known = self._live.get(broker.address)
        if (
            known is None
            or known.fingerprint != fingerprint
            or known.ha_address != ha_address
            or known.broker != broker
        ):
            return False, None
        entry = self._brokers.get(broker.name)
        if entry is None or entry.addresses.get(broker.id) != broker.address:
            return False, None
        self._claim(known, owner, now_ms)
        return True, None if broker.id == MASTER_ID else self._master_of(entry)

    def refresh(
        self, broker: BrokerIdentity, data_version: DataVersion, *, owner: Owner, now_ms: int
    ) -> bool:
        """Note that a broker lives, if its topics have that version; return whether they have."""
        known = self._live.get(broker.address)
        if known is None or known.data_version != data_version:
            return False
        if known.broker == broker:
            self._claim(known, owner, now_ms)
        return True

    def unregister(self, broker: BrokerIdentity, *, owner: Owner) -> bool:
        """Take back a connection's claim; False if others keep the registration alive."""
        known = self._live.get(broker.address)
        if known is None or known.broker != broker:
            return True  # Gone, or something else by now that has not been taken back.
        return self._unclaim(known, owner)

    def owner_gone(self, owner: Owner) -> list[Registration]:
        """A connection has closed: return the registrations that went with it."""
        claimed = [self._live[address] for address in self._owned.get(owner, ())]
        return [known for known in claimed if self._unclaim(known, owner)]

    def expire(self, *, now_ms: int, expiry_ms: int) -> tuple[list[Registration], list[Owner]]:
        """Drop claims without a sign of life for longer than allowed.

        Returns the registrations that went with them, and the connections that claim nothing more.
        """
        gone: list[Registration] = []
        silent: dict[Owner, None] = {}
        for known in list(self._live.values()):
            late = [owner for owner, seen in known.claims.items() if seen + expiry_ms < now_ms]
            silent |= dict.fromkeys(late)
            # The last one settles it, so each registration is listed once.
            if [self._unclaim(known, owner) for owner in late][-1:] == [True]:
                gone.append(known)
        return gone, [owner for owner in silent if owner not in self._owned]

    def forgive(self, absence_ms: int, *, now_ms: int) -> None:
        """Do not hold against the brokers a time in which nobody could have heard them."""
        for known in self._live.values():
            for owner, seen_ms in known.claims.items():
                known.claims[owner] = min(now_ms, seen_ms + absence_ms)

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the topics that an address last registered with."""
        known = self._live.get(address)
        return None if known is None else known.data_version

    @property
    def live(self) -> list[Registration]:
        """All registrations, sorted by address."""
        return [self._live[address] for address in sorted(self._live)]

    # What operators change.

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Forget a topic's queues, everywhere or on the brokers of one cluster."""
        names: Iterable[str] = self._topics.get(topic, ())
        if cluster is not None:
            members = self._clusters.get(cluster, {})
            names = [name for name in names if name in members]
        for name in list(names):
            self._drop_queues(topic, name)
            del self._brokers[name].topics[topic]

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take a broker out of writing; return how many topics it has."""
        return self._change_perms(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Let a broker be read and written again; return how many topics it has."""
        return self._change_perms(broker_name, lambda perm: _READ_WRITE)

    # What clients and operators ask.

    def route(self, topic: str, order_conf: str | None = None) -> TopicRoute | None:
        """All a client must know to use a topic, or None where nobody serves it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        brokers = [self._brokers[name] for name in names]
        return TopicRoute(
            brokers=tuple(_data_of(broker) for broker in brokers),
            queues=tuple(queues[name] for name in names),
            order_conf=order_conf,
            filter_servers=self._filter_servers(brokers),
        )

    def route_body(
        self, topic: str, *, standard: bool, order_conf: str | None = None
    ) -> bytes | None:
        """The route as JSON, in the dialect asked for, or None where nobody serves the topic.

        Every client asks for every topic it uses twice a minute, and the answer rarely changes.
        """
        cached = self._routes.get(topic)
        if cached is None or cached.order_conf != order_conf:
            cached = _CachedRoute(order_conf)
        body = cached.standard if standard else cached.bare
        if body is None:
            route = self.route(topic, order_conf)
            if route is None:
                return None
            body = TopicRouteBody(route).to_json(standard=standard)
            if standard:
                cached.standard = body
            else:
                cached.bare = body
            if len(self._routes) >= CACHED_ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = cached
        return body

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return ClusterInfo(
            brokers={name: _data_of(self._brokers[name]) for name in sorted(self._brokers)},
            clusters={name: tuple(sorted(self._clusters[name])) for name in sorted(self._clusters)},
        )

    def cluster_body(self) -> bytes:
        """All brokers and clusters as JSON; ids stand bare for every client, as in RocketMQ."""
        if self._cluster_body is None:
            self._cluster_body = ClusterInfoBody(self.cluster_info()).to_json()
        return self._cluster_body

    def topics(self) -> list[str]:
        """All topics that somebody serves."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster's brokers; none for a cluster that is not there."""
        found: dict[str, None] = {}
        for name in self._clusters.get(cluster, ()):
            found |= self._brokers[name].topics
        return sorted(found)

    def system_topics(self) -> tuple[list[str], str | None]:
        """The names of clusters and brokers, and a broker's address that can name the others."""
        names = set(self._clusters) | set(self._brokers)
        first = min(self._brokers, default=None)
        address = None if first is None else _data_of(self._brokers[first]).any_address()
        return sorted(names), address

    def unit_topics(self) -> list[str]:
        """Topics with the unit mark."""
        return self._topics_with(lambda flag: bool(flag & _UNIT))

    def unit_sub_topics(self) -> list[str]:
        """Topics with subscribers in units."""
        return self._topics_with(lambda flag: bool(flag & _UNIT_SUB))

    def unit_sub_not_unit_topics(self) -> list[str]:
        """Topics with subscribers in units that are not unit topics themselves."""
        return self._topics_with(lambda flag: bool(flag & _UNIT_SUB) and not flag & _UNIT)

    # Changes, each of which takes what it outdates out of the caches.

    def _require_room(self, broker: BrokerIdentity, table: TopicConfigTable) -> None:
        if broker.address not in self._live and len(self._live) >= ADDRESSES_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, f"{ADDRESSES_MAX} brokers are registered already"
            )
        if len(self._topics) + len(table.topics) > TOPICS_MAX:
            new = sum(name not in self._topics for name in table.topics)
            if len(self._topics) + new > TOPICS_MAX:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY, f"{TOPICS_MAX} topics are registered already"
                )

    def _require_newest(self, broker: BrokerIdentity, leader_term: int | None) -> None:
        """Refuse a leader of a Raft group whose word comes after that of its successor."""
        entry = self._brokers.get(broker.name)
        if (
            entry is not None
            and broker.id == MASTER_ID
            and leader_term is not None
            and leader_term < entry.leader_term
            and entry.addresses.get(MASTER_ID, broker.address) != broker.address
        ):
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"{broker.name} has a leader of term {entry.leader_term} at "
                f"{entry.addresses[MASTER_ID]}; {broker.address} led in term {leader_term}, and "
                "registers as a follower from now on",
            )

    def _is_late(
        self, entry: _Broker, before: Registration | None, broker: BrokerIdentity, owner: Owner
    ) -> bool:
        """Whether somebody else has taken a broker's place since this connection registered it."""
        held = entry.addresses.get(broker.id)
        return (
            held is not None
            and held != broker.address
            and before is not None
            and before.broker == broker
            and owner in before.claims
        )

    def _set_address(self, entry: _Broker, broker_id: int, address: str) -> None:
        others = [
            other for other, at in entry.addresses.items() if at == address and other != broker_id
        ]
        for other in others:  # A replica that became master, or the reverse.
            del entry.addresses[other]
        if others or entry.addresses.get(broker_id) != address:
            before = entry.addresses.get(broker_id)
            if before is not None:
                entry.replaced[before] = None
            entry.replaced.pop(address, None)
            entry.addresses[broker_id] = address
            self._cluster_body = None
            self._forget_routes(entry.topics)

    def _set_queues(self, entry: _Broker, config: TopicConfig) -> None:
        queues = QueueData(
            broker_name=entry.name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.sys_flag,
        )
        topic = self._topics.setdefault(config.name, {})
        if topic.get(entry.name) != queues:
            topic[entry.name] = queues
            entry.topics[config.name] = None
            self._routes.pop(config.name, None)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        del queues[broker_name]
        if not queues:
            del self._topics[topic]
        self._routes.pop(topic, None)

    def _change_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        entry = self._brokers.get(broker_name)
        if entry is None:
            return 0
        for topic in entry.topics:
            queues = self._topics[topic]
            queues[broker_name] = replace(
                queues[broker_name], perm=change(queues[broker_name].perm)
            )
        self._forget_routes(entry.topics)
        return len(entry.topics)

    def _remove(self, registration: Registration) -> None:
        broker = registration.broker
        del self._live[broker.address]
        self._disown(registration)
        entry = self._brokers.get(broker.name)
        if entry is not None:
            entry.replaced.pop(broker.address, None)
        if entry is None or entry.addresses.get(broker.id) != broker.address:
            return  # Another address has taken its place, and may have left it since.
        del entry.addresses[broker.id]
        self._cluster_body = None
        if not entry.leader_term:
            # The last one that was replaced and is still there. A former leader of a Raft group has
            # to say itself what it is.
            for address in entry.replaced:
                known = self._live.get(address)
                if known is not None and (known.broker.name, known.broker.id) == (
                    broker.name,
                    broker.id,
                ):
                    entry.addresses[broker.id] = address
            entry.replaced.pop(entry.addresses.get(broker.id, ""), None)
        if entry.addresses:
            self._forget_routes(entry.topics)
            return
        for topic in entry.topics:
            self._drop_queues(topic, broker.name)
        del self._brokers[broker.name]
        for cluster in [name for name, members in self._clusters.items() if broker.name in members]:
            del self._clusters[cluster][broker.name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]

    def _claim(self, registration: Registration, owner: Owner, now_ms: int) -> None:
        registration.claims[owner] = now_ms
        self._owned.setdefault(owner, {})[registration.broker.address] = None

    def _unclaim(self, registration: Registration, owner: Owner) -> bool:
        """Take a claim away, and the registration if that was the last; return whether it was."""
        if owner in registration.claims:
            del registration.claims[owner]
            self._disown_by(owner, registration.broker.address)
            if not registration.claims:
                self._remove(registration)
        return not registration.claims

    def _disown(self, registration: Registration) -> None:
        for owner in registration.claims:
            self._disown_by(owner, registration.broker.address)
        registration.claims.clear()

    def _disown_by(self, owner: Owner, address: str) -> None:
        owned = self._owned[owner]
        del owned[address]
        if not owned:
            del self._owned[owner]

    def _forget_routes(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._routes.pop(topic, None)

    # Answers.

    def _master_of(self, entry: _Broker) -> MasterAddress | None:
        address = entry.addresses.get(MASTER_ID)
        if address is None:
            return None
        return MasterAddress(address, self._live[address].ha_address)

    def _filter_servers(self, brokers: list[_Broker]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for broker in brokers:
            for address in broker.addresses.values():
                servers = self._live[address].filter_servers
                if servers:
                    found[address] = servers
        return found

    def _topics_with(self, matches: Callable[[int], bool]) -> list[str]:
        # A topic's brokers agree on these marks; where they do not, the first by name decides.
        return [
            topic
            for topic in sorted(self._topics)
            if matches(self._topics[topic][min(self._topics[topic])].topic_sys_flag)
        ]


def _data_of(broker: _Broker) -> BrokerData:
    return BrokerData(broker.cluster, broker.name, dict(sorted(broker.addresses.items())))
