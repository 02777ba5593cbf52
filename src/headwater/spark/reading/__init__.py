"""Reads topics into Spark: batch and streaming, planned in the driver, executed in tasks."""
