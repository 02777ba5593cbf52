"""Interrupting a call wherever CPython may run a signal handler, one place after the other.

CPython looks for signals when a Python function begins, at jumps back, and behind calls: there, and nowhere else, a
handler can raise. `interrupted` raises at the n-th of these places that a call comes to.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from types import CodeType, FrameType
from typing import Any

OURS = ("headwater/", "contextlib.py", "threading.py")


class Interruption(BaseException):
    """What a signal handler raises, as KeyboardInterrupt is."""


@cache
def places(code: CodeType, within: tuple[str, ...]) -> frozenset[int]:
    """The instructions of a function of some files before which a signal handler may raise."""
    if not any(part in code.co_filename for part in within):
        return frozenset()
    ranges = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler(offset: int) -> list[int]:
        return [entry.target for entry in ranges if entry.start <= offset < entry.end]

    found = set()
    previous = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME" or instruction.opname.startswith("JUMP_BACKWARD"):
            found.add(instruction.offset)
        # What is raised behind a call is raised by the call: it meets the handler of the call.
        if (
            previous is not None
            and previous.opname.startswith("CALL")
            and handler(previous.offset) == handler(instruction.offset)
        ):
            found.add(instruction.offset)
        if instruction.opname not in ("CACHE", "EXTENDED_ARG"):
            previous = instruction
    return frozenset(found)


def interrupted(work: Callable[[], Any], number: int, within: tuple[str, ...] = OURS) -> bool:
    """Run `work` and raise at the `number`-th place that it comes to, in some files; False if it ended before."""
    try:
        return raised(Interruption, work, number, within)
    except Interruption:
        return True


def raised(kind: type[BaseException], work: Callable[[], Any], number: int, within: tuple[str, ...] = OURS) -> bool:
    """Raise an exception as `interrupted` does, and let it pass. One that calls raise comes behind calls alone."""
    calls = kind is not Interruption
    left = number
    fired = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left, fired
        if fired:
            return None
        at = places(frame.f_code, within)
        if not at:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if (event == "call" and not calls) or (
            event == "opcode" and frame.f_lasti in at
        ):  # RESUME is the call, not an opcode
            left -= 1
            if left < 0:
                fired = True
                sys.settrace(None)
                raise kind
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return fired


def interrupt_everywhere(work: Callable[[], Any], step: int = 1) -> Iterator[int]:
    """Run `work` again and again, interrupted at each place in turn; the caller looks around after each."""
    for number in count(step=step):
        if not interrupted(work, number):
            return
        yield number
