"""Scripted conversations with a broker, held with Apache Kafka and with ottla, and recordings of Kafka's responses."""
