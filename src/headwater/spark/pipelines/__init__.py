"""Functions of an application from topics to a topic, a binder or Parquet, run again and again."""
