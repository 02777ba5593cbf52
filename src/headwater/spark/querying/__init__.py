"""SQL and aggregates over topics and binders."""
