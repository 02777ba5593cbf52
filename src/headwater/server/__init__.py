"""A log directory for other programs: HTTP, its event store and its live event bus. The only part that is asynchronous."""
