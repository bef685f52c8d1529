# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twins of the functions in sums.py, which specifies them.

No length is used before it is compared with the room that is left, whoever wrote it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp

cdef extern from "crc32.h":
    void sky_crc_prepare() noexcept nogil
    uint32_t sky_crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define SKY_PREFETCH(p) __builtin_prefetch(p)
    #else
    #define SKY_PREFETCH(p) ((void)0)
    #endif
    """
    void prefetch "SKY_PREFETCH"(const uint8_t *p) noexcept nogil

cdef enum:
    FIXED_SIZE = 91
    BLOCK_BYTES = 512
    ENTRIES_MAX = 61
    ENTRIES_AT = 24
    ENTRY_BYTES = 8

cdef uint32_t MAGIC = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef object _SumCheck

sky_crc_prepare()


def bind(sum_check):
    """Take over what lives in sums.py; it cannot be imported from here, being half imported."""
    global _SumCheck
    _SumCheck = sum_check


cdef inline uint32_t _get32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int64_t _get64(const uint8_t *p) noexcept nogil:
    return <int64_t>((<uint64_t>_get32(p) << 32) | _get32(p + 4))


cdef inline void _put32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value


cdef struct Record:
    int64_t size, stored_ms
    uint32_t sum


cdef bint _read(const uint8_t *p, int64_t room, Record *record) noexcept nogil:
    """Whether a whole record lies here, and its size, sum and store time."""
    cdef uint32_t magic, flags
    cdef int64_t stored_at, body_at, body_end
    if room < FIXED_SIZE:
        return False
    record.size = <int32_t>_get32(p)
    magic = _get32(p + 4)
    if record.size < FIXED_SIZE or record.size > room or (magic != MAGIC and magic != MAGIC_V2):
        return False
    # The next record's head, and this one's end: most of the time goes into waiting for memory.
    prefetch(p + record.size)
    prefetch(p + record.size + 64)
    prefetch(p + record.size - 64)
    flags = _get32(p + 36)
    stored_at = 48 + (20 if flags & 0x10 else 8)
    body_at = stored_at + 8 + (20 if flags & 0x20 else 8) + 16
    record.stored_ms = _get64(p + stored_at)
    if magic == MAGIC and body_at <= record.size:
        body_end = body_at + <int32_t>_get32(p + body_at - 4)
        if body_at <= body_end <= record.size:
            record.sum = sky_crc32(
                sky_crc32(0, p, body_at), p + body_end, <size_t>(record.size - body_end)
            )
            return True
    record.sum = sky_crc32(0, p, <size_t>record.size)
    return True


def sum_records(buffer, Py_ssize_t at, Py_ssize_t end):
    """See sums.sum_records."""
    cdef Py_buffer view
    cdef Record record
    cdef const uint8_t *memory
    cdef uint8_t *entries = NULL
    cdef uint8_t *larger
    cdef Py_ssize_t count = 0, room = 0
    cdef int64_t newest_ms = -1
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or end > view.len or view.len > 0x7FFFFFFF:
            raise ValueError("the range lies outside the buffer")
        memory = <const uint8_t *>view.buf
        while _read(memory + at, end - at, &record):
            if count == room:
                room = 2 * room + 64
                larger = <uint8_t *>realloc(entries, room * ENTRY_BYTES)
                if larger == NULL:
                    raise MemoryError()
                entries = larger
            at += record.size
            _put32(entries + count * ENTRY_BYTES, <uint32_t>at)
            _put32(entries + count * ENTRY_BYTES + 4, record.sum)
            count += 1
            if record.stored_ms > newest_ms:
                newest_ms = record.stored_ms
        return PyBytes_FromStringAndSize(<char *>entries, count * ENTRY_BYTES), at, newest_ms
    finally:
        free(entries)
        PyBuffer_Release(&view)


cdef struct Covered:
    const uint8_t *content
    int64_t size, block_at  # The next block to look at.
    const uint8_t *entry
    int64_t left  # Entries of the block that follow.
    int64_t first, last, newest_ms
    uint32_t sum


cdef void _next(Covered *covered) noexcept nogil:
    """Go on to the next record that is covered; first is beyond every file where there is none."""
    cdef const uint8_t *block
    cdef int64_t count
    while covered.left == 0:
        if covered.block_at + BLOCK_BYTES > covered.size:
            covered.first = covered.last = 1LL << 62
            covered.newest_ms = -1
            return
        block = covered.content + covered.block_at
        covered.block_at += BLOCK_BYTES
        count = (block[12] << 8) | block[13]
        if (
            memcmp(block, b"SKS1", 4) != 0 or not 1 <= count <= ENTRIES_MAX
            or block[14] or block[15]
            or sky_crc32(0, block + 8, BLOCK_BYTES - 8) != _get32(block + 4)
        ):
            continue
        covered.last = _get32(block + 8)
        covered.newest_ms = _get64(block + 16)
        covered.entry = block + ENTRIES_AT
        covered.left = count
    covered.first = covered.last
    covered.last = _get32(covered.entry)
    covered.sum = _get32(covered.entry + 4)
    covered.entry += ENTRY_BYTES
    covered.left -= 1


def check_sums(buffer, int64_t base, Py_ssize_t at, Py_ssize_t end, bytes content not None):
    """See sums.check_sums."""
    cdef Py_buffer view
    cdef Record record
    cdef Covered covered
    cdef const uint8_t *memory
    cdef int64_t matched_end = at
    cdef bint is_gapless = True
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or end > view.len or not 0 <= base <= 0x7FFFFFFF:
            raise ValueError("the range lies outside the buffer")
        memory = <const uint8_t *>view.buf
        covered.content = <const uint8_t *>PyBytes_AS_STRING(content)
        covered.size = PyBytes_GET_SIZE(content)
        covered.block_at = covered.left = 0
        _next(&covered)
        while _read(memory + at, end - at, &record):
            while covered.last <= base + at:
                _next(&covered)
            if covered.first >= base + at + record.size:
                is_gapless = False
            elif (
                covered.first != base + at or covered.last != base + at + record.size
                or covered.sum != record.sum
            ):
                return _SumCheck(at, matched_end, True, covered.newest_ms)
            elif is_gapless:
                matched_end = at + record.size
            at += record.size
        return _SumCheck(at, matched_end, False, -1)
    finally:
        PyBuffer_Release(&view)
