"""Record batches in Kafka's format 2: header view, builder, iterator, compression, validation, columns.

Nothing here opens a file or a socket, and only `records.columnar` needs pyarrow.
"""
