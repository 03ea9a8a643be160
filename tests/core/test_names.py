import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.names import MAX_LENGTH, check_name, check_pattern, is_own, matches
from landbridge.core.names import covers as pattern_covers
from landbridge.errors import BadName

WORD = st.sampled_from(["a", "b", "ab", "$a"])
NAME = st.lists(WORD, min_size=1, max_size=4).map(".".join)
PATTERN = st.lists(WORD | st.sampled_from(["*", "#"]), min_size=1, max_size=4).map(".".join)


def covers(pattern: list[str], name: list[str]) -> bool:
    """The oracle: try everything."""
    if not pattern:
        return not name
    if pattern[0] == "#":
        return any(covers(pattern[1:], name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and covers(pattern[1:], name[1:])


@given(PATTERN, NAME)
def test_matching_equals_trying_everything(pattern, name):
    hidden = name.startswith("$") and not pattern.startswith("$")
    assert matches(pattern, name) == (covers(pattern.split("."), name.split(".")) and not hidden)


@given(NAME)
def test_name_matches_itself_and_everything_matches_a_plain_name(name):
    assert matches(name, name)
    assert matches("#", name) == (not name.startswith("$"))


@given(st.text(alphabet="a9_-.$*# \né", max_size=8))
def test_name_is_words_joined_by_dots(name):
    words = name.removeprefix("$").split(".")
    if all(word and re.sub("[a9_-]", "", word) == "" for word in words):
        assert check_name(name, "topic") == name
        assert check_pattern(name) == name
    else:
        with pytest.raises(BadName):
            check_name(name, "topic")


@given(st.text(alphabet="a.$*# \n", max_size=8))
def test_pattern_is_words_and_wildcards(pattern):
    plain = (word.removeprefix("$") for word in pattern.split("."))
    if all(word in ("*", "#") or set(word) == {"a"} for word in plain) and not re.search(r"\$[*#]", pattern):
        assert check_pattern(pattern) == pattern
    else:
        with pytest.raises(BadName):
            check_pattern(pattern)


@pytest.mark.parametrize("check", [lambda name: check_name(name, "topic"), check_pattern])
def test_length_is_limited(check):
    assert check("a" * MAX_LENGTH)
    with pytest.raises(BadName) as refused:
        check("a" * (MAX_LENGTH + 1))
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("#.a", "a", True),
        ("#.#.a", "b.a", True),
        ("a.#", "a", True),
        ("a.#.b", "a.b", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("#", "$status", False),
        ("*", "$status", False),
        ("#.$status", "$status", False),
        ("$status", "$status", True),
        ("$status.#", "$status.x", True),
    ],
)
def test_wildcards_by_example(pattern, name, covered):
    assert matches(pattern, name) == covered


def test_many_wildcards_do_not_take_for_ever():
    assert not matches(".".join(["#", "a"] * 50), ".".join(["a"] * 49 + ["b"] * 51))


#: All names of up to five words, one of which stands in no pattern.
NAMES = [".".join(words) for count in range(1, 6) for words in product(("a", "b", "z"), repeat=count)]
SHORT = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=3).map(".".join)


@given(SHORT, SHORT)
def test_a_pattern_covers_another_where_it_covers_all_its_names(wide, narrow):
    oracle = all(matches(wide, name) for name in NAMES if matches(narrow, name))
    found = pattern_covers(wide, narrow)
    assert oracle or not found
    # A comparison word by word misses some patterns with both kinds of wildcards, and no others.
    if "#" not in narrow or "*" not in wide:
        assert found == oracle


@given(PATTERN)
def test_a_pattern_covers_itself(pattern):
    assert pattern_covers(pattern, pattern)
    assert pattern_covers("#", pattern) == (not pattern.startswith("$"))
    assert not pattern_covers(pattern, "$x.y")


def test_topics_of_the_bus_itself_and_those_of_rules_are_its_own():
    rule = "match." + "0a" * 16
    assert all(map(is_own, ("$status", "$content.dead", rule, f"{rule}.dead")))
    assert not any(map(is_own, ("orders", "orders.dead", "match.orders", f"{rule}0")))
