"""Sockets: a connection cuts frames, a dispatcher finds their handlers, a server owns the listeners of one node."""
