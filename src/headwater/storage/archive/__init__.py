"""Sealed segments of a local log, kept byte by byte in an object store, and read from there."""
