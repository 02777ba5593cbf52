"""A log that follows another one, batch by batch, until it is promoted (docs/REPLICATION.md)."""
