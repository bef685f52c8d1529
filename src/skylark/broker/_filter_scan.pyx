# cython: language_level=3, boundscheck=True, wraparound=False
"""The compiled scanner of filter_scan.py, which specifies it.

Every offset is checked before it is read: entries and records come from files. Texts that are not
plain digits go to the pure readers, so that both read the same numbers.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp

cdef object _read_whole = None
cdef object _read_double = None
cdef object _NotComparable = None

cdef uint32_t _MAGIC = 0xDAA320A7
cdef enum:
    _ENTRY = 20
    _FIXED = 91
    _CONSTANT = 0
    _AND = 1
    _OR = 2
    _NOT = 3
    _NULL = 4
    _BARE = 5
    _IN = 6
    _TEXT = 7
    _BOOL = 8
    _WHOLE = 9
    _DOUBLE = 10
    # Answers; a comparison that fails makes the message unwanted.
    _FALSE = 0
    _TRUE = 1
    _UNKNOWN = 2
    _FAILED = 3


def bind(read_whole, read_double):
    """Take the readers of unusual numbers."""
    global _read_whole, _read_double, _NotComparable
    from ..filter.java_values import NotComparable

    _read_whole = read_whole
    _read_double = read_double
    _NotComparable = NotComparable


cdef struct Part:
    int code
    int name
    int sign
    int missing
    int flag          # Of IN: negated; of a constant or BOOL: the value; of WHOLE: 64 bits.
    int first         # Of AND, OR, NOT: where its terms begin in the list of terms,
    int count         # and how many there are.
    int64_t whole
    double real
    const char *text  # Kept alive by the scanner.
    Py_ssize_t size


cdef struct Text:
    const char *data
    Py_ssize_t size


cdef inline int64_t _long_at(const uint8_t *p) noexcept nogil:
    cdef int64_t value = 0
    cdef int i
    for i in range(8):
        value = <int64_t>((<unsigned long long>value << 8) | p[i])
    return value


cdef inline int32_t _int_at(const uint8_t *p) noexcept nogil:
    return <int32_t>((<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3])


cdef inline int16_t _short_at(const uint8_t *p) noexcept nogil:
    return <int16_t>((<uint32_t>p[0] << 8) | p[1])


cdef inline int _signed(int sign, int order) noexcept nogil:
    if sign == 0:
        return order == 0
    if sign == 1:
        return order < 0
    if sign == 2:
        return order <= 0
    if sign == 3:
        return order > 0
    return order >= 0


cdef bint _digits(const char *p, Py_ssize_t size, int64_t *value) noexcept nogil:
    """Read a sign and at most 18 ASCII digits; false for all else."""
    cdef Py_ssize_t i = 0
    cdef bint negative = False
    cdef int64_t result = 0
    if size > 0 and (p[0] == 45 or p[0] == 43):
        negative = p[0] == 45
        i = 1
    if i == size or size - i > 18:
        return False
    while i < size:
        if p[i] < 48 or p[i] > 57:
            return False
        result = result * 10 + (p[i] - 48)
        i += 1
    value[0] = -result if negative else result
    return True


cdef class Scanner:
    """Passes over what one expression does not want."""

    cdef Part *_parts
    cdef int *_terms
    cdef Text *_names
    cdef Text *_found
    cdef int _part_count
    cdef int _name_count
    cdef list _kept
    cdef list _sets

    def __cinit__(self, list names, list parts):
        cdef int terms = 0
        for part in parts:
            if part[0] in (1, 2):
                terms += len(part[2])
            elif part[0] == 3:
                terms += 1
        self._part_count = len(parts)
        self._name_count = len(names)
        self._parts = <Part *>calloc(len(parts) + 1, sizeof(Part))
        self._terms = <int *>calloc(terms + 1, sizeof(int))
        self._names = <Text *>calloc(len(names) + 1, sizeof(Text))
        self._found = <Text *>calloc(len(names) + 1, sizeof(Text))
        if self._parts == NULL or self._terms == NULL or self._names == NULL or self._found == NULL:
            raise MemoryError
        self._kept = []
        self._sets = [None] * len(parts)
        cdef int number
        cdef bytes name
        for number in range(self._name_count):
            name = names[number]
            self._kept.append(name)
            self._names[number].data = PyBytes_AS_STRING(name)
            self._names[number].size = PyBytes_GET_SIZE(name)
        cdef int term = 0
        for number in range(self._part_count):
            term = self._fill(number, parts[number], term)

    cdef int _fill(self, int number, tuple given, int term) except -1:
        cdef Part *part = &self._parts[number]
        cdef bytes text
        part.code = given[0]
        part.name = given[1]
        if part.code not in (_CONSTANT, _AND, _OR, _NOT) and not 0 <= part.name < self._name_count:
            raise ValueError("a part names a property that is not there")
        if part.code == _CONSTANT:
            part.flag = given[2]
        elif part.code in (_AND, _OR, _NOT):
            children = (given[2],) if part.code == _NOT else given[2]
            part.first = term
            part.count = len(children)
            for child in children:
                if not 0 <= child < number:  # Parts come after theirs, so there is no circle.
                    raise ValueError("a part comes before its own")
                self._terms[term] = child
                term += 1
        elif part.code == _IN:
            self._sets[number] = given[2]
            part.flag = given[3]
        elif part.code == _TEXT:
            text = given[2]
            self._kept.append(text)
            part.text = PyBytes_AS_STRING(text)
            part.size = PyBytes_GET_SIZE(text)
            part.missing = given[3]
        elif part.code == _BOOL:
            part.flag = given[2]
            part.missing = given[3]
        elif part.code == _WHOLE:
            part.whole = given[2]
            part.sign = given[3]
            part.missing = given[4]
            part.flag = given[5]
        elif part.code == _DOUBLE:
            part.real = given[2]
            part.sign = given[3]
            part.missing = given[4]
        elif part.code not in (_NULL, _BARE):
            raise ValueError(f"no part has the code {part.code}")
        return term

    def __dealloc__(self):
        free(self._parts)
        free(self._terms)
        free(self._names)
        free(self._found)

    def skip(
        self, const uint8_t[::1] entries, Py_ssize_t at, Py_ssize_t end,
        const uint8_t[::1] buffer, int64_t file_start,
    ):
        """How many messages from here on are surely not wanted."""
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t room = buffer.shape[0]
        cdef int64_t physical, start
        cdef int32_t size
        cdef const uint8_t *entry
        if at < 0 or room == 0 or entries.shape[0] == 0:
            return 0
        end = min(end, entries.shape[0])
        while at + _ENTRY <= end:
            entry = &entries[0] + at
            physical = _long_at(entry)
            size = _int_at(entry + 8)
            start = physical - file_start
            if physical < file_start or size < _FIXED or start > room - size:
                break
            if not self._is_unwanted(&buffer[0] + start, size, physical):
                break
            count += 1
            at += _ENTRY
        return count

    cdef bint _is_unwanted(self, const uint8_t *record, int32_t size, int64_t physical) except -1:
        """False also for a record that is not what the entry says."""
        cdef Py_ssize_t at
        cdef int32_t flag, body
        cdef int16_t length
        if _int_at(record) != size or <uint32_t>_int_at(record + 4) != _MAGIC:
            return False
        if _long_at(record + 28) != physical:
            return False
        flag = _int_at(record + 36)
        at = 48 + 8 + (20 if flag & 0x10 else 8) + (20 if flag & 0x20 else 8) + 16
        if at > size:
            return False
        body = _int_at(record + at - 4)
        if body < 0 or body > size - at - 3:
            return False
        at += body
        at += 1 + record[at]
        if at > size - 2:
            return False
        length = _short_at(record + at)
        at += 2
        if length < 0 or length > size - at:
            return False
        self._find(<const char *>record + at, length)
        cdef int answer = self._answer(self._part_count - 1)
        return answer != _TRUE

    cdef void _find(self, const char *text, Py_ssize_t size) noexcept nogil:
        """Find the properties that are named; the last of several that are not empty counts."""
        cdef int number
        cdef Py_ssize_t at = 0, end, name_size
        cdef const char *stop
        for number in range(self._name_count):
            self._found[number].data = NULL
        while at < size:
            stop = <const char *>memchr(text + at, 2, size - at)
            end = size if stop == NULL else stop - text
            for number in range(self._name_count):
                name_size = self._names[number].size
                if end - at > name_size + 1 and text[at + name_size] == 1 and \
                        memcmp(text + at, self._names[number].data, name_size) == 0:
                    self._found[number].data = text + at + name_size + 1
                    self._found[number].size = end - at - name_size - 1
            at = end + 1

    cdef int _answer(self, int number) except -1:
        cdef Part *part = &self._parts[number]
        cdef Text *found
        cdef int i, answer, result
        if part.code == _CONSTANT:
            return part.flag
        if part.code == _AND or part.code == _OR:
            result = _TRUE if part.code == _AND else _FALSE
            for i in range(part.count):
                answer = self._answer(self._terms[part.first + i])
                if answer == _FAILED:
                    return _FAILED
                if answer == _UNKNOWN:
                    result = _UNKNOWN
                elif answer == (_FALSE if part.code == _AND else _TRUE):
                    return answer
            return result
        if part.code == _NOT:
            answer = self._answer(self._terms[part.first])
            return answer if answer > _TRUE else 1 - answer
        found = &self._found[part.name]
        if part.code == _NULL:
            return found.data == NULL
        if part.code == _BARE:
            return _UNKNOWN if found.data == NULL else _FALSE
        if part.code == _IN:
            if found.data == NULL:
                return _UNKNOWN
            is_in = PyBytes_FromStringAndSize(found.data, found.size) in self._sets[number]
            return bool(is_in) != bool(part.flag)
        if found.data == NULL:
            return part.missing
        if part.code == _TEXT:
            return found.size == part.size and memcmp(found.data, part.text, part.size) == 0
        if part.code == _BOOL:
            return _is_true(found.data, found.size) == part.flag
        if part.code == _WHOLE:
            return self._whole(part, found)
        return self._double(part, found)

    cdef int _whole(self, Part *part, Text *found) except -1:
        cdef int64_t value
        if not _digits(found.data, found.size, &value):
            try:
                value = _read_whole(
                    PyBytes_FromStringAndSize(found.data, found.size), bool(part.flag)
                )
            except _NotComparable:
                return _FAILED
        elif not part.flag and (value < -2147483648 or value > 2147483647):
            return _FAILED
        return _signed(part.sign, (value > part.whole) - (value < part.whole))

    cdef int _double(self, Part *part, Text *found) except -1:
        cdef int64_t whole
        cdef double value
        # Whole numbers up to 2**53 are exact; 0 and -0 differ, so 0 is left to the reader.
        if found.size <= 15 and _digits(found.data, found.size, &whole) and whole != 0:
            value = <double>whole
        else:
            try:
                value = _read_double(PyBytes_FromStringAndSize(found.data, found.size))
            except _NotComparable:
                return _FAILED
        if value != value:
            return _signed(part.sign, 1)  # NaN is above all, and a constant is never NaN or 0.
        return _signed(part.sign, (value > part.real) - (value < part.real))


cdef inline bint _is_true(const char *p, Py_ssize_t size) noexcept nogil:
    return size == 4 and (p[0] | 32) == 116 and (p[1] | 32) == 114 and \
        (p[2] | 32) == 117 and (p[3] | 32) == 101
