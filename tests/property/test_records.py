"""Records, batches, properties and ids: any value goes round, and the twins always agree."""

from __future__ import annotations

import zlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from skylark.errors import InvalidBatch, InvalidCompression, InvalidRecord
from skylark.model.message import CompressionType, HostAddress, OffsetId, StoredMessage
from skylark.protocol import crc, hashes, properties, record
from skylark.protocol.batch import (
    BatchEntry,
    decode_batch,
    decode_batch_pure,
    encode_batch,
    join_properties,
)
from skylark.protocol.compression import compress, expand
from skylark.protocol.message_id import parse_offset_id, parse_unique_id, read_message_id

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ip = st.ip_addresses().map(str)
port = st.integers(0, 65535)
packed_host = st.builds(record.pack_host, ip, port)
topic = st.text(min_size=1, max_size=127).filter(
    lambda text: (
        len(text.encode("utf-8", "replace")) <= 127
        and text == text.encode("utf-8", "replace").decode()
    )
)
property_text = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20
)
property_map = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT"]) | property_text, property_text, max_size=8
)
raw_properties = st.binary(max_size=80) | st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b" ", b"\xe6\xa0\x87"]),
    max_size=20,
).map(b"".join)
record_fields = st.fixed_dictionaries(
    {
        "topic": topic,
        "body": st.binary(max_size=300),
        "properties": property_map.map(properties.encode_properties) | raw_properties,
        "queue_id": int32,
        "queue_offset": int64,
        "physical_offset": int64,
        "flag": int32,
        "sys_flag": int32,
        "born_at_ms": int64,
        "born_host": packed_host,
        "stored_at_ms": int64,
        "store_host": packed_host,
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
    }
)


def outcome(function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except (InvalidRecord, InvalidBatch) as error:
        return (error.at, error.field, error.problem)


@given(fields=record_fields)
def test_any_record_goes_round_on_both_paths(fields: dict[str, Any]) -> None:
    data = record.encode_record(**fields)
    assert data == record.encode_record_pure(**fields)
    buffer = bytearray(len(data) + 3)
    assert record.encode_record_into(buffer, 3, **fields) == len(data)
    assert buffer[3:] == data

    message = record.decode_record(data)
    assert message == record.decode_record_pure(data)
    for name, value in fields.items():
        if name in ("born_host", "store_host"):
            value = record.unpack_host(value)
        elif name == "properties":
            value = properties.parse_properties_pure(value)
        elif name == "sys_flag":
            value = (value & ~0x30) | (message.sys_flag & 0x30)
        assert getattr(message, name) == value
    assert message.size_bytes == len(data)


@given(fields=record_fields)
def test_dispatch_tells_the_same_as_the_whole_message(fields: dict[str, Any]) -> None:
    data = record.encode_record_pure(**fields)
    info = record.decode_dispatch(data)
    assert info == record.decode_dispatch_pure(data)
    assert info is not None
    message = record.decode_record_pure(data)
    for name in ("physical_offset", "size_bytes", "topic", "queue_id", "queue_offset", "keys"):
        assert getattr(info, name) == getattr(message, name)
    assert info.tag_hash == hashes.tag_hash(message.tag)
    assert info.unique_key == message.unique_id
    assert info.properties == message.properties


@given(several=st.lists(record_fields, max_size=5), cut=st.integers(0, 400))
def test_concatenated_records_decode_up_to_where_they_are_whole(
    several: list[dict[str, Any]], cut: int
) -> None:
    parts = [record.encode_record_pure(**fields) for fields in several]
    messages: list[StoredMessage] = record.decode_records(b"".join(parts))
    assert messages == [record.decode_record_pure(part) for part in parts]
    data = b"".join(parts)[: -cut or None]
    assert outcome(record.decode_records, data) == outcome(record.decode_records_pure, data)
    assert record.decode_dispatches(data) == record.decode_dispatches_pure(data)


@given(
    fields=record_fields,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    check_crc=st.booleans(),
)
@settings(max_examples=300)
def test_a_garbled_record_means_the_same_on_both_paths(
    fields: dict[str, Any], changes: list[tuple[int, int]], check_crc: bool
) -> None:
    data = bytearray(record.encode_record_pure(**fields) * 2)
    for at, value in changes:
        data[at % len(data)] = value
    for name in ("decode_record", "decode_records", "decode_dispatch", "decode_dispatches"):
        assert outcome(getattr(record, name), data, check_crc=check_crc) == outcome(
            getattr(record, f"{name}_pure"), data, check_crc=check_crc
        )


@given(noise=st.binary(max_size=300))
def test_noise_is_refused_alike_and_never_crashes(noise: bytes) -> None:
    for data in (noise, noise[:4] + b"\xda\xa3\x20\xa7" + noise[8:]):
        for name in ("decode_record", "decode_records", "decode_dispatch", "decode_dispatches"):
            assert outcome(getattr(record, name), data) == outcome(
                getattr(record, f"{name}_pure"), data
            )


@given(found=property_map)
def test_properties_go_round(found: dict[str, str]) -> None:
    assert properties.parse_properties(properties.format_properties(found)) == found
    data = properties.encode_properties(found)
    assert properties.parse_properties(data) == found
    assert properties.parse_properties(data + b"\x02") == found
    assert properties.LazyProperties(data) == found


@given(text=raw_properties | st.text(max_size=60) | st.text("\x01\x02ab\ud800é𝄞", max_size=30))
def test_any_text_reads_alike_on_both_paths(text: str | bytes) -> None:
    assert properties.parse_properties(text) == properties.parse_properties_pure(text)


@given(text=st.text(st.characters(), max_size=60))
def test_any_text_hashes_alike_on_both_paths(text: str) -> None:
    value = hashes.java_string_hash(text)
    assert value == hashes.java_string_hash_pure(text)
    assert -(2**31) <= value < 2**31
    assert hashes.key_hash("T", text) >= 0


@given(data=st.binary(max_size=2000), start=st.integers(0, 40))
def test_any_checksum_is_that_of_zlib(data: bytes, start: int) -> None:
    assert crc.crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


batch_entry = st.builds(BatchEntry, st.binary(max_size=80), st.binary(max_size=40), int32)


@given(entries=st.lists(batch_entry, min_size=1, max_size=6), cut=st.integers(1, 400))
def test_batches_go_round_and_do_not_survive_a_cut_inside_an_entry(
    entries: list[BatchEntry], cut: int
) -> None:
    body = encode_batch(entries)
    assert decode_batch(body) == entries
    sizes = [len(encode_batch(entries[:count])) for count in range(1, len(entries))]
    rest = body[:-cut]
    if len(rest) in sizes:
        assert decode_batch(rest) == entries[: sizes.index(len(rest)) + 1]
    else:
        try:
            decode_batch(rest)
        except InvalidBatch:
            return
        raise AssertionError("a cut batch was taken")


@given(
    entries=st.lists(batch_entry, min_size=1, max_size=3),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
@settings(max_examples=300)
def test_a_garbled_batch_means_the_same_on_both_paths(
    entries: list[BatchEntry], changes: list[tuple[int, int]]
) -> None:
    body = bytearray(encode_batch(entries))
    for at, value in changes:
        body[at % len(body)] = value
    assert outcome(decode_batch, body) == outcome(decode_batch_pure, body)


@given(noise=st.binary(max_size=200))
def test_noise_is_no_batch_or_goes_round(noise: bytes) -> None:
    try:
        entries = decode_batch(noise)
    except InvalidBatch:
        return
    assert len(encode_batch(entries)) == len(noise)


@given(entry=property_map, request=property_map)
def test_joined_properties_are_those_of_both(
    entry: dict[str, str], request: dict[str, str]
) -> None:
    joined = join_properties(
        properties.encode_properties(entry), properties.encode_properties(request)
    )
    assert properties.parse_properties(joined) == {**entry, **request}


@given(ip=ip, port=port, offset=st.integers(0, 2**63 - 1))
def test_offset_ids_go_round(ip: str, port: int, offset: int) -> None:
    offset_id = OffsetId(HostAddress(ip, port), offset)
    assert parse_offset_id(str(offset_id)) == offset_id
    assert read_message_id(str(offset_id)).offset_id == offset_id


@given(raw=st.binary(min_size=16, max_size=16) | st.binary(min_size=28, max_size=28))
def test_any_16_or_28_bytes_are_a_unique_id(raw: bytes) -> None:
    assert str(parse_unique_id(raw.hex())) == raw.hex().upper()


@given(body=st.binary(max_size=500), kind=st.sampled_from(CompressionType), noise=st.binary())
@settings(max_examples=60)
def test_bodies_expand_to_what_they_were_and_noise_is_refused(
    body: bytes, kind: CompressionType, noise: bytes
) -> None:
    assert expand(compress(body, kind), kind) == body
    try:
        expand(noise, kind)
    except InvalidCompression as error:
        assert error.problem  # noqa: PT017, hypothesis shrinks through it
