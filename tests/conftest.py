"""Profiles of hypothesis: `default` for every run, `torture` for `make torture`."""

from hypothesis import settings

# No deadline: the time of one example says more about the machine's other work than about the code.
settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile("torture", deadline=None, max_examples=5_000)
settings.load_profile("default")
