"""AddressService: one small GET, and nothing else that HTTP could be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from skylark.nameserver import address_service
from skylark.nameserver.address_service import AddressService


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"sockname": ("10.0.0.1", 8080)})
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        assert not self.closed, "written after the end"
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Talk:
    """A connection to the service, fed by hand."""

    def __init__(self, service: AddressService) -> None:
        self.transport = Transport()
        self.protocol = service.make_protocol()
        self.protocol.connection_made(self.transport)

    def say(self, data: bytes) -> bytes:
        self.transport.written = b""
        self.protocol.data_received(data)
        return self.transport.written


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield loop
    asyncio._set_running_loop(None)
    loop.close()


@pytest.fixture
def service(loop: asyncio.AbstractEventLoop) -> AddressService:
    return AddressService(lambda host: f"{host}:9876;10.0.0.2:9876")


@pytest.fixture
def talk(service: AddressService) -> Talk:
    return Talk(service)


def get(path: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = (f"{method} {path} HTTP/{version}", "Host: jmenv.tbsite.net:8080", *fields)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_the_list_is_served_as_one_line(talk: Talk) -> None:
    assert talk.say(get("/rocketmq/nsaddr")) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: 28\r\n"
        b"Cache-Control: no-store\r\n"
        b"Connection: keep-alive\r\n"
        b"\r\n"
        b"10.0.0.1:9876;10.0.0.2:9876\n"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/rocketmq/nsaddr-unit1?nofix=1",
        "/rocketmq/nsaddr?nofix=1",
        "http://jmenv.tbsite.net:8080/rocketmq/nsaddr",
        "/rocketmq/nsaddr-a.b-c_d",
    ],
)
def test_units_and_questions_get_the_same_list(talk: Talk, path: str) -> None:
    answer = talk.say(get(path))
    assert status(answer) == 200
    assert answer.endswith(b"10.0.0.1:9876;10.0.0.2:9876\n")


@pytest.mark.parametrize(
    "path",
    ["/", "/rocketmq", "/rocketmq/nsaddr/", "/rocketmq/nsaddr/../x", "/rocketmq/nsaddrx", "*"],
)
def test_anything_else_is_not_found(talk: Talk, path: str) -> None:
    assert status(talk.say(get(path))) == 404
    assert status(talk.say(get("/rocketmq/nsaddr"))) == 200  # The connection can go on.


def test_a_head_has_no_body(talk: Talk) -> None:
    answer = talk.say(get("/rocketmq/nsaddr", method="HEAD"))
    assert b"Content-Length: 28" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(talk: Talk, method: str) -> None:
    answer = talk.say(get("/rocketmq/nsaddr", method=method))
    assert status(answer) == 405
    assert b"Allow: GET, HEAD\r\n" in answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET /rocketmq/nsaddr\r\n\r\n",
        b"GET  /rocketmq/nsaddr HTTP/1.1\r\n\r\n",
        b"GET /rocketmq/nsaddr HTTP/2.0\r\n\r\n",
        b"get /rocketmq/nsaddr HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        get("/rocketmq/nsaddr", "Content-Length: 5"),
        get("/rocketmq/nsaddr", "Transfer-Encoding: chunked"),
        get("/rocketmq/nsaddr", "Transfer-Encoding : chunked"),
        get("/rocketmq/nsaddr", " folded"),
        get("/rocketmq/nsaddr", "no colon"),
    ],
)
def test_what_is_not_a_plain_get_ends_the_connection(talk: Talk, data: bytes) -> None:
    assert status(talk.say(data)) == 400
    assert talk.transport.closed


def test_a_request_may_arrive_byte_by_byte_and_several_at_once(talk: Talk) -> None:
    data = get("/rocketmq/nsaddr")
    answer = b"".join(talk.say(data[i : i + 1]) for i in range(len(data)))
    assert status(answer) == 200
    assert talk.say(data * 3).count(b"200 OK") == 3


def test_an_endless_request_is_cut(talk: Talk) -> None:
    assert status(talk.say(b"GET /" + b"x" * 9_000)) == 431
    assert talk.transport.closed
    assert talk.say(b"y" * 100) == b""


@pytest.mark.parametrize(
    ("version", "fields", "closed"),
    [
        ("1.1", (), False),
        ("1.1", ("Connection: close",), True),
        ("1.0", (), True),
        ("1.0", ("Connection: keep-alive",), False),
    ],
)
def test_a_connection_is_kept_as_its_version_says(
    talk: Talk, version: str, fields: tuple[str, ...], closed: bool
) -> None:
    talk.say(get("/rocketmq/nsaddr", *fields, version=version))
    assert talk.transport.closed == closed


def test_a_connection_serves_a_limited_number_of_requests(talk: Talk) -> None:
    answer = talk.say(get("/rocketmq/nsaddr") * 200)
    assert answer.count(b"200 OK") == address_service.REQUESTS_MAX
    assert talk.transport.closed


def test_a_slow_request_is_cut(
    loop: asyncio.AbstractEventLoop, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = talk.protocol._timer  # type: ignore[attr-defined]
    assert timer.when() - loop.time() == pytest.approx(10, abs=1)
    talk.say(b"GET /rock")
    assert talk.protocol._timer is timer  # type: ignore[attr-defined] # A drip does not extend it.
    timer._callback()
    assert talk.transport.closed


def test_too_many_connections_are_refused(
    service: AddressService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_service, "CONNECTIONS_MAX", 2)
    first, second = Talk(service), Talk(service)
    third = Talk(service)
    assert third.transport.closed
    third.protocol.connection_lost(None)
    first.protocol.connection_lost(None)
    assert not Talk(service).transport.closed
    service.close()
    assert second.transport.closed
