"""Numbering: the numbers of a topic's queues, which stay while brokers come and go.

A row's queue_id counts over the queues of its topic, and its sharding_key is spread over as many.
But name servers forget a broker while it restarts, and its queues with it; Spark plans every
micro-batch anew, and keeps nothing for the next one. So the name servers are asked to remember, as
they remember who keeps the decisions of sinks:

    namespace SKYLARK, key queues.<topic>     broker-a:0-4;broker-b:0-4;broker-a:4-8

    # Ranges are [from, to), in the order of their coming, those that came at once by broker. They
    # are only added to: what a topic gets later is counted behind what it had.

A queue has a number while it may be written to, and while its broker is away: rows for it wait.
One whose broker is there without it has none, and those behind it move up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import BrokerError, ConfigError, TransportError
from ..model.addresses import parse_addresses
from ..protocol.codes import RequestCode, ResponseCode
from .cluster import NEW_TOPIC_QUEUES, SETTLING_S_MAX, TEMPLATE_TOPIC, Cluster
from .offsets import QueueKey

logger = logging.getLogger(__name__)

_NAMESPACE = "SKYLARK"
_NOTHING_CODES = frozenset(
    {
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.NO_PERMISSION,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)


class Run(NamedTuple):
    """Queues of one broker that came at once: [start, stop)."""

    broker: str
    start: int
    stop: int


class Numbered(NamedTuple):
    """The queues of a topic."""

    queues: list[QueueKey]  # By number.
    there: list[QueueKey]  # Those that may be written to now.


def numbered_queues(cluster: Cluster, topic: str) -> Numbered:
    """The queues of a topic that have numbers, those of brokers that are away among them."""
    runs = _remembered(cluster, topic)
    known = set(_queues_of(topic, runs))
    before = cluster.masters()
    there = _there(cluster, topic, is_one_away=any(queue.broker not in before for queue in known))
    alive = set(there)
    missing = known - alive
    if missing:
        # Gone is what its broker did not have though its master was there all the time.
        stayed = before & cluster.masters()
        alive |= {queue for queue in missing if queue.broker not in stayed}
        alive |= missing & _still_to_be_made(cluster, there)
    runs = _extended(cluster, topic, runs, there)
    return Numbered([queue for queue in _queues_of(topic, runs) if queue in alive], there)


def noted(cluster: Cluster, topic: str, queues: Iterable[QueueKey]) -> list[Run]:
    """All that a topic has been seen with, in the order of its coming; these come last if new."""
    return _extended(cluster, topic, _remembered(cluster, topic), queues)


def first_numbers(runs: Sequence[Run]) -> dict[str, int]:
    """Of each broker the number of its first queue, whatever queues or brokers come later."""
    found: dict[str, int] = {}
    number = 0
    for run in runs:
        if run.broker not in found:
            found[run.broker] = number
            number += run.stop
    return found


def next_number(runs: Sequence[Run]) -> int:
    """What first_numbers() will say of the next broker that comes."""
    stops: dict[str, int] = {}
    for run in runs:
        stops.setdefault(run.broker, run.stop)
    return sum(stops.values())


def _there(cluster: Cluster, topic: str, *, is_one_away: bool) -> list[QueueKey]:
    if is_one_away:
        # Brokers that make topics by themselves must not make one that is only away.
        try:
            cluster.retried(lambda: cluster.route(topic))
        except ConfigError:
            return []
    return cluster.writable_queues(topic, settling_s=SETTLING_S_MAX)


def _still_to_be_made(cluster: Cluster, there: Sequence[QueueKey]) -> set[QueueKey]:
    """The queues of a new topic at brokers that make it when something is sent to them first."""
    if not there:
        return set()
    topic, have = there[0].topic, {queue.broker for queue in there}
    try:
        route = cluster.retried(lambda: cluster.route(TEMPLATE_TOPIC)).route
    except ConfigError:
        return set()
    return {
        QueueKey(topic, data.broker_name, number)
        for data in route.queues
        if data.is_writable and data.broker_name not in have
        for number in range(min(data.write_queue_nums, NEW_TOPIC_QUEUES))
    }


def _extended(
    cluster: Cluster, topic: str, runs: list[Run], queues: Iterable[QueueKey]
) -> list[Run]:
    new = _runs(set(queues) - set(_queues_of(topic, runs)))
    if new:
        runs = [*runs, *new]
        _remember(cluster, topic, runs)
    return runs


def _runs(queues: Iterable[QueueKey]) -> list[Run]:
    runs: list[Run] = []
    for queue in sorted(queues):
        if runs and (runs[-1].broker, runs[-1].stop) == (queue.broker, queue.queue_id):
            runs[-1] = runs[-1]._replace(stop=queue.queue_id + 1)
        else:
            runs.append(Run(queue.broker, queue.queue_id, queue.queue_id + 1))
    return runs


def _queues_of(topic: str, runs: Iterable[Run]) -> list[QueueKey]:
    return [
        QueueKey(topic, run.broker, number) for run in runs for number in range(run.start, run.stop)
    ]


# What name servers remember.


def _remembered(cluster: Cluster, topic: str) -> list[Run]:
    return cluster.retried(lambda: _asked(cluster, topic))


def _asked(cluster: Cluster, topic: str) -> list[Run]:
    """What the name servers know; one that was away has missed what came later."""
    longest: list[Run] = []
    problem: TransportError | None = None
    answers = 0
    for address in _name_servers(cluster):
        try:
            answer = cluster.wire(address).call(RequestCode.GET_KV_CONFIG, _key(topic))
            found = _parsed(topic, answer.fields.get("value", ""))
            longest = max(longest, found, key=len)
        except TransportError as error:
            cluster.drop(address)
            problem = error
            continue
        except BrokerError as error:
            if error.code not in _NOTHING_CODES:
                raise
        answers += 1
    if not answers and problem is not None:
        raise problem
    return longest


def _remember(cluster: Cluster, topic: str, runs: Iterable[Run]) -> None:
    text = ";".join(f"{run.broker}:{run.start}-{run.stop}" for run in runs)
    for address in _name_servers(cluster):
        try:
            cluster.wire(address).call(RequestCode.PUT_KV_CONFIG, {**_key(topic), "value": text})
        except (TransportError, BrokerError) as error:
            # Numbers are right for now all the same, as long as its brokers stay.
            logger.warning("%s does not remember the queues of topic %s: %s", address, topic, error)
            if isinstance(error, TransportError):
                cluster.drop(address)


def _key(topic: str) -> dict[str, str]:
    return {"namespace": _NAMESPACE, "key": f"queues.{topic}"}


def _name_servers(cluster: Cluster) -> list[str]:
    return [str(address) for address in parse_addresses(cluster.access.namesrv).addresses]


def _parsed(topic: str, text: str) -> list[Run]:
    runs = []
    try:
        for part in filter(None, text.split(";")):
            broker, _, numbers = part.rpartition(":")
            start, _, stop = numbers.partition("-")
            runs.append(Run(broker, int(start), int(stop)))
    except ValueError as error:
        raise ConfigError(
            f"the setting queues.{topic} in {_NAMESPACE} at the name servers cannot be read: "
            f"{text[:80]!r}; remove it with `mqadmin deleteKvConfig`"
        ) from error
    return runs
