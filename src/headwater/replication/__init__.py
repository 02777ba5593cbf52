"""A standby that follows another log, batch by batch."""
