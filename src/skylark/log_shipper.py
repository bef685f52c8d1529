"""LogShipper: a handler for Python's logging that sends every line to a topic, and never waits.

    logging.getLogger().addHandler(LogShipper("127.0.0.1:9876", "LogTopic"))

Lines are taken into a bounded queue, and a thread of its own sends them oneway, as JSON, with the
level as tag. What does not fit is dropped and counted, and so is what cannot be sent: a program
must not stand still because its log does. The client's own lines are not shipped, since each would
make another.

    {"ts": 1794830400123, "level": "ERROR", "logger": "shop.cart", "text": "no such item",
     "host": "web-1", "pid": 4711, "error": "Traceback …"}
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections import deque
from functools import partial
from typing import Any, Final

from .client.connect import connect
from .client.producer import Producer
from .errors import SkylarkError
from .model.message import Message
from .model.names import check_group_name, check_topic_name

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
CLOSE_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 1.0
_OWN: Final = "skylark"
_LONGEST: Final = 100_000  # Characters of text or error; a line is no place for a file.


class LogShipper(logging.Handler):
    """Ships log records to a topic; see the module's docstring."""

    def __init__(
        self,
        name_servers: str,
        topic: str,
        *,
        group: str = "log-shipper",
        pending_max: int = PENDING_MAX,
        level: int = logging.NOTSET,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        **settings: Any,
    ) -> None:
        super().__init__(level)
        check_topic_name(topic)
        check_group_name(group)
        self._connect = partial(connect, name_servers, **settings)
        self._connect()  # Wrong settings are said here, not on a thread that nobody watches.
        self._topic = topic
        self._group = group
        self._pending_max = pending_max
        self._close_timeout_s = close_timeout_s
        self._host = socket.gethostname()
        self.sent = 0
        self.dropped = 0  # Came too fast, or could not be sent.
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._pending: deque[Message] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; the lock of the handler is held, so there is one at a time."""
        is_own = record.name == _OWN or record.name.startswith(f"{_OWN}.")
        if is_own or threading.current_thread() is self._thread:
            return
        if self._pid != os.getpid():
            self._begin()  # After a fork the thread is the parent's, and so are the lines.
        if self._closing or len(self._pending) >= self._pending_max:
            self.dropped += 1
            return
        try:
            self._pending.append(self._message(record))
        except Exception:
            self.handleError(record)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)
            self._thread.start()
        self._notify()

    def _message(self, record: logging.LogRecord) -> Message:
        line = {
            "ts": int(record.created * 1_000),
            "level": record.levelname,
            "logger": record.name,
            "text": (self.format(record) if self.formatter else record.getMessage())[:_LONGEST],
            "host": self._host,
            "pid": self._pid,
        }
        if record.exc_info and not self.formatter:
            line["error"] = logging.Formatter().formatException(record.exc_info)[:_LONGEST]
        tag = record.levelname if record.levelname.isalnum() else None
        return Message(self._topic, json.dumps(line, ensure_ascii=False).encode(), tag=tag)

    def _notify(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:
                return  # The loop has ended; close() counts what is left.

    def close(self) -> None:
        """Send what is pending, for some seconds at most, and end."""
        self._closing = True
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            self._notify()
            thread.join(self._close_timeout_s)
            self.dropped += len(self._pending)
            self._pending.clear()
        super().close()

    # On the thread.

    def _run(self) -> None:
        asyncio.run(self._ship())

    async def _ship(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        told = False
        while not (self._closing and not self._pending):
            sent = self.sent
            try:
                async with self._connect() as mq, mq.producer(self._group) as producer:
                    await self._drain(producer)
            except SkylarkError as error:
                # Lines go on coming; the oldest that fit are kept, and sent when somebody is there.
                if not told or self.sent > sent:
                    logger.warning("topic=%s log lines cannot be sent: %s", self._topic, error)
                told = True
                await asyncio.sleep(_RETRY_S)

    async def _drain(self, producer: Producer) -> None:
        assert self._wake is not None
        while True:
            while self._pending:
                await producer.send_oneway(self._pending[0])
                self.sent += 1
                if self._pending:  # close() may have given up meanwhile.
                    self._pending.popleft()
            if self._closing:
                return
            self._wake.clear()
            if not self._pending:
                await self._wake.wait()
