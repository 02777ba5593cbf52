"""Runs an application: each projection and each function in a thread of its own, until it is closed."""
