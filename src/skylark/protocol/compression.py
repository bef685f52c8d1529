"""Bodies compressed by producers, as the sysFlag says; brokers pass them on untouched.

    sysFlag & 0x700    form                                                   library
    0, 0x300           zlib stream (RFC 1950); 0 is what older clients write  always there
    0x100              LZ4 frame                                              extra "lz4"
    0x200              Zstandard frame                                        extra "zstd"

Whoever expands a body from outside does so under two caps, because a few kilobytes can stand for
gigabytes: a largest size, and a largest ratio. The ratio counts only beyond the size that a broker
takes before compression, since an honest message of 4 MiB may well be all zeros. Expansion stops at
the cap; what lies beyond is never allocated.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from typing import Any

from ..errors import InvalidCompression, LocalProtocolError, MissingExtra
from ..model.message import COMPRESSION_TYPE_MASK, CompressionType, StoredMessage, SysFlag
from .crc import Buffer

COMPRESS_FROM_BYTES = 4096  # Below this, producers do not bother.
ZLIB_LEVEL = 5
EXPANDED_BYTES_MAX = 16 * 1024 * 1024
EXPANDED_RATIO_MAX = 200
EXPANDED_RATIO_FREE_BYTES = 4 * 1024 * 1024

# A frame may ask its reader for a window; more than this no producer's settings give.
_ZSTD_WINDOW_BYTES_MAX = 32 * 1024 * 1024
_STEP_BYTES = 256 * 1024


def compression_type(sys_flag: int) -> CompressionType:
    """Return how a body with this sysFlag is compressed."""
    bits = sys_flag & COMPRESSION_TYPE_MASK
    if not bits:
        return CompressionType.ZLIB
    try:
        return CompressionType(bits)
    except ValueError:
        raise InvalidCompression(
            f"type {bits:#x}", "no such compression type: the message may be from a newer client"
        ) from None


def with_compression(sys_flag: int, kind: CompressionType) -> int:
    """Return a sysFlag that says the body is compressed in this way."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | SysFlag.COMPRESSED.value | kind.value


def compress(body: Buffer, kind: CompressionType = CompressionType.ZLIB) -> bytes:
    """Return a body compressed as producers do."""
    packed: bytes
    if kind is CompressionType.ZLIB:
        packed = zlib.compress(body, ZLIB_LEVEL)
    elif kind is CompressionType.LZ4:
        packed = _lz4().compress(body, store_size=False)
    elif kind is CompressionType.ZSTD:
        packed = _zstd().ZstdCompressor(level=3).compress(body)
    else:
        raise LocalProtocolError(f"compression type {kind!r} is unknown")
    return packed


def expand(
    body: Buffer,
    kind: CompressionType,
    *,
    bytes_max: int = EXPANDED_BYTES_MAX,
    ratio_max: int = EXPANDED_RATIO_MAX,
    ratio_free_bytes: int = EXPANDED_RATIO_FREE_BYTES,
) -> bytes:
    """Return what a compressed body stands for, within the caps; else raise InvalidCompression."""
    limit = min(bytes_max, max(ratio_free_bytes, ratio_max * len(body)))
    if kind is CompressionType.ZLIB:
        return _expand_zlib(body, limit)
    if kind is CompressionType.LZ4:
        return _expand_lz4(body, limit)
    return _expand_zstd(body, limit)


def plain_body(message: StoredMessage) -> bytes:
    """Return the body as its producer gave it."""
    if not message.is_compressed:
        return message.body
    return expand(message.body, compression_type(message.sys_flag))


def _too_large(codec: str, limit: int) -> InvalidCompression:
    return InvalidCompression(codec, f"expands to more than the {limit} bytes allowed for it")


def _expand_zlib(body: Buffer, limit: int) -> bytes:
    expander = zlib.decompressobj()
    try:
        plain = expander.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidCompression("zlib", f"is damaged: {error}") from None
    if len(plain) > limit:
        raise _too_large("zlib", limit)
    if not expander.eof:
        raise InvalidCompression("zlib", "is cut off")
    return plain


def _expand_lz4(body: Buffer, limit: int) -> bytes:
    expander = _lz4().LZ4FrameDecompressor()
    parts: list[bytes] = []
    size = 0
    rest: Buffer = bytes(body)
    try:
        while not expander.eof:
            part = expander.decompress(rest, max_length=min(_STEP_BYTES, limit + 1 - size))
            rest = b""
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large("lz4", limit)
            if not part and not expander.eof:
                raise InvalidCompression("lz4", "is cut off")
    except (RuntimeError, EOFError, ValueError) as error:
        raise InvalidCompression("lz4", f"is damaged: {error}") from None
    return b"".join(parts)


def _expand_zstd(body: Buffer, limit: int) -> bytes:
    library = _zstd()
    data = bytes(body)
    try:
        # -1: the frame does not say. What it says is not believed, only used to refuse early.
        if library.frame_content_size(data) > limit:
            raise _too_large("zstd", limit)
        expander = library.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
        plain: bytes = expander.decompress(data, max_output_size=limit)
    except library.ZstdError as error:
        raise InvalidCompression(
            "zstd", f"is damaged, cut off, or expands to more than {limit} bytes: {error}"
        ) from None
    if len(plain) > limit:
        raise _too_large("zstd", limit)
    return plain


@functools.cache
def _lz4() -> Any:
    return _import("lz4.frame", "lz4", "an LZ4 compressed body")


@functools.cache
def _zstd() -> Any:
    return _import("zstandard", "zstd", "a Zstandard compressed body")


def _import(module: str, extra: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(extra, purpose) from None
