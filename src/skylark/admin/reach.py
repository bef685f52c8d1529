"""Reach: the servers that an operator's actions go to.

Only brokers that the name servers know are ever dialled.
"""

from __future__ import annotations

from typing import Final

from ..client import Client
from ..clock import Clock
from ..errors import BrokerError, NoRoute
from ..model.names import check_topic_name
from ..model.route import BrokerData, TopicRoute
from ..remote import NameServers, RemoteBroker

TOPIC_NOT_EXIST: Final = 17


class Reach:
    """What every part of AdminClient stands on: a client, and the way to each server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerData]:
        """The brokers that the name servers know, masters and replicas, by name."""
        info = await self._name_servers.get_cluster_info()
        names = set(info.brokers) if cluster is None else set(info.clusters.get(cluster, ()))
        found = [
            data
            for name, data in sorted(info.brokers.items())
            if name in names and broker in (None, name)
        ]
        if not found:
            wanted = f" of cluster {cluster!r}" if cluster else ""
            wanted += f" named {broker!r}" if broker else ""
            known = ", ".join(sorted(info.clusters)) or "none"
            raise NoRoute(
                f"no broker{wanted} is registered",
                hint=f"clusters are: {known}; brokers: {', '.join(sorted(info.brokers)) or 'none'}",
            )
        return found

    async def _route(self, topic: str) -> TopicRoute:
        check_topic_name(topic)
        try:
            return await self._name_servers.find_route(topic)
        except BrokerError as error:
            if error.code != TOPIC_NOT_EXIST:
                raise
            raise NoRoute(
                f"no broker has a topic {topic!r}",
                hint="`skylark topic list` shows all; names are case-sensitive",
                code=TOPIC_NOT_EXIST,
            ) from None

    async def _masters(self, cluster: str | None, broker: str | None) -> list[str]:
        return [master_address(data) for data in await self.brokers(cluster=cluster, broker=broker)]

    def _remote(self, address: str) -> RemoteBroker:
        return self._client.session.broker(address)

    @property
    def _name_servers(self) -> NameServers:
        return self._client.session.name_servers

    @property
    def _clock(self) -> Clock:
        return self._client.session.clock


def master_address(data: BrokerData) -> str:
    """Where the master of a broker listens; raises NoRoute."""
    if data.master_address is None:
        raise NoRoute(
            f"broker {data.broker_name} has no master",
            hint="start it, or wait until a replica has taken over",
            broker=data.broker_name,
        )
    return data.master_address


def any_address(data: BrokerData) -> str:
    """Where any of its members listens; raises NoRoute."""
    address = data.any_address()
    if address is None:
        raise NoRoute(
            f"broker {data.broker_name} has no address",
            hint="start it again",
            broker=data.broker_name,
        )
    return address
