"""What a topic may be: the same rules wherever it is kept."""

from __future__ import annotations

import msgspec

from headwater.errors import Invalid, NotFound, TooLarge
from headwater.format import names
from headwater.format.settings import Retention, TopicRecord, TopicSettings
from headwater.limits import DATA_BYTES_CEILING, PARTITIONS_MAX, Limits

SEGMENT_BYTES_MIN = 4096


def check_topic(name: str, partitions: int, chosen: TopicSettings, limits: Limits) -> None:
    """Raise Invalid, or TooLarge, for what cannot be a topic."""
    checked_name(name, limits)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise Invalid(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    if chosen.data_bytes_max > DATA_BYTES_CEILING:
        raise TooLarge(
            f"data_bytes_max is {chosen.data_bytes_max}; the maximum is {DATA_BYTES_CEILING}",
            limit="data_bytes_ceiling",
            maximum=DATA_BYTES_CEILING,
        )
    numbers = (chosen.segment_age_ms, chosen.data_bytes_max, chosen.retention_bytes, chosen.retention_segments)
    if min(*numbers, chosen.retention_age_ms, chosen.retention_bytes_hard) < 0:
        raise Invalid("a setting of a topic is negative", hint="0 means the default")
    if chosen.compression not in ("none", "zstd"):
        raise Invalid(f"compression {chosen.compression!r} is unknown", hint="use 'none' or 'zstd'")
    if chosen.overflow not in ("delete", "refuse"):
        raise Invalid(f"overflow {chosen.overflow!r} is unknown", hint="use 'delete' or 'refuse'")
    if chosen.overflow == "refuse" and not chosen.retention_bytes_hard:
        hint = "set retention_bytes_hard, or overflow='delete'"
        raise Invalid("overflow 'refuse' needs a hard limit", hint=hint, code="hard_bound_needed")
    if chosen.segment_bytes and chosen.segment_bytes < SEGMENT_BYTES_MIN:
        raise Invalid(f"segment_bytes is {chosen.segment_bytes}; the minimum is {SEGMENT_BYTES_MIN}")


def checked_name(name: str, limits: Limits) -> str:
    """Return the name itself; raises Invalid, or TooLarge, if it cannot be one."""
    size = len(names.utf8(name, "a topic's name"))
    if not size:
        raise Invalid("a topic's name is empty")
    if size > limits.topic_name_bytes_max:
        raise TooLarge(
            f"a topic's name has {size} bytes; the limit is {limits.topic_name_bytes_max}",
            limit="topic_name_bytes_max",
            maximum=limits.topic_name_bytes_max,
        )
    return name


def same(topic: TopicRecord, partitions: int) -> bool:
    """Return False, which says that the topic is not new; raises Invalid if it has another number of partitions."""
    there = topic.partitions
    if there != partitions:
        raise Invalid(
            f"topic {topic.name!r} has {there} partitions, not {partitions}",
            hint="the number of partitions cannot change; create another topic",
            code="partitions_differ",
            partitions=there,
        )
    return False


def with_retention(chosen: TopicSettings, changes: Retention) -> TopicSettings:
    """Return settings with another retention; raises TypeError for anything that is not a part of that."""
    strange = sorted(changes.keys() - Retention.__annotations__.keys())
    if strange:
        raise TypeError(f"{strange[0]!r} is not a setting of retention")
    return msgspec.structs.replace(chosen, **changes)


def limits_of(topic: TopicRecord, limits: Limits) -> Limits:
    """Return the limits with the topic's own settings laid over."""
    own = {
        field: value
        for field in ("segment_bytes", "segment_age_ms", "data_bytes_max")
        if (value := getattr(topic.settings, field))
    }
    return msgspec.structs.replace(limits, **own)


def not_found(name: str, where: object) -> NotFound:
    """Return the error for a topic that does not exist."""
    return NotFound(
        f"there is no topic {name!r} in {where}",
        hint="'headwater topics' lists them",
        code="topic_not_found",
        topic=name,
    )
