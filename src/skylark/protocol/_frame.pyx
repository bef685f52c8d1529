# cython: language_level=3, boundscheck=True, wraparound=False
"""Compiled twins of frame.py's decode_frames and encode_frames.

The scanner reads the headers that correct peers write. Whatever it does not expect it hands, whole, to
the pure functions, which decide: so both refuse the same bytes with the same words.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from ..errors import LocalProtocolError, RemoteProtocolError
from .codes import Language
from .command import Command
from .header_binary import decode_header_binary, encode_header_binary
from .header_json import decode_header_json, encode_header_json

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef object _Command = Command
cdef object _new = Command.__new__
cdef object _decode_json = decode_header_json
cdef object _decode_binary = decode_header_binary
cdef object _encode_json = encode_header_json
cdef object _encode_binary = encode_header_binary
cdef dict _language_of_name = {l.name.encode(): int(l) for l in Language}
cdef dict _name_of_language = {int(l): l.name.encode() for l in Language}
cdef object _OTHER = int(Language.OTHER)
cdef int _JAVA = Language.JAVA
cdef dict _interned = {}  # Field names repeat in every request: keep one str for each.
cdef Py_ssize_t _INTERNED_MAX = 1024
cdef Py_ssize_t _FRAME_BYTES_MAX = 16 * 1024 * 1024
cdef const char* _HEX = b"0123456789abcdef"


cdef inline uint32_t _u32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline void _put_u32(char* p, uint32_t value) noexcept nogil:
    p[0] = <char>(value >> 24)
    p[1] = <char>(value >> 16)
    p[2] = <char>(value >> 8)
    p[3] = <char>value


# ---------------------------------------------------------------- decoding


cdef struct Scan:
    const uint8_t* at
    const uint8_t* end


cdef inline void _space(Scan* s) noexcept nogil:
    while s.at < s.end and (s.at[0] == 32 or s.at[0] == 10 or s.at[0] == 13 or s.at[0] == 9):
        s.at += 1


cdef inline bint _take(Scan* s, uint8_t wanted) noexcept nogil:
    """Skip space, then the wanted byte; false where another one stands."""
    _space(s)
    if s.at < s.end and s.at[0] == wanted:
        s.at += 1
        return True
    return False


cdef inline bint _plain_string(Scan* s, const uint8_t** start, Py_ssize_t* size) noexcept nogil:
    """Take a quoted string without escapes; false where it is anything else."""
    _space(s)
    if s.at >= s.end or s.at[0] != 34:
        return False
    cdef const uint8_t* p = s.at + 1
    start[0] = p
    while p < s.end:
        if p[0] == 34:
            size[0] = p - start[0]
            s.at = p + 1
            return True
        if p[0] == 92 or p[0] < 32:
            return False
        p += 1
    return False


cdef inline bint _is_ascii(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if text[i] >= 128:
            return False
    return True


cdef inline int _hex(uint8_t c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    if 65 <= c <= 70:
        return c - 55
    return -1


cdef object _string(Scan* s):
    """Take a quoted string; None where the pure decoder should look at it."""
    cdef const uint8_t* start
    cdef Py_ssize_t size
    cdef Scan before = s[0]
    if _plain_string(s, &start, &size):
        return PyUnicode_DecodeUTF8(<const char*>start, size, NULL)
    s[0] = before
    _space(s)
    if s.at >= s.end or s.at[0] != 34:
        return None
    cdef const uint8_t* p = s.at + 1
    cdef char* out = <char*>malloc(s.end - p + 1)  # Escapes only ever shrink.
    cdef Py_ssize_t n = 0
    cdef int value, digit, i
    cdef uint8_t c
    if out == NULL:
        raise MemoryError
    try:
        while p < s.end:
            c = p[0]
            if c == 34:
                s.at = p + 1
                return PyUnicode_DecodeUTF8(out, n, NULL)
            if c < 32:
                return None
            if c != 92:
                out[n] = <char>c
                n += 1
                p += 1
                continue
            if s.end - p < 2:
                return None
            c = p[1]
            p += 2
            if c == 34 or c == 92 or c == 47:
                out[n] = <char>c
            elif c == 98:
                out[n] = 8
            elif c == 102:
                out[n] = 12
            elif c == 110:
                out[n] = 10
            elif c == 114:
                out[n] = 13
            elif c == 116:
                out[n] = 9
            elif c == 117:
                if s.end - p < 4:
                    return None
                value = 0
                for i in range(4):
                    digit = _hex(p[i])
                    if digit < 0:
                        return None
                    value = value * 16 + digit
                p += 4
                if value >= 0xD800 and value <= 0xDFFF:
                    return None
                if value < 0x80:
                    out[n] = <char>value
                elif value < 0x800:
                    out[n] = <char>(0xC0 | (value >> 6))
                    out[n + 1] = <char>(0x80 | (value & 0x3F))
                    n += 1
                else:
                    out[n] = <char>(0xE0 | (value >> 12))
                    out[n + 1] = <char>(0x80 | ((value >> 6) & 0x3F))
                    out[n + 2] = <char>(0x80 | (value & 0x3F))
                    n += 2
            else:
                return None
            n += 1
        return None
    finally:
        free(out)


cdef object _name(Scan* s):
    """Take a field's name, giving the same str object for the same name."""
    cdef const uint8_t* start
    cdef Py_ssize_t size
    cdef Scan before = s[0]
    if not _plain_string(s, &start, &size) or size > 32:
        s[0] = before
        return _string(s)
    return _intern(start, size)


cdef object _intern(const uint8_t* start, Py_ssize_t size):
    cdef bytes raw = PyBytes_FromStringAndSize(<const char*>start, size)
    cdef object known = _interned.get(raw)
    if known is None:
        known = PyUnicode_DecodeUTF8(<const char*>start, size, NULL)
        if len(_interned) < _INTERNED_MAX:
            _interned[raw] = known
    return known


cdef inline bint _integer(Scan* s, int64_t* value) noexcept nogil:
    """Take an integer of at most 18 digits; false where it is anything else."""
    _space(s)
    cdef const uint8_t* p = s.at
    cdef bint negative = False
    cdef int64_t result = 0
    cdef int digits = 0
    if p < s.end and p[0] == 45:
        negative = True
        p += 1
    cdef const uint8_t* first = p
    while p < s.end and 48 <= p[0] <= 57:
        result = result * 10 + (p[0] - 48)
        digits += 1
        if digits > 18:
            return False
        p += 1
    if digits == 0 or (digits > 1 and first[0] == 48):
        return False
    if p < s.end and (p[0] == 46 or p[0] == 101 or p[0] == 69):
        return False
    value[0] = -result if negative else result
    s.at = p
    return True


cdef bint _literal(Scan* s, const char* word, Py_ssize_t size) noexcept nogil:
    _space(s)
    if s.end - s.at >= size and memcmp(s.at, word, size) == 0:
        s.at += size
        return True
    return False


cdef dict _fields(Scan* s):
    """Take the extFields object; None where the pure decoder should look at it."""
    cdef dict fields = {}
    cdef object name, value
    cdef int64_t number
    cdef uint8_t c
    if _literal(s, b"null", 4):
        return fields
    if not _take(s, 123):
        return None
    if _take(s, 125):
        return fields
    while True:
        name = _name(s)
        if name is None or not _take(s, 58):
            return None
        _space(s)
        if s.at >= s.end:
            return None
        c = s.at[0]
        if c == 34:
            value = _string(s)
            if value is None:
                return None
        elif c == 116 and _literal(s, b"true", 4):
            value = "true"
        elif c == 102 and _literal(s, b"false", 5):
            value = "false"
        elif c == 110 and _literal(s, b"null", 4):
            # The pure decoder counts it when it looks for duplicates.
            return None
        elif _integer(s, &number):
            value = str(number)
        else:
            return None
        if PyDict_GetItem(fields, name) is not NULL:
            return None
        PyDict_SetItem(fields, name, value)
        if _take(s, 44):
            continue
        if _take(s, 125):
            return fields
        return None


cdef object _scan_json(const uint8_t* data, Py_ssize_t size):
    """Read a JSON header; None where the pure decoder should look at it."""
    cdef Scan s
    cdef const uint8_t* key
    cdef Py_ssize_t key_size
    cdef const uint8_t* text
    cdef Py_ssize_t text_size
    cdef int64_t code = 0, opaque = 0, flag = 0, version = 0
    cdef int64_t* number
    cdef int seen = 0, bit
    cdef dict fields = None
    cdef object remark = None
    cdef object language = _OTHER
    s.at = data
    s.end = data + size
    if not _take(&s, 123):
        return None
    while True:
        if not _plain_string(&s, &key, &key_size) or not _take(&s, 58):
            return None
        number = NULL
        if key_size == 4 and memcmp(key, b"code", 4) == 0:
            number = &code
            bit = 1
        elif key_size == 6 and memcmp(key, b"opaque", 6) == 0:
            number = &opaque
            bit = 2
        elif key_size == 4 and memcmp(key, b"flag", 4) == 0:
            number = &flag
            bit = 4
        elif key_size == 7 and memcmp(key, b"version", 7) == 0:
            number = &version
            bit = 8
        elif key_size == 9 and memcmp(key, b"extFields", 9) == 0:
            bit = 16
            fields = _fields(&s)
            if fields is None:
                return None
        elif key_size == 8 and memcmp(key, b"language", 8) == 0:
            bit = 32
            if not _plain_string(&s, &text, &text_size):
                return None
            if text_size == 4 and memcmp(text, b"JAVA", 4) == 0:
                language = _JAVA
            else:
                if not _is_ascii(text, text_size):
                    return None
                language = PyBytes_FromStringAndSize(<const char*>text, text_size)
                language = _language_of_name.get(language, _OTHER)
        elif key_size == 6 and memcmp(key, b"remark", 6) == 0:
            bit = 64
            if not _literal(&s, b"null", 4):
                remark = _string(&s)
                if remark is None:
                    return None
        elif key_size == 23 and memcmp(key, b"serializeTypeCurrentRPC", 23) == 0:
            bit = 128
            if not _plain_string(&s, &text, &text_size) or not _is_ascii(text, text_size):
                return None
        else:
            return None
        if seen & bit:
            return None
        seen |= bit
        if number != NULL:
            if not _integer(&s, number):
                return None
            if number[0] > 2147483647 or number[0] < -2147483648:
                return None
        if _take(&s, 44):
            continue
        if _take(&s, 125):
            break
        return None
    _space(&s)
    if s.at != s.end or not seen & 1:
        return None
    command = _new(_Command)
    command.code = code
    command.opaque = opaque
    command.flag = flag
    command.fields = {} if fields is None else fields
    command.body = b""
    command.remark = remark
    command.language = language
    command.version = version
    command.serialization = 0
    return command


cdef object _scan_binary(const uint8_t* data, Py_ssize_t size):
    """Read a binary header; None where the pure decoder should look at it."""
    cdef Py_ssize_t at = 13
    cdef int32_t length
    cdef int16_t name_length
    cdef dict fields = {}
    cdef object name, value
    cdef object remark = None
    if size < 21:
        return None
    length = <int32_t>_u32(data + at)
    at += 4
    if length < 0 or length > size - at - 4:
        return None
    if length:
        remark = PyUnicode_DecodeUTF8(<const char*>data + at, length, NULL)
        at += length
    length = <int32_t>_u32(data + at)
    at += 4
    if length != size - at:
        return None
    while at < size:
        if size - at < 6:
            return None
        name_length = <int16_t>((<uint32_t>data[at] << 8) | data[at + 1])
        at += 2
        # A name or a value of no bytes is no entry; the pure decoder leaves it out.
        if name_length <= 0 or name_length > size - at - 4:
            return None
        if name_length <= 32:
            name = _intern(data + at, name_length)
        else:
            name = PyUnicode_DecodeUTF8(<const char*>data + at, name_length, NULL)
        at += name_length
        length = <int32_t>_u32(data + at)
        at += 4
        if length <= 0 or length > size - at:
            return None
        value = PyUnicode_DecodeUTF8(<const char*>data + at, length, NULL)
        at += length
        if PyDict_GetItem(fields, name) is not NULL:
            return None
        PyDict_SetItem(fields, name, value)
    command = _new(_Command)
    command.code = <int16_t>((<uint32_t>data[0] << 8) | data[1])
    command.opaque = <int32_t>_u32(data + 5)
    command.flag = <int32_t>_u32(data + 9)
    command.fields = fields
    command.body = b""
    command.remark = remark
    command.language = data[2] if data[2] in _name_of_language else _OTHER
    command.version = <int16_t>((<uint32_t>data[3] << 8) | data[4])
    command.serialization = 1
    return command


def decode_frames(data, Py_ssize_t frame_bytes_max, Py_ssize_t header_bytes_max):
    """Decode all complete frames at the start of data; see frame.py."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t size = view.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t end, body_start, header_length
    cdef int64_t length
    cdef const uint8_t* p
    cdef uint8_t kind
    cdef list commands = []
    cdef object command
    if size == 0:
        return commands, 0, None
    p = &view[0]
    try:
        while size - at >= 4:
            length = <int32_t>_u32(p + at)
            if length < 4 or length + 4 > frame_bytes_max:
                raise RemoteProtocolError(f"frame length {length} is not acceptable")
            if size - at < 8:
                break
            kind = p[at + 4]
            header_length = _u32(p + at + 4) & 0xFFFFFF
            if kind > 1:
                raise RemoteProtocolError(f"header serialization {kind} is unknown")
            if header_length > length - 4 or header_length > header_bytes_max:
                raise RemoteProtocolError(
                    f"header length {header_length} in a frame of length {length} is not acceptable"
                )
            end = at + 4 + length
            if end > size:
                break
            body_start = at + 8 + header_length
            command = None
            try:
                if kind == 0:
                    command = _scan_json(p + at + 8, header_length)
                else:
                    command = _scan_binary(p + at + 8, header_length)
            except UnicodeDecodeError:
                command = None
            if command is None:
                command = (_decode_json if kind == 0 else _decode_binary)(
                    PyBytes_FromStringAndSize(<const char*>p + at + 8, header_length)
                )
            if body_start < end:
                command.body = PyBytes_FromStringAndSize(
                    <const char*>p + body_start, end - body_start
                )
            commands.append(command)
            at = end
    except RemoteProtocolError as error:
        return commands, at, error.with_traceback(None)
    return commands, at, None


# ---------------------------------------------------------------- encoding


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


cdef inline int _put(Out* out, const char* text, Py_ssize_t size) except -1:
    _reserve(out, size)
    memcpy(out.data + out.used, text, size)
    out.used += size
    return 0


cdef int _put_number(Out* out, object value) except -1:
    cdef char digits[24]
    cdef int at = 24
    cdef int overflow = 0
    cdef long long number
    cdef unsigned long long rest
    number = PyLong_AsLongAndOverflow(value, &overflow)
    if overflow:
        raise OverflowError
    rest = <unsigned long long>number
    if number < 0:
        rest = 0 - rest  # Not -number: the smallest one has no positive counterpart.
    while True:
        at -= 1
        digits[at] = <char>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        at -= 1
        digits[at] = 45
    return _put(out, &digits[at], 24 - at)


cdef int _put_string(Out* out, str text) except -1:
    cdef Py_ssize_t size = 0
    cdef const char* raw = PyUnicode_AsUTF8AndSize(text, &size)
    cdef Py_ssize_t i
    cdef uint8_t c
    cdef char* p
    _reserve(out, size * 6 + 2)
    p = out.data + out.used
    p[0] = 34
    p += 1
    for i in range(size):
        c = <uint8_t>raw[i]
        if c == 34 or c == 92:
            p[0] = 92
            p[1] = <char>c
            p += 2
        elif c >= 32:
            p[0] = <char>c
            p += 1
        else:
            p[0] = 92
            if c == 10:
                p[1] = 110
            elif c == 13:
                p[1] = 114
            elif c == 9:
                p[1] = 116
            elif c == 8:
                p[1] = 98
            elif c == 12:
                p[1] = 102
            else:
                p[1] = 117
                p[2] = 48
                p[3] = 48
                p[4] = _HEX[c >> 4]
                p[5] = _HEX[c & 15]
                p += 4
            p += 2
    p[0] = 34
    p += 1
    out.used = p - out.data
    return 0


cdef int _put_json(Out* out, object command) except -1:
    cdef dict fields = command.fields
    cdef bytes language
    cdef object remark = command.remark
    cdef bint first = True
    _put(out, b'{"code":', 8)
    _put_number(out, command.code)
    if fields:
        _put(out, b',"extFields":{', 14)
        for name, value in fields.items():
            if not first:
                _put(out, b",", 1)
            first = False
            _put_string(out, name)
            _put(out, b":", 1)
            _put_string(out, value)
        _put(out, b"}", 1)
    _put(out, b',"flag":', 8)
    _put_number(out, command.flag)
    language = _name_of_language.get(command.language, b"OTHER")
    _put(out, b',"language":"', 13)
    _put(out, PyBytes_AS_STRING(language), len(language))
    _put(out, b'","opaque":', 11)
    _put_number(out, command.opaque)
    if remark is not None:
        _put(out, b',"remark":', 10)
        _put_string(out, remark)
    _put(out, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    _put_number(out, command.version)
    return _put(out, b"}", 1)


cdef int _number(object value, long low, long high) except? -1:
    cdef int overflow = 0
    cdef long number = PyLong_AsLongAndOverflow(value, &overflow)
    if overflow or number < low or number > high:
        raise OverflowError
    return <int>number


cdef int _put_text(Out* out, str text, Py_ssize_t prefix, Py_ssize_t size_max) except -1:
    """Write a length of two or four bytes, then the text."""
    cdef Py_ssize_t size = 0
    cdef const char* raw = PyUnicode_AsUTF8AndSize(text, &size)
    cdef char* p
    if size > size_max:
        raise OverflowError
    _reserve(out, prefix + size)
    p = out.data + out.used
    if prefix == 4:
        _put_u32(p, <uint32_t>size)
    else:
        p[0] = <char>(size >> 8)
        p[1] = <char>size
    memcpy(p + prefix, raw, size)
    out.used += prefix + size
    return 0


cdef int _put_binary(Out* out, object command) except -1:
    cdef dict fields = command.fields
    cdef object remark = command.remark
    cdef Py_ssize_t mark
    cdef int code = _number(command.code, -32768, 32767)
    cdef int language = _number(command.language, 0, 255)
    cdef int version = _number(command.version, -32768, 32767)
    cdef int opaque = _number(command.opaque, -2147483648, 2147483647)
    cdef int flag = _number(command.flag, -2147483648, 2147483647)
    cdef char* p
    if fields is None:
        raise TypeError
    _reserve(out, 13)
    p = out.data + out.used
    p[0] = <char>(code >> 8)
    p[1] = <char>code
    p[2] = <char>language
    p[3] = <char>(version >> 8)
    p[4] = <char>version
    _put_u32(p + 5, <uint32_t>opaque)
    _put_u32(p + 9, <uint32_t>flag)
    out.used += 13
    _put_text(out, remark if remark else "", 4, 2147483647)
    mark = out.used
    _reserve(out, 4)
    out.used += 4
    for name, value in fields.items():
        _put_text(out, name, 2, 32767)
        _put_text(out, value, 4, 2147483647)
    if out.used - mark - 4 > 2147483647:
        raise OverflowError
    _put_u32(out.data + mark, <uint32_t>(out.used - mark - 4))
    return 0


def encode_frames(list commands):
    """Encode commands back to back; see frame.py."""
    cdef Out out
    cdef Py_ssize_t start, header_length, length, mark
    cdef object command, body
    cdef bytes header
    cdef bint is_json
    cdef const uint8_t[::1] view
    out.used = 0
    out.room = 512
    out.data = <char*>malloc(out.room)
    if out.data == NULL:
        raise MemoryError
    try:
        for command in commands:
            start = out.used
            _reserve(&out, 8)
            out.used += 8
            is_json = command.serialization == 0
            if not is_json and command.serialization != 1:
                raise LocalProtocolError(
                    f"header serialization {command.serialization} is unknown"
                )
            mark = out.used
            try:
                if is_json:
                    _put_json(&out, command)
                else:
                    _put_binary(&out, command)
            except (TypeError, OverflowError, UnicodeEncodeError):
                # The pure encoder writes what Python can and words the refusal of the rest.
                out.used = mark
                header = _encode_json(command) if is_json else _encode_binary(command)
                _put(&out, PyBytes_AS_STRING(header), len(header))
            header_length = out.used - start - 8
            body = command.body
            length = 4 + header_length + len(body)
            if length + 4 > _FRAME_BYTES_MAX:
                raise LocalProtocolError(
                    f"frame of {length + 4} bytes; at most {_FRAME_BYTES_MAX} fit"
                )
            _put_u32(out.data + start, <uint32_t>length)
            _put_u32(
                out.data + start + 4,
                (<uint32_t>(0 if is_json else 1) << 24) | <uint32_t>header_length,
            )
            if len(body):
                if type(body) is bytes:
                    _put(&out, PyBytes_AS_STRING(<bytes>body), len(<bytes>body))
                else:
                    view = body
                    _put(&out, <const char*>&view[0], view.shape[0])
        return PyBytes_FromStringAndSize(out.data, out.used)
    finally:
        free(out.data)
