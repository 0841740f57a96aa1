"""Did it commit: the transaction coordinator, from a producer's id to the markers that end its transactions.

Sequence numbers, the last stable offset and the aborted index are a log's business (`storage`); this room decides
what a transaction's state is and writes it to `__transaction_state`.
"""
