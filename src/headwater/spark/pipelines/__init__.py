"""Runs pipelines: functions of an application from topics to a topic, a binder or Parquet."""
