# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of columns.py: records in, the buffers of Arrow's columns out.

Every length is checked against the end of the input before it is used. What is not the usual case
makes build() return None, and the pure code looks at it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

cdef enum:
    MAGIC = 0xDAA320A7
    HEAD_BYTES = 48
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    COMPRESSED = 0x1
    PAIRS_MAX = 128

cdef struct Record:
    const uint8_t *head
    const uint8_t *stored
    const uint8_t *tail
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    Py_ssize_t size

cdef struct Pair:
    const uint8_t *name
    Py_ssize_t name_bytes
    const uint8_t *value
    Py_ssize_t value_bytes


cdef inline uint32_t _u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int32_t _i32(const uint8_t *at) noexcept nogil:
    return <int32_t>_u32(at)


cdef inline int64_t _i64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>_u32(at) << 32) | _u32(at + 4))


cdef bint _is_utf8(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Well-formed UTF-8, as the Unicode standard's table 3-7 has it."""
    cdef Py_ssize_t i = 0
    cdef uint8_t first, second
    while i < size:
        first = at[i]
        if first < 0x80:
            i += 1
        elif 0xC2 <= first <= 0xDF:
            if i + 1 >= size or (at[i + 1] & 0xC0) != 0x80:
                return False
            i += 2
        elif 0xE0 <= first <= 0xEF:
            if i + 2 >= size:
                return False
            second = at[i + 1]
            if (second & 0xC0) != 0x80 or (at[i + 2] & 0xC0) != 0x80:
                return False
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return False
            i += 3
        elif 0xF0 <= first <= 0xF4:
            if i + 3 >= size:
                return False
            second = at[i + 1]
            if (
                (second & 0xC0) != 0x80
                or (at[i + 2] & 0xC0) != 0x80
                or (at[i + 3] & 0xC0) != 0x80
            ):
                return False
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
                return False
            i += 4
        else:
            return False
    return True


cdef bint _walk(const uint8_t *data, Py_ssize_t room, Record *record) noexcept nogil:
    """Find the parts of the record at data; False if it is not one of the usual form."""
    cdef int32_t sys_flag
    cdef Py_ssize_t at
    if room < 91 or _u32(data + 4) != MAGIC:
        return False
    sys_flag = _i32(data + 36)
    if sys_flag & COMPRESSED:
        return False
    record.head = data
    at = HEAD_BYTES + (20 if sys_flag & BORN_V6 else 8)
    record.stored = data + at
    at += 8 + (20 if sys_flag & STORE_V6 else 8)
    record.tail = data + at
    at += 16
    if at + 1 > room:
        return False
    record.body = data + at
    record.body_bytes = _i32(record.tail + 12)
    if record.body_bytes < 0 or record.body_bytes > room - at - 1:
        return False
    at += record.body_bytes
    record.topic_bytes = data[at]
    if record.topic_bytes > 127:
        return False
    at += 1
    record.topic = data + at
    if record.topic_bytes + 2 > room - at:
        return False
    at += record.topic_bytes
    record.properties_bytes = (<Py_ssize_t>data[at] << 8) | data[at + 1]
    at += 2
    record.properties = data + at
    if record.properties_bytes > 32767 or record.properties_bytes > room - at:
        return False
    record.size = at + record.properties_bytes
    return record.size == _i32(data)


cdef int _pairs(const Record *record, Pair *found) noexcept nogil:
    """Split properties; the number of pairs, or -1 where the pure code must look."""
    cdef const uint8_t *at = record.properties
    cdef const uint8_t *end = at + record.properties_bytes
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    cdef int count = 0
    cdef int other
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        middle = <const uint8_t *>memchr(at, 1, stop - at)
        if middle != NULL and middle > at and middle + 1 < stop:
            if count >= PAIRS_MAX:
                return -1
            found[count].name = at
            found[count].name_bytes = middle - at
            found[count].value = middle + 1
            found[count].value_bytes = stop - middle - 1
            for other in range(count):
                # The last of two with one name counts; rare enough to be left to others.
                if (
                    found[other].name_bytes == found[count].name_bytes
                    and memcmp(found[other].name, at, found[count].name_bytes) == 0
                ):
                    return -1
            count += 1
        at = stop + 1
    return count


cdef inline Pair *_find(Pair *pairs, int count, const char *name, Py_ssize_t size) noexcept nogil:
    cdef int i
    for i in range(count):
        if pairs[i].name_bytes == size and memcmp(pairs[i].name, name, size) == 0:
            return &pairs[i]
    return NULL


cdef class _Column:
    """One column under construction: the buffers that Arrow wants."""

    cdef bytearray validity
    cdef bytearray offsets
    cdef bytearray data
    cdef uint8_t *_validity
    cdef int32_t *_offsets
    cdef uint8_t *_data
    cdef int64_t used
    cdef Py_ssize_t room
    cdef bint has_nulls

    def __cinit__(self, Py_ssize_t count, Py_ssize_t width, Py_ssize_t room, bint is_text):
        self.validity = bytearray((count + 7) // 8)
        self._validity = <uint8_t *>PyByteArray_AS_STRING(self.validity)
        memset(self._validity, 0xFF, len(self.validity))
        self.offsets = bytearray(4 * (count + 1) if is_text else 0)
        self._offsets = <int32_t *>PyByteArray_AS_STRING(self.offsets)
        self.room = room if is_text else count * width
        self.data = bytearray(self.room)
        self._data = <uint8_t *>PyByteArray_AS_STRING(self.data)
        self.used = 0
        self.has_nulls = False

    cdef inline void text(self, Py_ssize_t row, const uint8_t *at, Py_ssize_t size) noexcept:
        self._offsets[row] = <int32_t>self.used
        memcpy(self._data + self.used, at, size)
        self.used += size
        self._offsets[row + 1] = <int32_t>self.used

    cdef inline void null(self, Py_ssize_t row) noexcept:
        self._offsets[row] = <int32_t>self.used
        self._offsets[row + 1] = <int32_t>self.used
        self._validity[row >> 3] &= ~(1 << (row & 7))
        self.has_nulls = True

    cdef inline void i32(self, Py_ssize_t row, int32_t value) noexcept:
        (<int32_t *>self._data)[row] = value

    cdef inline void i64(self, Py_ssize_t row, int64_t value) noexcept:
        (<int64_t *>self._data)[row] = value

    cdef tuple buffers(self):
        validity = self.validity if self.has_nulls else None
        if len(self.offsets) or self.room == 0:
            return validity, self.offsets, self.data
        return validity, self.data


cdef enum:
    W_TOPIC = 1
    W_QUEUE_ID = 2
    W_QUEUE_OFFSET = 4
    W_BODY = 8
    W_TAG = 16
    W_KEYS = 32
    W_PROPERTIES = 64
    W_MESSAGE_ID = 128
    W_BORN = 256
    W_STORE = 512
    W_RECONSUME = 1024
    W_FLAG = 2048
    W_SYS_FLAG = 4096
    W_PHYSICAL = 8192

_BITS = {
    "topic": W_TOPIC, "queue_id": W_QUEUE_ID, "queue_offset": W_QUEUE_OFFSET, "body": W_BODY,
    "tag": W_TAG, "keys": W_KEYS, "properties": W_PROPERTIES, "message_id": W_MESSAGE_ID,
    "born_time": W_BORN, "store_time": W_STORE, "reconsume_times": W_RECONSUME, "flag": W_FLAG,
    "sys_flag": W_SYS_FLAG, "physical_offset": W_PHYSICAL, "broker": 0,
}
cdef const char *_HEX = "0123456789ABCDEF"


def build(data, int64_t start, int64_t end, columns, tags):
    """The number of messages in [start, end) and the buffers of their columns; None: not usual."""
    cdef const uint8_t[::1] view = data
    cdef const uint8_t *base = &view[0] if view.shape[0] else NULL
    cdef Py_ssize_t size = view.shape[0]
    cdef Py_ssize_t at = 0, count = 0, row = 0, pairs_total = 0
    cdef Py_ssize_t body_bytes = 0, topic_bytes = 0, text_bytes = 0, id_bytes = 0
    cdef int wanted = 0, pair_count = 0, i
    cdef Record record
    cdef Pair pairs[PAIRS_MAX]
    cdef Pair *found
    cdef int64_t offset
    cdef bint needs_pairs
    for name in columns:
        if name not in _BITS:
            return None
        wanted |= <int>_BITS[name]
    needs_pairs = tags is not None or wanted & (W_TAG | W_KEYS | W_PROPERTIES | W_MESSAGE_ID)
    keep = bytearray(size // 91 + 1)
    cdef uint8_t *_keep = <uint8_t *>PyByteArray_AS_STRING(keep)
    cdef Py_ssize_t number = 0
    while at < size:
        if not _walk(base + at, size - at, &record):
            return None
        at += record.size
        offset = _i64(record.head + 20)
        number += 1
        if offset < start or offset >= end:
            continue
        if needs_pairs:
            if not _is_utf8(record.properties, record.properties_bytes):
                return None
            pair_count = _pairs(&record, pairs)
            if pair_count < 0:
                return None
            if tags is not None:
                found = _find(pairs, pair_count, "TAGS", 4)
                if found == NULL or found.value[:found.value_bytes] not in tags:
                    continue
            if wanted & W_MESSAGE_ID:
                found = _find(pairs, pair_count, "UNIQ_KEY", 8)
                if found == NULL and _i32(record.head + 36) & STORE_V6:
                    return None
                id_bytes += 32 if found == NULL else found.value_bytes
        if wanted & W_TOPIC and not _is_utf8(record.topic, record.topic_bytes):
            return None
        _keep[number - 1] = 1
        count += 1
        body_bytes += record.body_bytes
        topic_bytes += record.topic_bytes
        text_bytes += record.properties_bytes
        pairs_total += pair_count
    if count == 0:
        return 0, {}
    if body_bytes > 2147483647 or text_bytes > 2147483647:
        return None

    cdef _Column topic = _Column(count if wanted & W_TOPIC else 0, 0, topic_bytes, True)
    cdef _Column queue_id = _Column(count if wanted & W_QUEUE_ID else 0, 4, 0, False)
    cdef _Column queue_offset = _Column(count if wanted & W_QUEUE_OFFSET else 0, 8, 0, False)
    cdef _Column body = _Column(
        count if wanted & W_BODY else 0, 0, body_bytes if wanted & W_BODY else 0, True
    )
    cdef _Column tag = _Column(
        count if wanted & W_TAG else 0, 0, text_bytes if wanted & W_TAG else 0, True
    )
    cdef _Column keys = _Column(
        count if wanted & W_KEYS else 0, 0, text_bytes if wanted & W_KEYS else 0, True
    )
    cdef _Column message_id = _Column(
        count if wanted & W_MESSAGE_ID else 0, 0, id_bytes if wanted & W_MESSAGE_ID else 0, True
    )
    cdef _Column born = _Column(count if wanted & W_BORN else 0, 8, 0, False)
    cdef _Column stored = _Column(count if wanted & W_STORE else 0, 8, 0, False)
    cdef _Column reconsume = _Column(count if wanted & W_RECONSUME else 0, 4, 0, False)
    cdef _Column flag = _Column(count if wanted & W_FLAG else 0, 4, 0, False)
    cdef _Column sys_flag = _Column(count if wanted & W_SYS_FLAG else 0, 4, 0, False)
    cdef _Column physical = _Column(count if wanted & W_PHYSICAL else 0, 8, 0, False)
    cdef bint has_map = wanted & W_PROPERTIES
    map_offsets = bytearray(4 * (count + 1) if has_map else 0)
    cdef int32_t *_map_offsets = <int32_t *>PyByteArray_AS_STRING(map_offsets)
    cdef _Column names = _Column(
        pairs_total if has_map else 0, 0, text_bytes if has_map else 0, True
    )
    cdef _Column values = _Column(
        pairs_total if has_map else 0, 0, text_bytes if has_map else 0, True
    )
    cdef Py_ssize_t pair_row = 0
    cdef uint8_t place[32]
    cdef const uint8_t *hexed = <const uint8_t *>_HEX
    at = 0
    number = 0
    while at < size:
        _walk(base + at, size - at, &record)
        at += record.size
        number += 1
        if not _keep[number - 1]:
            continue
        if needs_pairs:
            pair_count = _pairs(&record, pairs)
        if wanted & W_TOPIC:
            topic.text(row, record.topic, record.topic_bytes)
        if wanted & W_QUEUE_ID:
            queue_id.i32(row, _i32(record.head + 12))
        if wanted & W_QUEUE_OFFSET:
            queue_offset.i64(row, _i64(record.head + 20))
        if wanted & W_BODY:
            body.text(row, record.body, record.body_bytes)
        if wanted & W_TAG:
            found = _find(pairs, pair_count, "TAGS", 4)
            if found == NULL:
                tag.null(row)
            else:
                tag.text(row, found.value, found.value_bytes)
        if wanted & W_KEYS:
            found = _find(pairs, pair_count, "KEYS", 4)
            if found == NULL:
                keys.null(row)
            else:
                keys.text(row, found.value, found.value_bytes)
        if wanted & W_MESSAGE_ID:
            found = _find(pairs, pair_count, "UNIQ_KEY", 8)
            if found == NULL:
                for i in range(8):
                    place[2 * i] = hexed[record.stored[8 + i] >> 4]
                    place[2 * i + 1] = hexed[record.stored[8 + i] & 15]
                    place[16 + 2 * i] = hexed[record.head[28 + i] >> 4]
                    place[17 + 2 * i] = hexed[record.head[28 + i] & 15]
                message_id.text(row, place, 32)
            else:
                message_id.text(row, found.value, found.value_bytes)
        if wanted & W_BORN:
            born.i64(row, _i64(record.head + 40) * 1000)
        if wanted & W_STORE:
            stored.i64(row, _i64(record.stored) * 1000)
        if wanted & W_RECONSUME:
            reconsume.i32(row, _i32(record.tail))
        if wanted & W_FLAG:
            flag.i32(row, _i32(record.head + 16))
        if wanted & W_SYS_FLAG:
            sys_flag.i32(row, _i32(record.head + 36))
        if wanted & W_PHYSICAL:
            physical.i64(row, _i64(record.head + 28))
        if has_map:
            _map_offsets[row] = <int32_t>pair_row
            for i in range(pair_count):
                names.text(pair_row, pairs[i].name, pairs[i].name_bytes)
                values.text(pair_row, pairs[i].value, pairs[i].value_bytes)
                pair_row += 1
            _map_offsets[row + 1] = <int32_t>pair_row
        row += 1
    built = {}
    for name, column in (
        ("topic", topic), ("queue_id", queue_id), ("queue_offset", queue_offset), ("body", body),
        ("tag", tag), ("keys", keys), ("message_id", message_id), ("born_time", born),
        ("store_time", stored), ("reconsume_times", reconsume), ("flag", flag),
        ("sys_flag", sys_flag), ("physical_offset", physical),
    ):
        if wanted & <int>_BITS[name]:
            built[name] = (<_Column>column).buffers()
    if has_map:
        built["properties"] = (map_offsets, names.offsets, names.data, values.offsets, values.data)
        built["pairs"] = pair_row
    return count, built
