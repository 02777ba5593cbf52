"""What writes DataFrames into topics, exactly once: staged by tasks, published by the driver."""
