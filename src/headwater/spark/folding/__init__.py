"""Rebuilds binders from the whole history, shard by shard."""
