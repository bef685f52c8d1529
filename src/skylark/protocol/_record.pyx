# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twins of the hot functions of record.py, batch.py, properties.py, hashes.py and crc.py.

Those modules specify, this one is fast: it takes what is well formed, and hands everything else to
the pure functions, which find the words for it. So no error is worded here, and no length is used
before it is compared with the room that is left.

Decoded objects are ordinary instances of the pure classes. Their slots are filled in place, by the
offsets of their member descriptors, because a call of a dataclass with 17 keywords costs ten times
what the rest of the decoding does.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from *:
    """
    #include <structmember.h>
    #include <stdint.h>
    #include <string.h>

    /* --- instances filled by slot ------------------------------------------------------------ */

    /* Returns where a slot lies in the instances of a class, or -1 where it is no plain slot. */
    static Py_ssize_t sky_slot_offset(PyObject *type, PyObject *name) {
        Py_ssize_t offset = -1;
        PyObject *descriptor;
        if (!PyType_Check(type) || ((PyTypeObject *)type)->tp_itemsize != 0) return -1;
        descriptor = PyObject_GetAttr(type, name);
        if (descriptor == NULL) {
            PyErr_Clear();
            return -1;
        }
        if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
            PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
            if (member->type == T_OBJECT_EX) offset = member->offset;
        }
        Py_DECREF(descriptor);
        return offset;
    }

    /* Not tracked by the cycle collector: what these objects hold (numbers, texts, bytes, and
       tuples or dicts of them) refers to nothing, so they are never part of a cycle, and a large
       pull would have the collector walk over each of them several times. */
    static PyObject *sky_new(PyObject *type) {
        PyObject *instance;
        if (!PyType_Check(type)) {
            PyErr_SetString(PyExc_RuntimeError, "import skylark.protocol.record first: it calls bind");
            return NULL;
        }
        instance = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
        if (instance != NULL && PyObject_IS_GC(instance)) PyObject_GC_UnTrack(instance);
        return instance;
    }

    /* Takes over the reference; says 0 where there is none to take. */
    static inline int sky_fill(PyObject *instance, Py_ssize_t offset, PyObject *value) {
        if (value == NULL) return 0;
        *(PyObject **)((char *)instance + offset) = value;
        return 1;
    }

    static inline PyObject *sky_own(PyObject *value) {
        Py_INCREF(value);
        return value;
    }

    /* --- big-endian fields -------------------------------------------------------------------- */

    static inline uint32_t sky_get32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t sky_get64(const uint8_t *p) {
        return ((uint64_t)sky_get32(p) << 32) | sky_get32(p + 4);
    }
    static inline void sky_put32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16);
        p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void sky_put64(uint8_t *p, uint64_t v) {
        sky_put32(p, (uint32_t)(v >> 32));
        sky_put32(p + 4, (uint32_t)v);
    }

    /* --- Java's String.hashCode ---------------------------------------------------------------- */

    static int32_t sky_java_hash(PyObject *text) {
        uint32_t h = 0;
        Py_ssize_t i, n = PyUnicode_GET_LENGTH(text);
        int kind = PyUnicode_KIND(text);
        const void *data = PyUnicode_DATA(text);
        if (kind == PyUnicode_1BYTE_KIND) {
            const Py_UCS1 *p = (const Py_UCS1 *)data;
            for (i = 0; i < n; i++) h = 31 * h + p[i];
        } else if (kind == PyUnicode_2BYTE_KIND) {
            const Py_UCS2 *p = (const Py_UCS2 *)data;
            for (i = 0; i < n; i++) h = 31 * h + p[i];
        } else {
            const Py_UCS4 *p = (const Py_UCS4 *)data;
            for (i = 0; i < n; i++) {
                uint32_t c = p[i];
                if (c > 0xffff) {
                    c -= 0x10000;
                    h = 31 * h + (0xd800 + (c >> 10));
                    c = 0xdc00 + (c & 0x3ff);
                }
                h = 31 * h + c;
            }
        }
        return (int32_t)h;
    }
    """
    Py_ssize_t sky_slot_offset(PyObject *type, PyObject *name)
    PyObject *sky_new(PyObject *type) except NULL
    int sky_fill(PyObject *instance, Py_ssize_t offset, PyObject *value) noexcept
    PyObject *sky_own(PyObject *value) noexcept
    uint32_t sky_get32(const uint8_t *p) noexcept nogil
    uint64_t sky_get64(const uint8_t *p) noexcept nogil
    void sky_put32(uint8_t *p, uint32_t v) noexcept nogil
    void sky_put64(uint8_t *p, uint64_t v) noexcept nogil
    int32_t sky_java_hash(PyObject *text) noexcept

cdef extern from "crc32.h":
    int sky_crc_folds
    void sky_crc_prepare() noexcept nogil
    uint32_t sky_crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil

cdef extern from "Python.h":
    PyObject *raw_long "PyLong_FromLongLong"(long long value)
    PyObject *raw_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

# The layout is in record.py.
cdef enum:
    _HEAD_SIZE = 48
    _TAIL_SIZE = 16
    _FIXED_SIZE = 91
    _BORN_V6 = 0x10
    _STORE_V6 = 0x20
    _TOPIC_MAX = 127
    _PROPERTIES_MAX = 32767

cdef uint32_t _MAGIC = 0xDAA320A7
cdef uint32_t _MAGIC_V2 = 0xDAA320AB
cdef uint32_t _BLANK_MAGIC = 0xCBD43194

sky_crc_prepare()


# --- CRC and hash -----------------------------------------------------------------------------


def crc32(data):
    """Return the CRC-32 of a buffer, as zlib's."""
    cdef Py_buffer view
    cdef uint32_t value
    if type(data) is bytes:
        return sky_crc32(0, <const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = sky_crc32(0, <const uint8_t *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


def crc32_is_folded():
    """Whether this processor multiplies without carries, and the checksum makes use of it."""
    return bool(sky_crc_folds)


def java_string_hash(str text not None):
    """Return Java's String.hashCode of a text, as a signed 32-bit number."""
    return sky_java_hash(<PyObject *>text)


# --- Texts that come again ------------------------------------------------------------------------

# Topics and property names repeat from record to record. Handing out the same string again saves
# making it, and later its hash: strings remember theirs. Direct mapped, so it is bounded.
cdef enum:
    _TEXTS = 512
    _TEXT_BYTES_MAX = 64

cdef list _texts = [None] * _TEXTS


cdef str _text(const char *data, Py_ssize_t size, const char *errors):
    cdef uint32_t h = 2166136261u
    cdef Py_ssize_t i, known_size
    cdef const char *known_data
    cdef object known
    if size > _TEXT_BYTES_MAX:
        return PyUnicode_DecodeUTF8(data, size, <char *>errors)
    for i in range(size):
        h = (h ^ <uint8_t>data[i]) * 16777619u
    h = (h ^ (h >> 16)) % _TEXTS
    known = _texts[h]
    if known is not None:
        known_data = PyUnicode_AsUTF8AndSize(known, &known_size)
        if known_size == size and memcmp(known_data, data, <size_t>size) == 0:
            return <str>known
    fresh = PyUnicode_DecodeUTF8(data, size, <char *>errors)
    if fresh.isascii():
        # The UTF-8 of an ASCII string is the string itself: comparing needs no second copy.
        _texts[h] = fresh
    return fresh


# --- Properties -------------------------------------------------------------------------------


cdef dict _properties(const char *data, Py_ssize_t size):
    cdef dict found = {}
    cdef const char *piece = data
    cdef const char *end = data + size
    cdef const char *stop
    cdef const char *separator
    while piece < end:
        stop = <const char *>memchr(piece, 2, <size_t>(end - piece))
        if stop == NULL:
            stop = end
        separator = <const char *>memchr(piece, 1, <size_t>(stop - piece))
        if separator != NULL and separator > piece and separator + 1 < stop:
            found[_text(piece, separator - piece, "replace")] = PyUnicode_DecodeUTF8(
                <char *>separator + 1, stop - separator - 1, "replace"
            )
        piece = stop + 1
    return found


def parse_properties(text):
    """Return the properties of a text; what does not count as one is passed over."""
    cdef Py_buffer view
    cdef Py_ssize_t size
    cdef const char *data
    if type(text) is bytes:
        return _properties(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    if isinstance(text, str):
        if not text.isascii():
            # Lone surrogates have no UTF-8; and the conversion would stay with the caller's string.
            text = text.encode("utf-8", "surrogatepass")
            if b"\xed" in text:
                return _pure_parse(text.decode("utf-8", "surrogatepass"))
            return _properties(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        data = PyUnicode_AsUTF8AndSize(text, &size)
        return _properties(data, size)
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    try:
        return _properties(<const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef dict _pure_parse(str text):
    found = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            found[name] = value
    return found


# --- What record.py lends ----------------------------------------------------------------------

cdef enum:
    _MESSAGE_SLOTS = 17
    _DISPATCH_SLOTS = 12

cdef tuple _message_names = (
    "topic", "queue_id", "queue_offset", "body", "properties", "flag", "sys_flag", "born_at_ms",
    "born_host", "stored_at_ms", "store_host", "physical_offset", "size_bytes", "body_crc",
    "reconsume_times", "prepared_transaction_offset", "magic",
)
cdef tuple _dispatch_names = (
    "physical_offset", "size_bytes", "topic", "queue_id", "queue_offset", "tag_hash",
    "stored_at_ms", "sys_flag", "prepared_transaction_offset", "unique_key", "keys", "properties",
)
cdef Py_ssize_t[_MESSAGE_SLOTS] _message_at
cdef Py_ssize_t[_DISPATCH_SLOTS] _dispatch_at
cdef Py_ssize_t _text_at, _parsed_at
cdef object _message_type, _dispatch_type, _properties_type
cdef object _unpack_host, _pure_decode_record, _pure_decode_dispatch
cdef object _pure_encode_record, _pure_encode_record_into


cdef Py_ssize_t _slot(object kind, str name) except -1:
    cdef Py_ssize_t offset = sky_slot_offset(<PyObject *>kind, <PyObject *>name)
    if offset < 0:
        raise ImportError(f"{kind.__name__}.{name} is not a slot: the pure twin has to serve")
    return offset


def bind(
    message_type, dispatch_type, properties_type, unpack_host, decode_record, decode_dispatch,
    encode_record, encode_record_into,
):
    """Take the classes to fill and the functions to hand odd input to.

    Raises ImportError where a class is not laid out as expected.
    """
    global _message_type, _dispatch_type, _properties_type, _text_at, _parsed_at
    global _unpack_host, _pure_decode_record, _pure_decode_dispatch
    global _pure_encode_record, _pure_encode_record_into
    for i, name in enumerate(_message_names):
        _message_at[i] = _slot(message_type, name)
    for i, name in enumerate(_dispatch_names):
        _dispatch_at[i] = _slot(dispatch_type, name)
    _text_at = _slot(properties_type, "text")
    _parsed_at = _slot(properties_type, "_parsed")
    _message_type, _dispatch_type = message_type, dispatch_type
    _properties_type, _unpack_host = properties_type, unpack_host
    _pure_decode_record, _pure_decode_dispatch = decode_record, decode_dispatch
    _pure_encode_record, _pure_encode_record_into = encode_record, encode_record_into


# --- Decoding ----------------------------------------------------------------------------------

ctypedef struct Walk:
    Py_ssize_t born_host
    Py_ssize_t stored_at
    Py_ssize_t store_host
    Py_ssize_t tail
    Py_ssize_t body
    Py_ssize_t body_bytes
    Py_ssize_t topic
    Py_ssize_t topic_bytes
    Py_ssize_t properties
    Py_ssize_t end
    int32_t sys_flag


cdef int _walk(
    const uint8_t *data, Py_ssize_t room, Py_ssize_t at, bint check_crc, Walk *walk
) noexcept nogil:
    """Check the record at a position: 1 sound, 0 blank, -1 anything else."""
    cdef const uint8_t *p = data + at
    cdef uint32_t magic
    cdef Py_ssize_t left, length
    if at < 0 or at > room or room - at < 8:
        return -1
    magic = sky_get32(p + 4)
    if magic == _BLANK_MAGIC:
        return 0
    if (magic != _MAGIC and magic != _MAGIC_V2) or room - at < _FIXED_SIZE:
        return -1
    walk.sys_flag = <int32_t>sky_get32(p + 36)
    walk.born_host = at + _HEAD_SIZE
    walk.stored_at = walk.born_host + (20 if walk.sys_flag & _BORN_V6 else 8)
    walk.store_host = walk.stored_at + 8
    walk.tail = walk.store_host + (20 if walk.sys_flag & _STORE_V6 else 8)
    walk.body = walk.tail + _TAIL_SIZE
    # From here on left is what the buffer holds beyond the point that has been checked.
    left = room - walk.body
    if left < 0:
        return -1
    length = <int32_t>sky_get32(data + walk.tail + 12)
    if length < 0 or length > left:
        return -1
    left -= length
    walk.body_bytes = length
    walk.topic = walk.body + length
    if magic == _MAGIC:
        if left < 1:
            return -1
        length = <signed char>data[walk.topic]
        walk.topic += 1
        left -= 1
    else:
        if left < 2:
            return -1
        length = <short>((<uint32_t>data[walk.topic] << 8) | data[walk.topic + 1])
        walk.topic += 2
        left -= 2
    if check_crc and (
        sky_crc32(0, data + walk.body, <size_t>walk.body_bytes) & 0x7FFFFFFF
    ) != sky_get32(p + 8):
        return -1
    if length < 0 or length > left - 2:
        return -1
    left -= length + 2
    walk.topic_bytes = length
    walk.properties = walk.topic + length + 2
    length = <short>(
        (<uint32_t>data[walk.properties - 2] << 8) | data[walk.properties - 1]
    )
    if length < 0 or length > left:
        return -1
    walk.end = walk.properties + length
    if walk.end - at != <int32_t>sky_get32(p):
        return -1
    return 1


# Hosts repeat as topics do.
cdef enum:
    _HOSTS = 256

cdef uint8_t[_HOSTS][20] _host_keys
cdef list _hosts = [None] * _HOSTS


cdef object _host(const uint8_t *packed, Py_ssize_t size):
    cdef uint32_t h = 2166136261u
    cdef Py_ssize_t i
    cdef object known
    for i in range(size):
        h = (h ^ packed[i]) * 16777619u
    h = (h ^ (h >> 16)) % _HOSTS
    known = _hosts[h]
    if known is not None and (<tuple>known)[0] == size:
        if memcmp(_host_keys[h], packed, <size_t>size) == 0:
            return (<tuple>known)[1]
    fresh = _unpack_host(PyBytes_FromStringAndSize(<char *>packed, size))
    known = (size, fresh)
    # Nothing may come between these two, or another thread would find a key with an old host.
    memcpy(_host_keys[h], packed, <size_t>size)
    _hosts[h] = known
    return fresh


cdef object _lazy_properties(const uint8_t *data, Py_ssize_t size):
    cdef PyObject *raw = sky_new(<PyObject *>_properties_type)
    cdef object lazy = <object>raw
    Py_DECREF(lazy)  # sky_new gave one reference, the cast took another.
    if not sky_fill(raw, _text_at, raw_bytes(<const char *>data, size)):
        raise MemoryError
    sky_fill(raw, _parsed_at, sky_own(<PyObject *>None))
    return lazy


cdef object _message(const uint8_t *data, Py_ssize_t at, Walk *walk, str topic):
    cdef const uint8_t *p = data + at
    cdef object properties = _lazy_properties(
        data + walk.properties, walk.end - walk.properties
    )
    cdef object born_host = _host(data + walk.born_host, walk.stored_at - walk.born_host)
    cdef object store_host = _host(data + walk.store_host, walk.tail - walk.store_host)
    cdef PyObject *raw = sky_new(<PyObject *>_message_type)
    cdef object message = <object>raw
    cdef Py_ssize_t *slot = _message_at
    cdef bint full
    Py_DECREF(message)  # sky_new gave one reference, the cast took another.
    sky_fill(raw, slot[0], sky_own(<PyObject *>topic))
    sky_fill(raw, slot[4], sky_own(<PyObject *>properties))
    sky_fill(raw, slot[8], sky_own(<PyObject *>born_host))
    sky_fill(raw, slot[10], sky_own(<PyObject *>store_host))
    full = (
        sky_fill(raw, slot[1], raw_long(<int32_t>sky_get32(p + 12)))
        and sky_fill(raw, slot[2], raw_long(<int64_t>sky_get64(p + 20)))
        and sky_fill(raw, slot[3], raw_bytes(<const char *>data + walk.body, walk.body_bytes))
        and sky_fill(raw, slot[5], raw_long(<int32_t>sky_get32(p + 16)))
        and sky_fill(raw, slot[6], raw_long(walk.sys_flag))
        and sky_fill(raw, slot[7], raw_long(<int64_t>sky_get64(p + 40)))
        and sky_fill(raw, slot[9], raw_long(<int64_t>sky_get64(data + walk.stored_at)))
        and sky_fill(raw, slot[11], raw_long(<int64_t>sky_get64(p + 28)))
        and sky_fill(raw, slot[12], raw_long(<int32_t>sky_get32(p)))
        and sky_fill(raw, slot[13], raw_long(<int32_t>sky_get32(p + 8)))
        and sky_fill(raw, slot[14], raw_long(<int32_t>sky_get32(data + walk.tail)))
        and sky_fill(raw, slot[15], raw_long(<int64_t>sky_get64(data + walk.tail + 4)))
        and sky_fill(raw, slot[16], raw_long(sky_get32(p + 4)))
    )
    if not full:
        raise MemoryError
    return message


cdef str _topic(const uint8_t *data, Walk *walk):
    """Return the topic, or None where it is not UTF-8."""
    try:
        return _text(<const char *>data + walk.topic, walk.topic_bytes, "strict")
    except UnicodeDecodeError:
        return None


def decode_record(buffer, Py_ssize_t at=0, *, bint check_crc=True):
    """Return the message at a position; the record's end is at + message.size_bytes."""
    cdef Py_buffer view
    cdef Walk walk
    cdef str topic
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if _walk(<const uint8_t *>view.buf, view.len, at, check_crc, &walk) == 1:
            topic = _topic(<const uint8_t *>view.buf, &walk)
            if topic is not None:
                return _message(<const uint8_t *>view.buf, at, &walk, topic)
    finally:
        PyBuffer_Release(&view)
    return _pure_decode_record(buffer, at, check_crc=check_crc)


def decode_records(buffer, *, bint check_crc=True):
    """Return all messages of a buffer that holds whole records and nothing else."""
    cdef Py_buffer view
    cdef Walk walk
    cdef Py_ssize_t at = 0
    cdef list messages = []
    cdef str topic
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while at < view.len:
            topic = None
            if _walk(<const uint8_t *>view.buf, view.len, at, check_crc, &walk) == 1:
                topic = _topic(<const uint8_t *>view.buf, &walk)
            if topic is None:
                _pure_decode_record(buffer, at, check_crc=check_crc)
                raise AssertionError("the twins disagree about a record")
            messages.append(_message(<const uint8_t *>view.buf, at, &walk, topic))
            at = walk.end
    finally:
        PyBuffer_Release(&view)
    return messages


cdef tuple _keys(const char *data, Py_ssize_t size):
    cdef const char *end = data + size
    cdef const char *stop
    cdef list keys = []
    while data < end:
        stop = <const char *>memchr(data, 32, <size_t>(end - data))
        if stop == NULL:
            stop = end
        if stop > data:
            keys.append(PyUnicode_DecodeUTF8(<char *>data, stop - data, "replace"))
        data = stop + 1
    return tuple(keys)


cdef int32_t _tag_hash(const char *data, Py_ssize_t size) except? -1:
    cdef uint32_t h = 0
    cdef Py_ssize_t i
    cdef uint8_t unit
    for i in range(size):
        unit = <uint8_t>data[i]
        if unit > 127:
            text = PyUnicode_DecodeUTF8(<char *>data, size, "replace")
            return sky_java_hash(<PyObject *>text)
        h = 31 * h + unit
    return <int32_t>h


cdef object _dispatch(const uint8_t *data, Py_ssize_t at, Walk *walk, str topic):
    cdef const uint8_t *p = data + at
    cdef const char *piece = <const char *>data + walk.properties
    cdef const char *end = <const char *>data + walk.end
    cdef const char *stop
    cdef const char *value
    cdef Py_ssize_t name_bytes
    cdef const char *tag = NULL
    cdef const char *unique = NULL
    cdef const char *keys = NULL
    cdef Py_ssize_t tag_bytes = 0, unique_bytes = 0, keys_bytes = 0
    cdef object unique_key = None, key_tuple = (), properties
    cdef int32_t tag_hash = 0
    cdef PyObject *raw
    cdef Py_ssize_t *slot = _dispatch_at
    cdef bint full
    while piece < end:
        stop = <const char *>memchr(piece, 2, <size_t>(end - piece))
        if stop == NULL:
            stop = end
        value = <const char *>memchr(piece, 1, <size_t>(stop - piece))
        if value != NULL and value + 1 < stop:
            name_bytes = value - piece
            value += 1
            if name_bytes == 4:
                if memcmp(piece, b"TAGS", 4) == 0:
                    tag, tag_bytes = value, stop - value
                elif memcmp(piece, b"KEYS", 4) == 0:
                    keys, keys_bytes = value, stop - value
            elif name_bytes == 8 and memcmp(piece, b"UNIQ_KEY", 8) == 0:
                unique, unique_bytes = value, stop - value
        piece = stop + 1
    if tag != NULL:
        tag_hash = _tag_hash(tag, tag_bytes)
    if unique != NULL:
        unique_key = PyUnicode_DecodeUTF8(<char *>unique, unique_bytes, "replace")
    if keys != NULL:
        key_tuple = _keys(keys, keys_bytes)
    properties = _lazy_properties(data + walk.properties, walk.end - walk.properties)

    raw = sky_new(<PyObject *>_dispatch_type)
    info = <object>raw
    Py_DECREF(info)  # sky_new gave one reference, the cast took another.
    sky_fill(raw, slot[2], sky_own(<PyObject *>topic))
    sky_fill(raw, slot[9], sky_own(<PyObject *>unique_key))
    sky_fill(raw, slot[10], sky_own(<PyObject *>key_tuple))
    sky_fill(raw, slot[11], sky_own(<PyObject *>properties))
    full = (
        sky_fill(raw, slot[0], raw_long(<int64_t>sky_get64(p + 28)))
        and sky_fill(raw, slot[1], raw_long(<int32_t>sky_get32(p)))
        and sky_fill(raw, slot[3], raw_long(<int32_t>sky_get32(p + 12)))
        and sky_fill(raw, slot[4], raw_long(<int64_t>sky_get64(p + 20)))
        and sky_fill(raw, slot[5], raw_long(tag_hash))
        and sky_fill(raw, slot[6], raw_long(<int64_t>sky_get64(data + walk.stored_at)))
        and sky_fill(raw, slot[7], raw_long(walk.sys_flag))
        and sky_fill(raw, slot[8], raw_long(<int64_t>sky_get64(data + walk.tail + 4)))
    )
    if not full:
        raise MemoryError
    return info


def decode_dispatch(buffer, Py_ssize_t at=0, *, bint check_crc=False):
    """Return what to dispatch of the record at a position; None where a blank record begins."""
    cdef Py_buffer view
    cdef Walk walk
    cdef str topic
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if _walk(<const uint8_t *>view.buf, view.len, at, check_crc, &walk) == 1:
            topic = _topic(<const uint8_t *>view.buf, &walk)
            if topic is not None:
                return _dispatch(<const uint8_t *>view.buf, at, &walk, topic)
    finally:
        PyBuffer_Release(&view)
    return _pure_decode_dispatch(buffer, at, check_crc=check_crc)


def decode_dispatches(
    buffer, Py_ssize_t at=0, *, Py_ssize_t count_max=1024, bint check_crc=False
):
    """Return the sound records from a position on, and the position after the last of them."""
    cdef Py_buffer view
    cdef Walk walk
    cdef list found = []
    cdef str topic
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while len(found) < count_max and at < view.len:
            if _walk(<const uint8_t *>view.buf, view.len, at, check_crc, &walk) != 1:
                break
            topic = _topic(<const uint8_t *>view.buf, &walk)
            if topic is None:
                break
            found.append(_dispatch(<const uint8_t *>view.buf, at, &walk, topic))
            at = walk.end
    finally:
        PyBuffer_Release(&view)
    return found, at


# --- Encoding -----------------------------------------------------------------------------------

ctypedef struct Parts:
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    const uint8_t *born_host
    Py_ssize_t born_host_bytes
    const uint8_t *store_host
    Py_ssize_t store_host_bytes
    int64_t queue_id
    int64_t queue_offset
    int64_t physical_offset
    int64_t flag
    int64_t sys_flag
    int64_t born_at_ms
    int64_t stored_at_ms
    int64_t reconsume_times
    int64_t prepared_transaction_offset
    Py_ssize_t size


cdef inline bint _is_int32(int64_t value) noexcept nogil:
    return -2147483648LL <= value <= 2147483647LL


cdef bint _sizes_fit(Parts *parts) noexcept nogil:
    """Whether everything fits its place; sets the size and the IPv6 bits."""
    if not (
        0 < parts.topic_bytes <= _TOPIC_MAX
        and parts.properties_bytes <= _PROPERTIES_MAX
        and parts.body_bytes <= 0x7FFFFFFF - 65536
        and (parts.born_host_bytes == 8 or parts.born_host_bytes == 20)
        and (parts.store_host_bytes == 8 or parts.store_host_bytes == 20)
        and _is_int32(parts.queue_id)
        and _is_int32(parts.flag)
        and _is_int32(parts.sys_flag)
        and _is_int32(parts.reconsume_times)
    ):
        return False
    parts.sys_flag &= ~<int64_t>(_BORN_V6 | _STORE_V6)
    if parts.born_host_bytes == 20:
        parts.sys_flag |= _BORN_V6
    if parts.store_host_bytes == 20:
        parts.sys_flag |= _STORE_V6
    parts.size = (
        _FIXED_SIZE - 16 + parts.born_host_bytes + parts.store_host_bytes
        + parts.body_bytes + parts.topic_bytes + parts.properties_bytes
    )
    return True


cdef void _write(uint8_t *p, Parts *parts) noexcept nogil:
    sky_put32(p, <uint32_t>parts.size)
    sky_put32(p + 4, _MAGIC)
    sky_put32(p + 8, sky_crc32(0, parts.body, <size_t>parts.body_bytes) & 0x7FFFFFFF)
    sky_put32(p + 12, <uint32_t>parts.queue_id)
    sky_put32(p + 16, <uint32_t>parts.flag)
    sky_put64(p + 20, <uint64_t>parts.queue_offset)
    sky_put64(p + 28, <uint64_t>parts.physical_offset)
    sky_put32(p + 36, <uint32_t>parts.sys_flag)
    sky_put64(p + 40, <uint64_t>parts.born_at_ms)
    p += _HEAD_SIZE
    memcpy(p, parts.born_host, <size_t>parts.born_host_bytes)
    p += parts.born_host_bytes
    sky_put64(p, <uint64_t>parts.stored_at_ms)
    p += 8
    memcpy(p, parts.store_host, <size_t>parts.store_host_bytes)
    p += parts.store_host_bytes
    sky_put32(p, <uint32_t>parts.reconsume_times)
    sky_put64(p + 4, <uint64_t>parts.prepared_transaction_offset)
    sky_put32(p + 12, <uint32_t>parts.body_bytes)
    p += _TAIL_SIZE
    memcpy(p, parts.body, <size_t>parts.body_bytes)
    p += parts.body_bytes
    p[0] = <uint8_t>parts.topic_bytes
    memcpy(p + 1, parts.topic, <size_t>parts.topic_bytes)
    p += 1 + parts.topic_bytes
    p[0] = <uint8_t>(parts.properties_bytes >> 8)
    p[1] = <uint8_t>parts.properties_bytes
    memcpy(p + 2, parts.properties, <size_t>parts.properties_bytes)


cdef int _point(object value, const uint8_t **data, Py_ssize_t *size) except -1:
    """Find the bytes of a bytes object or of an ASCII string; 0 for anything else."""
    if type(value) is bytes:
        data[0] = <const uint8_t *>PyBytes_AS_STRING(value)
        size[0] = PyBytes_GET_SIZE(value)
        return 1
    if type(value) is str and (<str>value).isascii():
        data[0] = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, size)
        return 1
    return 0


cdef int _integer(object value, int64_t *found) except -1:
    cdef int overflow = 0
    if not isinstance(value, int):
        return 0
    found[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef int _gather(
    Parts *parts, object topic, object properties, object born_host, object store_host,
    object queue_id, object queue_offset, object physical_offset, object flag, object sys_flag,
    object born_at_ms, object stored_at_ms, object reconsume_times,
    object prepared_transaction_offset,
) except -1:
    """Fill all parts but the body; 0 where the pure twin has to look at them."""
    return (
        _point(topic, &parts.topic, &parts.topic_bytes)
        and _point(properties, &parts.properties, &parts.properties_bytes)
        and type(born_host) is bytes
        and type(store_host) is bytes
        and _point(born_host, &parts.born_host, &parts.born_host_bytes)
        and _point(store_host, &parts.store_host, &parts.store_host_bytes)
        and _integer(queue_id, &parts.queue_id)
        and _integer(queue_offset, &parts.queue_offset)
        and _integer(physical_offset, &parts.physical_offset)
        and _integer(flag, &parts.flag)
        and _integer(sys_flag, &parts.sys_flag)
        and _integer(born_at_ms, &parts.born_at_ms)
        and _integer(stored_at_ms, &parts.stored_at_ms)
        and _integer(reconsume_times, &parts.reconsume_times)
        and _integer(prepared_transaction_offset, &parts.prepared_transaction_offset)
    )


def encode_record(
    *, topic, body, properties=b"", queue_id=0, queue_offset=0, physical_offset=0, flag=0,
    sys_flag=0, born_at_ms=0, born_host, stored_at_ms=0, store_host, reconsume_times=0,
    prepared_transaction_offset=0,
):
    """Return one record; hosts come from pack_host, and set the IPv6 bits of the sysFlag."""
    cdef Parts parts
    cdef Py_buffer view
    cdef bytes record
    if PyObject_CheckBuffer(body) and _gather(
        &parts, topic, properties, born_host, store_host, queue_id, queue_offset, physical_offset,
        flag, sys_flag, born_at_ms, stored_at_ms, reconsume_times, prepared_transaction_offset,
    ):
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            parts.body = <const uint8_t *>view.buf
            parts.body_bytes = view.len
            if _sizes_fit(&parts):
                record = PyBytes_FromStringAndSize(NULL, parts.size)
                _write(<uint8_t *>PyBytes_AS_STRING(record), &parts)
                return record
        finally:
            PyBuffer_Release(&view)
    return _pure_encode_record(
        topic=topic, body=body, properties=properties, queue_id=queue_id,
        queue_offset=queue_offset, physical_offset=physical_offset, flag=flag, sys_flag=sys_flag,
        born_at_ms=born_at_ms, born_host=born_host, stored_at_ms=stored_at_ms,
        store_host=store_host, reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def encode_record_into(
    buffer, Py_ssize_t at, *, topic, body, properties=b"", queue_id=0, queue_offset=0,
    physical_offset=0, flag=0, sys_flag=0, born_at_ms=0, born_host, stored_at_ms=0, store_host,
    reconsume_times=0, prepared_transaction_offset=0,
):
    """Write one record at a position of a writable buffer, and return its size."""
    cdef Parts parts
    cdef Py_buffer view, target
    cdef uint8_t *start
    if PyObject_CheckBuffer(body) and _gather(
        &parts, topic, properties, born_host, store_host, queue_id, queue_offset, physical_offset,
        flag, sys_flag, born_at_ms, stored_at_ms, reconsume_times, prepared_transaction_offset,
    ):
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            parts.body = <const uint8_t *>view.buf
            parts.body_bytes = view.len
            if _sizes_fit(&parts) and at >= 0:
                PyObject_GetBuffer(buffer, &target, PyBUF_WRITABLE)
                try:
                    if at <= target.len and parts.size <= target.len - at:
                        start = <uint8_t *>target.buf + at
                        # A body that lies where the record goes would be overwritten while read.
                        if start + parts.size <= parts.body or parts.body + parts.body_bytes <= start:
                            _write(start, &parts)
                            return parts.size
                finally:
                    PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&view)
    return _pure_encode_record_into(
        buffer, at, topic=topic, body=body, properties=properties, queue_id=queue_id,
        queue_offset=queue_offset, physical_offset=physical_offset, flag=flag, sys_flag=sys_flag,
        born_at_ms=born_at_ms, born_host=born_host, stored_at_ms=stored_at_ms,
        store_host=store_host, reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


# --- Batches ------------------------------------------------------------------------------------

cdef Py_ssize_t _entry_body_at, _entry_properties_at, _entry_flag_at
cdef object _entry_type, _pure_decode_batch


def bind_batch(entry_type, decode_batch):
    """Take the class to fill and the function to hand odd input to, as bind does."""
    global _entry_type, _pure_decode_batch
    global _entry_body_at, _entry_properties_at, _entry_flag_at
    _entry_body_at = _slot(entry_type, "body")
    _entry_properties_at = _slot(entry_type, "properties")
    _entry_flag_at = _slot(entry_type, "flag")
    _entry_type, _pure_decode_batch = entry_type, decode_batch


cdef list _batch(const uint8_t *data, Py_ssize_t room, Py_ssize_t count_max):
    """Return the entries, or None where something does not add up. The layout is in batch.py."""
    cdef list entries = []
    cdef Py_ssize_t at = 0, size, body_bytes, properties_bytes
    cdef const uint8_t *p
    cdef uint32_t crc
    cdef PyObject *raw
    while at < room:
        p = data + at
        if room - at < 22 or len(entries) >= count_max:
            return None
        size = <int32_t>sky_get32(p)
        if size < 22 or size > room - at:
            return None
        body_bytes = <int32_t>sky_get32(p + 16)
        if body_bytes < 0 or body_bytes > size - 22:
            return None
        properties_bytes = <short>((<uint32_t>p[20 + body_bytes] << 8) | p[21 + body_bytes])
        if properties_bytes != size - 22 - body_bytes:
            return None
        crc = sky_get32(p + 8)
        if crc and (crc ^ sky_crc32(0, p + 20, <size_t>body_bytes)) & 0x7FFFFFFF:
            return None
        raw = sky_new(<PyObject *>_entry_type)
        entry = <object>raw
        Py_DECREF(entry)  # sky_new gave one reference, the cast took another.
        if not (
            sky_fill(raw, _entry_body_at, raw_bytes(<const char *>p + 20, body_bytes))
            and sky_fill(
                raw,
                _entry_properties_at,
                raw_bytes(<const char *>p + 22 + body_bytes, properties_bytes),
            )
            and sky_fill(raw, _entry_flag_at, raw_long(<int32_t>sky_get32(p + 12)))
        ):
            raise MemoryError
        entries.append(entry)
        at += size
    return entries if entries else None


def decode_batch(body, *, Py_ssize_t count_max=65536):
    """Return the entries of a batch body."""
    cdef Py_buffer view
    cdef list entries
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        entries = _batch(<const uint8_t *>view.buf, view.len, count_max)
    finally:
        PyBuffer_Release(&view)
    return entries if entries is not None else _pure_decode_batch(body, count_max=count_max)
