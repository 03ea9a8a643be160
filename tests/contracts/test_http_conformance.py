"""Whatever is sent to a terminal's HTTP port, the answer is one that the OpenAPI document has: schemathesis
makes requests that the document allows, and requests that it doesn't."""

from __future__ import annotations

from schemathesis.specs.openapi import checks as of_openapi

from landbridge.gateways.http import openapi
from landbridge.gateways.http.catalogue import ROUTES

DOCUMENT = openapi.document(ROUTES, with_registry=True)
CHECKS = [
    of_openapi.status_code_conformance,
    of_openapi.content_type_conformance,
    of_openapi.response_schema_conformance,
    of_openapi.response_headers_conformance,
]
#: The answer does not end.
STREAMS = {"streamMessages"}
#: Requests of each operation and of each kind, of those that the profile of Hypothesis has.
SHARE = 5
