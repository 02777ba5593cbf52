"""The options of a read: texts from Spark, checked and parsed once on the driver.

Names of options do not distinguish cases, as everywhere in Spark. The contract is docs/SPARK.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from headwater import position
from headwater.address import absolute
from headwater.errors import Invalid
from headwater.limits import SPLIT_BYTES
from headwater.match.matcher import Selection
from headwater.position import OFFSET_MAX
from headwater.spark.reading.scan import EventFilter

T = TypeVar("T")

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets by topic and partition."""

Start: TypeAlias = Literal["earliest", "latest"] | int | datetime | Offsets
"""Where to begin or end, in all topics and partitions or in some of them."""

Mode: TypeAlias = Literal["permissive", "failfast"]
"""What becomes of data that does not fit a schema: it is null, or an error."""

_BOTH = ("path", "topic", "start", "type", "key", "match", "mode", "splitBytes", "failOnDataLoss")
READ = (*_BOTH, "end")
STREAM = (*_BOTH, "maxEventsPerTrigger", "maxBytesPerTrigger")
_IGNORED = frozenset(("serialization.format",))  # what Spark itself adds to a table made by SQL
_POSITIONS = 'use earliest, latest, an offset, a time (2025-03-01T12:00), or offsets as JSON: {"0": 17}'
_BY_TOPIC = 'write {"orders": {"0": 17}}'


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, from where to where, and how; parsed and checked, but not looked up in any log."""

    address: str
    topics: tuple[str, ...]  # names and patterns
    start: Start = "earliest"
    end: Start = "latest"
    wanted: EventFilter = EventFilter()
    mode: Mode = "permissive"
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True
    events_max: int | None = None  # in one trigger of a stream
    bytes_max: int | None = None

    def chosen(self, there: Iterable[str]) -> list[str]:
        """Return the selected topics, sorted: the named ones, existing or not, and those that match a pattern."""
        plain = {name for name in self.topics if not is_pattern(name)}
        patterns = [_pattern(name) for name in self.topics if is_pattern(name)]
        return sorted(plain.union(name for name in there if any(each.fullmatch(name) for each in patterns)))

    @property
    def has_pattern(self) -> bool:
        """Return whether topics may come to be meant that are not there yet."""
        return any(map(is_pattern, self.topics))


def parse(given: Mapping[str, str], known: tuple[str, ...] = READ) -> SourceOptions:
    """Return the options of a read, or with `STREAM` of a stream. Raises Invalid for unknown or invalid ones."""
    options = {name.lower(): value for name, value in given.items()}
    check_names(given, known)
    address = options.get("path", "").strip()
    if not address:
        raise Invalid("no log is given", hint='use .load("data") or .load("http://host:7450")')
    read = SourceOptions(
        address=absolute(address),
        topics=_topics(options.get("topic", "")),
        wanted=_wanted(options),
        mode=_mode(options.get("mode", "permissive")),
        split_bytes=_positive(options, "splitBytes") or SPLIT_BYTES,
        fail_on_data_loss=_choice("failOnDataLoss", options.get("failondataloss", "true"), ("true", "false")) == "true",
        events_max=_positive(options, "maxEventsPerTrigger"),
        bytes_max=_positive(options, "maxBytesPerTrigger"),
    )
    start = _position("start", options.get("start", "earliest"), read)
    return msgspec.structs.replace(read, start=start, end=_position("end", options.get("end", "latest"), read))


def check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise Invalid for an option that is not known, with the one that was meant, perhaps."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in by_lower and name.lower() not in _IGNORED:
            near = get_close_matches(name.lower(), by_lower, 1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"known options: {', '.join(known)}"
            raise Invalid(f"unknown option {name!r}", hint=hint)


def is_pattern(name: str) -> bool:
    """Return whether it stands for all topics of which it is the pattern."""
    return "*" in name or "?" in name


def _pattern(text: str) -> re.Pattern[str]:
    parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in re.split(r"([*?])", text))
    return re.compile("".join(parts), re.DOTALL)


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise Invalid("no topic is given" if not any(names) else f"the topics {text!r} include an empty name")
    return tuple(dict.fromkeys(names))


def _position(name: str, text: str, read: SourceOptions) -> Start:
    if text.strip().startswith("{"):
        return _offsets(name, text, read)
    try:
        at = position.parse(text, zone=UTC)
    except Invalid as error:
        raise Invalid(f"{name}: {error.message}", hint=_POSITIONS, code=error.code) from None
    if isinstance(at, UUID):
        raise Invalid(f"{name}: an event's id is not supported on Spark", hint=_POSITIONS, code="bad_position")
    return at


def _offsets(name: str, text: str, read: SourceOptions) -> Offsets:
    """Parse offsets by partition, of the one topic that is read, or by topic and partition."""
    given: dict[str, int | dict[str, int]] = _json(name, text, dict[str, int | dict[str, int]])
    by_topic = {topic: offsets for topic, offsets in given.items() if isinstance(offsets, dict)}
    if not by_topic:
        if len(read.topics) > 1 or read.has_pattern:
            raise Invalid(f"{name} has offsets without topics, but several topics may be read", hint=_BY_TOPIC)
        by_topic = {read.topics[0]: given}  # type: ignore[dict-item]  # none of them is a dict
    elif len(by_topic) < len(given):
        raise Invalid(f"{name} {text!r} mixes offsets with and without topics", hint=_BY_TOPIC)
    unread = [topic for topic in by_topic if topic not in read.chosen([topic])]
    if unread:
        raise Invalid(f"{name} has offsets of topic {unread[0]!r}, which is not read")
    offsets = [item for each in by_topic.values() for item in each.items()]
    if not all(position.is_offset(partition) and 0 <= at < OFFSET_MAX for partition, at in offsets):
        raise Invalid(f"{name} {text!r} does not name offsets by partition", hint=_POSITIONS)
    return {topic: {int(partition): at for partition, at in each.items()} for topic, each in by_topic.items()}


def _wanted(options: Mapping[str, str]) -> EventFilter:
    match = options.get("match")
    key = options.get("key")
    wanted = EventFilter(
        type=options.get("type"),
        key=key.encode() if key is not None else None,
        match=_json("match", match, dict[str, Any]) if match is not None else None,
    )
    Selection(wanted.type, wanted.key, wanted.match)  # raises what a task would, before there is one
    return wanted


def _json(name: str, text: str, type: Callable[..., T] | Any) -> T | Any:
    try:
        return msgspec.json.decode(text, type=type)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Invalid(f"{name} {text!r} is not valid JSON for this option: {error}") from None


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdecimal() and 0 < int(text) < OFFSET_MAX):
        raise Invalid(f"{name} {text!r} is not a number above 0")
    return int(text)


def _mode(text: str) -> Mode:
    return "failfast" if _choice("mode", text, ("permissive", "failfast")) == "failfast" else "permissive"


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.strip().lower() not in choices:
        raise Invalid(f"{name} must be {' or '.join(choices)}, not {text!r}")
    return text.strip().lower()
