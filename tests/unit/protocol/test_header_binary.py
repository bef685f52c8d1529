"""The binary header: its lengths add up exactly, or it is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from skylark.errors import LocalProtocolError, RemoteProtocolError
from skylark.protocol import frame
from skylark.protocol.codes import Language, Serialization
from skylark.protocol.command import Command
from skylark.protocol.header_binary import decode_header_binary, encode_header_binary

Decode = Callable[[bytes], Command]


@pytest.fixture(params=["alone", "pure", "compiled"])
def decode(request: pytest.FixtureRequest) -> Decode:
    if request.param == "alone":
        return decode_header_binary
    decode_frames = frame.pure_decode_frames
    if request.param == "compiled":
        decode_frames = pytest.importorskip("skylark.protocol._frame").decode_frames

    def through_frames(header: bytes) -> Command:
        size = len(header).to_bytes(3, "big")
        data = (len(header) + 4).to_bytes(4, "big") + b"\1" + size + header
        commands, _, error = decode_frames(data, 2**24, 2**24)
        if error is not None:
            raise error
        return commands[0]

    return through_frames


FIXED = struct.pack(">hBhii", 105, 0, 409, 7, 0)


def text(value: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(value) if size is None else size) + value


def entry(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + text(value)


def test_the_smallest_header_is_the_fixed_part_and_two_zero_lengths(decode: Decode) -> None:
    assert decode(FIXED + text(b"") + text(b"")) == Command(
        code=105, opaque=7, language=Language.JAVA, serialization=Serialization.ROCKETMQ
    )


def test_signed_numbers_keep_their_sign(decode: Decode) -> None:
    fixed = struct.pack(">hBhii", -1, 9, -2, -3, -4)
    command = decode(fixed + text(b"") + text(b""))
    numbers = (command.code, command.language, command.version, command.opaque, command.flag)
    assert numbers == (-1, Language.GO, -2, -3, -4)
    assert encode_header_binary(command) == fixed + text(b"") + text(b"")


def test_an_unknown_language_is_other(decode: Decode) -> None:
    fixed = struct.pack(">hBhii", 105, 200, 409, 7, 0)
    assert decode(fixed + text(b"") + text(b"")).language == Language.OTHER


def test_an_empty_value_is_no_entry_as_in_java(decode: Decode) -> None:
    fields = entry(b"a", b"") + entry(b"", b"x") + entry(b"b", b"1")
    assert decode(FIXED + text(b"") + text(fields)).fields == {"b": "1"}


def test_remark_and_fields_are_utf_8(decode: Decode) -> None:
    command = Command(
        code=1, remark="zurück 😀", fields={"名": "值"}, serialization=Serialization.ROCKETMQ
    )
    assert decode(encode_header_binary(command)) == command


GOOD_FIELDS = entry(b"topic", b"T")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "ends in the middle"),
        (FIXED, "ends in the middle"),
        (FIXED[:12], "ends in the middle"),
        (FIXED + text(b""), "ends in the middle"),
        (FIXED + b"\0\0\0", "ends in the middle"),
        (FIXED + text(b"", -1) + text(b""), "text of -1 bytes"),
        (FIXED + text(b"", 2**31 - 1) + text(b""), "text of 2147483647 bytes"),
        (FIXED + text(b"", -(2**31)) + text(b""), "text of -2147483648 bytes"),
        (FIXED + text(b"no", 3), "text of 3 bytes where 2 are left"),
        (FIXED + text(b"no", 6) + text(b""), "ends in the middle"),  # It runs over the next length.
        (FIXED + text(b"") + text(GOOD_FIELDS, -1), "fields of -1 bytes"),
        (FIXED + text(b"") + text(GOOD_FIELDS, 11), "fields of 11 bytes where 12 are left"),
        (FIXED + text(b"") + text(GOOD_FIELDS, 13), "fields of 13 bytes where 12 are left"),
        (FIXED + text(b"") + text(GOOD_FIELDS) + b"\0", "fields of 12 bytes where 13 are left"),
        (FIXED + text(b"") + text(b"\xff\xff" + b"x" * 9), "text of -1 bytes"),
        (FIXED + text(b"") + text(b"\x7f\xff" + b"x" * 9), "text of 32767 bytes"),
        (FIXED + text(b"") + text(b"\0\1a" + text(b"", -5)), "text of -5 bytes"),
        (FIXED + text(b"") + text(b"\0\1a" + text(b"x", 2)), "text of 2 bytes where 1 are left"),
        (FIXED + text(b"") + text(b"\0\1a\0\0"), "ends in the middle"),
        (FIXED + text(b"") + text(b"\0"), "ends in the middle"),
        (FIXED + text(b"") + text(GOOD_FIELDS * 2), "duplicate"),
        (FIXED + text(b"") + text(entry(b"a", b"") + entry(b"a", b"1")), "duplicate"),
        (FIXED + text(b"\xff") + text(b""), "not UTF-8"),
        (FIXED + text(b"\xed\xa0\x80") + text(b""), "not UTF-8"),
        (FIXED + text(b"") + text(entry(b"\xff", b"x")), "not UTF-8"),
        (FIXED + text(b"") + text(entry(b"x", b"\xc0\x80")), "not UTF-8"),
    ],
)
def test_lengths_that_lie_are_refused(decode: Decode, header: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        decode(header)


def test_every_cut_of_a_good_header_is_refused(decode: Decode) -> None:
    header = FIXED + text(b"why") + text(GOOD_FIELDS + entry(b"n", b"12"))
    for size in range(len(header)):
        with pytest.raises(RemoteProtocolError):
            decode(header[:size])


@pytest.mark.parametrize("code", [200050, 32768, -32769])
def test_a_code_of_more_than_16_bits_cannot_be_written(code: int) -> None:
    with pytest.raises(LocalProtocolError, match="binary form"):
        encode_header_binary(Command(code=code))
