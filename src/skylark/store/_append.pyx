# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twins of the functions in append.py, which specifies them.

Ordinary records and entries are handled here; whatever is odd goes to the pure function, one record
at a time, so that there is one opinion on it. No length is used before it is compared with the room
that is left, whoever wrote it.
"""

from array import array as _array

from cpython cimport array
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "crc32.h":
    void sky_crc_prepare() noexcept nogil
    uint32_t sky_crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil

cdef extern from *:
    """
    #include <stdint.h>

    #define SKYS_MAGIC 0xDAA320A7u
    #define SKYS_EXT_ADDRESS_MAX (-INT64_C(2147483649))

    static inline uint32_t skys_get32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t skys_get64(const uint8_t *p) {
        return ((uint64_t)skys_get32(p) << 32) | skys_get32(p + 4);
    }
    static inline void skys_put32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16);
        p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void skys_put64(uint8_t *p, uint64_t v) {
        skys_put32(p, (uint32_t)(v >> 32));
        skys_put32(p + 4, (uint32_t)v);
    }
    /* An empty instance of a tuple's subclass without fields of its own: a NamedTuple. */
    static PyObject *skys_new_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    }
    """
    const uint32_t MAGIC "SKYS_MAGIC"
    const int64_t EXT_ADDRESS_MAX "SKYS_EXT_ADDRESS_MAX"
    uint32_t get32 "skys_get32"(const uint8_t *p) nogil
    uint64_t get64 "skys_get64"(const uint8_t *p) nogil
    void put32 "skys_put32"(uint8_t *p, uint32_t v) nogil
    void put64 "skys_put64"(uint8_t *p, uint64_t v) nogil
    object new_tuple "skys_new_tuple"(object type, Py_ssize_t size)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    FIXED_SIZE = 91
    BLANK_SIZE_MIN = 8
    PROPERTIES_BYTES_MAX = 32767
    ENTRY_BYTES = 20
    INDEX_HEADER_BYTES = 40
    COPY_BYTES_MAX = 16384
    SECTOR_BYTES = 512
    MESSAGE_FIELDS = 11
    KEYS_MAX = 256
    BATCH_COUNT_MAX = 65536
    BATCH_ENTRY_MIN = 22

sky_crc_prepare()

cdef array.array _offsets_type = _array("q")
cdef object _PutResult, _EntriesResult, _Arrival, _Gathered, _PUT_OK, _crc32
cdef object _END, _BLANK, _HANDOVER, _ILLEGAL
cdef object _pure_dispatch, _pure_scan


def bind(put_result, entries_result, arrival, gathered, put_ok, stops, crc32, pure):
    """Take over what lives in append.py; it cannot be imported from here, being half imported."""
    global _PutResult, _EntriesResult, _Arrival, _Gathered, _PUT_OK, _crc32
    global _END, _BLANK, _HANDOVER, _ILLEGAL, _pure_dispatch, _pure_scan
    assert issubclass(put_result, tuple) and put_result.__itemsize__ == tuple.__itemsize__
    _PutResult, _Arrival, _Gathered, _PUT_OK, _crc32 = put_result, arrival, gathered, put_ok, crc32
    _EntriesResult = entries_result
    _END, _BLANK, _HANDOVER, _ILLEGAL = stops
    _pure_dispatch, _pure_scan = pure["dispatch_records"], pure["scan_records"]


cdef class LogCursor:
    """See append.LogCursor."""

    cdef public object buffer
    cdef public list buffers
    cdef public int64_t file_bytes, file_start, first_start, write_at, body_max, record_max

    def __init__(self, int64_t file_bytes, int64_t body_max, int64_t record_max):
        self.file_bytes = file_bytes
        self.body_max = body_max
        self.record_max = record_max
        self.buffer = None
        self.file_start = 0
        self.write_at = 0
        self.first_start = 0
        self.buffers = []


cdef class QueueCursor:
    """See append.QueueCursor."""

    cdef public object buffer, owner, topic
    cdef public int32_t queue_id
    cdef public bint is_schedule, is_dirty
    cdef public int64_t next_offset, write_at, file_start, limit, max_physical, dirty_from, watchers

    def __init__(self, topic, int32_t queue_id, owner=None):
        self.topic = topic
        self.queue_id = queue_id
        self.owner = owner
        self.is_schedule = topic == "SCHEDULE_TOPIC_XXXX"
        self.buffer = None


cdef class IndexCursor:
    """See append.IndexCursor."""

    cdef public object buffer
    cdef public int64_t slot_count, begin_ms, end_ms, begin_physical, end_physical
    cdef public int64_t slots_used, index_count, entry_limit

    def __init__(self, int64_t slot_count):
        self.slot_count = slot_count
        self.buffer = None
        self.end_physical = -1
        self.index_count = 1


cdef uint8_t *_memory(object view, Py_ssize_t *size, bint writable) except NULL:
    """Where a view's bytes are; they stay there while the view lives, and nobody releases views."""
    if not PyMemoryView_Check(view):
        raise TypeError("a memoryview is needed")
    buffer = PyMemoryView_GET_BUFFER(view)
    if (
        buffer.ndim != 1 or buffer.itemsize != 1 or buffer.buf == NULL
        or (buffer.strides != NULL and buffer.strides[0] != 1)
        or (writable and buffer.readonly)
    ):
        raise ValueError("the view is not plain writable memory")
    size[0] = buffer.len
    return <uint8_t *>buffer.buf


# ---------------------------------------------------------------------------------------- append

cdef struct Text:
    const uint8_t *at
    Py_ssize_t size


cdef struct Fields:
    int32_t queue_id, flag, sys_flag, reconsume_times
    int64_t queue_offset, physical_offset, born_at_ms, stored_at_ms, prepared
    Text born_host, store_host, topic


cdef inline Text _text(object data):
    cdef Text found
    found.at = <const uint8_t *>PyBytes_AS_STRING(data)
    found.size = PyBytes_GET_SIZE(data)
    return found


cdef inline int32_t _sys_flag(int64_t sys_flag, Py_ssize_t born_size, Py_ssize_t store_size) noexcept:
    """The flags as stored: which hosts are IPv6 is for us to say."""
    return <int32_t>(
        (sys_flag & ~0x30) | (0x10 if born_size == 20 else 0) | (0x20 if store_size == 20 else 0)
    )


cdef inline uint8_t *_put_record(
    uint8_t *p, const Fields *fields, Text body, Py_ssize_t properties_size, uint32_t crc
) noexcept nogil:
    """Write a record but for its properties; return where these go. There is room."""
    put32(p, <uint32_t>(
        FIXED_SIZE - 16 + fields.born_host.size + fields.store_host.size + body.size
        + fields.topic.size + properties_size
    ))
    put32(p + 4, MAGIC)
    put32(p + 8, crc & 0x7FFFFFFF)
    put32(p + 12, <uint32_t>fields.queue_id)
    put32(p + 16, <uint32_t>fields.flag)
    put64(p + 20, <uint64_t>fields.queue_offset)
    put64(p + 28, <uint64_t>fields.physical_offset)
    put32(p + 36, <uint32_t>fields.sys_flag)
    put64(p + 40, <uint64_t>fields.born_at_ms)
    p += 48
    memcpy(p, fields.born_host.at, fields.born_host.size)
    p += fields.born_host.size
    put64(p, <uint64_t>fields.stored_at_ms)
    p += 8
    memcpy(p, fields.store_host.at, fields.store_host.size)
    p += fields.store_host.size
    put32(p, <uint32_t>fields.reconsume_times)
    put64(p + 4, <uint64_t>fields.prepared)
    put32(p + 12, <uint32_t>body.size)
    p += 16
    memcpy(p, body.at, body.size)
    p += body.size
    p[0] = <uint8_t>fields.topic.size
    memcpy(p + 1, fields.topic.at, fields.topic.size)
    p += 1 + fields.topic.size
    p[0] = <uint8_t>(properties_size >> 8)
    p[1] = <uint8_t>properties_size
    return p + 2


def append_batch(
    LogCursor log not None, messages, Py_ssize_t at, Py_ssize_t stop, dict queues not None,
    int64_t stored_at_ms, list results not None,
):
    """See append.append_batch."""
    cdef Py_ssize_t room = 0, topic_size, body_size, properties_size, born_size, store_size, size
    cdef uint8_t *memory
    cdef uint8_t *p
    cdef const char *topic
    cdef PyObject *found
    cdef QueueCursor cursor
    cdef int64_t flag, sys_flag, reconsume_times, born_at_ms, prepared, queue_offset
    cdef Py_buffer body_view
    cdef bint is_viewed, is_queued
    cdef Fields fields
    cdef Text content

    if log.buffer is None:
        return at
    memory = _memory(log.buffer, &room, True)
    if log.file_bytes != room or not 0 <= log.write_at <= room:
        raise ValueError("the cursor does not fit its buffer")
    stored_object = stored_at_ms
    while at < stop:
        message = messages[at]
        if not PyTuple_Check(message) or PyTuple_GET_SIZE(message) != MESSAGE_FIELDS:
            raise TypeError("a PutMessage is needed")
        topic_object = <object>PyTuple_GET_ITEM(message, 0)
        found = PyDict_GetItem(queues, topic_object)
        if found == NULL or type(<object>found) is not dict:
            return at
        found = PyDict_GetItem(<object>found, <object>PyTuple_GET_ITEM(message, 1))
        if found == NULL:
            return at
        cursor = <QueueCursor?><object>found
        properties = <object>PyTuple_GET_ITEM(message, 3)
        born_host = <object>PyTuple_GET_ITEM(message, 5)
        store_host = <object>PyTuple_GET_ITEM(message, 6)
        if not (
            PyBytes_CheckExact(properties) and PyBytes_CheckExact(born_host)
            and PyBytes_CheckExact(store_host)
        ):
            raise TypeError("properties and hosts of a PutMessage are bytes")
        properties_size = PyBytes_GET_SIZE(properties)
        born_size = PyBytes_GET_SIZE(born_host)
        store_size = PyBytes_GET_SIZE(store_host)
        topic = PyUnicode_AsUTF8AndSize(topic_object, &topic_size)
        try:
            born_at_ms = <object>PyTuple_GET_ITEM(message, 4)
            flag = <object>PyTuple_GET_ITEM(message, 7)
            sys_flag = <object>PyTuple_GET_ITEM(message, 8)
            reconsume_times = <object>PyTuple_GET_ITEM(message, 9)
            prepared = <object>PyTuple_GET_ITEM(message, 10)
        except OverflowError:
            return at
        if (
            properties_size > PROPERTIES_BYTES_MAX
            or (born_size != 8 and born_size != 20) or (store_size != 8 and store_size != 20)
            or not 0 < topic_size <= 127
            or flag != <int32_t>flag or sys_flag != <int32_t>sys_flag
            or reconsume_times != <int32_t>reconsume_times
        ):
            return at
        body = <object>PyTuple_GET_ITEM(message, 2)
        is_viewed = not PyBytes_CheckExact(body)
        if is_viewed:
            PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
            body_size = body_view.len
        else:
            body_size = PyBytes_GET_SIZE(body)
        try:
            size = FIXED_SIZE - 16 + born_size + store_size + body_size + topic_size + properties_size
            if (
                body_size > log.body_max or size > log.record_max
                or size + BLANK_SIZE_MIN > room - log.write_at
            ):
                return at
            fields.flag = <int32_t>flag
            fields.sys_flag = _sys_flag(sys_flag, born_size, store_size)
            fields.reconsume_times = <int32_t>reconsume_times
            fields.born_at_ms = born_at_ms
            fields.stored_at_ms = stored_at_ms
            fields.prepared = prepared
            fields.born_host = _text(born_host)
            fields.store_host = _text(store_host)
            fields.topic.at = <const uint8_t *>topic
            fields.topic.size = topic_size
            is_queued = (sys_flag & 0xC) == 0 or (sys_flag & 0xC) == 8
            queue_offset = cursor.next_offset if is_queued else 0
            fields.queue_id = cursor.queue_id
            fields.queue_offset = queue_offset
            fields.physical_offset = log.file_start + log.write_at
            if is_viewed:
                content.at = <const uint8_t *>body_view.buf
                content.size = body_size
            else:
                content = _text(body)
            p = _put_record(
                memory + log.write_at, &fields, content, properties_size,
                sky_crc32(0, content.at, <size_t>body_size),
            )
            memcpy(p, PyBytes_AS_STRING(properties), properties_size)
        finally:
            if is_viewed:
                PyBuffer_Release(&body_view)

        result = new_tuple(_PutResult, 5)
        _set(result, 0, _PUT_OK)
        _set(result, 1, log.file_start + log.write_at)
        _set(result, 2, queue_offset)
        _set(result, 3, size)
        _set(result, 4, stored_object)
        results.append(result)
        log.write_at += size
        if is_queued:
            cursor.next_offset = queue_offset + 1
        at += 1
    return at


cdef inline void _set(object target, Py_ssize_t at, object value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(target, at, value)


def group_size(LogCursor log not None, messages, dict queues not None):
    """See append.group_size."""
    cdef Py_ssize_t topic_size = 0, body_size, born_size, store_size, size
    cdef int64_t total = 0, flag, sys_flag, reconsume_times, number
    cdef PyObject *found
    for message in messages:
        if not PyTuple_Check(message) or PyTuple_GET_SIZE(message) != MESSAGE_FIELDS:
            raise TypeError("a PutMessage is needed")
        topic = <object>PyTuple_GET_ITEM(message, 0)
        found = PyDict_GetItem(queues, topic)
        if found == NULL or type(<object>found) is not dict:
            return -1
        if PyDict_GetItem(<object>found, <object>PyTuple_GET_ITEM(message, 1)) == NULL:
            return -1
        PyUnicode_AsUTF8AndSize(topic, &topic_size)
        body = <object>PyTuple_GET_ITEM(message, 2)
        properties = <object>PyTuple_GET_ITEM(message, 3)
        born_host = <object>PyTuple_GET_ITEM(message, 5)
        store_host = <object>PyTuple_GET_ITEM(message, 6)
        if not (
            PyBytes_CheckExact(properties) and PyBytes_CheckExact(born_host)
            and PyBytes_CheckExact(store_host)
        ):
            raise TypeError("properties and hosts of a PutMessage are bytes")
        born_size = PyBytes_GET_SIZE(born_host)
        store_size = PyBytes_GET_SIZE(store_host)
        body_size = len(body)
        try:
            number = <object>PyTuple_GET_ITEM(message, 4)
            flag = <object>PyTuple_GET_ITEM(message, 7)
            sys_flag = <object>PyTuple_GET_ITEM(message, 8)
            reconsume_times = <object>PyTuple_GET_ITEM(message, 9)
            number = <object>PyTuple_GET_ITEM(message, 10)
        except OverflowError:
            return -1
        size = (
            FIXED_SIZE - 16 + born_size + store_size + body_size + topic_size
            + PyBytes_GET_SIZE(properties)
        )
        if (
            PyBytes_GET_SIZE(properties) > PROPERTIES_BYTES_MAX
            or (born_size != 8 and born_size != 20) or (store_size != 8 and store_size != 20)
            or not 0 < topic_size <= 127
            or flag != <int32_t>flag or sys_flag != <int32_t>sys_flag
            or reconsume_times != <int32_t>reconsume_times
            or body_size > log.body_max or size > log.record_max
        ):
            return -1
        total += size
    return total


cdef inline Py_ssize_t _joined(Text own, Py_ssize_t common_size) noexcept nogil:
    """The size of an entry's properties with those that all entries get."""
    if own.size > 0 and common_size > 0 and own.at[own.size - 1] != 2:
        return own.size + 1 + common_size
    return own.size + common_size


cdef inline bint _entry(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t room, Text *body, Text *own
) noexcept nogil:
    """Whether the lengths of an entry add up, and where its parts are."""
    cdef const uint8_t *p = data + at
    cdef Py_ssize_t size
    cdef int32_t body_size
    if room - at < BATCH_ENTRY_MIN:
        return False
    size = <int32_t>get32(p)
    if size < BATCH_ENTRY_MIN or size > room - at:
        return False
    body_size = <int32_t>get32(p + 16)
    if body_size < 0 or body_size > size - BATCH_ENTRY_MIN:
        return False
    body.at = p + 20
    body.size = body_size
    own.at = p + BATCH_ENTRY_MIN + body_size
    own.size = size - BATCH_ENTRY_MIN - body_size
    return own.size <= PROPERTIES_BYTES_MAX and own.size == (
        (<Py_ssize_t>p[20 + body_size] << 8) | p[21 + body_size]
    )


def append_entries(LogCursor log not None, batch, dict queues not None, int64_t stored_at_ms):
    """See append.append_entries."""
    cdef Py_ssize_t room = 0, topic_size = 0
    cdef uint8_t *memory
    cdef PyObject *found
    cdef QueueCursor cursor
    cdef int64_t sys_flag, reconsume_times
    cdef Fields fields
    cdef Py_buffer view

    (
        topic, queue_id, entries, common, born_at_ms, born_host, store_host, sys_flag_object,
        reconsume_object,
    ) = batch
    if log.buffer is None:
        return None
    found = PyDict_GetItem(queues, topic)
    if found == NULL or type(<object>found) is not dict:
        return None
    found = PyDict_GetItem(<object>found, queue_id)
    if found == NULL:
        return None
    cursor = <QueueCursor?><object>found
    if not (
        PyBytes_CheckExact(common) and PyBytes_CheckExact(born_host)
        and PyBytes_CheckExact(store_host)
    ):
        raise TypeError("properties and hosts of PutEntries are bytes")
    memory = _memory(log.buffer, &room, True)
    if log.file_bytes != room or not 0 <= log.write_at <= room:
        raise ValueError("the cursor does not fit its buffer")
    try:
        fields.born_at_ms = born_at_ms
        sys_flag = sys_flag_object
        reconsume_times = reconsume_object
    except OverflowError:
        return None
    fields.born_host = _text(born_host)
    fields.store_host = _text(store_host)
    fields.topic.at = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &topic_size)
    fields.topic.size = topic_size
    if (
        (fields.born_host.size != 8 and fields.born_host.size != 20)
        or (fields.store_host.size != 8 and fields.store_host.size != 20)
        or not 0 < topic_size <= 127 or sys_flag & 0xC
        or sys_flag != <int32_t>sys_flag or reconsume_times != <int32_t>reconsume_times
    ):
        return None
    fields.sys_flag = _sys_flag(sys_flag, fields.born_host.size, fields.store_host.size)
    fields.reconsume_times = <int32_t>reconsume_times
    fields.stored_at_ms = stored_at_ms
    fields.prepared = 0
    fields.queue_id = cursor.queue_id
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        return _append_entries(
            log, memory, cursor, <const uint8_t *>view.buf, view.len, _text(common), &fields
        )
    finally:
        PyBuffer_Release(&view)


cdef object _append_entries(
    LogCursor log, uint8_t *memory, QueueCursor cursor, const uint8_t *data, Py_ssize_t data_size,
    Text common, Fields *fields,
):
    cdef Py_ssize_t fixed, size, at = 0, count = 0, number, properties_size
    cdef int64_t total = 0, first_queue_offset = cursor.next_offset
    cdef uint32_t crc
    cdef uint8_t *start = memory + log.write_at
    cdef uint8_t *p
    cdef Text body, own
    cdef array.array offsets
    cdef long long *places

    fixed = FIXED_SIZE - 16 + fields.born_host.size + fields.store_host.size + fields.topic.size
    # Everything is looked at before anything is written.
    while at < data_size:
        if count >= BATCH_COUNT_MAX or not _entry(data, at, data_size, &body, &own):
            return None
        properties_size = _joined(own, common.size)
        size = fixed + body.size + properties_size
        if (
            properties_size > PROPERTIES_BYTES_MAX or body.size > log.body_max
            or size > log.record_max
        ):
            return None
        crc = get32(data + at + 8)
        if crc and (crc ^ sky_crc32(0, body.at, <size_t>body.size)) & 0x7FFFFFFF:
            return None
        total += size
        count += 1
        at += BATCH_ENTRY_MIN + body.size + own.size
    if count == 0 or total + BLANK_SIZE_MIN > log.file_bytes - log.write_at:
        return None
    offsets = array.clone(_offsets_type, count, False)
    places = offsets.data.as_longlongs
    at = 0
    p = start
    for number in range(count):
        _entry(data, at, data_size, &body, &own)
        properties_size = _joined(own, common.size)
        fields.flag = <int32_t>get32(data + at + 12)
        fields.queue_offset = first_queue_offset + number
        fields.physical_offset = log.file_start + (p - memory)
        places[number] = fields.physical_offset
        crc = get32(data + at + 8)
        if crc == 0:
            crc = sky_crc32(0, body.at, <size_t>body.size)
        p = _put_record(p, fields, body, properties_size, crc)
        memcpy(p, own.at, own.size)
        p += own.size
        if properties_size != own.size + common.size:
            p[0] = 2
            p += 1
        memcpy(p, common.at, common.size)
        p += common.size
        at += BATCH_ENTRY_MIN + body.size + own.size
    assert p - start == total
    log.write_at += total
    cursor.next_offset = first_queue_offset + count
    return _EntriesResult(offsets, first_queue_offset, total, fields.stored_at_ms)


# ---------------------------------------------------------------------------------------- records

cdef struct Record:
    int32_t size, queue_id, sys_flag
    uint32_t crc
    int64_t queue_offset, physical_offset, stored_at_ms
    Py_ssize_t body_at, body_size, topic_at, topic_size, properties_at, properties_size


cdef bint _read(const uint8_t *memory, Py_ssize_t at, Py_ssize_t end, Record *record) noexcept nogil:
    """Whether an ordinary, whole record lies at a position, and where its parts are."""
    cdef const uint8_t *p = memory + at
    cdef Py_ssize_t room = end - at, place
    cdef int32_t body_size
    if room < FIXED_SIZE or get32(p + 4) != MAGIC:
        return False
    record.size = <int32_t>get32(p)
    if record.size < FIXED_SIZE or record.size > room:
        return False
    room = record.size
    record.crc = get32(p + 8)
    record.queue_id = <int32_t>get32(p + 12)
    record.queue_offset = <int64_t>get64(p + 20)
    record.physical_offset = <int64_t>get64(p + 28)
    record.sys_flag = <int32_t>get32(p + 36)
    place = 48 + (20 if record.sys_flag & 0x10 else 8)
    record.stored_at_ms = <int64_t>get64(p + place)
    place += 8 + (20 if record.sys_flag & 0x20 else 8) + 12
    if place + 4 > room:
        return False
    body_size = <int32_t>get32(p + place)
    place += 4
    if body_size < 0 or body_size > room - place - 3:
        return False
    record.body_at = at + place
    record.body_size = body_size
    place += body_size
    record.topic_size = p[place]
    place += 1
    if record.topic_size > 127 or record.topic_size > room - place - 2:
        return False
    record.topic_at = at + place
    place += record.topic_size
    record.properties_size = (p[place] << 8) | p[place + 1]
    place += 2
    record.properties_at = at + place
    return record.properties_size <= PROPERTIES_BYTES_MAX and place + record.properties_size == room


cdef bint _java_hash(const uint8_t *p, Py_ssize_t size, uint32_t *value) noexcept nogil:
    """Continue Java's string hash over UTF-8; False where it is not UTF-8."""
    cdef Py_ssize_t at = 0
    cdef uint32_t h = value[0], unit, point
    while at < size:
        unit = p[at]
        if unit < 0x80:
            h = 31 * h + unit
            at += 1
        elif 0xC2 <= unit < 0xE0:
            if at + 1 >= size or (p[at + 1] & 0xC0) != 0x80:
                return False
            h = 31 * h + (((unit & 0x1F) << 6) | (p[at + 1] & 0x3F))
            at += 2
        elif 0xE0 <= unit < 0xF0:
            if at + 2 >= size or (p[at + 1] & 0xC0) != 0x80 or (p[at + 2] & 0xC0) != 0x80:
                return False
            point = ((unit & 0x0F) << 12) | ((p[at + 1] & 0x3F) << 6) | (p[at + 2] & 0x3F)
            if point < 0x800 or 0xD800 <= point < 0xE000:
                return False
            h = 31 * h + point
            at += 3
        elif 0xF0 <= unit < 0xF5:
            if (
                at + 3 >= size or (p[at + 1] & 0xC0) != 0x80 or (p[at + 2] & 0xC0) != 0x80
                or (p[at + 3] & 0xC0) != 0x80
            ):
                return False
            point = (
                ((unit & 0x07) << 18) | ((p[at + 1] & 0x3F) << 12) | ((p[at + 2] & 0x3F) << 6)
                | (p[at + 3] & 0x3F)
            )
            if point < 0x10000 or point > 0x10FFFF:
                return False
            point -= 0x10000
            h = 31 * h + (0xD800 + (point >> 10))
            h = 31 * h + (0xDC00 + (point & 0x3FF))
            at += 4
        else:
            return False
    value[0] = h
    return True


cdef struct Named:
    Text tags, keys, unique_key, delay


cdef void _find_properties(const uint8_t *p, Py_ssize_t size, Named *named) noexcept nogil:
    """Find the four properties that the store looks at; of equal names the last counts."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *piece_end
    cdef const uint8_t *name_end
    cdef Text value
    memset(named, 0, sizeof(Named))
    while p < end:
        piece_end = <const uint8_t *>memchr(p, 2, end - p)
        if piece_end == NULL:
            piece_end = end
        name_end = <const uint8_t *>memchr(p, 1, piece_end - p)
        if name_end != NULL and name_end > p and name_end + 1 < piece_end:
            value.at = name_end + 1
            value.size = piece_end - name_end - 1
            if name_end - p == 4:
                if memcmp(p, b"TAGS", 4) == 0:
                    named.tags = value
                elif memcmp(p, b"KEYS", 4) == 0:
                    named.keys = value
            elif name_end - p == 8:
                if memcmp(p, b"UNIQ_KEY", 8) == 0:
                    named.unique_key = value
            elif name_end - p == 5:
                if memcmp(p, b"DELAY", 5) == 0:
                    named.delay = value
        p = piece_end + 1


cdef int64_t _delay_level(Text text) noexcept nogil:
    """The level that a DELAY property names, or 0."""
    cdef int64_t level = 0
    cdef Py_ssize_t at = 0
    if text.size > 0 and text.at[0] == 43:  # A plus sign.
        at = 1
    if not 0 < text.size - at <= 9:
        return 0
    while at < text.size:
        if not 48 <= text.at[at] <= 57:
            return 0
        level = 10 * level + (text.at[at] - 48)
        at += 1
    return level


cdef inline uint32_t _key_hash(uint32_t value) noexcept nogil:
    """The absolute value; 0 for the one number that has none."""
    if value == 0x80000000U:
        return 0
    return value if value < 0x80000000U else 0U - value


# --------------------------------------------------------------------------------------- dispatch


def dispatch_records(
    buffer, int64_t file_start, Py_ssize_t at, Py_ssize_t end, dict queues not None,
    IndexCursor index, tuple delays_ms not None, list dirty not None, list arrivals not None,
):
    """See append.dispatch_records."""
    cdef Py_ssize_t room = 0, index_room = 0, entry_room = 0, key_count, number
    cdef uint8_t *memory = _memory(buffer, &room, False)
    cdef uint8_t *index_memory
    cdef uint8_t *entries
    cdef Record record
    cdef Named named
    cdef int ordinary
    cdef int64_t transaction, code, level, place
    cdef uint32_t value, topic_hash = 0
    cdef uint32_t hashes[KEYS_MAX]
    cdef Text last_topic
    cdef PyObject *found
    cdef object by_id = None
    cdef QueueCursor cursor
    cdef bint has_keys
    last_topic.at = NULL
    last_topic.size = -1
    if at < 0 or end > room:
        raise ValueError("the range lies outside the buffer")
    while at < end:
        ordinary = _read(memory, at, end, &record)
        if not ordinary or record.physical_offset != file_start + at:
            # Blank, unsound, or of another version: let the specification decide.
            return _pure_dispatch(
                buffer, file_start, at, end, queues, index, delays_ms, dirty, arrivals
            )
        _find_properties(memory + record.properties_at, record.properties_size, &named)
        transaction = record.sys_flag & 0xC
        if record.topic_size != last_topic.size or memcmp(
            memory + record.topic_at, last_topic.at, record.topic_size
        ) != 0:
            last_topic.at = memory + record.topic_at
            last_topic.size = record.topic_size
            topic_hash = 0
            for number in range(record.topic_size):
                if last_topic.at[number] >= 0x80:
                    ordinary = False
                topic_hash = 31 * topic_hash + last_topic.at[number]
            topic_hash = 31 * topic_hash + 35  # The "#" between topic and key.
            by_id = None
            if ordinary:
                topic = PyUnicode_DecodeASCII(
                    <const char *>last_topic.at, last_topic.size, NULL
                )
                found = PyDict_GetItem(queues, topic)
                if found != NULL:
                    by_id = <object>found
            else:
                last_topic.size = -1
                return at, _HANDOVER

        cursor = None
        if transaction == 0 or transaction == 8:
            if by_id is None:
                return at, _HANDOVER
            found = PyDict_GetItem(by_id, record.queue_id)
            if found == NULL:
                return at, _HANDOVER
            cursor = <QueueCursor?><object>found
            if record.physical_offset + record.size <= cursor.max_physical:
                cursor = None
            else:
                if record.queue_offset < 0 or record.queue_offset > (1LL << 58):
                    return at, _HANDOVER
                place = record.queue_offset * ENTRY_BYTES
                if place < cursor.write_at:
                    if record.physical_offset >= cursor.max_physical:
                        return at, _HANDOVER
                    cursor = None
                elif (
                    place > cursor.write_at or cursor.buffer is None
                    or cursor.write_at + ENTRY_BYTES > cursor.limit
                ):
                    return at, _HANDOVER
        code = 0
        if cursor is not None:
            value = 0
            if named.tags.size and not _java_hash(named.tags.at, named.tags.size, &value):
                return at, _HANDOVER
            code = <int32_t>value
            if cursor.is_schedule:
                level = _delay_level(named.delay)
                if level > 0:
                    if level > len(delays_ms):
                        level = len(delays_ms)
                    code = record.stored_at_ms + <int64_t>delays_ms[level - 1]

        key_count = 0
        if (
            index is not None and transaction != 0xC
            and record.physical_offset >= index.end_physical
        ):
            key_count = _hash_keys(&named, topic_hash, hashes)
            if key_count < 0:
                return at, _HANDOVER
            if key_count > 0 and (
                index.buffer is None or index.index_count + key_count > index.entry_limit
                or record.physical_offset == index.end_physical
            ):
                return at, _HANDOVER

        if cursor is not None:
            entries = _memory(cursor.buffer, &entry_room, True)
            place = cursor.write_at - cursor.file_start
            if place < 0 or place + ENTRY_BYTES > entry_room:
                raise ValueError("the queue cursor does not fit its buffer")
            put64(entries + place, <uint64_t>record.physical_offset)
            put32(entries + place + 8, <uint32_t>record.size)
            put64(entries + place + 12, <uint64_t>code)
            if not cursor.is_dirty:
                cursor.is_dirty = True
                cursor.dirty_from = cursor.write_at
                dirty.append(cursor)
            cursor.write_at += ENTRY_BYTES
            cursor.max_physical = record.physical_offset + record.size
            if cursor.next_offset < cursor.write_at // ENTRY_BYTES:
                cursor.next_offset = cursor.write_at // ENTRY_BYTES
            if cursor.watchers:
                value = 0
                _java_hash(named.tags.at, named.tags.size, &value)
                arrivals.append(_Arrival(
                    cursor.topic, cursor.queue_id, record.queue_offset, <int32_t>value,
                    record.stored_at_ms, record.physical_offset, record.size,
                ))
        if key_count > 0:
            index_memory = _memory(index.buffer, &index_room, True)
            if index_room < (
                INDEX_HEADER_BYTES + 4 * index.slot_count
                + ENTRY_BYTES * (index.index_count + key_count)
            ) or index.slot_count < 1 or index.index_count < 1:
                raise ValueError("the index cursor does not fit its buffer")
            for number in range(key_count):
                _put_index(index, index_memory, hashes[number], &record)
            _put_header(index, index_memory)
        at += record.size
    return at, _END


cdef Py_ssize_t _hash_keys(Named *named, uint32_t topic_hash, uint32_t *hashes) noexcept nogil:
    """The hashes of the record's keys, the unique one first; -1 for what is not ordinary."""
    cdef Py_ssize_t count = 0, size
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *space
    cdef uint32_t value
    if named.unique_key.size:
        value = topic_hash
        if not _java_hash(named.unique_key.at, named.unique_key.size, &value):
            return -1
        hashes[0] = _key_hash(value)
        count = 1
    p = named.keys.at
    end = p + named.keys.size
    while p < end:
        space = <const uint8_t *>memchr(p, 32, end - p)
        if space == NULL:
            space = end
        size = space - p
        if size > 0:
            if count >= KEYS_MAX:
                return -1
            value = topic_hash
            if not _java_hash(p, size, &value):
                return -1
            hashes[count] = _key_hash(value)
            count += 1
        p = space + 1
    return count


cdef void _put_index(
    IndexCursor index, uint8_t *memory, uint32_t hash_value, Record *record
) noexcept:
    """See append.put_index; the header follows when all keys of a record are in."""
    cdef int64_t number = index.index_count, seconds = 0
    cdef uint8_t *slot = memory + INDEX_HEADER_BYTES + 4 * (hash_value % index.slot_count)
    cdef uint8_t *entry = memory + INDEX_HEADER_BYTES + 4 * index.slot_count + ENTRY_BYTES * number
    cdef int64_t previous = <int32_t>get32(slot)
    if not 0 < previous < number:
        previous = 0
    if index.begin_ms > 0:
        seconds = record.stored_at_ms - index.begin_ms
        seconds = 0 if seconds < 0 else seconds // 1000
        if seconds > 0x7FFFFFFF:
            seconds = 0x7FFFFFFF
    put32(entry, hash_value)
    put64(entry + 4, <uint64_t>record.physical_offset)
    put32(entry + 12, <uint32_t>seconds)
    put32(entry + 16, <uint32_t>previous)
    put32(slot, <uint32_t>number)
    if number <= 1:
        index.begin_physical = record.physical_offset
        index.begin_ms = record.stored_at_ms
    if previous == 0:
        index.slots_used += 1
    index.index_count = number + 1
    index.end_physical = record.physical_offset
    index.end_ms = record.stored_at_ms


cdef void _put_header(IndexCursor index, uint8_t *memory) noexcept:
    put64(memory, <uint64_t>index.begin_ms)
    put64(memory + 8, <uint64_t>index.end_ms)
    put64(memory + 16, <uint64_t>index.begin_physical)
    put64(memory + 24, <uint64_t>index.end_physical)
    put32(memory + 32, <uint32_t>index.slots_used)
    put32(memory + 36, <uint32_t>index.index_count)


def restore_slots(buffer, int64_t slot_count, int64_t index_count, bint compares=False):
    """See append.restore_slots."""
    cdef Py_ssize_t room = 0
    cdef uint8_t *memory = _memory(buffer, &room, not compares)
    cdef int64_t number, used = 0, physical_offset = -1, slot
    cdef int32_t hash_value, previous
    cdef const uint8_t *entry
    cdef int32_t *slots
    if slot_count < 1 or room < INDEX_HEADER_BYTES + 4 * slot_count + ENTRY_BYTES * index_count:
        raise ValueError("the index does not fit its buffer")
    slots = <int32_t *>malloc(slot_count * sizeof(int32_t))
    if slots == NULL:
        raise MemoryError()
    try:
        memset(slots, 0, slot_count * sizeof(int32_t))
        entry = memory + INDEX_HEADER_BYTES + 4 * slot_count
        for number in range(1, index_count):
            entry += ENTRY_BYTES
            hash_value = <int32_t>get32(entry)
            physical_offset = <int64_t>get64(entry + 4)
            previous = <int32_t>get32(entry + 16)
            if hash_value < 0:
                return -1, -1
            slot = hash_value % slot_count
            if previous != slots[slot]:
                return -1, -1
            used += previous == 0
            slots[slot] = <int32_t>number
        for slot in range(slot_count):
            if not compares:
                put32(memory + INDEX_HEADER_BYTES + 4 * slot, <uint32_t>slots[slot])
            elif get32(memory + INDEX_HEADER_BYTES + 4 * slot) != <uint32_t>slots[slot]:
                return -1, -1
    finally:
        free(slots)
    return used, physical_offset


# ----------------------------------------------------------------------------------------- gather

cdef struct Piece:
    const uint8_t *at
    Py_ssize_t size
    int32_t file_number  # Of a large record, which is not copied; else -1.
    Py_ssize_t file_at


def gather(
    entries, Py_ssize_t at, Py_ssize_t end, LogCursor log not None, int64_t log_end, tags,
    limits,
):
    """See append.gather."""
    cdef Py_ssize_t room = 0, file_room = 0, piece_count = 0, piece_max
    cdef const uint8_t *memory = _memory(entries, &room, False)
    cdef const uint8_t *file_memory
    cdef int64_t count_max = limits[0], memory_bytes_max = limits[1], memory_count_max = limits[2]
    cdef int64_t disk_bytes_max = limits[3], disk_count_max = limits[4], disk_distance = limits[5]
    cdef int64_t physical_offset, code, number, place, last_physical = -1
    cdef int64_t count = 0, total = 0, scanned = 0
    cdef int32_t size
    cdef Piece *pieces
    if at < 0 or end > room:
        raise ValueError("the range lies outside the buffer")
    piece_max = (end - at) // ENTRY_BYTES + 1
    if piece_max > count_max + 1:
        piece_max = count_max + 1
    if piece_max < 1:
        piece_max = 1
    pieces = <Piece *>malloc(piece_max * sizeof(Piece))
    if pieces == NULL:
        raise MemoryError()
    try:
        while at < end:
            physical_offset = <int64_t>get64(memory + at)
            size = <int32_t>get32(memory + at + 8)
            code = <int64_t>get64(memory + at + 12)
            if code <= EXT_ADDRESS_MAX:
                return None
            last_physical = physical_offset
            if count > 0:
                if count >= count_max:
                    break
                if log_end - physical_offset > disk_distance:
                    if total + size > disk_bytes_max or count >= disk_count_max:
                        break
                elif total + size > memory_bytes_max or count >= memory_count_max:
                    break
            scanned += 1
            at += ENTRY_BYTES
            if tags is not None and <int32_t>code not in tags:
                continue
            if physical_offset < log.first_start or size < FIXED_SIZE:
                return None
            number = (physical_offset - log.first_start) // log.file_bytes
            place = (physical_offset - log.first_start) % log.file_bytes
            if number >= len(log.buffers):
                return None
            file_buffer = log.buffers[number]
            if file_buffer is None:
                return None
            file_memory = _memory(file_buffer, &file_room, False)
            if place + size > file_room or physical_offset + size > log_end:
                return None
            file_memory += place
            if (
                get32(file_memory) != <uint32_t>size or get32(file_memory + 4) != MAGIC
                or <int64_t>get64(file_memory + 28) != physical_offset
            ):
                return None
            if piece_count >= piece_max:
                return None
            pieces[piece_count].at = file_memory
            pieces[piece_count].size = size
            pieces[piece_count].file_number = <int32_t>number if size > COPY_BYTES_MAX else -1
            pieces[piece_count].file_at = place
            piece_count += 1
            count += 1
            total += size
        chunks = _copy_pieces(pieces, piece_count, log)
    finally:
        free(pieces)
    return _Gathered(chunks, count, total, scanned, last_physical)


cdef list _copy_pieces(Piece *pieces, Py_ssize_t count, LogCursor log):
    """Small records together in one piece of memory, large ones where they lie."""
    cdef list chunks = []
    cdef Py_ssize_t first = 0, last, size, number
    cdef uint8_t *target
    while first < count:
        if pieces[first].file_number >= 0:
            buffer = log.buffers[pieces[first].file_number]
            number = pieces[first].file_at
            chunks.append(buffer[number : number + pieces[first].size])
            first += 1
            continue
        last = first
        size = 0
        while last < count and pieces[last].file_number < 0:
            size += pieces[last].size
            last += 1
        chunk = PyBytes_FromStringAndSize(NULL, size)
        target = <uint8_t *>PyBytes_AS_STRING(chunk)
        for number in range(first, last):
            memcpy(target, pieces[number].at, pieces[number].size)
            target += pieces[number].size
        chunks.append(chunk)
        first = last
    return chunks


# ------------------------------------------------------------------------------------------- scan


def scan_records(
    buffer, int64_t file_start, Py_ssize_t at, Py_ssize_t end, bint check_crc, int64_t torn_from
):
    """See append.scan_records."""
    cdef Py_ssize_t room = 0
    cdef uint8_t *memory = _memory(buffer, &room, False)
    cdef Record record
    cdef int64_t last_stored_ms = -1
    cdef Py_ssize_t number
    cdef bint ordinary
    if at < 0 or end > room:
        raise ValueError("the range lies outside the buffer")
    while at < end:
        ordinary = (
            _read(memory, at, end, &record)
            and record.physical_offset == file_start + at
            and record.stored_at_ms != 0
            and 0 <= record.queue_offset <= (1LL << 58)
            and record.queue_id >= 0
        )
        if ordinary:
            for number in range(record.topic_size):
                if memory[record.topic_at + number] >= 0x80:
                    ordinary = False  # It may or may not be UTF-8.
        if ordinary and check_crc:
            crc = _crc32(
                PyMemoryView_FromMemory(
                    <char *>memory + record.body_at, record.body_size, PyBUF_READ
                )
            )
            ordinary = ((<uint32_t>crc) & 0x7FFFFFFF) == record.crc
        if ordinary and at >= torn_from:
            ordinary = not _is_torn(memory, at, &record)
        if not ordinary:
            end_at, stop, stored_ms = _pure_scan(
                buffer, file_start, at, end, check_crc, torn_from
            )
            return end_at, stop, (last_stored_ms if stored_ms < 0 else stored_ms)
        last_stored_ms = record.stored_at_ms
        at += record.size
    return at, _END, last_stored_ms


cdef bint _is_torn(const uint8_t *memory, Py_ssize_t at, Record *record) noexcept nogil:
    """See append.is_torn."""
    cdef Py_ssize_t end = at + record.size, edge, place, length_at
    if record.topic_size + record.properties_size + 2 <= 3:
        return False
    if memchr(memory + record.topic_at, 0, record.topic_size) != NULL:
        return True
    if record.properties_size > 0 and memory[end - 1] == 0:
        return True
    length_at = record.topic_at + record.topic_size
    edge = (record.topic_at + SECTOR_BYTES - 1) // SECTOR_BYTES * SECTOR_BYTES
    while edge < end:
        for place in range(edge - 1, edge + 1):
            if (
                record.topic_at <= place < end and not length_at <= place < length_at + 2
                and memory[place] == 0
            ):
                return True
        edge += SECTOR_BYTES
    return False
