"""How fast the HTTP server is, from outside: real processes, real sockets, and the clients of others."""
