"""SASL mechanisms as state machines without I/O, driven by one exchange per connection."""
