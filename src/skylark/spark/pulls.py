"""RangeReader: one range of a queue over the network, in bulk pulls.

The next pull is under way while an answer is decoded, and an answer is decoded before the next one
is taken from the socket: a reader holds one answer and the batch made of it, about pullBytes each,
whatever the length of its range.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import BrokerError, TransportError
from ..protocol.codes import RequestCode, ResponseCode
from .cluster import READER_GROUP, Cluster, pull_fields
from .columns import Layout, to_batches
from .offsets import DataLoss, Range, describe_loss
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_EMPTY_PULLS_MAX = 10_000
_QUEUE_OFFSET = struct.Struct(">20xq")  # In front of a record; see protocol/record.py.


def _first_offset(body: bytes | memoryview) -> int:
    """The queue offset of the first record of an answer; 0 if there is none."""
    return int(_QUEUE_OFFSET.unpack_from(body)[0]) if len(body) >= _QUEUE_OFFSET.size else 0


class RangeReader:
    """Reads one range of a queue; the next pull is under way while an answer is decoded."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        layout: Layout,
        schema: pa.Schema,
        wanted: Range,
        *,
        until: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._layout = layout
        self._schema = schema
        self._range = wanted
        self._until = wanted.end if until is None else until  # Others read what comes then.
        self.at = wanted.start  # The next offset.
        self._asked: str | None = None  # The broker whose answer is still to come.

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Everything in the range, in order."""
        empty = 0
        try:
            while self.at < self._until:
                begin = self.at
                body = self._cluster.retried(self._pull)
                if body is None:
                    empty = empty + 1 if self.at == begin else 0
                    if empty > _EMPTY_PULLS_MAX:
                        raise DataLoss(f"{self._range.queue}: nothing can be read from {begin} on")
                    continue
                yield from to_batches(
                    body,
                    queue=self._range.queue,
                    start=begin,
                    end=min(self._range.end, self._until),
                    layout=self._layout,
                    schema=self._schema,
                    bytes_max=self._options.pull_bytes,
                )
        finally:
            if self._asked is not None:  # Spark wants no more: an answer is left on the wire.
                self._cluster.drop(self._asked)

    def _pull(self) -> bytes | memoryview | None:
        address, self._asked = self._asked, None
        if address is None:
            address = self._ask()
        answer = self._cluster.wire(address).answer()
        code = answer.code
        if code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
            self._moved(int(answer.fields["minOffset"]), int(answer.fields["maxOffset"]))
            return None
        if code not in (0, ResponseCode.PULL_RETRY_IMMEDIATELY):
            raise BrokerError(code, answer.remark, address)
        following = int(answer.fields["nextBeginOffset"])
        if self._options.filter == "*":
            # A broker whose retention is at work passes over what it has just removed.
            self._require_at(_first_offset(answer.body) if code == 0 else following)
        self.at = min(max(self.at, following), self._until)
        if self.at < self._until:
            try:
                self._asked = self._ask()
            except TransportError as error:  # What has come is good; the next pull begins anew.
                self._cluster.drop(error.address)
        return answer.body if code == 0 else None

    def _ask(self) -> str:
        options, queue = self._options, self._range.queue
        address = self._cluster.broker_address(queue.topic, queue.broker)
        fields = pull_fields(
            queue,
            self.at,
            min(options.pull_count, self._until - self.at),
            options.pull_bytes,
            group=options.group or READER_GROUP,
            subscription=options.filter,
            kind=options.filter_type,
        )
        self._cluster.wire(address).ask(RequestCode.PULL_MESSAGE, fields)
        return address

    def _require_at(self, first: int) -> None:
        """Without a filter an answer begins where it was asked to, or something is lost."""
        if self.at < min(first, self._until):
            self._moved(first, first)

    def _moved(self, first: int, last: int) -> None:
        """The offset is not there: its messages were removed, or the queue has become shorter.

        That is the word of a master, who may need a moment to learn it: a replica lags behind.
        """
        wanted = self._range
        if self.at < first:
            self._cluster.require_master(wanted.queue, f"begins at {first}, behind {self.at}")
            missing = Range(wanted.queue, self.at, min(first, wanted.end))
            if self._options.fail_on_data_loss:
                raise DataLoss(describe_loss([missing]))
            logger.warning("lost: %s", describe_loss([missing]))
            self.at = min(first, wanted.end)
            return
        if self.at >= last:
            self._cluster.require_master(wanted.queue, f"ends at {last}, before {wanted.end}")
            last = self._cluster.settled_end(wanted.queue, wanted.end)
        if self.at >= last:
            missing = Range(wanted.queue, self.at, wanted.end)
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{wanted.queue} ends at {last}, and was to be read up to {wanted.end}: it "
                    "has lost messages, or is another one of that name. Set failOnDataLoss=false "
                    "to go on"
                )
            logger.warning("lost: %s", describe_loss([missing]))
            self.at = wanted.end
