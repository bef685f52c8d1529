"""Exactly once: tasks stage rows, the driver decides, the brokers show what was decided.

    task      asks whether its batch is decided already: then there is nothing to do
              else stages its rows, under sink/batch/task/attempt
    driver    has every other broker with rows of the batch seal them: they are on its disk now
              writes the decision, which attempt of which task counts, at one broker
              then has the others apply it

Spark repeats a micro-batch, with the same number, until its commit has returned. So a driver that
dies anywhere is followed by one that finds the decision and goes on, or finds none and starts over.
Rows are sealed first because a decision cannot be taken back: from then on none may be missing, not
after a power cut nor after a weekend. An attempt has a random name, because task numbers start
again with every driver. Two drivers at once do not disturb each other: the first decision stands.

The broker that keeps decisions is the first by name when the first job asks, and the name servers
keep its name: while it is away jobs wait for it, rather than ask another, which knows nothing.
docs/formats has the records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from ..errors import BrokerError, ConfigError, TransportError
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.headers import GetDecisionRequest, StageRowsRequest
from .cluster import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, Cluster
from .offsets import QueueKey
from .options import WriteOptions
from .outbox import Letter

DECIDING_MS_MIN = 5_000  # Brokers copy for about two seconds before they say how far they are.
_KEEPS_DECISIONS = (
    ", and it keeps the decisions of exactly-once sinks: start it. If it is gone for good, name "
    "another with `mqadmin updateKvConfig -s SKYLARK -k decisions -v <broker>`"
)
_HAS_ROWS = ", and it has rows of this micro-batch: start it, and the query again"
A_JOB = "job"  # Stands for the query where none writes; any job may find what another has decided.


@dataclass(frozen=True, slots=True)
class BatchName:
    """Which task of which batch of which sink."""

    sink: str
    batch: int
    task: int
    query: str = ""  # Who writes: Spark's id of a query, the same after a restart; or A_JOB.


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged; without an attempt, it found its batch decided."""

    sink: str
    batch: int
    task: int
    attempt: str
    rows: dict[str, int] = field(default_factory=dict)  # Broker → rows there.
    query: str = ""


def name_in_task(sink: str | None, batch: int | None) -> BatchName:
    """The name of what this task writes; queries and micro-batches are named by Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    query = A_JOB if batch is not None else context.getLocalProperty("sql.streaming.queryId")
    if sink is None:
        sink = query
    if batch is None:
        text = context.getLocalProperty("streaming.sql.batchId")
        batch = None if text is None else int(text)
    if sink is None or batch is None:
        raise ConfigError(
            "this Spark does not tell a task its query and micro-batch; set "
            "deliveryGuarantee=at_least_once"
        )
    return BatchName(sink, batch, context.partitionId(), query or "")


class Stage:
    """Where the rows of one attempt of a task go."""

    def __init__(self, options: WriteOptions, name: BatchName) -> None:
        self._options = options
        self._name = name
        self._attempt = os.urandom(16).hex()
        self._rows: dict[str, int] = {}

    def letter(self, queue: QueueKey, entries: bytes, count: int) -> Letter:
        """The request that stages rows for one queue; those of one broker go in their order."""
        name = self._name
        first = self._rows.get(queue.broker, 0)
        header = StageRowsRequest(
            stage=f"{name.sink}/{name.batch}/{name.task}/{self._attempt}",
            first_row=first,
            producer_group=self._options.group,
            topic=queue.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=NEW_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            born_timestamp=time.time_ns() // 1_000_000,
        )
        self._rows[queue.broker] = first + count
        return Letter(queue, RequestCode.STAGE_ROWS, header.to_fields(), entries)

    def result(self) -> Staged:
        """What the driver has to know."""
        name = self._name
        return Staged(name.sink, name.batch, name.task, self._attempt, self._rows, name.query)


class Decisions:
    """What was decided, and deciding."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinator = cluster.coordinator()

    def find(self, name: BatchName) -> dict[str, Any] | None:
        """The decision about a batch, if there is one."""
        fields = GetDecisionRequest(sink=name.sink).to_fields()
        body = self._ask(self._coordinator, RequestCode.GET_DECISION, fields)
        found: dict[str, Any] = json.loads(body)
        owner = found.get("query", "")
        if owner and name.query and owner != name.query:
            raise ConfigError(
                f"option sinkId: {name.sink} is what {_called(owner)} writes under, and this is "
                f"{_called(name.query)}. Give it a sinkId of its own, or none"
            )
        if not found or found["batch"] < name.batch:
            return None
        if found["batch"] > name.batch:
            raise ConfigError(
                f"sink {name.sink} has come to micro-batch {found['batch']}, and this is "
                f"{name.batch}: the checkpoint is an old copy, or another query writes under this "
                "name. Give this one a sinkId of its own"
            )
        return found

    def decide(self, staged: Sequence[Staged], plan: str = "") -> None:
        """Have the rows of a batch appear; returns when they have, everywhere.

        The plan is the digest of what Spark has planned, see planned.py, or "" if nobody knows.
        """
        sink, batch = staged[0].sink, staged[0].batch
        query = max(one.query for one in staged)  # Who has staged nothing does not say.
        brokers: dict[str, dict[str, list[Any]]] = {}
        for one in staged:
            for broker, rows in one.rows.items():
                brokers.setdefault(broker, {})[str(one.task)] = [one.attempt, rows]
        own = brokers.pop(self._coordinator, {})
        if any(not one.attempt for one in staged):
            # A task has found its batch decided, and counts on that; nobody may decide otherwise,
            # should the decision have gone with a disk meanwhile.
            found = self.find(BatchName(sink, batch, 0))
            if found is None:
                raise TransportError(
                    self._coordinator,
                    f"does not know any more what it had decided about micro-batch {batch} of sink "
                    f"{sink}; start the query again",
                )
            own, brokers = found["tasks"], found.get("elsewhere", {})
        wanted: dict[str, Any] = {"sink": sink, "batch": batch}
        if query:
            wanted["query"] = query
        if plan:
            wanted["plan"] = plan
        if all(one.attempt for one in staged):
            for broker, tasks in sorted(brokers.items()):
                body = json.dumps({**wanted, "tasks": tasks}).encode()
                self._ask(broker, RequestCode.SEAL_ROWS, {}, body)
        if brokers:
            wanted["elsewhere"] = brokers
        stands = self._decide(self._coordinator, {**wanted, "tasks": own})
        for broker, tasks in sorted(stands.pop("elsewhere", {}).items()):
            self._decide(broker, {**stands, "tasks": tasks})
        _require_plan(stands, plan)

    def _decide(self, broker: str, wanted: dict[str, Any]) -> dict[str, Any]:
        body = self._ask(broker, RequestCode.DECIDE_ROWS, {}, json.dumps(wanted).encode())
        found: dict[str, Any] = json.loads(body)
        return found

    def _ask(self, broker: str, code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
        if_away = _KEEPS_DECISIONS if broker == self._coordinator else _HAS_ROWS
        try:
            return self._cluster.call_broker(broker, code, fields, body, if_away=if_away)
        except BrokerError as error:
            raise _explained(error) from error


def _require_plan(decision: dict[str, Any], plan: str) -> None:
    decided = decision.get("plan", "")
    if decided and plan and decided != plan:
        raise ConfigError(
            f"option checkpointLocation: micro-batch {decision['batch']} of sink "
            f"{decision['sink']} was decided with other rows than are planned here, so the "
            "checkpoint is an older copy. Those rows are there; go on with the newest checkpoint, "
            "or with a new one, a sinkId of its own, and startingOffsets behind what was written"
        )


def _called(query: str) -> str:
    return "a job" if query == A_JOB else f"query {query}"


def _explained(error: BrokerError) -> BrokerError | ConfigError:
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return ConfigError(
            "deliveryGuarantee=exactly_once is not possible with these brokers, which cannot keep "
            "and seal rows until they are decided: upgrade them to this SkylarkMQ, or set "
            "at_least_once"
        )
    return error
