# The C types of kernel.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef u64 _MASK32
cdef u64 _INIT0
cdef u64 _INIT1
cdef u64 _INIT2
cdef u64 _INIT3

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

@cython.locals(body=bytearray)
cpdef encode_record(
    bytearray out, i64 timestamp_delta, i64 offset_delta, object key, object value, object headers
)

cdef _write_bytes(bytearray out, object data)

@cython.locals(rest=u64)
cdef _write_varint(bytearray out, i64 value)

cdef u64 _zigzag(i64 value) noexcept nogil
cdef u64 _add(u64 a, u64 b) noexcept nogil
cdef u64 _rotated(u64 value, int bits) noexcept nogil


@cython.final
cdef class KeyHash:
    cdef u64 _k0, _k1, _v0, _v1, _v2, _v3, _low, _high

    @cython.locals(walk=RecordWalk)
    cpdef tuple digest(self, object key)

    @cython.locals(v0=u64, v1=u64, v2=u64, v3=u64, _=int)
    cdef void _rounds(self, int count) noexcept

    @cython.locals(stop=Py_ssize_t, word=u64, i=int)
    cdef void _hash(self, bytes_in data, Py_ssize_t position, Py_ssize_t length) noexcept

    @cython.locals(slot=Py_ssize_t, at=Py_ssize_t, _=Py_ssize_t)
    cdef Py_ssize_t _slot(self, u64[::1] slots, Py_ssize_t size) noexcept

    @cython.locals(taken=Py_ssize_t, size=Py_ssize_t, offset=i64, at=Py_ssize_t)
    cpdef Py_ssize_t put_keys(
        self, RecordWalk walk, i64 base_offset, i64 first_offset, u64[::1] slots, Py_ssize_t room
    ) except -1

    @cython.locals(walk=RecordWalk, at=Py_ssize_t, latest=i64)
    cpdef Py_ssize_t latest_offset(self, object key, u64[::1] slots) except? -2

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, mark=int, latest=i64)
    cpdef Py_ssize_t mark_latest(
        self, RecordWalk walk, i64 base_offset, u64[::1] slots, unsigned char[::1] marks
    ) except -1


@cython.locals(target=bytes_out, written=Py_ssize_t, start=Py_ssize_t, delta=u64)
cpdef Py_ssize_t copy_records(
    RecordWalk walk, const unsigned char[::1] marks, i64 timestamp_shift, unsigned char[::1] out
) except -1

cdef bytes_out _pointer(unsigned char[::1] view) noexcept
@cython.locals(size=int)
cdef int _varint_size(u64 value) noexcept nogil

@cython.locals(size=int)
cdef int _put_varint(bytes_out target, Py_ssize_t at, u64 value) noexcept nogil

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
