"""Growing: giving a broker that has just been started the topics and groups of its cluster.

    plan = await admin.plan_growth("broker-c")      what would be made, and what is there already
    grown = await admin.grow(plan)                  makes it; reads it back from all name servers

Queue numbers and permissions are those of the broker that is copied: the one named with `like`, or
for each topic the first of the cluster, by name, that has it. What is there with other settings
is left as it is and reported. Doing it twice changes nothing.

An ordered topic keeps its keys on the same queues only as long as their number stays the same. It
is left out unless asked for; then the broker is added to its ORDER_TOPIC_CONFIG as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..errors import BrokerError, ClientError
from ..model.group import SubscriptionGroupConfig, is_system_group
from ..model.topic import TopicConfig
from ..remote import RemoteNameServer
from .asking import each
from .survey import SurveyActions
from .topology import BrokerGroup, ClusterStatus, name_some

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
ROUTES_WITHIN_MS: Final = 10_000
_LOOK_MS: Final = 200
_TOPIC_NOT_EXIST: Final = 17


class Planned(StrEnum):
    """What becomes of one topic or group."""

    NEW = "new"
    SAME = "same"  # It is there, exactly so.
    OTHER = "differs"  # It is there with other settings, and stays so.
    ORDERED = "ordered"  # It is left out, since its order would suffer.


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """One topic, and where its settings come from."""

    topic: TopicConfig
    source: str
    state: Planned


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """One subscription group."""

    group: SubscriptionGroupConfig
    source: str
    state: Planned


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """What a broker would get."""

    broker: str
    address: str
    topics: tuple[PlannedTopic, ...]
    groups: tuple[PlannedGroup, ...]
    is_writable: bool  # Whether producers are sent there at all.
    order: Mapping[str, str]  # Ordered topic → its new ORDER_TOPIC_CONFIG.


@dataclass(frozen=True, slots=True)
class GrownTopic:
    """What producers see of a topic: queues to write to, before and after."""

    topic: str
    queues_before: int
    queues_after: int
    brokers: tuple[str, ...]


class GrowthActions(SurveyActions):
    """The part of AdminClient that fills new brokers."""

    async def plan_growth(
        self,
        broker: str,
        *,
        like: str | None = None,
        topics: Iterable[str] | None = None,
        order_topics: bool = False,
    ) -> GrowthPlan:
        """What it would take to let a broker share the work; raises NoRoute and ClientError."""
        status = await self.cluster_status()
        target = status.group(broker)
        master = target.master
        if master is None or not master.is_reachable:
            raise ClientError(
                f"broker {broker} has no master that answers", hint="start it", broker=broker
            )
        sources = _sources(status, target, like)
        wanted = _wanted(sources, topics)
        ordered = await self._order_settings()
        planned, order = [], {}
        for name, (topic, source) in wanted.items():
            is_ordered = topic.order or name in ordered
            known = target.topics.get(name)
            if known is not None and _shape(known) == _shape(topic):
                state = Planned.SAME
            elif known is not None:
                state = Planned.OTHER
            else:
                state = Planned.ORDERED if is_ordered and not order_topics else Planned.NEW
            if is_ordered and state in (Planned.NEW, Planned.SAME):
                entry = ordered.get(name, "")
                if not _is_in_order(entry, broker):
                    order[name] = f"{entry};{broker}:{topic.write_queue_nums}".lstrip(";")
            planned.append(PlannedTopic(topic, source, state))
        groups = await self._planned_groups(target, sources)
        return GrowthPlan(
            broker,
            master.address,
            tuple(planned),
            tuple(groups),
            target.is_writable,
            order if order_topics else {},
        )

    async def _planned_groups(
        self, target: BrokerGroup, sources: Iterable[BrokerGroup]
    ) -> list[PlannedGroup]:
        found: dict[str, tuple[SubscriptionGroupConfig, str]] = {}
        for source in sources:
            for name, group in (await self._groups_of(source)).items():
                if not is_system_group(name):
                    found.setdefault(name, (group, source.name))
        there = await self._groups_of(target)
        return [
            PlannedGroup(
                group,
                source,
                Planned.NEW
                if name not in there
                else Planned.SAME
                if there[name] == group
                else Planned.OTHER,
            )
            for name, (group, source) in sorted(found.items())
        ]

    async def _groups_of(self, group: BrokerGroup) -> Mapping[str, SubscriptionGroupConfig]:
        address = next(member.address for member in group.members if member.is_reachable)
        return (await self._remote(address).get_groups()).groups

    async def _order_settings(self) -> dict[str, str]:
        return dict(await self._name_servers.get_kv_namespace(ORDER_TOPIC_CONFIG) or {})

    async def grow(self, plan: GrowthPlan) -> list[GrownTopic]:
        """Make what is new, and wait until all name servers show it; raises ClientError.

        Groups come first: a consumer that is sent to the broker must find its group there.
        """
        remote = self._remote(plan.address)
        for group in plan.groups:
            if group.state is Planned.NEW:
                await remote.put_group(group.group)
        before = {
            item.topic.name: await self._write_queues(item.topic.name) for item in plan.topics
        }
        for item in plan.topics:
            if item.state is Planned.NEW:
                await remote.put_topic(item.topic)
        for name, value in plan.order.items():
            for server in self._name_servers.each():
                await server.put_kv(ORDER_TOPIC_CONFIG, name, value)
        names = [item.topic.name for item in plan.topics if item.state is Planned.NEW]
        await self._wait_routes(plan.broker, names)
        grown = []
        for item in plan.topics:
            name = item.topic.name
            after = await self._write_queues(name)
            grown.append(
                GrownTopic(
                    name, sum(before[name].values()), sum(after.values()), tuple(sorted(after))
                )
            )
        return grown

    async def _write_queues(self, topic: str) -> dict[str, int]:
        """How many queues each broker offers to producers."""
        try:
            route = await self._name_servers.find_route(topic)
        except BrokerError as error:
            if error.code != _TOPIC_NOT_EXIST:
                raise
            return {}
        return {q.broker_name: q.write_queue_nums for q in route.queues if q.is_writable}

    async def _wait_routes(self, broker: str, topics: list[str]) -> None:
        """Until every name server shows the topics on a broker."""
        end_ms = self._clock.monotonic_ms() + ROUTES_WITHIN_MS
        for server in self._name_servers.each():

            async def is_there(topic: str, server: RemoteNameServer = server) -> bool:
                try:
                    route = await server.get_route(topic)
                except BrokerError as error:
                    if error.code != _TOPIC_NOT_EXIST:
                        raise
                    return False
                return any(queues.broker_name == broker for queues in route.queues)

            missing = topics
            while missing:
                found = await each(is_there, missing)
                missing = [t for t, there in zip(missing, found, strict=True) if not there]
                if missing and self._clock.monotonic_ms() >= end_ms:
                    raise ClientError(
                        f"name server {server.address} does not show {name_some(missing)} "
                        f"on {broker} after {ROUTES_WITHIN_MS // 1000} s",
                        hint="see whether the broker registers there, then repeat this",
                        broker=broker,
                    )
                if missing:
                    await self._clock.sleep_ms(_LOOK_MS)


def _sources(status: ClusterStatus, target: BrokerGroup, like: str | None) -> list[BrokerGroup]:
    if like is not None:
        if like == target.name:
            raise ClientError(f"broker {like} cannot be filled from itself", hint="name another")
        return [status.group(like)]
    found = [
        group
        for group in status.groups
        if group.cluster == target.cluster
        and group.name != target.name
        and any(member.is_reachable for member in group.members)
    ]
    if not found:
        raise ClientError(
            f"{target.name} is the only broker of cluster {target.cluster} that answers",
            hint="name the broker to copy with --like, or check brokerClusterName",
            broker=target.name,
        )
    return found


def _wanted(
    sources: Iterable[BrokerGroup], topics: Iterable[str] | None
) -> dict[str, tuple[TopicConfig, str]]:
    found: dict[str, tuple[TopicConfig, str]] = {}
    for source in sources:
        for name, topic in source.own_topics.items():
            found.setdefault(name, (topic, source.name))
    if topics is None:
        return dict(sorted(found.items()))
    names = list(dict.fromkeys(topics))
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ClientError(
            f"no broker to copy from has {name_some(unknown)}",
            hint="`skylark topic list` shows all; names are case-sensitive",
        )
    return {name: found[name] for name in names}


def _shape(topic: TopicConfig) -> tuple[object, ...]:
    """What a copy must have in common; the order mark follows ORDER_TOPIC_CONFIG by itself."""
    return (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.filter_type)


def _is_in_order(entry: str, broker: str) -> bool:
    return any(part.strip().rpartition(":")[0] == broker for part in entry.split(";"))


def without_broker(entry: str, broker: str) -> str:
    """An ORDER_TOPIC_CONFIG without one broker."""
    parts = [part.strip() for part in entry.split(";")]
    return ";".join(part for part in parts if part and part.rpartition(":")[0] != broker)
