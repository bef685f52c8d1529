"""GroupTable: what this broker allows each consumer group.

In a Raft group changes go through the ledger, and are applied when the group has agreed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ..clock import Clock
from ..errors import BrokerError
from ..model.group import RESERVED_GROUPS, SYSTEM_GROUP_PREFIX, SubscriptionGroupConfig
from ..model.names import check_group_name
from ..model.version import DataVersion
from ..protocol.bodies import SubscriptionGroupTable
from ..protocol.codes import ResponseCode
from .ledger import Change, Ledger
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

GROUPS_MAX = 100_000
RETRY_QUEUE_NUMS_MAX = 128
RETRY_MAX_TIMES_MAX = 2**31 - 1


class GroupTable:
    """All groups, by name; changes are saved before they are answered."""

    def __init__(
        self,
        path: str,
        files: SmallFiles,
        clock: Clock,
        *,
        may_create: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._may_create = may_create
        self._saved = SavedTable(path, files, SubscriptionGroupTable)
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._version = DataVersion()
        # In a Raft group: where changes are written down first.
        self.ledger: Ledger | None = None
        # What was written down and has not come back yet; None for a group that is to go.
        self._written: dict[str, SubscriptionGroupConfig | None] = {}
        self._written_version: DataVersion | None = None

    def load(self) -> None:
        """Read the file and add what every broker has; raises StoreError."""
        body = self._saved.load()
        if body is not None:
            self._groups = dict(body.groups)
            self._version = body.data_version
        missing = [name for name in RESERVED_GROUPS if name not in self._groups]
        if missing:
            for name in missing:
                self._groups[name] = SubscriptionGroupConfig(group_name=name)
            self._version = self._version.next(self._clock.now_ms())
            self._save()

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """All of them."""
        return self._groups

    @property
    def version(self) -> DataVersion:
        """When the table last changed."""
        return self._version

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """One group, or None; nothing is made."""
        return self._groups.get(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """One group, made where that is allowed; raises InvalidName, StoreError."""
        known = self._newest(name)
        if known is not None:
            return known
        check_group_name(name)
        if not self._may_create() and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        made = SubscriptionGroupConfig(group_name=name)
        if self.ledger is not None and not self.ledger.is_open:
            return made  # The leader will make it, when a client comes to it.
        self.put(made)
        logger.info("group=%s made", name)
        return made

    def require(self, name: str) -> SubscriptionGroupConfig:
        """One group, made where that is allowed; raises BrokerError where there is none."""
        found = self.find(name)
        if found is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group {name} does not exist, and autoCreateSubscriptionGroup is "
                "off; make it with updateSubGroup",
            )
        return found

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Make a group or replace it; raises InvalidName, BrokerError, StoreError."""
        check_group_name(group.group_name)
        if not 0 <= group.retry_queue_nums <= RETRY_QUEUE_NUMS_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"group {group.group_name}: retryQueueNums {group.retry_queue_nums}; "
                f"0 to {RETRY_QUEUE_NUMS_MAX} are possible",
            )
        if group.group_name not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{GROUPS_MAX} groups are the limit; delete some first"
            )
        if self._newest(group.group_name) == group:
            return
        if self.ledger is not None:
            self._write({group.group_name: group})
        else:
            self._change({**self._groups, group.group_name: group})

    def delete(self, name: str) -> bool:
        """Forget a group; False where there was none."""
        assert self.ledger is None, "in a Raft group, write_off() says what becomes of offsets"
        if name not in self._groups:
            return False
        self._change({key: value for key, value in self._groups.items() if key != name})
        return True

    def take_over(self, table: SubscriptionGroupTable) -> bool:
        """Become what the master has; whether that changed anything. Raises StoreError."""
        if table.data_version == self._version:
            return False
        before = self._groups, self._version
        self._groups, self._version = dict(table.groups), table.data_version
        try:
            self._save()
        except BaseException:
            self._groups, self._version = before
            raise
        return True

    # In a Raft group.

    def _newest(self, name: str) -> SubscriptionGroupConfig | None:
        """A group as it will be when all that was written down has been agreed."""
        return self._written[name] if name in self._written else self._groups.get(name)

    def write_off(self, name: str, *, with_offsets: bool) -> None:
        """Have the group forget a consumer group."""
        self._write({}, (name,), with_offsets=with_offsets)

    def _write(
        self,
        changed: Mapping[str, SubscriptionGroupConfig],
        gone: Iterable[str] = (),
        *,
        with_offsets: bool = False,
    ) -> None:
        assert self.ledger is not None
        version = (self._written_version or self._version).next(self._clock.now_ms())
        table = SubscriptionGroupTable(changed, version)
        self.ledger.write(
            Change.GROUPS,
            {"table": table.to_members(), "gone": list(gone), "withOffsets": with_offsets},
        )
        self._written_version = version
        self._written.update(changed)
        self._written.update(dict.fromkeys(gone))

    def apply(self, table: SubscriptionGroupTable, gone: Iterable[str]) -> None:
        """Become what the group has agreed on."""
        self._groups.update(table.groups)
        for name in gone:
            self._groups.pop(name, None)
            if name in self._written and self._written[name] is None:
                del self._written[name]
        for name, group in table.groups.items():
            if self._written.get(name) == group:
                del self._written[name]
        self._version = table.data_version
        if not self._written:
            self._written_version = None

    def restore(self, table: SubscriptionGroupTable) -> None:
        """Become what a snapshot says."""
        self._groups, self._version = dict(table.groups), table.data_version
        for name in RESERVED_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def forget_written(self) -> None:
        """Somebody else leads: whether what was written will ever count is not ours to know."""
        self._written.clear()
        self._written_version = None

    def encoded(self) -> bytes:
        """What write() takes, for a save on another thread."""
        return self._saved.encode(self.body())

    def write(self, content: bytes) -> None:
        """Replace the file by what encoded() gave; may run on another thread."""
        self._saved.write(content)

    def body(self) -> SubscriptionGroupTable:
        """The table as it is answered."""
        return SubscriptionGroupTable(dict(self._groups), self._version)

    def _change(self, groups: dict[str, SubscriptionGroupConfig]) -> None:
        before = self._groups, self._version
        self._groups, self._version = groups, self._version.next(self._clock.now_ms())
        try:
            self._save()
        except BaseException:
            self._groups, self._version = before
            raise

    def _save(self) -> None:
        self._saved.save(SubscriptionGroupTable(self._groups, self._version))
