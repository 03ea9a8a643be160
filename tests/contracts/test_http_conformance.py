"""Whatever is sent to a terminal's HTTP port, the answer is one that the OpenAPI document has: schemathesis
makes requests that the document allows, and requests that it doesn't."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from landbridge.gateways.http import openapi
from landbridge.gateways.http.catalogue import ROUTES
from tests.cli.conftest import LIMIT, Place
from tests.ports import free_port

# A copy: what the types gave is shared between its parts.
DOCUMENT = json.loads(openapi.encode(openapi.document(ROUTES, with_registry=True)))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS: dict[str, Any] = {
    one["operationId"]: SCHEMA[path][verb]
    for path, verbs in DOCUMENT["paths"].items()
    for verb, one in verbs.items()
}
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
#: What is not asked, and why not.
LEFT_OUT = {
    "streamMessages": "the answer does not end",
    "streamContent": "the answer does not end",
    "rotateOperatorCredential": "ends the credential that the test uses",
    "rotateMessageBusCustomerCredential": "ends the credential that the test uses",
    "revokeMessageBusCustomerCredentials": "ends the credential that the test uses",
    "rotateTokenKey": "ends the token that the test uses",
}
FOR_THE_OPERATOR = {
    "createMessageBusCustomer",
    "listMessageBusCustomers",
    "removeMessageBusCustomer",
    "resetMessageBusCustomerCredential",
    "putCustomerPlan",
}
#: Seconds that a request may wait for something, by the names of its members.
SHORT = 0.01
WAITS = ("within", "wait", "timeout")
#: One of so many examples of Hypothesis' profile: there are many operations, and two kinds of requests.
SHARE = 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a terminal with a registry, and its context."""
    place = Place(tmp_path_factory.mktemp("conformance"))
    with place.up("--http-port", str(free_port())) as up:
        context = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
        yield up.ready["http"], context


def credential_for(name: str, context: dict[str, Any]) -> str:
    ways = OPERATIONS[name].definition.raw.get("security", DOCUMENT["security"])
    kinds = {kind for way in ways for kind in way}
    if name in FOR_THE_OPERATOR:
        return context["operator_token"]
    return (
        context["token"] if "token" in kinds else context["registry_token"] if "credential" in kinds else ""
    )


def shorten(name: str, given: Any) -> None:
    """Wait for nothing: the answer would be the same one, a minute later."""
    if not isinstance(given, dict):
        return
    for member in WAITS:
        value = given.get(member)
        try:
            if value is not None and float(value) > SHORT:
                given[member] = SHORT
        except (TypeError, ValueError):
            pass
    if name == "message.wait" and given.get("until") in ("arrived", "acked"):
        given["until"] = "stored"


def test_only_known_operations_are_left_out() -> None:
    assert LEFT_OUT.keys() | FOR_THE_OPERATOR <= OPERATIONS.keys()


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - LEFT_OUT.keys()))
def test_answers_are_as_documented(site: tuple[str, dict[str, Any]], name: str, mode: GenerationMode) -> None:
    url, context = site
    operation = OPERATIONS[name]
    if mode is GenerationMode.NEGATIVE and not (operation.definition.raw["parameters"] or operation.body):
        pytest.skip("it takes nothing that could be wrong")
    credential = credential_for(name, context)
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    examples = max(2, settings.default.max_examples // SHARE)  # type: ignore[union-attr]

    with requests.Session() as session:

        @settings(
            max_examples=examples,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            shorten(name, case.query)
            shorten(name, case.body)
            answer = case.call(base_url=url, headers=headers, session=session, timeout=LIMIT)
            shown = f"{answer.status_code} {answer.text[:300]}\n{case.as_curl_command()[:600]}"
            assert answer.status_code < 500 or answer.status_code == 503, shown
            case.validate_response(answer, checks=CHECKS)

        send()
