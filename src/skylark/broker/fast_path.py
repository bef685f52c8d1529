"""The ordinary send and the ordinary pull, read and answered with little ado.

These functions do the usual case only, and leave everything else to the processors: they stop
before it and say where, or return None. So the compiled twin _fast_path.pyx and this specification
need to agree on little, and each rule about odd input is written once, in the processors.

    plain_sends      requests -> messages for the store, as far as they are plain
    stored_answers   where they were stored -> the frames of the answers
    plain_entries    whether the entries of a batch can be stored as they are
    stored_ids       where they were stored -> their ids
    read_pull        the fields of a pull
    pull_answer      what was found -> the frame of the answer

A plain send has code 310 and is no batch; its topic is one that may be sent to without further
checks; its numbers are decimal and in range; and its properties are sound, name none that changes
where or when a message goes, have no empty value, and at most 64 keys. Only WAIT is removed.

A plain entry of a batch has sound properties with fewer than 64 spaces in them, and nowhere, not
even in a value, what could name a property that changes where or when a message goes.
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidBatch, InvalidBody
from ..protocol.batch import decode_batch
from ..protocol.command import Command
from ..protocol.crc import Buffer
from ..protocol.frame import encode_frames
from ..protocol.properties import (
    KEYS_COUNT_MAX,
    PROPERTIES_BYTES_MAX,
    require_sound_properties,
)
from ..store import PutMessage, PutResult, PutStatus

SEND_CODE = 310
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_ODD_NAMES = frozenset(
    {
        b"DELAY",
        b"TRAN_MSG",
        b"CLUSTER",
        b"TIMER_DELAY_MS",
        b"TIMER_DELAY_SEC",
        b"TIMER_DELIVER_MS",
    }
)
_ODD_TEXTS = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_")
_TRANSACTION_BITS = 0xC


class SendContext(NamedTuple):
    """What the sends of one read have in common."""

    topics: Mapping[str, int]  # Topic that may be sent to without further checks → its queues.
    cluster: bytes  # The property that every message gets, as text.
    born_host: bytes
    store_host: bytes
    body_max: int


class PullFields(NamedTuple):
    """The fields of a pull."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    subscription: str | None
    sub_version: int
    expression_type: str | None


def plain_sends(
    commands: Sequence[Command],
    at: int,
    context: SendContext,
    messages: list[PutMessage],
    queue_ids: list[int],
) -> int:
    """Read commands[at:] while they are plain sends; return the index of the first that is not."""
    while at < len(commands):
        command = commands[at]
        if command.code != SEND_CODE:
            return at
        read = _read_send(command, context)
        if read is None:
            return at
        messages.append(read)
        queue_ids.append(read.queue_id)
        at += 1
    return at


def _read_send(command: Command, context: SendContext) -> PutMessage | None:
    fields = command.fields
    if fields.get("m", "false") != "false" or fields.get("k", "false") != "false":
        return None
    topic = fields.get("b")
    if topic is None or "a" not in fields or "c" not in fields:
        return None
    queues = context.topics.get(topic)
    numbers = [_number(fields.get(name)) for name in ("d", "e", "f", "g", "h")]
    reconsume_times = _number(fields.get("j", "0"))
    asked_max = _number(fields.get("l", "0"))
    if queues is None or reconsume_times is None or asked_max is None or None in numbers:
        return None
    queue_nums, queue_id, sys_flag, born_at_ms, flag = (number or 0 for number in numbers)
    small = (queue_nums, queue_id, sys_flag, flag, reconsume_times, asked_max)
    if not all(_INT_MIN <= number <= _INT_MAX for number in small):
        return None
    if not 0 <= queue_id < queues or sys_flag & _TRANSACTION_BITS:
        return None
    if len(command.body) > context.body_max:
        return None
    try:
        text = fields.get("i", "").encode()
    except UnicodeEncodeError:
        return None
    properties = _plain_properties(text, context.cluster)
    if properties is None:
        return None
    return PutMessage(
        topic,
        queue_id,
        command.body,
        properties,
        born_at_ms,
        context.born_host,
        context.store_host,
        flag,
        sys_flag,
        reconsume_times,
    )


def _plain_properties(text: bytes, cluster: bytes) -> bytes | None:
    kept = []
    pieces = text.split(b"\x02")
    if not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        name, _, value = piece.partition(b"\x01")
        if not name or not value or name in _ODD_NAMES:
            return None
        if name == b"KEYS" and value.count(b" ") >= KEYS_COUNT_MAX:
            return None
        if name != b"WAIT":
            kept.append(piece)
    kept.append(cluster)
    properties = b"\x02".join(kept)
    return properties if len(properties) <= PROPERTIES_BYTES_MAX else None


def _number(text: str | None) -> int | None:
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    return int(text)


def stored_answers(
    commands: Sequence[Command],
    at: int,
    queue_ids: Sequence[int],
    results: Sequence[PutResult],
    id_prefix: str,
    trace_fields: Mapping[str, str],
) -> bytes | None:
    """The answers to commands[at:] that were stored, as frames; None where one was not.

    Oneway requests get none. Only JSON headers are answered here.
    """
    answers = []
    for command, queue_id, result in zip(commands[at:], queue_ids, results, strict=False):
        if result.status is not PutStatus.PUT_OK or command.serialization != 0:
            return None
        if not command.flag & 2:
            fields = {
                "msgId": f"{id_prefix}{result.physical_offset:016X}",
                "queueId": str(queue_id),
                "queueOffset": str(result.queue_offset),
                **trace_fields,
            }
            answers.append(command.reply(0, None, fields))
    return encode_frames(answers)


def plain_entries(entries: Buffer) -> bool:
    """Whether all entries of a batch are plain."""
    try:
        for entry in decode_batch(entries):
            properties = entry.properties
            require_sound_properties(properties)
            if properties.count(b" ") >= KEYS_COUNT_MAX:
                return False
            if any(text in properties for text in _ODD_TEXTS):
                return False
    except (InvalidBatch, InvalidBody):
        return False
    return True


def stored_ids(id_prefix: str, physical_offsets: array[int]) -> str:
    """The ids of the messages of a batch, as its answer has them."""
    return ",".join([f"{id_prefix}{offset:016X}" for offset in physical_offsets])


def read_pull(fields: Mapping[str, str]) -> PullFields | None:
    """The fields of a pull whose numbers are plain; None where the typed header must look."""
    group, topic = fields.get("consumerGroup"), fields.get("topic")
    numbers = [
        _number(fields.get(name))
        for name in (
            "queueId",
            "queueOffset",
            "maxMsgNums",
            "sysFlag",
            "commitOffset",
            "suspendTimeoutMillis",
            "subVersion",
        )
    ]
    if group is None or topic is None or None in numbers:
        return None
    queue_id, offset, count, sys_flag, commit, suspend, version = (n or 0 for n in numbers)
    if not all(_INT_MIN <= number <= _INT_MAX for number in (queue_id, count, sys_flag)):
        return None
    return PullFields(
        group,
        topic,
        queue_id,
        offset,
        count,
        sys_flag,
        commit,
        suspend,
        fields.get("subscription"),
        version,
        fields.get("expressionType"),
    )


def pull_answer(
    command: Command,
    code: int,
    remark: str,
    suggestion: str,
    offsets: tuple[int, int, int],
    chunks: Sequence[bytes | memoryview],
) -> bytes | None:
    """The answer to a pull as a frame; None where the header is not JSON."""
    if command.serialization != 0:
        return None
    fields = {
        "suggestWhichBrokerId": suggestion,
        "nextBeginOffset": str(offsets[0]),
        "minOffset": str(offsets[1]),
        "maxOffset": str(offsets[2]),
    }
    return encode_frames([command.reply(code, remark, fields, b"".join(chunks))])


# The compiled twins take over where they were built; tests reach both by these names.
PURE: dict[str, Any] = {
    "plain_sends": plain_sends,
    "stored_answers": stored_answers,
    "plain_entries": plain_entries,
    "stored_ids": stored_ids,
    "read_pull": read_pull,
    "pull_answer": pull_answer,
}
COMPILED: dict[str, Any] = {}

with contextlib.suppress(ImportError):
    from . import _fast_path  # type: ignore[attr-defined, unused-ignore]

    _fast_path.bind(PutMessage, PullFields, PutStatus.PUT_OK)
    COMPILED = {name: getattr(_fast_path, name) for name in PURE}
    if os.environ.get("SKYLARK_PURE") != "1":
        globals().update(COMPILED)
