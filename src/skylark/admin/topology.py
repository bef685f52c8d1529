"""Topology: which brokers there are, how they stand, and what is unsafe right now.

    ClusterStatus    all of it
    BrokerGroup      one broker name: a master and its replicas, or a Raft group
    MemberStatus     one broker process
    Problem          what is unsafe, and the next step

Nothing here asks anybody: survey.py does, and find_problems judges what it brought.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import NoRoute
from ..model.route import MASTER_ID, ClusterInfo
from ..model.topic import TopicConfig, is_dlq_topic, is_retry_topic, is_system_topic
from .raft_figures import RaftFigures

IN_SYNC_BYTES: Final = 1 << 20  # A replica that is less behind loses nothing by a short absence.
DISK_RATIO_MAX: Final = 0.85
WRITE: Final = 2
_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """What is unsafe, and what to do about it."""

    what: str
    next_step: str
    broker: str | None = None

    def __str__(self) -> str:
        return f"{self.what}; {self.next_step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One broker process, by its own account."""

    broker: str
    broker_id: int
    address: str
    is_reachable: bool = True
    version: str = ""
    role: str = ""
    booted_at_ms: int | None = None
    log_end: int | None = None
    lag_bytes: int | None = None  # Behind the master; None for a master, and where it is not known.
    is_following: bool | None = None
    disk_used_ratio: float = 0.0
    permission: int | None = None
    keeps_settings: bool = True  # Whether a changed setting survives its next start.
    put_total: int = 0
    trouble: str = ""  # Its own words on what keeps it from replicating.
    raft: RaftFigures = field(default_factory=RaftFigures)

    @property
    def is_master(self) -> bool:
        """Whether writes go there."""
        return self.broker_id == MASTER_ID

    @property
    def is_in_sync(self) -> bool:
        """Whether it has what its master has, but for what is on its way."""
        if self.is_master:
            return self.is_reachable
        return (
            self.is_reachable
            and self.is_following is not False
            and self.lag_bytes is not None
            and self.lag_bytes <= IN_SYNC_BYTES
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup:
    """One broker name."""

    cluster: str
    name: str
    members: tuple[MemberStatus, ...]
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, repr=False)
    system_topics: frozenset[str] = frozenset()
    unconsumed: int = 0  # Messages that some group has not read yet, summed over all groups.
    wiped_at: tuple[str, ...] = ()  # Name servers that show it without write permission.

    @property
    def master(self) -> MemberStatus | None:
        """Who takes writes, if anybody does."""
        return next((member for member in self.members if member.is_master), None)

    @property
    def replicas(self) -> tuple[MemberStatus, ...]:
        """The others."""
        return tuple(member for member in self.members if not member.is_master)

    @property
    def is_writable(self) -> bool:
        """Whether producers are sent there."""
        master = self.master
        return (
            master is not None
            and master.is_reachable
            and (master.permission is None or bool(master.permission & WRITE))
            and not self.wiped_at
        )

    @property
    def is_raft(self) -> bool:
        """Whether it elects its master."""
        return any(member.raft for member in self.members)

    @property
    def wants_replicas(self) -> bool:
        """Whether it is meant to have copies: it has some, or its master waits for them."""
        master = self.master
        return bool(self.replicas) or (master is not None and master.role == "SYNC_MASTER")

    @property
    def own_topics(self) -> dict[str, TopicConfig]:
        """The topics that people made: no system, retry or dead letter topics."""
        return {
            name: topic
            for name, topic in sorted(self.topics.items())
            if name not in self.system_topics
            and not (is_system_topic(name) or is_retry_topic(name) or is_dlq_topic(name))
        }


@dataclass(frozen=True, slots=True)
class NameServerStatus:
    """One name server, and the brokers that it knows."""

    address: str
    info: ClusterInfo | None  # None where it does not answer.
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All brokers and name servers."""

    groups: tuple[BrokerGroup, ...]
    name_servers: tuple[NameServerStatus, ...]
    problems: tuple[Problem, ...]

    @property
    def is_safe(self) -> bool:
        """Whether nothing needs an operator."""
        return not self.problems

    def group(self, name: str) -> BrokerGroup:
        """One of them; raises NoRoute."""
        for group in self.groups:
            if group.name == name:
                return group
        known = ", ".join(group.name for group in self.groups) or "none"
        raise NoRoute(f"no broker named {name!r} is registered", hint=f"brokers: {known}")

    def last_writable(self, name: str) -> list[str]:
        """The topics that nobody else takes messages for."""
        return [
            topic
            for topic, config in self.group(name).own_topics.items()
            if config.is_writable
            and not any(
                other.name != name and other.is_writable and _has_writable(other, topic)
                for other in self.groups
            )
        ]


def find_problems(
    groups: Iterable[BrokerGroup], servers: Iterable[NameServerStatus]
) -> Iterable[Problem]:
    """What is unsafe, in an order that is always the same."""
    groups, servers = tuple(groups), tuple(servers)
    for server in servers:
        if server.info is None:
            yield Problem(
                f"name server {server.address} does not answer: {server.failure}",
                "start it, or take it out of namesrvAddr",
            )
    for group in groups:
        yield from _problems_of_group(group)
        for server in servers:
            known = None if server.info is None else server.info.brokers.get(group.name)
            missing = sorted(
                {member.address for member in group.members}
                - set(() if known is None else known.addresses.values())
            )
            if server.info is not None and missing:
                yield Problem(
                    f"name server {server.address} does not know {', '.join(missing)}",
                    "wait for one heartbeat (30 s); if it stays so, look at the broker's log",
                    group.name,
                )
    yield from _topics_without_writers(groups)


def _problems_of_group(group: BrokerGroup) -> Iterable[Problem]:
    name, master = group.name, group.master
    for member in group.members:
        if not member.is_reachable:
            yield Problem(
                f"{name} at {member.address} does not answer: {member.trouble}",
                "start it; the name servers drop it after 120 s",
                name,
            )
        elif member.disk_used_ratio >= DISK_RATIO_MAX:
            yield Problem(
                f"the disk of {name} at {member.address} is {member.disk_used_ratio:.0%} full",
                "make room or lower fileReservedTime: at 90 % it takes no more writes",
                name,
            )
    if master is None:
        yield Problem(
            f"{name} has no master: nobody can send to it",
            "wait for an election" if group.is_raft else "start its master",
            name,
        )
    if group.is_raft:
        members = {member.address: member.raft for member in group.members if member.is_reachable}
        for what, next_step in RaftFigures.problems(name, members):
            yield Problem(what, next_step, name)
        return
    for replica in group.replicas:
        if replica.is_reachable and replica.is_following is False:
            why = f": {replica.trouble}" if replica.trouble else ""
            yield Problem(
                f"replica {replica.address} of {name} does not follow its master{why}",
                "see docs/operations/replication.md for what it says",
                name,
            )
    if group.wants_replicas and not any(replica.is_in_sync for replica in group.replicas):
        behind = [
            replica.lag_bytes
            for replica in group.replicas
            if replica.lag_bytes and replica.is_reachable and replica.is_following is not False
        ]
        least = f", the nearest is {min(behind)} bytes behind" if behind else ""
        yield Problem(
            f"no replica of {name} is in sync{least}",
            "do not stop its master; start a replica, or wait until it has caught up",
            name,
        )


def _topics_without_writers(groups: tuple[BrokerGroup, ...]) -> Iterable[Problem]:
    writable: dict[str, bool] = {}
    for group in groups:
        for topic, config in group.own_topics.items():
            if config.is_writable:
                writable[topic] = writable.get(topic, False) or group.is_writable
    stuck = sorted(topic for topic, is_writable in writable.items() if not is_writable)
    if stuck:
        yield Problem(
            f"nobody takes messages for {name_some(stuck)}",
            "`skylark cluster drain BROKER --undo` gives a broker its writes back",
        )


def name_some(names: Iterable[str]) -> str:
    """Some of many names, and how many more there are."""
    listed = list(names)
    more = len(listed) - _NAMES_SHOWN
    text = ", ".join(listed[:_NAMES_SHOWN])
    return f"{text} and {more} more" if more > 0 else text


def _has_writable(group: BrokerGroup, topic: str) -> bool:
    config = group.topics.get(topic)
    return config is not None and config.is_writable
