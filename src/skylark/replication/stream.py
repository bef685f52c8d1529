"""The HA stream as bytes: pushes down, reports up; see docs/formats/replication.md.

    master → replica    push, big-endian                 replica → master    report, big-endian
    at   size  field                                     at   size  field
    0    8     physical offset of the first byte         0    8     where the replica's log ends:
    8    4     size; 0 is a heartbeat                               at first what it asks for, then
    12   size  bytes of the commit log                              what it has

That is RocketMQ's stream, without a handshake, which either side speaks to a RocketMQ broker. With
a cluster key three more messages go first, so that nobody without the key is ever believed:

    replica → master    hello      magic, version, nonce, epoch, text: cluster, broker name
    master → replica    welcome    magic, version, nonce, epoch, its mark, its start, its end, proof
    replica → master    proof      HMAC-SHA256 over hello and welcome

Both proofs cover both nonces, so that a recorded conversation is worth nothing later.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError

PUSH: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")
assert PUSH.size == 12  # RocketMQ's brokers depend on both.
assert REPORT.size == 8

# RocketMQ's masters send 32 KiB at a time and may be told otherwise; nothing is set aside for a
# push before its bytes are there.
PUSH_BYTES_MAX: Final = 16 << 20
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
TEXT_BYTES_MAX: Final = 1024
VERSION: Final = 1

# As the first bytes of a report it would be an offset of six exabytes, which no log has.
MAGIC: Final = b"SKYHA\x00"
_HELLO: Final = struct.Struct(f">6sH{NONCE_BYTES}sqH")
_WELCOME: Final = struct.Struct(f">6sH{NONCE_BYTES}sqQqqq")


class Push(NamedTuple):
    """A piece of the master's log; without data it is a heartbeat."""

    offset: int
    data: bytes


class Hello(NamedTuple):
    """What a replica says of itself."""

    nonce: bytes
    epoch: int
    group: str  # cluster and broker name

    def encode(self) -> bytes:
        """The bytes."""
        text = self.group.encode()
        if len(text) > TEXT_BYTES_MAX:
            raise LocalProtocolError(f"cluster and broker name take {len(text)} bytes")
        return _HELLO.pack(MAGIC, VERSION, self.nonce, self.epoch, len(text)) + text


class Welcome(NamedTuple):
    """What a master says of itself."""

    nonce: bytes
    epoch: int
    mark: int  # Tells two histories apart that count their epochs alike.
    epoch_start: int
    log_start: int
    log_end: int

    def encode(self) -> bytes:
        """The bytes, without the proof."""
        return _WELCOME.pack(MAGIC, VERSION, *self)


def encode_push_header(offset: int, size: int) -> bytes:
    """What goes before the bytes of a push."""
    return PUSH.pack(offset, size)


def encode_push(offset: int, data: bytes | memoryview = b"") -> bytes:
    """A push with its header."""
    return b"".join((PUSH.pack(offset, len(data)), data))


def encode_report(offset: int) -> bytes:
    """A report."""
    return REPORT.pack(offset)


def masters_proof(key: bytes, hello: Hello, welcome: Welcome) -> bytes:
    """What only a master with the key can say to this hello."""
    return hmac.digest(key, b"master" + hello.encode() + welcome.encode(), hashlib.sha256)


def replicas_proof(key: bytes, hello: Hello, welcome: Welcome) -> bytes:
    """What only a replica with the key can say to this welcome."""
    return hmac.digest(key, b"replica" + hello.encode() + welcome.encode(), hashlib.sha256)


def is_proof(given: bytes, wanted: bytes) -> bool:
    """Compare without telling how much of it was right."""
    return hmac.compare_digest(given, wanted)


class PushDecoder:
    """Takes the bytes of a master in any pieces, gives back whole pushes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Push]:
        """The pushes that are complete now; raises RemoteProtocolError."""
        buffer = self._buffer
        buffer += data
        pushes = []
        at = 0
        while len(buffer) - at >= PUSH.size:
            offset, size = PUSH.unpack_from(buffer, at)
            if offset < 0 or not 0 <= size <= PUSH_BYTES_MAX:
                raise RemoteProtocolError(
                    f"not the stream of a master: a push of {size} bytes at offset {offset}"
                )
            end = at + PUSH.size + size
            if len(buffer) < end:
                break
            pushes.append(Push(offset, bytes(buffer[at + PUSH.size : end])))
            at = end
        if at:
            del buffer[:at]
        return pushes


class ReportDecoder:
    """Takes the bytes of a replica in any pieces, gives back the reports."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[int]:
        """The reports that are complete now; raises RemoteProtocolError."""
        buffer = self._buffer
        buffer += data
        whole = len(buffer) // REPORT.size * REPORT.size
        reports: list[int] = [value for (value,) in REPORT.iter_unpack(bytes(buffer[:whole]))]
        del buffer[:whole]
        if any(report < 0 for report in reports):
            raise RemoteProtocolError(f"not the stream of a replica: it reports {min(reports)}")
        return reports


def take_hello(buffer: bytearray) -> Hello | None:
    """Take a hello off the front; None while it is not complete; raises RemoteProtocolError."""
    if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])) and bytes(buffer[:6]) != MAGIC:
        raise RemoteProtocolError(
            "it does not begin with a hello: a replica without the cluster key, or not a replica"
        )
    if len(buffer) < _HELLO.size:
        return None
    _, version, nonce, epoch, size = _HELLO.unpack_from(buffer)
    if version != VERSION or epoch < 0 or size > TEXT_BYTES_MAX:
        raise RemoteProtocolError(f"a hello of version {version}, epoch {epoch}, {size} bytes")
    if len(buffer) < _HELLO.size + size:
        return None
    text = bytes(buffer[_HELLO.size : _HELLO.size + size])
    del buffer[: _HELLO.size + size]
    try:
        return Hello(nonce, epoch, text.decode())
    except UnicodeDecodeError:
        raise RemoteProtocolError("a hello whose names are not text") from None


def take_welcome(buffer: bytearray) -> tuple[Welcome, bytes] | None:
    """Take a welcome and its proof off the front; as take_hello."""
    if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])) and bytes(buffer[:6]) != MAGIC:
        raise RemoteProtocolError(
            "it does not answer with a welcome: a master without the cluster key, or not a master"
        )
    whole = _WELCOME.size + PROOF_BYTES
    if len(buffer) < whole:
        return None
    _, version, *fields = _WELCOME.unpack_from(buffer)
    proof = bytes(buffer[_WELCOME.size : whole])
    del buffer[:whole]
    welcome = Welcome(*fields)
    if version != VERSION or min(welcome.epoch, welcome.log_start) < 0:
        raise RemoteProtocolError(f"a welcome of version {version}, epoch {welcome.epoch}")
    return welcome, proof


def take_proof(buffer: bytearray) -> bytes | None:
    """Take a proof off the front; None while it is not complete."""
    if len(buffer) < PROOF_BYTES:
        return None
    proof = bytes(buffer[:PROOF_BYTES])
    del buffer[:PROOF_BYTES]
    return proof
