"""`ottla export`: topics to Parquet, Delta and Iceberg tables."""
