"""Serves a log directory over HTTP and TCP, with a live event bus. Only this package is asynchronous."""
