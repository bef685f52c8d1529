"""Compressed bodies: all codecs, damage, bombs and missing libraries."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib
from typing import Any

import pytest

from skylark.errors import InvalidCompression, MissingExtra
from skylark.model.message import CompressionType
from skylark.protocol import compression, record
from skylark.protocol.compression import (
    compress,
    compression_type,
    expand,
    plain_body,
    with_compression,
)

ALL = pytest.mark.parametrize("kind", list(CompressionType), ids=lambda kind: kind.name)
TEXT = b"skylark, alauda arvensis; " * 400


def bomb(kind: CompressionType, size: int) -> bytes:
    return compress(bytes(size), kind)


def test_the_golden_stream_of_zlib() -> None:
    assert compress(b"aaaaaaaaaa").hex() == "785e4b4c84010014e103cb"
    packed = bytes.fromhex("785e4b4c84010014e103cb")
    assert expand(packed, CompressionType.ZLIB) == b"aaaaaaaaaa"


@ALL
@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_bodies_come_back(kind: CompressionType, size: int) -> None:
    for body in (random.Random(size).randbytes(size), (TEXT * 30)[:size]):
        assert expand(compress(body, kind), kind) == body
        assert expand(memoryview(compress(body, kind)), kind) == body


def test_the_sys_flag_says_how() -> None:
    assert compression_type(0x1) is CompressionType.ZLIB
    assert compression_type(0x301) is CompressionType.ZLIB
    assert compression_type(0x101) is CompressionType.LZ4
    assert compression_type(0x201) is CompressionType.ZSTD
    assert with_compression(0, CompressionType.ZLIB) == 0x301 == 769
    assert with_compression(0x738, CompressionType.LZ4) == 0x139
    with pytest.raises(InvalidCompression, match="0x500"):
        compression_type(0x501)


@ALL
def test_a_stored_message_gives_its_plain_body(kind: CompressionType) -> None:
    host = record.pack_host("127.0.0.1", 1)
    for sys_flag, body in ((with_compression(0, kind), compress(TEXT, kind)), (0, TEXT)):
        data = record.encode_record(
            topic="T", body=body, sys_flag=sys_flag, born_host=host, store_host=host
        )
        message = record.decode_record(data)
        assert message.is_compressed is bool(sys_flag)
        assert message.body == body
        assert plain_body(message) == TEXT


@ALL
def test_a_body_cut_off_anywhere_is_refused(kind: CompressionType) -> None:
    packed = compress(TEXT, kind)
    for size in range(len(packed)):
        with pytest.raises(InvalidCompression):
            expand(packed[:size], kind)


@ALL
def test_garbage_is_refused(kind: CompressionType) -> None:
    generator = random.Random(7)
    for size in (0, 1, 5, 100, 5000):
        with pytest.raises(InvalidCompression):
            expand(generator.randbytes(size), kind)


@ALL
def test_a_changed_byte_never_raises_anything_else(kind: CompressionType) -> None:
    packed = bytearray(compress(TEXT[:500], kind))
    for at in range(len(packed)):
        garbled = bytearray(packed)
        garbled[at] ^= 0xFF
        with contextlib.suppress(InvalidCompression):
            expand(garbled, kind)


@ALL
def test_a_bomb_is_refused_before_it_is_allocated(kind: CompressionType) -> None:
    packed = bomb(kind, 256 * 1024 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidCompression, match="more than"):
            expand(packed, kind)
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()


@ALL
def test_the_cap_on_size_is_exact(kind: CompressionType) -> None:
    packed = compress(TEXT[:5000], kind)
    assert len(expand(packed, kind, bytes_max=5000)) == 5000
    with pytest.raises(InvalidCompression, match="4999"):
        expand(packed, kind, bytes_max=4999)


@ALL
def test_the_cap_on_ratio_counts_beyond_what_is_free(kind: CompressionType) -> None:
    packed = bomb(kind, 1_000_000)
    assert len(packed) * 200 < 1_000_000
    assert expand(packed, kind) == bytes(1_000_000)
    assert len(expand(packed, kind, ratio_free_bytes=1_000_000)) == 1_000_000
    with pytest.raises(InvalidCompression):
        expand(packed, kind, ratio_free_bytes=999_999)
    assert len(expand(packed, kind, ratio_free_bytes=0, ratio_max=50_000)) == 1_000_000


@ALL
def test_the_largest_honest_message_expands_even_if_it_is_all_zeros(kind: CompressionType) -> None:
    assert len(expand(bomb(kind, 4 * 1024 * 1024), kind)) == 4 * 1024 * 1024
    with pytest.raises(InvalidCompression):
        expand(bomb(kind, 17 * 1024 * 1024), kind)


def test_a_frame_of_zstd_without_its_size_expands() -> None:
    zstandard = pytest.importorskip("zstandard")
    writer = zstandard.ZstdCompressor().compressobj()
    packed = writer.compress(TEXT) + writer.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert expand(packed, CompressionType.ZSTD) == TEXT
    with pytest.raises(InvalidCompression):
        expand(packed[:-1], CompressionType.ZSTD)
    with pytest.raises(InvalidCompression):
        expand(packed, CompressionType.ZSTD, bytes_max=len(TEXT) - 1)


def test_a_frame_of_lz4_that_states_its_size_expands() -> None:
    frame = pytest.importorskip("lz4.frame")
    packed = frame.compress(TEXT, store_size=True, content_checksum=True)
    assert expand(packed, CompressionType.LZ4) == TEXT


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [(CompressionType.LZ4, "lz4", "lz4"), (CompressionType.ZSTD, "zstandard", "zstd")],
)
def test_a_missing_library_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, kind: CompressionType, module: str, extra: str
) -> None:
    def refuse(name: str, *arguments: Any) -> Any:
        assert name.split(".")[0] == module
        raise ImportError(name)

    compression._lz4.cache_clear()
    compression._zstd.cache_clear()
    monkeypatch.setattr(compression.importlib, "import_module", refuse)
    with pytest.raises(MissingExtra, match=rf"pip install 'skylarkmq\[{extra}\]'") as caught:
        expand(b"", kind)
    assert caught.value.extra == extra
    with pytest.raises(MissingExtra):
        compress(b"", kind)
    assert expand(zlib.compress(b"x"), CompressionType.ZLIB) == b"x"
