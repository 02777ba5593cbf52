"""Found by Spark for `format("headwater")`: it looks for a module with this name, so that nobody has to register it."""

from headwater.spark.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
