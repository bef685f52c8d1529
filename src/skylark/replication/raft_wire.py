"""What Raft members say, as bytes; see docs/formats/raft.md.

    who connects → the other    hello      magic, version, has key, nonce, text: group, ids
    the other → who connects    welcome    magic, version, status, nonce, proof, text: why not
    who connects → the other    proof      then frames: length, kind, flags, numbers, records

A frame says nothing of who sends it: the connection does.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError
from .raft_log import Chunk, Kind, Message

MAGIC: Final = b"SKYRFT"
VERSION: Final = 1
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
TEXT_BYTES_MAX: Final = 4_096
FRAME_BYTES_MAX: Final = 64 << 20
NUMBER_MAX: Final = 1 << 62

_HELLO: Final = struct.Struct(f">6sHB{NONCE_BYTES}sH")
_WELCOME: Final = struct.Struct(f">6sHB{NONCE_BYTES}s")
_LENGTH: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_HEAD: Final = struct.Struct(">BBqqqqqq")
HEAD_BYTES: Final = _HEAD.size
PING: Final = _LENGTH.pack(1) + b"\0"

_OK, _TRANSFER, _VOTER, _BASE, _RECORDS = 1, 2, 4, 8, 16
_FLAGS_ALL = 31
_KINDS = {kind.value: kind for kind in Kind}


class Hello(NamedTuple):
    """What a member says of itself when it connects."""

    nonce: bytes
    has_key: bool
    group: str
    source: str
    target: str
    members: tuple[str, ...]

    def encode(self) -> bytes:
        """The bytes."""
        text = "\n".join((self.group, self.source, self.target, ";".join(self.members))).encode()
        if len(text) > TEXT_BYTES_MAX:
            raise LocalProtocolError(f"group and members take {len(text)} bytes")
        return _HELLO.pack(MAGIC, VERSION, self.has_key, self.nonce, len(text)) + text


class Welcome(NamedTuple):
    """The answer to a hello; with a problem it is a refusal."""

    nonce: bytes
    proof: bytes = bytes(PROOF_BYTES)
    problem: str = ""

    @property
    def head(self) -> bytes:
        """What the proofs cover."""
        return _WELCOME.pack(MAGIC, VERSION, bool(self.problem), self.nonce)

    def encode(self) -> bytes:
        """The bytes."""
        text = self.problem.encode()[:TEXT_BYTES_MAX]
        return self.head + self.proof + _SHORT.pack(len(text)) + text


def acceptors_proof(key: bytes, hello: Hello, welcome: Welcome) -> bytes:
    """What only one with the key can answer to this hello."""
    return hmac.digest(key, b"accept" + hello.encode() + welcome.head, hashlib.sha256)


def connectors_proof(key: bytes, hello: Hello, welcome: Welcome) -> bytes:
    """What only one with the key can answer to this welcome."""
    return hmac.digest(key, b"connect" + hello.encode() + welcome.head, hashlib.sha256)


def is_proof(given: bytes, wanted: bytes) -> bool:
    """Compare without telling how much of it was right."""
    return hmac.compare_digest(given, wanted)


def take_hello(buffer: bytearray) -> Hello | None:
    """Take a hello off the front; None while it is not complete; raises RemoteProtocolError."""
    _require_magic(buffer)
    if len(buffer) < _HELLO.size:
        return None
    _, version, has_key, nonce, size = _HELLO.unpack_from(buffer)
    if version != VERSION or has_key > 1 or size > TEXT_BYTES_MAX:
        raise RemoteProtocolError(f"a hello of version {version}, {size} bytes")
    if len(buffer) < _HELLO.size + size:
        return None
    text = bytes(buffer[_HELLO.size : _HELLO.size + size])
    del buffer[: _HELLO.size + size]
    try:
        group, source, target, members = text.decode().split("\n")
    except ValueError:
        raise RemoteProtocolError("a hello that does not name group, ids and members") from None
    return Hello(nonce, bool(has_key), group, source, target, tuple(members.split(";")))


def take_welcome(buffer: bytearray) -> Welcome | None:
    """Take a welcome off the front; as take_hello."""
    _require_magic(buffer)
    whole = _WELCOME.size + PROOF_BYTES + _SHORT.size
    if len(buffer) < whole:
        return None
    _, version, status, nonce = _WELCOME.unpack_from(buffer)
    size = _SHORT.unpack_from(buffer, whole - _SHORT.size)[0]
    if version != VERSION or status > 1 or size > TEXT_BYTES_MAX or bool(size) != bool(status):
        raise RemoteProtocolError(f"a welcome of version {version}, status {status}, {size} bytes")
    if len(buffer) < whole + size:
        return None
    proof = bytes(buffer[_WELCOME.size : _WELCOME.size + PROOF_BYTES])
    text = bytes(buffer[whole : whole + size])
    del buffer[: whole + size]
    return Welcome(nonce, proof, text.decode(errors="replace"))


def take_proof(buffer: bytearray) -> bytes | None:
    """Take a proof off the front; None while it is not complete."""
    if len(buffer) < PROOF_BYTES:
        return None
    proof = bytes(buffer[:PROOF_BYTES])
    del buffer[:PROOF_BYTES]
    return proof


def _require_magic(buffer: bytearray) -> None:
    if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
        raise RemoteProtocolError("it does not greet as a member of a Raft group does")


def encode_message(message: Message) -> tuple[bytes, bytes | memoryview]:
    """The head of a frame, and the records behind it."""
    chunk = message.chunk
    data: bytes | memoryview = b"" if chunk is None else chunk.data
    assert chunk is None or chunk.start == message.at
    flags = (
        message.ok * _OK
        | message.is_transfer * _TRANSFER
        | message.is_voter * _VOTER
        | message.is_base * _BASE
        | (chunk is not None) * _RECORDS
    )
    size = HEAD_BYTES + len(data)
    if size > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a record of {len(data)} bytes is more than a frame takes")
    head = _LENGTH.pack(size) + _HEAD.pack(
        message.kind.value,
        flags,
        message.term,
        message.at,
        message.log_term,
        message.commit,
        message.beat,
        0 if chunk is None else chunk.term,
    )
    return head, data


class FrameDecoder:
    """Takes the bytes of one member in any pieces, gives back what it said."""

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._buffer = bytearray()
        self._wanted = _LENGTH.size

    def feed(self, data: bytes) -> list[Message | None]:
        """The messages that are complete now, None for a ping; raises RemoteProtocolError."""
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._wanted:
            return []
        messages: list[Message | None] = []
        at = 0
        self._wanted = _LENGTH.size
        while len(buffer) - at >= _LENGTH.size:
            size = _LENGTH.unpack_from(buffer, at)[0]
            if not 0 < size <= FRAME_BYTES_MAX:
                raise RemoteProtocolError(f"a frame of {size} bytes")
            end = at + _LENGTH.size + size
            if len(buffer) < end:
                self._wanted = end - at
                break
            messages.append(self._decode(buffer, at + _LENGTH.size, end))
            at = end
        if at:
            del buffer[:at]
        return messages

    def _decode(self, buffer: bytearray, at: int, end: int) -> Message | None:
        if buffer[at] == 0 and end - at == 1:
            return None
        kind = _KINDS.get(buffer[at])
        if kind is None or end - at < HEAD_BYTES:
            raise RemoteProtocolError(f"a frame of kind {buffer[at]} with {end - at} bytes")
        _, flags, term, position, log_term, commit, beat, chunk_term = _HEAD.unpack_from(buffer, at)
        numbers = (term, position, log_term, commit, beat, chunk_term)
        if not 0 <= min(numbers) <= max(numbers) < NUMBER_MAX or flags > _FLAGS_ALL:
            raise RemoteProtocolError(f"a {kind.name} with numbers that no member has")
        data = bytes(memoryview(buffer)[at + HEAD_BYTES : end])
        has_records = bool(flags & _RECORDS)
        is_odd = kind is not Kind.APPEND or chunk_term > term if data else chunk_term > 0
        if has_records != bool(data) or is_odd:
            raise RemoteProtocolError(f"a {kind.name} with {len(data)} bytes of term {chunk_term}")
        chunk = Chunk(position, position + len(data), chunk_term, data) if data else None
        return Message(
            kind,
            self._source,
            self._target,
            term,
            position,
            log_term,
            chunk,
            commit,
            ok=bool(flags & _OK),
            is_transfer=bool(flags & _TRANSFER),
            is_voter=bool(flags & _VOTER),
            is_base=bool(flags & _BASE),
            beat=beat,
        )
