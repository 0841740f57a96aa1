"""SASL without sockets: each mechanism is a machine that takes tokens and gives tokens, driven by one conversation."""
