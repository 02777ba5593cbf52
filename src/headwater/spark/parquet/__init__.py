"""History as Parquet: archived on Spark, and one table with the live log."""
