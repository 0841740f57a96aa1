"""What the pages show and change, read through `ottla.client` from any Kafka. Functions here know nothing of HTTP."""
