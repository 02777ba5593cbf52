"""What a log must answer to producers who ask again: a model of what it remembers, made from what is there."""

from __future__ import annotations

from headwater.errors import Conflict, Fenced
from headwater.store import Store
from tests.crash.expectation import Acknowledged, ExpectedLog, Request
from tests.crash.workload import LIMITS, send

Events = list[tuple[int, int, bytes]]


class Remembered:
    """The newest epoch of each producer, and the last answers."""

    def __init__(self, log: ExpectedLog, seen: Events) -> None:
        self._epochs: dict[str, int] = {}
        self._answers: dict[str, list[tuple[int, tuple[Acknowledged, ...]]]] = {}
        at = 0
        for group in [*log.groups, *log.pending]:
            there = seen[at : at + len(group.data)]
            if there and group.request is not None:
                self.note(group.request, tuple(Acknowledged(0, offset, ticks) for offset, ticks, _ in there))
            at += len(group.data)

    def note(self, request: Request, answer: tuple[Acknowledged, ...]) -> None:
        id, epoch, seq = request
        self._epochs[id] = epoch
        self._answers[id] = [*self._answers.get(id, []), (seq, answer)][-LIMITS.producer_answers_max :]

    def answer(self, request: Request) -> tuple[Acknowledged, ...] | str | None:
        """The first answer, or the code of an error; None if it is to be appended."""
        id, epoch, seq = request
        if epoch < self._epochs.get(id, 0):
            return "old_epoch"
        answers = self._answers.get(id, [])
        for known, answer in answers:
            if known == seq:
                return answer
        return "seq_forgotten" if answers and seq < answers[-1][0] else None


def ask_again(engine: Store, topic: str, partition: int, remembered: Remembered, log: ExpectedLog) -> Events:
    """Ask all that was ever asked of a log; returns what that appended."""
    appended: Events = []
    for request, data in log.requests.items():
        expected = remembered.answer(request)
        end = engine._topics.get(topic).logs[partition].end()
        answer: tuple[Acknowledged, ...] | str
        try:
            told = send(engine, topic, partition, request, data)
            answer = tuple(ref._replace(partition=0) for ref in told)
        except (Fenced, Conflict) as error:
            answer = error.code
        if expected is None and not isinstance(answer, str):
            assert answer[0].offset == end, f"{request} was lost, and is not appended"
            remembered.note(request, answer)
            appended += [(ref.offset, ref.ticks, each) for ref, each in zip(answer, data, strict=True)]
        else:
            assert answer == expected, f"{request} is answered with {answer}, not {expected}"
            assert engine._topics.get(topic).logs[partition].end() == end, f"{request} is there twice"
    return appended
