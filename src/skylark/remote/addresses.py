"""Where the name servers are: four sources, in RocketMQ's order.

    precedence   source                                                            changes
    1            set in code                                                       never
    2            property `rocketmq.namesrv.addr`: a start parameter or flag       never
    3            environment NAMESRV_ADDR                                          never
    4            HTTP GET http://jmenv.tbsite.net:8080/rocketmq/nsaddr             watched

The properties `rocketmq.namesrv.domain` and `rocketmq.namesrv.domain.subgroup` change host and last
word of the address; a domain with a port keeps it. With a unit name it ends in `-<unit>?nofix=1`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from urllib.parse import quote, urlsplit

from ..clock import Clock
from ..errors import ConfigError, ConnectFailed, ConnectionLost, TransportError
from ..model.addresses import AddressList, parse_addresses
from ..net.network import Network

logger = logging.getLogger(__name__)

ADDRESS_PROPERTY = "rocketmq.namesrv.addr"
DOMAIN_PROPERTY = "rocketmq.namesrv.domain"
SUBGROUP_PROPERTY = "rocketmq.namesrv.domain.subgroup"
ADDRESS_VARIABLE = "NAMESRV_ADDR"
DOMAIN = "jmenv.tbsite.net"
SUBGROUP = "nsaddr"

FIRST_FETCH_MS = 10_000
FETCH_INTERVAL_MS = 120_000
FETCH_TIMEOUT_MS = 3_000
ANSWER_BYTES_MAX = 65_536

_HTTP_PORT = 8080


class AddressSource(StrEnum):
    """Where a list came from, the strongest first."""

    CODE = "code"
    PROPERTY = "property"
    ENVIRONMENT = "environment"
    HTTP = "http"


def address_url(
    *, domain: str = DOMAIN, subgroup: str = SUBGROUP, unit_name: str | None = None
) -> str:
    """Build the URL of the address service."""
    place = domain if ":" in domain[1:] else f"{domain}:{_HTTP_PORT}"
    url = f"http://{place}/rocketmq/{quote(subgroup)}"
    if unit_name and unit_name.strip():
        url += f"-{quote(unit_name.strip())}?nofix=1"
    return url


Fetch = Callable[[str], Awaitable[str]]


class AddressBook:
    """The name servers a client knows now, and the watch that keeps the list current.

    A list from code, property or environment stays as it is. One from the address service is asked
    for again and again; a failed, empty or malformed answer never replaces a list in use.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        fetch: Fetch,
        code: str | None = None,
        properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        unit_name: str | None = None,
        on_change: Callable[[AddressList], None] = lambda addresses: None,
    ) -> None:
        """Look at the first three sources; raises ConfigError where what counts is malformed."""
        self._clock = clock
        self._fetch = fetch
        self._on_change = on_change
        properties = properties or {}
        self.url = address_url(
            domain=properties.get(DOMAIN_PROPERTY) or DOMAIN,
            subgroup=properties.get(SUBGROUP_PROPERTY) or SUBGROUP,
            unit_name=unit_name,
        )
        self.source, self.current = find_addresses(code=code, properties=properties, env=env)

    async def refresh(self) -> bool:
        """Ask the address service once; returns whether a list is known now.

        A client without any list calls this at its start, before the first of the timed requests.
        """
        if self.source is not AddressSource.HTTP:
            return True
        try:
            found = parse_addresses(first_line(await self._fetch(self.url)))
        except (TransportError, ConfigError) as error:
            logger.warning("url=%s no list of name servers: %s", self.url, error)
            return bool(self.current)
        if not found:
            logger.warning("url=%s answered an empty list; the old one stays", self.url)
            return bool(self.current)
        if found != self.current:
            logger.info("url=%s name servers now %s, before %s", self.url, found, self.current)
            self.current = found
            self._on_change(found)
        return True

    async def watch(self) -> None:
        """Refresh after 10 s and then every 2 minutes, until cancelled; a fixed list needs none."""
        if self.source is not AddressSource.HTTP:
            return
        await self._clock.sleep_ms(FIRST_FETCH_MS)
        while True:
            await self.refresh()
            await self._clock.sleep_ms(FETCH_INTERVAL_MS)


def find_addresses(
    *,
    code: str | None = None,
    properties: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[AddressSource, AddressList]:
    """Return the list of the strongest source that has one, or HTTP and an empty list."""
    environment = os.environ if env is None else env
    candidates = (
        (AddressSource.CODE, code),
        (AddressSource.PROPERTY, (properties or {}).get(ADDRESS_PROPERTY)),
        (AddressSource.ENVIRONMENT, environment.get(ADDRESS_VARIABLE)),
    )
    for source, text in candidates:
        found = parse_addresses(text or "")
        if found:
            return source, found
    return AddressSource.HTTP, AddressList()


def first_line(text: str) -> str:
    """Return what stands before the first line end, without blanks around it."""
    return re.split(r"[\r\n]", text.strip(), maxsplit=1)[0].strip()


class HttpFetch:
    """GET of one small text over the network door; the address service needs no more of HTTP."""

    def __init__(self, network: Network, *, timeout_ms: int = FETCH_TIMEOUT_MS) -> None:
        self._network = network
        self._timeout_ms = timeout_ms

    async def __call__(self, url: str) -> str:
        """Return the body of a 200 answer; raises TransportError."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _HTTP_PORT
        where = f"{host}:{port}"
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        # HTTP/1.0: the answer is neither chunked nor kept alive, and ends with the connection.
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: text/plain\r\n\r\n"
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                reader = _Reader()
                transport = await self._network.connect(lambda: reader, host, port)
                try:
                    transport.write(request.encode("ascii", "replace"))
                    raw = await reader.answer()
                finally:
                    transport.abort()
        except TimeoutError:
            raise ConnectFailed(where, f"no answer within {self._timeout_ms} ms") from None
        return _body_of(raw, where)


def _body_of(raw: bytes, where: str) -> str:
    if len(raw) > ANSWER_BYTES_MAX:
        raise ConnectionLost(where, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    head, end, body = raw.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if not end or not words[0].startswith(b"HTTP/") or len(words) < 2:
        raise ConnectionLost(where, "not an HTTP answer")
    if words[1] != b"200":
        raise ConnectionLost(where, f"HTTP status {words[1][:16].decode('ascii', 'replace')}")
    if b"\r\ntransfer-encoding:" in head.lower():
        raise ConnectionLost(where, "a chunked answer to an HTTP/1.0 request")
    length = _content_length(head)
    if length is not None and len(body) < length:
        # Half a list can be a well-formed list of other servers.
        raise ConnectionLost(where, f"{len(body)} of {length} bytes, then the connection ended")
    return body[:length].decode("utf-8", "replace")


def _content_length(head: bytes) -> int | None:
    found = re.search(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*(?:\r\n|$)", head.lower())
    return None if found is None else int(found[1])


class _Reader(asyncio.Protocol):
    """Collects an answer up to its cap, until the peer closes or Content-Length is there."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(self) -> bytes:
        await self._done
        return bytes(self._raw)

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if len(self._raw) > ANSWER_BYTES_MAX or self._is_whole():
            self._finish()

    def eof_received(self) -> None:
        self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self._finish()

    def _is_whole(self) -> bool:
        head, end, body = bytes(self._raw).partition(b"\r\n\r\n")
        length = _content_length(head) if end else None
        return length is not None and len(body) >= length

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
