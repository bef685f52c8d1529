# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of columns.py: records in, the buffers of Arrow's columns out.

    build()           records back to back, as a pull brings them
    build_entries()   records in a mapped log file, found through entries of a consume queue

Every length is checked against the end of the input before it is used. Both stop before a record
that is not of the usual form, and the pure code looks at it. Bytes are copied once: from where the
record lies to the column.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    MAGIC = 0xDAA320A7
    HEAD_BYTES = 48
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    COMPRESSED = 0x1
    PAIRS_MAX = 128
    FIXED_BYTES = 91
    ENTRY_BYTES = 20
    HASHES_MAX = 64
    HOST_CHARS_MAX = 28
    # Why build_entries() stopped.
    AT_END = 0
    ELSEWHERE = 1
    UNSOUND = 2
    UNUSUAL = 3

# As TIME_MS_MIN and TIME_MS_MAX in columns.py.
cdef int64_t TIME_MS_MIN = -62135424000000
cdef int64_t TIME_MS_MAX = 253402214399999

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
    int32_t sys_flag
    int pair_count
    Py_ssize_t first_pair

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


cdef inline int64_t _micros(int64_t at_ms) noexcept nogil:
    return min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX) * 1000


cdef bint _is_utf8(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Well-formed UTF-8, as the Unicode standard's table 3-7 has it."""
    cdef Py_ssize_t i = 0
    cdef uint8_t first, second
    cdef uint64_t eight
    while i < size:
        if i + 8 <= size:
            memcpy(&eight, at + i, 8)
            if not eight & <uint64_t>0x8080808080808080:
                i += 8
                continue
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
    if room < FIXED_BYTES or _u32(data + 4) != MAGIC:
        return False
    sys_flag = _i32(data + 36)
    record.sys_flag = sys_flag
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
        # Names and values are short: to look at each byte takes less than to call for help.
        middle = NULL
        stop = at
        while stop < end and stop[0] != 2:
            if stop[0] == 1 and middle == NULL:
                middle = stop
            stop += 1
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
                    and found[other].name[0] == at[0]
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


cdef enum:
    KEPT_FROM_BYTES = 65536
    KEPT_MAX = 48
    KEPT_BYTES_MAX = 67108864

cdef void *_kept[KEPT_MAX]
cdef size_t _kept_sizes[KEPT_MAX]
cdef int _kept_count = 0
cdef size_t _kept_bytes = 0


cdef class _Block:
    """Memory that Arrow reads; when it is done with, the next batch takes it.

    Fresh memory costs more than to fill it: the system hands over every page by itself, zeroed.
    """

    cdef char *data
    cdef Py_ssize_t size
    cdef size_t room

    def __cinit__(self, Py_ssize_t size):
        global _kept_count, _kept_bytes
        cdef int i
        self.size = size
        self.room = 64
        while self.room < <size_t>size:
            self.room *= 2
        for i in range(_kept_count if self.room >= KEPT_FROM_BYTES else 0):
            if _kept_sizes[i] == self.room:
                self.data = <char *>_kept[i]
                _kept_count -= 1
                _kept_bytes -= self.room
                _kept[i] = _kept[_kept_count]
                _kept_sizes[i] = _kept_sizes[_kept_count]
                return
        self.data = <char *>malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        global _kept_count, _kept_bytes
        if (
            self.data != NULL
            and self.room >= KEPT_FROM_BYTES
            and _kept_count < KEPT_MAX
            and _kept_bytes + self.room <= KEPT_BYTES_MAX
        ):
            _kept[_kept_count] = self.data
            _kept_sizes[_kept_count] = self.room
            _kept_count += 1
            _kept_bytes += self.room
        else:
            free(self.data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size

    cdef _Block grown(self):
        """One of twice the size, with the same content."""
        cdef _Block found = _Block(2 * self.size)
        memcpy(found.data, self.data, self.size)
        return found


cdef class _Column:
    """One column under construction: the buffers that Arrow wants."""

    cdef _Block validity
    cdef _Block offsets
    cdef _Block data
    cdef uint8_t *_validity
    cdef int32_t *_offsets
    cdef uint8_t *_data
    cdef int64_t used
    cdef Py_ssize_t room
    cdef bint has_nulls
    cdef bint is_text
    cdef bint is_short

    def __cinit__(self, Py_ssize_t count, Py_ssize_t width, Py_ssize_t room, bint is_text):
        # What is not filled is not handed over, so nothing needs to be zero.
        self.validity = _Block((count + 7) // 8)
        self._validity = <uint8_t *>self.validity.data
        memset(self._validity, 0xFF, (count + 7) // 8)
        self.is_text = is_text
        self.offsets = _Block(4 * (count + 1) if is_text else 0)
        self._offsets = <int32_t *>self.offsets.data
        if is_text:
            self._offsets[0] = 0
        self.room = room if is_text else count * width
        self.data = _Block(self.room)
        self._data = <uint8_t *>self.data.data
        self.used = 0
        self.has_nulls = False
        self.is_short = False

    cdef inline void text(self, Py_ssize_t row, const uint8_t *at, Py_ssize_t size) noexcept:
        # A mapped file may change under its reader; what was counted is what there is room for.
        if size > self.room - self.used:
            self.is_short = True
            size = 0
        memcpy(self._data + self.used, at, size)
        self.used += size
        self._offsets[row + 1] = <int32_t>self.used

    cdef inline void null(self, Py_ssize_t row) noexcept:
        self._offsets[row + 1] = <int32_t>self.used
        self._validity[row >> 3] &= ~(1 << (row & 7))
        self.has_nulls = True

    cdef inline void pair(self, Py_ssize_t row, Pair *found) noexcept:
        if found == NULL:
            self.null(row)
        else:
            self.text(row, found.value, found.value_bytes)

    cdef inline void i32(self, Py_ssize_t row, int32_t value) noexcept:
        (<int32_t *>self._data)[row] = value

    cdef inline void i64(self, Py_ssize_t row, int64_t value) noexcept:
        (<int64_t *>self._data)[row] = value

    cdef tuple buffers(self):
        validity = self.validity if self.has_nulls else None
        if self.is_text:
            assert self.used <= 0x7FFFFFFF  # Arrow's offsets; pullBytes has a ceiling far below.
            return validity, self.offsets, memoryview(self.data)[:self.used]
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
    W_BORN_HOST = 16384
    W_STORE_HOST = 32768
    W_OFFSET_ID = 65536

_BITS = {
    "topic": W_TOPIC, "queue_id": W_QUEUE_ID, "queue_offset": W_QUEUE_OFFSET, "body": W_BODY,
    "tag": W_TAG, "keys": W_KEYS, "properties": W_PROPERTIES, "message_id": W_MESSAGE_ID,
    "born_time": W_BORN, "store_time": W_STORE, "reconsume_times": W_RECONSUME, "flag": W_FLAG,
    "sys_flag": W_SYS_FLAG, "physical_offset": W_PHYSICAL, "born_host": W_BORN_HOST,
    "store_host": W_STORE_HOST, "offset_message_id": W_OFFSET_ID, "broker": 0,
}
cdef const char *_HEX = "0123456789ABCDEF"


cdef inline Py_ssize_t _digits(uint8_t *to, uint32_t value) noexcept nogil:
    cdef uint8_t reversed_[10]
    cdef Py_ssize_t count = 0, i
    while True:
        reversed_[count] = 48 + value % 10
        count += 1
        value //= 10
        if value == 0:
            break
    for i in range(count):
        to[i] = reversed_[count - 1 - i]
    return count


cdef inline Py_ssize_t _host(uint8_t *to, const uint8_t *host) noexcept nogil:
    """An IPv4 address and a port as text."""
    cdef Py_ssize_t used = 0, i
    cdef int64_t port = _i32(host + 4)
    for i in range(4):
        used += _digits(to + used, host[i])
        to[used] = 46 if i < 3 else 58
        used += 1
    if port < 0:  # No port, but what the record says.
        to[used] = 45
        used += 1
        port = -port
    return used + _digits(to + used, <uint32_t>port)


cdef inline void _place(uint8_t *to, const Record *record) noexcept nogil:
    """The offset id: address and port of the broker, physical offset."""
    cdef const uint8_t *hexed = <const uint8_t *>_HEX
    cdef int i
    for i in range(8):
        to[2 * i] = hexed[record.stored[8 + i] >> 4]
        to[2 * i + 1] = hexed[record.stored[8 + i] & 15]
        to[16 + 2 * i] = hexed[record.head[28 + i] >> 4]
        to[17 + 2 * i] = hexed[record.head[28 + i] & 15]


cdef class _Rows:
    """The records that were chosen, and how much room their columns need."""

    cdef int wanted
    cdef bint needs_pairs
    cdef object tags
    cdef object expand
    cdef object wants
    cdef list expanded
    cdef _Block memory
    cdef Record *records
    cdef Py_ssize_t room
    cdef _Block pair_memory
    cdef Pair *pairs
    cdef Py_ssize_t pair_room
    cdef Py_ssize_t count
    cdef Py_ssize_t body_bytes, topic_bytes, text_bytes, id_bytes, pairs_total
    cdef Py_ssize_t bytes_max

    def __init__(self, columns, tags, expand, wants, Py_ssize_t bytes_max):
        self.wanted = 0
        for name in columns:
            self.wanted |= <int>_BITS[name]
        self.tags = tags
        self.expand = expand
        self.wants = wants
        self.expanded = []
        self.needs_pairs = tags is not None or (
            self.wanted & (W_TAG | W_KEYS | W_PROPERTIES | W_MESSAGE_ID)
        )
        self.room = 1024
        self.memory = _Block(self.room * sizeof(Record))
        self.records = <Record *>self.memory.data
        self.pair_room = 8 * 1024 if self.needs_pairs else 0
        self.pair_memory = _Block(self.pair_room * sizeof(Pair))
        self.pairs = <Pair *>self.pair_memory.data
        self.bytes_max = bytes_max

    cdef inline bint is_full(self) noexcept:
        return self.count > 0 and self.body_bytes + self.text_bytes >= self.bytes_max

    cdef int take(self, Record *record) except -2:
        """1 if the record is kept, 0 if it is not wanted, -1 where the pure code must look."""
        cdef Pair *pairs
        cdef Pair *found
        cdef int pair_count = 0
        cdef Py_ssize_t body_bytes = record.body_bytes
        if self.wants is not None:
            text = PyBytes_FromStringAndSize(
                <const char *>record.properties, record.properties_bytes
            )
            if not self.wants(text):
                return 0
        if self.needs_pairs:
            if not _is_utf8(record.properties, record.properties_bytes):
                return -1
            if self.pairs_total + PAIRS_MAX > self.pair_room:
                self.pair_room *= 2
                self.pair_memory = self.pair_memory.grown()
                self.pairs = <Pair *>self.pair_memory.data
            pairs = self.pairs + self.pairs_total
            pair_count = _pairs(record, pairs)
            if pair_count < 0:
                return -1
            if self.tags is not None:
                found = _find(pairs, pair_count, "TAGS", 4)
                if found == NULL or found.value[:found.value_bytes] not in self.tags:
                    return 0
            if self.wanted & W_MESSAGE_ID:
                found = _find(pairs, pair_count, "UNIQ_KEY", 8)
                if found == NULL and record.sys_flag & STORE_V6:
                    return -1
                self.id_bytes += 32 if found == NULL else found.value_bytes
        if self.wanted & W_TOPIC and not _is_utf8(record.topic, record.topic_bytes):
            return -1
        if self.wanted & W_BORN_HOST and record.sys_flag & BORN_V6:
            return -1
        if self.wanted & (W_STORE_HOST | W_OFFSET_ID) and record.sys_flag & STORE_V6:
            return -1
        if record.sys_flag & COMPRESSED and self.wanted & W_BODY:
            plain = self.expand(
                PyBytes_FromStringAndSize(<const char *>record.body, record.body_bytes),
                record.sys_flag,
            )
            if plain is None:
                return -1
            self.expanded.append(plain)
            body_bytes = PyBytes_GET_SIZE(plain)
        if self.count == self.room:
            self.room *= 2
            self.memory = self.memory.grown()
            self.records = <Record *>self.memory.data
        record.first_pair = self.pairs_total
        record.pair_count = pair_count
        self.records[self.count] = record[0]
        self.count += 1
        if self.wanted & W_BODY:
            self.body_bytes += body_bytes
        self.topic_bytes += record.topic_bytes
        self.text_bytes += record.properties_bytes
        self.pairs_total += pair_count
        return 1

    cdef dict columns(self):
        """Fill the columns; every record was looked at before."""
        cdef int wanted = self.wanted
        cdef Py_ssize_t count = self.count, row, pair_row = 0, plain_row = 0
        cdef int pair_count = 0, i
        cdef Record record
        cdef Pair *pairs
        cdef Pair *found
        cdef Py_ssize_t text_bytes = self.text_bytes
        cdef _Column topic = _Column(
            count if wanted & W_TOPIC else 0, 0, self.topic_bytes if wanted & W_TOPIC else 0, True
        )
        cdef _Column queue_id = _Column(count if wanted & W_QUEUE_ID else 0, 4, 0, False)
        cdef _Column queue_offset = _Column(count if wanted & W_QUEUE_OFFSET else 0, 8, 0, False)
        cdef _Column body = _Column(
            count if wanted & W_BODY else 0, 0, self.body_bytes if wanted & W_BODY else 0, True
        )
        cdef _Column tag = _Column(
            count if wanted & W_TAG else 0, 0, text_bytes if wanted & W_TAG else 0, True
        )
        cdef _Column keys = _Column(
            count if wanted & W_KEYS else 0, 0, text_bytes if wanted & W_KEYS else 0, True
        )
        cdef _Column message_id = _Column(
            count if wanted & W_MESSAGE_ID else 0,
            0,
            self.id_bytes if wanted & W_MESSAGE_ID else 0,
            True,
        )
        cdef _Column born = _Column(count if wanted & W_BORN else 0, 8, 0, False)
        cdef _Column stored = _Column(count if wanted & W_STORE else 0, 8, 0, False)
        cdef _Column reconsume = _Column(count if wanted & W_RECONSUME else 0, 4, 0, False)
        cdef _Column flag = _Column(count if wanted & W_FLAG else 0, 4, 0, False)
        cdef _Column sys_flag = _Column(count if wanted & W_SYS_FLAG else 0, 4, 0, False)
        cdef _Column physical = _Column(count if wanted & W_PHYSICAL else 0, 8, 0, False)
        cdef Py_ssize_t hosts = HOST_CHARS_MAX * count
        cdef _Column born_host = _Column(
            count if wanted & W_BORN_HOST else 0, 0, hosts if wanted & W_BORN_HOST else 0, True
        )
        cdef _Column store_host = _Column(
            count if wanted & W_STORE_HOST else 0, 0, hosts if wanted & W_STORE_HOST else 0, True
        )
        cdef _Column offset_id = _Column(
            count if wanted & W_OFFSET_ID else 0, 0, 32 * count if wanted & W_OFFSET_ID else 0, True
        )
        cdef bint has_map = wanted & W_PROPERTIES
        cdef _Block map_offsets = _Block(4 * (count + 1) if has_map else 0)
        cdef int32_t *_map_offsets = <int32_t *>map_offsets.data
        cdef _Column names = _Column(
            self.pairs_total if has_map else 0, 0, text_bytes if has_map else 0, True
        )
        cdef _Column values = _Column(
            self.pairs_total if has_map else 0, 0, text_bytes if has_map else 0, True
        )
        cdef uint8_t place[32]
        cdef bytes plain
        for row in range(count):
            record = self.records[row]
            pairs = self.pairs + record.first_pair
            pair_count = record.pair_count
            if wanted & W_TOPIC:
                topic.text(row, record.topic, record.topic_bytes)
            if wanted & W_QUEUE_ID:
                queue_id.i32(row, _i32(record.head + 12))
            if wanted & W_QUEUE_OFFSET:
                queue_offset.i64(row, _i64(record.head + 20))
            if wanted & W_BODY:
                if record.sys_flag & COMPRESSED:
                    plain = self.expanded[plain_row]
                    plain_row += 1
                    body.text(
                        row, <const uint8_t *>PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain)
                    )
                else:
                    body.text(row, record.body, record.body_bytes)
            if wanted & W_TAG:
                tag.pair(row, _find(pairs, pair_count, "TAGS", 4))
            if wanted & W_KEYS:
                keys.pair(row, _find(pairs, pair_count, "KEYS", 4))
            if wanted & W_MESSAGE_ID:
                found = _find(pairs, pair_count, "UNIQ_KEY", 8)
                if found == NULL:
                    _place(place, &record)
                    message_id.text(row, place, 32)
                else:
                    message_id.text(row, found.value, found.value_bytes)
            if wanted & W_BORN:
                born.i64(row, _micros(_i64(record.head + 40)))
            if wanted & W_STORE:
                stored.i64(row, _micros(_i64(record.stored)))
            if wanted & W_RECONSUME:
                reconsume.i32(row, _i32(record.tail))
            if wanted & W_FLAG:
                flag.i32(row, _i32(record.head + 16))
            if wanted & W_SYS_FLAG:
                sys_flag.i32(row, record.sys_flag)
            if wanted & W_PHYSICAL:
                physical.i64(row, _i64(record.head + 28))
            if wanted & W_BORN_HOST:
                born_host.text(row, place, _host(place, record.head + HEAD_BYTES))
            if wanted & W_STORE_HOST:
                store_host.text(row, place, _host(place, record.stored + 8))
            if wanted & W_OFFSET_ID:
                _place(place, &record)
                offset_id.text(row, place, 32)
            if has_map:
                _map_offsets[row] = <int32_t>pair_row
                for i in range(pair_count):
                    names.text(pair_row, pairs[i].name, pairs[i].name_bytes)
                    values.text(pair_row, pairs[i].value, pairs[i].value_bytes)
                    pair_row += 1
                _map_offsets[row + 1] = <int32_t>pair_row
        built = {}
        for name, column in (
            ("topic", topic), ("queue_id", queue_id), ("queue_offset", queue_offset),
            ("body", body), ("tag", tag), ("keys", keys), ("message_id", message_id),
            ("born_time", born), ("store_time", stored), ("reconsume_times", reconsume),
            ("flag", flag), ("sys_flag", sys_flag), ("physical_offset", physical),
            ("born_host", born_host), ("store_host", store_host), ("offset_message_id", offset_id),
        ):
            if wanted & <int>_BITS[name]:
                if (<_Column>column).is_short:
                    raise ValueError("the records changed while they were read")
                built[name] = (<_Column>column).buffers()
        if has_map:
            built["properties"] = (
                map_offsets,
                names.offsets,
                memoryview(names.data)[:names.used],
                values.offsets,
                memoryview(values.data)[:values.used],
            )
            built["pairs"] = pair_row
        return built


def build(
    data, Py_ssize_t at, int64_t start, int64_t end, columns, tags, expand, Py_ssize_t bytes_max
):
    """Where it stopped, the number of messages in [start, end), and the buffers of their columns.

    It stops at the end, where the columns hold bytes_max, and before what is not usual; None if
    that is the first record.
    """
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t size = view.shape[0]
    if at >= size:
        return size, 0, {}
    cdef const uint8_t *base = &view[0]
    cdef Py_ssize_t first = at
    cdef Record record
    cdef int64_t offset
    cdef _Rows rows = _Rows(columns, tags, expand, None, bytes_max)
    while at < size and not rows.is_full():
        if not _walk(base + at, size - at, &record):
            break
        offset = _i64(record.head + 20)
        if start <= offset < end and rows.take(&record) < 0:
            break
        at += record.size
    if at == first:
        return None
    return at, rows.count, rows.columns() if rows.count else {}


def build_entries(
    entries,
    Py_ssize_t at,
    Py_ssize_t stop,
    int64_t offset,
    log,
    int64_t log_start,
    topic,
    int32_t queue_id,
    columns,
    tags,
    hashes,
    expand,
    wants,
    Py_ssize_t bytes_max,
):
    """How many entries were passed, why no more, and the messages and columns of those.

    The entries at bytes [at, stop) are of queue offset `offset` and those behind it; the log file
    begins at physical offset log_start. The record of an entry is sound if it says of itself what
    the entry, the queue and the topic say of it.
    """
    cdef const uint8_t[::1] queue = entries
    cdef const uint8_t[::1] file = log
    cdef Py_ssize_t file_bytes = file.shape[0]
    cdef const uint8_t *entry
    cdef const uint8_t *data
    cdef int64_t physical, code
    cdef int32_t size
    cdef int why = AT_END, i
    cdef Py_ssize_t scanned = 0
    cdef Record record
    cdef const char *topic_at = PyBytes_AS_STRING(topic)
    cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic)
    cdef int32_t wanted_hashes[HASHES_MAX]
    cdef int hash_count = -1
    cdef bint may_match
    if stop > queue.shape[0] or at < 0 or file_bytes == 0:
        raise ValueError("entries beyond their file")
    if hashes is not None and len(hashes) <= HASHES_MAX:
        hash_count = 0
        for one in hashes:
            wanted_hashes[hash_count] = one
            hash_count += 1
    cdef _Rows rows = _Rows(columns, tags, expand, wants, bytes_max)
    while at + ENTRY_BYTES <= stop and not rows.is_full():
        entry = &queue[at]
        physical = _i64(entry)
        size = _i32(entry + 8)
        if physical < log_start or physical - log_start >= file_bytes:
            why = ELSEWHERE
            break
        if size < FIXED_BYTES or size > file_bytes - (physical - log_start):
            why = UNSOUND
            break
        if hash_count >= 0:
            code = _i64(entry + 12)
            may_match = code < -2147483648  # In the ext file; the record itself decides.
            for i in range(hash_count):
                if <int32_t>code == wanted_hashes[i]:
                    may_match = True
            if not may_match:
                at += ENTRY_BYTES
                scanned += 1
                continue
        data = &file[physical - log_start]
        if (
            _i32(data) != size
            or _i64(data + 28) != physical
            or _i64(data + 20) != offset + scanned
            or _i32(data + 12) != queue_id
        ):
            why = UNSOUND
            break
        if not _walk(data, size, &record):
            why = UNUSUAL
            break
        if record.topic_bytes != topic_bytes or memcmp(record.topic, topic_at, topic_bytes) != 0:
            why = UNSOUND
            break
        if rows.take(&record) < 0:
            why = UNUSUAL
            break
        at += ENTRY_BYTES
        scanned += 1
    return scanned, why, rows.count, rows.columns() if rows.count else {}
