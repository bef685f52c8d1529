"""The four sources of name-server addresses, and the watch on the fourth."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import ConfigError, ConnectFailed, ConnectionLost, TransportError
from skylark.model.addresses import Address, AddressList, parse_addresses
from skylark.remote.addresses import (
    ANSWER_BYTES_MAX,
    AddressBook,
    AddressSource,
    HttpFetch,
    address_url,
    find_addresses,
    first_line,
)

URL = "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"


# Texts


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:9876", [("a", 9876)]),
        ("a:9876;b:9877", [("a", 9876), ("b", 9877)]),
        (" a:9876 ; b:9877 ;", [("a", 9876), ("b", 9877)]),
        ("a:1;a:1", [("a", 1)]),
        ("10.0.0.1:9876", [("10.0.0.1", 9876)]),
        ("[::1]:9876", [("::1", 9876)]),
        ("[fe80::1]", [("fe80::1", 9876)]),
        ("fe80::1:9876", [("fe80::1", 9876)]),
        ("http://a:9876", [("a", 9876)]),
        ("http://a:9876/", [("a", 9876)]),
        ("a", [("a", 9876)]),
        ("broker_1.example.com:80", [("broker_1.example.com", 80)]),
        ("", []),
        (" ; ", []),
    ],
)
def test_a_text_is_a_list_of_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    found = parse_addresses(text)
    assert list(found.addresses) == addresses
    assert found.namespace is None
    assert bool(found) == bool(addresses)


@pytest.mark.parametrize(
    "text",
    [
        "a:", "a:x", "a:0", "a:65536", "a:-1", "a:99999999", ":9876", "[::1:9876", "[::1]x",
        "[a]:1", "a b:1", "a/b:1", "a:1,b:2", "http://", "a\n:1", "-a:1", "é:1", "a:٣",
    ],
)  # fmt: skip
def test_a_malformed_address_is_one_line_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ConfigError, match="write host:port") as caught:
        parse_addresses(f"good:9876;{text}")
    assert str(caught.value).isprintable()


def test_an_instance_endpoint_sets_the_namespace() -> None:
    found = parse_addresses("http://MQ_INST_123_abc.cn.example.com:8080")
    assert found.namespace == "MQ_INST_123_abc"
    assert found.addresses == (Address("MQ_INST_123_abc.cn.example.com", 8080),)
    assert parse_addresses("MQ_INST_123_abc.cn.example.com:8080").namespace == "MQ_INST_123_abc"
    assert parse_addresses("http://MQ_INST_123.example.com:8080").namespace is None


_hosts = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True),
    st.ip_addresses(v=6).map(str),
)
_addresses = st.lists(
    st.builds(Address, _hosts, st.integers(1, 65_535)), min_size=1, max_size=5, unique=True
)


@given(_addresses)
def test_a_list_written_out_is_read_back(addresses: list[Address]) -> None:
    known = AddressList(tuple(addresses))
    assert parse_addresses(str(known)).addresses == known.addresses


@given(st.text(max_size=60))
def test_any_text_is_a_list_or_a_config_error(text: str) -> None:
    try:
        found = parse_addresses(text)
    except ConfigError:
        return
    assert all(0 < address.port < 65_536 for address in found.addresses)


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 256"):
        parse_addresses(";".join(f"h{number}:1" for number in range(1_000)))


@pytest.mark.parametrize(
    ("text", "line"),
    [("a:1", "a:1"), ("\n a:1\nb:2", "a:1"), ("a:1\r\nb", "a:1"), ("a:1\rb", "a:1"), ("", "")],
)
def test_only_the_first_line_of_an_answer_counts(text: str, line: str) -> None:
    assert first_line(text) == line


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, URL),
        ({"domain": "ns.example.com"}, "http://ns.example.com:8080/rocketmq/nsaddr"),
        ({"domain": "ns.example.com:80"}, "http://ns.example.com:80/rocketmq/nsaddr"),
        ({"subgroup": "test"}, "http://jmenv.tbsite.net:8080/rocketmq/test"),
        ({"unit_name": "u1"}, URL + "-u1?nofix=1"),
        ({"unit_name": " "}, URL),
        ({"unit_name": "a b\r\nX: y"}, URL + "-a%20b%0D%0AX%3A%20y?nofix=1"),
    ],
)
def test_the_url_is_rocketmqs(options: dict[str, str], url: str) -> None:
    assert address_url(**options) == url


# Precedence


def test_code_beats_property_beats_environment_beats_http() -> None:
    code, properties, env = "c:1", {"rocketmq.namesrv.addr": "p:1"}, {"NAMESRV_ADDR": "e:1"}
    strongest = find_addresses(code=code, properties=properties, env=env)
    assert strongest == (AddressSource.CODE, AddressList((Address("c", 1),)))
    assert find_addresses(properties=properties, env=env)[0] is AddressSource.PROPERTY
    assert find_addresses(env=env)[0] is AddressSource.ENVIRONMENT
    assert find_addresses(env={}) == (AddressSource.HTTP, AddressList())


def test_an_empty_source_counts_as_none() -> None:
    found = find_addresses(
        code="", properties={"rocketmq.namesrv.addr": " "}, env={"NAMESRV_ADDR": "e:1"}
    )
    assert found[0] is AddressSource.ENVIRONMENT


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "x:1")
    assert find_addresses() == (AddressSource.ENVIRONMENT, AddressList((Address("x", 1),)))


# The watch


class FakeClock:
    """A clock that jumps to the end of each sleep and notes it."""

    def __init__(self, until_ms: int) -> None:
        self._now_ms = 0
        self._until_ms = until_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if self._now_ms + duration_ms > self._until_ms:
            raise asyncio.CancelledError
        self._now_ms += duration_ms
        await asyncio.sleep(0)


class Service:
    """An address service in memory: the answers by turn, the last one for ever."""

    def __init__(self, clock: FakeClock, *answers: str | Exception) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.asked: list[tuple[int, str]] = []

    async def __call__(self, url: str) -> str:
        self.asked.append((self._clock.now_ms(), url))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def watched(
    minutes: int, *answers: str | Exception, **options: str
) -> tuple[AddressBook, Service, list[AddressList]]:
    clock = FakeClock(minutes * 60_000)
    service = Service(clock, *answers)
    changes: list[AddressList] = []
    book = AddressBook(clock=clock, fetch=service, env={}, on_change=changes.append, **options)  # type: ignore[arg-type]

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await book.watch()

    asyncio.run(run())
    return book, service, changes


def test_the_first_request_is_after_10_s_and_the_next_every_2_minutes() -> None:
    _, service, _ = watched(10, "a:1")
    assert [at for at, _ in service.asked] == [10_000, 130_000, 250_000, 370_000, 490_000]
    assert {url for _, url in service.asked} == {URL}


def test_a_changed_list_is_taken_and_told_once() -> None:
    book, _, changes = watched(10, "a:1", "a:1", "b:2\nignored", "b:2")
    assert str(book.current) == "b:2"
    assert [str(change) for change in changes] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\n",
        ";;",
        "not an address!",
        ConnectFailed("h:1", "refused"),
        ConnectionLost("h:1", "x"),
    ],
)
def test_an_empty_malformed_or_failed_answer_never_replaces_a_list(bad: str | Exception) -> None:
    book, _, changes = watched(10, "a:1", bad)
    assert str(book.current) == "a:1"
    assert len(changes) == 1


def test_a_failed_answer_is_followed_by_the_next() -> None:
    book, _, _ = watched(10, ConnectFailed("h:1", "refused"), "b:2")
    assert str(book.current) == "b:2"


def test_a_fixed_list_is_not_watched() -> None:
    clock = FakeClock(600_000)
    service = Service(clock, "b:2")
    book = AddressBook(clock=clock, fetch=service, code="a:1", env={})
    asyncio.run(book.watch())
    assert asyncio.run(book.refresh())
    assert (service.asked, str(book.current)) == ([], "a:1")


def test_a_client_without_a_list_can_ask_at_once() -> None:
    clock = FakeClock(0)
    service = Service(clock, ConnectFailed("h:1", "refused"), "b:2")
    book = AddressBook(clock=clock, fetch=service, env={})
    assert not asyncio.run(book.refresh())
    assert asyncio.run(book.refresh())
    assert str(book.current) == "b:2"


def test_domain_subgroup_and_unit_shape_the_request() -> None:
    clock = FakeClock(0)
    properties = {
        "rocketmq.namesrv.domain": "ns:80",
        "rocketmq.namesrv.domain.subgroup": "mine",
    }
    book = AddressBook(
        clock=clock, fetch=Service(clock, ""), properties=properties, env={}, unit_name="u"
    )
    assert book.url == "http://ns:80/rocketmq/mine-u?nofix=1"


def test_a_malformed_address_in_code_is_told_at_once() -> None:
    clock = FakeClock(0)
    with pytest.raises(ConfigError):
        AddressBook(clock=clock, fetch=Service(clock, ""), code="a:x", env={})


def test_a_bug_in_the_fetch_is_not_hidden() -> None:
    clock = FakeClock(0)
    book = AddressBook(clock=clock, fetch=Service(clock, RuntimeError("bug")), env={})
    with pytest.raises(RuntimeError):
        asyncio.run(book.refresh())


# The request itself, over a wire in memory


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True


class FakeNetwork:
    """Connects to a peer that sends given pieces and then closes, or keeps silent."""

    def __init__(self, *pieces: bytes, close: bool = True) -> None:
        self._pieces = pieces
        self._close = close
        self.transport = FakeTransport()
        self.asked: tuple[str, int] | None = None

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        self.asked = (host, port)
        protocol = factory()
        protocol.connection_made(self.transport)
        loop = asyncio.get_running_loop()
        for piece in self._pieces:
            loop.call_soon(protocol.data_received, piece)
        if self._close:
            loop.call_soon(protocol.connection_lost, None)
        return self.transport

    async def listen(self, *args: object) -> object:
        raise NotImplementedError


def fetched(network: FakeNetwork, url: str = URL, timeout_ms: int = 3_000) -> str:
    async def run() -> str:
        fetch: Callable[[str], Awaitable[str]] = HttpFetch(network, timeout_ms=timeout_ms)  # type: ignore[arg-type]
        return await fetch(url)

    return asyncio.run(run())


def test_the_request_is_plain_http_and_the_connection_is_closed() -> None:
    network = FakeNetwork(b"HTTP/1.0 200 OK\r\n\r\na:1;b:2")
    assert fetched(network, URL + "-u?nofix=1") == "a:1;b:2"
    assert network.asked == ("jmenv.tbsite.net", 8080)
    assert network.transport.written == (
        b"GET /rocketmq/nsaddr-u?nofix=1 HTTP/1.0\r\nHost: jmenv.tbsite.net:8080\r\n"
        b"Accept: text/plain\r\n\r\n"
    )
    assert network.transport.aborted


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_answer_may_come_in_pieces_and_need_no_close(size: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 7\r\nConnection: keep-alive\r\n\r\na:1;b:2"
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert fetched(FakeNetwork(*pieces, close=False)) == "a:1;b:2"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\na:1", "HTTP status 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", "HTTP status 302"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n", "not an HTTP answer"),
        (b"", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na:1;b", "5 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na:1", "chunked"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * ANSWER_BYTES_MAX, "more than"),
    ],
)
def test_an_answer_that_is_not_a_list_is_a_transport_error(raw: bytes, words: str) -> None:
    network = FakeNetwork(raw)
    with pytest.raises(TransportError, match=words):
        fetched(network)
    assert network.transport.aborted


def test_a_silent_service_is_given_up() -> None:
    network = FakeNetwork(b"HTTP/1.1 200", close=False)
    with pytest.raises(ConnectFailed, match="no answer within 20 ms"):
        fetched(network, timeout_ms=20)
    assert network.transport.aborted


def test_a_flood_is_cut_off_at_the_cap() -> None:
    network = FakeNetwork(*[b"x" * 10_000] * 100, close=False)
    with pytest.raises(ConnectionLost, match="more than"):
        fetched(network)
