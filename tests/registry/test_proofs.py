"""What a terminal shows with each request."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.core.trust.identity import SecureKey, digest_of
from landbridge.errors import Misuse, Unauthenticated
from landbridge.protocol.http import content_digest
from tests.registry.site import Member, Site, Tenant

ISSUE = "/v1/tickets/issue"
BODY = b'{"topic":"orders"}'


def proved(
    site: Site, member: Member, op: str = f"POST {ISSUE}", body: bytes = BODY, skew: float = 0.0
) -> dict[str, str]:
    proof = member.identity.proof(op, body, site.clock() + int(skew * 1e6))
    return {
        "landbridge-terminal": member.id,
        "landbridge-timestamp": str(proof.timestamp),
        "landbridge-nonce": base64.b64encode(proof.nonce).decode(),
        "landbridge-proof": base64.b64encode(proof.signature).decode(),
        "content-digest": content_digest(digest_of(body)),
    }


async def post(site: Site, headers: dict[str, str], body: bytes = BODY, path: str = ISSUE) -> httpx.Response:
    return await site.http.post(path, content=body, headers=headers)


async def test_good_once(quick: Site, acme: Tenant) -> None:
    headers = proved(quick, acme.paris)
    assert (await post(quick, headers)).status_code == 201
    assert (await post(quick, headers)).status_code == 401


@pytest.mark.parametrize("skew", [-31, 31])
async def test_stale_or_early(quick: Site, acme: Tenant, skew: int) -> None:
    assert (await post(quick, proved(quick, acme.paris, skew=skew))).status_code == 401
    assert (await post(quick, proved(quick, acme.paris, skew=skew * 29 / 31))).status_code == 201


async def test_of_another_operation_body_query_or_method(quick: Site, acme: Tenant) -> None:
    paris = acme.paris
    assert (await post(quick, proved(quick, paris, op="POST /v1/tickets/renew"))).status_code == 401
    assert (await post(quick, proved(quick, paris, op=f"GET {ISSUE}"))).status_code == 401
    assert (await post(quick, proved(quick, paris, body=b'{"topic":"others"}'))).status_code == 401
    assert (await post(quick, proved(quick, paris), path=f"{ISSUE}?x=1")).status_code == 401


CHANGES: dict[str, Any] = {
    "landbridge-terminal": ["", "ter_x", "é", "x" * 10_000],
    "landbridge-timestamp": ["", "0", "-1", "now", "9" * 400, "1e9"],
    "landbridge-nonce": ["", "AAAA", "=", "é"],
    "landbridge-proof": ["", "AAAA", base64.b64encode(bytes(64)).decode(), "*"],
    "content-digest": ["", "é", "sha-256=:*:", "sha-256=AAAA", content_digest(digest_of(b"another"))],
}


@pytest.mark.parametrize("name", CHANGES)
async def test_malformed_or_missing_headers_get_one_and_the_same_answer(
    quick: Site, acme: Tenant, name: str
) -> None:
    wrong = await post(quick, proved(quick, acme.rome, op="another"))
    for value in [None, *CHANGES[name]]:
        headers: dict[str, Any] = proved(quick, acme.paris)
        del headers[name]
        if value is not None:
            headers[name] = value.encode("latin-1")
        answer = await post(quick, headers)
        assert (answer.status_code, answer.text) == (401, wrong.text)


async def test_signed_by_another_terminal(quick: Site, acme: Tenant) -> None:
    headers = proved(quick, acme.rome) | {"landbridge-terminal": acme.paris.id}
    assert (await post(quick, headers)).status_code == 401


async def test_a_revoked_terminal_has_no_proof(quick: Site, acme: Tenant) -> None:
    ticket = (await acme.rome.registry.issue("orders")).ticket
    await acme.admin.revoke_terminal(acme.rome.id)
    rome = acme.rome.registry
    for call in (
        rome.issue("orders"),
        rome.redeem("orders", ticket, b""),
        rome.renew(ticket),
        rome.directory(),
    ):
        with pytest.raises(Unauthenticated):
            await call


async def test_revoked_between_its_proof_and_its_request(quick: Site, acme: Tenant) -> None:
    identity, registry = acme.rome.identity, quick.registry
    issue = await acme.rome.registry.issue("orders")
    proof = identity.proof("op", b"", quick.clock())
    caller = registry.callers.by_proof(quick.clock(), acme.rome.id, "op", digest_of(b""), proof)
    await acme.admin.revoke_terminal(acme.rome.id)
    for call in (
        registry.perform(caller, op.ISSUE_TICKET, api.IssueTicket("orders")),
        registry.perform(caller, op.REDEEM_TICKET, api.RedeemTicket("orders", issue.ticket, b"")),
        registry.perform(caller, op.RENEW_TICKET, api.RenewTicket(issue.ticket)),
        registry.perform(caller, op.REQUEST_CERTIFICATE, api.CertificateRequest("")),
        registry.perform(caller, op.ROTATE_OWN_KEY, api.RotateOwnKey(identity.public)),
    ):
        with pytest.raises(Misuse, match="has been revoked"):
            await call


async def test_rotation_overlaps(quick: Site, acme: Tenant) -> None:
    key = SecureKey.new()
    rotated = await acme.paris.registry.rotate_own_key(key.public)
    assert rotated.keys == [key.public, acme.paris.key.public]
    fresh = quick.member(acme.id, acme.paris.id, key)
    await fresh.registry.issue("orders")
    await acme.paris.registry.issue("orders")
    # Repeated, as after a lost answer: it changes nothing.
    assert (await fresh.registry.rotate_own_key(key.public)).keys == rotated.keys
    await fresh.registry.rotate_own_key(key.public, keep_old=False)
    await fresh.registry.issue("orders")
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.issue("orders")


async def test_admin_rotates_a_key(quick: Site, acme: Tenant) -> None:
    rotated = await acme.admin.rotate_terminal_key(acme.paris.id, keep_old=False)
    assert rotated.secure_key is not None
    await quick.member(acme.id, acme.paris.id, SecureKey.parse(rotated.secure_key)).registry.issue("orders")
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.issue("orders")


async def test_third_key_pushes_the_first_out(quick: Site, acme: Tenant) -> None:
    for _ in range(2):
        rotated = await acme.admin.rotate_terminal_key(acme.paris.id)
    assert len(rotated.keys) == 2
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.issue("orders")


async def test_keys_that_are_none_are_refused(quick: Site, acme: Tenant) -> None:
    public = acme.paris.key.public
    for sign, wrap in ((b"", b""), (public.sign, bytes(32)), (public.sign, b"x" * 31)):
        with pytest.raises(Exception, match="public keys"):
            await acme.admin.rotate_terminal_key(acme.paris.id, keys=type(public)(sign, wrap))
