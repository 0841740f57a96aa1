"""Writers of the format "ottla": rows to records, and the exactly-once sink."""
