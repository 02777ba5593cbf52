"""Errors: one tree, stable codes, facts that travel, one line for people."""

from __future__ import annotations

import copy
import pickle

import pytest

import headwater
from headwater import errors
from headwater.errors import Corrupt, HeadwaterError, Invalid, NotFound, TooLarge

# Codes are part of every protocol: clients compare them. They must stay.
CODES = {
    "HeadwaterError": "error",
    "Invalid": "invalid",
    "TooLarge": "too_large",
    "NotFound": "not_found",
    "Denied": "forbidden",
    "Conflict": "conflict",
    "Unavailable": "unavailable",
    "Fenced": "fenced",
    "Corrupt": "corrupt",
    "Closed": "closed",
    "Unsupported": "unsupported",
}
ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadwaterError)]


def test_codes_are_stable() -> None:
    assert {kind.__name__: kind.code for kind in ALL} == CODES


def test_all_errors_are_public_and_in_one_tree() -> None:
    for kind in ALL:
        assert getattr(headwater, kind.__name__) is kind
        assert kind.__name__ in headwater.__all__
    assert issubclass(TooLarge, Invalid)
    assert [kind.__name__ for kind in ALL if kind.__base__ is not HeadwaterError] == ["HeadwaterError", "TooLarge"]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_pickling_and_copying(kind: type[HeadwaterError]) -> None:
    error = kind("it broke", hint="mend it", code="special", path="a/b", position=5, offsets=(1, 2))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (again.message, again.hint, again.code) == ("it broke", "mend it", "special")
        assert again.facts == {"path": "a/b", "position": 5, "offsets": (1, 2)}
        assert str(again) == str(error)


def test_a_hint_follows_a_dash() -> None:
    assert str(NotFound("there is no topic")) == "there is no topic"
    assert str(NotFound("there is no topic", hint="make one")) == "there is no topic — make one"


def test_facts_are_attributes() -> None:
    error = Corrupt("damaged", path="a", position=5)
    assert (error.path, error.position) == ("a", 5)
    with pytest.raises(AttributeError):
        _ = error.colour
    assert not hasattr(error, "colour")


def test_a_code_of_its_own_leaves_the_class_alone() -> None:
    assert NotFound("no", code="topic_not_found").code == "topic_not_found"
    assert NotFound("no").code == NotFound.code == "not_found"
