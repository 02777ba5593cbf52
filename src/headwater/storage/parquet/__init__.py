"""An archive of Parquet files: its records, and its files on their way in and out. Needs the `arrow` extra."""
