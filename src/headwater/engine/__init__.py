"""The verbs on a directory: topics of logs, appends, reads and follows. See `engine.engine`."""
