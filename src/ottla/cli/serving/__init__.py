"""`ottla serve`: run brokers in this process."""
