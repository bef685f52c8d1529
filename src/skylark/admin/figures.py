"""What an operator is told: frozen records, without a word of how they were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..model.group import SubscriptionGroupConfig
from ..model.message import StoredMessage
from ..model.topic import is_dlq_topic, is_retry_topic


class TopicKind(StrEnum):
    """What a topic is there for."""

    NORMAL = "normal"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    SYSTEM = "system"

    @classmethod
    def of(cls, name: str, *, is_system: bool) -> TopicKind:
        """What a name says of its topic."""
        if is_retry_topic(name):
            return cls.RETRY
        if is_dlq_topic(name):
            return cls.DEAD_LETTER
        return cls.SYSTEM if is_system else cls.NORMAL


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str
    put_tps: float
    get_tps: float
    put_total: int
    get_total: int
    disk_used_ratio: float
    earliest_message_at_ms: int | None
    runtime: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic on one broker."""

    broker: str
    cluster: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic, and how many brokers and queues it has."""

    name: str
    kind: TopicKind
    places: tuple[TopicPlace, ...]

    @property
    def read_queues(self) -> int:
        """On all brokers together."""
        return sum(place.read_queues for place in self.places)

    @property
    def write_queues(self) -> int:
        """On all brokers together."""
        return sum(place.write_queues for place in self.places)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Where one queue begins and ends."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    updated_at_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """All about one topic."""

    name: str
    kind: TopicKind
    places: tuple[TopicPlace, ...]
    queues: tuple[QueueFigures, ...]
    groups: tuple[str, ...]
    order_conf: str | None

    @property
    def message_count(self) -> int:
        """How many messages can still be read."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is in one queue."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    consumed_at_ms: int | None  # When the last message that was consumed had been stored.

    @property
    def lag(self) -> int:
        """How many messages it is behind."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One client of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group, whether anybody is there, and how far it is behind."""

    name: str
    members: int
    consume_type: str | None
    message_model: str | None
    tps: float
    lag: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """All about one group."""

    name: str
    settings: Mapping[str, SubscriptionGroupConfig]  # By broker.
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]  # Topic → expression.
    consume_type: str | None
    message_model: str | None
    consume_from: str | None
    tps: float
    queues: tuple[QueueLag, ...]
    mismatches: tuple[str, ...]  # Where members subscribe differently, a sentence each.

    @property
    def lag(self) -> int:
        """How many messages it is behind, all topics together."""
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Where a group stood in a queue, and where it stands now."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    after: int


class TrackState(StrEnum):
    """What became of a message in a group."""

    CONSUMED = "consumed"
    FILTERED = "filtered"
    NOT_YET = "not yet"
    OFFLINE = "group offline"
    BROADCAST = "broadcast"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What became of a message in one group."""

    group: str
    state: TrackState


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, and what became of it in the groups of its topic."""

    message: StoredMessage
    body: bytes  # As its producer gave it.
    tracks: tuple[MessageTrack, ...] = ()
