"""What Raft members say, as bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import LocalProtocolError, RemoteProtocolError
from skylark.replication.raft_log import Chunk, Kind, Message
from skylark.replication.raft_wire import (
    FRAME_BYTES_MAX,
    MAGIC,
    NUMBER_MAX,
    PING,
    FrameDecoder,
    Hello,
    Welcome,
    acceptors_proof,
    connectors_proof,
    encode_message,
    is_proof,
    take_hello,
    take_proof,
    take_welcome,
)

HELLO = Hello(b"n" * 16, True, "group", "n0", "n1", ("n0", "n1", "n2"))
numbers = st.integers(0, NUMBER_MAX - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(Kind))
    term, at = draw(numbers), draw(st.integers(0, NUMBER_MAX // 2))
    data = draw(st.binary(max_size=50)) if kind is Kind.APPEND else b""
    chunk = Chunk(at, at + len(data), draw(st.integers(0, term)), data) if data else None
    flags = [draw(st.booleans()) for _ in range(4)]
    return Message(
        kind, "n0", "n1", term, at, draw(numbers), chunk, draw(numbers), *flags, draw(numbers)
    )


def encoded(message: Message) -> bytes:
    return b"".join(encode_message(message))


@given(st.lists(st.one_of(messages(), st.none()), max_size=5), st.integers(1, 40))
def test_messages_are_read_as_they_were_written_however_they_are_split(
    said: list[Message | None], step: int
) -> None:
    stream = b"".join(PING if message is None else encoded(message) for message in said)
    decoder = FrameDecoder("n0", "n1")
    heard: list[Message | None] = []
    for at in range(0, len(stream), step):
        heard += decoder.feed(stream[at : at + step])
    assert heard == said


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        heard = FrameDecoder("n0", "n1").feed(data)
    except RemoteProtocolError:
        return
    again = b"".join(PING if message is None else encoded(message) for message in heard)
    assert data.startswith(again)


SOUND = encoded(Message(Kind.VOTE, "n0", "n1", 1))


@pytest.mark.parametrize(
    "frame",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        bytes(4),
        b"\0\0\0\1\x09",
        b"\0\0\0\2\0\0",
        SOUND[:4] + b"\x7f" + SOUND[5:],
        SOUND[:5] + b"\xff" + SOUND[6:],
        SOUND[:6] + b"\xff" * 8 + SOUND[14:],
        (len(SOUND) - 3).to_bytes(4, "big") + SOUND[4:] + b"x",
        encoded(Message(Kind.APPEND, "n0", "n1", 1, 0, 0, Chunk(0, 1, 2, b"x"))),
    ],
    ids=["huge", "empty", "short", "long ping", "kind", "flags", "negative", "records", "term"],
)
def test_a_frame_that_no_member_sends_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder("n0", "n1").feed(frame)


def test_a_record_that_fits_in_no_frame_is_not_sent() -> None:
    data = memoryview(bytearray(FRAME_BYTES_MAX))
    with pytest.raises(LocalProtocolError, match="more than a frame takes"):
        encode_message(Message(Kind.APPEND, "n0", "n1", 1, 0, 0, Chunk(0, len(data), 1, data)))


@given(st.integers(1, 200))
def test_greetings_are_read_as_they_were_written(step: int) -> None:
    welcome = Welcome(b"w" * 16, problem="another group")
    stream = HELLO.encode()
    buffer = bytearray()
    for at in range(0, len(stream), step):
        buffer += stream[at : at + step]
        found = take_hello(buffer)
        assert (found is None) == (at + step < len(stream))
    assert found == HELLO
    buffer = bytearray(welcome.encode() + b"rest")
    assert take_welcome(buffer) == welcome
    assert buffer == b"rest"
    assert take_proof(bytearray(31)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        MAGIC + b"\0\2" + bytes(60),
        MAGIC + b"\0\1\1" + bytes(16) + b"\xff\xff",
        MAGIC + b"\0\1\1" + bytes(16) + b"\0\1x",
        MAGIC + b"\0\1\1" + bytes(16) + b"\0\2\xff\xff",
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        take_hello(bytearray(data))


def test_what_is_no_welcome_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        take_welcome(bytearray(b"SSH-2.0"))
    with pytest.raises(RemoteProtocolError):
        take_welcome(bytearray(MAGIC + b"\0\1\2" + bytes(60)))


@given(st.randoms(use_true_random=False))
def test_random_bytes_do_not_greet(rng: random.Random) -> None:
    for take in (take_hello, take_welcome):
        with pytest.raises(RemoteProtocolError):
            take(bytearray(b"x" + rng.randbytes(100)))


def test_a_proof_holds_for_one_conversation_and_one_direction() -> None:
    welcome = Welcome(b"w" * 16)
    ours = acceptors_proof(b"key", HELLO, welcome)
    assert is_proof(ours, acceptors_proof(b"key", HELLO, welcome))
    for other in (
        acceptors_proof(b"other", HELLO, welcome),
        acceptors_proof(b"key", HELLO._replace(nonce=b"m" * 16), welcome),
        acceptors_proof(b"key", HELLO._replace(source="n2"), welcome),
        acceptors_proof(b"key", HELLO, Welcome(b"v" * 16)),
        connectors_proof(b"key", HELLO, welcome),
    ):
        assert not is_proof(ours, other)


def test_names_that_do_not_fit_are_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        HELLO._replace(group="g" * 5_000).encode()
