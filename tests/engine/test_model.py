"""Two engines on one directory against a plain model, over everything that programs do, and crashes between.

Each rule does something and compares the answer with the model's. A crash goes back into the last operation, or to
behind it: whatever a kill or a power loss leaves there is opened, checked, and gone on from.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    rule,
    run_state_machine_as_test,
)

from headwater.format.names import partition_of
from tests.crash.checking import tree_at, undecidable
from tests.crash.machine import Loss, Tree
from tests.engine.consumer_rules import ConsumerRules
from tests.engine.log_rules import KEYS, row_of
from tests.engine.model import (
    Found,
    FoundLog,
    Step,
    ascending,
    copy_of,
    survived,
)

losses = st.builds(
    Loss,
    st.sampled_from(["dropped", "random", "kept"]),
    st.sampled_from(["dropped", "ordered", "adversarial", "kept"]),
    st.integers(0, 1000),
)
cuts = st.integers(0, 100)  # percent of the last operation


class EngineMachine(ConsumerRules):
    def teardown(self) -> None:
        try:
            self.check_everything()
        finally:
            self.stage.close()

    # Crashes

    @rule(percent=cuts, loss=st.none() | losses)
    def crash(self, percent: int, loss: Loss | None) -> None:
        """Killed if there is no loss."""
        cut = self.stage.operations() * percent // 100
        if loss is None:
            self.stage.kill(cut)
        else:
            tree_after = self.stage.lose_power(cut)
            tree = tree_after(loss)
            self.stage.boot(tree_after(Loss("dropped", "dropped")) if self.undecidable(tree) else tree)
        self.go_on(done=cut >= self.done_at, powerless=loss is not None)

    def undecidable(self, tree: Tree) -> bool:
        """Whether a log may rightly be called corrupt: nothing tells which of its batches were never synced."""
        return any(
            undecidable(tree_at(tree, "data", "topics", name, str(number)), log.durable)
            for name, topic in self.step.before.items()
            for number, log in enumerate(topic.logs)
            if tree_at(tree, "data", "topics", name, str(number))
        )

    def go_on(self, *, done: bool, powerless: bool) -> None:
        self.members.clear()
        self.model = survived(self.step, self.found(), done=done, powerless=powerless)
        gone = {name: topic for name, topic in self.step.before.items() if name not in self.model and not done}
        ghosts = {} if powerless else self.step.ghosts | gone
        self.step, self.done_at = Step(copy_of(self.model), copy_of(self.model), ghosts=ghosts), 0
        self.stage.begin()
        self.check_everything()

    def found(self) -> Found:
        """What is there, once it is settled."""
        hw = self.stage.engines[0]
        found = Found({}, {})
        for name in hw.topics():
            hw.sync(name)
            logs = [
                (each.start, list(hw.read(name, partition=each.partition))) for each in hw.describe(name).partitions
            ]
            for start, events in logs:
                assert [event.offset for event in events] == list(range(start, start + len(events)))
            found.topics[name] = [FoundLog(at, [(event.ticks, row_of(event)) for event in es]) for at, es in logs]
            for info in hw.consumers(name):
                found.cursors.setdefault((name, info.name), []).append(info.cursor)
        return found

    # What always holds

    @invariant()
    def both_engines_tell_what_the_model_tells(self) -> None:
        for hw in self.stage.engines:
            assert hw.topics() == sorted(self.model)
            for name, topic in self.model.items():
                told = [(each.start, each.end) for each in hw.describe(name).partitions]
                assert told == [(log.start, log.end) for log in topic.logs]
                for key in KEYS:
                    log = topic.logs[partition_of(key, len(topic.logs))] if len(topic.logs) > 1 else topic.logs[0]
                    assert hw.version(name, key) == log.version(key)

    def check_everything(self) -> None:
        """All events through both engines, all cursors, all answers to producers; and no damage."""
        for hw in self.stage.engines:
            for name, topic in self.model.items():
                for number, log in enumerate(topic.logs):
                    there = [(o, log.events[o].ticks, log.events[o].row) for o in range(log.start, log.end)]
                    assert ascending(ticks for _, ticks, _ in there)
                    events = [(e.offset, e.ticks, row_of(e)) for e in hw.read(name, partition=number)]
                    assert events == there
                    self.check_producers(hw, name, number, log)
                infos = {info.name for info in hw.consumers(name)}
                assert infos == set(topic.consumers)
                for consumer, cursors in topic.consumers.items():
                    for cursor, stored in zip(self.cursors(name, consumer), cursors, strict=True):
                        assert stored.durable <= cursor <= stored.highest
            findings = [found for found in hw.check().findings if found.damage]
            assert all(found.path.endswith(".index") for found in findings)  # which is not synced, and made again


EngineMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=35, suppress_health_check=[HealthCheck.too_slow]
)
TestEngineMachine = EngineMachine.TestCase


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_many_operations_and_crashes_leave_what_the_model_tells() -> None:
    many = settings(max_examples=1500, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(EngineMachine, settings=many)
