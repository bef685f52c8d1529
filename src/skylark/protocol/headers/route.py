"""The name server's conversations: routes, topic lists, key-value settings, registration."""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header


@header
class GetRouteInfoRequest(Header):
    """Who serves a topic? Asked by every client, every 30 seconds."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


@header
class GetTopicsByClusterRequest(Header):
    """Which topics does a cluster have?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


@header
class DeleteTopicInNamesrvRequest(Header):
    """Forget a topic; with a cluster name, only on that cluster's brokers."""

    CODE: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


@header
class PutKVConfigRequest(Header):
    """Keep one setting."""

    CODE: ClassVar[RequestCode] = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


@header
class GetKVConfigRequest(Header):
    """Read one setting."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


@header
class GetKVConfigResponse(Header):
    """The setting's value, absent when it was not found."""

    value: str | None = None


@header
class DeleteKVConfigRequest(Header):
    """Forget one setting."""

    CODE: ClassVar[RequestCode] = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


@header
class GetKVListByNamespaceRequest(Header):
    """Read all settings of a namespace."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


@header
class WipeWritePermOfBrokerRequest(Header):
    """Take a broker out of writing, as the name server tells it."""

    CODE: ClassVar[RequestCode] = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


@header
class WipeWritePermOfBrokerResponse(Header):
    """How many topics were changed."""

    wipe_topic_count: I32


@header
class AddWritePermOfBrokerRequest(Header):
    """Let a broker be written to again."""

    CODE: ClassVar[RequestCode] = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str


@header
class AddWritePermOfBrokerResponse(Header):
    """How many topics were changed."""

    add_topic_count: I32


@header
class RegistrationRefusal(Header):
    """In answer to what needs the registration key: what to prove it over."""

    reg_challenge: str


@header
class RegisterBrokerRequest(Header):
    """A broker says that it lives, where, and (in the body) with which topics."""

    CODE: ClassVar[RequestCode] = RequestCode.REGISTER_BROKER

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str | None = None
    broker_id: I64
    compressed: bool = False
    body_crc32: I32 = 0
    # Of a leader of a Raft group: its term, so that a former leader that is late is recognised.
    leader_term: I64 | None = None


@header
class RegisterBrokerResponse(Header):
    """Where a replica finds its master; empty for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header
class UnregisterBrokerRequest(Header):
    """A broker takes its leave."""

    CODE: ClassVar[RequestCode] = RequestCode.UNREGISTER_BROKER

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@header
class QueryDataVersionRequest(Header):
    """Has the broker's topic table changed since the name server saw it?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_DATA_VERSION

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@header
class QueryDataVersionResponse(Header):
    """Whether a registration is due."""

    changed: bool
