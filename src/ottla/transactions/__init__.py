"""The transaction coordinator: producer ids, the state machine of transactions, and the markers that end them.

State is kept in `__transaction_state`. Sequence numbers, the last stable offset and the index of aborted transactions
belong to the log (`storage`).
"""
