"""`skylark consume`: show the messages of a topic.

    without --group   looks only: reads every queue, commits nothing, disturbs nobody
    with --group      is a member of the group: gets its share, and commits what it has shown

Without --follow it ends at what was the end of each queue when it began; a member of a group ends
when nothing has come for a moment, since others may take what it would wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ..client.facade import Client
from ..client.pull_consumer import PullConsumer
from ..client.received import ReceivedMessage
from ..client.start_point import ConsumeFrom, time_ms
from ..client.subscriptions import Expression, SqlFilter, make_subscription
from ..errors import ConfigError
from ..logs import escaped
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from . import exits
from .messages import (
    check_topic,
    checked,
    make_parser,
    open_client,
    print_json,
    run,
    whole_number,
)

LOOKER: Final = "TOOLS_CONSUMER"  # A group that every broker has.
COUNT_MAX: Final = 1_000_000_000
PAGE: Final = 32
IDLE_S: Final = 2.0
BUFFER_MAX: Final = 1_000

_EPILOG = """\
TIME is 2026-11-15T08:00:00.123 (local unless it has an offset), yyyyMMddHHmmss, or milliseconds
since 1970. --group commits what was shown; without it, nothing changes.

    skylark consume Orders --from 2026-11-15T08:00 --tag 'Paid || Refund' --json
    skylark consume Orders --follow
"""


def main(argv: Sequence[str] | None = None, *, program: str = "skylark consume") -> int:
    """Parse the arguments and show messages; returns the exit code."""
    parser = make_parser(program, "Show the messages of a topic.", _EPILOG)
    add = parser.add_argument
    add("--group", metavar="GROUP", help="consume as a member of this group, and commit")
    add(
        "--from",
        dest="start",
        metavar="first|last|TIME",
        help="where to begin (first, or last with --follow); a group begins where it was",
    )
    add("--tag", metavar="EXPR", default="*", help="only these tags: 'A || B' (*)")
    add("--sql", metavar="EXPR", help="only what satisfies an SQL92 expression: 'a > 5'")
    add("--follow", action="store_true", help="go on and wait for new messages")
    add("--count", type=whole_number(1, COUNT_MAX), metavar="N", help="end after N messages")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    return run(program, lambda: _consume(arguments))


async def _consume(arguments: argparse.Namespace) -> int:
    check_topic(arguments.topic)
    if arguments.group is not None:
        checked(lambda: check_group_name(arguments.group))
    if arguments.sql is not None and arguments.tag != "*":
        raise ConfigError("--tag and --sql: give one of them; TAGS is a property in --sql")
    checked(lambda: make_subscription(arguments.topic, _wanted(arguments), 0))
    start = _start(arguments.start or ("last" if arguments.follow else "first"))
    async with open_client(arguments) as mq:
        if not await mq.fetch_queues(arguments.topic):
            raise ConfigError(f"topic {arguments.topic!r} has no queue that may be read")
        consume = _look if arguments.group is None else _join
        await consume(mq, arguments, start, _Printer(arguments))
    return exits.DONE


def _wanted(arguments: argparse.Namespace) -> Expression:
    tags: str = arguments.tag
    return tags if arguments.sql is None else SqlFilter(arguments.sql)


def _start(text: str) -> ConsumeFrom:
    if text in ("first", "last"):
        return text
    if text.isascii() and text.isdigit():
        return time_ms(text) if len(text) == 14 else int(text)
    try:
        return time_ms(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--from {text!r} is not understood; give first, last, 2026-11-15T08:00:00, "
            "yyyyMMddHHmmss, or epoch milliseconds"
        ) from None


class _Printer:
    """Shows messages, as many as are asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._as_json: bool = arguments.json
        self._left: int = arguments.count or COUNT_MAX

    def show(self, message: ReceivedMessage) -> bool:
        """Show one; says whether more are wanted."""
        _show(message, self._as_json)
        self._left -= 1
        return self._left > 0


async def _join(
    mq: Client, arguments: argparse.Namespace, start: ConsumeFrom, printer: _Printer
) -> None:
    """Be a member of a group, and commit what has been shown."""
    subscriptions = {arguments.topic: _wanted(arguments)}
    async with mq.consumer(arguments.group, subscriptions, consume_from=start) as consumer:
        coming = aiter(consumer)
        while True:
            try:
                async with asyncio.timeout(None if arguments.follow else IDLE_S):
                    message = await anext(coming)
            except (TimeoutError, StopAsyncIteration):
                return
            wants_more = printer.show(message)
            message.ack()
            if not wants_more:
                return


async def _look(
    mq: Client, arguments: argparse.Namespace, start: ConsumeFrom, printer: _Printer
) -> None:
    """Show all queues as one: what is there, by the time it was stored; then what comes."""
    async with mq.pull_consumer(LOOKER) as consumer:
        readers = [
            _QueueReader(consumer, queue, _wanted(arguments))
            for queue in await consumer.fetch_queues(arguments.topic)
        ]
        for reader in readers:
            await reader.begin(start)
        while True:
            for reader in readers:
                await reader.fill()
            ready = [reader for reader in readers if reader.page]
            if not ready:
                break
            oldest = min(ready, key=lambda reader: reader.page[0].stored_at_ms)
            if not printer.show(oldest.page.popleft()):
                return
        if arguments.follow:
            await _follow(readers, printer)


async def _follow(readers: list[_QueueReader], printer: _Printer) -> None:
    arrived: asyncio.Queue[ReceivedMessage | Exception] = asyncio.Queue(BUFFER_MAX)
    tasks = [asyncio.create_task(reader.follow(arrived)) for reader in readers]
    try:
        while True:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if not printer.show(item):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _QueueReader:
    """Where we are in one queue."""

    def __init__(self, consumer: PullConsumer, queue: MessageQueue, wanted: Expression) -> None:
        self.page: deque[ReceivedMessage] = deque()
        self._consumer = consumer
        self._queue = queue
        self._wanted = wanted
        self._offset = 0
        self._end = 0

    async def begin(self, start: ConsumeFrom) -> None:
        consumer, queue = self._consumer, self._queue
        self._end = await consumer.max_offset(queue)
        if start == "last":
            self._offset = self._end
        elif isinstance(start, int):
            self._offset = await consumer.offset_since(queue, start)
        else:
            self._offset = await consumer.min_offset(queue)

    async def fill(self) -> None:
        """Read the next messages, unless there are some or the end is reached."""
        while not self.page and self._offset < self._end:
            result = await self._consumer.pull(
                self._queue, self._wanted, offset=self._offset, count_max=PAGE
            )
            self.page.extend(m for m in result.messages if m.queue_offset < self._end)
            if result.next_begin_offset <= self._offset:
                self._offset = self._end  # The broker has no more of it than this.
            else:
                self._offset = min(result.next_begin_offset, self._end)

    async def follow(self, arrived: asyncio.Queue[ReceivedMessage | Exception]) -> None:
        """Hand over what comes, or what went wrong."""
        while True:
            try:
                result = await self._consumer.pull_or_wait(
                    self._queue, self._wanted, offset=self._offset, count_max=PAGE
                )
            except Exception as error:
                await arrived.put(error)
                return
            self._offset = result.next_begin_offset
            for message in result.messages:
                await arrived.put(message)


def _show(message: ReceivedMessage, as_json: bool) -> None:
    if as_json:
        print_json(_record(message))
        return
    when = datetime.fromtimestamp(message.stored_at_ms / 1000).isoformat(" ", "milliseconds")
    words = [when, f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"]
    if message.tag:
        words.append(f"[{escaped(message.tag)}]")
    if message.keys:
        words.append(f"({escaped(' '.join(message.keys))})")
    words.append(escaped(message.body.decode("utf-8", "backslashreplace")))
    print(*words, flush=True)


def _record(message: ReceivedMessage) -> dict[str, object]:
    record: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "reconsume_times": message.reconsume_times,
    }
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record
