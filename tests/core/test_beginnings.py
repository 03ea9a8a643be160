"""Where a group begins that is added to a topic."""

from __future__ import annotations

from landbridge.core.shipping.beginnings import Beginnings


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def test_before_the_first_answer_nothing_is_known():
    assert Beginnings().of("orders", 1) is None


def test_a_group_begins_where_the_log_ended_before_the_last_question_that_did_not_know_it():
    found = Beginnings()
    found.confirm({"orders": (1, 10)}, everything)
    found.confirm({"orders": (1, 20)}, everything)
    found.confirm({"orders": (1, 30)}, nothing)  # the answer names the group
    found.confirm({"orders": (1, 40)}, nothing)  # which could not be made yet
    assert found.of("orders", 1) == 20
    found.confirm({"orders": (1, 50)}, everything)
    assert found.of("orders", 1) == 50


def test_a_group_of_the_first_answer_may_have_been_there_for_long():
    found = Beginnings()
    found.confirm({"orders": (1, 10)}, nothing)
    found.confirm({"orders": (1, 20)}, nothing)
    assert found.of("orders", 1) is None


def test_of_a_topic_that_was_made_since_or_made_anew_a_group_gets_everything():
    found = Beginnings()
    found.confirm({"orders": (1, 10)}, everything)
    assert found.of("invoices", 2) == 0
    assert found.of("orders", 3) == 0
    found.confirm({"orders": (1, 10), "invoices": (2, 5)}, nothing)
    assert found.of("invoices", 2) == 0


def test_beginnings_survive_a_restart():
    found = Beginnings()
    assert Beginnings.decode(found.encode()).of("orders", 1) is None
    assert found.confirm({"orders": (1, 10)}, everything)
    assert not found.confirm({"orders": (1, 10)}, everything)
    assert Beginnings.decode(found.encode()).of("orders", 1) == 10
