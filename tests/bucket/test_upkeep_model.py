"""Any interleaving of programs that append, read, compact, trim and collect one log, against a plain list.

Everybody may stop in the midst of what they do, while others act and time passes: the steps in between are drawn, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headwater.bucket.check import check
from headwater.errors import NotFound
from headwater.format.batch import Batch
from headwater.info import Counts
from tests.bucket.stage import Opened, Stage, datas

PROGRAMS = 3

programs = st.integers(0, PROGRAMS - 1)
acts = st.tuples(
    st.sampled_from(
        [
            "append",
            "compact",
            "collect",
            "overtake",
            "overtake and leave a ghost",
            "look",
            "ghost",
            "trim",
            "30 s",
            "700 s",
        ]
    ),
    programs,
)
meanwhile = st.lists(acts, min_size=1, max_size=4)
stops = st.sampled_from(
    [
        ("create", "/events/", False),
        ("create", "/events/", True),
        ("get", "/events/", False),
        ("get", "/meta/", False),
        ("get", "/meta/", True),
        ("put", "/segments/", True),
        ("swap", "/meta/", False),
        ("swap", "/meta/", True),
        ("delete", "/", False),
        ("list", "/events/", False),
    ]
)


class Programs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.stage = Stage(Path(self.directory.name), cache_bytes=0, segment_bytes=2000, pack_bytes=500)
        self.programs = [self.stage.open() for _ in range(PROGRAMS)]
        self.truth = self.stage.open()
        self.events: list[bytes] = []
        self.nonces: dict[int, str] = {}  # of the object that ends at an offset
        self.reading: list[tuple[int, int, Iterator[Batch]]] = []  # program, next offset, what comes

    def teardown(self) -> None:
        self.stage.close()
        self.directory.cleanup()

    @initialize(number=st.integers(0, 6))
    def begin(self, number: int) -> None:
        for _ in range(number):
            self.append(0)

    def check_gone(self, error: NotFound, offset: int) -> None:
        assert error.code == "offset_gone"
        assert offset < self.truth.knowledge.look().trim.offset

    # What one does

    def append(self, program: int) -> None:
        data = b"%d" % len(self.events) if len(self.events) % 3 else b"%d " % len(self.events) * 40
        self.events.append(data)  # it counts from when it is begun, if nobody else appends meanwhile
        one = self.programs[program]
        assert one.append(data) == [len(self.events) - 1]
        self.nonces[len(self.events)] = one.log.chain.tip.nonce

    def do(self, act: str, program: int) -> None:
        one = self.programs[program]
        if act == "append":
            self.append(program)
        elif act == "compact":
            one.compact()
        elif act == "collect":
            one.collect()
        elif act.startswith("overtake"):
            self.append(program)
            one.compact()
            for _ in range(3):
                one.collect()
                self.stage.clock.now_s += 601 if act != "overtake at once" else 0
            if act != "overtake":
                self.ghost(one)
        elif act == "look":
            one.knowledge.look()
        elif act == "trim":
            segments = self.truth.knowledge.look().segments
            one.trim(segments[0].end if segments else 0)
        elif act == "ghost":
            self.ghost(one)
        else:
            self.stage.clock.now_s += float(act.removesuffix(" s"))

    def ghost(self, one: Opened) -> None:
        """Somebody who slept for long, and died then, has put an object in a place that was freed."""
        reached = self.truth.knowledge.look().reached.offset
        free = sorted(set(range(reached)) - set(self.truth.objects()))
        for base in free[-3:]:
            one.ghost(base, b"ghost", self.nonces.get(base, ""))

    def stopped(self, program: int, stop: tuple[str, str, bool], meanwhile: list[tuple[str, int]]) -> None:
        """Have a program stop at its next such call, if it comes to one, while others act."""
        others = [(act, number) for act, number in meanwhile if number != program]

        def act() -> None:
            for each in others:
                self.do(*each)

        self.programs[program].store._hooks.append((*stop, act))

    def go(self, program: int, act: Callable[[], object]) -> None:
        try:
            act()
        finally:
            self.programs[program].store._hooks.clear()

    # Steps

    @rule(act=acts)
    def step(self, act: tuple[str, int]) -> None:
        self.do(*act)

    @rule(program=programs, stop=stops.filter(lambda stop: stop[0] in ("create", "get")), meanwhile=meanwhile)
    def append_slowly(self, program: int, stop: tuple[str, str, bool], meanwhile: list[tuple[str, int]]) -> None:
        """Others may append first: what counts is the offset that it is told."""
        one = self.programs[program]
        data = b"slow %d %d" % (program, len(self.events))
        self.stopped(program, stop, meanwhile)
        told: list[int] = []
        order = self.events
        self.events = _Later(order, data, self.truth)
        try:
            self.go(program, lambda: told.extend(one.append(data)))
        finally:
            self.events = list(self.events)
        (offset,) = told
        if data in self.events:
            first = self.events.index(data)
        else:
            first = offset if self.truth.log.end() == len(self.events) + 1 else offset - 1
            self.events.insert(first, data)
        if first != offset:  # it landed, was trimmed and deleted while its program slept: nobody could say what it was
            assert first < self.truth.knowledge.look().trim.offset
            self.events.insert(offset, data)

    @rule(
        program=programs,
        act=st.sampled_from(["compact", "collect", "trim"]),
        stop=stops,
        meanwhile=meanwhile,
    )
    def keep_slowly(
        self, program: int, act: str, stop: tuple[str, str, bool], meanwhile: list[tuple[str, int]]
    ) -> None:
        self.stopped(program, stop, meanwhile)
        self.go(program, lambda: self.do(act, program))

    @rule(program=programs, stop=stops.filter(lambda stop: stop[0] == "get"), meanwhile=meanwhile)
    def read(self, program: int, stop: tuple[str, str, bool], meanwhile: list[tuple[str, int]]) -> None:
        one = self.programs[program]
        start, end = one.log.start(), one.log.end()
        assert end == len(self.events)
        self.stopped(program, stop, meanwhile)
        found: list[bytes] = []

        def go() -> None:
            for batch in one.log.batches(start, end):
                found.extend(datas(batch, start + len(found)))

        try:
            self.go(program, go)
        except NotFound as error:
            self.check_gone(error, start + len(found))
        else:
            assert start + len(found) >= end
        assert found == self.events[start : start + len(found)]

    @rule(program=programs)
    def begin_to_read(self, program: int) -> None:
        log = self.programs[program].log
        if len(self.reading) < 4:
            self.reading.append((program, log.start(), log.batches(log.start(), log.end())))

    @rule(number=st.integers(0, 3))
    def read_on(self, number: int) -> None:
        if number >= len(self.reading):
            return
        program, offset, batches = self.reading.pop(number)
        try:
            batch = next(batches, None)
        except NotFound as error:
            self.check_gone(error, offset)
            return
        if batch is not None:
            found = datas(batch, offset)
            assert found == self.events[offset : batch.end_offset]
            self.reading.append((program, batch.end_offset, batches))

    @rule()
    def all_is_well(self) -> None:
        fresh = self.stage.open()
        trim = fresh.knowledge.look().trim.offset
        assert fresh.read() == self.events[trim:]
        assert fresh.log.end() == len(self.events)
        counts = Counts()
        assert [each for each in check(fresh.place, counts, lambda _: None) if each.damage] == []
        assert counts.events == len(self.events) - trim


class _Later(list[bytes]):
    """The events while one more is being appended, which may come before or behind those that are appended meanwhile.

    Whoever appends meanwhile is told an offset that may count that one already.
    """

    def __init__(self, events: list[bytes], data: bytes, truth: Opened) -> None:
        super().__init__(events)
        self._data = data
        self._truth = truth

    def append(self, data: bytes) -> None:
        if self._data not in self and self._truth.log.end() > len(self):
            super().append(self._data)  # it has landed, and its program does not know it yet
        super().append(data)


Programs.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestPrograms = Programs.TestCase
