"""Binders that are built anew from the whole history, shard by shard."""
