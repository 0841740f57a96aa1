"""What a test does to a running cluster and reads from it: rules for requests, faults, virtual time, state."""
