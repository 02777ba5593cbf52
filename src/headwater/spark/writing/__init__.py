"""Writes DataFrames to topics, exactly once: staged by tasks, published by the driver."""
