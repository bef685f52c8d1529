"""The compiled scanner passes over exactly what the expression does not want."""

from __future__ import annotations

import random
import struct

import pytest
from sql_cases import make_properties, make_tree, render

from skylark.broker.filter_scan import COMPILED, PureScanner, Scanner, program_of
from skylark.errors import InvalidExpression
from skylark.filter import SqlExpression
from skylark.protocol.record import encode_record, pack_host

pytestmark = pytest.mark.skipif(COMPILED is None, reason="the compiled twin is not built")

FILE_START = 1 << 30


def scanner_of(expression: SqlExpression) -> Scanner | None:
    assert COMPILED is not None
    program = program_of(expression)
    return None if program is None else COMPILED(*program)


def _log(rng: random.Random, texts: list[bytes]) -> tuple[bytes, bytearray]:
    """Entries and the records that they lead to."""
    entries, log = b"", bytearray(rng.randbytes(rng.randint(0, 64)))
    for text in texts:
        host = pack_host(rng.choice(("10.0.0.1", "::1")), 5)
        record = encode_record(
            topic="T" * rng.randint(1, 127),
            body=bytes(rng.randint(0, 50)),
            properties=text,
            physical_offset=FILE_START + len(log),
            born_host=host,
            store_host=host,
        )
        entries += struct.pack(">qiq", FILE_START + len(log), len(record), 7)
        log += record
    return entries, log


def _skips(scanner: Scanner, entries: bytes, log: bytes | bytearray) -> list[int]:
    """What is passed over from each entry on."""
    view, buffer = memoryview(entries), memoryview(bytes(log))
    return [
        scanner.skip(view, at, len(entries), buffer, FILE_START)
        for at in range(0, len(entries), 20)
    ]


def _text(rng: random.Random, properties: dict[str, str]) -> bytes:
    pieces = [f"{name}\x01{value}".encode() for name, value in properties.items()]
    if rng.random() < 0.2:
        pieces.insert(0, b"a\x01first")
        pieces.append(b"a\x01")
    if rng.random() < 0.1:
        pieces.append(b"c\x01\xff\xfe")
    rng.shuffle(pieces)
    return b"\x02".join(pieces)


def test_both_scanners_pass_over_the_same_messages() -> None:
    compiled = passed = 0
    for number in range(1_500):
        rng = random.Random(f"scan/{number}")
        try:
            expression = SqlExpression(render(make_tree(rng, rng.randint(0, 3)), rng))
        except InvalidExpression:
            continue
        scanner = scanner_of(expression)
        if scanner is None:
            continue
        compiled += 1
        entries, log = _log(rng, [_text(rng, make_properties(rng)) for _ in range(8)])
        found = _skips(scanner, entries, log)
        assert found == _skips(PureScanner(expression), entries, log), (number, expression)
        passed += sum(found)
    assert compiled > 500
    assert passed > 2_000


def test_broken_files_stop_both_at_the_same_place() -> None:
    expression = SqlExpression("a > 5 AND b IS NOT NULL OR TAGS IN ('x', 'y') OR c = 1.5")
    scanner = scanner_of(expression)
    assert scanner is not None
    for number in range(3_000):
        rng = random.Random(f"broken/{number}")
        entries, log = _log(rng, [_text(rng, make_properties(rng)) for _ in range(4)])
        broken = bytearray(entries)
        if rng.random() < 0.5:
            for _ in range(2):
                broken[rng.randrange(len(broken))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            for _ in range(4):
                log[rng.randrange(len(log))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            if rng.random() < 0.3:
                log = log[: rng.randrange(1, len(log))]
        found = _skips(scanner, bytes(broken), log)
        pure = _skips(PureScanner(expression), bytes(broken), log)
        # Lengths that lie may leave the pure reader without properties; then it decides without.
        assert all(one <= other for one, other in zip(found, pure, strict=True)), number


@pytest.mark.parametrize(
    "text",
    ["a = b", "a < b", "(a = 1) = TRUE", "TRUE = a", "-a = 5", "a = ''", "a = '\ufffd'", "5 > 3"],
)
def test_unusual_expressions_are_left_to_the_reader(text: str) -> None:
    assert program_of(SqlExpression(text)) is None
    assert scanner_of(SqlExpression(text)) is None


def test_odd_places_are_refused() -> None:
    scanner = scanner_of(SqlExpression("a = 1"))
    assert scanner is not None
    empty = memoryview(b"")
    assert scanner.skip(empty, 0, 100, memoryview(b"x" * 100), 0) == 0
    assert scanner.skip(memoryview(b"\xff" * 40), 0, 400, memoryview(b"x" * 100), 0) == 0
    assert scanner.skip(memoryview(b"\x00" * 40), -5, 40, memoryview(b"x" * 100), 0) == 0
    assert scanner.skip(memoryview(b"\x00" * 40), 0, 40, empty, 0) == 0
