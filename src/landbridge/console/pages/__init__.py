"""The pages and actions of the console, one file per noun."""

from __future__ import annotations

from landbridge.console.action import Action
from landbridge.console.page import Page
from landbridge.console.pages import (
    audit,
    feeds,
    groups,
    letters,
    limits,
    messages,
    network,
    nodes,
    outlets,
    overview,
    rules,
    schedules,
    services,
    tokens,
    topics,
    webhooks,
    where,
)

_NOUNS = (
    overview,
    network,
    topics,
    groups,
    messages,
    letters,
    where,
    rules,
    services,
    schedules,
    webhooks,
    feeds,
    outlets,
    tokens,
    nodes,
    audit,
    limits,
)
PAGES: list[Page] = [page for noun in _NOUNS for page in noun.PAGES]
ACTIONS: list[Action] = [action for noun in _NOUNS for action in noun.ACTIONS]
