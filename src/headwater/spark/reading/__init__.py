"""What reads topics into Spark: batch and streaming, planned in the driver, done in tasks."""
