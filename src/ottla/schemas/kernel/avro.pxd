# The C types of avro.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef i64 MAX_EMPTY_ITEMS


@cython.final
cdef class Failure:
    cdef public list path
    cdef public object reason


@cython.final
cdef class Varint:
    cdef i64 value


@cython.locals(byte=u64, value=u64, shift=int)
cdef Py_ssize_t _read_varint(bytes_in data, Py_ssize_t position, Py_ssize_t end, Varint number) noexcept
cdef u64 _shifted(u64 byte, int shift) noexcept nogil
cdef i64 _unzigzag(u64 value) noexcept nogil


cdef class Step:
    cdef public Step next
    cdef public str name
    cdef public Failure failure
    cdef readonly Py_ssize_t least
    cdef Varint number

    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1
    cdef Py_ssize_t _failed(self, Step step, Py_ssize_t code) except -1


cdef class NullStep(Step):
    cdef Column column

cdef class BooleanStep(Step):
    cdef FixedColumn column

cdef class IntStep(Step):
    cdef FixedColumn column
    @cython.locals(value=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class LongStep(Step):
    cdef FixedColumn column
    cdef i64 scale, limit
    @cython.locals(value=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class PromotedStep(Step):
    cdef FixedColumn column
    cdef bint is_float, to_double
    @cython.locals(value=double)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

@cython.locals(value=float)
cdef double _float_at(bytes_in data, Py_ssize_t position) noexcept
@cython.locals(bits=i64)
cdef int _put_double(Buffer buffer, double value) except -1
@cython.locals(bits=int, single=float)
cdef int _put_float(Buffer buffer, double value) except -1

cdef class CopyStep(Step):
    cdef FixedColumn column

cdef class BytesStep(Step):
    cdef BinaryColumn column
    @cython.locals(length=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class FixedStep(Step):
    cdef BinaryColumn column

cdef class DecimalStep(Step):
    cdef FixedColumn column
    cdef i64 size
    cdef u64 limit_high, limit_low
    @cython.locals(length=i64, sign=u64, stop=Py_ssize_t, high=u64, low=u64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1
    cdef bint _fits(self, u64 high, u64 low, bint negative) noexcept

cdef u64 _shifted_in(u64 value, u64 byte) noexcept nogil
cdef i64 _as_signed(u64 value) noexcept nogil
cdef u64 _negated(u64 value) noexcept nogil
cdef u64 _inverted(u64 value) noexcept nogil
cdef u64 _shifted_sum(u64 value) noexcept nogil

cdef class EnumStep(Step):
    cdef BinaryColumn column
    cdef list symbols
    cdef Py_ssize_t count
    @cython.locals(index=i64, symbol=bytes)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class RecordStep(Step):
    cdef StructColumn column
    cdef Step first
    @cython.locals(field=Step)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class ListStep(Step):
    cdef ListColumn column
    cdef Column entries
    cdef Step key, item
    cdef Py_ssize_t item_least
    @cython.locals(count=i64, size=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class NullableStep(Step):
    cdef Column column
    cdef Step value
    cdef i64 null_index
    @cython.locals(index=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class UnionStep(Step):
    cdef Step first
    cdef Py_ssize_t count
    @cython.locals(index=i64, branch=Step)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class MemberStep(Step):
    cdef StructColumn column
    cdef Column member
    cdef Step value
    @cython.locals(field=Column)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class DefaultStep(Step):
    cdef bytes encoded
    cdef Step value
    @cython.locals(code=Py_ssize_t)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class SkipStep(Step):
    cdef i64 size
    @cython.locals(length=i64)
    cdef Py_ssize_t _read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1

cdef class RefusedStep(Step):
    cdef str reason


@cython.final
cdef class FramedRows:
    cdef const unsigned char[::1] _view, _validity
    cdef bytes_in _data
    cdef const int[::1] _offsets
    cdef bint _has_nulls
    cdef Py_ssize_t _first
    cdef readonly Py_ssize_t count, row, error
    cdef readonly i64 schema_id

    @cython.locals(index=Py_ssize_t)
    cpdef bytes value(self, Py_ssize_t row)
    @cython.locals(index=Py_ssize_t)
    cpdef bint is_null(self) noexcept
    @cython.locals(index=Py_ssize_t, position=Py_ssize_t, end=Py_ssize_t, number=i64, i=Py_ssize_t)
    cpdef int decode(self, Step step, Column column, i64 schema_id) except -1
    @cython.locals(index=Py_ssize_t)
    cpdef bint decode_row(self, Step step, Column column, Py_ssize_t prefix) except -1
    cpdef skip(self, Column column)
    @cython.locals(rows=Py_ssize_t)
    cdef bint _decode_value(self, Step step, Column column, Py_ssize_t position, Py_ssize_t end) except -1
