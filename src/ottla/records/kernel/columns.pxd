# The C types of columns.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

@cython.locals(rows=Py_ssize_t, keys=i64, values=i64, offset=i64)
cpdef bint measure(
    RecordWalk walk, i64 base_offset, i64 first_offset, i64 last_offset, i64[::1] totals
) except -1

@cython.locals(position=Py_ssize_t, packed=i64, length=i64, _=Py_ssize_t)
cdef void _measure_headers(RecordWalk walk, i64[::1] totals) noexcept


@cython.final
cdef class BatchScan:
    cdef object _view
    cdef readonly RecordWalk walk
    cdef readonly Py_ssize_t end, count, rows, record_bytes
    cdef readonly i64 base_offset, last_offset, crc, base_timestamp, max_timestamp
    cdef readonly int attributes

    @cython.locals(data=bytes_in, left=Py_ssize_t, size=Py_ssize_t)
    cpdef bint look(self, Py_ssize_t position) noexcept

    @cython.locals(start=Py_ssize_t, attributes=int, size=Py_ssize_t)
    cpdef Py_ssize_t run(
        self, Py_ssize_t position, Py_ssize_t most, int refused, i64 first_offset, i64 last_offset
    ) noexcept

    cpdef Py_ssize_t next_in_time(self, Py_ssize_t position, i64 earliest, i64 latest) noexcept

    cdef bint _is_later(self, Py_ssize_t position, i64 latest) noexcept


@cython.locals(value=u64, i=int)
cdef i64 _integer(bytes_in data, Py_ssize_t position, int size) noexcept nogil


@cython.final
cdef class BinaryColumn:
    cdef readonly object offsets, data, validity
    cdef int[::1] _offsets
    cdef unsigned char[::1] _view, _validity
    cdef bytes_out _data
    cdef Py_ssize_t _rows, _size, _used
    cdef readonly Py_ssize_t length, nulls

    @cython.locals(row=Py_ssize_t)
    cdef bint _append(self, bytes_in source, Py_ssize_t position, Py_ssize_t length) noexcept


@cython.final
cdef class ColumnWriter:
    cdef readonly Py_ssize_t rows
    cdef readonly BinaryColumn keys, values, header_keys, header_values
    cdef readonly object offsets, timestamps, header_offsets
    cdef i64[::1] _offsets, _timestamps
    cdef int[::1] _header_offsets
    cdef bint _with_headers
    cdef i64 _scale, _earliest, _latest
    cdef Py_ssize_t _capacity

    @cython.locals(row=Py_ssize_t, timestamp=i64, offset=i64, added=Py_ssize_t)
    cpdef Py_ssize_t add(
        self,
        RecordWalk walk,
        i64 base_offset,
        i64 base_timestamp,
        bint fixed_timestamp,
        i64 first_offset,
        i64 last_offset,
    ) except -1

    @cython.locals(stamped=int, timestamp=i64)
    cpdef Py_ssize_t add_run(
        self,
        BatchScan scan,
        Py_ssize_t position,
        Py_ssize_t stop,
        object crc,
        i64 first_offset,
        i64 last_offset,
    ) except -1

    @cython.locals(position=Py_ssize_t, packed=i64, length=Py_ssize_t, _=Py_ssize_t)
    cdef bint _append_headers(self, RecordWalk walk) noexcept


@cython.locals(row=Py_ssize_t)
cpdef fill(i64[::1] column, Py_ssize_t first, Py_ssize_t stop, i64 value)
