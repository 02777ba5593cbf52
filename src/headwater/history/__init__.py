"""The history of a log: finished segments as Parquet files elsewhere, read in place, restored from and checked."""
