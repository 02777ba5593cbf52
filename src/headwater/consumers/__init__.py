"""Named consumers with durable cursors, leases, acks and dead letters, on every backend."""
