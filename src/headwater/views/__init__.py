"""Documents from events: binders, the projections that fill them, functions that react, and event sourcing."""
