"""Cluster: what a Spark job asks of name servers and brokers, blocking and retried.

A broker that restarts or fails over is asked again until `retryMs` has passed, by its name, so that
a new master is found through the name servers. Nothing here knows of Spark.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import BrokerError, CallTimeout, ConfigError, TransportError
from ..model.addresses import parse_addresses
from ..model.route import BrokerData, TopicRoute
from ..model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from ..protocol.bodies import ClusterInfoBody, GroupList, TopicList, TopicRouteBody
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.record import decode_record
from .offsets import Offsets, QueueKey, within
from .options import EARLIEST, LATEST, Access, Bound, FilterType, ReadOptions
from .wire import Wire

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
SETTLING_S_MAX = 10.0
_SUBSCRIPTION = 4
# Of a server that starts, stops, or is not the master any more.
_PASSING_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_COORDINATOR = {"namespace": "SKYLARK", "key": "decisions"}
_COPIED = re.compile(r"\bcopied (\d+) rows so far")
_NOTHING_CODES = frozenset(
    {
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_NOT_FOUND,
    }
)
# Which option a refusal of a broker is about.
_REFUSED_OPTIONS: dict[int, str] = {
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "group",
    ResponseCode.NO_PERMISSION: "topic",
    ResponseCode.TOPIC_NOT_EXIST: "topic",
}
READER_GROUP = "skylark-spark-reader"
TEMPLATE_TOPIC = "TBW102"
NEW_TOPIC_QUEUES = 4


class Cluster:
    """The servers behind one list of name servers."""

    def __init__(self, access: Access) -> None:
        self.access = access
        try:
            found = parse_addresses(access.namesrv).addresses
        except ConfigError as error:
            raise ConfigError(f"option namesrv: {error}") from error
        if not found:
            raise ConfigError(
                f"option namesrv={access.namesrv[:80]!r}: it names no server; host:port is needed"
            )
        self._name_servers = [str(address) for address in found]
        self._wires: dict[str, Wire] = {}
        self._routes: dict[str, TopicRouteBody] = {}
        self._seen: set[str] = set()  # Topics that are there, though no broker may serve them now.
        self._given_up: set[str] = set()  # Brokers that were waited for long enough.

    def close(self) -> None:
        """Hang up everywhere."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    # Connections.

    def wire(self, address: str) -> Wire:
        """A connection to a server."""
        found = self._wires.get(address)
        if found is not None and found.is_over():
            self._wires.pop(address).close()
            found = None
        if found is None:
            found = self._wires[address] = Wire(address, self.access)
        return found

    def drop(self, address: str) -> None:
        """Forget a connection on which something went wrong, and what its server told."""
        found = self._wires.pop(address, None)
        if found is not None:
            found.close()
        self._routes.clear()

    def retried(self, action: Callable[[], T], *, is_copying: bool = False) -> T:
        """Do something again while servers are unreachable or refuse for now.

        One that is copying may take longer than that, as long as it says that it gets on.
        """
        patience_s = self.access.retry_ms / 1000
        give_up = time.monotonic() + patience_s
        pause = _FIRST_PAUSE_S
        rows, may_be_late = 0, is_copying
        while True:
            try:
                return action()
            except TransportError as error:
                self.drop(error.address)
                if may_be_late and isinstance(error, CallTimeout):
                    # The next try will tell whether it has copied something meanwhile.
                    give_up, may_be_late = time.monotonic() + patience_s, False
                if time.monotonic() + pause > give_up:
                    raise
            except BrokerError as error:
                copied = _copied(error) if is_copying else 0
                before, rows = rows, copied or rows
                if rows > before:
                    give_up, may_be_late = time.monotonic() + patience_s, True
                    pause = _FIRST_PAUSE_S
                if error.code not in _PASSING_CODES or time.monotonic() + pause > give_up:
                    raise
                self._routes.clear()
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    # Name servers.

    def _ask_name_servers(self, code: int, fields: dict[str, str]) -> bytes:
        problem: TransportError | None = None
        for address in tuple(self._name_servers):
            try:
                return bytes(self.wire(address).call(code, fields).body)
            except TransportError as error:
                self.drop(address)
                # Others are asked first from now on: each time it may take all of timeoutMs.
                self._name_servers.remove(address)
                self._name_servers.append(address)
                problem = error
        assert problem is not None
        raise TransportError(
            problem.address, f"{problem.problem}; no name server of the option namesrv answers"
        ) from problem

    def route(self, topic: str) -> TopicRouteBody:
        """Which brokers serve a topic; raises ConfigError where there is no such topic."""
        found = self._find_route(topic)
        if found is None:
            if topic in self._seen:
                raise self._away(f"no broker serves topic {topic} now")
            if not self.brokers():
                raise self._away("no broker is registered")
            raise ConfigError(
                f"option topic: there is no topic {topic} at {self.access.namesrv}; make "
                "it with `skylark topic create`"
            )
        return found

    def _find_route(self, topic: str) -> TopicRouteBody | None:
        found = self._routes.get(topic)
        if found is None:
            try:
                data = self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return None
            found = self._routes[topic] = TopicRouteBody.from_json(data)
            self._seen.add(topic)
        return found

    def _away(self, problem: str) -> TransportError:
        """What name servers do not know while brokers restart; worth asking again."""
        return TransportError(self._name_servers[0], problem)

    def topics(self, options: ReadOptions, known: Iterable[str] = ()) -> tuple[str, ...]:
        """The topics of a read: those named, or those that match and are no system's.

        Name servers forget a topic while its only broker restarts: one that is known stays.
        """
        if options.topics_pattern is None:
            return options.topics
        data = self.retried(
            lambda: self._ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        )
        pattern = re.compile(options.topics_pattern)
        return tuple(
            topic
            for topic in sorted({*TopicList.from_json(data).topics, *known})
            if pattern.fullmatch(topic)
            and not is_system_topic(topic)
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    def queues(
        self,
        topics: Iterable[str],
        known: Collection[QueueKey] = (),
        *,
        of_pattern: bool = False,
        may_be_gone: bool = False,
    ) -> list[QueueKey]:
        """All queues of some topics that may be read, as name servers know them now.

        Where one is missing that is known, its broker may just restart: that is waited for, and
        then an error, or known to be gone until it comes back. Topics that only match a pattern
        may come and go, and may be closed to readers.
        """
        topics = tuple(topics)
        wanted = {queue for queue in known if queue.topic in topics}
        self._seen.update(queue.topic for queue in wanted)

        def asked() -> list[QueueKey]:
            found = self._queues(topics, wanted, of_pattern=of_pattern)
            self._given_up -= {queue.broker for queue in found}
            if not wanted <= found:
                # A master registers with all its topics: what is missing after it was there is
                # gone. Before that, it may be the master that was.
                self._require_masters(wanted - found)
                found = self._queues(topics, wanted, of_pattern=of_pattern)
                self._require_masters(wanted - found)
            return sorted(found)

        try:
            return self.retried(asked)
        except TransportError as error:
            if not may_be_gone or not wanted:
                raise
            away = {queue.broker for queue in wanted} - self.masters() - self._given_up
            if not away:
                raise
            logger.warning("going on without broker %s: %s", ", ".join(sorted(away)), error)
            self._given_up |= away
            return self.retried(asked)

    def _require_masters(self, queues: Collection[QueueKey]) -> None:
        masters = self.masters() if queues else set()
        for queue in queues:
            if queue.broker not in masters | self._given_up:
                raise self._away(f"no broker {queue.broker}, of {queue}, is there now")

    def masters(self) -> set[str]:
        """The brokers whose masters are there.

        A replica that comes back before its master brings its broker's name, and no topics yet.
        """
        return {name for name, data in self.brokers().items() if data.master_address is not None}

    def _queues(
        self, topics: Iterable[str], wanted: Collection[QueueKey], *, of_pattern: bool
    ) -> set[QueueKey]:
        found: set[QueueKey] = set()
        for topic in topics:
            self._routes.pop(topic, None)  # It may have more queues, or more brokers, than it had.
            if self._find_route(topic) is None and (
                of_pattern or any(one.topic == topic for one in wanted)
            ):
                continue
            route = self.route(topic).route
            if not of_pattern and not any(data.is_readable for data in route.queues):
                raise ConfigError(
                    f"option topic: {topic} may not be read at any broker; allow it with "
                    f"`skylark topic create {topic} --perm RW`"
                )
            for data in route.queues:
                count = data.read_queue_nums if data.is_readable else 0
                found.update(QueueKey(topic, data.broker_name, number) for number in range(count))
        return found

    def writable_queues(self, topic: str, *, settling_s: float = 0.0) -> list[QueueKey]:
        """All queues of a topic that may be written to; of a new one, those it will have.

        As with every producer, brokers that make topics by themselves make it on the first send.
        A topic that nobody has is looked for some time: its broker may just restart.
        """
        give_up = time.monotonic() + min(self.access.retry_ms / 1000, settling_s)
        while True:
            try:
                route = self.retried(lambda: self._writable_route(topic))
                break
            except ConfigError:
                if time.monotonic() + _PAUSE_S_MAX > give_up:
                    raise
                time.sleep(_PAUSE_S_MAX)
        return sorted(
            QueueKey(topic, data.broker_name, number)
            for data in route.queues
            if data.is_writable
            for number in range(data.write_queue_nums)
        )

    def _writable_route(self, topic: str) -> TopicRoute:
        """A topic's route; of a new one, that which the first send will give it."""
        if self._find_route(topic) is None and topic not in self._seen:
            if not self.brokers():
                raise self._away("no broker is registered")
            template = self._find_route(TEMPLATE_TOPIC)
            if template is not None:
                self._routes[topic] = TopicRouteBody(_new_topic_route(template.route))
        return self.route(topic).route

    def broker_address(self, topic: str, broker: str, *, for_writing: bool = False) -> str:
        """Where a broker listens: its master, or for reading any replica that is there."""
        try:
            data = self.route(topic).route.broker(broker)
        except ConfigError as error:
            # Who names a broker has seen it: the topic is there, or will be with the first send.
            if not for_writing:
                raise self._away(f"no broker serves topic {topic} now") from error
            data = self.route(TEMPLATE_TOPIC).route.broker(broker)
        if data is not None and data.addresses:
            if 0 in data.addresses:
                return data.addresses[0]
            if not for_writing:
                return data.addresses[min(data.addresses)]
        self._routes.pop(topic, None)
        raise TransportError(broker, f"no name server knows a broker {broker} for topic {topic}")

    def coordinator(self) -> str:
        """The broker that keeps the decisions of jobs, also while it is away.

        The first by name is chosen once, and the name servers remember it: a decision must not be
        looked for at another broker because the one that has it restarts.
        """
        found = self.retried(self._chosen_coordinator)
        if found is None:
            names = self.retried(self._some_brokers)
            for address in self._name_servers:  # All of them: any may be the one that is asked.
                self.retried(lambda at=address: self._note_coordinator(at, names[0]))  # type: ignore[misc]
            found = self.retried(self._chosen_coordinator) or names[0]
        return found

    def _chosen_coordinator(self) -> str | None:
        """What name servers remember; those that are new are told by those that know."""
        known: dict[str, str] = {}  # Broker → the first name server that says so.
        problem: TransportError | None = None
        ignorant = []
        for address in self._name_servers:
            try:
                answer = self.wire(address).call(RequestCode.GET_KV_CONFIG, _COORDINATOR)
                known.setdefault(answer.fields["value"], address)
            except TransportError as error:
                self.drop(address)
                problem = error
            except BrokerError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                ignorant.append(address)
        if len(known) > 1:
            said = ", ".join(f"{name} ({address})" for name, address in sorted(known.items()))
            raise ConfigError(
                f"name servers do not agree who keeps the decisions of exactly-once sinks: {said}; "
                "have all say the one that has them, with `mqadmin updateKvConfig -s SKYLARK "
                "-k decisions -v <broker>`"
            )
        if not known:
            if problem is not None:  # The one that cannot be asked may know.
                raise problem
            return None
        (found,) = known
        for address in ignorant:  # They tell each other nothing, and are replaced one by one.
            self._note_coordinator(address, found)
        return found

    def _note_coordinator(self, address: str, name: str) -> None:
        self.wire(address).call(RequestCode.PUT_KV_CONFIG, {**_COORDINATOR, "value": name})

    def _some_brokers(self) -> list[str]:
        names = self.broker_names()
        if not names:
            raise TransportError(self.access.namesrv, "no broker is registered")
        return names

    def broker_names(self) -> list[str]:
        """The brokers that are registered now."""
        return sorted(self.brokers())

    def brokers(self) -> dict[str, BrokerData]:
        """The same, with where they and their replicas listen."""
        data = self.retried(lambda: self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {}))
        return dict(ClusterInfoBody.from_json(data).cluster.brokers)

    def call_broker(
        self, broker: str, code: int, fields: dict[str, str], body: bytes, *, if_away: str = ""
    ) -> bytes:
        """Ask the master of that name; the body of its answer. While it is away, say that too."""

        def asked() -> bytes:
            data = self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
            found = ClusterInfoBody.from_json(data).cluster.brokers.get(broker)
            address = None if found is None else found.master_address
            if address is None:
                raise TransportError(broker, f"no name server knows a master of that name{if_away}")
            return bytes(self.wire(address).call(code, fields, body).body)

        return self.retried(asked, is_copying=code == RequestCode.DECIDE_ROWS)

    # Brokers.

    def ask_queue(self, queue: QueueKey, code: int, fields: dict[str, str]) -> dict[str, str]:
        """Ask the broker of a queue something about it; the fields of its answer."""

        def asked() -> dict[str, str]:
            address = self.broker_address(queue.topic, queue.broker)
            full = {"topic": queue.topic, "queueId": str(queue.queue_id), **fields}
            return self.wire(address).call(code, full).fields

        return self.retried(asked)

    def min_offset(self, queue: QueueKey) -> int:
        """The first offset that is still there."""
        return int(self.ask_queue(queue, RequestCode.GET_MIN_OFFSET, {})["offset"])

    def max_offset(self, queue: QueueKey) -> int:
        """The offset after the last message."""
        return int(self.ask_queue(queue, RequestCode.GET_MAX_OFFSET, {})["offset"])

    def first_offset(self, queue: QueueKey, known: int) -> int:
        """The first offset that is still there; one behind a known place is a master's word."""

        def asked() -> int:
            found = self.min_offset(queue)
            if found > known:
                self.require_master(queue, f"begins at {found}, which was to be read from {known}")
            return found

        return self.retried(asked)

    def require_master(self, queue: QueueKey, problem: str) -> None:
        """Believe what is wrong with a queue of its master alone, which is waited for."""
        self._routes.pop(queue.topic, None)  # A worker knew its master long ago; roles change.
        if not self.has_master(queue):
            raise self._away(f"{queue} {problem}, at a replica; its master is away")

    def settled_end(self, queue: QueueKey, least: int) -> int:
        """The offset after the last message, given some time to reach where it once was."""
        give_up = time.monotonic() + min(self.access.retry_ms / 1000, SETTLING_S_MAX)
        while True:
            found = self.max_offset(queue)
            if found >= least or time.monotonic() + _PAUSE_S_MAX > give_up:
                return found
            time.sleep(_PAUSE_S_MAX)
            self._routes.pop(queue.topic, None)  # A new master may be known by now.

    def has_master(self, queue: QueueKey) -> bool:
        """Whether it is the master of its broker that is asked about a queue."""
        data = self.route(queue.topic).route.broker(queue.broker)
        return data is not None and 0 in data.addresses

    def offset_at(self, queue: QueueKey, at_ms: int, group: str | None = None) -> int:
        """The first message stored at a time or later, exact to the millisecond.

        Brokers answer such a search with an offset near by; the messages themselves decide.
        """
        low, high = self.min_offset(queue), self.max_offset(queue)
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._stored_ms(queue, middle, group or READER_GROUP)
            if stored_ms is None or stored_ms < at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, queue: QueueKey, offset: int, group: str) -> int | None:
        """When a message was stored; None if it has been removed meanwhile."""

        def asked() -> int | None:
            address = self.broker_address(queue.topic, queue.broker)
            wire = self.wire(address)
            fields = pull_fields(queue, offset, 1, 1 << 10, group=group)
            wire.ask(RequestCode.PULL_MESSAGE, fields)
            answer = wire.answer()
            if answer.code in _NOTHING_CODES:
                end = int(answer.fields.get("maxOffset", offset + 1))
                if end <= offset:
                    self.require_master(queue, f"ends at {end}, where {offset} was")
                return None
            if answer.code != 0:
                raise BrokerError(answer.code, answer.remark, address)
            return decode_record(answer.body, check_crc=False).stored_at_ms

        with _naming_options(queue):
            return self.retried(asked)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Say how far a group has come, so that everybody's tools can show it."""
        for queue, offset in offsets.items():
            fields = {"consumerGroup": group, "commitOffset": str(offset)}
            with _naming_options(queue):
                self.ask_queue(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def groups_of(self, queue: QueueKey) -> frozenset[str]:
        """The groups that have ever committed for a queue's topic at its broker."""

        def asked() -> frozenset[str]:
            address = self.broker_address(queue.topic, queue.broker)
            fields = {"topic": queue.topic}
            answer = self.wire(address).call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields)
            return frozenset(GroupList.from_json(bytes(answer.body)).groups)

        return self.retried(asked)

    def committed(self, group: str, queue: QueueKey) -> int | None:
        """How far a group has come in a queue; None if it never committed there."""
        try:
            fields = self.ask_queue(
                queue, RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": group}
            )
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return int(fields["offset"])

    def pull_some(
        self, options: ReadOptions, queue: QueueKey, offset: int, count: int, text: str, kind: str
    ) -> tuple[int, int] | None:
        """How many bytes a few messages have, and the offset behind them; None without any.

        What the broker has against the options is said by their names.
        """

        def asked() -> tuple[int, int] | None:
            address = self.broker_address(queue.topic, queue.broker)
            fields = pull_fields(
                queue, offset, count, 1, group=options.group or READER_GROUP, subscription=text,
                kind=kind,
            )  # fmt: skip
            wire = self.wire(address)
            wire.ask(RequestCode.PULL_MESSAGE, fields)
            answer = wire.answer()
            if answer.code == 0:
                return len(answer.body), int(answer.fields["nextBeginOffset"])
            if answer.code in _NOTHING_CODES:
                return None
            raise BrokerError(answer.code, answer.remark, address)

        with _naming_options(queue, "filter" if kind == FilterType.SQL92 else None):
            return self.retried(asked)

    def bound(self, options: ReadOptions, option: str, queues: Sequence[QueueKey]) -> Offsets:
        """Where a read begins or ends in each queue, as its options say."""
        bound = options.starting if option == "startingOffsets" else options.ending
        found = self.resolve(bound, queues, option, group=options.group)
        if bound.offsets is None:
            return found
        last = {queue: self.max_offset(queue) for queue in queues}
        return within(option, found, last, strict=options.fail_on_data_loss)

    def resolve(
        self, bound: Bound, queues: Iterable[QueueKey], option: str, *, group: str | None = None
    ) -> Offsets:
        """The offset that a bound means in each queue."""
        found: Offsets = {}
        known = set()
        for queue in queues:
            known.add(queue)
            if bound.timestamp_ms is not None:
                found[queue] = self.offset_at(queue, bound.timestamp_ms, group)
                continue
            given = EARLIEST if bound.word == "earliest" else LATEST
            if bound.offsets is not None:
                # A queue that is not named is read from its start to its end.
                given = EARLIEST if option == "startingOffsets" else LATEST
                numbers = bound.offsets.get(queue.topic, {}).get(queue.broker, {})
                given = numbers.get(queue.queue_id, given)
            if given == EARLIEST:
                found[queue] = self.min_offset(queue)
            elif given == LATEST:
                found[queue] = self.max_offset(queue)
            else:
                found[queue] = given
        for topic, brokers in (bound.offsets or {}).items():
            for broker, numbers in brokers.items():
                for number in numbers:
                    if QueueKey(topic, broker, number) not in known:
                        raise ConfigError(
                            f"option {option}: there is no queue {topic}/{broker}/{number}; "
                            f"there are {_some(known)}"
                        )
        return found


def _copied(error: BrokerError) -> int:
    """How many rows a broker has copied that answers before it is done."""
    found = _COPIED.search(error.remark or "") if error.code == ResponseCode.SYSTEM_BUSY else None
    return 0 if found is None else int(found[1])


@contextlib.contextmanager
def _naming_options(queue: QueueKey, option: str | None = None) -> Iterator[None]:
    """Say what a broker refuses by the name of the option that it is about."""
    try:
        yield
    except BrokerError as error:
        option = option or _REFUSED_OPTIONS.get(error.code)
        if option is None:
            raise
        raise ConfigError(
            f"option {option}: broker {queue.broker} refuses it for {queue.topic}: {error.remark}"
        ) from error


def _new_topic_route(template: TopicRoute) -> TopicRoute:
    """The route of a topic that brokers make for a producer who asks for our number of queues."""
    queues = tuple(
        replace(data, write_queue_nums=min(data.write_queue_nums, NEW_TOPIC_QUEUES))
        for data in template.queues
    )
    return replace(template, queues=queues)


def _some(queues: Iterable[QueueKey]) -> str:
    names = [str(queue) for queue in sorted(queues)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def pull_fields(
    queue: QueueKey,
    offset: int,
    count: int,
    size_bytes: int,
    *,
    group: str = READER_GROUP,
    subscription: str = "*",
    kind: str = "TAG",
) -> dict[str, str]:
    """A pull that brings its subscription along and does not wait."""
    return {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "maxMsgBytes": str(size_bytes),
        "sysFlag": str(_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": subscription,
        "subVersion": "0",
        "expressionType": kind,
    }
