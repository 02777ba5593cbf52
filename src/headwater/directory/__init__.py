"""Logs in a directory: commit, read, recover, seal, index, retain, check, repair, transactions."""
