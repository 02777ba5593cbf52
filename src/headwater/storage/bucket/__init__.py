"""The log on object storage: what a store must do, the stores, and a log in one."""
