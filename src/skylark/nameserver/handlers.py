"""What a name server answers: the tables of contents are Handlers.table() and raw_table().

    code               asks                                       answers other than success
    100 101 102 219    key-value settings                         22 not there
    103 104 322        a broker registers, leaves, compares       1 damaged body; 16 not its to end
    105                a topic's route                            17 nobody serves it
    106                all clusters and brokers
    205 327            wipe and restore a broker's writing
    206 224 304 311-3  topic lists
    216                forget a topic
    318 319            this server's own settings                 16 not changeable; 1 bad value

With a registration key, what changes anything is answered with 16 to whoever does not prove it.

Codes and remarks are RocketMQ 4.9.8's. Where we differ, docs/compatibility.md says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from hashlib import blake2b

from ..clock import Clock
from ..config import config_text, merge_properties, update_from_text
from ..errors import BrokerError, SettingRefused, StoreError
from ..protocol.bodies import (
    DataVersionBody,
    KVTable,
    RegisterBrokerBody,
    TopicList,
    body_crc32,
)
from ..protocol.bodies.registration import FULL_BODY_VERSION_MIN
from ..protocol.bodies.routes import STANDARD_JSON_VERSION_MIN
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.exchange import AnyRequest, Peer, Request, Response
from ..protocol.header import Header
from ..protocol.headers import route as headers
from ..protocol.registration_proof import PROVED_CODES
from .config import NameServerConfig
from .kv_config import ORDER_TOPIC_CONFIG, KVConfig, SmallFiles
from .registration_guard import RegistrationGuard
from .route_table import BrokerIdentity, MasterAddress, RouteTable

logger = logging.getLogger(__name__)

NAME_CHARS_MAX = 255

Handle = Callable[[AnyRequest, Peer], Response | None]
Table = dict[int, tuple[type[Header] | None, Handle]]
RawTable = dict[int, Callable[[Command, Peer], Command]]


class Handlers:
    """One method for each request code; none of them waits."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        kv: KVConfig,
        clock: Clock,
        files: SmallFiles,
        *,
        config_store_path: str,
        on_config: Callable[[NameServerConfig], None] = lambda config: None,
        guard: RegistrationGuard | None = None,
    ) -> None:
        self.config = config
        self._table = table
        self._kv = kv
        self._clock = clock
        self._files = files
        self._config_store_path = config_store_path
        self._on_config = on_config
        self._guard = guard

    def table(self) -> Table:
        """Request code → the type of its header, and the method that serves it."""
        table = self._table_of_contents()
        if self._guard is not None:
            for code in PROVED_CODES:
                header, handle = table[code]
                table[code] = header, self._guard.guarded(handle)
        return table

    def _table_of_contents(self) -> Table:
        return {
            RequestCode.PUT_KV_CONFIG: (headers.PutKVConfigRequest, self.put_kv),
            RequestCode.GET_KV_CONFIG: (headers.GetKVConfigRequest, self.get_kv),
            RequestCode.DELETE_KV_CONFIG: (headers.DeleteKVConfigRequest, self.delete_kv),
            RequestCode.GET_KVLIST_BY_NAMESPACE: (
                headers.GetKVListByNamespaceRequest,
                self.list_kv,
            ),
            RequestCode.REGISTER_BROKER: (headers.RegisterBrokerRequest, self.register),
            RequestCode.UNREGISTER_BROKER: (headers.UnregisterBrokerRequest, self.unregister),
            RequestCode.QUERY_DATA_VERSION: (headers.QueryDataVersionRequest, self.query_version),
            RequestCode.GET_BROKER_CLUSTER_INFO: (None, self.get_cluster_info),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: (
                headers.WipeWritePermOfBrokerRequest,
                self.wipe_write_perm,
            ),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: (
                headers.AddWritePermOfBrokerRequest,
                self.add_write_perm,
            ),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, self.list_topics),
            RequestCode.GET_TOPICS_BY_CLUSTER: (
                headers.GetTopicsByClusterRequest,
                self.list_topics_of_cluster,
            ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: (None, self.list_system_topics),
            RequestCode.GET_UNIT_TOPIC_LIST: (None, self.list_unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, self.list_unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (
                None,
                self.list_unit_sub_not_unit_topics,
            ),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: (
                headers.DeleteTopicInNamesrvRequest,
                self.delete_topic,
            ),
            RequestCode.UPDATE_NAMESRV_CONFIG: (None, self.update_config),
            RequestCode.GET_NAMESRV_CONFIG: (None, self.get_config),
        }

    def raw_table(self) -> RawTable:
        """The one request that comes by the thousand takes and gives commands as they are."""
        return {RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route}

    # Brokers.

    def register(self, request: Request[headers.RegisterBrokerRequest], peer: Peer) -> Response:
        header = request.header
        broker = _identity(header)
        _require_sound(broker)
        if header.body_crc32 and header.body_crc32 != body_crc32(request.body):
            return Response(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        now_ms = self._clock.monotonic_ms()
        fingerprint = _fingerprint(request)
        is_same, master = self._table.repeat(
            broker, fingerprint, owner=peer, now_ms=now_ms, ha_address=header.ha_server_addr
        )
        if not is_same:
            master = self._register_anew(request, broker, fingerprint, peer, now_ms)
        answer = headers.RegisterBrokerResponse()
        if master is not None:
            answer = headers.RegisterBrokerResponse(
                ha_server_addr=master.ha_address, master_addr=master.address
            )
        order_topics = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return Response(
            header=answer, body=b"" if order_topics is None else KVTable(order_topics).to_json()
        )

    def _register_anew(
        self,
        request: Request[headers.RegisterBrokerRequest],
        broker: BrokerIdentity,
        fingerprint: bytes,
        peer: Peer,
        now_ms: int,
    ) -> MasterAddress | None:
        header = request.header
        body = RegisterBrokerBody.decode(
            request.body, compressed=header.compressed, version=request.version
        )
        is_new = self._table.data_version(broker.address) is None
        master = self._table.register(
            broker,
            table=body.table,
            owner=peer,
            now_ms=now_ms,
            ha_address=header.ha_server_addr,
            filter_servers=body.filter_servers,
            fingerprint=fingerprint,
            leader_term=header.leader_term,
        )
        if is_new:
            logger.info(
                "cluster=%s broker=%s id=%d address=%s registered by peer=%s",
                broker.cluster,
                broker.name,
                broker.id,
                broker.address,
                peer.address,
            )
        return master

    def unregister(self, request: Request[headers.UnregisterBrokerRequest], peer: Peer) -> Response:
        broker = _identity(request.header)
        if not self._table.unregister(broker, owner=peer):
            logger.info(
                "broker=%s id=%d address=%s kept: registered on another connection than peer=%s",
                broker.name,
                broker.id,
                broker.address,
                peer.address,
            )
            return Response(
                ResponseCode.NO_PERMISSION,
                f"{broker.address} is registered on another connection, which alone can end that",
            )
        logger.info(
            "broker=%s id=%d address=%s unregistered", broker.name, broker.id, broker.address
        )
        return Response()

    def query_version(
        self, request: Request[headers.QueryDataVersionRequest], peer: Peer
    ) -> Response:
        broker = _identity(request.header)
        asked = DataVersionBody.from_json(request.body).version
        is_known = self._table.refresh(broker, asked, owner=peer, now_ms=self._clock.monotonic_ms())
        known = self._table.data_version(broker.address)
        return Response(
            header=headers.QueryDataVersionResponse(changed=not is_known),
            body=b"" if known is None else DataVersionBody(known).to_json(),
        )

    def connection_lost(self, peer: Peer) -> None:
        """A peer's connection has ended: brokers that were known by it go with it."""
        if self._guard is not None:
            self._guard.connection_lost(peer)
        for gone in self._table.owner_gone(peer):
            logger.info(
                "broker=%s id=%d address=%s removed: its connection closed",
                gone.broker.name,
                gone.broker.id,
                gone.broker.address,
            )

    def wipe_write_perm(
        self, request: Request[headers.WipeWritePermOfBrokerRequest], peer: Peer
    ) -> Response:
        name = request.header.broker_name
        count = self._table.wipe_write_perm(name)
        logger.info(
            "broker=%s write permission wiped topics=%d by peer=%s", name, count, peer.address
        )
        return Response(header=headers.WipeWritePermOfBrokerResponse(wipe_topic_count=count))

    def add_write_perm(
        self, request: Request[headers.AddWritePermOfBrokerRequest], peer: Peer
    ) -> Response:
        name = request.header.broker_name
        count = self._table.add_write_perm(name)
        logger.info(
            "broker=%s write permission added topics=%d by peer=%s", name, count, peer.address
        )
        return Response(header=headers.AddWritePermOfBrokerResponse(add_topic_count=count))

    # Routes and topics.

    def get_route(self, command: Command, peer: Peer) -> Command:
        fields = command.fields
        topic = fields.get("topic")
        if topic is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "GetRouteInfoRequest: topic is missing")
        standard = (
            command.version >= STANDARD_JSON_VERSION_MIN
            or fields.get("acceptStandardJsonOnly", "").lower() == "true"
        )
        order_conf = None
        if self.config.order_message_enable:
            order_conf = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        body = self._table.route_body(topic, standard=standard, order_conf=order_conf)
        if body is None:
            return command.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:NAME_CHARS_MAX]}",
            )
        return command.reply(ResponseCode.SUCCESS, body=body)

    def get_cluster_info(self, request: Request[None], peer: Peer) -> Response:
        return Response(body=self._table.cluster_body())

    def list_topics(self, request: Request[None], peer: Peer) -> Response:
        return _topic_list(self._table.topics())

    def list_topics_of_cluster(
        self, request: Request[headers.GetTopicsByClusterRequest], peer: Peer
    ) -> Response:
        return _topic_list(self._table.topics_of_cluster(request.header.cluster))

    def list_system_topics(self, request: Request[None], peer: Peer) -> Response:
        return _topic_list(*self._table.system_topics())

    def list_unit_topics(self, request: Request[None], peer: Peer) -> Response:
        return _topic_list(self._table.unit_topics())

    def list_unit_sub_topics(self, request: Request[None], peer: Peer) -> Response:
        return _topic_list(self._table.unit_sub_topics())

    def list_unit_sub_not_unit_topics(self, request: Request[None], peer: Peer) -> Response:
        return _topic_list(self._table.unit_sub_not_unit_topics())

    def delete_topic(
        self, request: Request[headers.DeleteTopicInNamesrvRequest], peer: Peer
    ) -> Response:
        header = request.header
        self._table.delete_topic(header.topic, cluster=header.cluster_name or None)
        logger.info(
            "topic=%s cluster=%s deleted by peer=%s",
            header.topic,
            header.cluster_name or "*",
            peer.address,
        )
        return Response()

    # Settings.

    def put_kv(self, request: Request[headers.PutKVConfigRequest], peer: Peer) -> Response:
        header = request.header
        try:
            self._kv.put(header.namespace, header.key, header.value)
        except StoreError as error:
            raise _not_written(error) from error
        logger.info(
            "namespace=%s key=%s put by peer=%s", header.namespace, header.key, peer.address
        )
        return Response()

    def get_kv(self, request: Request[headers.GetKVConfigRequest], peer: Peer) -> Response:
        header = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return Response(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
                headers.GetKVConfigResponse(),
            )
        return Response(header=headers.GetKVConfigResponse(value=value))

    def delete_kv(self, request: Request[headers.DeleteKVConfigRequest], peer: Peer) -> Response:
        header = request.header
        try:
            self._kv.delete(header.namespace, header.key)
        except StoreError as error:
            raise _not_written(error) from error
        logger.info(
            "namespace=%s key=%s deleted by peer=%s", header.namespace, header.key, peer.address
        )
        return Response()

    def list_kv(
        self, request: Request[headers.GetKVListByNamespaceRequest], peer: Peer
    ) -> Response:
        namespace = request.header.namespace
        members = self._kv.namespace(namespace)
        if members is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return Response(body=KVTable(members).to_json())

    def get_config(self, request: Request[None], peer: Peer) -> Response:
        return Response(body=config_text(self.config).encode())

    def update_config(self, request: Request[None], peer: Peer) -> Response:
        try:
            text = bytes(request.body).decode()
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, "the settings are not UTF-8 text")
        try:
            update = update_from_text(self.config, text)
        except SettingRefused as error:
            return Response(ResponseCode.NO_PERMISSION, str(error))
        if update.changes:
            self._store({key: new for key, (_, new) in update.changes.items()})
            self.config = update.config
            self._on_config(update.config)
        for key, (old, new) in update.changes.items():
            logger.info("setting=%s old=%s new=%s by peer=%s", key, old, new, peer.address)
        return Response()

    def _store(self, changes: dict[str, str]) -> None:
        path = self._config_store_path
        try:
            self._files.make_directory(os.path.dirname(path) or ".")
            text = self._files.read(path).decode() if self._files.exists(path) else ""
            self._files.replace(path, merge_properties(text, changes).encode())
        except (StoreError, UnicodeDecodeError) as error:
            raise _not_written(error) from error


def _identity(
    header: (
        headers.RegisterBrokerRequest
        | headers.UnregisterBrokerRequest
        | headers.QueryDataVersionRequest
    ),
) -> BrokerIdentity:
    return BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        id=header.broker_id,
        address=header.broker_addr,
    )


def _fingerprint(request: Request[headers.RegisterBrokerRequest]) -> bytes:
    # Not a check against forgery, only against meaning two things by the same bytes.
    form = b"%d,%d," % (request.header.compressed, request.version < FULL_BODY_VERSION_MIN)
    return blake2b(form + bytes(request.body), digest_size=16).digest()


def _require_sound(broker: BrokerIdentity) -> None:
    """Refuse what no client could use: it would come back to all of them in every route."""
    for what, text in (("brokerName", broker.name), ("clusterName", broker.cluster)):
        if not text or len(text) > NAME_CHARS_MAX or not text.isprintable():
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{what} must be 1 to {NAME_CHARS_MAX} printable characters",
            )
    host, _, port = broker.address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535
    is_host = 0 < len(host) <= NAME_CHARS_MAX and host.isprintable() and " " not in host
    if not is_port or not is_host:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"brokerAddr {broker.address[:64]!r} is not host:port"
        )


def _not_written(error: Exception) -> BrokerError:
    # The error names a file, which is for the operator's log and not for whoever asked.
    logger.error("a change was refused because it cannot be written: %s", error)
    return BrokerError(
        ResponseCode.SYSTEM_ERROR, "the change cannot be written and was not made; see the log"
    )


def _topic_list(topics: list[str], broker_address: str | None = None) -> Response:
    return Response(body=TopicList(tuple(topics), broker_address).to_json())
