"""Headwater: an event log that grows with its users."""

__version__ = "0.1.0"
