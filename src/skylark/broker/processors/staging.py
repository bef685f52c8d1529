"""Staging: rows of a job that appear all at once, when its driver has decided which count."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from ...clock import Clock
from ...errors import BrokerError, InvalidBatch, InvalidBody, InvalidName
from ...protocol.batch import BESIDE_BODY_BYTES_MAX
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from ...protocol.exchange import Peer, Request, Response
from ...protocol.headers import GetDecisionRequest, SendMessageRequest, StageRowsRequest
from ...store import MessageStore, PutStatus
from ..decisions import Decision, read_decision, read_key
from ..durability import Durability
from ..flow import FlowControl
from ..identity import Identity
from ..staging import StagingService
from .send import SendProcessor

# A driver's request may take 5 s at least: so long for copying, and so long until that is safe.
COPYING_MS: Final = 2_000
_LATE: dict[PutStatus, int] = {
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


class StagingProcessor:
    """Serves jobs."""

    def __init__(
        self,
        identity: Identity,
        *,
        sends: SendProcessor,
        staging: StagingService,
        durability: Durability,
        store: MessageStore,
        flow: FlowControl,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._sends = sends
        self._staging = staging
        self._durability = durability
        self._store = store
        self._flow = flow
        self._clock = clock

    async def stage(self, request: Request[StageRowsRequest], peer: Peer) -> Response:
        """Serve STAGE_ROWS."""
        self._require_writable()
        header = request.header
        key = read_key(header.stage)
        as_sent = SendMessageRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=0,
            born_timestamp=header.born_timestamp,
            flag=0,
            batch=True,
        )
        command = Command.request(RequestCode.SEND_BATCH_MESSAGE, body=request.body)
        try:
            born_host = self._identity.born_host(peer)
            # A row alone may be as large as a message that is sent by itself.
            batch = self._sends.read_batch(command, as_sent, born_host, more=BESIDE_BODY_BYTES_MAX)
            end = None
            if self._sends.is_plain(batch):
                end = self._staging.stage_entries(key, header.first_row, batch)
            if end is None:
                rows = self._sends.messages_of(batch)
                end = self._staging.stage(key, header.first_row, rows)
        except (InvalidBatch, InvalidBody, InvalidName) as error:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        await self._wait_safe(end)
        return Response()

    async def decide(self, request: Request[None], peer: Peer) -> Response:
        """Serve DECIDE_ROWS: all of it is there, or it takes long and this is how far it is."""
        self._require_writable()
        stop_ms = self._clock.monotonic_ms() + COPYING_MS
        decision, end = self._staging.decide(read_decision(request.body))
        # Nothing is seen of a batch, here or elsewhere, that a power cut might undecide.
        await self._wait_safe(end, on_disk=True)
        before = self._copied(decision)
        await self._wait_copied(decision, await self._copy(decision, stop_ms), before)
        decision.unsafe.clear()  # All of it is safe.
        return Response(body=json.dumps(decision.to_json()).encode())

    async def _copy(self, decision: Decision, stop_ms: int) -> int:
        """Copy rows until all are there, the log's end then; raises BrokerError if it is late."""
        while self._staging.apply_some(decision) is not None:
            if not decision.is_done and self._clock.monotonic_ms() >= stop_ms:
                raise self._not_yet(decision)
            await self._clock.sleep_ms(0)  # Others have their turn between two chunks.
        return self._store.log.appended  # The last of them may have been copied by run().

    async def _wait_copied(self, decision: Decision, end: int, before: int) -> None:
        """Wait until all copies are safe, as long as ever more of them are."""
        try:
            async with asyncio.timeout(COPYING_MS / 1000):
                await self._wait_safe(end)
        except (TimeoutError, BrokerError) as error:
            if isinstance(error, TimeoutError) or self._copied(decision) > before:
                raise self._not_yet(decision) from None
            raise

    def _copied(self, decision: Decision) -> int:
        return self._staging.copied(decision, self._durability.is_safe)

    def _not_yet(self, decision: Decision) -> BrokerError:
        """The answer while rows are copied; skylark.spark's Cluster reads the number in it.

        The broker goes on by itself. Clients that know nothing of this take it for a broker that
        is busy, and ask again.
        """
        self._staging.go_on()
        remark = f"[BUSY]the decision stands, copied {self._copied(decision)} rows so far"
        unsafe = sum(rows for _, rows in decision.unsafe)
        if unsafe:
            remark += f"; {unsafe} more are not as safe yet as they should be"
        return BrokerError(ResponseCode.SYSTEM_BUSY, remark)

    async def seal(self, request: Request[None], peer: Peer) -> Response:
        """Serve SEAL_ROWS."""
        self._require_writable()
        end = self._staging.seal(read_decision(request.body))
        await self._wait_safe(end, on_disk=True)
        return Response()

    def decision(self, request: Request[GetDecisionRequest], peer: Peer) -> Response:
        """Serve GET_DECISION."""
        self._require_writable()  # Others know nothing, and that is no answer.
        found = self._staging.decision(request.header.sink)
        value = {} if found is None else {**found.to_json(), "done": found.is_done}
        return Response(body=json.dumps(value).encode())

    def _require_writable(self) -> None:
        if self._store.is_replica:
            raise BrokerError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave: rows go to its master"
            )
        refusal = self._flow.refusal()
        if refusal is not None:
            raise BrokerError(*refusal)

    async def _wait_safe(self, end: int, *, on_disk: bool = False) -> None:
        if self._durability.is_safe(end, on_disk=on_disk):
            return
        done: asyncio.Future[PutStatus | None] = asyncio.get_running_loop().create_future()
        cancel = self._durability.when_safe(end, 1, done.set_result, on_disk=on_disk)
        try:
            status = await done
        except asyncio.CancelledError:
            cancel()
            raise
        if status is not None:
            code = _LATE.get(status, ResponseCode.SERVICE_NOT_AVAILABLE)
            raise BrokerError(code, f"the rows are not as safe as they should be: {status.name}")
