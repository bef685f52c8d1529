"""The HA stream as bytes: RocketMQ's pushes and reports, and our greeting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import LocalProtocolError, RemoteProtocolError
from skylark.replication.stream import (
    MAGIC,
    PUSH_BYTES_MAX,
    Hello,
    Push,
    PushDecoder,
    ReportDecoder,
    Welcome,
    encode_push,
    encode_report,
    is_proof,
    masters_proof,
    replicas_proof,
    take_hello,
    take_proof,
    take_welcome,
)

HELLO = Hello(b"n" * 16, 7, "DefaultCluster/broker-a")
WELCOME = Welcome(b"m" * 16, 8, 2**64 - 1, 4096, 0, 8192)


def test_bytes_are_those_of_rocketmq() -> None:
    """Captured between two brokers of 4.9.8 with files of 1 KiB."""
    assert encode_report(0).hex() == "0000000000000000"
    assert encode_report(0x73E).hex() == "000000000000073e"
    assert encode_push(0x400, b"x" * 830)[:12].hex() == "00000000000004000000033e"
    assert encode_push(0x87D).hex() == "000000000000087d00000000"


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=50)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_pushes_come_out_whole_however_the_bytes_are_cut(
    pushes: list[tuple[int, bytes]], rng: random.Random
) -> None:
    data = b"".join(encode_push(offset, content) for offset, content in pushes)
    decoder, got = PushDecoder(), []
    while data:
        size = rng.randint(1, len(data))
        got += decoder.feed(data[:size])
        data = data[size:]
    assert got == [Push(*push) for push in pushes]


@given(st.lists(st.integers(0, 2**62), max_size=8), st.integers(1, 20))
def test_reports_come_out_whole_however_the_bytes_are_cut(reports: list[int], step: int) -> None:
    data = b"".join(map(encode_report, reports))
    decoder, got = ReportDecoder(), []
    for at in range(0, len(data), step):
        got += decoder.feed(data[at : at + step])
    assert got == reports


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 12,
        (1).to_bytes(8, "big") + (PUSH_BYTES_MAX + 1).to_bytes(4, "big"),
        (1).to_bytes(8, "big") + b"\xff\xff\xff\xff",
    ],
)
def test_a_push_that_no_master_sends_is_refused_before_it_is_waited_for(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        PushDecoder().feed(data)


def test_a_report_below_zero_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportDecoder().feed(b"\xff" * 8)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_greetings_come_out_whole_however_the_bytes_are_cut(step: int) -> None:
    proof = masters_proof(b"key", HELLO, WELCOME)
    for data, take, wanted in (
        (HELLO.encode(), take_hello, HELLO),
        (WELCOME.encode() + proof, take_welcome, (WELCOME, proof)),
        (proof, take_proof, proof),
    ):
        buffer = bytearray()
        for at in range(0, len(data), step):
            assert take(bytearray(buffer)) is None  # type: ignore[operator]
            buffer += data[at : at + step]
        buffer += b"rest"
        assert take(buffer) == wanted  # type: ignore[operator]
        assert buffer == b"rest"


@pytest.mark.parametrize(
    "data",
    [
        encode_report(0),
        b"GET / HTTP",
        MAGIC + b"\x00\x02" + b"n" * 16 + b"\x00" * 10,
        MAGIC + b"\x00\x01" + b"n" * 16 + b"\xff" * 10,
        MAGIC + b"\x00\x01" + b"n" * 16 + b"\x00" * 8 + b"\x00\x02\xff\xfe",
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        take_hello(bytearray(data))


def test_what_is_no_welcome_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        take_welcome(bytearray(encode_push(0, b"x")))
    with pytest.raises(RemoteProtocolError):
        take_welcome(bytearray(MAGIC + b"\x00\x09" + b"\x00" * 200))


def test_a_name_that_is_too_long_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        Hello(b"n" * 16, 1, "x" * 2000).encode()


def test_a_proof_holds_for_one_key_one_side_and_one_conversation() -> None:
    proof = replicas_proof(b"key", HELLO, WELCOME)
    assert is_proof(proof, replicas_proof(b"key", HELLO, WELCOME))
    others = [
        replicas_proof(b"other", HELLO, WELCOME),
        masters_proof(b"key", HELLO, WELCOME),
        replicas_proof(b"key", HELLO._replace(nonce=b"o" * 16), WELCOME),
        replicas_proof(b"key", HELLO, WELCOME._replace(nonce=b"o" * 16)),
        replicas_proof(b"key", HELLO._replace(epoch=9), WELCOME),
        replicas_proof(b"key", HELLO, WELCOME._replace(epoch=9)),
        replicas_proof(b"key", HELLO._replace(group="Other/broker-a"), WELCOME),
    ]
    assert not any(is_proof(proof, other) for other in others)
