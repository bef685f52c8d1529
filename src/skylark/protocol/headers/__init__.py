"""Typed headers, by conversation, and which of them each request code uses."""

from collections.abc import Mapping
from types import MappingProxyType

from ..codes import RequestCode as _Code
from ..header import Header as Header
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
from .admin_groups import QueryConsumeTimeSpanRequest as QueryConsumeTimeSpanRequest
from .admin_groups import QueryCorrectionOffsetRequest as QueryCorrectionOffsetRequest
from .admin_groups import ResetOffsetRequest as ResetOffsetRequest
from .admin_topics import CreateTopicRequest as CreateTopicRequest
from .admin_topics import DeleteTopicRequest as DeleteTopicRequest
from .admin_topics import GetBrokerConfigResponse as GetBrokerConfigResponse
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
from .transaction import CheckTransactionStateRequest as CheckTransactionStateRequest
from .transaction import EndTransactionRequest as EndTransactionRequest
from .transaction import ResumeCheckHalfMessageRequest as ResumeCheckHalfMessageRequest

REQUEST_HEADERS: Mapping[_Code, type[Header] | None] = MappingProxyType(
    {
        _Code.SEND_MESSAGE: SendMessageRequest,
        _Code.PULL_MESSAGE: PullMessageRequest,
        _Code.QUERY_MESSAGE: QueryMessageRequest,
        _Code.QUERY_BROKER_OFFSET: None,
        _Code.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetRequest,
        _Code.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetRequest,
        _Code.UPDATE_AND_CREATE_TOPIC: CreateTopicRequest,
        _Code.GET_ALL_TOPIC_CONFIG: None,
        _Code.GET_TOPIC_CONFIG_LIST: None,
        _Code.GET_TOPIC_NAME_LIST: None,
        _Code.UPDATE_BROKER_CONFIG: None,
        _Code.GET_BROKER_CONFIG: None,
        _Code.TRIGGER_DELETE_FILES: None,
        _Code.GET_BROKER_RUNTIME_INFO: None,
        _Code.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetRequest,
        _Code.GET_MAX_OFFSET: GetMaxOffsetRequest,
        _Code.GET_MIN_OFFSET: GetMinOffsetRequest,
        _Code.GET_EARLIEST_MSG_STORETIME: GetEarliestMsgStoretimeRequest,
        _Code.VIEW_MESSAGE_BY_ID: ViewMessageRequest,
        _Code.HEART_BEAT: None,
        _Code.UNREGISTER_CLIENT: UnregisterClientRequest,
        _Code.CONSUMER_SEND_MSG_BACK: ConsumerSendMsgBackRequest,
        _Code.END_TRANSACTION: EndTransactionRequest,
        _Code.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupRequest,
        _Code.CHECK_TRANSACTION_STATE: CheckTransactionStateRequest,
        _Code.NOTIFY_CONSUMER_IDS_CHANGED: NotifyConsumerIdsChangedRequest,
        _Code.LOCK_BATCH_MQ: None,
        _Code.UNLOCK_BATCH_MQ: None,
        _Code.GET_ALL_CONSUMER_OFFSET: None,
        _Code.GET_ALL_DELAY_OFFSET: None,
        _Code.CHECK_CLIENT_CONFIG: None,
        _Code.UPDATE_AND_CREATE_ACL_CONFIG: CreateAccessConfigRequest,
        _Code.DELETE_ACL_CONFIG: DeleteAccessConfigRequest,
        _Code.GET_BROKER_CLUSTER_ACL_INFO: None,
        _Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: UpdateGlobalWhiteAddrsRequest,
        _Code.GET_BROKER_CLUSTER_ACL_CONFIG: None,
        _Code.PUT_KV_CONFIG: PutKVConfigRequest,
        _Code.GET_KV_CONFIG: GetKVConfigRequest,
        _Code.DELETE_KV_CONFIG: DeleteKVConfigRequest,
        _Code.REGISTER_BROKER: RegisterBrokerRequest,
        _Code.UNREGISTER_BROKER: UnregisterBrokerRequest,
        _Code.GET_ROUTEINFO_BY_TOPIC: GetRouteInfoRequest,
        _Code.GET_BROKER_CLUSTER_INFO: None,
        _Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: None,
        _Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: None,
        _Code.GET_TOPIC_STATS_INFO: GetTopicStatsInfoRequest,
        _Code.GET_CONSUMER_CONNECTION_LIST: GetConsumerConnectionListRequest,
        _Code.GET_PRODUCER_CONNECTION_LIST: GetProducerConnectionListRequest,
        _Code.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerRequest,
        _Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: None,
        _Code.DELETE_SUBSCRIPTIONGROUP: DeleteSubscriptionGroupRequest,
        _Code.GET_CONSUME_STATS: GetConsumeStatsRequest,
        _Code.SUSPEND_CONSUMER: None,
        _Code.RESUME_CONSUMER: None,
        _Code.RESET_CONSUMER_OFFSET_IN_CONSUMER: None,
        _Code.RESET_CONSUMER_OFFSET_IN_BROKER: None,
        _Code.ADJUST_CONSUMER_THREAD_POOL: None,
        _Code.WHO_CONSUME_THE_MESSAGE: None,
        _Code.DELETE_TOPIC_IN_BROKER: DeleteTopicRequest,
        _Code.DELETE_TOPIC_IN_NAMESRV: DeleteTopicInNamesrvRequest,
        _Code.GET_KVLIST_BY_NAMESPACE: GetKVListByNamespaceRequest,
        _Code.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetRequest,
        _Code.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatusRequest,
        _Code.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetRequest,
        _Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatusRequest,
        _Code.GET_TOPICS_BY_CLUSTER: GetTopicsByClusterRequest,
        _Code.QUERY_TOPIC_CONSUME_BY_WHO: QueryTopicConsumeByWhoRequest,
        _Code.REGISTER_FILTER_SERVER: None,
        _Code.REGISTER_MESSAGE_FILTER_CLASS: None,
        _Code.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanRequest,
        _Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: None,
        _Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: None,
        _Code.CLEAN_EXPIRED_CONSUMEQUEUE: None,
        _Code.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfoRequest,
        _Code.QUERY_CORRECTION_OFFSET: QueryCorrectionOffsetRequest,
        _Code.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyRequest,
        _Code.SEND_MESSAGE_V2: SendMessageRequestV2,
        _Code.GET_UNIT_TOPIC_LIST: None,
        _Code.GET_HAS_UNIT_SUB_TOPIC_LIST: None,
        _Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: None,
        _Code.CLONE_GROUP_OFFSET: CloneGroupOffsetRequest,
        _Code.VIEW_BROKER_STATS_DATA: ViewBrokerStatsDataRequest,
        _Code.CLEAN_UNUSED_TOPIC: None,
        _Code.GET_BROKER_CONSUME_STATS: GetBrokerConsumeStatsRequest,
        _Code.UPDATE_NAMESRV_CONFIG: None,
        _Code.GET_NAMESRV_CONFIG: None,
        _Code.SEND_BATCH_MESSAGE: SendMessageRequestV2,
        _Code.QUERY_CONSUME_QUEUE: QueryConsumeQueueRequest,
        _Code.QUERY_DATA_VERSION: QueryDataVersionRequest,
        _Code.RESUME_CHECK_HALF_MESSAGE: ResumeCheckHalfMessageRequest,
        _Code.SEND_REPLY_MESSAGE: SendMessageRequest,
        _Code.SEND_REPLY_MESSAGE_V2: SendMessageRequestV2,
        _Code.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyMessageRequest,
        _Code.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBrokerRequest,
        _Code.GET_ALL_PRODUCER_INFO: None,
        _Code.DELETE_EXPIRED_COMMITLOG: None,
        _Code.LITE_PULL_MESSAGE: PullMessageRequest,
        _Code.RECALL_MESSAGE: RecallMessageRequest,
        _Code.QUERY_ASSIGNMENT: None,
        _Code.POP_MESSAGE: PopMessageRequest,
        _Code.ACK_MESSAGE: AckMessageRequest,
        _Code.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeRequest,
        _Code.NOTIFICATION: NotificationRequest,
        _Code.POLLING_INFO: PollingInfoRequest,
        _Code.BATCH_ACK_MESSAGE: None,
    }
)
"""The header of each request; None where there is none, or where the code is a name and no more."""

RESPONSE_HEADERS: Mapping[_Code, type[Header]] = MappingProxyType(
    {
        _Code.SEND_MESSAGE: SendMessageResponse,
        _Code.PULL_MESSAGE: PullMessageResponse,
        _Code.QUERY_MESSAGE: QueryMessageResponse,
        _Code.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetResponse,
        _Code.GET_BROKER_CONFIG: GetBrokerConfigResponse,
        _Code.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetResponse,
        _Code.GET_MAX_OFFSET: GetMaxOffsetResponse,
        _Code.GET_MIN_OFFSET: GetMinOffsetResponse,
        _Code.GET_EARLIEST_MSG_STORETIME: GetEarliestMsgStoretimeResponse,
        _Code.GET_BROKER_CLUSTER_ACL_INFO: GetBrokerAclConfigResponse,
        _Code.GET_KV_CONFIG: GetKVConfigResponse,
        _Code.REGISTER_BROKER: RegisterBrokerResponse,
        _Code.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerResponse,
        _Code.SEND_MESSAGE_V2: SendMessageResponse,
        _Code.SEND_BATCH_MESSAGE: SendMessageResponse,
        _Code.QUERY_DATA_VERSION: QueryDataVersionResponse,
        _Code.SEND_REPLY_MESSAGE: SendMessageResponse,
        _Code.SEND_REPLY_MESSAGE_V2: SendMessageResponse,
        _Code.ADD_WRITE_PERM_OF_BROKER: AddWritePermOfBrokerResponse,
        _Code.LITE_PULL_MESSAGE: PullMessageResponse,
        _Code.RECALL_MESSAGE: RecallMessageResponse,
        _Code.POP_MESSAGE: PopMessageResponse,
        _Code.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeResponse,
        _Code.NOTIFICATION: NotificationResponse,
        _Code.POLLING_INFO: PollingInfoResponse,
    }
)
"""The header of each response that has one."""
