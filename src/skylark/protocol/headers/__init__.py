"""Typed headers, by conversation, and which of them each request code uses."""

from typing import TYPE_CHECKING

from ...lazy import front_door

if TYPE_CHECKING:
    from .acl import CreateAccessConfigRequest as CreateAccessConfigRequest
    from .acl import DeleteAccessConfigRequest as DeleteAccessConfigRequest
    from .acl import GetBrokerAclConfigResponse as GetBrokerAclConfigResponse
    from .acl import UpdateGlobalWhiteAddrsRequest as UpdateGlobalWhiteAddrsRequest
    from .admin_groups import CloneGroupOffsetRequest as CloneGroupOffsetRequest
    from .admin_groups import ConsumeMessageDirectlyRequest as ConsumeMessageDirectlyRequest
    from .admin_groups import DeleteSubscriptionGroupRequest as DeleteSubscriptionGroupRequest
    from .admin_groups import GetBrokerConsumeStatsRequest as GetBrokerConsumeStatsRequest
    from .admin_groups import GetConsumerConnectionListRequest as GetConsumerConnectionListRequest
    from .admin_groups import GetConsumerRunningInfoRequest as GetConsumerRunningInfoRequest
    from .admin_groups import GetConsumerStatusRequest as GetConsumerStatusRequest
    from .admin_groups import GetConsumeStatsRequest as GetConsumeStatsRequest
    from .admin_groups import GetProducerConnectionListRequest as GetProducerConnectionListRequest
    from .admin_groups import GetSubscriptionGroupConfigRequest as GetSubscriptionGroupConfigRequest
    from .admin_groups import QueryConsumeTimeSpanRequest as QueryConsumeTimeSpanRequest
    from .admin_groups import QueryCorrectionOffsetRequest as QueryCorrectionOffsetRequest
    from .admin_groups import ResetOffsetRequest as ResetOffsetRequest
    from .admin_topics import CreateTopicRequest as CreateTopicRequest
    from .admin_topics import DeleteTopicRequest as DeleteTopicRequest
    from .admin_topics import GetBrokerConfigResponse as GetBrokerConfigResponse
    from .admin_topics import GetTopicConfigRequest as GetTopicConfigRequest
    from .admin_topics import GetTopicStatsInfoRequest as GetTopicStatsInfoRequest
    from .admin_topics import QueryTopicConsumeByWhoRequest as QueryTopicConsumeByWhoRequest
    from .admin_topics import ViewBrokerStatsDataRequest as ViewBrokerStatsDataRequest
    from .heartbeat import GetConsumerListByGroupRequest as GetConsumerListByGroupRequest
    from .heartbeat import NotifyConsumerIdsChangedRequest as NotifyConsumerIdsChangedRequest
    from .heartbeat import UnregisterClientRequest as UnregisterClientRequest
    from .offset import GetEarliestMsgStoretimeRequest as GetEarliestMsgStoretimeRequest
    from .offset import GetEarliestMsgStoretimeResponse as GetEarliestMsgStoretimeResponse
    from .offset import GetMaxOffsetRequest as GetMaxOffsetRequest
    from .offset import GetMaxOffsetResponse as GetMaxOffsetResponse
    from .offset import GetMinOffsetRequest as GetMinOffsetRequest
    from .offset import GetMinOffsetResponse as GetMinOffsetResponse
    from .offset import QueryConsumerOffsetRequest as QueryConsumerOffsetRequest
    from .offset import QueryConsumerOffsetResponse as QueryConsumerOffsetResponse
    from .offset import SearchOffsetRequest as SearchOffsetRequest
    from .offset import SearchOffsetResponse as SearchOffsetResponse
    from .offset import UpdateConsumerOffsetRequest as UpdateConsumerOffsetRequest
    from .pop import AckMessageRequest as AckMessageRequest
    from .pop import ChangeInvisibleTimeRequest as ChangeInvisibleTimeRequest
    from .pop import ChangeInvisibleTimeResponse as ChangeInvisibleTimeResponse
    from .pop import NotificationRequest as NotificationRequest
    from .pop import NotificationResponse as NotificationResponse
    from .pop import PollingInfoRequest as PollingInfoRequest
    from .pop import PollingInfoResponse as PollingInfoResponse
    from .pop import PopMessageRequest as PopMessageRequest
    from .pop import PopMessageResponse as PopMessageResponse
    from .pull import PullMessageRequest as PullMessageRequest
    from .pull import PullMessageResponse as PullMessageResponse
    from .pull import PullSysFlag as PullSysFlag
    from .query import QueryConsumeQueueRequest as QueryConsumeQueueRequest
    from .query import QueryMessageRequest as QueryMessageRequest
    from .query import QueryMessageResponse as QueryMessageResponse
    from .query import ViewMessageRequest as ViewMessageRequest
    from .route import AddWritePermOfBrokerRequest as AddWritePermOfBrokerRequest
    from .route import AddWritePermOfBrokerResponse as AddWritePermOfBrokerResponse
    from .route import DeleteKVConfigRequest as DeleteKVConfigRequest
    from .route import DeleteTopicInNamesrvRequest as DeleteTopicInNamesrvRequest
    from .route import GetKVConfigRequest as GetKVConfigRequest
    from .route import GetKVConfigResponse as GetKVConfigResponse
    from .route import GetKVListByNamespaceRequest as GetKVListByNamespaceRequest
    from .route import GetRouteInfoRequest as GetRouteInfoRequest
    from .route import GetTopicsByClusterRequest as GetTopicsByClusterRequest
    from .route import PutKVConfigRequest as PutKVConfigRequest
    from .route import QueryDataVersionRequest as QueryDataVersionRequest
    from .route import QueryDataVersionResponse as QueryDataVersionResponse
    from .route import RegisterBrokerRequest as RegisterBrokerRequest
    from .route import RegisterBrokerResponse as RegisterBrokerResponse
    from .route import RegistrationRefusal as RegistrationRefusal
    from .route import UnregisterBrokerRequest as UnregisterBrokerRequest
    from .route import WipeWritePermOfBrokerRequest as WipeWritePermOfBrokerRequest
    from .route import WipeWritePermOfBrokerResponse as WipeWritePermOfBrokerResponse
    from .send import ConsumerSendMsgBackRequest as ConsumerSendMsgBackRequest
    from .send import PushReplyMessageRequest as PushReplyMessageRequest
    from .send import RecallMessageRequest as RecallMessageRequest
    from .send import RecallMessageResponse as RecallMessageResponse
    from .send import SendMessageRequest as SendMessageRequest
    from .send import SendMessageRequestV2 as SendMessageRequestV2
    from .send import SendMessageResponse as SendMessageResponse
    from .staging import GetDecisionRequest as GetDecisionRequest
    from .staging import StageRowsRequest as StageRowsRequest
    from .tables import REQUEST_HEADERS as REQUEST_HEADERS
    from .tables import RESPONSE_HEADERS as RESPONSE_HEADERS
    from .timer import AddRepeatRequest as AddRepeatRequest
    from .timer import CancelTimerRequest as CancelTimerRequest
    from .timer import FireTimerRequest as FireTimerRequest
    from .timer import ListTimersRequest as ListTimersRequest
    from .timer import TimerResponse as TimerResponse
    from .transaction import CheckTransactionStateRequest as CheckTransactionStateRequest
    from .transaction import EndTransactionRequest as EndTransactionRequest
    from .transaction import ListTransactionsRequest as ListTransactionsRequest
    from .transaction import ResumeCheckHalfMessageRequest as ResumeCheckHalfMessageRequest
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "acl": (
                "CreateAccessConfigRequest",
                "DeleteAccessConfigRequest",
                "GetBrokerAclConfigResponse",
                "UpdateGlobalWhiteAddrsRequest",
            ),
            "admin_groups": (
                "CloneGroupOffsetRequest",
                "ConsumeMessageDirectlyRequest",
                "DeleteSubscriptionGroupRequest",
                "GetBrokerConsumeStatsRequest",
                "GetConsumeStatsRequest",
                "GetConsumerConnectionListRequest",
                "GetConsumerRunningInfoRequest",
                "GetConsumerStatusRequest",
                "GetProducerConnectionListRequest",
                "GetSubscriptionGroupConfigRequest",
                "QueryConsumeTimeSpanRequest",
                "QueryCorrectionOffsetRequest",
                "ResetOffsetRequest",
            ),
            "admin_topics": (
                "CreateTopicRequest",
                "DeleteTopicRequest",
                "GetBrokerConfigResponse",
                "GetTopicConfigRequest",
                "GetTopicStatsInfoRequest",
                "QueryTopicConsumeByWhoRequest",
                "ViewBrokerStatsDataRequest",
            ),
            "heartbeat": (
                "GetConsumerListByGroupRequest",
                "NotifyConsumerIdsChangedRequest",
                "UnregisterClientRequest",
            ),
            "offset": (
                "GetEarliestMsgStoretimeRequest",
                "GetEarliestMsgStoretimeResponse",
                "GetMaxOffsetRequest",
                "GetMaxOffsetResponse",
                "GetMinOffsetRequest",
                "GetMinOffsetResponse",
                "QueryConsumerOffsetRequest",
                "QueryConsumerOffsetResponse",
                "SearchOffsetRequest",
                "SearchOffsetResponse",
                "UpdateConsumerOffsetRequest",
            ),
            "pop": (
                "AckMessageRequest",
                "ChangeInvisibleTimeRequest",
                "ChangeInvisibleTimeResponse",
                "NotificationRequest",
                "NotificationResponse",
                "PollingInfoRequest",
                "PollingInfoResponse",
                "PopMessageRequest",
                "PopMessageResponse",
            ),
            "pull": (
                "PullMessageRequest",
                "PullMessageResponse",
                "PullSysFlag",
            ),
            "query": (
                "QueryConsumeQueueRequest",
                "QueryMessageRequest",
                "QueryMessageResponse",
                "ViewMessageRequest",
            ),
            "route": (
                "AddWritePermOfBrokerRequest",
                "AddWritePermOfBrokerResponse",
                "DeleteKVConfigRequest",
                "DeleteTopicInNamesrvRequest",
                "GetKVConfigRequest",
                "GetKVConfigResponse",
                "GetKVListByNamespaceRequest",
                "GetRouteInfoRequest",
                "GetTopicsByClusterRequest",
                "PutKVConfigRequest",
                "QueryDataVersionRequest",
                "QueryDataVersionResponse",
                "RegisterBrokerRequest",
                "RegisterBrokerResponse",
                "RegistrationRefusal",
                "UnregisterBrokerRequest",
                "WipeWritePermOfBrokerRequest",
                "WipeWritePermOfBrokerResponse",
            ),
            "send": (
                "ConsumerSendMsgBackRequest",
                "PushReplyMessageRequest",
                "RecallMessageRequest",
                "RecallMessageResponse",
                "SendMessageRequest",
                "SendMessageRequestV2",
                "SendMessageResponse",
            ),
            "tables": (
                "REQUEST_HEADERS",
                "RESPONSE_HEADERS",
            ),
            "timer": (
                "AddRepeatRequest",
                "CancelTimerRequest",
                "FireTimerRequest",
                "ListTimersRequest",
                "TimerResponse",
            ),
            "staging": ("GetDecisionRequest", "StageRowsRequest"),
            "transaction": (
                "CheckTransactionStateRequest",
                "EndTransactionRequest",
                "ListTransactionsRequest",
                "ResumeCheckHalfMessageRequest",
            ),
        },
    )
