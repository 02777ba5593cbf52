"""What a log remembers of its producers, and how it answers a request that was committed before."""

from __future__ import annotations

from headwater.errors import Conflict, Fenced
from headwater.format.producers import Producer, ProducerAnswer, ProducerState
from headwater.limits import Limits


def recall(known: dict[str, ProducerState], producer: Producer) -> ProducerAnswer | None:
    """Return what a request was told before, by what is known of all producers; raises as `ProducerMemory.answer`."""
    mine = known.get(producer.id)
    if mine is None:
        return None
    if producer.epoch < mine.epoch:
        raise Fenced(
            f"producer {producer.id!r} has epoch {producer.epoch}, but epoch {mine.epoch} is in use",
            hint="another instance has taken over: stop, or start again with a higher epoch",
            code="old_epoch",
            epoch=mine.epoch,
        )
    for answer in mine.answers:
        if answer.seq == producer.seq:
            return answer
    last = mine.answers[-1].seq
    if producer.seq < last:
        raise Conflict(
            f"producer {producer.id!r} is at seq {last}, and the response to seq {producer.seq} is no longer kept",
            hint="if you have the response, continue; if not, read the log to see whether the events are there",
            code="seq_forgotten",
            last_seq=last,
        )
    return None


def note(known: dict[str, ProducerState], producer: Producer, answer: ProducerAnswer, limits: Limits) -> None:
    """Remember the answer to a request; who was silent longest is forgotten when there are too many."""
    mine = known.pop(producer.id, None) or ProducerState(producer.epoch, [])
    mine.epoch = producer.epoch
    if not mine.answers or mine.answers[-1].offset < answer.offset:  # else whoever was interrupted has noted it
        mine.answers.append(answer)
    del mine.answers[: -limits.producer_answers_max]
    known[producer.id] = mine
    while len(known) > limits.producers_max:
        del known[next(iter(known))]
