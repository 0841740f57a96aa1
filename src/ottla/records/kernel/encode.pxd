# The C types of encode.py, for Cython alone; names and meanings are explained there.
cimport cython

ctypedef const unsigned char* bytes_in
ctypedef unsigned char* bytes_out
ctypedef unsigned long long u64
ctypedef long long i64

@cython.locals(body=bytearray)
cpdef encode_record(
    bytearray out, i64 timestamp_delta, i64 offset_delta, object key, object value, object headers
)

cdef _write_bytes(bytearray out, object data)

@cython.locals(rest=u64)
cdef _write_varint(bytearray out, i64 value)
