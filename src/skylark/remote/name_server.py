"""Calls to name servers: one coroutine for each request code.

    RemoteNameServer   one of them, by address: what an operator or a broker addresses in turn
    NameServers        all of them, as a client sees them: any will do

NameServers keeps to one server, chosen at random so that clients spread, and turns to the next when
it fails. Name servers know nothing of each other, so a change (put_kv, wipe_write_perm …) must be
made at each: `for server in name_servers.each(): ...`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

from ..errors import BrokerError, TransportError
from ..model.route import ClusterInfo, TopicRoute
from ..model.version import DataVersion
from ..net.channel import Channels
from ..protocol.bodies import (
    ClusterInfoBody,
    DataVersionBody,
    KVTable,
    TopicList,
    TopicRouteBody,
    body_crc32,
    format_properties,
    parse_properties,
)
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.header import Header
from ..protocol.headers import route as headers
from ..protocol.registration_proof import CHALLENGE, PROVED_CODES, RegistrationKey

CALL_TIMEOUT_MS: Final = 3_000
REGISTER_TIMEOUT_MS: Final = 6_000
ROUTES_MAX: Final = 10_000


class _Calls:
    """The requests that a name server answers; who is asked is the subclass's business."""

    def __init__(self) -> None:
        self._routes: dict[str, tuple[bytes, TopicRoute]] = {}

    async def _call(
        self, code: RequestCode, header: Header | None, body: bytes, timeout_ms: int
    ) -> Command:
        raise NotImplementedError

    # Routes and topics.

    async def get_route(self, topic: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> TopicRoute:
        """Who serves a topic; BrokerError TOPIC_NOT_EXIST where nobody does."""
        header = headers.GetRouteInfoRequest(topic=topic)
        answer = await self._call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, b"", timeout_ms)
        body = bytes(answer.body)
        # Asked for again and again, and nearly always the same: comparing is cheaper than reading.
        known = self._routes.get(topic)
        if known is not None and known[0] == body:
            return known[1]
        route = TopicRouteBody.from_json(body).route
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (body, route)
        return route

    async def get_cluster_info(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> ClusterInfo:
        """All clusters and brokers."""
        answer = await self._call(RequestCode.GET_BROKER_CLUSTER_INFO, None, b"", timeout_ms)
        return ClusterInfoBody.from_json(answer.body).cluster

    async def get_topics(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> tuple[str, ...]:
        """All topics."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return (await self._list(code, None, timeout_ms)).topics

    async def get_topics_of_cluster(
        self, cluster: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """The topics of one cluster."""
        header = headers.GetTopicsByClusterRequest(cluster=cluster)
        return (await self._list(RequestCode.GET_TOPICS_BY_CLUSTER, header, timeout_ms)).topics

    async def get_system_topics(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> TopicList:
        """Topics named after clusters and brokers, and a broker that can name the others."""
        return await self._list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, timeout_ms)

    async def get_unit_topics(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> tuple[str, ...]:
        """Topics with the unit mark."""
        return (await self._list(RequestCode.GET_UNIT_TOPIC_LIST, None, timeout_ms)).topics

    async def get_unit_sub_topics(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> tuple[str, ...]:
        """Topics with subscribers in units."""
        return (await self._list(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None, timeout_ms)).topics

    async def get_unit_sub_not_unit_topics(
        self, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """Topics with subscribers in units that are no unit topics."""
        code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
        return (await self._list(code, None, timeout_ms)).topics

    async def delete_topic(
        self, topic: str, *, cluster: str | None = None, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> None:
        """Forget a topic, everywhere or on the brokers of one cluster."""
        header = headers.DeleteTopicInNamesrvRequest(topic=topic, cluster_name=cluster)
        await self._call(RequestCode.DELETE_TOPIC_IN_NAMESRV, header, b"", timeout_ms)

    async def wipe_write_perm(self, broker_name: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> int:
        """Take a broker out of writing; return how many topics it has."""
        header = headers.WipeWritePermOfBrokerRequest(broker_name=broker_name)
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._call(code, header, b"", timeout_ms)
        return headers.WipeWritePermOfBrokerResponse.from_fields(answer.fields).wipe_topic_count

    async def add_write_perm(self, broker_name: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> int:
        """Let a broker be written to again; return how many topics it has."""
        header = headers.AddWritePermOfBrokerRequest(broker_name=broker_name)
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        answer = await self._call(code, header, b"", timeout_ms)
        return headers.AddWritePermOfBrokerResponse.from_fields(answer.fields).add_topic_count

    # Settings.

    async def put_kv(
        self, namespace: str, key: str, value: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> None:
        """Keep a value."""
        header = headers.PutKVConfigRequest(namespace=namespace, key=key, value=value)
        await self._call(RequestCode.PUT_KV_CONFIG, header, b"", timeout_ms)

    async def get_kv(
        self, namespace: str, key: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> str | None:
        """One value, or None where there is none."""
        header = headers.GetKVConfigRequest(namespace=namespace, key=key)
        try:
            answer = await self._call(RequestCode.GET_KV_CONFIG, header, b"", timeout_ms)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return headers.GetKVConfigResponse.from_fields(answer.fields).value

    async def delete_kv(
        self, namespace: str, key: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> None:
        """Forget a value."""
        header = headers.DeleteKVConfigRequest(namespace=namespace, key=key)
        await self._call(RequestCode.DELETE_KV_CONFIG, header, b"", timeout_ms)

    async def get_kv_namespace(
        self, namespace: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Mapping[str, str] | None:
        """All values of a namespace, or None where there is no such namespace."""
        header = headers.GetKVListByNamespaceRequest(namespace=namespace)
        try:
            code = RequestCode.GET_KVLIST_BY_NAMESPACE
            answer = await self._call(code, header, b"", timeout_ms)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return KVTable.from_json(answer.body).table

    async def get_config(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> Mapping[str, str]:
        """The name server's own settings, as far as it shows them."""
        answer = await self._call(RequestCode.GET_NAMESRV_CONFIG, None, b"", timeout_ms)
        return parse_properties(answer.body)

    async def update_config(
        self, settings: Mapping[str, str], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> None:
        """Change some of them, all or nothing."""
        body = format_properties(settings)
        await self._call(RequestCode.UPDATE_NAMESRV_CONFIG, None, body, timeout_ms)

    async def _list(self, code: RequestCode, header: Header | None, timeout_ms: int) -> TopicList:
        return TopicList.from_json((await self._call(code, header, b"", timeout_ms)).body)


class RemoteNameServer(_Calls):
    """One name server; the key proves that we may change what it shows to clients."""

    def __init__(
        self, channels: Channels, address: str, *, key: RegistrationKey | None = None
    ) -> None:
        super().__init__()
        self.address = address
        self._channels = channels
        self._key = key
        self._challenge = ""  # Of the present connection, as far as known.

    async def register_broker(
        self,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        ha_address: str | None = None,
        body: bytes,
        compressed: bool = False,
        leader_term: int | None = None,
        oneway: bool = False,
        timeout_ms: int = REGISTER_TIMEOUT_MS,
    ) -> tuple[headers.RegisterBrokerResponse, Mapping[str, str] | None]:
        """Say that a broker lives; return where its master is, and the order settings if any.

        The body is a RegisterBrokerBody, encoded once for all name servers and heartbeats.
        """
        header = headers.RegisterBrokerRequest(
            broker_name=broker_name,
            broker_addr=address,
            cluster_name=cluster,
            ha_server_addr=ha_address,
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
            leader_term=leader_term,
        )
        code = RequestCode.REGISTER_BROKER
        if oneway:
            command = Command.request(code, header.to_fields(), body, oneway=True)
            if self._key is not None and self._challenge:
                self._key.sign(command, self._challenge)
            await self._channels.send_oneway(self.address, command)
            return headers.RegisterBrokerResponse(), None
        answer = await self._call(code, header, body, timeout_ms)
        order_topics = KVTable.from_json(answer.body).table if answer.body else None
        return headers.RegisterBrokerResponse.from_fields(answer.fields), order_topics

    async def unregister_broker(
        self,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """Take a broker's leave."""
        header = headers.UnregisterBrokerRequest(
            broker_name=broker_name,
            broker_addr=address,
            cluster_name=cluster,
            broker_id=broker_id,
        )
        await self._call(RequestCode.UNREGISTER_BROKER, header, b"", timeout_ms)

    async def query_data_version(
        self,
        data_version: DataVersion,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> tuple[bool, DataVersion | None]:
        """Whether a registration is due, and which version the name server has."""
        header = headers.QueryDataVersionRequest(
            broker_name=broker_name,
            broker_addr=address,
            cluster_name=cluster,
            broker_id=broker_id,
        )
        body = DataVersionBody(data_version).to_json()
        answer = await self._call(RequestCode.QUERY_DATA_VERSION, header, body, timeout_ms)
        changed = headers.QueryDataVersionResponse.from_fields(answer.fields).changed
        known = DataVersionBody.from_json(answer.body).version if answer.body else None
        return changed, known

    async def _call(
        self, code: RequestCode, header: Header | None, body: bytes, timeout_ms: int
    ) -> Command:
        fields = None if header is None else header.to_fields()
        command = Command.request(code, fields, body)
        proved = self._challenge
        if self._key is not None and proved and code in PROVED_CODES:
            self._key.sign(command, proved)
        answer = await self._channels.call(self.address, command, timeout_ms)
        challenge = answer.fields.get(CHALLENGE)
        if self._key is not None and challenge and challenge != proved:
            # The first request on a connection learns what to prove the key over.
            self._challenge = challenge
            command = Command.request(code, fields, body)
            self._key.sign(command, challenge)
            answer = await self._channels.call(self.address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.address)
        return answer


class NameServers(_Calls):
    """Several name servers, of which any can answer."""

    def __init__(
        self,
        channels: Channels,
        addresses: Iterable[str],
        rng: random.Random,
        *,
        key: RegistrationKey | None = None,
    ) -> None:
        super().__init__()
        self._channels = channels
        self._key = key
        self._rng = rng
        self._servers: list[RemoteNameServer] = []
        self._chosen = 0
        self.update(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, in the order in which they are tried."""
        return tuple(server.address for server in self._servers)

    @property
    def chosen(self) -> str | None:
        """The address that the next call goes to."""
        return self._servers[self._chosen].address if self._servers else None

    def each(self) -> list[RemoteNameServer]:
        """Every name server, for what must be done at all of them."""
        return list(self._servers)

    def use_key(self, key: RegistrationKey) -> None:
        """Prove this key from now on where it is asked for."""
        self._key = key
        self._servers = [self._server(server.address) for server in self._servers]

    def _server(self, address: str) -> RemoteNameServer:
        return RemoteNameServer(self._channels, address, key=self._key)

    def update(self, addresses: Iterable[str]) -> None:
        """Use another list. An empty one is an accident somewhere else, and changes nothing."""
        wanted = list(dict.fromkeys(address.strip() for address in addresses if address.strip()))
        if not wanted or sorted(wanted) == sorted(self.addresses):
            return
        chosen = self.chosen
        for address in self.addresses:
            if address not in wanted:
                self._channels.drop(address)
        self._rng.shuffle(wanted)
        self._servers = [self._server(address) for address in wanted]
        # Stay where we are if that one is still there.
        self._chosen = wanted.index(chosen) if chosen in wanted else 0

    async def find_route(self, topic: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> TopicRoute:
        """Who serves a topic, asking the others before taking no for an answer.

        A name server that has just started knows nothing until the brokers' next heartbeat.
        """
        try:
            return await self.get_route(topic, timeout_ms=timeout_ms)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            refusal = error
        for server in self._servers[self._chosen + 1 :] + self._servers[: self._chosen]:
            try:
                return await server.get_route(topic, timeout_ms=timeout_ms)
            except (BrokerError, TransportError):
                continue
        raise refusal

    async def _call(
        self, code: RequestCode, header: Header | None, body: bytes, timeout_ms: int
    ) -> Command:
        if not self._servers:
            raise TransportError("name server", "no address is known; set namesrvAddr")
        failures = []
        servers, first = self._servers, self._chosen
        for step in range(len(servers)):
            server = servers[(first + step) % len(servers)]
            try:
                answer = await server._call(code, header, body, timeout_ms)
            except TransportError as error:
                failures.append(error)
                continue
            if step and server in self._servers:
                self._chosen = self._servers.index(server)
            return answer
        if len(failures) == 1:
            raise failures[0]
        raise TransportError(
            ";".join(error.address for error in failures),
            f"no name server answers: {'; '.join(error.problem for error in failures)}",
        )
