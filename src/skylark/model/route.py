"""TopicRoute and ClusterInfo: which brokers there are, and which of them serve a topic.

A broker name stands for one master (id 0) and its replicas (ids above 0); each id has an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read these queues."""
        return bool(self.perm & 4)

    @property
    def is_writable(self) -> bool:
        """Whether producers may write to these queues."""
        return bool(self.perm & 2)


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker name: its cluster, and the `ip:port` of every member by its id."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def master_address(self) -> str | None:
        """Where writes go, or None while there is no master."""
        return self.addresses.get(MASTER_ID)

    def any_address(self) -> str | None:
        """Return the master's address, else that of the replica with the lowest id, else None."""
        if not self.addresses:
            return None
        return self.addresses[min(self.addresses)]


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """All a client must know to use a topic."""

    brokers: tuple[BrokerData, ...] = ()
    queues: tuple[QueueData, ...] = ()
    order_conf: str | None = None
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return the broker of that name, or None if the topic is not on it."""
        for broker in self.brokers:
            if broker.broker_name == broker_name:
                return broker
        return None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers by name, and which names make up each cluster."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
