"""Bytes only: how batches, segments, blobs, indexes, tails and settings look. No I/O, no clock.

Implements docs/FORMAT.md; each module names its section. Everything here is a pure function or an
immutable value, so it is safe from any thread.
"""
