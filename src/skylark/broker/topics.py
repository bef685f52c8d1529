"""TopicTable: the topics of this broker, and the rules by which they come into being.

    made                        queues                                        permissions
    by an operator              as told                                       as told
    by the first message        min(asked by the producer, template's)        template's, - inherit
    for a group that retries    retryQueueNums of the group                   read and write
    for dead letters, replies   1                                             read and write

A template is any topic with the inherit bit; producers name TBW102. Every change is saved before it
is answered, gets a new data version, and is reported, so that the name servers hear of it at once.
In a Raft group changes go through the ledger instead, and are applied when the group has agreed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from ..clock import Clock
from ..errors import BrokerError, InvalidName
from ..model.names import check_topic_name
from ..model.topic import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    Permission,
    TopicConfig,
    is_system_topic,
    reply_topic,
)
from ..model.version import DataVersion
from ..protocol.bodies import TopicConfigTable
from ..protocol.codes import ResponseCode
from .config import BrokerConfig
from .ledger import Change, Ledger
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

TOPICS_MAX = 200_000
_READ_WRITE = int(Permission.READ | Permission.WRITE)
_TEMPLATE = int(_READ_WRITE | Permission.INHERIT)
_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024


class TopicTable:
    """All topics, by name."""

    def __init__(self, config: BrokerConfig, path: str, files: SmallFiles, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._saved = SavedTable(path, files, TopicConfigTable)
        self._topics: dict[str, TopicConfig] = {}
        self._version = DataVersion()
        self._system: set[str] = set()
        # In a Raft group: where changes are written down first.
        self.ledger: Ledger | None = None
        # What was written down and has not come back yet; None for a topic that is to go.
        self._written: dict[str, TopicConfig | None] = {}
        self._written_version: DataVersion | None = None
        # Told of topics that were made or changed, after they were saved.
        self.on_change: Callable[[Iterable[TopicConfig]], None] = lambda topics: None

    def load(self) -> None:
        """Read the file and add what every broker has; raises StoreError."""
        body = self._saved.load()
        if body is not None:
            self._topics = _with_sound_names(body.topics)
            self._version = body.data_version
        else:
            self._version = DataVersion(self._clock.now_ms(), 0)
        missing = self._missing_built_in()
        if missing:
            self._topics.update(missing)
            self._version = self._version.next(self._clock.now_ms())
            self._save()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Go by other settings from now on; raises StoreError if a topic cannot be saved."""
        before, self._config = self._config, config
        missing = self._missing_built_in()
        if missing and (self.ledger is None or self.ledger.is_open):
            self._change(missing)
        elif before.broker_permission != config.broker_permission:
            # It is shown in every topic, and name servers look no further than the version.
            self._commit(dict(self._topics), self._version)

    def _missing_built_in(self) -> dict[str, TopicConfig]:
        """What every broker has, as far as it is not there in that way."""
        missing: dict[str, TopicConfig] = {}
        for topic in self._built_in():
            self._system.add(topic.name)
            # An operator may have given a built-in topic more queues; what is there stays.
            known = self._topics.get(topic.name)
            if known is None:
                missing[topic.name] = topic
            elif known.perm != topic.perm:
                missing[topic.name] = dataclasses.replace(known, perm=topic.perm)
        return missing

    def _built_in(self) -> list[TopicConfig]:
        config = self._config
        # A name used both ways, as broker and as cluster, is one topic; the first one wins.
        built_in = [
            TopicConfig(SELF_TEST_TOPIC, 1, 1),
            TopicConfig(BENCHMARK_TOPIC, _BENCHMARK_QUEUES, _BENCHMARK_QUEUES),
            TopicConfig(
                config.broker_cluster_name,
                16,
                16,
                _TEMPLATE if config.cluster_topic_enable else int(Permission.INHERIT),
            ),
            TopicConfig(
                config.broker_name,
                1,
                1,
                _TEMPLATE if config.broker_topic_enable else int(Permission.INHERIT),
            ),
            TopicConfig(OFFSET_MOVED_EVENT_TOPIC, 1, 1),
            TopicConfig(SCHEDULE_TOPIC, _SCHEDULE_QUEUES, _SCHEDULE_QUEUES),
            TopicConfig(reply_topic(config.broker_cluster_name), 1, 1),
        ]
        queues = config.default_topic_queue_nums
        if config.auto_create_topic_enable:
            built_in.append(TopicConfig(AUTO_CREATE_TOPIC, queues, queues, _TEMPLATE))
        elif AUTO_CREATE_TOPIC in self._topics:
            # It was a template once, and must not go on being one.
            known = self._topics[AUTO_CREATE_TOPIC]
            built_in.append(dataclasses.replace(known, perm=_READ_WRITE))
        if config.trace_topic_enable:
            built_in.append(TopicConfig(config.msg_trace_topic_name, 1, 1))
        return list({topic.name: topic for topic in reversed(built_in)}.values())[::-1]

    # Questions.

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All of them."""
        return self._topics

    @property
    def version(self) -> DataVersion:
        """When the table last changed."""
        return self._version

    @property
    def system_topics(self) -> frozenset[str]:
        """The names that no operator makes or deletes."""
        return frozenset(self._system | {name for name in self._topics if is_system_topic(name)})

    def get(self, name: str) -> TopicConfig | None:
        """One topic, or None."""
        return self._topics.get(name)

    def is_system(self, name: str) -> bool:
        """Whether a name is the system's own."""
        return name in self._system or is_system_topic(name)

    def is_going(self, name: str) -> bool:
        """Whether a topic is being deleted, and the group has yet to agree."""
        return self._written.get(name, self) is None

    def _newest(self, name: str) -> TopicConfig | None:
        """A topic as it will be when all that was written down has been agreed."""
        return self._written[name] if name in self._written else self._topics.get(name)

    def body(self) -> TopicConfigTable:
        """The table as it is answered and registered."""
        return TopicConfigTable(dict(self._topics), self._version)

    # Changes.

    def put(self, topic: TopicConfig) -> None:
        """Make a topic or replace it; raises InvalidName, BrokerError, StoreError."""
        check_topic_name(topic.name)
        self._require_sound(topic)
        if self._newest(topic.name) != topic:
            self._change({topic.name: topic})

    def delete(self, name: str) -> bool:
        """Forget a topic; False where there was none."""
        if self.ledger is not None:
            was_there = self._newest(name) is not None
            self._write({}, (name,))
            return was_there
        if name not in self._topics:
            return False
        topics, version = dict(self._topics), self._version
        del self._topics[name]
        self._commit(topics, version)
        return True

    def create_on_send(
        self, name: str, *, template: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make a topic for its first message; None where the rules do not allow it."""
        known = self._newest(name)
        if known is not None:
            return known
        model = self._topics.get(template)
        if model is None or not model.is_inherited:
            return None
        if template == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        queues = max(1, min(queue_nums, model.write_queue_nums))
        return self._create(
            TopicConfig(
                name,
                queues,
                queues,
                model.perm & ~int(Permission.INHERIT),
                model.filter_type,
                sys_flag,
            )
        )

    def create_own(self, name: str, *, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """The broker's own topic for retries, dead letters or replies, made where missing."""
        known = self._newest(name)
        if known is not None:
            return known
        topic = TopicConfig(name, queue_nums, queue_nums, _READ_WRITE, sys_flag=sys_flag)
        if self.ledger is not None and not self.ledger.is_open:
            return topic  # The leader will make it, when a client comes to it.
        return self._create(topic)

    def _create(self, topic: TopicConfig) -> TopicConfig:
        check_topic_name(topic.name)
        self._require_sound(topic)
        if self.is_going(topic.name):
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic {topic.name} is being deleted; try again in a moment",
            )
        self._change({topic.name: topic})
        logger.info(
            "topic=%s made with %d queues, permissions %d",
            topic.name, topic.write_queue_nums, topic.perm,
        )  # fmt: skip
        return topic

    def apply_order_conf(self, table: Mapping[str, str]) -> None:
        """Mark the topics that the name server's ORDER_TOPIC_CONFIG names, and no others."""
        if self.ledger is not None and not self.ledger.is_open:
            return
        changed = {}
        for topic in self._topics.values():
            is_ordered = topic.name in table
            if topic.order != is_ordered and topic.name not in self._written:
                changed[topic.name] = dataclasses.replace(topic, order=is_ordered)
        if changed:
            self._change(changed)

    def take_over(self, table: TopicConfigTable) -> bool:
        """Become what the master has; whether that changed anything. Raises StoreError."""
        if table.data_version == self._version:
            return False
        before = self._topics, self._version
        self._topics, self._version = _with_sound_names(table.topics), table.data_version
        try:
            self._save()
        except BaseException:
            self._topics, self._version = before
            raise
        return True

    def _require_sound(self, topic: TopicConfig) -> None:
        most = max(self._config.topic_queue_nums_max, _BENCHMARK_QUEUES)
        for nums in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 < nums <= most:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {topic.name}: {nums} queues; 1 to {most} are possible "
                    "(topicQueueNumsMax)",
                )
        if not 0 <= topic.perm <= 15:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic.name}: permissions {topic.perm}; 6 is read and write, 4 read, "
                "2 write",
            )
        if topic.name not in self._topics and len(self._topics) >= TOPICS_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{TOPICS_MAX} topics are the limit; delete some first"
            )

    # In a Raft group.

    def _write(self, changed: Mapping[str, TopicConfig], gone: Iterable[str] = ()) -> None:
        assert self.ledger is not None
        version = (self._written_version or self._version).next(self._clock.now_ms())
        table = TopicConfigTable(changed, version)
        self.ledger.write(Change.TOPICS, {"table": table.to_members(), "gone": list(gone)})
        self._written_version = version
        self._written.update(changed)
        for name in gone:
            self._written[name] = None
            # Another object of the same value: who holds on to the old one must look again.
            self._version = dataclasses.replace(self._version)

    def touch(self) -> None:
        """Have a new version agreed on, without a change."""
        self._write({})

    def apply(self, table: TopicConfigTable, gone: Iterable[str]) -> None:
        """Become what the group has agreed on."""
        changed = _with_sound_names(table.topics)
        self._topics.update(changed)
        for name in gone:
            self._topics.pop(name, None)
            if self.is_going(name):
                del self._written[name]
        for name, topic in changed.items():
            if self._written.get(name) == topic:
                del self._written[name]
        self._version = table.data_version
        if not self._written:
            self._written_version = None
        self.on_change(changed.values())

    def restore(self, table: TopicConfigTable) -> None:
        """Become what a snapshot says."""
        if table.data_version == self._version and table.topics == self._topics:
            return
        self._topics, self._version = _with_sound_names(table.topics), table.data_version
        self._topics.update(
            {name: topic for name, topic in self._missing_built_in().items()
             if name not in self._topics}
        )  # fmt: skip
        self.on_change(self._topics.values())

    def forget_written(self) -> None:
        """Somebody else leads: whether what was written will ever count is not ours to know."""
        self._written.clear()
        self._written_version = None
        self._version = dataclasses.replace(self._version)

    # Changes that count at once.

    def _change(self, changed: Mapping[str, TopicConfig]) -> None:
        if self.ledger is not None:
            self._write(changed)
            return
        topics, version = dict(self._topics), self._version
        self._topics.update(changed)
        self._commit(topics, version)
        self.on_change(changed.values())

    def _commit(self, topics: dict[str, TopicConfig], version: DataVersion) -> None:
        """Save what was changed; if that fails, nothing was."""
        self._version = self._version.next(self._clock.now_ms())
        try:
            self._save()
        except BaseException:
            self._topics, self._version = topics, version
            raise

    def _save(self) -> None:
        self._saved.save(TopicConfigTable(self._topics, self._version))

    def encoded(self) -> bytes:
        """What write() takes, for a save on another thread."""
        return self._saved.encode(self.body())

    def write(self, content: bytes) -> None:
        """Replace the file by what encoded() gave; may run on another thread."""
        self._saved.write(content)


def _with_sound_names(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """The topics of a table that came from outside, but for those whose name is no name.

    A topic is a directory, and a file or a master may be anybody's.
    """
    sound = {}
    for name, topic in topics.items():
        try:
            check_topic_name(name)
        except InvalidName as error:
            logger.error("a topic of the table is left out: %s", error)
        else:
            sound[name] = topic if topic.name == name else dataclasses.replace(topic, name=name)
    return sound
