# The C types of walk.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef u64 _MASK32

@cython.locals(byte=u64, value=u64, length=int)
cdef i64 _long_varint(bytes_in data, Py_ssize_t position, Py_ssize_t end) noexcept nogil

@cython.locals(byte=i64, second=i64)
cdef i64 _varint(bytes_in data, Py_ssize_t position, Py_ssize_t end) noexcept nogil

cdef i64 _signed(i64 packed) noexcept nogil
cdef i64 _decoded(i64 raw) noexcept nogil

@cython.locals(length=int)
cdef Py_ssize_t _varlong_end(bytes_in data, Py_ssize_t position, Py_ssize_t end) noexcept nogil

@cython.locals(value=u64, shift=int, byte=u64)
cdef i64 _varlong(bytes_in data, Py_ssize_t position, Py_ssize_t stop) noexcept nogil

@cython.locals(raw=i64, second=i64, length=i64)
cdef Py_ssize_t _behind_later(bytes_in data, Py_ssize_t position, Py_ssize_t end) noexcept nogil

cdef u64 _shifted(u64 byte, int shift) noexcept nogil
cdef i64 _wrapped(i64 value) noexcept nogil
cdef void _copy(
    bytes_out target, Py_ssize_t at, bytes_in source, Py_ssize_t start, Py_ssize_t length
) noexcept nogil


@cython.final
cdef class RecordWalk:
    cdef const unsigned char[::1] _view
    cdef bytes_in _data
    cdef Py_ssize_t _size, _start, _position, _end, _body_position, _offset_position
    cdef public Py_ssize_t count, index
    cdef public int error
    cdef readonly i64 offset_delta, timestamp_delta
    cdef readonly Py_ssize_t record_position, key_position, key_length, value_position, value_length
    cdef readonly Py_ssize_t headers_position, header_count
    cdef public i64 max_timestamp
    cdef public Py_ssize_t max_timestamp_index, rejected

    cpdef void rewind(self) noexcept
    cdef void _stand(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count) noexcept

    @cython.locals(
        data=bytes_in, position=Py_ssize_t, end=Py_ssize_t, stop=Py_ssize_t, packed=i64, length=i64
    )
    cpdef bint advance(self) noexcept

    @cython.locals(
        data=bytes_in,
        position=Py_ssize_t,
        raw=i64,
        second=i64,
        high=i64,
        length=i64,
        end=Py_ssize_t,
    )
    cdef bint _advance_plainly(self) noexcept

    @cython.locals(
        data=bytes_in,
        position=Py_ssize_t,
        packed=i64,
        length=i64,
        delta=i64,
        stop=Py_ssize_t,
        behind=Py_ssize_t,
        plain=bint,
        _=Py_ssize_t,
    )
    cpdef bint is_later(self, i64 base_timestamp, i64 latest) noexcept

    @cython.locals(data=bytes_in, packed=i64, length=i64, _=Py_ssize_t)
    cdef Py_ssize_t _skip_headers(self, Py_ssize_t position, Py_ssize_t end) noexcept


@cython.locals(largest=i64, largest_index=Py_ssize_t, rejected=Py_ssize_t, timestamp=i64, age=i64)
cpdef bint check_records(
    RecordWalk walk,
    i64 base_timestamp,
    bint fixed_timestamp,
    bint keys_required,
    bint check_range,
    i64 now,
    i64 before,
    i64 after,
) except -1

@cython.locals(row=Py_ssize_t)
cpdef Py_ssize_t index_records(RecordWalk walk, i64[::1] table) except -1

@cython.locals(position=Py_ssize_t, start=Py_ssize_t, length=i64, packed=i64, _=Py_ssize_t)
cpdef list read_headers(RecordWalk walk)

cdef u64 _zigzag(i64 value) noexcept nogil
