# The C types of protobuf.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef int NUMBER_BOOL, NUMBER_INT32, NUMBER_INT64, NUMBER_UINT32, NUMBER_UINT64, NUMBER_SINT32, NUMBER_SINT64
cdef int NUMBER_FIXED32, NUMBER_FIXED64, NUMBER_SFIXED32, NUMBER_SFIXED64, NUMBER_FLOAT, NUMBER_DOUBLE

@cython.locals(byte=u64, value=u64, shift=int)
cdef Py_ssize_t _read_unsigned(bytes_in data, Py_ssize_t position, Py_ssize_t end, Varint number) noexcept
cdef i64 _signed64(u64 value) noexcept nogil
@cython.locals(value=u64, index=int)
cdef i64 _little(bytes_in data, Py_ssize_t position, int size) noexcept nogil
cdef int _low32(i64 value) noexcept nogil
cdef u64 _bits(i64 value) noexcept nogil


cdef class FieldStep:
    cdef public FieldStep next
    cdef i64 field_number
    cdef Column any_column
    cdef bint seen
    cdef Varint number

    cdef void _begin(self) noexcept
    cdef Py_ssize_t _take(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1
    cdef int _finish(self, bytes_in data) except -1


cdef class NumberField(FieldStep):
    cdef FixedColumn column
    cdef ListColumn items
    cdef int kind, wire
    cdef bint presence
    cdef i64 value

    @cython.locals(size=int)
    cdef Py_ssize_t _one(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1
    @cython.locals(length=i64, stop=Py_ssize_t)
    cdef Py_ssize_t _take(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1
    @cython.locals(kind=int, column=FixedColumn)
    cdef int _append(self, i64 value) except -1


cdef class BytesField(FieldStep):
    cdef BinaryColumn column
    cdef ListColumn items
    cdef bint presence
    cdef Py_ssize_t start, length

    @cython.locals(length=i64)
    cdef Py_ssize_t _take(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1


cdef class EnumField(FieldStep):
    cdef BinaryColumn column
    cdef ListColumn items
    cdef dict names
    cdef bytes default, name

    cdef Py_ssize_t _one(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1
    cdef bint _append(self, bytes name) except -1
    @cython.locals(length=i64, stop=Py_ssize_t)
    cdef Py_ssize_t _take(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1
    @cython.locals(name=bytes)
    cdef int _finish(self, bytes_in data) except -1


cdef class MessageField(FieldStep):
    cdef MessageStep message
    cdef ListColumn items
    cdef Py_ssize_t start, stop

    @cython.locals(length=i64, stop=Py_ssize_t)
    cdef Py_ssize_t _take(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1


@cython.final
cdef class MessageStep:
    cdef readonly StructColumn column
    cdef FieldStep first
    cdef Varint number

    @cython.locals(field=FieldStep)
    cdef FieldStep _find(self, i64 number, FieldStep hint)
    @cython.locals(field=FieldStep, hint=FieldStep, tag=i64)
    cdef Py_ssize_t read(self, bytes_in data, Py_ssize_t position, Py_ssize_t end) except -1
    @cython.locals(length=i64)
    cdef Py_ssize_t _skip(self, bytes_in data, Py_ssize_t position, Py_ssize_t end, int wire) except -1


@cython.final
cdef class MessageRows:
    cdef const unsigned char[::1] _view
    cdef bytes_in _data
    cdef const int[::1] _offsets
    cdef Py_ssize_t _first, _count

    @cython.locals(size=Py_ssize_t, row=Py_ssize_t, position=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t)
    cpdef bint decode(self, MessageStep message, bytes prefix) except -1
