"""Rolling restarts: one broker process after another, and none while that is unsafe.

    for each process, replicas before their master:
        waiting        producers hear that the one before has its writes back: one that knows of no
                       other broker than the next would have nowhere to turn
        checked        nothing forbids it (restart_obstacles)
        writes off     at the name servers, where others can take over; producers turn away
        settled        nothing is written any more, or the time for that is over
        restarting     whoever called does it: runs a command, or asks a person
        back           it answers, has been started anew, and all name servers know it
        caught up      it and its group have everything that they shall have
        writes on      all name servers show its topics as they were

Write permission is taken at the name servers alone: it comes back with the registration of the
new process, even if nobody is left to give it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..errors import BrokerError, ClientError, NoRoute, SkylarkError, TransportError
from .draining import SETTLE_MS, DrainActions
from .raft_figures import RaftFigures
from .topology import (
    DISK_RATIO_MAX,
    BrokerGroup,
    ClusterStatus,
    MemberStatus,
    Problem,
    name_some,
)

BACK_MS: Final = 600_000
QUIET_MS: Final = 2_000  # So long without a write, and producers have turned away.
_LOOK_MS: Final = 500


class Step(StrEnum):
    """How far the restart of one process is."""

    WAITING = "waiting"
    CHECKED = "checked"
    WRITES_OFF = "writes off"
    SETTLED = "settled"
    RESTARTING = "restarting"
    BACK = "back"
    CAUGHT_UP = "caught up"
    WRITES_ON = "writes on"


@dataclass(frozen=True, slots=True)
class RestartEvent:
    """One step of one process."""

    broker: str
    broker_id: int
    address: str
    step: Step
    number: int  # Which process this is, from 1 on.
    total: int


@dataclass(frozen=True, slots=True)
class RestartCheck:
    """One process in the order of a rolling restart, and what forbids restarting it now."""

    member: MemberStatus
    obstacles: tuple[Problem, ...]


Restart = Callable[[MemberStatus], Awaitable[None]]
"""Restarts one process, or has it restarted; need not wait until it is back."""


class RollingActions(DrainActions):
    """The part of AdminClient that restarts brokers, one after another."""

    async def check_restart(
        self, broker: str | None = None, *, cluster: str | None = None, force: bool = False
    ) -> list[RestartCheck]:
        """Whether each process of a broker, of a cluster, or of all, could be restarted now."""
        status = await self.cluster_status()
        return [
            RestartCheck(member, tuple(restart_obstacles(status, group, member, force=force)))
            for group in _meant(status, broker, cluster)
            for member in in_order(group)
        ]

    async def rolling_restart(
        self,
        restart: Restart,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        force: bool = False,
        settle_ms: int = SETTLE_MS,
        back_ms: int = BACK_MS,
    ) -> AsyncIterator[RestartEvent]:
        """Restart processes of a broker, a cluster or all, one by one; ClientError if unsafe.

        After an error nothing more is restarted; what was done stays done, and it can be repeated.
        """
        status = await self.cluster_status()
        groups = _meant(status, broker, cluster)
        plan = [member for group in groups for member in in_order(group)]
        # When all producers know where else to send.
        known_at_ms = self._clock.monotonic_ms() + self._unknown_ms(status, settle_ms)
        for number, member in enumerate(plan, 1):

            def event(
                step: Step, member: MemberStatus = member, number: int = number
            ) -> RestartEvent:
                return RestartEvent(
                    member.broker, member.broker_id, member.address, step, number, len(plan)
                )

            if known_at_ms > self._clock.monotonic_ms():
                yield event(Step.WAITING)
                await self._clock.sleep_ms(known_at_ms - self._clock.monotonic_ms())
            before, found = await self._require_safe(member, force=force)
            yield event(Step.CHECKED)
            group = before.group(member.broker)
            turns_away = (
                group.is_writable
                and _stops_writes(group, found)
                and not before.last_writable(group.name)
            )
            if turns_away:
                await self._wipe(group)
                yield event(Step.WRITES_OFF)
                await self._wait_quiet(group, settle_ms)
                yield event(Step.SETTLED)
            try:
                yield event(Step.RESTARTING)
                await restart(found)
                await self._wait_back(before, found, back_ms)
                yield event(Step.BACK)
                await self._wait_caught_up(before, found, back_ms)
                yield event(Step.CAUGHT_UP)
            except BaseException:
                if turns_away:
                    # It may still run as it did. If it does not, its next start gives them back.
                    with contextlib.suppress(SkylarkError):
                        await self._give_writes_back(group)
                raise
            if turns_away:
                await self._give_writes_back(group)
                known_at_ms = self._clock.monotonic_ms() + settle_ms
                yield event(Step.WRITES_ON)

    def _unknown_ms(self, status: ClusterStatus, settle_ms: int) -> int:
        """How long it may take until all producers know of the broker that was started last."""
        booted = [
            member.booted_at_ms
            for group in status.groups
            for member in group.members
            if member.booted_at_ms is not None
        ]
        age_ms = self._clock.now_ms() - max(booted, default=0)
        return min(settle_ms, max(0, settle_ms - age_ms))

    async def _require_safe(
        self, member: MemberStatus, *, force: bool
    ) -> tuple[ClusterStatus, MemberStatus]:
        status = await self.cluster_status()
        group = status.group(member.broker)
        # Roles may have changed since the plan was made; the address stays.
        found = next((one for one in group.members if one.address == member.address), None)
        if found is None:
            raise ClientError(
                f"{member.broker} at {member.address} is not registered any more",
                hint="start it, then repeat this",
                broker=member.broker,
            )
        obstacles = list(restart_obstacles(status, group, found, force=force))
        if obstacles:
            raise ClientError(
                f"it is not safe to restart {member.broker} at {member.address}: "
                f"{obstacles[0].what}",
                hint=obstacles[0].next_step,
                broker=member.broker,
            )
        return status, found

    async def _wait_quiet(self, group: BrokerGroup, settle_ms: int) -> None:
        """Until nothing has been written for a while, at most until all clients know."""
        assert group.master is not None
        remote = self._remote(group.master.address)
        end_ms = self._clock.monotonic_ms() + settle_ms
        total, since_ms = "", self._clock.monotonic_ms()
        while (now_ms := self._clock.monotonic_ms()) < end_ms:
            seen = (await remote.get_runtime_info()).get("msgPutTotalTodayNow", "")
            if seen != total:
                total, since_ms = seen, now_ms
            elif now_ms - since_ms >= QUIET_MS:
                return
            await self._clock.sleep_ms(_LOOK_MS)

    async def _wait_back(self, before: ClusterStatus, member: MemberStatus, within_ms: int) -> None:
        end_ms = self._clock.monotonic_ms() + within_ms
        servers = {s.address for s in before.name_servers if s.info is not None}
        while True:
            now = await self.member_status(member.broker, member.broker_id, member.address)
            why = f"it does not answer: {now.trouble}"
            if now.is_reachable:
                why = "it has not been restarted"
                if now.booted_at_ms != member.booted_at_ms:
                    missing = await self._not_knowing(member, servers)
                    if not missing:
                        return
                    why = f"name server {missing[0]} does not know it"
            if self._clock.monotonic_ms() >= end_ms:
                raise ClientError(
                    f"{member.broker} at {member.address} is not back after "
                    f"{within_ms // 1000} s: {why}",
                    hint="look at its log; when it is back, repeat this",
                    broker=member.broker,
                )
            await self._clock.sleep_ms(_LOOK_MS)

    async def _not_knowing(self, member: MemberStatus, servers: Iterable[str]) -> list[str]:
        missing = []
        for server in self._name_servers.each():
            if server.address in servers:
                try:
                    known = (await server.get_cluster_info()).brokers.get(member.broker)
                except TransportError:
                    known = None
                if known is None or member.address not in known.addresses.values():
                    missing.append(server.address)
        return missing

    async def _wait_caught_up(
        self, before: ClusterStatus, member: MemberStatus, within_ms: int
    ) -> None:
        """Until everybody in the group who was in sync is so again."""
        end_ms = self._clock.monotonic_ms() + within_ms
        wanted = {m.address for m in before.group(member.broker).members if m.is_in_sync}
        wanted.add(member.address)
        while True:
            late = wanted
            try:
                group = (await self.cluster_status()).group(member.broker)
            except (NoRoute, TransportError, BrokerError):
                group = None
            if group is not None and group.master is not None:
                late = wanted - {one.address for one in group.members if one.is_in_sync}
                if not late:
                    return
            if self._clock.monotonic_ms() >= end_ms:
                raise ClientError(
                    f"{member.broker}: {name_some(sorted(late))} has not caught up after "
                    f"{within_ms // 1000} s",
                    hint="`skylark cluster status` says how far it is; then repeat this",
                    broker=member.broker,
                )
            await self._clock.sleep_ms(_LOOK_MS)

    async def _give_writes_back(self, group: BrokerGroup) -> None:
        """Make all name servers show the topics as they are; a new process does so by itself."""
        now = (await self.cluster_status()).group(group.name)
        if now.wiped_at:
            await self.undrain(group.name)
        elif now.is_writable:
            await self._wait_writable(now)


def _meant(status: ClusterStatus, broker: str | None, cluster: str | None) -> list[BrokerGroup]:
    if broker is not None:
        return [status.group(broker)]
    found = [group for group in status.groups if cluster in (None, group.cluster)]
    if not found:
        known = ", ".join(sorted({group.cluster for group in status.groups}))
        raise NoRoute(f"no cluster {cluster!r}", hint=f"clusters are: {known}")
    return found


def in_order(group: BrokerGroup) -> list[MemberStatus]:
    """The processes of a group, replicas before their master."""
    return sorted(group.members, key=lambda member: -member.broker_id)


def restart_obstacles(
    status: ClusterStatus, group: BrokerGroup, member: MemberStatus, *, force: bool = False
) -> Iterable[Problem]:
    """What forbids restarting one process now; force lets topics stand still meanwhile."""
    name = group.name
    if not member.is_reachable:
        yield Problem(f"it does not answer: {member.trouble}", "start it first", name)
        return
    if member.disk_used_ratio >= DISK_RATIO_MAX:
        yield Problem(
            f"its disk is {member.disk_used_ratio:.0%} full, and a start writes",
            "make room first",
            name,
        )
    others = [one for one in group.members if one is not member]
    for one in others:
        if not one.is_in_sync:
            what = "does not answer" if not one.is_reachable else "is still catching up"
            yield Problem(f"{one.address} of the same group {what}", "wait until it is there", name)
    if group.is_raft:
        majority = RaftFigures.majority((one.raft for one in group.members), len(group.members))
        there = sum(one.is_in_sync and one.raft.may_vote for one in others)
        if there < majority:
            yield Problem(
                f"without it {name} has {there} members, and needs {majority} to take writes",
                "start the others first",
                name,
            )
        return
    if member.is_master and group.wants_replicas and not any(o.is_in_sync for o in others):
        yield Problem(
            f"no replica of {name} is in sync", "start one, or wait until it has caught up", name
        )
    if not member.is_master and not member.is_in_sync:
        yield Problem("it is still catching up", "wait until it has", name)
    last = status.last_writable(name)
    if last and not force and group.is_writable and _stops_writes(group, member):
        yield Problem(
            f"{name} is the last broker that takes messages for {name_some(last)}",
            "add a broker with `skylark cluster add`, or let sends wait meanwhile with --force",
            name,
        )


def _stops_writes(group: BrokerGroup, member: MemberStatus) -> bool:
    """Whether sends to the group fail, or are answered as less safe, while a process is away."""
    if group.is_raft:
        return member.is_master
    master = group.master
    if member.is_master or master is None:
        return member.is_master
    others = [one for one in group.replicas if one is not member and one.is_in_sync]
    return master.role == "SYNC_MASTER" and not others
