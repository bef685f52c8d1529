"""What operators ask and tell brokers."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TransportError
from ..model.route import BrokerData
from .asking import each
from .figures import BrokerFigures
from .reach import Reach, master_address


class BrokerActions(Reach):
    """The part of AdminClient that is about single brokers."""

    async def broker_figures(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerFigures]:
        """How every broker is doing; those that do not answer are left out."""
        places = [
            (data, broker_id, address)
            for data in await self.brokers(cluster=cluster, broker=broker)
            for broker_id, address in sorted(data.addresses.items())
        ]

        async def ask(place: tuple[BrokerData, int, str]) -> BrokerFigures | None:
            data, broker_id, address = place
            try:
                table = await self._remote(address).get_runtime_info()
            except TransportError:
                return None
            earliest_ms = int(table.get("earliestMessageTimeStamp", "-1"))
            return BrokerFigures(
                cluster=data.cluster,
                name=data.broker_name,
                broker_id=broker_id,
                address=address,
                version=table.get("brokerVersionDesc", ""),
                put_tps=_first_rate(table.get("putTps")),
                get_tps=_first_rate(table.get("getTransferedTps")),
                put_total=int(table.get("msgPutTotalTodayNow", "0")),
                get_total=int(table.get("msgGetTotalTodayNow", "0")),
                disk_used_ratio=float(table.get("commitLogDiskRatio", "0")),
                earliest_message_at_ms=earliest_ms if earliest_ms > 0 else None,
                runtime=table,
            )

        return [figures for figures in await each(ask, places) if figures is not None]

    async def broker_settings(self, broker: str) -> Mapping[str, str]:
        """The settings of one broker, by its name; paths and secrets are masked."""
        (data,) = await self.brokers(broker=broker)
        return (await self._remote(master_address(data)).get_config()).settings

    async def update_broker_settings(
        self,
        settings: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change settings of one broker or of all in a cluster; raises BrokerError."""
        for address in await self._masters(cluster, broker):
            await self._remote(address).update_config(settings)

    async def upload_predicate(
        self,
        name: str,
        version: int,
        source: bytes,
        *,
        access_key: str,
        secret_key: str,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Add a version of a predicate to filter servers; where; raises BrokerError."""
        addresses = await self._masters(cluster, broker)
        for address in addresses:
            await self._remote(address).upload_predicate(
                name, version, source, access_key=access_key, secret_key=secret_key
            )
        return addresses

    async def clean(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Let go of what has expired: log files, queues, and queues of deleted topics."""
        for address in await self._masters(cluster, broker):
            remote = self._remote(address)
            await remote.delete_expired_commit_log()
            await remote.clean_expired_consume_queues()
            await remote.clean_unused_topics()


def _first_rate(text: str | None) -> float:
    words = (text or "").split()
    return float(words[0]) if words else 0.0
