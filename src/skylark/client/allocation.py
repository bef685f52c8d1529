"""Allocation: which queues of a topic are mine?

Nobody hands queues out. Every member of a group sorts the same queues and the same client ids,
applies the same rule, and takes its own share; so the rules are part of the protocol and agree
with RocketMQ's to the last queue. n queues, c clients, i the own place among them:

    name             who takes what
    AVG              a run of n // c neighbours, one more for the first n % c clients
    AVG_BY_CIRCLE    every c-th queue, starting with the i-th
    CONFIG           what the configuration says, whoever else is there
    MACHINE_ROOM     only brokers named `room@…` of the rooms given: n // c neighbours, then one
                     of the remaining n % c
    CONSISTENT_HASH  the client whose point follows the queue's on a ring of MD5 values
    MACHINE_ROOM_NEARBY-…   another rule inside each room; rooms without clients are shared by all
    STICKY           as even as AVG, and a client that comes or goes moves little beside its own
                     share; known to skylark's clients only

A client that is not among the ids takes nothing.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from ..model.queue import MessageQueue

logger = logging.getLogger(__name__)

VIRTUAL_NODES: Final = 10
ROOM_SEPARATOR: Final = "@"


class AllocationStrategy(Protocol):
    """A rule that all members of a group apply alike."""

    @property
    def name(self) -> str:
        """The name by which logs and tools know it."""
        ...

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client; queues and client ids come sorted."""
        ...


class Averagely:
    """Neighbouring queues, as many for each client as can be: RocketMQ's default."""

    name = "AVG"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        index = _index_of(group, client_id, client_ids)
        if index is None:
            return []
        least, rest = divmod(len(queues), len(client_ids))
        start = index * least + min(index, rest)
        return list(queues[start : start + least + (1 if index < rest else 0)])


class AveragelyByCircle:
    """Queues dealt out one by one, like cards."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        index = _index_of(group, client_id, client_ids)
        return [] if index is None else list(queues[index :: len(client_ids)])


class ByConfig:
    """The queues that the configuration names."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        return list(self._queues)


class ByMachineRoom:
    """Queues of brokers in certain rooms; a broker's name says its room before an @."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        index = _index_of(group, client_id, client_ids)
        if index is None:
            return []
        inside = [queue for queue in queues if self._is_inside(queue)]
        least, rest = divmod(len(inside), len(client_ids))
        mine = inside[index * least : index * least + least]
        if index < rest:
            mine.append(inside[least * len(client_ids) + index])
        return mine

    def _is_inside(self, queue: MessageQueue) -> bool:
        parts = queue.broker_name.split(ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self._rooms


class ConsistentHash:
    """A ring of hash values: a client that comes or goes moves only what it takes or leaves."""

    name = "CONSISTENT_HASH"

    def __init__(
        self, virtual_nodes: int = VIRTUAL_NODES, hash_of: Callable[[str], int] | None = None
    ) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"{virtual_nodes} virtual nodes; there must be at least one")
        self._virtual_nodes = virtual_nodes
        self._hash_of = hash_of or _md5_point

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        if _index_of(group, client_id, client_ids) is None:
            return []
        ring: dict[int, str] = {}
        for other in client_ids:
            for number in range(self._virtual_nodes):
                ring[self._hash_of(f"{other}-{number}")] = other
        points = sorted(ring)

        def owner_of(queue: MessageQueue) -> str:
            place = bisect_left(points, self._hash_of(_queue_text(queue)))
            return ring[points[place % len(points)]]

        return [queue for queue in queues if owner_of(queue) == client_id]


class MachineRoomNearby:
    """Another rule inside each room; queues in rooms without clients are shared by everybody.

    The two functions say in which room a queue and a client id are.
    """

    def __init__(
        self,
        inner: AllocationStrategy,
        *,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        if _index_of(group, client_id, client_ids) is None:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(self._room_of_queue(queue), []).append(queue)
        clients_by_room: dict[str, list[str]] = {}
        for other in client_ids:
            clients_by_room.setdefault(self._room_of_client(other), []).append(other)
        mine: list[MessageQueue] = []
        own_room = self._room_of_client(client_id)
        if own_room in queues_by_room:
            neighbours = clients_by_room[own_room]
            mine += self._inner.allocate(group, client_id, queues_by_room[own_room], neighbours)
        for room, deserted in sorted(queues_by_room.items()):
            if room not in clients_by_room:
                mine += self._inner.allocate(group, client_id, deserted, client_ids)
        return mine


class Sticky:
    """Even shares that change little when a client comes or goes.

    Members cannot tell each other who has what, so the rule has no memory: every pair of queue and
    client has a weight out of both names, and the heaviest pairs are made first while the client
    has room. What decides a queue's place is then almost only its own pairs. With all clients but
    one unchanged, most queues find the same client again; those that do not make room for, or fill
    the room of, the one that changed.
    """

    name = "STICKY"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of one client."""
        if _index_of(group, client_id, client_ids) is None:
            return []
        least, rest = divmod(len(queues), len(client_ids))
        texts = [_queue_text(queue) for queue in queues]
        pairs = sorted(
            (_weight(text, other), place, other)
            for place, text in enumerate(texts)
            for other in client_ids
        )
        owner: dict[int, str] = {}
        taken = dict.fromkeys(client_ids, 0)
        for _, place, other in pairs:
            if place in owner or taken[other] > least or (taken[other] == least and not rest):
                continue
            if taken[other] == least:
                rest -= 1  # One of the few that may have one more than the others.
            owner[place] = other
            taken[other] += 1
        return [queue for place, queue in enumerate(queues) if owner[place] == client_id]


def allocate_sorted(
    strategy: AllocationStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Sort queues and ids as every client does, then apply a rule."""
    ids = sorted(set(client_ids), key=_utf16)
    ordered = sorted(set(queues), key=_queue_order)
    return strategy.allocate(group, client_id, ordered, ids)


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return _utf16(queue.topic), _utf16(queue.broker_name), queue.queue_id


def _utf16(text: str) -> bytes:
    # Java compares strings unit by unit, which differs from Python beyond U+FFFF.
    return text.encode("utf-16-be", "surrogatepass")


def _index_of(group: str, client_id: str, client_ids: Sequence[str]) -> int | None:
    if client_id in client_ids:
        return client_ids.index(client_id)
    logger.info("group=%s client=%s is not among its members %s", group, client_id, client_ids)
    return None


def _queue_text(queue: MessageQueue) -> str:
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _md5_point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


def _weight(queue_text: str, client_id: str) -> bytes:
    return hashlib.blake2b(f"{client_id}\n{queue_text}".encode(), digest_size=8).digest()


def room_of_broker_name(queue: MessageQueue) -> str:
    """The room of a queue whose broker is named `room@…`; the whole name where it has none."""
    return queue.broker_name.partition(ROOM_SEPARATOR)[0]


STRATEGIES: Final[dict[str, Callable[[], AllocationStrategy]]] = {
    Averagely.name: Averagely,
    AveragelyByCircle.name: AveragelyByCircle,
    ConsistentHash.name: ConsistentHash,
    Sticky.name: Sticky,
}
"""The rules that need no further settings, by name."""
