"""System tables: event logs, captures, and Kafka's internal topics as DataFrames."""
