"""Logs in an object store, and the object stores themselves."""
