import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.names import matches
from landbridge.core.trust.scopes import RANKS, VERBS, Scopes
from landbridge.errors import BadName, BadRequest, Forbidden

PATTERN = st.sampled_from(["a", "a.b", "a.*", "*.b", "#", "$status", "b.#"])
TOPIC = st.sampled_from(["a", "b", "a.b", "b.c.d", "$status"])
SCOPE = st.sampled_from(RANKS) | st.tuples(st.sampled_from(VERBS), PATTERN).map(":".join)


@given(st.lists(SCOPE), st.sampled_from(VERBS), TOPIC)
def test_one_fitting_scope_is_needed_and_enough(scopes, verb, topic):
    parsed = Scopes.parse(scopes)
    admin = "admin" in scopes
    patterns = [scope.removeprefix(f"{verb}:") for scope in scopes if scope.startswith(verb)]
    allowed = admin or any(matches(pattern, topic) for pattern in patterns)
    assert parsed.may(verb, topic) == allowed
    if allowed:
        parsed.demand(verb, topic)
    else:
        with pytest.raises(Forbidden, match=verb) as refused:
            parsed.demand(verb, topic)
        assert Scopes.parse([refused.value.hint.removeprefix("needs ")]).may(verb, topic)
    if admin:
        parsed.demand_rank("admin", "create a topic")
    else:
        with pytest.raises(Forbidden):
            parsed.demand_rank("admin", "create a topic")


@pytest.mark.parametrize("scope", ["", "admin:", "admin:#", "Admin", "publish", "read:#", ":", " publish:#"])
def test_unknown_scope_is_refused(scope):
    with pytest.raises(BadRequest):
        Scopes.parse(["publish:#", scope])


@pytest.mark.parametrize("scope", ["publish:", "publish:a..b", "publish:a*", "subscribe:a b", "publish:a:b"])
def test_scope_with_a_broken_pattern_is_refused(scope):
    with pytest.raises(BadName):
        Scopes.parse([scope])


@given(st.text(max_size=20))
def test_no_text_but_admin_makes_an_admin(scope):
    try:
        assert Scopes.parse([scope]).admin == (scope == "admin")
    except (BadRequest, BadName):
        pass


@given(st.lists(SCOPE), st.lists(SCOPE), st.sampled_from(VERBS), TOPIC)
def test_scopes_that_cover_others_allow_all_that_these_allow(wide, narrow, verb, topic):
    these, those = Scopes.parse(wide), Scopes.parse(narrow)
    assert these.cover(these)
    assert Scopes.parse((*wide, *narrow)).cover(those)
    if these.cover(those):
        assert these.may(verb, topic) or not those.may(verb, topic)
        assert all(these.has(rank) or not those.has(rank) for rank in RANKS)


@given(st.lists(SCOPE))
def test_a_rank_includes_those_below_it_and_no_topic(scopes):
    parsed = Scopes.parse(scopes)
    best = max((RANKS.index(scope) for scope in scopes if scope in RANKS), default=-1)
    assert [parsed.has(rank) for rank in RANKS] == [index <= best for index in range(len(RANKS))]
    assert Scopes.parse(parsed.as_texts()) == parsed
    if not parsed.admin:
        bare = Scopes.parse([scope for scope in scopes if scope in RANKS])
        assert not any(bare.may(verb, topic) for verb in VERBS for topic in ("a", "a.b", "$status"))
