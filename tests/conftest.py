"""Profiles of hypothesis: `default` for every run, `torture` for `make torture`. And what tests share."""

import signal

from hypothesis import settings

pytest_plugins = ["tests.servers", "tests.spark_session"]

# No deadline: the time of one example says more about the machine's other work than about the code.
# The same examples each time, so that a failure is of the change that is tested; `torture` draws new ones.
settings.register_profile("default", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("torture", deadline=None, max_examples=5_000)
settings.load_profile("default")

# A shell has what it runs in the background ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
