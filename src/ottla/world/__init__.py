"""The world outside the broker: time, randomness, files and sockets, each real and simulated.

Everything above takes these in at the top and never reaches for `time`, `random`, `os` or `socket` itself;
that is what makes virtual time, injected faults and seeded runs possible.
"""
