"""A log directory for other programs: an event store and a live event bus over HTTP. Only this part is asynchronous."""
