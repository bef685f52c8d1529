"""What operators ask of a broker about groups, and what the broker then asks of their members."""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I64, Header, header


@header
class DeleteSubscriptionGroupRequest(Header):
    """Delete a group, and its offsets if so wished."""

    CODE: ClassVar[RequestCode] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    remove_offset: bool = False


@header
class GetSubscriptionGroupConfigRequest(Header):
    """How is one group set up? Tools of 5.x ask this where older ones ask for all groups."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


@header
class GetConsumeStatsRequest(Header):
    """How far is a group behind, in all its topics or in one?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None


@header
class GetBrokerConsumeStatsRequest(Header):
    """How far is every group of the broker behind?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_BROKER_CONSUME_STATS

    is_order: bool = False


@header
class GetConsumerConnectionListRequest(Header):
    """Who consumes as this group?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


@header
class GetProducerConnectionListRequest(Header):
    """Who produces as this group?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


@header
class ResetOffsetRequest(Header):
    """Set a group back or forward to a time, or with -1 to the end.

    An operator sends it to a broker (INVOKE_BROKER_TO_RESET_OFFSET), and the broker, with the
    offsets in the body, to the members (RESET_CONSUMER_CLIENT_OFFSET).
    """

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False


@header
class GetConsumerStatusRequest(Header):
    """How far has each member come by its own account?

    An operator asks the broker (INVOKE_BROKER_TO_GET_CONSUMER_STATUS), the broker its clients
    (GET_CONSUMER_STATUS_FROM_CLIENT). The address is really a client id.
    """

    topic: str
    group: str
    client_addr: str | None = None


@header
class GetConsumerRunningInfoRequest(Header):
    """What is a member doing? Passed on by the broker as it is."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header
class ConsumeMessageDirectlyRequest(Header):
    """Let a member consume one message now. The broker passes it on with the message."""

    CODE: ClassVar[RequestCode] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


@header
class QueryConsumeTimeSpanRequest(Header):
    """Between which times do the messages lie that a group has read?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str


@header
class QueryCorrectionOffsetRequest(Header):
    """Where do other groups stand, compared with one?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_CORRECTION_OFFSET

    filter_groups: str | None = None
    compare_group: str
    topic: str


@header
class CloneGroupOffsetRequest(Header):
    """Let one group stand where another does."""

    CODE: ClassVar[RequestCode] = RequestCode.CLONE_GROUP_OFFSET

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
