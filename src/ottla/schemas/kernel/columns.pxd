# The C types of columns.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef i64 MAX_BYTES

@cython.final
cdef class Buffer:
    cdef bytearray _bytes
    cdef bytes_out _pointer
    cdef Py_ssize_t _capacity
    cdef readonly Py_ssize_t used

    @cython.locals(capacity=Py_ssize_t)
    cpdef bytearray take(self)
    @cython.locals(capacity=Py_ssize_t)
    cdef int _grow(self, Py_ssize_t room) except -1
    cdef int _put(self, bytes_in source, Py_ssize_t position, Py_ssize_t length) except -1
    cdef int _put1(self, unsigned char value) except -1
    cdef int _put4(self, int value) except -1
    cdef int _put8(self, i64 value) except -1
    @cython.locals(value=int)
    cdef int _int_at(self, Py_ssize_t position) noexcept
    cdef void _cut(self, Py_ssize_t used) noexcept


cdef class Column:
    cdef readonly Py_ssize_t length
    cdef public bytearray validity
    cdef public Column next

    @cython.locals(row=Py_ssize_t, missing=Py_ssize_t)
    cpdef int append_null(self) except -1
    cdef int _append_empty(self) except -1
    @cython.locals(row=Py_ssize_t)
    cpdef truncate(self, Py_ssize_t rows)
    cdef void _cut(self, Py_ssize_t rows) noexcept


cdef class FixedColumn(Column):
    cdef readonly int width
    cdef readonly Buffer data

    @cython.locals(width=int)
    cdef int _append_empty(self) except -1
    cdef void _cut(self, Py_ssize_t rows) noexcept


cdef class BinaryColumn(Column):
    cdef readonly Buffer offsets, data

    cdef int _append_empty(self) except -1
    cdef bint _append(self, bytes_in source, Py_ssize_t position, Py_ssize_t length) except -1
    cdef void _cut(self, Py_ssize_t rows) noexcept


cdef class StructColumn(Column):
    cdef readonly list fields
    cdef readonly Column first

    @cython.locals(field=Column)
    cdef int _append_empty(self) except -1
    @cython.locals(field=Column)
    cdef void _cut(self, Py_ssize_t rows) noexcept


cdef class ListColumn(Column):
    cdef readonly Column items
    cdef readonly Buffer offsets

    cdef int _append_empty(self) except -1
    cdef int _close(self) except -1
    cdef void _cut(self, Py_ssize_t rows) noexcept
