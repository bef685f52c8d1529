"""Rows that appear all at once: ours, RocketMQ has nothing like it.

request        body                                     answer
STAGE_ROWS     a batch, as SEND_BATCH_MESSAGE has it    once the rows are as safe as any send
SEAL_ROWS      JSON: sink, batch, tasks (broker/        once these rows are on the disk, and do not
               staging.py)                              expire: another broker will decide
DECIDE_ROWS    the same, and what is elsewhere          the decision that stands, as JSON, once all
                                                        rows that count are in their topics
GET_DECISION                                            the last decision of a sink; {} if none
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header


@header
class StageRowsRequest(Header):
    """Keep rows for one queue until it is decided whether they count."""

    CODE: ClassVar[RequestCode] = RequestCode.STAGE_ROWS

    stage: str  # sink/batch/task/attempt
    first_row: (
        I64  # How many rows of it were sent here before: what was heard already is passed over.
    )
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    born_timestamp: I64


@header
class GetDecisionRequest(Header):
    """What was decided last?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_DECISION

    sink: str
