"""How fast the protocol over TCP is, from outside: real processes, real sockets, and servers of others beside it."""
