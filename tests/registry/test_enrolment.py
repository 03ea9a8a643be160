from __future__ import annotations

import asyncio

import pytest

from landbridge.core.trust import directory
from landbridge.core.trust.identity import SecureKey
from landbridge.errors import BadRequest, NameTaken, Unauthenticated
from tests.registry.site import Site, Tenant


async def waiting(acme: Tenant) -> str:
    """A terminal that has no key yet."""
    made = await acme.admin.create_terminal("lima", mode="client", make_key=False)
    assert made.secure_key is None
    return made.terminal_id


async def test_only_the_public_half_travels(site: Site) -> None:
    acme = await site.tenant("acme")
    id = await waiting(acme)
    enrolment = await acme.admin.create_terminal_enrolment(id)
    key = SecureKey.new()
    enrolled = await site.client().enrol(enrolment.token, key.public)
    assert (enrolled.customer_id, enrolled.terminal_id, enrolled.name) == (acme.id, id, "lima")
    lima = site.member(acme.id, id, key)
    signed = await lima.registry.directory()
    assert signed is not None
    known = directory.verify(signed.directory, enrolled.registry_key)
    assert [entry.keys for entry in known.terminals if entry.id == id] == [[key.public]]


async def test_before_it_enrols_it_is_in_no_directory(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    signed = await acme.paris.registry.directory()
    assert signed is not None
    assert id not in {
        entry.id for entry in directory.verify(signed.directory, quick.registry.public_key).terminals
    }
    with pytest.raises(Unauthenticated):
        await quick.member(acme.id, id, SecureKey.new()).registry.directory()


async def test_good_once(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    token = (await acme.admin.create_terminal_enrolment(id)).token
    key = SecureKey.new()
    await quick.client().enrol(token, key.public)
    with pytest.raises(Unauthenticated):
        await quick.client().enrol(token, SecureKey.new().public)
    assert (await acme.admin.show_terminal(id)).keys == [key.public]


async def test_of_two_at_once_one_is_let_in(quick: Site, acme: Tenant) -> None:
    token = (await acme.admin.create_terminal_enrolment(await waiting(acme))).token
    client = quick.client()
    results = await asyncio.gather(
        *(client.enrol(token, SecureKey.new().public) for _ in range(5)), return_exceptions=True
    )
    assert sorted(isinstance(result, Unauthenticated) for result in results) == [
        False,
        True,
        True,
        True,
        True,
    ]


async def test_expires_after_ten_minutes(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    first = await acme.admin.create_terminal_enrolment(id)
    quick.clock.advance(600)
    with pytest.raises(Unauthenticated):
        await quick.client().enrol(first.token, SecureKey.new().public)
    second = await acme.admin.create_terminal_enrolment(id)
    quick.clock.advance(599)
    await quick.client().enrol(second.token, SecureKey.new().public)


async def test_a_new_token_ends_the_one_before(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    first = await acme.admin.create_terminal_enrolment(id)
    second = await acme.admin.create_terminal_enrolment(id)
    with pytest.raises(Unauthenticated):
        await quick.client().enrol(first.token, SecureKey.new().public)
    await quick.client().enrol(second.token, SecureKey.new().public)


async def test_revocation_and_removal_end_it(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    token = (await acme.admin.create_terminal_enrolment(id)).token
    await acme.admin.revoke_terminal(id)
    other = (await acme.admin.create_terminal("cairo", make_key=False)).terminal_id
    removed = (await acme.admin.create_terminal_enrolment(other)).token
    await acme.admin.remove_terminal(other)
    for ended in (token, removed):
        with pytest.raises(Unauthenticated):
            await quick.client().enrol(ended, SecureKey.new().public)
    with pytest.raises(BadRequest, match="revoked"):
        await acme.admin.create_terminal_enrolment(id)


async def test_ends_the_keys_from_before(quick: Site, acme: Tenant) -> None:
    token = (await acme.admin.create_terminal_enrolment(acme.oslo.id)).token
    await quick.client().enrol(token, SecureKey.new().public)
    with pytest.raises(Unauthenticated):
        await acme.oslo.registry.directory()


async def test_may_bring_a_name_but_nobody_elses(quick: Site, acme: Tenant) -> None:
    id = await waiting(acme)
    token = (await acme.admin.create_terminal_enrolment(id)).token
    with pytest.raises(NameTaken):
        await quick.client().enrol(token, SecureKey.new().public, name="paris")
    assert (await quick.client().enrol(token, SecureKey.new().public, name="quito")).name == "quito"


async def test_wrong_tokens_get_one_and_the_same_answer(quick: Site, acme: Tenant) -> None:
    used = (await acme.admin.create_terminal_enrolment(await waiting(acme))).token
    await quick.client().enrol(used, SecureKey.new().public)
    said = set()
    for token in ("", "lbet1_x", used, used.replace("lbet1_", "lbac1_"), acme.token):
        with pytest.raises(Unauthenticated) as refusal:
            await quick.client().enrol(token, SecureKey.new().public)
        said.add(str(refusal.value))
    assert len(said) == 1
