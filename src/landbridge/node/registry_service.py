"""A registry with its store, its master key, its HTTP port and its operator's context, put together.

Takes long to import; only ``landbridge registry`` does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from landbridge.client import context as contexts
from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.client.context import Context
from landbridge.core.store_address import StoreAddress
from landbridge.errors import ContextTaken, Unauthenticated
from landbridge.node import logs, stores
from landbridge.node.assembly import OTHER_FILES, allow_files, signals
from landbridge.node.embedded import DATABASE, open_registry
from landbridge.node.http_port import MOST_STRANGERS, HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.membership import find_context
from landbridge.registry.caller import Caller
from landbridge.registry.http import app
from landbridge.registry.registry import Registry

log = structlog.get_logger("landbridge.registry")

#: Requests at a time: every terminal has one that waits for a newer directory.
MOST_REQUESTS = 20_000


class RegistryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a registry is to run."""

    data: Path
    host: str
    port: int
    context: str
    #: None: in the data folder.
    master_key_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    reset_operator: bool
    #: Where its store is, if on a server; None: in the data folder.
    store: StoreAddress | None = None


class RegistryReady(msgspec.Struct, frozen=True):
    """What the process runs, once it can be used. The command prints it as JSON."""

    url: str
    data: str
    #: Where the operator's credential is; None where this machine has none.
    context: str | None
    #: What signs the directories, base64 in JSON.
    registry_key: bytes
    pid: int


async def _registry(plan: RegistryPlan) -> Registry:
    if plan.store is None:
        stores.check_embedded(plan.data)
        return await open_registry(plan.data, plan.master_key_file)
    address = stores.registry_address(plan.store)
    registry = await open_registry(plan.data, plan.master_key_file, address)
    stores.note(plan.data, plan.store)
    return registry


async def serve(plan: RegistryPlan, ready: Callable[[RegistryReady], None]) -> None:
    """Start it, call ``ready``, and serve until SIGINT or SIGTERM."""
    endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
    tls = endpoint.tls()
    _check_free(plan)
    logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        registry = await _registry(plan)
        allow_files(MOST_REQUESTS + MOST_STRANGERS + OTHER_FILES)
        try:
            hint = "give --port another number"
            http = HttpPort(app(registry), endpoint, plan.port, tls, most=MOST_REQUESTS, hint=hint)
            try:
                context = await _keep_context(plan, registry, http.url, endpoint.ca())
                log.info("registry", url=http.url, customers=len(registry.index.accounts))
                ready(RegistryReady(http.url, str(plan.data), context, registry.public_key, os.getpid()))
                await stop.wait()
            finally:
                registry.directories.close()
                await http.close()
        finally:
            await registry.close()


def _check_free(plan: RegistryPlan) -> None:
    """The operator's credential is shown once: there must be somewhere to put it."""
    found = find_context(plan.context)
    if found is None or found.data == str(plan.data):
        return
    if found.url or (found.data is not None and (Path(found.data) / DATABASE).exists()):
        raise ContextTaken(
            f"the context {plan.context} is another's",
            hint=f"give this one --context NAME, or 'landbridge context remove {plan.context}' first",
        )


async def _keep_context(plan: RegistryPlan, registry: Registry, url: str, ca: str | None) -> str | None:
    """Save the operator's credential where it is new, and follow the registry where it has moved. A
    credential that isn't here may be in use elsewhere: only who asks for it makes another."""
    found = find_context(plan.context)
    token = registry.operator_token
    if token is None and plan.reset_operator:
        operation, request = op.ROTATE_OPERATOR_CREDENTIAL, api.Request()
        token = (await registry.perform(Caller("operator"), operation, request)).token
    if token is None and found is not None and _is_operator(registry, found):
        token = found.operator_token
    if token is None:
        return None
    wanted = Context("", "", ca, str(plan.data), registry=url, operator_token=token)
    if found != wanted:
        contexts.save(plan.context, wanted)
        log.info("context", name=plan.context, registry=url, made=found is None)
    return plan.context


def _is_operator(registry: Registry, found: Context) -> bool:
    try:
        return registry.callers.by_token(found.operator_token or "").account is None
    except Unauthenticated:
        return False
