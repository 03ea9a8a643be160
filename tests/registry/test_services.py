"""Services of a customer: their credentials, their tokens, what ends them, and what terminals make of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.broker.authority import Authority, TokenIdentity
from landbridge.client.registry_documents import CreatedServiceCredential
from landbridge.core.log.store import Store
from landbridge.core.time import SECOND
from landbridge.core.trust import credential, directory, registered_tokens
from landbridge.core.trust.directory import Directory, TokenKey
from landbridge.core.trust.registered_tokens import RegisteredTokens, key_id, narrowed
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import (
    BadName,
    BadRequest,
    BusError,
    Forbidden,
    LimitReached,
    NameTaken,
    Unauthenticated,
    Unavailable,
    UnknownService,
)
from landbridge.registry.directories import directory_of
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock
from tests.registry.site import Site, Tenant

SCOPES = ["publish:orders.#", "subscribe:orders.*"]


async def known_by(site: Site, tenant: Tenant) -> Directory:
    """The directory as a terminal gets it."""
    update = await tenant.paris.registry.directory()
    assert update is not None
    return directory.verify(update.directory, site.registry.public_key)


class Gate:
    """A terminal of a customer, as far as tokens go. ``follow``: the directory has come."""

    def __init__(self, site: Site, tenant: Tenant) -> None:
        self._site = site
        self._tenant = tenant
        self.authority = Authority(Ed25519PrivateKey.generate())
        self.authority.registered = RegisteredTokens()

    async def follow(self) -> Gate:
        assert self.authority.registered is not None
        self.authority.registered.follow(await known_by(self._site, self._tenant))
        return self

    def verify(self, token: str) -> TokenIdentity:
        return self.authority.verify(self._site.clock(), token)

    def accepts(self, token: str) -> bool:
        try:
            self.verify(token)
        except Unauthenticated:
            return False
        return True


@pytest.fixture
async def gate(quick: Site, acme: Tenant) -> Gate:
    return await Gate(quick, acme).follow()


async def register(tenant: Tenant, name: str = "shop") -> CreatedServiceCredential:
    return await tenant.admin.register_service(name, SCOPES)


async def token_of(site: Site, made: CreatedServiceCredential, **options: Any) -> str:
    answer = await site.client().create_service_token(made.name, made.credential, **options)
    return answer.token


# -- the admin ----------------------------------------------------------------------------------------


async def test_register_show_list_update(site: Site) -> None:
    acme = await site.tenant("acme")
    made = await acme.admin.register_service(
        "shop.eu",
        SCOPES,
        version="1.4.0",
        owner="team-shop",
        description="Takes orders.",
        publishes=["orders.#"],
        callbacks={"done": "topic:outcomes"},
        metadata={"language": "go"},
    )
    assert made.customer_id == acme.id
    assert made.credential.startswith("lbsc1_")
    assert made.credential not in repr(made)
    found = await acme.admin.show_service("shop.eu")
    assert found == await acme.admin.show_service(made.service_id)
    assert (found.name, found.state, found.scopes, found.version) == ("shop.eu", "active", SCOPES, "1.4.0")
    assert [known.credential_id for known in found.credentials] == [made.credential_id]
    assert made.credential not in str(found)
    updated = await acme.admin.update_service("shop.eu", version="1.5.0", scopes=[*SCOPES, "observe"][:2])
    assert (updated.version, updated.owner, updated.metadata) == ("1.5.0", "team-shop", {"language": "go"})
    await register(acme, "billing")
    page = await acme.admin.list_services(limit=1)
    assert [each.name for each in page.items] == ["billing"]
    assert [each.name for each in (await acme.admin.list_services(page.next or "")).items] == ["shop.eu"]
    assert (await acme.admin.show_message_bus_customer()).services == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "$status"}, BadName),
        ({"name": "a b"}, BadName),
        ({"name": "new", "scopes": ["everything"]}, BadRequest),
        ({"name": "new", "version": "one"}, BadRequest),
        ({"name": "new", "metadata": {"a": "x" * 5000}}, BadRequest),
        ({"name": "new", "publishes": ["a"] * 200}, BadRequest),
        ({"name": "new", "publishes": ["a b"]}, BadName),
        ({"name": "shop"}, NameTaken),
    ],
)
async def test_what_is_no_service(
    quick: Site, acme: Tenant, options: dict[str, Any], error: type[BusError]
) -> None:
    await register(acme)
    with pytest.raises(error):
        await acme.admin.register_service(**options)
    assert [each.name for each in (await acme.admin.list_services()).items] == ["shop"]


async def test_an_update_keeps_the_name_and_checks_the_rest(quick: Site, acme: Tenant) -> None:
    await register(acme)
    for options in ({"version": "one"}, {"scopes": ["all"]}, {"description": "x" * 5000}):
        with pytest.raises(BadRequest):
            await acme.admin.update_service("shop", **options)
    answer = await quick.http.patch(
        "/v1/services/shop", json={"name": "other"}, headers={"authorization": f"Bearer {acme.token}"}
    )
    assert answer.status_code == 400
    assert (await acme.admin.show_service("shop")).version == "0.0.0"
    with pytest.raises(UnknownService, match="shopp"):
        await acme.admin.update_service("shopp", owner="me")


async def test_as_many_as_are_allowed(crashes: list[Any]) -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(max_services=1)) as site:
        acme = await site.tenant("acme")
        await register(acme)
        with pytest.raises(LimitReached):
            await register(acme, "billing")
        await acme.admin.remove_service("shop")
        await register(acme, "billing")
        with pytest.raises(LimitReached, match="may still live"):
            await acme.admin.remove_service("billing")
        assert (await acme.admin.suspend_service("billing")).state == "suspended"
        site.clock.advance(700)
        await acme.admin.remove_service("billing")
        assert (await known_by(site, acme)).ended.keys() == {"billing"}


async def test_every_change_is_audited_without_secrets(quick: Site, acme: Tenant) -> None:
    made = await register(acme)
    token = await token_of(quick, made)
    await acme.admin.update_service("shop", scopes=SCOPES[:1])
    await acme.admin.suspend_service("shop")
    await acme.admin.resume_service("shop")
    rotated = await acme.admin.rotate_service_credential("shop")
    await acme.admin.rotate_token_key()
    await acme.admin.remove_service("shop")
    with pytest.raises(UnknownService):
        await acme.admin.remove_service("shop")
    events = (await acme.admin.audit(limit=1000)).items
    done = [(event.op, event.subject, event.outcome) for event in events if "ervice" in event.op]
    assert done == [
        ("registerService", "shop", "ok"),
        ("createServiceToken", made.service_id, "ok"),
        ("updateService", "shop", "ok"),
        ("suspendService", "shop", "ok"),
        ("resumeService", "shop", "ok"),
        ("rotateServiceCredential", "shop", "ok"),
        ("removeService", "shop", "ok"),
        ("removeService", "shop", "unknown_service"),
    ]
    assert "rotateTokenKey" in {event.op for event in events}
    assert f"service:{made.service_id}" in {event.who for event in events}
    for secret in (made.credential, rotated.credential, token):
        assert secret not in str(events)


async def test_all_of_it_is_there_after_a_restart_and_no_secret_in_the_clear(tmp_path: Path) -> None:
    clock, store = FakeClock(), JournalStore(tmp_path / "registry")
    async with Site.running(store, clock=clock) as site:
        acme = await site.tenant("acme")
        shop, billing = await register(acme), await register(acme, "billing")
        gone = await register(acme, "gone")
        await acme.admin.suspend_service("billing")
        await acme.admin.remove_service("gone")
        rotated = await acme.admin.rotate_service_credential("shop")
        shown, known = await acme.admin.list_services(), await known_by(site, acme)
        await site.registry.rotate_master_key(bytes(32))
        account = site.registry.index.accounts[acme.id]
        signing = site.registry.state.keyring.token_key(account.customer, clock()).private_bytes_raw()
        operator = site.operator_token
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for secret in (shop.credential, rotated.credential, billing.credential, gone.credential):
        assert secret.encode() not in everything
    assert signing not in everything
    store = JournalStore(tmp_path / "registry")
    async with Site.running(store, clock=clock, operator_token=operator, master=bytes(32)) as site:
        admin = site.client(token=acme.token)
        assert await admin.list_services() == shown
        account = site.registry.index.accounts[acme.id]
        assert directory_of(account, clock()) == known
        assert known.ended.keys() == {"billing", "gone"}
        for made in (shop, rotated):
            assert (await token_of(site, made)).count(".") == 2
        for made in (billing, gone):
            with pytest.raises(Unauthenticated):
                await token_of(site, made)


async def test_a_customer_from_before_there_were_services_gets_its_key(store: Store) -> None:
    clock = FakeClock()
    async with Site.running(store, clock=clock) as site:
        acme = await site.tenant("acme")
        account = site.registry.index.accounts[acme.id]
        site.registry.index.put_customer(account, replaced(account.customer, token_keys=[]))
        assert (await known_by(site, acme)).token_keys == []
        token = await token_of(site, await register(acme))
        assert (await Gate(site, acme).follow()).verify(token).subject == "shop"


def replaced(record: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(record, **changes)


# -- credentials --------------------------------------------------------------------------------------


async def test_wrong_credentials_get_one_and_the_same_answer(quick: Site, acme: Tenant) -> None:
    other = await quick.tenant("other")
    shop, ended = await register(acme), await register(acme, "ended")
    suspended, gone, foreign = (
        await register(acme, "suspended"),
        await register(acme, "gone"),
        await register(other, "shop"),
    )
    await acme.admin.rotate_service_credential("ended", overlap=0)
    await acme.admin.suspend_service("suspended")
    await acme.admin.remove_service("gone")
    wrong = credential.new(credential.SERVICE)[0]
    answers = [
        await quick.http.post("/v1/service-tokens", json={"service": service, "credential": secret})
        for service, secret in [
            ("shop", wrong),
            ("nobody", wrong),
            ("nobody", shop.credential),
            ("billing", shop.credential),
            (shop.service_id, foreign.credential),
            (foreign.service_id, shop.credential),
            ("ended", ended.credential),
            ("suspended", suspended.credential),
            ("gone", gone.credential),
            ("shop", "lbsc1_"),
            ("shop", ""),
            ("shop", acme.token),
            ("", shop.credential),
        ]
    ]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(401, "unauthenticated")}
    assert len({answer.text for answer in answers}) == 1


async def test_the_credential_of_another_customer_speaks_for_its_own_service(
    quick: Site, acme: Tenant, gate: Gate
) -> None:
    other = await quick.tenant("other")
    await register(acme)
    foreign = await register(other)
    made = await quick.client().create_service_token("shop", foreign.credential)
    assert made.customer_id == other.id
    await gate.follow()
    assert not gate.accepts(made.token)
    assert (await Gate(quick, other).follow()).accepts(made.token)


async def test_strangers_are_limited_by_their_address(crashes: list[Any]) -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(wrong_per_minute=3)) as site:
        acme = await site.tenant("acme")
        made = await register(acme)
        body = {"service": "shop", "credential": "lbsc1_wrong"}
        statuses = [(await site.http.post("/v1/service-tokens", json=body)).status_code for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        await token_of(site, made)  # a right one is never held up
        refused = [each for each in (await site.operator.audit()).items if each.op == "createServiceToken"]
        assert len(refused) == 3


async def test_rotation_overlaps_for_the_time_that_was_said(quick: Site, acme: Tenant, gate: Gate) -> None:
    first = await register(acme)
    token = await token_of(quick, first)
    second = await acme.admin.rotate_service_credential("shop", overlap=3600)
    assert await token_of(quick, first)
    await gate.follow()
    assert gate.accepts(token)
    third = await acme.admin.rotate_service_credential("shop", overlap=3600)
    with pytest.raises(Unauthenticated):
        await token_of(quick, first)  # two at most
    assert await token_of(quick, second)
    quick.clock.advance(3600)
    with pytest.raises(Unauthenticated):
        await token_of(quick, second)
    assert await token_of(quick, third)
    for overlap in (-1, float("1e99"), 31 * 86400):
        with pytest.raises(BadRequest):
            await acme.admin.rotate_service_credential("shop", overlap=overlap)


async def test_rotation_without_overlap_ends_the_tokens(quick: Site, acme: Tenant, gate: Gate) -> None:
    stolen = await register(acme)
    token = await token_of(quick, stolen)
    fresh = await acme.admin.rotate_service_credential("shop", overlap=0)
    with pytest.raises(Unauthenticated):
        await token_of(quick, stolen)
    await gate.follow()
    assert not gate.accepts(token)
    assert gate.accepts(await token_of(quick, fresh))


# -- tokens -------------------------------------------------------------------------------------------


async def test_a_terminal_takes_a_token_without_asking(quick: Site, acme: Tenant, gate: Gate) -> None:
    made = await register(acme)
    answer = await quick.client().create_service_token(made.service_id, made.credential)
    assert answer.token not in repr(answer)
    claims = jwt.decode(answer.token, options={"verify_signature": False})
    assert set(claims) == {"iss", "aud", "sub", "jti", "iat", "exp", "scope", "customer", "version"}
    assert (claims["sub"], claims["customer"], claims["jti"]) == ("shop", acme.id, answer.token_id)
    assert claims["exp"] - claims["iat"] == 600
    await gate.follow()
    identity = gate.verify(answer.token)
    assert (identity.subject, identity.scopes) == ("shop", Scopes.parse(SCOPES))
    assert identity.expires_at == answer.expires_at


async def test_a_token_may_have_less(quick: Site, acme: Tenant) -> None:
    made = await register(acme)
    client = quick.client()
    less = await client.create_service_token("shop", made.credential, ["publish:orders.eu.de"], life=60)
    assert less.scopes == ["publish:orders.eu.de"]
    assert less.expires_at <= quick.clock() + 60 * SECOND
    for wanted in (["publish:#"], ["admin"], ["publish:orders.#", "subscribe:mail"], ["subscribe:orders.#"]):
        with pytest.raises(Forbidden):
            await client.create_service_token("shop", made.credential, wanted)
    for wanted in ([], ["everything"], ["publish"]):
        with pytest.raises(BadRequest):
            await client.create_service_token("shop", made.credential, wanted)
    for life in (0, -5, 601, 1e300):
        with pytest.raises(BadRequest):
            await client.create_service_token("shop", made.credential, life=life)


async def test_a_service_without_scopes_gets_no_token(quick: Site, acme: Tenant) -> None:
    made = await acme.admin.register_service("idle")
    with pytest.raises(BadRequest, match="without scopes"):
        await token_of(quick, made)


PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=3).map(".".join)
NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(".".join)


@given(st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, min_size=1, max_size=3), NAMES)
def test_a_narrowed_token_may_nothing_that_the_service_may_not(
    granted: list[str], wanted: list[str], name: str
) -> None:
    whole = [f"publish:{pattern}" for pattern in granted]
    try:
        found = narrowed(whole, [f"publish:{pattern}" for pattern in wanted])
    except Forbidden:
        return
    if Scopes.parse(found).may("publish", name):
        assert Scopes.parse(whole).may("publish", name)


async def test_expiry(quick: Site, acme: Tenant, gate: Gate) -> None:
    token = await token_of(quick, await register(acme))
    await gate.follow()
    quick.clock.advance(599)
    assert gate.accepts(token)
    quick.clock.advance(1)
    assert not gate.accepts(token)


async def test_suspension_ends_tokens_and_resumption_revives_none(
    quick: Site, acme: Tenant, gate: Gate
) -> None:
    made, other = await register(acme), await register(acme, "other")
    token, others = await token_of(quick, made), await token_of(quick, other)
    await gate.follow()
    taken = gate.verify(token)
    await acme.admin.suspend_service("shop")
    await acme.admin.suspend_service(made.service_id)  # twice is once
    assert gate.accepts(token)  # it can't know yet
    await gate.follow()
    assert not gate.accepts(token)
    with pytest.raises(Unauthenticated):
        gate.authority.look_again(quick.clock(), taken)
    assert gate.accepts(others)
    with pytest.raises(Unauthenticated):
        await token_of(quick, made)
    await acme.admin.resume_service("shop")
    await gate.follow()
    assert not gate.accepts(token)
    fresh = await token_of(quick, made)
    assert gate.accepts(fresh)
    assert (await known_by(quick, acme)).ended.keys() == {"shop"}
    quick.clock.advance(700)
    await acme.admin.create_terminal_group("news")  # a new version
    assert (await known_by(quick, acme)).ended == {}


async def test_a_suspended_service_is_listed_for_as_long_as_it_is(quick: Site, acme: Tenant) -> None:
    await register(acme)
    await acme.admin.suspend_service("shop")
    quick.clock.advance(100_000)
    await acme.admin.create_terminal_group("news")
    assert (await known_by(quick, acme)).ended.keys() == {"shop"}


async def test_a_removed_service_is_listed_while_a_token_may_live(
    quick: Site, acme: Tenant, gate: Gate
) -> None:
    token = await token_of(quick, await register(acme))
    await acme.admin.remove_service("shop")
    again = await register(acme)  # another service of the same name
    await gate.follow()
    assert not gate.accepts(token)
    assert gate.accepts(await token_of(quick, again))
    known = await known_by(quick, acme)
    assert (known.services, list(known.ended)) == (["shop"], ["shop"])
    await acme.admin.remove_service("shop")
    quick.clock.advance(700)
    await acme.admin.create_terminal_group("news")
    known = await known_by(quick, acme)
    assert (known.services, known.ended) == ([], {})
    # What was kept of them goes with the next removal.
    await register(acme, "other")
    await acme.admin.remove_service("other")
    assert list(quick.registry.index.accounts[acme.id].removed_services) == ["other"]


async def test_a_service_that_loses_scopes_loses_its_tokens(quick: Site, acme: Tenant, gate: Gate) -> None:
    made = await register(acme)
    token = await token_of(quick, made)
    await acme.admin.update_service("shop", scopes=[*SCOPES, "documents:carts"])
    await gate.follow()
    assert gate.accepts(token)
    await acme.admin.update_service("shop", scopes=SCOPES[1:])
    await gate.follow()
    assert not gate.accepts(token)
    assert gate.verify(await token_of(quick, made)).scopes == Scopes.parse(SCOPES[1:])


async def test_of_a_service_the_directory_has_the_name_alone(quick: Site, acme: Tenant) -> None:
    await acme.admin.register_service("shop", SCOPES, owner="secret-team", description="internal")
    before = await known_by(quick, acme)
    assert before.services == ["shop"]
    assert "secret-team" not in repr(before)
    assert SCOPES[0] not in repr(before)
    await acme.admin.update_service("shop", owner="another")
    assert (await known_by(quick, acme)).version == before.version


NAMED = st.sampled_from(["shop", "shop", "shop", "billing"])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                [
                    "register",
                    "token",
                    "token",
                    "suspend",
                    "resume",
                    "remove",
                    "rotate",
                    "end",
                    "widen",
                    "narrow",
                ]
            ),
            NAMED,
        ),
        st.tuples(st.sampled_from(["wait", "news"]), NAMED),
    ),
    min_size=15,
    max_size=25,
)


@settings(max_examples=20, deadline=None)
@given(STEPS)
def test_which_tokens_are_taken_is_as_simple_as_it_sounds(steps: list[tuple[str, str]]) -> None:
    """Against an oracle that knows of nothing but lists of tokens."""
    asyncio.run(follow(steps))


async def follow(steps: list[tuple[str, str]]) -> None:
    async with Site.running(MemoryStore()) as site:
        acme = await site.tenant("acme")
        gate = Gate(site, acme)
        good: dict[str, list[str]] = {}  # the tokens of a service that are taken
        bad: list[str] = []
        made: dict[str, CreatedServiceCredential] = {}
        suspended: set[str] = set()
        numbers = itertools.count()

        async def do(step: str, name: str) -> None:
            """Raises where the registry refuses the step."""
            match step:
                case "register":
                    made[name] = await register(acme, name)
                case "token":
                    answer = await site.client().create_service_token(name, made[name].credential)
                    assert name not in suspended
                    good.setdefault(name, []).append(answer.token)
                case "suspend":
                    await acme.admin.suspend_service(name)
                    suspended.add(name)
                case "resume":
                    await acme.admin.resume_service(name)
                    suspended.discard(name)
                case "remove":
                    await acme.admin.remove_service(name)
                    suspended.discard(name)
                case "rotate" | "end":
                    overlap = 3600.0 if step == "rotate" else 0.0
                    made[name] = await acme.admin.rotate_service_credential(name, overlap)
                case "widen":
                    await acme.admin.update_service(name, scopes=[*SCOPES, "documents:a"])
                case "narrow":
                    before = (await acme.admin.show_service(name)).scopes
                    await acme.admin.update_service(name, scopes=SCOPES)
                    if before == SCOPES:
                        return
                case "news":
                    await acme.admin.create_terminal_group(f"g{next(numbers)}")
                case "wait":
                    site.clock.advance(200)
            if step in ("suspend", "remove", "end", "narrow"):
                bad.extend(good.pop(name, []))

        beginning = [("register", "shop"), ("register", "billing"), ("token", "shop"), ("token", "billing")]
        for step, name in [*beginning, *steps]:
            try:
                await do(step, name)
            except (NameTaken, UnknownService, Unauthenticated, KeyError):
                continue
            await gate.follow()
            now = site.clock() // SECOND

            def expired(token: str, now: int = now) -> bool:
                return int(jwt.decode(token, options={"verify_signature": False})["exp"]) <= now

            for token in (each for tokens in good.values() for each in tokens):
                assert gate.accepts(token) is not expired(token)
            for token in bad:
                assert not gate.accepts(token)


# -- hostile tokens -----------------------------------------------------------------------------------


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part(header)}.{part(claims)}"


def with_hmac(header: dict[str, Any], claims: dict[str, Any], key: bytes) -> str:
    text = unsigned(header, claims)
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


async def test_forged_tokens(quick: Site, acme: Tenant, gate: Gate) -> None:
    good = await token_of(quick, await register(acme))
    await gate.follow()
    account = quick.registry.index.accounts[acme.id]
    key = quick.registry.state.keyring.token_key(account.customer, quick.clock())
    public = key.public_key().public_bytes_raw()
    header, claims = jwt.get_unverified_header(good), jwt.decode(good, options={"verify_signature": False})
    mallory = Ed25519PrivateKey.generate()
    admin = {**claims, "scope": "admin"}

    def signed(by: Ed25519PrivateKey, body: dict[str, Any], **headers: Any) -> str:
        return jwt.encode(body, by, algorithm="EdDSA", headers={**header, **headers})

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in claims.items() if key != name}

    assert gate.accepts(signed(key, claims))
    head, body, signature = good.split(".")
    forged = [
        signed(mallory, claims),  # the right kid, another key
        signed(mallory, claims, kid=key_id(mallory.public_key().public_bytes_raw())),
        signed(key, claims, kid="0" * 16),
        signed(key, claims, kid=""),
        signed(key, claims, crit=["exp"]),
        signed(key, claims, jku="https://evil.example/keys"),
        signed(key, claims, jwk={"kty": "OKP"}),
        unsigned({**header, "alg": "none"}, admin) + ".",
        unsigned({**header, "alg": "none"}, admin) + f".{signature}",
        with_hmac({**header, "alg": "HS256"}, admin, public),
        with_hmac({**header, "alg": "HS256"}, admin, base64.b64encode(public)),
        f"{head}.{unsigned(header, admin).split('.')[1]}.{signature}",
        f"{head}.{body}.",
        *(signed(key, without(name)) for name in claims),
        signed(key, {**claims, "iss": "landbridge"}),  # as if a terminal had made it
        signed(key, {**claims, "aud": "other"}),
        signed(key, {**claims, "customer": "cus_other"}),
        signed(key, {**claims, "customer": [acme.id]}),
        signed(key, {**claims, "version": "9"}),
        signed(key, {**claims, "version": True}),
        signed(key, {**claims, "version": 1e9}),
        signed(key, {**claims, "exp": quick.clock() // SECOND}),
        signed(key, {**claims, "exp": 1e400}),
        signed(key, {**claims, "scope": "everything"}),
    ]
    for token in forged:
        assert not gate.accepts(token), token


async def test_a_terminals_own_key_signs_nothing_for_the_registry(
    quick: Site, acme: Tenant, gate: Gate
) -> None:
    good = await token_of(quick, await register(acme))
    await gate.follow()
    claims = jwt.decode(good, options={"verify_signature": False})
    own = gate.authority.issue(quick.clock(), "shop", ["publish:a"], 60.0)[0]
    header = jwt.get_unverified_header(own)
    # Signed by the terminal, with the registry's claims: the issuer is not the terminal.
    forged = jwt.encode(claims, gate.authority._key, algorithm="EdDSA", headers=header)
    assert not gate.accepts(forged)


async def test_the_key_of_another_customer(quick: Site, acme: Tenant, gate: Gate) -> None:
    other = await quick.tenant("other")
    await register(acme)
    await gate.follow()
    state = quick.registry.state
    theirs = state.keyring.token_key(quick.registry.index.accounts[other.id].customer, quick.clock())
    token, _, _ = registered_tokens.sign(
        theirs,
        now=quick.clock(),
        customer=acme.id,
        version=1000,
        subject="shop",
        scopes=["admin"],
        life=600,
    )
    assert not gate.accepts(token)
    # Nor where the directory, by a fault, had their key: the customer in the token is what counts.
    known = await known_by(quick, acme)
    mixed = replaced(known, token_keys=[TokenKey(theirs.public_key().public_bytes_raw())])
    assert gate.authority.registered is not None
    gate.authority.registered.follow(mixed)
    foreign, _, _ = registered_tokens.sign(
        theirs, now=quick.clock(), customer=other.id, version=1000, subject="shop", scopes=["admin"], life=600
    )
    assert not gate.accepts(foreign)


async def test_before_the_directory_a_program_is_asked_to_come_again(quick: Site, acme: Tenant) -> None:
    token = await token_of(quick, await register(acme))
    gate = Gate(quick, acme)
    with pytest.raises(Unavailable):
        gate.verify(token)
    alone = Authority(Ed25519PrivateKey.generate())
    with pytest.raises(Unauthenticated):
        alone.verify(quick.clock(), token)


# -- the keys of tokens -------------------------------------------------------------------------------


async def test_a_new_key_signs_when_terminals_know_it(quick: Site, acme: Tenant, gate: Gate) -> None:
    made = await register(acme)
    before = await token_of(quick, made)
    keys = (await acme.admin.rotate_token_key()).items
    assert [key.until is None for key in keys] == [True, False]
    early = await token_of(quick, made)
    assert jwt.get_unverified_header(early)["kid"] == keys[1].key_id
    assert gate.accepts(early)  # though the gate has not heard of the rotation
    quick.clock.advance(60)
    late = await token_of(quick, made)
    assert jwt.get_unverified_header(late)["kid"] == keys[0].key_id
    assert not gate.accepts(late)
    await gate.follow()
    assert all(map(gate.accepts, (before, early, late)))
    quick.clock.advance(539)
    last = await token_of(quick, made)
    quick.clock.advance(121)
    # The old key is at its end, also for a token that would live longer.
    account = quick.registry.index.accounts[acme.id]
    old = account.customer.token_keys[1]
    secret = quick.registry.state.keyring.vault.take(old.sealed_key, "token signing key", acme.id, old.public)
    forged, _, _ = registered_tokens.sign(
        Ed25519PrivateKey.from_private_bytes(secret),
        now=quick.clock(),
        customer=acme.id,
        version=1000,
        subject="shop",
        scopes=["admin"],
        life=600,
    )
    assert not gate.accepts(forged)
    assert gate.accepts(last)
    assert len((await acme.admin.rotate_token_key()).items) == 2


async def test_a_stolen_key_ends_at_once(quick: Site, acme: Tenant, gate: Gate) -> None:
    made = await register(acme)
    token = await token_of(quick, made)
    [key] = (await acme.admin.rotate_token_key(keep_old=False)).items
    await gate.follow()
    assert not gate.accepts(token)
    fresh = await token_of(quick, made)
    assert jwt.get_unverified_header(fresh)["kid"] == key.key_id
    assert gate.accepts(fresh)


async def test_keys_are_as_many_as_are_allowed(quick: Site, acme: Tenant) -> None:
    made = await register(acme)
    for _ in range(7):
        await acme.admin.rotate_token_key()
    with pytest.raises(LimitReached):
        await acme.admin.rotate_token_key()
    assert await token_of(quick, made)
    quick.clock.advance(3600)
    assert len((await acme.admin.rotate_token_key()).items) == 2
    assert len((await acme.admin.rotate_token_key(keep_old=False)).items) == 1


# -- directories of other versions --------------------------------------------------------------------


def test_a_directory_of_an_older_registry_decodes() -> None:
    import msgspec

    old = {"customer": "cus_a", "version": 3, "terminals": [], "groups": [], "topics": [], "revoked": []}
    found = msgspec.convert(old, Directory)
    assert (found.token_keys, found.services, found.ended) == ([], [], {})
    tokens = RegisteredTokens()
    tokens.follow(found)
    assert tokens.is_ready
    assert tokens.key(0, "0" * 16) is None


def test_an_older_terminal_passes_over_what_is_new() -> None:
    import msgspec

    class OldDirectory(msgspec.Struct, frozen=True, kw_only=True):
        customer: str
        version: int

    new = Directory(
        customer="cus_a", version=3, token_keys=[TokenKey(b"k" * 32, 5)], services=["a"], ended={"a": 2}
    )
    data = msgspec.msgpack.encode(new)
    assert msgspec.msgpack.decode(data, type=OldDirectory).version == 3
    assert msgspec.msgpack.decode(data, type=Directory) == new
