"""AddressService: tells clients by HTTP where the name servers are.

A RocketMQ client without an address asks `http://<domain>:8080/rocketmq/nsaddr` first after ten
seconds and then every two minutes, so that name servers can be replaced without touching a client.

    GET /rocketmq/nsaddr                     200, `ip:port;ip:port` and a line end
    GET /rocketmq/nsaddr-<unit>?nofix=1      200, the same list: units share the name servers
    HEAD of either                           200 without the text
    anything else                            404; 405 for other methods; 400 for what is not HTTP

One small GET is all that is served: no bodies, no chunks, no ranges. A request that is too long,
too slow or malformed ends its connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, cast

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_MS: Final = 10_000  # For a whole request, and for the pause before the next one.
REQUESTS_MAX: Final = 100  # On one connection.
CONNECTIONS_MAX: Final = 1_000

PATH: Final = "/rocketmq/nsaddr"
_TARGET = re.compile(r"(?:https?://[^/?#\s]+)?/rocketmq/nsaddr(?:-[\w.-]{1,255})?(?:\?[^\s#]*)?")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,4096}) HTTP/1\.([01])")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class AddressService:
    """Answers with whatever the given function says at that moment.

    The function is told the local address that the client has reached: a name server that listens
    on all of a machine's addresses knows no better one to name.
    """

    def __init__(self, addresses: Callable[[str], str]) -> None:
        self.addresses = addresses
        self._conversations: dict[_Conversation, None] = {}

    def make_protocol(self) -> asyncio.Protocol:
        """For Network.listen."""
        return _Conversation(self)

    def close(self) -> None:
        """End all connections."""
        for conversation in list(self._conversations):
            conversation.close()

    # What a conversation asks.

    def begin(self, conversation: _Conversation) -> bool:
        if len(self._conversations) >= CONNECTIONS_MAX:
            return False
        self._conversations[conversation] = None
        return True

    def end(self, conversation: _Conversation) -> None:
        self._conversations.pop(conversation, None)


class _Conversation(asyncio.Protocol):
    """One HTTP connection."""

    def __init__(self, service: AddressService) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._served = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._service.begin(self):
            self._answer(503, keep=False)
            return
        self._restart_timer()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._service.end(self)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._unread += data
        while not self._transport.is_closing():
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if not end:
                if len(self._unread) > REQUEST_BYTES_MAX:
                    self._answer(431, keep=False)
                return
            self._unread = rest
            self._serve(head)

    def close(self) -> None:
        """End the connection once what is written has gone out."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.close()

    def _serve(self, head: bytes) -> None:
        self._served += 1
        first, *rest = head.split(b"\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        fields = dict(_field(field) for field in rest)
        if line is None or b"" in fields or len(head) > REQUEST_BYTES_MAX:
            self._answer(400, keep=False)
            return
        if b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0":
            self._answer(400, keep=False)  # A body could be taken for the next request.
            return
        method, target, minor = line[1], line[2].decode("latin-1"), line[3]
        connection = fields.get(b"connection", b"").lower()
        keep = self._served < REQUESTS_MAX and (
            connection != b"close" if minor == b"1" else connection == b"keep-alive"
        )
        if _TARGET.fullmatch(target) is None:
            self._answer(404, keep=keep)
        elif method not in (b"GET", b"HEAD"):
            self._answer(405, keep=keep)
        else:
            text = self._service.addresses(self._local_host())
            self._answer(200, text + "\n", keep=keep, head=method == b"HEAD")

    def _answer(self, code: int, text: str = "", *, keep: bool, head: bool = False) -> None:
        assert self._transport is not None
        body = (text or f"{code} {_REASONS[code]}\n").encode()
        allow = "Allow: GET, HEAD\r\n" if code == 405 else ""
        self._transport.write(
            f"HTTP/1.1 {code} {_REASONS[code]}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n"
            f"{allow}\r\n".encode()
            + (b"" if head else body)
        )
        if keep:
            self._restart_timer()
        else:
            self.close()

    def _local_host(self) -> str:
        assert self._transport is not None
        host = str(self._transport.get_extra_info("sockname")[0]).removeprefix("::ffff:")
        return f"[{host}]" if ":" in host else host

    def _restart_timer(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REQUEST_TIMEOUT_MS / 1000, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    # A blank beside the name is how two readers come to see two requests.
    if not colon or not name or name != name.strip():
        return b"", b""
    return name.lower(), value.strip()
