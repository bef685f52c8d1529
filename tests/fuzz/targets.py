"""What is fuzzed: one function for each decoder, which raises when the decoder misbehaves.

A decoder may refuse its input with the one error it declares, and nothing else; where there is a
compiled twin, both must say the same. Each target has seeds: bytes that a correct peer sends.
"""

from __future__ import annotations

import functools
import inspect
import json
import pathlib
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from skylark.broker import filter_scan
from skylark.errors import (
    InvalidBatch,
    InvalidBody,
    InvalidCompression,
    InvalidExpression,
    InvalidHeader,
    InvalidJson,
    InvalidRecord,
    MissingExtra,
    RemoteProtocolError,
)
from skylark.filter import SqlExpression
from skylark.model.message import CompressionType
from skylark.protocol import (
    batch,
    bodies,
    compression,
    fastjson,
    frame,
    headers,
    properties,
    record,
)
from skylark.protocol.command import Command
from skylark.protocol.header import Header
from skylark.replication import raft_log, raft_wire, stream

try:
    from skylark.protocol import _frame as compiled_frame
except ImportError:
    compiled_frame = frame

CAPTURED = pathlib.Path(__file__).parents[1] / "golden" / "captured"
LIMITS = (frame.FRAME_BYTES_MAX, frame.HEADER_BYTES_MAX)
SEED_BYTES_MAX = 4096

Outcome = tuple[str, Any]


@dataclass(frozen=True)
class Target:
    """One decoder under fuzz."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def outcome(decode: Callable[[], Any], declared: type[Exception]) -> Outcome:
    """What a decoder gives back, or how it refuses; any other exception goes on."""
    try:
        return "value", decode()
    except declared as error:
        # A subclass is fine where it is what the module documents; the words must agree.
        return type(error).__name__, str(error)


def agree(pure: Outcome, compiled: Outcome) -> None:
    assert pure == compiled, f"pure: {pure!r}\ncompiled: {compiled!r}"


# Frames and headers.


def check_frames(data: bytes) -> None:
    """A byte stream: both paths, any split, and what is read can be written again."""
    stream = data[1:]
    step = data[0] + 1 if data else 1
    commands = _same_frames(stream)
    decoder = frame.FrameDecoder()
    split: list[Command] = []
    for at in range(0, len(stream), step):
        split += decoder.feed(stream[at : at + step])
        assert decoder.held_bytes <= at + step
    assert split == commands, "a split stream reads differently"
    _write_again(commands)


def check_header_json(data: bytes) -> None:
    """A JSON header in a sound frame."""
    _write_again(_same_frames(_framed(0, data)))


def check_header_binary(data: bytes) -> None:
    """A binary header in a sound frame."""
    _write_again(_same_frames(_framed(1, data)))


def _framed(kind: int, header: bytes) -> bytes:
    header = header[:65_536]
    length = len(header) + 4
    return length.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header


def _same_frames(stream: bytes) -> list[Command]:
    pure, used, error = frame.pure_decode_frames(stream, *LIMITS)
    also, also_used, also_error = compiled_frame.decode_frames(stream, *LIMITS)
    assert error is None or type(error) is RemoteProtocolError
    assert (pure, used, str(error)) == (also, also_used, str(also_error))
    assert 0 <= used <= len(stream)
    return pure


def _write_again(commands: list[Command]) -> None:
    data = frame.pure_encode_frames(commands)
    assert compiled_frame.encode_frames(commands) == data
    again, used, error = compiled_frame.decode_frames(data, *LIMITS)
    if error is None:  # A header may grow beyond the limit when it is written in full.
        assert used == len(data)
        assert again == commands, "what was read is written differently"


def _captured() -> Iterator[bytes]:
    for path in sorted(CAPTURED.glob("*.json")):
        for exchange in json.loads(path.read_text())["exchanges"]:
            for side in ("request", "answer"):
                if side in exchange:
                    yield bytes.fromhex(exchange[side])


def seed_frames() -> Iterator[bytes]:
    for data in _captured():
        yield b"\x07" + data[:SEED_BYTES_MAX]


def _seed_headers(kind: int) -> Iterator[bytes]:
    for data in _captured():
        if data[4] == kind:
            yield data[8 : 8 + int.from_bytes(data[5:8], "big")]


# Bodies.


def check_fastjson(data: bytes) -> None:
    """A JSON text in fastjson's dialect; what is read reads the same when written again."""
    try:
        value = fastjson.loads(data)
    except InvalidJson:
        return
    written = fastjson.dumps(value)
    assert fastjson.loads(written) == value


BODY_TYPES = [
    kind
    for _, kind in sorted(inspect.getmembers(bodies, inspect.isclass))
    if issubclass(kind, bodies.Body) and kind is not bodies.Body
]


def check_bodies(data: bytes) -> None:
    """Any typed JSON body, chosen by the first byte."""
    if not data:
        return
    kind = BODY_TYPES[data[0] % len(BODY_TYPES)]
    try:
        body = kind.from_json(data[1:])
    except InvalidBody:
        return
    kind.from_json(body.to_json())


def check_register_body(data: bytes) -> None:
    """REGISTER_BROKER's body: plain, compressed, and what is inside a compressed one."""
    if not data:
        return
    mode, content = data[0] % 4, data[1:]
    if mode == 3:
        content = zlib.compress(content)
    version = 30 if mode == 1 else 409
    try:
        bodies.RegisterBrokerBody.decode(content, compressed=mode >= 2, version=version)
    except InvalidBody:
        return


HEADER_TYPES: list[type[Header]] = [
    kind
    for _, kind in sorted(inspect.getmembers(headers, inspect.isclass))
    if issubclass(kind, Header) and kind is not Header
]


def check_typed_headers(data: bytes) -> None:
    """Any typed header, chosen by the first byte, over a map of names and values."""
    if not data:
        return
    kind = HEADER_TYPES[data[0] % len(HEADER_TYPES)]
    names = [*getattr(kind, "__dataclass_fields__", ())]
    fields: dict[str, str] = {}
    for number, piece in enumerate(data[1:].split(b"\0")):
        text = piece.decode("utf-8", "replace")
        camel = _camel(names[number % len(names)]) if names else "x"
        name, _, value = text.partition("=") if "=" in text else (camel, "", text)
        fields[name] = value
    try:
        typed = kind.from_fields(fields)
    except InvalidHeader:
        return
    assert kind.from_fields(typed.to_fields()) == typed


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _seed_bodies(codes: set[int] | None = None) -> Iterator[bytes]:
    for data in _captured():
        commands, _, _ = frame.pure_decode_frames(data, *LIMITS)
        for command in commands:
            body = bytes(command.body)
            if body and len(body) <= SEED_BYTES_MAX and (codes is None or command.code in codes):
                yield body


def seed_json_bodies() -> Iterator[bytes]:
    yield b'{{"brokerName":"b","queueId":0,"topic":"T"}:5,1:"a",\'x\':[true,null,-1.5e3]}'
    for body in _seed_bodies():
        if body[:1] in (b"{", b"["):
            yield body


def seed_typed_bodies() -> Iterator[bytes]:
    for number, body in enumerate(seed_json_bodies()):
        yield bytes([number % len(BODY_TYPES)]) + body


def seed_register_bodies() -> Iterator[bytes]:
    for body in _seed_bodies({103}):
        if body[:1] == b"{":
            yield b"\0" + body
            yield b"\1" + body
        else:
            yield b"\2" + body
            yield b"\3" + zlib.decompress(body)


def seed_typed_headers() -> Iterator[bytes]:
    for number, data in enumerate(_captured()):
        commands, _, _ = frame.pure_decode_frames(data, *LIMITS)
        fields = "\0".join(f"{name}={value}" for name, value in commands[0].fields.items())
        yield bytes([number % len(HEADER_TYPES)]) + fields.encode()


# Messages.


def check_record(data: bytes) -> None:
    """Stored records: one, many, and what is dispatched of them; CRC checked or not."""
    check_crc = bool(data) and bool(data[0] & 1)
    buffer = data[1:]
    pairs: list[tuple[Any, Any]] = [
        (record.decode_record_pure, record.decode_record),
        (record.decode_records_pure, record.decode_records),
        (record.decode_dispatch_pure, record.decode_dispatch),
        (record.decode_dispatches_pure, record.decode_dispatches),
    ]
    for pure, compiled in pairs:
        agree(
            outcome(functools.partial(pure, buffer, check_crc=check_crc), InvalidRecord),
            outcome(functools.partial(compiled, buffer, check_crc=check_crc), InvalidRecord),
        )


def check_batch(data: bytes) -> None:
    """A batch body."""
    agree(
        outcome(functools.partial(batch.decode_batch_pure, data), InvalidBatch),
        outcome(functools.partial(batch.decode_batch, data), InvalidBatch),
    )


def check_properties(data: bytes) -> None:
    """A properties text, as bytes and as text."""
    text = data.decode("utf-8", "replace")
    for given in (data, text):
        found = properties.parse_properties_pure(given)
        assert properties.parse_properties(given) == found
        outcome(functools.partial(properties.require_sound_properties, given), InvalidBody)
    lazy = properties.LazyProperties(data)
    assert dict(lazy) == properties.parse_properties_pure(data)
    assert all(lazy[name] == value for name, value in lazy.items())


def check_compression(data: bytes) -> None:
    """A compressed body, of the kind the first byte says; the caps hold."""
    if not data:
        return
    kind = list(CompressionType)[data[0] % len(CompressionType)]
    body = data[1:]
    try:
        plain = compression.expand(body, kind, bytes_max=1 << 20)
    except (InvalidCompression, MissingExtra):
        return
    assert len(plain) <= 1 << 20


def _records() -> Iterator[bytes]:
    magic = struct.pack(">I", record.MAGIC)
    for body in _seed_bodies():
        if body[4:8] == magic:
            yield body


def seed_records() -> Iterator[bytes]:
    for body in _records():
        yield b"\1" + body
        yield b"\0" + body
    yield b"\0" + record.encode_blank(64) + bytes(56)


def seed_batches() -> Iterator[bytes]:
    yield batch.encode_batch([batch.BatchEntry(b"one", b"a\x01b", 0)])
    yield from _seed_bodies({320})


def seed_properties() -> Iterator[bytes]:
    yield "KEYS\x01a b\x02TAGS\x01Paid\x02名\x01值".encode()
    yield b"a\x01b\x02"
    yield b"\x01\x02\x01\x01\x02\x02"


def seed_compressions() -> Iterator[bytes]:
    for number, kind in enumerate(CompressionType):
        for plain in (b"", b"hello " * 50, bytes(3000)):
            try:
                yield bytes([number]) + compression.compress(plain, kind)
            except MissingExtra:
                break


def check_sql92(data: bytes) -> None:
    """An expression, then a property's value after the first null byte."""
    text, _, value = data.decode("utf-8", "replace").partition("\0")
    try:
        expression = SqlExpression(text)
    except InvalidExpression:
        return
    matches = expression.matches(dict.fromkeys(expression.names, value))
    program = filter_scan.program_of(expression)
    if value and program is not None and filter_scan.COMPILED is not None:
        pieces = (f"{name}\x01{value}" for name in sorted(expression.names))
        entry, log = _one_record("\x02".join(pieces).encode())
        places = (memoryview(entry), 0, 20, memoryview(log), 0)
        pure = filter_scan.PureScanner(expression).skip(*places)
        assert filter_scan.COMPILED(*program).skip(*places) == pure
        assert "\x01" in value or "\x02" in value or pure == (not matches)


def _one_record(properties_text: bytes) -> tuple[bytes, bytes]:
    host = record.pack_host("127.0.0.1", 1)
    fitting = properties_text[: record.PROPERTIES_BYTES_MAX]
    log = record.encode_record(
        topic="T", body=b"", properties=fitting, born_host=host, store_host=host
    )
    return struct.pack(">qiq", 0, len(log), 0), log


def seed_sql92() -> Iterator[bytes]:
    """Every tenth expression that Apache was asked about, with some values."""
    lines = (CAPTURED / "sql92-4.9.8.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines[::10]:
        row = json.loads(line)
        if isinstance(row, list):
            values = [value for case in row[1:] if case != "invalid" for value in case[0].values()]
            yield f"{row[0]}\0{values[0] if values else '5'}".encode()[:SEED_BYTES_MAX]


def check_ha_stream(data: bytes) -> None:
    """Both directions of the replication stream, whole and byte by byte, and its greetings."""
    for make in (stream.PushDecoder, stream.ReportDecoder):
        whole, bitwise = make(), make()
        at_once = outcome(lambda whole=whole: whole.feed(data), RemoteProtocolError)

        def step_by_step(decoder: Any = bitwise) -> list[Any]:
            return [item for byte in data for item in decoder.feed(bytes([byte]))]

        in_steps = outcome(step_by_step, RemoteProtocolError)
        agree(at_once[:1], in_steps[:1])  # The words of a refusal may differ, its being not.
        if at_once[0] == "value":
            agree(at_once, in_steps)
    for take in (stream.take_hello, stream.take_welcome, stream.take_proof):
        buffer = bytearray(data)
        outcome(lambda take=take, buffer=buffer: take(buffer), RemoteProtocolError)
        assert len(buffer) <= len(data)


def seed_ha_stream() -> Iterator[bytes]:
    hello = stream.Hello(b"n" * 16, 7, "DefaultCluster/broker-a")
    welcome = stream.Welcome(b"m" * 16, 8, 9, 4096, 0, 8192)
    yield stream.encode_report(0)
    yield stream.encode_report(1) + stream.encode_report(2**62)
    yield stream.encode_push(1024, b"x" * 50) + stream.encode_push(1074)
    yield hello.encode()
    yield welcome.encode() + stream.masters_proof(b"key", hello, welcome)


def check_raft(data: bytes) -> None:
    """What comes in at the Raft port, in any pieces: the greeting, then frames."""
    step = data[0] + 1 if data else 1
    said = data[1:]

    def frames(size: int) -> list[raft_log.Message | None]:
        decoder = raft_wire.FrameDecoder("n0", "n1")
        heard = []
        for at in range(0, len(said), size):
            heard += decoder.feed(said[at : at + size])
        return heard

    whole = outcome(lambda: frames(max(1, len(said))), RemoteProtocolError)
    split = outcome(lambda: frames(step), RemoteProtocolError)
    if whole[0] == "value":
        assert whole == split, "a split stream reads differently"
        again = b"".join(
            raft_wire.PING if m is None else b"".join(raft_wire.encode_message(m)) for m in whole[1]
        )
        assert said.startswith(again), "what was read is written differently"
    for take in (raft_wire.take_hello, raft_wire.take_welcome, raft_wire.take_proof):
        buffer = bytearray(said)
        kind, found = outcome(lambda take=take, buffer=buffer: take(buffer), RemoteProtocolError)
        if kind == "value" and isinstance(found, raft_wire.Hello):
            assert found.encode() + bytes(buffer) == said


def seed_raft() -> Iterator[bytes]:
    hello = raft_wire.Hello(b"n" * 16, True, "group", "n0", "n1", ("n0", "n1", "n2"))
    yield b"\x07" + hello.encode()
    yield b"\x07" + raft_wire.Welcome(b"w" * 16).encode()
    yield b"\x07" + raft_wire.Welcome(b"w" * 16, problem="another group").encode()
    chunk = raft_log.Chunk(40, 90, 2, b"r" * 50)
    frames = [raft_wire.PING]
    for kind in raft_log.Kind:
        has_records = kind is raft_log.Kind.APPEND
        message = raft_log.Message(kind, "n0", "n1", 3, 40, 2, chunk if has_records else None, 40)
        frames.append(b"".join(raft_wire.encode_message(message)))
    yield from (b"\x07" + frame for frame in frames)
    yield b"\x03" + b"".join(frames)


TARGETS: dict[str, Target] = {
    "frames": Target(check_frames, seed_frames),
    "header_json": Target(check_header_json, functools.partial(_seed_headers, 0)),
    "header_binary": Target(check_header_binary, functools.partial(_seed_headers, 1)),
    "typed_headers": Target(check_typed_headers, seed_typed_headers),
    "fastjson": Target(check_fastjson, seed_json_bodies),
    "bodies": Target(check_bodies, seed_typed_bodies),
    "register_body": Target(check_register_body, seed_register_bodies),
    "record": Target(check_record, seed_records),
    "batch": Target(check_batch, seed_batches),
    "properties": Target(check_properties, seed_properties),
    "compression": Target(check_compression, seed_compressions),
    "sql92": Target(check_sql92, seed_sql92),
    "ha_stream": Target(check_ha_stream, seed_ha_stream),
    "raft": Target(check_raft, seed_raft),
}
