"""Draining: taking a broker out of service without losing anything.

    1   write permission goes: at the broker (brokerPermission, so that no registration and no new
        leader brings it back) and at every name server (at once)
    2   wait until nobody writes any more, every group has read everything, retries included,
        and nothing is delayed or half done
    3   it may be stopped

The broker takes messages of producers that have not heard of it yet, as RocketMQ's does: clients
ask for routes every 30 s, so the broker must have been quiet for a little longer. Everything can be
repeated, and taken back with undrain().
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Final

from ..errors import BrokerError, ClientError, NoRoute, TransportError
from ..remote import RemoteNameServer
from .asking import each
from .growth import ORDER_TOPIC_CONFIG, GrowthActions, without_broker
from .leftovers import DrainProgress, what_is_left
from .topology import WRITE, BrokerGroup, name_some

AWAY_MS: Final = 60_000  # So long the broker may be without a master while it is drained.
SETTLE_MS: Final = 35_000  # Clients ask for routes every 30 s.
ROUTES_WITHIN_MS: Final = 10_000
_LOOK_MS: Final = 200

_Wanted = Callable[[bool, bool], bool]
"""Whether a permission is as it shall be: what the topic has, what a name server shows."""


class DrainActions(GrowthActions):
    """The part of AdminClient that empties brokers."""

    async def check_drain(
        self, broker: str, *, force: bool = False, order_topics: bool = False
    ) -> BrokerGroup:
        """Whether a broker may be drained; raises NoRoute, and ClientError with what forbids it."""
        status = await self.cluster_status()
        group = status.group(broker)
        last = status.last_writable(broker)
        if last and not force:
            raise ClientError(
                f"{broker} is the last broker that takes messages for {name_some(last)}",
                hint="add another with `skylark cluster add`, or stop the producers and use "
                "--force",
                broker=broker,
            )
        ordered = await self._ordered_on(group)
        if ordered and not order_topics:
            raise ClientError(
                f"{broker} has queues of ordered topics: {name_some(sorted(ordered))}",
                hint="--order-topics takes it out of their ORDER_TOPIC_CONFIG: keys move to other "
                "queues, and order is not kept across that moment",
                broker=broker,
            )
        return group

    async def _ordered_on(self, group: BrokerGroup) -> dict[str, str]:
        """Ordered topics of a broker, with their settings without it."""
        return {
            topic: rest
            for topic, entry in (await self._order_settings()).items()
            if (rest := without_broker(entry, group.name)) != entry.strip().rstrip(";")
            and topic in group.topics
        }

    async def drain(
        self,
        broker: str,
        *,
        force: bool = False,
        order_topics: bool = False,
        ignore_groups: Collection[str] = (),
        settle_ms: int = SETTLE_MS,
        every_ms: int = 1_000,
    ) -> AsyncIterator[DrainProgress]:
        """Take a broker out of service, and say again and again what is left, until is_done."""
        group = await self.check_drain(broker, force=force, order_topics=order_topics)
        notes = await self._take_writes(group)
        for topic, value in (await self._ordered_on(group)).items():
            for server in self._name_servers.each():
                await server.put_kv(ORDER_TOPIC_CONFIG, topic, value)
        written, since_ms = -1, self._clock.monotonic_ms()
        seen_ms = since_ms
        while True:
            now_ms = self._clock.monotonic_ms()
            try:
                total, left = await self._left(group, ignore_groups)
            except (TransportError, NoRoute):
                # It is restarted, or another one becomes master.
                if now_ms - seen_ms > AWAY_MS:
                    raise
            else:
                seen_ms = now_ms
                if total != written:
                    written, since_ms = total, now_ms
                progress = replace(
                    left, quiet_ms=now_ms - since_ms, settle_ms=settle_ms, notes=notes
                )
                yield progress
                if progress.is_done:
                    return
            await self._clock.sleep_ms(every_ms)

    async def undrain(self, broker: str) -> BrokerGroup:
        """Give a broker its write permission back, everywhere; raises ClientError."""
        group = (await self.cluster_status()).group(broker)
        for member in group.members:
            if not member.is_reachable:
                continue
            remote = self._remote(member.address)
            permission = 6 if member.permission is None else member.permission
            if member.is_master and permission & WRITE:
                # Only name servers have wiped it. A change makes it register all topics as they
                # are, where ADD_WRITE_PERM would give every topic the same permissions.
                await remote.update_config({"brokerPermission": str(permission & ~WRITE)})
            await remote.update_config({"brokerPermission": str(permission | WRITE)})
        await self._wait_writable(group)
        return group

    # Permissions.

    async def _take_writes(self, group: BrokerGroup) -> tuple[str, ...]:
        # First, since they may refuse it: then nothing has changed.
        notes = await self._wipe(group)
        for member in group.members:
            if not member.is_reachable:
                notes.append(
                    f"{member.address} does not answer, and would take writes as a new master"
                )
                continue
            permission = 6 if member.permission is None else member.permission
            if permission & WRITE:
                await self._remote(member.address).update_config(
                    {"brokerPermission": str(permission & ~WRITE)}
                )
            if not member.keeps_settings:
                notes.append(
                    f"{member.address} was started without a config file: after a restart it takes "
                    "writes again"
                )
        await self._wait_wiped(group)
        return tuple(notes)

    async def _wipe(self, group: BrokerGroup) -> list[str]:
        """Take write permission away at all name servers; says which have not heard it."""
        notes = []
        for server in self._name_servers.each():
            try:
                await server.wipe_write_perm(group.name)
            except TransportError as error:
                notes.append(f"name server {server.address} was not told: {error.problem}")
        return notes

    async def _wait_wiped(self, group: BrokerGroup) -> None:
        await self._wait_permission(group, is_wanted=lambda own, shown: not shown)

    async def _wait_writable(self, group: BrokerGroup) -> None:
        await self._wait_permission(group, is_wanted=lambda own, shown: own == shown)

    async def _wait_permission(self, group: BrokerGroup, *, is_wanted: _Wanted) -> None:
        """Until all name servers that answer show every topic as wanted; raises ClientError."""
        end_ms = self._clock.monotonic_ms() + ROUTES_WITHIN_MS
        waiting = list(group.own_topics)
        while True:
            wrong: list[str] = []
            for server in self._name_servers.each():

                async def look(topic: str, server: RemoteNameServer = server) -> bool:
                    try:
                        route = await server.get_route(topic)
                    except (BrokerError, TransportError):
                        return True  # It shows nothing, or nobody hears it.
                    own = group.own_topics[topic].is_writable
                    return all(
                        is_wanted(own, queues.is_writable)
                        for queues in route.queues
                        if queues.broker_name == group.name
                    )

                found = await each(look, waiting)
                wrong += [topic for topic, ok in zip(waiting, found, strict=True) if not ok]
            if not wrong:
                return
            if self._clock.monotonic_ms() >= end_ms:
                raise ClientError(
                    f"name servers do not show the new permission of {group.name} in "
                    f"{name_some(sorted(set(wrong)))}",
                    hint="see whether the broker registers there, then repeat this",
                    broker=group.name,
                )
            waiting = sorted(set(wrong))
            await self._clock.sleep_ms(_LOOK_MS)

    # What is left.

    async def _left(
        self, group: BrokerGroup, ignored: Collection[str]
    ) -> tuple[int, DrainProgress]:
        """How much has been written to a broker in all, and what it holds for somebody."""
        info = await self._name_servers.get_cluster_info()
        known = info.brokers.get(group.name)
        if known is None or known.master_address is None:
            raise NoRoute(
                f"broker {group.name} has no master, and nothing delivers what it holds",
                hint="start its master, or wait until a replica has taken over",
                broker=group.name,
            )
        master = self._remote(known.master_address)
        return await what_is_left(group, master, ignored)
