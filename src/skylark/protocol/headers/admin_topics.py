"""What operators ask of a broker about topics, its settings and its statistics."""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, Header, header


@header
class CreateTopicRequest(Header):
    """Create a topic, or change one."""

    CODE: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False


@header
class DeleteTopicRequest(Header):
    """Delete a topic on a broker."""

    CODE: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


@header
class GetTopicConfigRequest(Header):
    """How is one topic set up? Tools of 5.x ask this where older ones ask for all topics."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_TOPIC_CONFIG

    topic: str


@header
class GetTopicStatsInfoRequest(Header):
    """Where do a topic's queues begin and end?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


@header
class QueryTopicConsumeByWhoRequest(Header):
    """Which groups consume a topic?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


@header
class ViewBrokerStatsDataRequest(Header):
    """Show one counter of the broker."""

    CODE: ClassVar[RequestCode] = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str


@header
class GetBrokerConfigResponse(Header):
    """The version of the settings in the body, a DataVersion as JSON."""

    version: str
