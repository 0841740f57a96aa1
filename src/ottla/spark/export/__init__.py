"""`ottla export`: topics to Parquet files, Delta tables and Iceberg tables."""
