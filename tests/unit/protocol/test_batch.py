"""Batch bodies: the golden entry, strict lengths, and the joining of properties."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from skylark.errors import InvalidBatch, InvalidBody, LocalProtocolError
from skylark.protocol import batch
from skylark.protocol.batch import BatchEntry, encode_batch, join_properties
from skylark.protocol.properties import parse_properties

GOLDEN = bytes.fromhex(
    "00000028 00000000 00000000 00000000 00000002 6869 0010"
    " 574149540174727565 02 544147530141".replace(" ", "")
)
ENTRY = BatchEntry(b"hi", b"WAIT\x01true\x02TAGS\x01A")

Decode = Callable[..., list[BatchEntry]]


@pytest.fixture(params=["pure", "compiled"])
def decode_batch(request: pytest.FixtureRequest) -> Decode:
    if request.param == "pure":
        return batch.decode_batch_pure
    if batch.decode_batch is batch.decode_batch_pure:
        pytest.skip("the compiled twin is not built or switched off")
    return batch.decode_batch


def test_the_golden_entry_encodes_and_decodes(decode_batch: Decode) -> None:
    assert encode_batch([ENTRY]) == GOLDEN
    assert decode_batch(GOLDEN) == [ENTRY]


def test_entries_follow_each_other(decode_batch: Decode) -> None:
    entries = [ENTRY, BatchEntry(b"", b"", flag=-5), BatchEntry(bytes(1000), b"a\x01b", flag=7)]
    body = encode_batch(entries)
    assert decode_batch(body) == entries
    assert decode_batch(memoryview(body)) == entries


def test_an_empty_batch_is_refused_both_ways(decode_batch: Decode) -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        encode_batch([])
    with pytest.raises(InvalidBatch, match="no entry"):
        decode_batch(b"")


def test_a_batch_cut_off_at_any_byte_is_refused(decode_batch: Decode) -> None:
    body = GOLDEN * 2
    for size in range(len(body)):
        if size != len(GOLDEN):
            with pytest.raises(InvalidBatch) as caught:
                decode_batch(body[:size])
            assert caught.value.at == (len(GOLDEN) if size > len(GOLDEN) else 0)


@pytest.mark.parametrize(
    ("at", "form", "value", "field"),
    [
        (0, ">i", 0, "size"),
        (0, ">i", -1, "size"),
        (0, ">i", 21, "size"),
        (0, ">i", 41, "size"),
        (0, ">i", 2**31 - 1, "size"),
        (0, ">i", 39, "properties length"),
        (8, ">i", 1, "body crc"),
        (16, ">i", -1, "body length"),
        (16, ">i", 19, "body length"),
        (16, ">i", 2**31 - 1, "body length"),
        (16, ">i", 1, "properties length"),
        (22, ">h", 15, "properties length"),
        (22, ">h", 17, "properties length"),
        (22, ">h", -1, "properties length"),
    ],
)
def test_a_lying_length_is_named_and_nothing_is_taken(
    decode_batch: Decode, at: int, form: str, value: int, field: str
) -> None:
    second = bytearray(GOLDEN)
    struct.pack_into(form, second, at, value)
    with pytest.raises(InvalidBatch) as caught:
        decode_batch(GOLDEN + second)
    assert (caught.value.at, caught.value.field) == (len(GOLDEN), field)


def test_a_checksum_may_be_given_if_it_is_right(decode_batch: Decode) -> None:
    body = b"delay"
    for crc in (zlib.crc32(body), zlib.crc32(body) & 0x7FFFFFFF):
        data = bytearray(encode_batch([BatchEntry(body)]))
        struct.pack_into(">I", data, 8, crc)
        assert decode_batch(data) == [BatchEntry(body)]


def test_the_magic_of_an_entry_is_not_looked_at(decode_batch: Decode) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(">I", data, 4, 0xDAA320A7)
    assert decode_batch(data) == [ENTRY]


def test_a_batch_inside_a_batch_is_only_a_body(decode_batch: Decode) -> None:
    inner = encode_batch([ENTRY, ENTRY])
    assert decode_batch(encode_batch([BatchEntry(inner)])) == [BatchEntry(inner)]


def test_the_number_of_entries_has_a_limit(decode_batch: Decode) -> None:
    assert len(decode_batch(GOLDEN * 3, count_max=3)) == 3
    with pytest.raises(InvalidBatch, match="count"):
        decode_batch(GOLDEN * 4, count_max=3)


@pytest.mark.parametrize(
    "entry", [BatchEntry(b"", b"x" * 32_768), BatchEntry(b"", flag=2**31)], ids=["long", "flag"]
)
def test_an_entry_that_does_not_fit_is_refused(entry: BatchEntry) -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([entry])


@pytest.mark.parametrize(
    ("entry", "request_text", "joined"),
    [
        (b"a\x011", b"b\x012", b"a\x011\x02b\x012"),
        (b"a\x011\x02", b"b\x012", b"a\x011\x02b\x012"),
        (b"", b"b\x012", b"b\x012"),
        (b"a\x011", b"", b"a\x011"),
        (b"a\x011\x02", b"", b"a\x011\x02"),
        (b"", b"", b""),
    ],
)
def test_a_record_gets_the_properties_of_entry_and_request(
    entry: bytes, request_text: bytes, joined: bytes
) -> None:
    assert join_properties(entry, request_text) == joined


def test_a_name_in_both_reads_as_the_requests() -> None:
    joined = join_properties(ENTRY.properties, b"WAIT\x01false\x02CLUSTER\x01c")
    assert parse_properties(joined) == {"WAIT": "false", "TAGS": "A", "CLUSTER": "c"}


def test_joined_properties_must_still_fit_a_record() -> None:
    assert len(join_properties(b"a" * 32_763, b"b\x012")) == 32_767
    with pytest.raises(InvalidBody, match="32768"):
        join_properties(b"a" * 32_764, b"b\x012")
