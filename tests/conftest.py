"""Profiles of hypothesis: `default` for every run, `torture` for `make torture`. And what tests share."""

from hypothesis import settings

pytest_plugins = ["tests.servers", "tests.spark_session"]

# No deadline: the time of one example says more about the machine's other work than about the code.
# The same examples each time, so that a failure is of the change that is tested; `torture` draws new ones.
settings.register_profile("default", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("torture", deadline=None, max_examples=5_000)
settings.load_profile("default")
