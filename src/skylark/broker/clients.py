"""Clients: who is connected, as which producer or consumer, and what the groups want.

A member is a connection. It comes with its first heartbeat, and goes when it says so, when its
connection closes, or when it has been silent too long; every change is told to the whole group, so
that the members share the queues out anew.

Members of one group are expected to want the same. Where they do not, RocketMQ lets the last
heartbeat win for all, and messages vanish by turns. Here each member is served by its own
subscription, the group's is the union, and the difference is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..clock import Clock
from ..errors import ConnectionLost
from ..model.group import ConsumeFromWhere, ConsumeType, MessageModel, Subscription
from ..protocol.bodies import ConsumerData
from ..protocol.codes import RequestCode
from ..protocol.command import Command
from ..protocol.exchange import Peer

logger = logging.getLogger(__name__)

GROUPS_OF_CLIENT_MAX = 1_024
SUBSCRIPTIONS_MAX = 4_096


@dataclass(slots=True)
class Member:
    """One connection of a client within a group."""

    client_id: str
    peer: Peer
    language: int
    version: int
    last_seen_ms: int
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


class Mismatch(NamedTuple):
    """Two members of one group that want different things."""

    group: str
    topic: str
    client_ids: tuple[str, str]
    expressions: tuple[str | None, str | None]  # None: the member does not want the topic at all.

    def __str__(self) -> str:
        ours, theirs = ("nothing" if text is None else repr(text) for text in self.expressions)
        return (
            f"group {self.group}, topic {self.topic}: {self.client_ids[0]} subscribes {ours}, "
            f"{self.client_ids[1]} {theirs}; messages may be missed, give all members the same"
        )


class ConsumerGroup:
    """The members of one consumer group, and what they want together."""

    __slots__ = (
        "consume_from_where",
        "consume_type",
        "members",
        "message_model",
        "mismatches",
        "name",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Peer, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.mismatches: tuple[Mismatch, ...] = ()

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The members' ids, each once: a client that reconnects may be here twice for a moment."""
        return tuple(dict.fromkeys(member.client_id for member in self.members.values()))

    def member_of(self, client_id: str) -> Member | None:
        """The newest connection of a client."""
        found = None
        for member in self.members.values():
            if member.client_id == client_id:
                found = member
        return found

    def subscription(self, topic: str, peer: Peer) -> Subscription | None:
        """What a peer wants of a topic: its own where it is a member, else the group's."""
        member = self.members.get(peer)
        if member is not None:
            own = member.subscriptions.get(topic)
            if own is not None:
                return own
        return self.subscriptions.get(topic)

    def renew(self) -> None:
        """Work out again what the group wants, and who differs."""
        union: dict[str, Subscription] = {}
        for member in self.members.values():
            for topic, wanted in member.subscriptions.items():
                known = union.get(topic)
                if known is None or wanted.version > known.version:
                    union[topic] = wanted
        self.subscriptions = union
        self.mismatches = tuple(self._find_mismatches())

    def _find_mismatches(self) -> Iterator[Mismatch]:
        members = iter(self.members.values())
        first = next(members, None)
        if first is None:
            return
        for other in members:
            for topic in {**first.subscriptions, **other.subscriptions}:
                ours, theirs = first.subscriptions.get(topic), other.subscriptions.get(topic)
                if _meaning(ours) != _meaning(theirs):
                    yield Mismatch(
                        self.name,
                        topic,
                        (first.client_id, other.client_id),
                        (
                            None if ours is None else ours.expression,
                            None if theirs is None else theirs.expression,
                        ),
                    )


def _meaning(wanted: Subscription | None) -> object:
    if wanted is None:
        return None
    if wanted.expression_type == "TAG":
        return frozenset(wanted.tags)
    return wanted.expression_type, wanted.expression.strip()


class Clients:
    """All producers and consumers."""

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_ms: Callable[[], int],
        may_notify: Callable[[str], bool] = lambda group: True,
    ) -> None:
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._may_notify = may_notify
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        self._by_id: dict[str, Peer] = {}  # The producers' client ids, for replies and checks.
        self._consumer_groups_of: dict[Peer, set[str]] = {}
        self._producer_groups_of: dict[Peer, set[str]] = {}
        self.mismatches_total = 0
        # Told of a consumer group when its last member has left.
        self.on_group_gone: Callable[[str], None] = lambda group: None
        # Told of a group when a producer joins it.
        self.on_producer: Callable[[str], None] = lambda group: None

    # Questions.

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group that has members."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Every consumer group that has members."""
        return list(self._consumers.values())

    def producer_groups(self) -> dict[str, list[Member]]:
        """Every producer group that has members."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def producer(self, client_id: str) -> Peer | None:
        """The connection of a producer."""
        peer = self._by_id.get(client_id)
        return None if peer is None or peer.is_closed else peer

    def producers_of(self, group: str) -> list[Member]:
        """The members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def client_id_of(self, peer: Peer, group: str) -> str | None:
        """Under which id a peer is a member of a consumer group."""
        found = self._consumers.get(group)
        member = None if found is None else found.members.get(peer)
        return None if member is None else member.client_id

    def mismatches(self) -> list[Mismatch]:
        """Every difference between members of one group."""
        return [item for group in self._consumers.values() for item in group.mismatches]

    # Coming and going.

    def register_producer(
        self, group: str, client_id: str, peer: Peer, *, language: int, version: int
    ) -> None:
        """Take note of a producer's heartbeat."""
        groups = self._producer_groups_of.setdefault(peer, set())
        if group not in groups and len(groups) >= GROUPS_OF_CLIENT_MAX:
            return
        groups.add(group)
        members = self._producers.setdefault(group, {})
        now_ms = self._clock.monotonic_ms()
        member = members.get(peer)
        is_new = member is None or member.client_id != client_id
        if member is None or is_new:
            members[peer] = Member(client_id, peer, language, version, now_ms)
        else:
            member.last_seen_ms = now_ms
        self._by_id[client_id] = peer
        if is_new:
            self.on_producer(group)

    def register_consumer(
        self,
        data: ConsumerData,
        client_id: str,
        peer: Peer,
        *,
        language: int,
        version: int,
    ) -> bool:
        """Take note of a consumer's heartbeat; whether the group has changed and was told."""
        name = data.group_name
        groups = self._consumer_groups_of.setdefault(peer, set())
        if name not in groups and len(groups) >= GROUPS_OF_CLIENT_MAX:
            return False
        groups.add(name)
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroup(name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        now_ms = self._clock.monotonic_ms()
        member = group.members.get(peer)
        is_new = member is None or member.client_id != client_id
        if member is None or is_new:
            member = Member(client_id, peer, language, version, now_ms)
            group.members[peer] = member
        member.last_seen_ms = now_ms
        before = group.subscriptions
        wanted = {item.topic: item for item in data.subscriptions[:SUBSCRIPTIONS_MAX]}
        if is_new or wanted != member.subscriptions:
            member.subscriptions = wanted
            self._renew(group)
        # Versions grow with every rebalance; only a topic that comes or goes is news.
        is_changed = is_new or before.keys() != group.subscriptions.keys()
        if is_changed:
            if is_new:
                logger.info("group=%s client=%s peer=%s joined", name, client_id, peer.address)
            self._tell(group)
        return is_changed

    def _renew(self, group: ConsumerGroup) -> None:
        before = set(group.mismatches)
        group.renew()
        for item in group.mismatches:
            if item not in before:
                self.mismatches_total += 1
                logger.warning("%s", item)

    def unregister_producer(self, group: str, client_id: str, peer: Peer) -> None:
        """A producer leaves a group."""
        members = self._producers.get(group, {})
        member = members.get(peer)
        if member is not None and member.client_id == client_id:
            self._remove_producer(group, peer)

    def unregister_consumer(self, group: str, client_id: str, peer: Peer) -> None:
        """A consumer leaves a group."""
        found = self._consumers.get(group)
        member = None if found is None else found.members.get(peer)
        if member is not None and member.client_id == client_id:
            self._remove_consumer(group, peer)

    def connection_lost(self, peer: Peer) -> None:
        """A connection has ended: whoever was there by it is gone."""
        for group in sorted(self._producer_groups_of.pop(peer, ())):
            self._remove_producer(group, peer)
        for group in sorted(self._consumer_groups_of.pop(peer, ())):
            self._remove_consumer(group, peer)

    def drop_expired(self) -> None:
        """Drop those who have not been heard of for too long."""
        before_ms = self._clock.monotonic_ms() - self._expiry_ms()
        gone: dict[Peer, None] = {}
        for members in [*self._producers.values(), *(g.members for g in self._consumers.values())]:
            for peer, member in list(members.items()):
                if member.last_seen_ms <= before_ms:
                    gone[peer] = None
        for peer in gone:
            logger.warning("peer=%s has not sent a heartbeat, closed", peer.address)
            self.connection_lost(peer)
            peer.close()

    def _remove_producer(self, group: str, peer: Peer) -> None:
        self._producer_groups_of.get(peer, set()).discard(group)
        members = self._producers.get(group)
        member = None if members is None else members.pop(peer, None)
        if members is not None and not members:
            del self._producers[group]
        if member is not None and self._by_id.get(member.client_id) is peer:
            still_there = any(
                found.client_id == member.client_id
                for other in self._producer_groups_of.get(peer, ())
                if (found := self._producers[other].get(peer)) is not None
            )
            if not still_there:
                del self._by_id[member.client_id]

    def _remove_consumer(self, name: str, peer: Peer) -> None:
        self._consumer_groups_of.get(peer, set()).discard(name)
        group = self._consumers.get(name)
        member = None if group is None else group.members.pop(peer, None)
        if group is None or member is None:
            return
        logger.info("group=%s client=%s peer=%s left", name, member.client_id, peer.address)
        if not group.members:
            del self._consumers[name]
            self.on_group_gone(name)
            return
        self._renew(group)
        self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        if self._may_notify(group.name):
            self.notify(
                group.members,
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                {"consumerGroup": group.name},
            )

    @staticmethod
    def notify(peers: Iterable[Peer], code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a oneway request to each; one that is going will not miss it."""
        for peer in list(peers):
            try:
                peer.notify(Command.request(code, dict(fields), body, oneway=True))
            except ConnectionLost as error:
                logger.debug("peer=%s was not told: %s", peer.address, error)
