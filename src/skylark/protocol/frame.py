"""Frames: where one command ends and the next begins.

    at   size           field
    0    4              length of all that follows
    4    1              serialization of the header: 0 JSON, 1 binary
    5    3              header length n
    8    n              header
    8+n  length-4-n     body; none when zero

The limits are checked on the first eight bytes, before anything is kept for the frame, so a peer
cannot make us set memory aside by announcing it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from ..errors import LocalProtocolError, RemoteProtocolError
from .command import Command
from .header_binary import decode_header_binary, encode_header_binary
from .header_json import decode_header_json, encode_header_json

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # RocketMQ peers close the connection above it.
HEADER_BYTES_MAX: Final = 64 * 1024
_PREFIX_BYTES: Final = 8
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How large a frame and its header may be; the frame is counted with its length field."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX


def decode_frames(
    data: bytes | bytearray, frame_bytes_max: int, header_bytes_max: int
) -> tuple[list[Command], int, RemoteProtocolError | None]:
    """Decode all complete frames at the start of data.

    Returns the commands, how many bytes they took, and what is wrong with the bytes after them, if
    anything is: the commands before a bad frame are still good.
    """
    commands: list[Command] = []
    at = 0
    size = len(data)
    try:
        while size - at >= _PREFIX_BYTES:
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            header_length = int.from_bytes(data[at + 5 : at + 8], "big")
            if length < _LENGTH_BYTES or length + _LENGTH_BYTES > frame_bytes_max:
                raise RemoteProtocolError(f"frame length {length} is not acceptable")
            if data[at + 4] > 1:
                raise RemoteProtocolError(f"header serialization {data[at + 4]} is unknown")
            if header_length > length - 4 or header_length > header_bytes_max:
                raise RemoteProtocolError(
                    f"header length {header_length} in a frame of length {length} is not acceptable"
                )
            end = at + _LENGTH_BYTES + length
            if end > size:
                break
            body_start = at + _PREFIX_BYTES + header_length
            header = bytes(data[at + _PREFIX_BYTES : body_start])
            command = _DECODERS[data[at + 4]](header)
            if body_start < end:
                command.body = bytes(data[body_start:end])
            commands.append(command)
            at = end
        else:
            # Fewer than eight bytes: refuse what can already be seen to be no frame.
            if size - at >= _LENGTH_BYTES:
                length = int.from_bytes(data[at : at + 4], "big", signed=True)
                if length < _LENGTH_BYTES or length + _LENGTH_BYTES > frame_bytes_max:
                    raise RemoteProtocolError(f"frame length {length} is not acceptable")
    except RemoteProtocolError as error:
        # Its traceback would keep all of data alive for as long as somebody keeps the error.
        return commands, at, error.with_traceback(None)
    return commands, at, None


def encode_frames(commands: list[Command]) -> bytes:
    """Encode commands back to back. Raises LocalProtocolError."""
    parts: list[bytes | memoryview] = []
    for command in commands:
        if command.serialization not in (0, 1):
            raise LocalProtocolError(f"header serialization {command.serialization} is unknown")
        header = _ENCODERS[command.serialization](command)
        length = 4 + len(header) + len(command.body)
        if length + _LENGTH_BYTES > FRAME_BYTES_MAX:
            raise LocalProtocolError(f"frame of {length + 4} bytes; at most {FRAME_BYTES_MAX} fit")
        parts.append(length.to_bytes(4, "big"))
        parts.append((command.serialization << 24 | len(header)).to_bytes(4, "big"))
        parts.append(header)
        if command.body:
            parts.append(command.body)
    return b"".join(parts)


_DECODERS: Final = (decode_header_json, decode_header_binary)
_ENCODERS: Final = (encode_header_json, encode_header_binary)

pure_decode_frames = decode_frames
pure_encode_frames = encode_frames
IMPLEMENTATION = "pure"

if os.environ.get("SKYLARK_PURE") != "1":
    try:
        from ._frame import decode_frames, encode_frames
    except ImportError:
        pass
    else:
        IMPLEMENTATION = "compiled"


class FrameDecoder:
    """Feed it bytes as they come; it gives back the commands that are complete.

    Once `error` is set the stream has no meaning any more and feed() gives nothing.
    """

    __slots__ = ("_limits", "_rest", "_wanted", "error")

    def __init__(self, limits: FrameLimits = FrameLimits()) -> None:
        self._limits = limits
        self._rest = bytearray()
        self._wanted = 0  # With fewer bytes than this in hand no further frame can be complete.
        self.error: RemoteProtocolError | None = None

    @property
    def limits(self) -> FrameLimits:
        """The limits in force; they may be widened once a peer is known."""
        return self._limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._limits = limits

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is in hand."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Command]:
        """Take the next bytes of the stream and return the commands they complete."""
        if self.error is not None:
            return []
        rest = self._rest
        buffer: bytes | bytearray = data
        if rest:
            rest += data
            if len(rest) < self._wanted:
                return []
            buffer = rest
        limits = self._limits
        commands, used, self.error = decode_frames(
            buffer, limits.frame_bytes_max, limits.header_bytes_max
        )
        if self.error is not None:
            self._rest = bytearray()
        elif used == len(buffer):
            if rest:
                self._rest = bytearray()
        else:
            self._keep(buffer, used)
        return commands

    def _keep(self, buffer: bytes | bytearray, used: int) -> None:
        # A large body arrives in many pieces: knowing how much is wanted keeps each piece cheap.
        if buffer is self._rest:
            del self._rest[:used]
        else:
            self._rest = bytearray(memoryview(buffer)[used:])
        rest = self._rest
        self._wanted = _PREFIX_BYTES
        if len(rest) >= _PREFIX_BYTES:
            self._wanted = _LENGTH_BYTES + int.from_bytes(rest[:4], "big")
