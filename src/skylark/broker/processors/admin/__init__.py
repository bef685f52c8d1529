"""What operators ask of a broker, by noun.

code                               noun
17 21 202 215 300 305 316 351      topics.py
200 201 203 204 207 328 352        groups.py
43 45 208 222 223 303 308 314 317  offsets.py
307 309                            messages.py, handed on to a member
28 315                             stats.py
25 26 306 329                      settings.py
810400-810403                      timers.py
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ....protocol import headers
from ....protocol.codes import RequestCode as Code
from ....protocol.exchange import Peer, Response
from ....protocol.header import Header
from ...parts import Parts
from .groups import GroupAdmin
from .messages import MessageAdmin
from .offsets import OffsetAdmin
from .settings import SettingsAdmin
from .stats import StatsAdmin
from .timers import TimerAdmin
from .topics import TopicAdmin

Handle = Callable[[Any, Peer], Response | Coroutine[Any, Any, Response | None] | None]


def table(parts: Parts) -> dict[int, tuple[type[Header] | None, Handle]]:
    """Request code → header type and who serves it."""
    topics, groups, messages = TopicAdmin(parts), GroupAdmin(parts), MessageAdmin(parts)
    offsets, stats, settings = OffsetAdmin(parts), StatsAdmin(parts), SettingsAdmin(parts)
    timers = TimerAdmin(parts)
    return {
        Code.UPDATE_AND_CREATE_TOPIC: (headers.CreateTopicRequest, topics.put),
        Code.DELETE_TOPIC_IN_BROKER: (headers.DeleteTopicRequest, topics.delete),
        Code.GET_ALL_TOPIC_CONFIG: (None, topics.all),
        Code.GET_TOPIC_CONFIG: (headers.GetTopicConfigRequest, topics.one),
        Code.GET_TOPIC_STATS_INFO: (headers.GetTopicStatsInfoRequest, topics.stats),
        Code.QUERY_TOPIC_CONSUME_BY_WHO: (
            headers.QueryTopicConsumeByWhoRequest,
            topics.consumed_by,
        ),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (None, topics.system),
        Code.CLEAN_UNUSED_TOPIC: (None, topics.clean_unused),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (None, groups.put),
        Code.DELETE_SUBSCRIPTIONGROUP: (headers.DeleteSubscriptionGroupRequest, groups.delete),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (None, groups.all),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: (
            headers.GetSubscriptionGroupConfigRequest,
            groups.one,
        ),
        Code.GET_CONSUMER_CONNECTION_LIST: (
            headers.GetConsumerConnectionListRequest,
            groups.consumers,
        ),
        Code.GET_PRODUCER_CONNECTION_LIST: (
            headers.GetProducerConnectionListRequest,
            groups.producers,
        ),
        Code.GET_ALL_PRODUCER_INFO: (None, groups.all_producers),
        Code.GET_CONSUME_STATS: (headers.GetConsumeStatsRequest, offsets.consume_stats),
        Code.GET_BROKER_CONSUME_STATS: (
            headers.GetBrokerConsumeStatsRequest,
            offsets.all_consume_stats,
        ),
        Code.QUERY_CONSUME_TIME_SPAN: (headers.QueryConsumeTimeSpanRequest, offsets.time_span),
        Code.QUERY_CORRECTION_OFFSET: (headers.QueryCorrectionOffsetRequest, offsets.correction),
        Code.GET_ALL_CONSUMER_OFFSET: (None, offsets.all_offsets),
        Code.GET_ALL_DELAY_OFFSET: (None, offsets.all_delay_offsets),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: (headers.ResetOffsetRequest, offsets.reset),
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (
            headers.GetConsumerStatusRequest,
            offsets.status,
        ),
        Code.CLONE_GROUP_OFFSET: (headers.CloneGroupOffsetRequest, offsets.clone),
        Code.GET_CONSUMER_RUNNING_INFO: (
            headers.GetConsumerRunningInfoRequest,
            messages.running_info,
        ),
        Code.CONSUME_MESSAGE_DIRECTLY: (
            headers.ConsumeMessageDirectlyRequest,
            messages.consume_directly,
        ),
        Code.VIEW_BROKER_STATS_DATA: (headers.ViewBrokerStatsDataRequest, stats.view),
        Code.GET_BROKER_RUNTIME_INFO: (None, stats.runtime_info),
        Code.GET_BROKER_CONFIG: (None, settings.get),
        Code.UPDATE_BROKER_CONFIG: (None, settings.update),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: (None, settings.clean_queues),
        Code.DELETE_EXPIRED_COMMITLOG: (None, settings.clean_log),
        Code.LIST_TIMERS: (headers.ListTimersRequest, timers.waiting),
        Code.CANCEL_TIMER: (headers.CancelTimerRequest, timers.cancel),
        Code.FIRE_TIMER: (headers.FireTimerRequest, timers.fire),
        Code.ADD_REPEAT: (headers.AddRepeatRequest, timers.add),
    }
