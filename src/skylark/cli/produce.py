"""`skylark produce`: send messages from the command line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Final

from ..client.producer import Producer
from ..client.receipts import SendReceipt
from ..errors import ConfigError, NoRoute
from ..model.message import DELAY_LEVEL_MAX, Message
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

GROUP: Final = "SKYLARK_CLI_PRODUCER"
COUNT_MAX: Final = 1_000_000_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
AT_ONCE: Final = 256  # Sends under way at a time.
READ_BYTES: Final = 64 << 10
CHUNKS_AHEAD: Final = 4

_EPILOG = """\
Without --body and --file each line of standard input that is not empty is a message.

    skylark produce Orders --body 'hello' --tag Paid --key o-1
    seq 1000 | skylark produce Numbers
"""


def main(argv: Sequence[str] | None = None, *, program: str = "skylark produce") -> int:
    """Parse the arguments and send; returns the exit code."""
    parser = make_parser(program, "Send messages to a topic.", _EPILOG)
    add = parser.add_argument
    body = parser.add_mutually_exclusive_group()
    body.add_argument("--body", metavar="TEXT", help="the body of the message")
    body.add_argument("--file", metavar="PATH", help="a file that is the body of the message")
    add("--tag", metavar="TAG", help="the message's tag")
    add("--key", action="append", default=[], metavar="KEY", help="a key to find it by; repeatable")
    add("--count", type=whole_number(1, COUNT_MAX), metavar="N", help="send it this often (1)")
    add(
        "--delay-level",
        type=whole_number(0, DELAY_LEVEL_MAX),
        default=0,
        metavar="LEVEL",
        help=f"deliver it later: 1 to {DELAY_LEVEL_MAX}",
    )
    add("--delay", type=_span_ms, metavar="SPAN", help="deliver it after a while: 90s, 5m, 2h, 1d")
    add("--at", type=_moment_ms, metavar="TIME", help="deliver it then: 2026-11-15T08:00, epoch ms")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    return run(program, lambda: _produce(arguments))


async def _produce(arguments: argparse.Namespace) -> int:
    check_topic(arguments.topic)
    has_body = arguments.body is not None or arguments.file is not None
    if arguments.count is not None and not has_body:
        raise ConfigError("--count repeats one message; give it with --body or --file")
    _message(arguments, b"x")  # Before anything is read or sent.
    body = _body(arguments) if has_body else b""
    async with open_client(arguments) as mq:
        with contextlib.suppress(NoRoute):  # A broker may create it at the first send.
            await mq.session.route(mq.session.wrap(arguments.topic))
        async with mq.producer(GROUP) as producer:
            sender = _Sender(producer, arguments.json)
            if has_body:
                message = _message(arguments, body)
                left = arguments.count or 1
                while left:
                    now = min(left, AT_ONCE)
                    await sender.send([message] * now)
                    left -= now
            else:
                async for lines in _lines():
                    for start in range(0, len(lines), AT_ONCE):
                        some = lines[start : start + AT_ONCE]
                        await sender.send([_message(arguments, line) for line in some])
    sender.sum_up()
    return exits.DONE


def _span_ms(text: str) -> int:
    matched = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text.strip().lower())
    if matched is None:
        raise argparse.ArgumentTypeError("expected a number with ms, s, m, h or d, as 90s")
    return int(matched[1]) * _UNITS_MS[matched[2]]


def _moment_ms(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            "expected a time as 2026-11-15T08:00, or epoch milliseconds"
        ) from None


def _message(arguments: argparse.Namespace, body: bytes) -> Message:
    return checked(
        lambda: Message(
            arguments.topic,
            body,
            tag=arguments.tag,
            keys=arguments.key,
            delay_level=arguments.delay_level,
            delay_ms=arguments.delay,
            deliver_at_ms=arguments.at,
        )
    )


def _body(arguments: argparse.Namespace) -> bytes:
    if arguments.body is not None:
        return os.fsencode(arguments.body)
    with open(arguments.file, "rb") as file:
        return file.read()


class _Sender:
    """Sends messages and tells what became of them."""

    def __init__(self, producer: Producer, as_json: bool) -> None:
        self._producer = producer
        self._as_json = as_json
        self._count = 0
        self._last: SendReceipt | None = None

    async def send(self, messages: list[Message]) -> None:
        sends = [asyncio.ensure_future(self._producer.send(message)) for message in messages]
        try:
            receipts = await asyncio.gather(*sends)
        except BaseException:
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            raise
        for receipt in receipts:
            if self._as_json:
                print_json(_record(receipt))
        self._count += len(receipts)
        self._last = receipts[-1]

    def sum_up(self) -> None:
        if self._as_json:
            return
        if self._count == 1 and self._last is not None:
            receipt = self._last
            print(
                f"{receipt.status} {receipt.message_id} {receipt.queue.broker_name} "
                f"queue {receipt.queue.queue_id} offset {receipt.queue_offset}"
            )
        else:
            print(f"{self._count} messages sent")


def _record(receipt: SendReceipt) -> dict[str, object]:
    return {
        "status": str(receipt.status),
        "message_id": receipt.message_id,
        "offset_id": receipt.offset_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker_name,
        "queue": receipt.queue.queue_id,
        "offset": receipt.queue_offset,
    }


async def _lines() -> AsyncIterator[list[bytes]]:
    """The lines of standard input, as many as there are at a time.

    A thread reads, since a terminal, a pipe and a file cannot all be awaited. It reads the
    descriptor itself: the lock of sys.stdin would outlive an interruption.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        while True:
            room.acquire()
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, READ_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return  # The loop has closed: nobody wants the rest.
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        yield _not_empty(lines)
    yield _not_empty([rest])


def _not_empty(lines: list[bytes]) -> list[bytes]:
    # RocketMQ's clients refuse to send an empty body, and so does ours.
    return [bare for line in lines if (bare := line.removesuffix(b"\r"))]
