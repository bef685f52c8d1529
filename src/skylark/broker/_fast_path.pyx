# cython: language_level=3, boundscheck=True, wraparound=False
"""Compiled twins of fast_path.py, which specifies them.

Everything that is not ordinary is left to the caller, as there: a number with a sign or space that Python
would take, a property that moves a message, a header that is not JSON.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "crc32.h":
    void sky_crc_prepare() noexcept nogil
    uint32_t sky_crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bint PyUnicode_Check(object text)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    void* PyUnicode_1BYTE_DATA(object text)

sky_crc_prepare()

cdef object _PutMessage = None
cdef object _PullFields = None
cdef object _PUT_OK = None
cdef object _tuple_new = tuple.__new__

cdef int64_t _INT_MIN = -2147483648
cdef int64_t _INT_MAX = 2147483647
cdef Py_ssize_t _PROPERTIES_BYTES_MAX = 32767
cdef Py_ssize_t _KEYS_COUNT_MAX = 64
cdef Py_ssize_t _FRAME_BYTES_MAX = 16 * 1024 * 1024


def bind(put_message, pull_fields, put_ok):
    """Take the types that results are made of."""
    global _PutMessage, _PullFields, _PUT_OK
    _PutMessage = put_message
    _PullFields = pull_fields
    _PUT_OK = put_ok


cdef inline object _get(dict fields, str name):
    cdef void* found = <void*>PyDict_GetItem(fields, name)
    return None if found == NULL else <object>found


cdef inline bint _number(object text, int64_t* value) except -1:
    """Read a decimal of at most 18 digits; false where it is anything else."""
    if text is None or not PyUnicode_Check(text):
        return False
    cdef Py_ssize_t size = 0
    cdef const char* p
    try:
        p = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        return False
    cdef Py_ssize_t i = 0
    cdef bint negative = False
    cdef int64_t result = 0
    if size > 0 and p[0] == 45:
        negative = True
        i = 1
    if size - i < 1 or size - i > 18:
        return False
    while i < size:
        if p[i] < 48 or p[i] > 57:
            return False
        result = result * 10 + (p[i] - 48)
        i += 1
    value[0] = -result if negative else result
    return True


cdef inline bint _small(int64_t value) noexcept nogil:
    return _INT_MIN <= value <= _INT_MAX


cdef inline bint _is_odd(const char* name, Py_ssize_t size) noexcept nogil:
    if size == 5:
        return memcmp(name, b"DELAY", 5) == 0
    if size == 7:
        return memcmp(name, b"CLUSTER", 7) == 0
    if size == 8:
        return memcmp(name, b"TRAN_MSG", 8) == 0
    if size == 14:
        return memcmp(name, b"TIMER_DELAY_MS", 14) == 0
    if size == 15:
        return memcmp(name, b"TIMER_DELAY_SEC", 15) == 0
    if size == 16:
        return memcmp(name, b"TIMER_DELIVER_MS", 16) == 0
    return False


cdef bytes _plain_properties(object text, bytes cluster):
    """The properties to store, or None where they are not plain."""
    cdef Py_ssize_t size = 0
    cdef const char* p = b""
    if text is not None:
        if not PyUnicode_Check(text):
            return None
        try:
            p = PyUnicode_AsUTF8AndSize(text, &size)
        except UnicodeEncodeError:
            return None
    cdef Py_ssize_t cluster_size = PyBytes_GET_SIZE(cluster)
    if size + 1 + cluster_size > _PROPERTIES_BYTES_MAX + 16:
        return None  # Too long even without WAIT, which is shorter than that.
    cdef char* out = <char*>malloc(size + 2 + cluster_size)
    if out == NULL:
        raise MemoryError
    cdef const char* at = p
    cdef const char* end = p + size
    cdef const char* stop
    cdef const char* mark
    cdef const char* space
    cdef Py_ssize_t used = 0, keys
    try:
        while at < end:
            stop = <const char*>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            mark = <const char*>memchr(at, 1, stop - at)
            if mark == NULL or mark == at or mark + 1 == stop:
                return None
            if _is_odd(at, mark - at):
                return None
            if mark - at == 4:
                if memcmp(at, b"WAIT", 4) == 0:
                    at = stop + 1
                    continue
                if memcmp(at, b"KEYS", 4) == 0:
                    keys = 0
                    space = mark + 1
                    while True:
                        space = <const char*>memchr(space, 32, stop - space)
                        if space == NULL:
                            break
                        keys += 1
                        space += 1
                    if keys >= _KEYS_COUNT_MAX:
                        return None
            if used:
                out[used] = 2
                used += 1
            memcpy(out + used, at, stop - at)
            used += stop - at
            at = stop + 1
        if used:
            out[used] = 2
            used += 1
        memcpy(out + used, PyBytes_AS_STRING(cluster), cluster_size)
        used += cluster_size
        if used > _PROPERTIES_BYTES_MAX:
            return None
        return PyBytes_FromStringAndSize(out, used)
    finally:
        free(out)


cdef inline bint _is_false(object text):
    return text is None or text == "false"


cdef object _put(tuple members):
    return _tuple_new(_PutMessage, members)


def plain_sends(list commands, Py_ssize_t at, context, list messages, list queue_ids):
    """Read commands[at:] while they are plain sends; see fast_path.py."""
    cdef dict topics = context[0]
    cdef bytes cluster = context[1]
    cdef object born_host = context[2]
    cdef object store_host = context[3]
    cdef Py_ssize_t body_max = context[4]
    cdef Py_ssize_t count = len(commands)
    cdef int64_t queue_nums, queue_id, sys_flag, born_at_ms, flag, reconsume_times, asked_max
    cdef int64_t queues
    cdef dict fields
    cdef object command, topic, text, body, known, kept_id
    cdef bytes properties
    while at < count:
        command = commands[at]
        if command.code != 310:
            return at
        fields = command.fields
        if not _is_false(_get(fields, "m")) or not _is_false(_get(fields, "k")):
            return at
        topic = _get(fields, "b")
        if topic is None or _get(fields, "a") is None or _get(fields, "c") is None:
            return at
        known = topics.get(topic)
        if known is None:
            return at
        queues = known
        if not (
            _number(_get(fields, "d"), &queue_nums)
            and _number(_get(fields, "e"), &queue_id)
            and _number(_get(fields, "f"), &sys_flag)
            and _number(_get(fields, "g"), &born_at_ms)
            and _number(_get(fields, "h"), &flag)
        ):
            return at
        reconsume_times = 0
        text = _get(fields, "j")
        if text is not None and not _number(text, &reconsume_times):
            return at
        asked_max = 0
        text = _get(fields, "l")
        if text is not None and not _number(text, &asked_max):
            return at
        if not (
            _small(queue_nums) and _small(queue_id) and _small(sys_flag) and _small(flag)
            and _small(reconsume_times) and _small(asked_max)
        ):
            return at
        if queue_id < 0 or queue_id >= queues or sys_flag & 0xC:
            return at
        body = command.body
        if len(body) > body_max:
            return at
        properties = _plain_properties(_get(fields, "i"), cluster)
        if properties is None:
            return at
        kept_id = queue_id
        messages.append(
            _put(
                (
                    topic, kept_id, body, properties, born_at_ms, born_host, store_host, flag,
                    sys_flag, reconsume_times, 0,
                )
            )
        )
        queue_ids.append(kept_id)
        at += 1
    return at


# ---------------------------------------------------------------- answers


cdef struct Out:
    char* data
    Py_ssize_t used
    Py_ssize_t room


cdef int _reserve(Out* out, Py_ssize_t more) except -1:
    cdef Py_ssize_t room
    cdef char* grown
    if out.used + more <= out.room:
        return 0
    room = out.room * 2
    while room < out.used + more:
        room *= 2
    grown = <char*>realloc(out.data, room)
    if grown == NULL:
        raise MemoryError
    out.data = grown
    out.room = room
    return 0


cdef inline void _text(Out* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out.data + out.used, text, size)
    out.used += size


cdef void _decimal(Out* out, int64_t number) noexcept nogil:
    cdef char digits[24]
    cdef int at = 24
    cdef uint64_t rest = <uint64_t>number
    if number < 0:
        rest = 0 - rest
    while True:
        at -= 1
        digits[at] = <char>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        at -= 1
        digits[at] = 45
    _text(out, &digits[at], 24 - at)


cdef inline void _word(char* p, uint32_t value) noexcept nogil:
    p[0] = <char>(value >> 24)
    p[1] = <char>(value >> 16)
    p[2] = <char>(value >> 8)
    p[3] = <char>value


cdef const char* _HEX = b"0123456789ABCDEF"


cdef void _hex16(Out* out, uint64_t value) noexcept nogil:
    cdef int i
    cdef char* p = out.data + out.used
    for i in range(16):
        p[15 - i] = _HEX[value & 15]
        value >>= 4
    out.used += 16


cdef dict _tails = {}


cdef bytes _tail_of(object trace_fields):
    """The part of an answer between the queue offset and the opaque; the same in all of them."""
    cdef tuple key = tuple(trace_fields.items())
    known = _tails.get(key)
    if known is None:
        import json

        members = "".join(f",{json.dumps(name)}:{json.dumps(text, ensure_ascii=False)}" for name, text in key)
        known = f'"{members}}},"flag":1,"language":"PYTHON","opaque":'.encode()
        if len(_tails) > 64:
            _tails.clear()
        _tails[key] = known
    return known


def stored_answers(list commands, Py_ssize_t at, queue_ids, results, str id_prefix, trace_fields):
    """The answers to stored sends as frames; see fast_path.py."""
    cdef Out out
    cdef Py_ssize_t i, start, header
    cdef Py_ssize_t count = min(len(results), len(queue_ids))
    cdef bytes tail = _tail_of(trace_fields)
    cdef bytes prefix = id_prefix.encode("ascii")
    cdef Py_ssize_t fixed = PyBytes_GET_SIZE(tail) + PyBytes_GET_SIZE(prefix) + 256
    cdef object command, result
    cdef int64_t physical, queue_offset, queue_id, opaque
    if at + count > len(commands):
        count = len(commands) - at
    out.used = 0
    out.room = 512
    out.data = <char*>malloc(out.room)
    if out.data == NULL:
        raise MemoryError
    try:
        for i in range(count):
            command = commands[at + i]
            result = results[i]
            if result[0] is not _PUT_OK or command.serialization != 0:
                return None
            if command.flag & 2:
                continue
            physical = result[1]
            queue_offset = result[2]
            queue_id = queue_ids[i]
            opaque = command.opaque
            _reserve(&out, fixed)
            start = out.used
            out.used += 8
            _text(&out, b'{"code":0,"extFields":{"msgId":"', 32)
            _text(&out, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
            _hex16(&out, <uint64_t>physical)
            _text(&out, b'","queueId":"', 13)
            _decimal(&out, queue_id)
            _text(&out, b'","queueOffset":"', 17)
            _decimal(&out, queue_offset)
            _text(&out, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
            _decimal(&out, opaque)
            _text(&out, b',"serializeTypeCurrentRPC":"JSON","version":409}', 48)
            header = out.used - start - 8
            _word(out.data + start, <uint32_t>(header + 4))
            _word(out.data + start + 4, <uint32_t>header)
        return PyBytes_FromStringAndSize(out.data, out.used)
    finally:
        free(out.data)


# ---------------------------------------------------------------- batches


cdef bint _is_plain(const char* p, Py_ssize_t size) noexcept nogil:
    """Whether the properties of an entry are plain."""
    cdef const char* at = p
    cdef const char* end = p + size
    cdef const char* stop
    cdef const char* mark
    cdef Py_ssize_t i, spaces = 0
    while at < end:
        stop = <const char*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <const char*>memchr(at, 1, stop - at)
        if mark == NULL or mark == at:
            return False
        while mark != NULL:  # A value may have one in it as well.
            if mark - p >= 5 and memcmp(mark - 5, b"DELAY", 5) == 0:
                return False
            if mark - p >= 8 and memcmp(mark - 8, b"TRAN_MSG", 8) == 0:
                return False
            mark = <const char*>memchr(mark + 1, 1, stop - mark - 1)
        at = stop + 1
    at = p
    while at < end:
        mark = <const char*>memchr(at, 95, end - at)
        if mark == NULL:
            break
        if mark - p >= 5 and memcmp(mark - 5, b"TIMER", 5) == 0:
            return False
        at = mark + 1
    for i in range(size):
        spaces += p[i] == 32
    return spaces < _KEYS_COUNT_MAX


cdef inline Py_ssize_t _int32(const char* p) noexcept nogil:
    cdef const uint8_t* at = <const uint8_t*>p
    return <int32_t>(
        (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]
    )


cdef bint _are_plain(const char* data, Py_ssize_t room) noexcept nogil:
    """Whether all entries are sound, as protocol/batch.py says, and plain."""
    cdef Py_ssize_t at = 0, size, body, properties, count = 0
    cdef const uint8_t* p
    cdef uint32_t crc
    while at < room:
        if room - at < 22 or count >= 65536:
            return False
        size = _int32(data + at)
        if size < 22 or size > room - at:
            return False
        body = _int32(data + at + 16)
        if body < 0 or body > size - 22:
            return False
        p = <const uint8_t*>data + at + 20 + body
        properties = (<Py_ssize_t>p[0] << 8) | p[1]
        if properties > _PROPERTIES_BYTES_MAX or properties != size - 22 - body:
            return False
        if not _is_plain(<const char*>p + 2, properties):
            return False
        crc = <uint32_t>_int32(data + at + 8)
        if crc and (
            crc ^ sky_crc32(0, <const uint8_t*>data + at + 20, <size_t>body)
        ) & 0x7FFFFFFF:
            return False
        at += size
        count += 1
    return count > 0


def plain_entries(entries):
    """Whether all entries of a batch are plain; see fast_path.py."""
    cdef Py_buffer view
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        return _are_plain(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def stored_ids(str id_prefix, const long long[::1] physical_offsets):
    """The ids of the messages of a batch; see fast_path.py."""
    cdef Py_ssize_t i, count = physical_offsets.shape[0]
    cdef bytes prefix = id_prefix.encode("ascii")
    cdef Py_ssize_t prefix_size = PyBytes_GET_SIZE(prefix)
    cdef Out out
    cdef object text
    if count == 0:
        return ""
    text = PyUnicode_New(count * (prefix_size + 17) - 1, 127)
    out.data = <char*>PyUnicode_1BYTE_DATA(text)
    out.used = 0
    for i in range(count):
        if i:
            _text(&out, b",", 1)
        _text(&out, PyBytes_AS_STRING(prefix), prefix_size)
        _hex16(&out, <uint64_t>physical_offsets[i])
    return text


# ---------------------------------------------------------------- pulls


def read_pull(dict fields):
    """The fields of a pull; see fast_path.py."""
    cdef int64_t queue_id, offset, count, sys_flag, commit, suspend, version
    cdef object group = _get(fields, "consumerGroup")
    cdef object topic = _get(fields, "topic")
    if group is None or topic is None:
        return None
    if not (
        _number(_get(fields, "queueId"), &queue_id)
        and _number(_get(fields, "queueOffset"), &offset)
        and _number(_get(fields, "maxMsgNums"), &count)
        and _number(_get(fields, "sysFlag"), &sys_flag)
        and _number(_get(fields, "commitOffset"), &commit)
        and _number(_get(fields, "suspendTimeoutMillis"), &suspend)
        and _number(_get(fields, "subVersion"), &version)
    ):
        return None
    if not (_small(queue_id) and _small(count) and _small(sys_flag)):
        return None
    return _tuple_new(
        _PullFields,
        (
            group, topic, queue_id, offset, count, sys_flag, commit, suspend,
            _get(fields, "subscription"), version, _get(fields, "expressionType"),
        ),
    )


def pull_answer(command, int code, str remark, str suggestion, tuple offsets, chunks):
    """The answer to a pull as a frame; see fast_path.py."""
    cdef Out out
    cdef Py_ssize_t header, total = 0
    cdef int64_t next_offset = offsets[0], min_offset = offsets[1], max_offset = offsets[2]
    cdef int64_t opaque = command.opaque
    cdef bytes remark_text = remark.encode("ascii")
    cdef bytes suggestion_text = suggestion.encode("ascii")
    cdef const uint8_t[::1] view
    cdef object chunk, frame
    cdef char* p
    if command.serialization != 0:
        return None
    for chunk in chunks:
        total += len(chunk)
    out.used = 8
    out.room = 640 + PyBytes_GET_SIZE(remark_text) + PyBytes_GET_SIZE(suggestion_text)
    if total + out.room > _FRAME_BYTES_MAX:
        return None
    out.data = <char*>malloc(out.room)
    if out.data == NULL:
        raise MemoryError
    try:
        _text(&out, b'{"code":', 8)
        _decimal(&out, code)
        _text(&out, b',"extFields":{"suggestWhichBrokerId":"', 38)
        _text(&out, PyBytes_AS_STRING(suggestion_text), PyBytes_GET_SIZE(suggestion_text))
        _text(&out, b'","nextBeginOffset":"', 21)
        _decimal(&out, next_offset)
        _text(&out, b'","minOffset":"', 15)
        _decimal(&out, min_offset)
        _text(&out, b'","maxOffset":"', 15)
        _decimal(&out, max_offset)
        _text(&out, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        _decimal(&out, opaque)
        _text(&out, b',"remark":"', 11)
        _text(&out, PyBytes_AS_STRING(remark_text), PyBytes_GET_SIZE(remark_text))
        _text(&out, b'","serializeTypeCurrentRPC":"JSON","version":409}', 49)
        header = out.used - 8
        _word(out.data, <uint32_t>(4 + header + total))
        _word(out.data + 4, <uint32_t>header)
        frame = PyBytes_FromStringAndSize(NULL, out.used + total)
        p = PyBytes_AS_STRING(frame)
        memcpy(p, out.data, out.used)
        p += out.used
        for chunk in chunks:
            if type(chunk) is bytes:
                memcpy(p, PyBytes_AS_STRING(chunk), PyBytes_GET_SIZE(chunk))
                p += PyBytes_GET_SIZE(chunk)
            elif len(chunk):
                view = chunk
                memcpy(p, &view[0], view.shape[0])
                p += view.shape[0]
        return frame
    finally:
        free(out.data)
