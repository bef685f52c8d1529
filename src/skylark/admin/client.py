"""AdminClient: every operator action as a typed coroutine; it prints nothing.

    async with connect("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", read_queues=8, write_queues=8)
        for queue in (await admin.group("billing")).queues: ...

Actions go to the masters of all brokers, or of those of one cluster or name. Only brokers that the
name servers know are ever dialled, whatever address a message id holds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from ..client import Client
from ..client.connect import connect as connect_client
from ..client.received import ReceivedMessage
from ..clock import Clock
from ..errors import BrokerError, ClientError, InvalidBody, NoRoute, TransportError
from ..model.group import (
    MessageModel,
    Subscription,
    SubscriptionGroupConfig,
    is_system_group,
)
from ..model.message import HostAddress, StoredMessage
from ..model.names import check_group_name, check_topic_name
from ..model.queue import MessageQueue
from ..model.route import BrokerData, TopicRoute
from ..model.topic import TopicConfig, dlq_topic, is_retry_topic, is_system_topic, retry_topic
from ..remote import NameServers, RegistrationKey, RemoteBroker
from .asking import each as _each
from .dead_letters import DeadLetterActions
from .figures import (
    BrokerFigures,
    FoundMessage,
    GroupFigures,
    GroupMember,
    GroupSummary,
    MessageTrack,
    OffsetChange,
    QueueFigures,
    QueueLag,
    TopicFigures,
    TopicKind,
    TopicPlace,
    TopicSummary,
    TrackState,
)
from .rolling import RollingActions
from .timers import TimerActions
from .transactions import PendingTransaction, TransactionFigures
from .transactions import ask as ask_transactions

TOPIC_NOT_EXIST: Final = 17
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
CONSUMER_NOT_ONLINE: Final = 206
NEWEST: Final = -1  # In place of a time: the end of every queue.
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
_OFFSET_ID: Final = re.compile(r"([0-9A-F]{8}|[0-9A-F]{32})([0-9A-F]{8})([0-9A-F]{16})", re.I)


def connect(
    namesrv_addr: str | None = None, *, registration_key: str | None = None, **settings: Any
) -> AdminClient:
    """Return an AdminClient for a cluster; other arguments are those of skylark.connect.

    The registration key is needed where the name servers have one, to change what they hold.
    """
    return AdminClient(connect_client(namesrv_addr, **settings), registration_key=registration_key)


class AdminClient(RollingActions, TimerActions, DeadLetterActions):
    """An operator's view of a cluster; an async context manager."""

    def __init__(self, client: Client, *, registration_key: str | None = None) -> None:
        self._client = client
        self._registration_key = registration_key

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        if self._registration_key:
            self._name_servers.use_key(RegistrationKey(self._registration_key))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    # Brokers.

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerData]:
        """The brokers that the name servers know, masters and replicas, by name."""
        info = await self._client.session.name_servers.get_cluster_info()
        names = set(info.brokers) if cluster is None else set(info.clusters.get(cluster, ()))
        found = [
            data
            for name, data in sorted(info.brokers.items())
            if name in names and broker in (None, name)
        ]
        if not found:
            wanted = f" of cluster {cluster!r}" if cluster else ""
            wanted += f" named {broker!r}" if broker else ""
            known = ", ".join(sorted(info.clusters)) or "none"
            raise NoRoute(
                f"no broker{wanted} is registered",
                hint=f"clusters are: {known}; brokers: {', '.join(sorted(info.brokers)) or 'none'}",
            )
        return found

    async def broker_figures(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerFigures]:
        """How every broker is doing; those that do not answer are left out."""
        places = [
            (data, broker_id, address)
            for data in await self.brokers(cluster=cluster, broker=broker)
            for broker_id, address in sorted(data.addresses.items())
        ]

        async def ask(place: tuple[BrokerData, int, str]) -> BrokerFigures | None:
            data, broker_id, address = place
            try:
                table = await self._remote(address).get_runtime_info()
            except TransportError:
                return None
            earliest_ms = int(table.get("earliestMessageTimeStamp", "-1"))
            return BrokerFigures(
                cluster=data.cluster,
                name=data.broker_name,
                broker_id=broker_id,
                address=address,
                version=table.get("brokerVersionDesc", ""),
                put_tps=_first_rate(table.get("putTps")),
                get_tps=_first_rate(table.get("getTransferedTps")),
                put_total=int(table.get("msgPutTotalTodayNow", "0")),
                get_total=int(table.get("msgGetTotalTodayNow", "0")),
                disk_used_ratio=float(table.get("commitLogDiskRatio", "0")),
                earliest_message_at_ms=earliest_ms if earliest_ms > 0 else None,
                runtime=table,
            )

        return [figures for figures in await _each(ask, places) if figures is not None]

    async def broker_settings(self, broker: str) -> Mapping[str, str]:
        """The settings of one broker, by its name; paths and secrets are masked."""
        (data,) = await self.brokers(broker=broker)
        return (await self._remote(_master(data)).get_config()).settings

    async def update_broker_settings(
        self,
        settings: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change settings of one broker or of all in a cluster; raises BrokerError."""
        for address in await self._masters(cluster, broker):
            await self._remote(address).update_config(settings)

    async def upload_predicate(
        self,
        name: str,
        version: int,
        source: bytes,
        *,
        access_key: str,
        secret_key: str,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Add a version of a predicate to filter servers; where; raises BrokerError."""
        addresses = await self._masters(cluster, broker)
        for address in addresses:
            await self._remote(address).upload_predicate(
                name, version, source, access_key=access_key, secret_key=secret_key
            )
        return addresses

    async def clean(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Let go of what has expired: log files, queues, and queues of deleted topics."""
        for address in await self._masters(cluster, broker):
            remote = self._remote(address)
            await remote.delete_expired_commit_log()
            await remote.clean_expired_consume_queues()
            await remote.clean_unused_topics()

    # Topics.

    async def topics(self, *, with_system: bool = False) -> list[TopicSummary]:
        """All topics, by name; those of the system only if asked for."""
        tables = await self._tables()
        system = {name for names, _, _ in tables for name in names}
        places: dict[str, list[TopicPlace]] = {}
        for _, data, topics in tables:
            for topic in topics.values():
                place = TopicPlace(
                    data.broker_name,
                    data.cluster,
                    topic.read_queue_nums,
                    topic.write_queue_nums,
                    topic.perm,
                )
                places.setdefault(topic.name, []).append(place)
        found = [
            TopicSummary(
                name,
                TopicKind.of(name, is_system=name in system or is_system_topic(name)),
                tuple(places[name]),
            )
            for name in sorted(places)
        ]
        return [topic for topic in found if with_system or topic.kind is TopicKind.NORMAL]

    async def _tables(
        self,
    ) -> list[tuple[tuple[str, ...], BrokerData, Mapping[str, TopicConfig]]]:
        async def ask(
            data: BrokerData,
        ) -> tuple[tuple[str, ...], BrokerData, Mapping[str, TopicConfig]]:
            remote = self._remote(_any_address(data))
            return await remote.get_system_topics(), data, (await remote.get_topics()).topics

        return await _each(ask, await self.brokers())

    async def topic(self, name: str) -> TopicFigures:
        """All about one topic; raises NoRoute where there is none."""
        route = await self._route(name)

        async def ask(data: BrokerData) -> tuple[list[QueueFigures], tuple[str, ...]]:
            remote = self._remote(_any_address(data))
            stats = await remote.get_topic_stats(name)
            queues = [
                QueueFigures(
                    queue.broker_name,
                    queue.queue_id,
                    at.min_offset,
                    at.max_offset,
                    at.last_update_timestamp or None,
                )
                for queue, at in sorted(stats.offsets.items(), key=lambda item: item[0])
            ]
            return queues, await remote.get_groups_of_topic(name)

        answers = await _each(ask, route.brokers)
        clusters = {data.broker_name: data.cluster for data in route.brokers}
        return TopicFigures(
            name=name,
            kind=TopicKind.of(name, is_system=is_system_topic(name)),
            places=tuple(
                TopicPlace(
                    queues.broker_name,
                    clusters.get(queues.broker_name, ""),
                    queues.read_queue_nums,
                    queues.write_queue_nums,
                    queues.perm,
                )
                for queues in route.queues
            ),
            queues=tuple(queue for queues, _ in answers for queue in queues),
            groups=tuple(sorted({group for _, groups in answers for group in groups})),
            order_conf=route.order_conf,
        )

    async def create_topic(
        self,
        name: str,
        *,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a topic or change it; returns the addresses of the brokers that have it now."""
        check_topic_name(name)
        brokers = await self.brokers(cluster=cluster, broker=broker)
        addresses = [_master(data) for data in brokers]
        config = TopicConfig(name, read_queues, write_queues, perm, order=order)
        for address in addresses:
            await self._remote(address).put_topic(config)
        if order:
            value = ";".join(f"{data.broker_name}:{write_queues}" for data in brokers)
            for server in self._client.session.name_servers.each():
                await server.put_kv(ORDER_TOPIC_CONFIG, name, value)
        return addresses

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic on every broker, or on those of one cluster, and its routes."""
        check_topic_name(name)
        for address in await self._masters(cluster, None):
            await self._remote(address).delete_topic(name)
        for server in self._client.session.name_servers.each():
            await server.delete_topic(name, cluster=cluster)

    # Groups.

    async def groups(self, *, with_system: bool = False) -> list[GroupSummary]:
        """All groups, by name, whether online or not."""
        brokers = await self.brokers()

        async def ask(data: BrokerData) -> dict[str, tuple[int, float]]:
            body = await self._remote(_any_address(data)).get_all_consume_stats()
            return {
                name: (
                    sum(
                        at.broker_offset - at.consumer_offset
                        for one in stats
                        for at in one.offsets.values()
                    ),
                    sum(one.consume_tps for one in stats),
                )
                for one_group in body.groups
                for name, stats in one_group.items()
            }

        lags: dict[str, int] = {}
        rates: dict[str, float] = {}
        for answer in await _each(ask, brokers):
            for name, (lag, rate) in answer.items():
                lags[name] = lags.get(name, 0) + lag
                rates[name] = rates.get(name, 0.0) + rate

        async def summary(name: str) -> GroupSummary:
            found = await self._connections(name, brokers)
            return GroupSummary(
                name=name,
                members=0 if found is None else len(found.members),
                consume_type=None if found is None else found.consume_type,
                message_model=None if found is None else found.message_model,
                tps=rates[name],
                lag=lags[name],
            )

        return await _each(
            summary, sorted(name for name in lags if with_system or not is_system_group(name))
        )

    async def group(self, name: str) -> GroupFigures:
        """All about one group; raises BrokerError where no broker has heard of it."""
        check_group_name(name)
        brokers = await self.brokers()

        async def ask(data: BrokerData) -> tuple[str, SubscriptionGroupConfig | None]:
            table = await self._remote(_any_address(data)).get_groups()
            return data.broker_name, table.groups.get(name)

        settings = {broker: known for broker, known in await _each(ask, brokers) if known}
        found = await self._connections(name, brokers)
        queues, tps = await self._progress(name, None, brokers)
        if not settings and found is None and not queues:
            raise BrokerError(
                SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker knows a group {name!r}; `skylark group list` shows all",
            )
        return GroupFigures(
            name=name,
            settings=settings,
            members=() if found is None else found.members,
            subscriptions={} if found is None else found.subscriptions,
            consume_type=None if found is None else found.consume_type,
            message_model=None if found is None else found.message_model,
            consume_from=None if found is None else found.consume_from,
            tps=tps,
            queues=tuple(queues),
            mismatches=() if found is None else await self._mismatches(name, found, brokers),
        )

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """How far a group is in every queue that it reads, in one topic or in all."""
        check_group_name(group)
        queues, _ = await self._progress(group, topic, await self.brokers())
        return queues

    async def put_group(
        self,
        settings: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Make a group or change it."""
        check_group_name(settings.group_name)
        for address in await self._masters(cluster, broker):
            await self._remote(address).put_group(settings)

    async def delete_group(self, name: str, *, with_offsets: bool = True) -> None:
        """Delete a group everywhere, with its retry and dead letter topics."""
        check_group_name(name)
        for address in await self._masters(None, None):
            await self._remote(address).delete_group(name, remove_offset=with_offsets)
        for topic in (retry_topic(name), dlq_topic(name)):
            await self.delete_topic(topic)

    async def rewind(
        self, group: str, topic: str, at_ms: int, *, force: bool = True
    ) -> list[OffsetChange]:
        """Set a group to a time, or with NEWEST to the end; without force, never forward.

        Members that are online are told by the broker; without any the offsets are set from here.
        """
        check_group_name(group)
        route = await self._route(topic)
        before = {
            (queue.broker, queue.queue_id): queue.consumer_offset
            for queue in await self.lag(group, topic)
        }
        changes: list[OffsetChange] = []
        for data in route.brokers:
            remote = self._remote(_master(data))
            try:
                targets = await remote.reset_offset(topic, group, at_ms, force=force)
            except BrokerError as error:
                if error.code != CONSUMER_NOT_ONLINE:
                    raise
                targets = await self._rewind_offline(remote, group, topic, at_ms, force=force)
            for queue, offset in sorted(targets.items(), key=lambda item: item[0]):
                was = before.get((queue.broker_name, queue.queue_id))
                changes.append(OffsetChange(topic, queue.broker_name, queue.queue_id, was, offset))
        return changes

    @staticmethod
    async def _rewind_offline(
        remote: RemoteBroker, group: str, topic: str, at_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        stats = await remote.get_consume_stats(group, topic=topic)
        targets = {}
        for queue, at in stats.offsets.items():
            if at_ms == NEWEST:
                target = await remote.get_max_offset(queue)
            else:
                target = await remote.search_offset(queue, at_ms)
            if not force:
                target = min(target, at.consumer_offset)
            await remote.update_consumer_offset(group, queue, target, reset=True)
            targets[queue] = target
        return targets

    async def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Let one group stand where another does."""
        for address in await self._masters(None, None):
            await self._remote(address).clone_group_offset(source, target, topic=topic)

    # Messages.

    async def message(self, message_id: str, topic: str | None = None) -> FoundMessage:
        """The message with an id of either kind, and what became of it; raises ClientError.

        An offset id says by itself where the message is; the id that a producer gave does not, and
        needs the topic.
        """
        found = await self._by_offset_id(message_id, is_sure=topic is None)
        if found is None and topic is not None:
            await self._route(topic)
            found = next(
                iter(await self._client.query_messages(topic, message_id.strip(), unique=True)),
                None,
            )
        if found is None:
            raise ClientError(
                f"no message {f'of {topic} ' if topic else ''}has the id {message_id[:64]}",
                hint="check the topic; messages go when their log file expires"
                if topic
                else "for an id that a producer gave, name the topic as well",
            )
        return FoundMessage(found, _body_of(found), await self.tracks(found))

    async def _by_offset_id(self, text: str, *, is_sure: bool) -> StoredMessage | None:
        host, offset = _place_of(text)
        if host is None:
            return None
        for data in await self.brokers():
            if host in data.addresses.values():
                try:
                    return await self._remote(host).view_message(offset)
                except BrokerError:
                    if is_sure:
                        raise
        return None

    async def messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[FoundMessage]:
        """The messages of a topic with a key, oldest first."""
        await self._route(topic)
        found = await self._client.query_messages(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        return [FoundMessage(message, _body_of(message)) for message in found]

    # Transactions.

    async def transactions(
        self,
        *,
        group: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        count_max: int = 100,
    ) -> list[PendingTransaction]:
        """Half messages that nobody has ended, the oldest first."""
        found = await self._transactions(group, cluster, broker, count_max)
        pending = [item for _, items in found for item in items]
        return sorted(pending, key=lambda item: item.half.since_ms)[:count_max]

    async def transaction_figures(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[TransactionFigures]:
        """What became of the transactions of each broker."""
        return [figures for figures, _ in await self._transactions(None, cluster, broker, 1)]

    async def _transactions(
        self, group: str | None, cluster: str | None, broker: str | None, count_max: int
    ) -> list[tuple[TransactionFigures, list[PendingTransaction]]]:
        async def ask(
            data: BrokerData,
        ) -> tuple[TransactionFigures, list[PendingTransaction]] | None:
            address = data.master_address
            if address is None:
                return None
            remote = self._client.session.broker(address)
            return await ask_transactions(
                data.broker_name, remote, group=group, count_max=count_max
            )

        found = await _each(ask, await self.brokers(cluster=cluster, broker=broker))
        return [item for item in found if item is not None]

    async def transaction(self, id: str) -> PendingTransaction:
        """One half message that nobody has ended, by either of its ids; raises ClientError."""
        for item in await self.transactions(count_max=1_000):
            if id.strip().upper() in (item.transaction_id, item.offset_id):
                return item
        raise ClientError(
            f"no half message with the id {id[:64]} is pending",
            hint="it is over, or the id is another one; see skylark transaction list",
        )

    async def resolve_transaction(self, id: str, *, commits: bool) -> PendingTransaction:
        """Commit or roll back a half message in its producer's place."""
        found = await self.transaction(id)
        await (await self._master_of(found.broker)).resolve_transaction(found.half, commits=commits)
        return found

    async def resume_transaction(self, offset_id: str, *, broker: str) -> None:
        """Have a half message checked again that a broker has given up."""
        await (await self._master_of(broker)).resume_check(offset_id)

    async def _master_of(self, broker: str) -> RemoteBroker:
        (address,) = await self._masters(None, broker)
        return self._client.session.broker(address)

    async def tracks(self, message: StoredMessage) -> tuple[MessageTrack, ...]:
        """What became of a message in every group of its topic."""
        address = str(message.store_host)
        brokers = await self.brokers()
        broker = next((b for b in brokers if address in b.addresses.values()), None)
        if broker is None:
            return ()
        groups = await self._remote(address).get_groups_of_topic(message.topic)

        async def track(group: str) -> MessageTrack:
            return MessageTrack(group, await self._track(group, message, broker))

        return tuple(await _each(track, sorted(groups)))

    async def _track(self, group: str, message: StoredMessage, broker: BrokerData) -> TrackState:
        found = await self._connections(group, [broker])
        if found is None:
            return TrackState.OFFLINE
        if found.message_model == MessageModel.BROADCASTING:
            return TrackState.BROADCAST
        lags, _ = await self._progress(group, message.topic, [broker])
        place = next((lag for lag in lags if lag.queue_id == message.queue_id), None)
        if place is None:
            return TrackState.UNKNOWN
        if place.consumer_offset <= message.queue_offset:
            return TrackState.NOT_YET
        wanted = found.wanted.get(message.topic)
        if wanted is not None and wanted.tags and message.tag not in wanted.tags:
            return TrackState.FILTERED
        return TrackState.CONSUMED

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> str:
        """Let one member consume one message now; returns how that went, as CR_SUCCESS."""
        host, _ = _place_of(offset_id)
        for data in await self.brokers():
            if host in data.addresses.values():
                remote = self._remote(_master(data))
                result = await remote.consume_directly(group, client_id, offset_id)
                return str(result.consume_result.value)
        raise ClientError(
            f"message id {offset_id[:64]} names no broker here",
            hint="give the offset id, not the one of the producer",
        )

    # What many of them need.

    async def _connections(self, group: str, brokers: Iterable[BrokerData]) -> _Connected | None:
        """Who is online in a group: all members of all brokers, each once."""

        async def ask(data: BrokerData) -> _Connected | None:
            try:
                body = await self._remote(_any_address(data)).get_consumer_connections(group)
            except BrokerError as error:
                if error.code != CONSUMER_NOT_ONLINE:
                    raise
                return None
            return _Connected(
                members=tuple(
                    GroupMember(one.client_id, one.client_addr, one.language, one.version)
                    for one in body.connections
                ),
                wanted=body.subscriptions,
                consume_type=body.consume_type.value,
                message_model=body.message_model.value,
                consume_from=body.consume_from_where.value,
            )

        found = [answer for answer in await _each(ask, brokers) if answer is not None]
        if not found:
            return None
        members = {member.client_id: member for one in found for member in one.members}
        found[0].members = tuple(members.values())
        return found[0]

    async def _progress(
        self, group: str, topic: str | None, brokers: Iterable[BrokerData]
    ) -> tuple[list[QueueLag], float]:
        async def ask(data: BrokerData) -> tuple[list[QueueLag], float]:
            body = await self._remote(_any_address(data)).get_consume_stats(group, topic=topic)
            lags = [
                QueueLag(
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    at.broker_offset,
                    at.consumer_offset,
                    at.last_timestamp or None,
                )
                for queue, at in body.offsets.items()
            ]
            return lags, body.consume_tps

        answers = await _each(ask, brokers)
        lags = [lag for found, _ in answers for lag in found]
        lags.sort(key=lambda lag: (lag.topic, lag.broker, lag.queue_id))
        return lags, sum(tps for _, tps in answers)

    async def _mismatches(
        self, group: str, found: _Connected, brokers: Iterable[BrokerData]
    ) -> tuple[str, ...]:
        """Which members subscribe differently from the first, by their own account."""
        address = next(iter(_any_address(data) for data in brokers))

        async def ask(member: GroupMember) -> tuple[str, dict[str, object]] | None:
            try:
                info = await self._remote(address).get_consumer_running_info(
                    group, member.client_id
                )
            except (BrokerError, TransportError, InvalidBody):
                return None  # Not every client answers, and one may be leaving.
            return member.client_id, {
                item.topic: frozenset(item.tags) or item.expression.strip()
                for item in info.subscriptions
                if not is_retry_topic(item.topic)
            }

        if len(found.members) < 2:
            return ()
        answers = [answer for answer in await _each(ask, found.members) if answer is not None]
        sentences = []
        for client_id, wanted in answers[1:]:
            first_id, first = answers[0]
            for topic in sorted(first.keys() | wanted.keys()):
                if first.get(topic) != wanted.get(topic):
                    sentences.append(
                        f"topic {topic}: {first_id} and {client_id} subscribe differently; "
                        "messages may be missed, give all members the same"
                    )
        return tuple(sentences)

    async def _route(self, topic: str) -> TopicRoute:
        check_topic_name(topic)
        try:
            return await self._client.session.name_servers.find_route(topic)
        except BrokerError as error:
            if error.code != TOPIC_NOT_EXIST:
                raise
            raise NoRoute(
                f"no broker has a topic {topic!r}",
                hint="`skylark topic list` shows all; names are case-sensitive",
                code=TOPIC_NOT_EXIST,
            ) from None

    async def _masters(self, cluster: str | None, broker: str | None) -> list[str]:
        return [_master(data) for data in await self.brokers(cluster=cluster, broker=broker)]

    def _remote(self, address: str) -> RemoteBroker:
        return self._client.session.broker(address)

    @property
    def _name_servers(self) -> NameServers:
        return self._client.session.name_servers

    @property
    def _clock(self) -> Clock:
        return self._client.session.clock


class _Connected:
    """Who is online in a group, and what they want together."""

    def __init__(
        self,
        *,
        members: tuple[GroupMember, ...],
        wanted: Mapping[str, Subscription],
        consume_type: str,
        message_model: str,
        consume_from: str,
    ) -> None:
        self.members = members
        self.wanted = wanted
        self.subscriptions = {topic: item.expression for topic, item in wanted.items()}
        self.consume_type = consume_type
        self.message_model = message_model
        self.consume_from = consume_from


def _master(data: BrokerData) -> str:
    if data.master_address is None:
        raise NoRoute(
            f"broker {data.broker_name} has no master",
            hint="start it, or wait until a replica has taken over",
            broker=data.broker_name,
        )
    return data.master_address


def _any_address(data: BrokerData) -> str:
    address = data.any_address()
    if address is None:
        raise NoRoute(
            f"broker {data.broker_name} has no address",
            hint="start it again",
            broker=data.broker_name,
        )
    return address


def _place_of(message_id: str) -> tuple[str | None, int]:
    """Which broker an offset id names, and where in its log; None for what is none."""
    matched = _OFFSET_ID.fullmatch(message_id.strip())
    if matched is None or int(matched[2], 16) > 0xFFFF:
        return None, 0
    ip = str(ipaddress.ip_address(bytes.fromhex(matched[1])))
    return str(HostAddress(ip, int(matched[2], 16))), int(matched[3], 16)


def _body_of(message: StoredMessage) -> bytes:
    """The body as its producer gave it, or as it is stored where that cannot be had."""
    queue = MessageQueue(message.topic, "", message.queue_id)
    try:
        return ReceivedMessage(message, queue, message.topic).body
    except InvalidBody:
        return message.body


def _first_rate(text: str | None) -> float:
    words = (text or "").split()
    return float(words[0]) if words else 0.0
