import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Invalid
from headwater.server.rights import ACTIONS, EVERYONE, Scope, User

TEXTS = st.text(alphabet="ab.*\n", max_size=12)


def test_a_scope_is_read_and_written() -> None:
    scope = Scope.parse("append, read:orders:*")
    assert scope == Scope(frozenset(("read", "append")), "orders:*")
    assert str(scope) == "read,append:orders:*"


@pytest.mark.parametrize("text", ["", "read", "read:", ":x", "write:x", "read,:x", "READ:x", "read:" + "x" * 1025])
def test_what_is_no_scope_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        Scope.parse(text)
    assert caught.value.code == "bad_scope"
    assert "read,append:orders.*" in caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "Orders", "", "order"]),
        ("orders.*", ["orders.", "orders.eu", "orders.eu.old"], ["orders", "ordersXeu", "my.orders.eu"]),
        ("*.dead", ["a.dead", ".dead"], ["dead", "a.dead.b"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("a*b*c", ["abc", "axbxc", "abbc"], ["acb", "ac", "bc"]),
        ("ab*b*bc", ["abbbc", "ab.b.bc"], ["abc", "abbc", "abxbc"]),
        ("*", ["", "anything", "a\nb", "[x]?"], []),
        ("[ab]?", ["[ab]?"], ["a1", "ab"]),
        ("**", ["", "x"], []),
    ],
)
def test_a_star_is_any_text_and_the_rest_is_itself(pattern: str, covered: list[str], others: list[str]) -> None:
    scope = Scope(frozenset(("read",)), pattern)
    assert [topic for topic in (*covered, *others) if scope.covers(topic)] == covered


@given(pattern=TEXTS, topic=TEXTS)
def test_patterns_mean_what_re2_would_make_of_them(pattern: str, topic: str) -> None:
    expected = re2.fullmatch("(?s)" + ".*".join(map(re2.escape, pattern.split("*"))), topic) is not None
    assert Scope(frozenset(("read",)), pattern).covers(topic) == expected


def test_a_user_may_do_what_one_of_the_scopes_grants() -> None:
    user = User("ada", map(Scope.parse, ("read,append:orders.*", "read:stock", "admin:orders.eu")))
    for _ in range(2):  # asked again, the answer is remembered
        assert user.may("read", "orders.eu")
        assert user.may("append", "orders.eu")
        assert user.may("admin", "orders.eu")
        assert user.may("read", "stock")
        assert not user.may("append", "stock")
        assert not user.may("admin", "orders.us")
        assert not user.may("read", "orders")
    assert not User("nobody", []).may("read", "orders")


def test_all_topics_takes_the_pattern_of_all() -> None:
    user = User("ada", map(Scope.parse, ("read:*", "append:*.*", "admin:a")))
    assert [action for action in ACTIONS if user.may(action, None)] == ["read"]
    assert all(EVERYONE.may(action, None) and EVERYONE.may(action, "x") for action in ACTIONS)


def test_what_is_remembered_of_topics_is_bounded() -> None:
    user = User("ada", [Scope.parse("read:a*")])
    for number in range(10_000):
        assert user.may("read", f"a{number}")
        assert not user.may("read", f"b{number}")
    assert len(user._decisions) <= 4096
