"""Frames, on the pure and the compiled path alike: the same bytes, commands and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from skylark.errors import LocalProtocolError, RemoteProtocolError
from skylark.protocol import frame
from skylark.protocol.codes import Language, Serialization
from skylark.protocol.command import Command
from skylark.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameDecoder, FrameLimits

Decode = Callable[[bytes, int, int], tuple[list[Command], int, RemoteProtocolError | None]]
Encode = Callable[[list[Command]], bytes]


@dataclass(frozen=True)
class Codec:
    decode_frames: Decode
    encode_frames: Encode

    def decode(self, data: bytes) -> list[Command]:
        """Decode bytes that hold whole, good frames only."""
        commands, used, error = self.decode_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        assert error is None
        assert used == len(data)
        return commands

    def refusal(self, data: bytes) -> str:
        """Decode bytes that hold no good frame; return what is wrong with them."""
        commands, used, error = self.decode_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        assert commands == []
        assert used == 0
        assert error is not None
        return str(error)


@pytest.fixture(params=["pure", "compiled"])
def codec(request: pytest.FixtureRequest) -> Codec:
    if request.param == "pure":
        return Codec(frame.pure_decode_frames, frame.pure_encode_frames)
    compiled = pytest.importorskip("skylark.protocol._frame")
    return Codec(compiled.decode_frames, compiled.encode_frames)


# The worked examples of the protocol description, captured from Java 4.9.8.
JSON_ROUTE_REQUEST = (
    bytes.fromhex("0000007f0000007b")
    + b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)
BINARY_ROUTE_REQUEST = bytes.fromhex(
    "00000025 01000021 0069 00 0199 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54"
)
BINARY_RESPONSE = bytes.fromhex(
    "0000001d 01000017 0011 00 0199 00000007 00000001 00000002 6e6f 00000000 0102"
)
ROUTE_REQUEST = Command(code=105, opaque=7, fields={"topic": "T"}, language=Language.JAVA)
ROUTE_REQUEST_BINARY = Command(
    code=105,
    opaque=7,
    fields={"topic": "T"},
    language=Language.JAVA,
    serialization=Serialization.ROCKETMQ,
)
RESPONSE_BINARY = Command(
    code=17,
    opaque=7,
    flag=1,
    remark="no",
    body=b"\x01\x02",
    language=Language.JAVA,
    serialization=Serialization.ROCKETMQ,
)
GOLDEN = pytest.mark.parametrize(
    ("data", "command"),
    [
        pytest.param(JSON_ROUTE_REQUEST, ROUTE_REQUEST, id="json request"),
        pytest.param(BINARY_ROUTE_REQUEST, ROUTE_REQUEST_BINARY, id="binary request"),
        pytest.param(BINARY_RESPONSE, RESPONSE_BINARY, id="binary response"),
    ],
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    """A frame around any bytes that claim to be a JSON header."""
    return raw_frame(0, header, body)


def raw_frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    length = 4 + len(header) + len(body)
    return (
        length.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header + body
    )


@GOLDEN
def test_a_worked_example_decodes_to_what_it_means(
    codec: Codec, data: bytes, command: Command
) -> None:
    assert codec.decode(data) == [command]


@GOLDEN
def test_a_worked_example_is_what_we_write(codec: Codec, data: bytes, command: Command) -> None:
    assert codec.encode_frames([command]) == data


def test_the_worked_example_has_the_size_that_was_captured() -> None:
    assert len(JSON_ROUTE_REQUEST) == 131


def test_all_frames_of_one_read_come_out_in_order(codec: Codec) -> None:
    data = JSON_ROUTE_REQUEST + BINARY_RESPONSE + BINARY_ROUTE_REQUEST
    assert codec.decode(data) == [ROUTE_REQUEST, RESPONSE_BINARY, ROUTE_REQUEST_BINARY]
    commands = [ROUTE_REQUEST, RESPONSE_BINARY, ROUTE_REQUEST_BINARY]
    assert codec.encode_frames(commands) == data


@pytest.mark.parametrize("size", range(len(BINARY_RESPONSE)))
def test_an_unfinished_frame_is_no_command_yet(codec: Codec, size: int) -> None:
    data = JSON_ROUTE_REQUEST + BINARY_RESPONSE[:size]
    commands, used, error = codec.decode_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
    assert commands == [ROUTE_REQUEST]
    assert used == len(JSON_ROUTE_REQUEST)
    assert error is None


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(2**31), 2**31 - 1, 0x16030100])
@pytest.mark.parametrize("seen", [4, 7, 8, 64])
def test_a_length_that_lies_is_refused_as_soon_as_it_is_seen(
    codec: Codec, length: int, seen: int
) -> None:
    data = (length.to_bytes(4, "big", signed=True) + bytes(60))[:seen]
    assert codec.refusal(data) == f"frame length {length} is not acceptable"


def test_the_largest_frame_is_taken_and_one_byte_more_is_not(codec: Codec) -> None:
    header = b'{"code":1}'
    largest = json_frame(header, bytes(FRAME_BYTES_MAX - 8 - len(header)))
    assert len(largest) == FRAME_BYTES_MAX
    assert len(codec.decode(largest)[0].body) == FRAME_BYTES_MAX - 18
    length = FRAME_BYTES_MAX - 3
    assert codec.refusal(length.to_bytes(4, "big")) == f"frame length {length} is not acceptable"


@pytest.mark.parametrize("kind", [2, 3, 0x16, 127, 128, 255])
def test_an_unknown_serialization_is_refused_before_its_header_arrives(
    codec: Codec, kind: int
) -> None:
    data = (100).to_bytes(4, "big") + bytes([kind, 0, 0, 10])
    assert codec.refusal(data) == f"header serialization {kind} is unknown"


@pytest.mark.parametrize("header_length", [13, 96, 2**24 - 1])
def test_a_header_longer_than_its_frame_is_refused(codec: Codec, header_length: int) -> None:
    data = (16).to_bytes(4, "big") + bytes([0]) + header_length.to_bytes(3, "big")
    assert "header length" in codec.refusal(data)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_header_over_the_limit_is_refused_before_it_arrives(codec: Codec, kind: int) -> None:
    size = HEADER_BYTES_MAX + 1
    data = (size + 4).to_bytes(4, "big") + bytes([kind]) + size.to_bytes(3, "big")
    assert "header length" in codec.refusal(data)


def test_a_header_at_the_limit_is_read(codec: Codec) -> None:
    empty = b'{"code":1,"remark":""}'
    remark = b"x" * (HEADER_BYTES_MAX - len(empty))
    header = b'{"code":1,"remark":"' + remark + b'"}'
    assert len(header) == HEADER_BYTES_MAX
    assert codec.decode(json_frame(header))[0].remark == remark.decode()


def test_frames_before_a_bad_one_are_still_good(codec: Codec) -> None:
    data = JSON_ROUTE_REQUEST + BINARY_RESPONSE + json_frame(b"nonsense") + JSON_ROUTE_REQUEST
    commands, used, error = codec.decode_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
    assert commands == [ROUTE_REQUEST, RESPONSE_BINARY]
    assert used == len(JSON_ROUTE_REQUEST) + len(BINARY_RESPONSE)
    assert error is not None


def test_a_frame_without_a_header_is_refused(codec: Codec) -> None:
    assert "JSON" in codec.refusal(raw_frame(0, b""))
    assert "header" in codec.refusal(raw_frame(1, b""))


def test_bytes_and_bytearrays_read_alike(codec: Codec) -> None:
    data = bytearray(JSON_ROUTE_REQUEST + BINARY_RESPONSE)
    commands = codec.decode(data)  # type: ignore[arg-type]
    data[:] = bytes(len(data))  # What was decoded must not depend on the buffer any more.
    assert commands == [ROUTE_REQUEST, RESPONSE_BINARY]
    assert type(commands[1].body) is bytes


@pytest.mark.parametrize(
    "body", [b"abc", memoryview(b"abc"), memoryview(b"xabcx")[1:4], memoryview(bytearray(b"abc"))]
)
def test_a_body_may_be_a_view(codec: Codec, body: bytes | memoryview) -> None:
    data = codec.encode_frames([Command(code=1, body=body)])
    assert codec.decode(data)[0].body == b"abc"


def test_a_frame_beyond_the_limit_is_our_mistake(codec: Codec) -> None:
    with pytest.raises(LocalProtocolError, match="at most 16777216 fit"):
        codec.encode_frames([Command(code=1, body=bytes(FRAME_BYTES_MAX))])


@pytest.mark.parametrize(
    "command",
    [
        Command(code=1, fields={"a": "\ud800"}),
        Command(code=1, fields={"\udfff": "a"}),
        Command(code=1, remark="\ud800"),
        Command(code=1, remark="\ud800", serialization=1),
        Command(code=1, fields={"a": "\ud800"}, serialization=1),
        Command(code=1, fields={"a": b"x"}),  # type: ignore[dict-item]
        Command(code=1, fields={"a": 1}, serialization=1),  # type: ignore[dict-item]
        Command(code=200050, serialization=1),
        Command(code=1, opaque=2**31, serialization=1),
        Command(code=1, fields={"a" * 40_000: "x"}, serialization=1),
        Command(code=1, serialization=2),
        Command(code=1, language=256, serialization=1),
    ],
)
def test_what_the_protocol_cannot_carry_is_our_mistake(codec: Codec, command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode_frames([command])


def test_a_command_that_cannot_be_written_leaves_the_others_alone(codec: Codec) -> None:
    bad = Command(code=1, remark="\ud800")
    with pytest.raises(LocalProtocolError):
        codec.encode_frames([ROUTE_REQUEST, bad])
    assert codec.encode_frames([ROUTE_REQUEST]) == JSON_ROUTE_REQUEST


def test_nothing_encodes_to_nothing(codec: Codec) -> None:
    assert codec.encode_frames([]) == b""
    assert codec.decode(b"") == []


def test_thousands_of_frames_fit_one_call(codec: Codec) -> None:
    commands = [Command(code=n, opaque=n, fields={"k": "v" * (n % 97)}) for n in range(3000)]
    assert codec.decode(codec.encode_frames(commands)) == commands


class TestFrameDecoder:
    def test_bytes_one_by_one_give_the_same_commands(self) -> None:
        decoder = FrameDecoder()
        commands = []
        for byte in JSON_ROUTE_REQUEST + BINARY_RESPONSE:
            commands += decoder.feed(bytes([byte]))
        assert commands == [ROUTE_REQUEST, RESPONSE_BINARY]
        assert decoder.held_bytes == 0
        assert decoder.error is None

    def test_it_holds_what_is_unfinished_and_no_more(self) -> None:
        decoder = FrameDecoder()
        decoder.feed(JSON_ROUTE_REQUEST * 100 + JSON_ROUTE_REQUEST[:50])
        assert decoder.held_bytes == 50

    def test_an_announced_size_takes_no_memory(self) -> None:
        decoder = FrameDecoder()
        assert decoder.feed((FRAME_BYTES_MAX - 4).to_bytes(4, "big") + b"\0\0\0\x40") == []
        assert decoder.held_bytes == 8

    def test_nothing_comes_out_after_an_error(self) -> None:
        decoder = FrameDecoder()
        assert decoder.feed(JSON_ROUTE_REQUEST + bytes(8) + JSON_ROUTE_REQUEST) == [ROUTE_REQUEST]
        assert decoder.error is not None
        first = decoder.error
        assert decoder.feed(JSON_ROUTE_REQUEST) == []
        assert decoder.error is first
        assert decoder.held_bytes == 0

    def test_an_error_does_not_keep_the_bytes_alive(self) -> None:
        decoder = FrameDecoder()
        decoder.feed(bytes(8))
        assert decoder.error is not None
        assert decoder.error.__traceback__ is None

    def test_limits_can_be_widened_once_the_peer_is_known(self) -> None:
        decoder = FrameDecoder(FrameLimits(frame_bytes_max=200))
        big = json_frame(b'{"code":1}', bytes(300))
        assert decoder.feed(JSON_ROUTE_REQUEST) == [ROUTE_REQUEST]
        decoder.limits = FrameLimits()
        assert len(decoder.feed(big)[0].body) == 300

    def test_a_smaller_limit_refuses(self) -> None:
        decoder = FrameDecoder(FrameLimits(frame_bytes_max=200))
        assert decoder.feed(json_frame(b'{"code":1}', bytes(300))) == []
        assert "frame length" in str(decoder.error)

    def test_a_large_body_in_small_pieces_stays_cheap(self) -> None:
        # Quadratic work would take minutes here: 64 KiB pieces of 16 MiB, copied each time.
        data = json_frame(b'{"code":1}', bytes(FRAME_BYTES_MAX - 18))
        decoder = FrameDecoder()
        calls = 0
        for at in range(0, len(data), 1024):
            commands = decoder.feed(data[at : at + 1024])
            calls += len(commands)
        assert calls == 1
        assert decoder.held_bytes == 0
