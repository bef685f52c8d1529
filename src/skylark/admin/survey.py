"""Survey: asks all name servers and brokers how they are, and changes nothing.

A member is asked for its runtime information and settings; what a broker of RocketMQ does not say
is left open. Members are asked at the same time, so a replica's lag is that of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..errors import BrokerError, NoRoute, TransportError
from ..model.route import MASTER_ID, BrokerData
from ..model.topic import TopicConfig
from .asking import each
from .raft_figures import RaftFigures
from .reach import Reach
from .topology import (
    WRITE,
    BrokerGroup,
    ClusterStatus,
    MemberStatus,
    NameServerStatus,
    find_problems,
)


class SurveyActions(Reach):
    """The part of AdminClient that looks at the whole of a cluster."""

    async def cluster_status(self, *, cluster: str | None = None) -> ClusterStatus:
        """How everybody is doing; raises TransportError where no name server answers."""
        servers = await self._ask_name_servers()
        brokers: dict[str, BrokerData] = {}
        for server in servers:
            for name, data in ({} if server.info is None else server.info.brokers).items():
                known = brokers.get(name)
                addresses = {**data.addresses, **({} if known is None else known.addresses)}
                brokers[name] = BrokerData(data.cluster, name, addresses)
        wanted = [data for _, data in sorted(brokers.items()) if cluster in (None, data.cluster)]
        if not wanted:
            clusters = ", ".join(sorted({data.cluster for data in brokers.values()})) or "none"
            raise NoRoute(
                "no broker is registered" if cluster is None else f"no cluster {cluster!r}",
                hint=f"clusters are: {clusters}",
            )
        groups = tuple(await each(lambda data: self._ask_group(data, servers), wanted))
        return ClusterStatus(groups, servers, tuple(find_problems(groups, servers)))

    async def _ask_name_servers(self) -> tuple[NameServerStatus, ...]:
        failures: list[TransportError] = []

        async def ask(address: str) -> NameServerStatus:
            server = next(s for s in self._name_servers.each() if s.address == address)
            try:
                return NameServerStatus(address, await server.get_cluster_info())
            except TransportError as error:
                failures.append(error)
                return NameServerStatus(address, None, error.problem)

        found = await each(ask, sorted(self._name_servers.addresses))
        if not found:
            raise TransportError("name server", "no address is known; set namesrvAddr")
        if len(failures) == len(found):
            raise failures[0]
        return tuple(found)

    async def _ask_group(
        self, data: BrokerData, servers: Iterable[NameServerStatus]
    ) -> BrokerGroup:
        places = sorted(data.addresses.items())
        members = await each(lambda place: self.member_status(data.broker_name, *place), places)
        master = next((member for member in members if member.is_master), None)
        if master is not None and master.log_end is not None:
            members = [_with_lag(member, master.log_end) for member in members]
        group = BrokerGroup(cluster=data.cluster, name=data.broker_name, members=tuple(members))
        asked = next((member for member in members if member.is_reachable), None)
        if asked is None:
            return group
        remote = self._remote(asked.address)
        try:
            topics = (await remote.get_topics()).topics
            system = frozenset(await remote.get_system_topics())
            unconsumed = (await remote.get_all_consume_stats()).total_diff
        except TransportError:
            return group  # It went in this moment; the members say so at the next look.
        return BrokerGroup(
            cluster=group.cluster,
            name=group.name,
            members=group.members,
            topics=topics,
            system_topics=system,
            unconsumed=unconsumed,
            wiped_at=await self._wiped_at(group, topics, servers),
        )

    async def member_status(self, broker: str, broker_id: int, address: str) -> MemberStatus:
        """One broker process."""
        remote = self._remote(address)
        try:
            table = await remote.get_runtime_info()
        except TransportError as error:
            return MemberStatus(
                broker=broker,
                broker_id=broker_id,
                address=address,
                is_reachable=False,
                trouble=error.problem,
            )
        permission, keeps = None, True
        try:
            settings = (await remote.get_config()).settings
        except (TransportError, BrokerError):
            settings = {}  # Not everybody may read them; the rest can be shown without.
        if settings:
            permission = _number(settings.get("brokerPermission"))
            keeps = bool(settings.get("brokerConfigPath"))
        following = table.get("haIsFollowing")
        role = table.get("haRole") or ("MASTER" if broker_id == MASTER_ID else "SLAVE")
        return MemberStatus(
            broker=broker,
            broker_id=broker_id,
            address=address,
            version=table.get("brokerVersionDesc", ""),
            role=role,
            booted_at_ms=_number(table.get("bootTimestamp")),
            log_end=_number(table.get("commitLogMaxOffset")),
            is_following=None if following is None else following == "true",
            disk_used_ratio=float(table.get("commitLogDiskRatio", "0")),
            permission=permission,
            keeps_settings=keeps,
            put_total=_number(table.get("msgPutTotalTodayNow")) or 0,
            trouble=table.get("haProblem", ""),
            raft=RaftFigures(table),
        )

    async def _wiped_at(
        self,
        group: BrokerGroup,
        topics: Mapping[str, TopicConfig],
        servers: Iterable[NameServerStatus],
    ) -> tuple[str, ...]:
        """Which name servers show it without write permission, though it has not given it up.

        A wipe takes all topics of a broker, so the one named after it stands for all.
        """
        master, own = group.master, topics.get(group.name)
        if own is None or not own.is_writable or master is None:
            return ()
        if master.permission is not None and not master.permission & WRITE:
            return ()
        answering = {server.address for server in servers if server.info is not None}
        wiped = []
        for server in self._name_servers.each():
            if server.address in answering:
                try:
                    route = await server.get_route(group.name)
                except (BrokerError, TransportError):
                    continue
                queues = [data for data in route.queues if data.broker_name == group.name]
                if queues and not any(data.is_writable for data in queues):
                    wiped.append(server.address)
        return tuple(sorted(wiped))


def _with_lag(member: MemberStatus, master_end: int) -> MemberStatus:
    if member.is_master or member.log_end is None:
        return member
    return replace(member, lag_bytes=max(0, master_end - member.log_end))


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
