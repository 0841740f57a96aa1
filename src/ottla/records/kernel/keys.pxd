# The C types of keys.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

cdef u64 _INIT0
cdef u64 _INIT1
cdef u64 _INIT2
cdef u64 _INIT3

cdef u64 _add(u64 a, u64 b) noexcept nogil
cdef u64 _rotated(u64 value, int bits) noexcept nogil


@cython.final
cdef class KeyHash:
    cdef u64 _k0, _k1, _v0, _v1, _v2, _v3, _low, _high

    @cython.locals(walk=RecordWalk)
    cpdef tuple digest(self, object key)

    @cython.locals(v0=u64, v1=u64, v2=u64, v3=u64, _=int)
    cdef void _rounds(self, int count) noexcept

    @cython.locals(stop=Py_ssize_t, word=u64, byte=u64, i=int)
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
