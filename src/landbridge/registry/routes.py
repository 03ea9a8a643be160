"""The HTTP routes, made from the table of operations in ``client.registry_operations``."""

from __future__ import annotations

import inspect
from typing import Any, cast

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.client.registry_operations import RegistryOperation
from landbridge.errors import Unauthenticated
from landbridge.protocol.http import MEDIA_TYPE, Problem
from landbridge.registry.call import RegistryCall, let_in

#: Bytes of bodies that may be larger than ``max_body``: a server has thousands of links, a plan still more.
_LARGE = {op.POST_LINK_STATE: 4 << 20, op.PUT_PLAN: 16 << 20, op.PUT_CUSTOMER_PLAN: 16 << 20}
#: Bytes of a body whose sender has shown nothing.
_OF_STRANGERS = 16 << 10
#: Statuses of refusals, for the OpenAPI document.
_REFUSALS = {
    "anybody": (400, 401, 409, 429),
    "operator": (400, 401, 403, 404, 409, 429),
    "admin": (400, 401, 403, 404, 409, 429),
    "both": (400, 401, 403, 429),
    "terminal": (400, 401, 403, 404, 410, 429),
}
#: Generic types of Litestar whose parameters are known at run time only.
_PATH, _QUERY = cast(Any, FromPath), cast(Any, FromQuery)
_BODY, _RESPONSE = cast(Any, JSONBody), cast(Any, Response)
_PROBLEM = ResponseSpec(Problem, description="Refused.", generate_examples=False, media_type=MEDIA_TYPE)


def route_of(operation: RegistryOperation[..., Any, Any]) -> HTTPRouteHandler:
    """Return the route of an operation."""
    path = operation.path
    for member in operation.in_path:
        path = path.replace(f"{{{member}}}", f"{{{member}:str}}")
    guards = [let_in] if operation.who != "anybody" else []
    proof: dict[str, list[str]] = {"terminal": [], "timestamp": [], "nonce": [], "proof": []}
    if operation.in_body:
        proof["digest"] = []
    options: dict[str, Any] = {}
    if operation in _LARGE:
        options["request_max_body_size"] = _LARGE[operation]
    elif operation.who == "anybody":
        options["request_max_body_size"] = _OF_STRANGERS
    route = HTTPRouteHandler(
        path,
        http_method=cast(Any, operation.verb),
        operation_id=operation.name,
        summary=operation.help,
        status_code=_status(operation),
        guards=guards,
        opt={"who": operation.who},
        security=[proof if operation.who == "terminal" else {"credential": []}] if guards else None,
        responses=dict.fromkeys(_REFUSALS[operation.who], _PROBLEM),
        **options,
    )
    return route(_function(operation))


def _function(operation: RegistryOperation[..., Any, Any]) -> Any:
    """Return the function behind a route. Litestar reads from its signature where the members of the request
    are, and what they look like in the OpenAPI document."""
    is_empty = operation.answer is type(None)

    async def handle(request: RegistryCall, **values: Any) -> Any:
        body = values.pop("data", None)
        if body is not None:
            values.update((member, getattr(body, member)) for member in operation.in_body)
        try:
            answer = await request.registry.perform(request.caller, operation, operation.request(**values))
        except Unauthenticated as error:
            if operation.who == "anybody":
                await request.turn_away("", error)
            raise
        if is_empty:
            return None
        return Response(answer, status_code=204 if answer is None else _status(operation))

    fields = {field.name: field for field in operation.fields}
    annotations: dict[str, Any] = {"request": RegistryCall}
    annotations |= {member: _PATH[fields[member].type] for member in operation.in_path}
    annotations |= {member: _QUERY[fields[member].type] for member in operation.in_query}
    if operation.in_body:
        annotations["data"] = _BODY[_body(operation)]
    returned = None if is_empty else _RESPONSE[operation.answer]
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=fields[name].default if name in operation.in_query else inspect.Parameter.empty,
        )
        for name, annotation in annotations.items()
    ]
    handle.__name__ = operation.name
    handle.__annotations__ = {**annotations, "return": returned}
    # Litestar reads the parameters from here; mypy does not know that a function may have this attribute.
    handle.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return handle


def _body(operation: RegistryOperation[..., Any, Any]) -> type[msgspec.Struct]:
    """Return the type of the body: the request, without members that are in the path or in the query. None of
    the members that are left has a default that is made anew each time, as a list is."""
    whole = cast(type[api.Request], operation.request)
    if len(operation.in_body) == len(operation.fields):
        return whole
    members = [
        (field.name, field.type, *(() if field.required else (field.default,)))
        for field in operation.fields
        if field.name in operation.in_body
    ]
    return msgspec.defstruct(whole.__name__, members, frozen=True, forbid_unknown_fields=True)


def _status(operation: RegistryOperation[..., Any, Any]) -> int:
    if operation.answer is type(None):
        return 204
    return 201 if operation.verb == "POST" and operation is not op.READ_DIRECTORY else 200


ALL: list[HTTPRouteHandler] = [route_of(operation) for operation in op.ALL]
