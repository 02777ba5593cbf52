"""The HTTP body formats as bytes: items, server-sent events, lines, Arrow, CloudEvents, batches. No I/O."""
