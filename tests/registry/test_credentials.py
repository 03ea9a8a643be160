from __future__ import annotations

import jwt
import pytest

from landbridge.core.trust import credential
from landbridge.errors import BadRequest, LimitReached, Unauthenticated
from landbridge.registry.access import Attempts
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Site, Tenant


def test_a_token_has_a_checksum() -> None:
    token, digest = credential.new(credential.ADMIN)
    assert token.startswith("lbac1_")
    assert credential.digest(credential.ADMIN, token) == digest
    for at in range(len("lbac1_"), len(token)):
        changed = token[:at] + ("b" if token[at] != "b" else "c") + token[at + 1 :]
        assert credential.digest(credential.ADMIN, changed) is None or at == len(token) - 1
    assert credential.digest(credential.ENROLMENT, token) is None
    for wrong in ("", "lbac1_", token + "a", token[:-1], token.upper(), "lbac1_é", "lbac1_" + "=" * 58):
        assert credential.digest(credential.ADMIN, wrong) is None


def test_one_token_has_one_spelling() -> None:
    """Base32 leaves bits unused at the end; another spelling has another digest, and is never found."""
    token, _ = credential.new(credential.ADMIN)
    twins = [token[:-1] + last for last in "abcdefghijklmnopqrstuvwxyz234567"]
    digests = [credential.digest(credential.ADMIN, twin) for twin in twins if twin != token]
    assert credential.digest(credential.ADMIN, token) not in digests


async def test_rotation_overlaps_until_the_old_one_is_revoked(quick: Site, acme: Tenant) -> None:
    made = await acme.admin.rotate_message_bus_customer_credential()
    fresh = quick.client(token=made.token)
    assert (await fresh.show_message_bus_customer()).customer_id == acme.id
    assert len((await acme.admin.show_message_bus_customer()).credentials) == 2
    left = await fresh.revoke_message_bus_customer_credentials()
    assert [known.credential_id for known in left.credentials] == [made.credential_id]
    with pytest.raises(Unauthenticated):
        await acme.admin.show_message_bus_customer()


async def test_at_most_two_credentials_are_good(quick: Site, acme: Tenant) -> None:
    tokens = [(await acme.admin.rotate_message_bus_customer_credential()).token for _ in range(3)]
    assert len((await acme.admin.show_message_bus_customer()).credentials) == 2
    with pytest.raises(Unauthenticated):
        await quick.client(token=tokens[0]).show_message_bus_customer()
    await quick.client(token=tokens[2]).show_message_bus_customer()


async def test_operator_resets_a_stolen_credential(quick: Site, acme: Tenant) -> None:
    made = await quick.operator.reset_message_bus_customer_credential(acme.id)
    with pytest.raises(Unauthenticated):
        await acme.admin.show_message_bus_customer()
    assert (await quick.client(token=made.token).show_message_bus_customer()).customer_id == acme.id


async def test_operator_rotates_its_own(quick: Site) -> None:
    made = await quick.operator.rotate_operator_credential()
    with pytest.raises(Unauthenticated):
        await quick.operator.list_message_bus_customers()
    assert (await quick.client(token=made.token).list_message_bus_customers()).items == []


async def test_removed_customer_is_gone_with_all_it_had(quick: Site, acme: Tenant) -> None:
    await quick.operator.remove_message_bus_customer(acme.id)
    for call in (acme.admin.show_message_bus_customer(), acme.paris.registry.issue("orders")):
        with pytest.raises(Unauthenticated):
            await call
    assert (await quick.operator.list_message_bus_customers()).items == []


@pytest.mark.parametrize("scheme", ["Basic", "Token", "", "Digest"])
async def test_only_bearer(quick: Site, acme: Tenant, scheme: str) -> None:
    answer = await quick.http.get("/v1/customer", headers={"authorization": f"{scheme} {acme.token}".strip()})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_tokens_of_another_kind_are_worth_nothing(quick: Site, acme: Tenant) -> None:
    """Whatever a JSON Web Token claims about its algorithm: nothing here reads one."""
    claims = {"sub": acme.id, "iss": "landbridge", "aud": "landbridge", "scope": "admin"}
    key = quick.registry.public_key
    forged = [
        jwt.encode(claims, "", algorithm="none"),
        jwt.encode(claims, key, algorithm="HS256"),
        jwt.encode(
            claims, acme.token, algorithm="HS256", headers={"kid": acme.id, "jku": "http://127.0.0.1/"}
        ),
        (await acme.admin.create_terminal_enrolment(acme.oslo.id)).token,
        str(acme.paris.key),
        acme.token.upper(),
    ]
    for token in forged:
        with pytest.raises(Unauthenticated):
            await quick.client(token=token).show_message_bus_customer()


async def test_wrong_credentials_are_told_to_wait_and_right_ones_are_not() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(wrong_per_minute=3)) as site:
        acme = await site.tenant("acme")
        stranger = site.client(token=credential.new(credential.ADMIN))
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await stranger.show_message_bus_customer()
        noted = len((await site.operator.audit()).items)
        for _ in range(5):
            with pytest.raises(LimitReached):
                await stranger.show_message_bus_customer()
        # Such a flood doesn't reach the audit, nor does it shut out who has the same address.
        assert len((await site.operator.audit()).items) == noted
        await acme.admin.show_message_bus_customer()
        await acme.paris.registry.issue("orders")
        site.clock.advance(60)
        with pytest.raises(Unauthenticated):
            await stranger.show_message_bus_customer()


def test_table_of_attempts_is_bounded() -> None:
    attempts = Attempts(1, max_sources=10)
    for number in range(1000):
        attempts.count(number, f"10.0.0.{number}")
    assert len(attempts) == 10
    assert not attempts.count(1000, "10.0.0.999")


async def test_secrets_are_in_no_repr(quick: Site) -> None:
    made = await quick.operator.create_message_bus_customer("acme")
    admin = quick.client(token=made.token)
    terminal = await admin.create_terminal("paris")
    enrolment = await admin.create_terminal_enrolment(terminal.terminal_id)
    rotated = await admin.rotate_terminal_key(terminal.terminal_id)
    shown = f"{made} {made!r} {terminal} {enrolment} {rotated} {admin!r} {quick.registry!r}"
    for secret in (made.token, terminal.secure_key, enrolment.token, rotated.secure_key):
        assert secret is not None
        assert secret not in shown


async def test_names_and_limits_of_customers() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(max_customers=2, max_terminals=1)) as site:
        first = await site.operator.create_message_bus_customer("a")
        with pytest.raises(Exception, match="there is a customer"):
            await site.operator.create_message_bus_customer("a")
        await site.operator.create_message_bus_customer("b")
        with pytest.raises(LimitReached):
            await site.operator.create_message_bus_customer("c")
        admin = site.client(token=first.token)
        # Another customer's name is free to it: else it would learn who else there is.
        assert (await admin.update_message_bus_customer("b")).name == "b"
        await admin.create_terminal("one")
        with pytest.raises(LimitReached):
            await admin.create_terminal("two")


async def test_pages(quick: Site, acme: Tenant) -> None:
    found, after = [], ""
    while True:
        page = await acme.admin.list_terminals(after=after, limit=2)
        found += [terminal.terminal_id for terminal in page.items]
        assert len(page.items) <= 2
        if page.next is None:
            break
        after = page.next
    assert found == sorted(member.id for member in acme.members.values())
    with pytest.raises(BadRequest):
        await acme.admin.list_terminals(limit=0)
