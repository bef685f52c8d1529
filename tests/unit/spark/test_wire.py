"""Wire: answers in the order of asking, however they arrive, and frames that are none."""

import random

import pytest

pytest.importorskip("pyspark")

from skylark.errors import CallTimeout, ConnectionLost, LocalProtocolError, TransportError
from skylark.protocol.command import Command
from skylark.protocol.frame import encode_frames
from skylark.spark import wire as wires
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access
from skylark.spark.wire import Wire


class FakeSocket:
    """A peer whose answers are known before."""

    def __init__(self, answers, pieces=1 << 30, seed=0):
        self.content = answers
        self.pieces = pieces
        self.rng = random.Random(seed)
        self.sent = b""

    def setsockopt(self, *arguments):
        pass

    def sendall(self, data):
        self.sent += bytes(data)

    def sendmsg(self, buffers):
        data = b"".join(buffers)
        size = min(len(data), self.rng.randint(1, self.pieces))
        self.sent += data[:size]
        return size

    def recv_into(self, view):
        if not self.content:
            raise TimeoutError
        size = min(len(view), len(self.content), self.rng.randint(1, self.pieces))
        view[:size] = self.content[:size]
        self.content = self.content[size:]
        return size

    def close(self):
        self.is_closed = True

    def setblocking(self, flag):
        self.may_wait = flag

    def settimeout(self, timeout_s):
        self.may_wait = True
        self.timeout_s = timeout_s

    def recv(self, size, flags):
        assert not self.may_wait
        if self.content is None:
            raise BlockingIOError
        return self.content[:size]


def answer(opaque, body=b"", flag=1):
    command = Command(0, opaque=opaque, flag=flag, body=body)
    return encode_frames([command])


def make_wire(monkeypatch, *answers, pieces=1 << 30, seed=0):
    fake = FakeSocket(b"".join(answers), pieces, seed)
    monkeypatch.setattr(wires.socket, "create_connection", lambda address, timeout: fake)
    return Wire("broker:1", Access("ns:1"))


@pytest.mark.parametrize("seed", range(5))
def test_answers_come_in_the_order_of_asking_in_whatever_pieces(monkeypatch, seed):
    bodies = {1: b"one" * 30_000, 2: b"", 3: b"three" * 100_000}
    order = [1, 2, 3]
    random.Random(seed).shuffle(order)
    wire = make_wire(
        monkeypatch, *(answer(number, bodies[number]) for number in order), pieces=50_000, seed=seed
    )
    for _ in bodies:
        wire.ask(11, {})
    for number in (1, 2, 3):
        assert bytes(wire.answer().body) == bodies[number]


@pytest.mark.parametrize("pieces", [5, 300, 100_000, 1 << 30])
@pytest.mark.parametrize("size", [0, 10, (64 << 10) - 1, 64 << 10, 200_000])
def test_a_request_is_one_frame_whatever_part_of_it_the_socket_takes(monkeypatch, pieces, size):
    wire = make_wire(monkeypatch, pieces=pieces, seed=size)
    body = random.Random(size).randbytes(size)
    wire.ask(320, {"b": "T"}, body)
    sent = Command.request(320, {"b": "T"}, body)
    sent.opaque = 1
    assert wire._socket.sent == encode_frames([sent])


def test_a_request_that_no_frame_can_hold_is_not_sent(monkeypatch):
    wire = make_wire(monkeypatch)
    with pytest.raises(LocalProtocolError, match="fit"):
        wire.ask(320, {}, bytes(16 << 20))
    assert not wire._socket.sent


def test_a_body_stays_good_while_the_next_request_goes_out(monkeypatch):
    wire = make_wire(monkeypatch, answer(1, b"a" * 200_000), answer(2, b"b" * 300_000))
    wire.ask(11, {})
    first = wire.answer()
    wire.ask(11, {})
    assert bytes(first.body) == b"a" * 200_000
    assert bytes(wire.answer().body) == b"b" * 300_000
    with pytest.raises(TypeError):
        first.body[0] = 0


def test_an_answer_may_name_the_ids_of_many_small_messages(monkeypatch):
    ids = ",".join(f"{number:032X}" for number in range(20_000))
    frame = encode_frames([Command(0, opaque=1, flag=1, fields={"msgId": ids}, body=b"b")])
    wire = make_wire(monkeypatch, frame)
    wire.ask(320, {})
    found = wire.answer()
    assert found.fields["msgId"] == ids
    assert bytes(found.body) == b"b"


def test_what_a_server_says_by_itself_is_passed_over(monkeypatch):
    wire = make_wire(monkeypatch, answer(1, b"notice", flag=0), answer(1, b"mine"))
    wire.ask(11, {})
    assert bytes(wire.answer().body) == b"mine"


@pytest.mark.parametrize(
    "frame",
    [
        b"\x7f\xff\xff\xff" + bytes(4),
        b"\xff\xff\xff\xff" + bytes(4),
        b"\x00\x00\x00\x10\x00\x00\xff\xff" + bytes(12),
        b"\x00\x00\x00\x08\x09\x00\x00\x04" + b"{}{}",
        b"\x00\x00\x00\x08\x00\x00\x00\x04" + b"nope",
    ],
    ids=["huge", "negative", "header beyond the frame", "unknown header", "no header"],
)
def test_what_is_no_frame_ends_the_connection(monkeypatch, frame):
    wire = make_wire(monkeypatch, frame)
    wire.ask(11, {})
    with pytest.raises(ConnectionLost, match="broker:1"):
        wire.answer()


def test_silence_is_not_waited_for(monkeypatch):
    wire = make_wire(monkeypatch)
    wire.ask(11, {})
    with pytest.raises(CallTimeout, match="no answer within 10000 ms"):
        wire.answer()


def test_a_server_that_has_hung_up_is_called_anew(monkeypatch):
    # As servers do to whoever is idle for two minutes; a stream may look once in an hour, and
    # retryMs=0 allows it no second try.
    cluster = Cluster(Access("ns:1", retry_ms=0))
    sockets = []

    def connect(address, timeout_s):
        sockets.append(FakeSocket(None))
        return sockets[-1]

    monkeypatch.setattr(wires.socket, "create_connection", connect)
    first = cluster.wire("broker:1")
    assert cluster.wire("broker:1") is first
    assert sockets[0].may_wait, "for what is asked"
    sockets[0].content = b"unasked"
    assert cluster.wire("broker:1") is first
    sockets[0].content = b""
    second = cluster.wire("broker:1")
    assert second is not first
    assert sockets[0].is_closed
    second.ask(1, {})
    sockets[1].content = b""
    assert cluster.wire("broker:1") is second, "its answer will tell"
    with pytest.raises(CallTimeout):
        second.answer()


@pytest.mark.parametrize(("timeout_ms", "connect_s"), [(600_000, 3.0), (100, 0.1)])
def test_a_machine_that_is_down_takes_less_than_a_request_may(monkeypatch, timeout_ms, connect_s):
    # Sinks ask all name servers, and give brokers minutes for a decision.
    given = []
    found = FakeSocket(b"")

    def connect(address, timeout_s):
        given.append(timeout_s)
        return found

    monkeypatch.setattr(wires.socket, "create_connection", connect)
    Wire("broker:1", Access("ns:1", timeout_ms=timeout_ms))
    assert given == [connect_s]
    assert found.timeout_s == timeout_ms / 1000


def test_an_address_that_is_none_cannot_be_reached():
    with pytest.raises(TransportError, match="cannot be reached"):
        Wire("broker:port", Access("ns:1"))
