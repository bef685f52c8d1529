"""What a consumer says about itself when it is asked through the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from ...model.group import Subscription
from ...model.queue import MessageQueue
from ..fastjson import Json
from .body import Body
from .members import Members, text_of
from .offsets import queue_map_members
from .subscriptions import subscription_members, subscription_of


class ConsumeResult(StrEnum):
    """How a message fared that was consumed on demand; the Go client sends the ordinal."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult(Body):
    """How a message fared, the answer to CONSUME_MESSAGE_DIRECTLY."""

    consume_result: ConsumeResult
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_millis: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            consume_result=members.enum("consumeResult", ConsumeResult),
            order=members.flag("order", False),
            auto_commit=members.flag("autoCommit", True),
            remark=members.text_or_none("remark"),
            spent_time_millis=members.i64("spentTimeMills", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "autoCommit": self.auto_commit,
            "consumeResult": self.consume_result,
            "order": self.order,
            "remark": self.remark,
            "spentTimeMills": self.spent_time_millis,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo(Body):
    """What a consumer has in hand of one queue."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        # Java misspells this one, and the Go client does not.
        dropped = "dropped" if members.has("dropped") else "droped"
        return cls(
            commit_offset=members.i64("commitOffset", 0),
            cached_msg_min_offset=members.i64("cachedMsgMinOffset", 0),
            cached_msg_max_offset=members.i64("cachedMsgMaxOffset", 0),
            cached_msg_count=members.i32("cachedMsgCount", 0),
            cached_msg_size_in_mib=members.i32("cachedMsgSizeInMiB", 0),
            transaction_msg_min_offset=members.i64("transactionMsgMinOffset", 0),
            transaction_msg_max_offset=members.i64("transactionMsgMaxOffset", 0),
            transaction_msg_count=members.i32("transactionMsgCount", 0),
            locked=members.flag("locked", False),
            try_unlock_times=members.i64("tryUnlockTimes", 0),
            last_lock_timestamp=members.i64("lastLockTimestamp", 0),
            dropped=members.flag(dropped, False),
            last_pull_timestamp=members.i64("lastPullTimestamp", 0),
            last_consume_timestamp=members.i64("lastConsumeTimestamp", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_in_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": self.transaction_msg_count,
            "transactionMsgMaxOffset": self.transaction_msg_max_offset,
            "transactionMsgMinOffset": self.transaction_msg_min_offset,
            "tryUnlockTimes": self.try_unlock_times,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus(Body):
    """How fast a consumer is with one topic."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            pull_rt=members.real("pullRT", 0.0),
            pull_tps=members.real("pullTPS", 0.0),
            consume_rt=members.real("consumeRT", 0.0),
            consume_ok_tps=members.real("consumeOKTPS", 0.0),
            consume_failed_tps=members.real("consumeFailedTPS", 0.0),
            consume_failed_msgs=members.i64("consumeFailedMsgs", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": float(self.consume_failed_tps),
            "consumeOKTPS": float(self.consume_ok_tps),
            "consumeRT": float(self.consume_rt),
            "pullRT": float(self.pull_rt),
            "pullTPS": float(self.pull_tps),
        }


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """Everything about one consumer, the answer to GET_CONSUMER_RUNNING_INFO."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[Subscription, ...] = ()
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            properties=members.map_of("properties", text_of),
            subscriptions=tuple(
                subscription_of(item.members, item.where)
                for item in members.objects("subscriptionSet")
            ),
            queues=members.queue_map_of("mqTable", _process_queue_of),
            statuses=members.map_of("statusTable", _status_of),
            jstack=members.text_or_none("jstack"),
        )

    def to_members(self) -> dict[str, Any]:
        queues = {queue: info.to_members() for queue, info in self.queues.items()}
        return {
            "jstack": self.jstack,
            "mqTable": queue_map_members(queues),
            "properties": self.properties,
            "statusTable": {topic: status.to_members() for topic, status in self.statuses.items()},
            "subscriptionSet": [subscription_members(item) for item in self.subscriptions],
        }


def _process_queue_of(value: Json, where: str) -> ProcessQueueInfo:
    return ProcessQueueInfo.from_members(Members.of(value, where))


def _status_of(value: Json, where: str) -> ConsumeStatus:
    return ConsumeStatus.from_members(Members.of(value, where))
