"""What goes over HTTP, as bytes: items, server-sent events, lines, Arrow, CloudEvents, batches. No I/O."""
