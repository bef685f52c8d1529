"""Pulling messages, with or without waiting for them.

system flag bit   meaning
0 (1)             commit commitOffset now
1 (2)             may be held until a message arrives
2 (4)             the subscription is in this request, not in the heartbeat
3 (8)             class filter; no longer in use
4 (16)            from a lite pull consumer
"""

from __future__ import annotations

from enum import IntFlag

from ..header import I32, I64, Header, header, wire


class PullSysFlag(IntFlag):
    """What a pull asks for beside messages."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


@header
class PullMessageRequest(Header):
    """Read messages of one queue: PULL_MESSAGE, and LITE_PULL_MESSAGE from 5.x clients."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    subscription: str | None = None
    sub_version: I64
    expression_type: str | None = None
    broker_name: str | None = wire("bname", default=None)
    # From 5.x clients only; the spelling of the last one is theirs.
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_froward_client_id: str | None = None


@header
class PullMessageResponse(Header):
    """Where to go on reading; all four must be there whenever the pull itself was in order."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    # Read by 5.x clients only.
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None
