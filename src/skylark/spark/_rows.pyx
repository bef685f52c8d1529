# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of rows.py: Arrow's columns in, entries of a batch request out.

For rows that have a body and perhaps a tag and keys. Whatever the pure code would refuse is left
to it, so that both say the same: encode() then returns no rows.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memchr, memcpy

cdef enum:
    HEAD_BYTES = 20
    ENTRY_BYTES_MIN = 22
    ROW_PROPERTIES_BYTES_MAX = 31743
    ROWS_MAX = 65536  # The counter of ids goes round after these.

cdef const char *_TAGS = b"TAGS\x01"
cdef const char *_KEYS = b"KEYS\x01"
cdef const char *_ID = b"UNIQ_KEY\x01"
cdef const char *_WAIT = b"\002WAIT\001true"
cdef const char *_HEX = b"0123456789ABCDEF"

cdef struct Column:
    const uint8_t *valid  # NULL: no row is null.
    const int32_t *ends
    const uint8_t *data
    Py_ssize_t first


cdef inline void _put32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = (value >> 16) & 0xFF
    at[2] = (value >> 8) & 0xFF
    at[3] = value & 0xFF


cdef inline bint _is_null(const Column *column, Py_ssize_t row) noexcept nogil:
    row += column.first
    return column.valid != NULL and not (column.valid[row >> 3] >> (row & 7)) & 1


cdef inline Py_ssize_t _size(const Column *column, Py_ssize_t row) noexcept nogil:
    row += column.first
    return column.ends[row + 1] - column.ends[row]


cdef inline const uint8_t *_at(const Column *column, Py_ssize_t row) noexcept nogil:
    return column.data + column.ends[column.first + row]


cdef inline bint _is_plain(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Whether a text has neither of the separators."""
    return size == 0 or (memchr(at, 1, size) == NULL and memchr(at, 2, size) == NULL)


cdef bint _is_one_tag(const uint8_t *at, Py_ssize_t size) except -1:
    """Whether a text is neither blank nor has a ||."""
    cdef const uint8_t *end = at + size
    cdef const uint8_t *bar = at
    if size == 0:
        return True
    while True:
        bar = <const uint8_t *>memchr(bar, 124, end - bar)
        if bar == NULL or bar + 1 == end:
            break
        bar += 1
        if bar[0] == 124:
            return False
    # No blank of Unicode's begins with any other byte.
    if at[0] > 0x20 and at[0] not in (0xC2, 0xE1, 0xE2, 0xE3):
        return True
    return not (<const char *>at)[:size].decode("utf-8", "replace").isspace()


cdef inline uint8_t *_put(uint8_t *at, const void *data, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(at, data, size)
    return at + size


cdef class Columns:
    """The buffers of a batch: body, tag and keys, each as (validity, ends, data, first row)."""

    cdef Column body, tag, keys
    cdef bint has_tag, has_keys
    cdef object _kept
    cdef readonly Py_ssize_t rows

    def __init__(self, Py_ssize_t rows, body, tag, keys):
        self.rows = rows
        self._kept = []
        self._take(&self.body, body)
        self.has_tag = tag is not None
        self.has_keys = keys is not None
        if self.has_tag:
            self._take(&self.tag, tag)
        if self.has_keys:
            self._take(&self.keys, keys)

    cdef int _take(self, Column *column, parts) except -1:
        cdef const uint8_t[::1] valid
        cdef const uint8_t[::1] ends
        cdef const uint8_t[::1] data
        validity, offsets, values, first = parts
        column.first = first
        column.valid = NULL
        column.data = NULL
        if validity is not None:
            valid = validity
            assert valid.shape[0] * 8 >= column.first + self.rows
            column.valid = &valid[0]
            self._kept.append(valid)
        ends = offsets
        assert ends.shape[0] >= (column.first + self.rows + 1) * 4
        column.ends = <const int32_t *>&ends[0]
        self._kept.append(ends)
        if values is not None and len(values):
            data = values
            column.data = &data[0]
            self._kept.append(data)
        return 0

    def encode(self, Py_ssize_t start, Py_ssize_t bytes_max, bytes mark, uint32_t counter):
        """Rows from one on as entries, about as many bytes as asked for; and how many rows.

        The mark is what all ids begin with; the counter follows it, in four hex digits. (b"", 0) if
        the pure code has to look at the first row.
        """
        cdef Py_ssize_t row = start, size = 0, total = 0, body_bytes, tag_bytes, keys_bytes
        cdef Py_ssize_t texts, mark_bytes = len(mark), id_bytes, end
        cdef const uint8_t *mark_at = <const uint8_t *>PyBytes_AS_STRING(mark)
        cdef const uint8_t *hexes = <const uint8_t *>_HEX
        cdef uint8_t *at
        cdef int shift
        id_bytes = 9 + mark_bytes + 4 + 10
        while row < self.rows and row - start < ROWS_MAX:
            if _is_null(&self.body, row):
                break
            body_bytes = _size(&self.body, row)
            texts = id_bytes
            if self.has_tag and not _is_null(&self.tag, row):
                tag_bytes = _size(&self.tag, row)
                if not _is_plain(_at(&self.tag, row), tag_bytes):
                    break
                if not _is_one_tag(_at(&self.tag, row), tag_bytes):
                    break
                texts += 5 + tag_bytes + 1
            if self.has_keys and not _is_null(&self.keys, row):
                keys_bytes = _size(&self.keys, row)
                if not _is_plain(_at(&self.keys, row), keys_bytes):
                    break
                if keys_bytes:
                    texts += 5 + keys_bytes + 1
            if texts > ROW_PROPERTIES_BYTES_MAX:
                break
            if row > start and size + body_bytes + texts > bytes_max:
                break
            size += body_bytes + texts
            total += ENTRY_BYTES_MIN + body_bytes + texts
            row += 1
        end = row
        if end == start:
            return b"", 0
        data = PyBytes_FromStringAndSize(NULL, total)
        at = <uint8_t *>PyBytes_AS_STRING(data)
        with nogil:
            for row in range(start, end):
                body_bytes = _size(&self.body, row)
                tag_bytes = -1
                keys_bytes = 0
                texts = id_bytes
                if self.has_tag and not _is_null(&self.tag, row):
                    tag_bytes = _size(&self.tag, row)
                    texts += 5 + tag_bytes + 1
                if self.has_keys and not _is_null(&self.keys, row):
                    keys_bytes = _size(&self.keys, row)
                    if keys_bytes:
                        texts += 5 + keys_bytes + 1
                _put32(at, <uint32_t>(ENTRY_BYTES_MIN + body_bytes + texts))
                _put32(at + 4, 0)
                _put32(at + 8, 0)
                _put32(at + 12, 0)
                _put32(at + 16, <uint32_t>body_bytes)
                at = _put(at + HEAD_BYTES, _at(&self.body, row), body_bytes)
                at[0] = texts >> 8
                at[1] = texts & 0xFF
                at += 2
                if tag_bytes >= 0:
                    at = _put(at, _TAGS, 5)
                    at = _put(at, _at(&self.tag, row), tag_bytes)
                    at[0] = 2
                    at += 1
                if keys_bytes:
                    at = _put(at, _KEYS, 5)
                    at = _put(at, _at(&self.keys, row), keys_bytes)
                    at[0] = 2
                    at += 1
                at = _put(at, _ID, 9)
                at = _put(at, mark_at, mark_bytes)
                for shift in range(4):
                    at[shift] = hexes[(counter >> (12 - 4 * shift)) & 0xF]
                at += 4
                at = _put(at, _WAIT, 10)
                counter = (counter + 1) & 0xFFFF
        return data, end - start
