"""What operators ask about the broker itself."""

from __future__ import annotations

from typing import Final

from ....config.rocketmq_keys import INERT
from ....model.topic import SCHEDULE_TOPIC
from ....protocol.bodies import KVTable
from ....protocol.codes import ResponseCode
from ....protocol.exchange import AnyRequest, Peer, Request, Response
from ....protocol.headers import admin_topics as headers
from ...parts import Parts

# Which version of RocketMQ we are as good as; tools print it and choose requests by it.
VERSION_TEXT: Final = "V4_9_8"
VERSION_NUMBER: Final = 409
_NO_POOL: Final = 2**31 - 1
_UNITS: Final = ("Ki", "Mi", "Gi", "Ti", "Pi")


class StatsAdmin:
    """Counters, and the state of the broker as a table of texts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def view(self, request: Request[headers.ViewBrokerStatsDataRequest], peer: Peer) -> Response:
        """Serve VIEW_BROKER_STATS_DATA."""
        header = request.header
        found = self._parts.stats.view(header.stats_name, header.stats_key)
        if found is None:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name[:64]}> <{header.stats_key[:512]}> not exist",
            )
        return Response(body=found.to_json())

    def runtime_info(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_BROKER_RUNTIME_INFO.

        Every key that mqadmin and the dashboard read, but for those that would name a directory.
        """
        parts = self._parts
        store, log = parts.store, parts.store.log
        space = parts.files.disk_space(store.config.commit_log_directory)
        files = log.mapped.files
        flush = parts.flusher.figures
        table = {
            **parts.stats.runtime_items(),
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(VERSION_NUMBER),
            "bootTimestamp": str(parts.booted_at_ms),
            "runtime": runtime_text(parts.clock.now_ms() - parts.booted_at_ms),
            "startAcceptSendRequestTimeStamp": str(
                parts.live.current.start_accept_send_request_time_stamp
            ),
            "earliestMessageTimeStamp": str(log.first_stored_at_ms(files[0]) if files else -1),
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.appended),
            "commitLogDiskRatio": str(space.used_ratio),
            "consumeQueueDiskRatio": str(space.used_ratio),
            "commitLogDirCapacity": (
                f"Total : {size_text(space.used_bytes + space.free_bytes)}, "
                f"Free : {size_text(space.free_bytes)}."
            ),
            "dispatchBehindBytes": str(store.dispatch_lag_bytes),
            "remainHowManyDataToFlush": size_text(flush.unflushed_bytes),
            "remainTransientStoreBufferNumbs": str(log.pool_free if log.is_staged else _NO_POOL),
            "getMessageEntireTimeMax": "0",
            "pageCacheLockTimeMills": "0",
            "dispatchMaxBuffer": "0",
            "components": self._components(),
            **self._queue_sizes(),
            **(parts.raft or parts.replication).figures(),
        }
        for level, offset in parts.delay.offsets.items():
            end = store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end or offset:
                table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return Response(body=KVTable(table).to_json())

    def _components(self) -> str:
        """The parts that are at work, each after the part of RocketMQ that has its duty."""
        parts = self._parts
        at_work = {
            "TopicConfigManager": parts.topics,
            "SubscriptionGroupManager": parts.groups,
            "ConsumerManager": parts.clients,
            "ConsumerOffsetManager": parts.offsets,
            "RebalanceLockManager": parts.locks,
            "PullRequestHoldService": parts.arrivals,
            "BrokerFastFailure": parts.flow,
            "BrokerStatsManager": parts.stats,
            "ScheduleMessageService": parts.delay,
            "TransactionalMessageService": parts.transactions,
            "DefaultMessageStore": parts.store,
            "CommitLog": parts.store.log,
            "ReputMessageService": parts.store.dispatcher,
            "HAService": parts.raft or parts.replication,
            "GroupCommitService": parts.flusher,
            "CleanCommitLogService": parts.retention,
        }
        return " ".join(f"{duty}:{type(part).__name__}" for duty, part in at_work.items())

    def _queue_sizes(self) -> dict[str, str]:
        """What waits here, under the names of the thread pools in which it would wait there."""
        parts = self._parts
        return {
            "subscriptionMismatches": str(len(parts.clients.mismatches())),
            "subscriptionMismatchesTotal": str(parts.clients.mismatches_total),
            "sendThreadPoolQueueSize": str(parts.flow.waiting),
            "sendThreadPoolQueueCapacity": str(parts.live.current.waiting_sends_max),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": INERT["pullThreadPoolQueueCapacity"].default,
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": INERT["queryThreadPoolQueueCapacity"].default,
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": INERT[
                "endTransactionPoolQueueCapacity"
            ].default,
        }


def runtime_text(passed_ms: int) -> str:
    """A stretch of time as operators know it."""
    minutes, seconds = divmod(max(0, passed_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def size_text(size_bytes: int) -> str:
    """A number of bytes, with a unit."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in _UNITS:
        size /= 1024
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.1f} {unit}B"
    raise AssertionError("the last unit takes every size")
