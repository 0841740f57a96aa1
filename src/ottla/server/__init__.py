"""Sockets: `connection` frames requests, `dispatch` calls their handlers, `server` owns the listeners of one node."""
