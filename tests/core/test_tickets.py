import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.trust import tickets
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.primitives import wrap
from landbridge.core.trust.tickets import CustomerKey, Mint, Requester, TopicKey, Vault, box_info
from landbridge.errors import BadRequest, BadSeal, StoreCorrupt, TicketExpired, TicketRefused
from tests.core.crossing import NOW, SECOND, Crossing

CEK = b"k" * 32


@pytest.fixture
def world():
    return Crossing()


def boxed(world, issue, *, cek=CEK, **changes):
    """A content key, boxed as a sender does it; or with something changed, as a forger might."""
    context = {
        "customer": world.customer,
        "topic": issue.topic,
        "kv": issue.kv,
        "seal_id": issue.seal_id,
        "sender": "ter_oslo",
    }
    return wrap(cek, issue.public, box_info(**context | changes))


def opened(world, release, by=None):
    terminal = by or world.lima
    info = tickets.release_info(world.customer, release.topic, release.seal_id, terminal.terminal)
    return terminal.unwrap(release.wrapped, info)


# --- keys at rest -------------------------------------------------------------------------------------


def test_topic_key_opens_in_another_vault_of_the_same_master():
    vault = Vault(b"m" * 32)
    customer_key = vault.new_customer_key("cus_a", NOW)
    key = vault.new_topic_key("cus_a", customer_key, "orders", 1, NOW)
    # As it comes back from the store, after a restart.
    stored = msgspec.json.decode(msgspec.json.encode(key), type=TopicKey)
    customer_stored = msgspec.json.decode(msgspec.json.encode(customer_key), type=CustomerKey)
    private = Vault(b"m" * 32).topic_private("cus_a", customer_stored, "orders", stored)
    assert private.public_key().public_bytes_raw() == key.public
    assert private.private_bytes_raw() not in key.sealed_private


def test_topic_key_opens_for_its_customer_topic_and_version_only():
    vault = Vault(b"m" * 32)
    mine, theirs = vault.new_customer_key("cus_a", NOW), vault.new_customer_key("cus_b", NOW)
    key = vault.new_topic_key("cus_a", mine, "orders", 1, NOW)
    vault.topic_private("cus_a", mine, "orders", key)  # what is cached must not answer for another question
    for customer, customer_key, topic, kv in (
        ("cus_b", mine, "orders", 1),
        ("cus_a", theirs, "orders", 1),
        ("cus_b", theirs, "orders", 1),
        ("cus_a", mine, "invoices", 1),
        ("cus_a", mine, "orders", 2),
    ):
        with pytest.raises(StoreCorrupt):
            vault.topic_private(customer, customer_key, topic, msgspec.structs.replace(key, kv=kv))
    with pytest.raises(StoreCorrupt):
        Vault(b"n" * 32).topic_private("cus_a", mine, "orders", key)
    with pytest.raises(StoreCorrupt):
        vault.topic_private("cus_a", mine, "orders", msgspec.structs.replace(key, sealed_private=b""))


def test_master_key_rotates_without_touching_topic_keys():
    old, new = Vault(b"o" * 32), Vault(b"n" * 32)
    before = old.new_customer_key("cus_a", NOW)
    key = old.new_topic_key("cus_a", before, "orders", 1, NOW)
    after = old.rewrapped("cus_a", before, new)
    assert new.topic_private("cus_a", after, "orders", key).public_key().public_bytes_raw() == key.public
    assert after.made_at == before.made_at
    with pytest.raises(StoreCorrupt):
        old.topic_private("cus_a", after, "orders", key)
    with pytest.raises(StoreCorrupt):
        new.rewrapped("cus_a", before, old)
    with pytest.raises(StoreCorrupt):
        old.rewrapped("cus_b", before, new)


def test_kept_secret_needs_its_context():
    vault = Vault(b"m" * 32)
    kept = vault.keep(b"secret", "signing key")
    assert vault.take(kept, "signing key") == b"secret"
    assert b"secret" not in kept
    for wrong in (("ticket key",), (), ("signing", " key")):
        with pytest.raises(StoreCorrupt):
            vault.take(kept, *wrong)


@pytest.mark.parametrize("make", [Vault, Mint])
def test_key_of_a_wrong_size_is_refused(make):
    with pytest.raises(BadRequest):
        make(b"short")


# --- the ticket ---------------------------------------------------------------------------------------


def test_ticket_says_what_the_design_says(world):
    ticket = world.mint.parse(world.issue(max_age=3600.0).ticket)
    assert ticket.__struct_fields__ == (
        "seal_id",
        "customer",
        "topic",
        "sender",
        "audience",
        "kv",
        "issued_at",
        "expires_at",
        "renew_until",
    )
    assert (ticket.customer, ticket.topic, ticket.sender, ticket.audience) == (
        "cus_a",
        "orders",
        "ter_oslo",
        "",
    )
    assert ticket.expires_at == NOW + 300 * SECOND
    assert ticket.renew_until == NOW + 3600 * SECOND


def test_ticket_hides_what_it_says(world):
    data = world.issue().ticket
    for secret in (b"cus_a", b"orders", b"ter_oslo", world.mint.parse(data).seal_id):
        assert secret not in data


def test_every_ticket_has_a_seal_of_its_own(world):
    assert len({world.issue().seal_id for _ in range(100)}) == 100


def test_ticket_does_not_outlive_its_topic_s_max_age(world):
    assert world.issue(max_age=10.0).expires_at == NOW + 10 * SECOND


def test_life_of_a_ticket_can_be_set():
    assert Crossing(life=2.5).issue().expires_at == NOW + 2_500_000


@given(st.data())
def test_forged_ticket_is_refused(data):
    world = Crossing()
    ticket = bytearray(world.issue().ticket)
    place = data.draw(st.integers(0, len(ticket) - 1))
    ticket[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TicketRefused):
        world.mint.parse(bytes(ticket))


@given(st.binary(max_size=200))
def test_garbage_is_no_ticket(data):
    with pytest.raises(TicketRefused):
        Mint(b"t" * 32).parse(data)


def test_ticket_under_an_unknown_key_is_refused(world):
    stranger = Mint(b"x" * 32)
    ticket = stranger.encode(stranger.issue(NOW, "cus_a", "orders", "ter_oslo", 1, NOW + 300 * SECOND))
    with pytest.raises(TicketRefused):
        world.mint.parse(ticket)
    # Nor with the id of a key that the mint has.
    with pytest.raises(TicketRefused):
        world.mint.parse(world.issue().ticket[:9] + ticket[9:])


def test_ticket_key_rotates(world):
    before = world.issue().ticket
    world.mint = Mint(b"u" * 32, older=[b"t" * 32])
    after = world.issue().ticket
    assert before[:9] != after[:9]
    assert world.mint.parse(before).topic == world.mint.parse(after).topic == "orders"
    with pytest.raises(TicketRefused):
        Mint(b"u" * 32).parse(before)


# --- issue --------------------------------------------------------------------------------------------


def test_revoked_terminal_is_issued_no_ticket(world):
    world.revoked.add("ter_oslo")
    with pytest.raises(TicketRefused):
        world.issue()


def test_terminal_that_may_not_send_is_issued_no_ticket(world):
    with pytest.raises(TicketRefused, match="may not send"):
        tickets.issue(
            NOW,
            world.mint,
            requester=world.requester(world.oslo),
            topic="orders",
            key=world.key,
            max_age=60.0,
            may_send=False,
        )


# --- redeem -------------------------------------------------------------------------------------------


def test_member_gets_the_content_key_and_nobody_else_can_read_it(world):
    issue = world.issue()
    release = world.redeem(issue.ticket, boxed(world, issue))
    assert opened(world, release) == CEK
    assert (release.sender, release.sender_keys) == ("ter_oslo", [world.oslo.public])
    assert release.expires_at - release.released_at == 300 * SECOND
    assert CEK not in msgspec.msgpack.encode(release)
    for terminal in ("ter_lima", "ter_rome"):
        with pytest.raises(BadSeal):
            info = tickets.release_info("cus_a", "orders", release.seal_id, terminal)
            world.rome.unwrap(release.wrapped, info)


def test_ticket_is_good_until_it_expires(world):
    issue = world.issue()
    box = boxed(world, issue)
    world.redeem(issue.ticket, box, now=NOW + 300 * SECOND - 1)
    with pytest.raises(TicketExpired):
        world.redeem(issue.ticket, box, now=NOW + 300 * SECOND)


def test_clock_set_back_does_not_lengthen_a_ticket_s_life(world):
    issue = world.issue()
    box = boxed(world, issue)
    world.redeem(issue.ticket, box, now=NOW - 30 * SECOND)
    with pytest.raises(TicketExpired):
        world.redeem(issue.ticket, box, now=NOW - 31 * SECOND)
    # Renewing mends it, by the clock as it is now.
    renewal = world.renew(issue.ticket, world.lima, now=NOW - 600 * SECOND)
    assert world.redeem(renewal.ticket, box, now=NOW - 600 * SECOND)


def test_ticket_of_another_customer_is_refused_as_one_that_never_was(world):
    issue = world.issue()
    other = Identity("cus_b", "ter_lima", SecureKey.new())
    with pytest.raises(TicketRefused) as stolen:
        world.redeem(issue.ticket, boxed(world, issue), by=other)
    with pytest.raises(TicketRefused) as forged:
        world.mint.parse(b"garbage")
    with pytest.raises(TicketRefused) as renewed:
        world.renew(issue.ticket, other)
    assert str(stolen.value) == str(forged.value) == str(renewed.value)
    assert stolen.value.hint == forged.value.hint == renewed.value.hint


def test_ticket_of_another_topic_is_refused(world):
    issue = world.issue()
    with pytest.raises(TicketRefused, match="another topic"):
        world.redeem(issue.ticket, boxed(world, issue), topic="invoices")


def test_ticket_for_another_audience_is_refused(world):
    world.members.add("ter_rome")
    issue = world.issue()
    renewal = world.renew(issue.ticket, world.lima)
    box = boxed(world, issue)
    assert opened(world, world.redeem(renewal.ticket, box, by=world.lima)) == CEK
    with pytest.raises(TicketRefused, match="another terminal"):
        world.redeem(renewal.ticket, box, by=world.rome)


def test_requester_that_is_no_member_is_refused(world):
    issue = world.issue()
    for stranger in (world.rome, world.oslo):  # also the sender itself
        with pytest.raises(TicketRefused, match="no group"):
            world.redeem(issue.ticket, boxed(world, issue), by=stranger)


def test_stranger_with_an_expired_ticket_is_not_sent_to_renew_it(world):
    issue = world.issue()
    with pytest.raises(TicketRefused):
        world.redeem(issue.ticket, boxed(world, issue), by=world.rome, now=NOW + 400 * SECOND)


def test_ticket_of_a_revoked_sender_is_refused(world):
    issue = world.issue()
    world.revoked.add("ter_oslo")
    with pytest.raises(TicketRefused, match="sender"):
        world.redeem(issue.ticket, boxed(world, issue))


def test_ticket_of_a_removed_sender_is_refused(world):
    issue = world.issue()
    ticket = world.mint.parse(issue.ticket)
    private = world.vault.topic_private("cus_a", world.customer_key, "orders", world.key)
    with pytest.raises(TicketRefused, match="sender"):
        tickets.redeem(
            NOW,
            ticket,
            boxed(world, issue),
            requester=world.requester(world.lima),
            topic="orders",
            sender_keys=[],
            private=private,
        )


def test_revoked_requester_is_refused(world):
    issue = world.issue()
    world.revoked.add("ter_lima")
    with pytest.raises(TicketRefused, match="revoked"):
        world.redeem(issue.ticket, boxed(world, issue))


def test_box_from_another_ticket_is_refused(world):
    one, other = world.issue(), world.issue()
    with pytest.raises(TicketRefused, match="box"):
        world.redeem(one.ticket, boxed(world, other))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "invoices"},
        {"customer": "cus_b"},
        {"kv": 2},
        {"sender": "ter_rome"},
        {"seal_id": b"s" * 16},
        {"cek": b"short"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_box_that_was_made_for_something_else_is_refused(world, changes):
    issue = world.issue()
    with pytest.raises(TicketRefused, match="box"):
        world.redeem(issue.ticket, boxed(world, issue, **changes))


@pytest.mark.parametrize("change", [lambda box: b"", lambda box: box[:-1], lambda box: bytes(32) + box[32:]])
def test_box_that_was_changed_is_refused(world, change):
    issue = world.issue()
    with pytest.raises(TicketRefused, match="box"):
        world.redeem(issue.ticket, change(boxed(world, issue)))


def test_version_of_the_topic_key_that_is_gone_opens_nothing(world):
    issue = world.issue()
    with pytest.raises(TicketExpired, match="version 1"):
        tickets.redeem(
            NOW,
            world.mint.parse(issue.ticket),
            boxed(world, issue),
            requester=world.requester(world.lima),
            topic="orders",
            sender_keys=[world.oslo.public],
            private=None,
        )


# --- renew --------------------------------------------------------------------------------------------

LATE = NOW + 3600 * SECOND


def test_sender_renews_for_every_member(world):
    issue = world.issue()
    ticket = world.mint.parse(world.renew(issue.ticket, world.oslo, now=LATE).ticket)
    assert ticket.audience == ""
    assert (ticket.issued_at, ticket.expires_at) == (LATE, LATE + 300 * SECOND)
    before = world.mint.parse(issue.ticket)
    assert (ticket.seal_id, ticket.renew_until, ticket.kv) == (before.seal_id, before.renew_until, before.kv)


def test_member_renews_for_itself(world):
    issue = world.issue()
    renewal = world.renew(issue.ticket, world.lima, now=LATE)
    assert world.mint.parse(renewal.ticket).audience == "ter_lima"
    assert opened(world, world.redeem(renewal.ticket, boxed(world, issue), now=LATE)) == CEK


def test_renewed_ticket_dies_after_five_minutes_too(world):
    issue = world.issue()
    renewal = world.renew(issue.ticket, world.lima, now=LATE)
    with pytest.raises(TicketExpired):
        world.redeem(renewal.ticket, boxed(world, issue), now=LATE + 300 * SECOND)


def test_renewal_by_a_stranger_is_refused(world):
    issue = world.issue()
    with pytest.raises(TicketRefused, match="neither"):
        world.renew(issue.ticket, world.rome, now=LATE)


def test_former_member_can_not_renew(world):
    issue = world.issue()
    world.renew(issue.ticket, world.lima, now=LATE)
    world.members.remove("ter_lima")
    with pytest.raises(TicketRefused):
        world.renew(issue.ticket, world.lima, now=LATE)


def test_nobody_renews_after_renew_until(world):
    issue = world.issue(max_age=600.0)
    end = NOW + 600 * SECOND
    for who in (world.oslo, world.lima):
        assert world.renew(issue.ticket, who, now=end - 1).expires_at == end
        with pytest.raises(TicketExpired):
            world.renew(issue.ticket, who, now=end)


def test_renewing_again_and_again_does_not_pass_renew_until(world):
    ticket, now = world.issue(max_age=1000.0).ticket, NOW
    with pytest.raises(TicketExpired):
        for _ in range(10):
            now += 200 * SECOND
            ticket = world.renew(ticket, world.oslo, now=now).ticket
    assert now == NOW + 1000 * SECOND


def test_under_sender_only_the_sender_renews(world):
    world.late_open = "sender_only"
    issue = world.issue()
    with pytest.raises(TicketRefused, match="by their sender"):
        world.renew(issue.ticket, world.lima, now=LATE)
    assert world.renew(issue.ticket, world.oslo, now=LATE)


def test_under_never_nobody_renews(world):
    world.late_open = "never"
    issue = world.issue()
    for who in (world.oslo, world.lima):
        with pytest.raises(TicketExpired):
            world.renew(issue.ticket, who, now=LATE)


@pytest.mark.parametrize("revoked", ["ter_oslo", "ter_lima"])
def test_revoked_terminal_neither_renews_nor_is_renewed_for(world, revoked):
    issue = world.issue()
    world.revoked.add(revoked)
    with pytest.raises(TicketRefused):
        world.renew(issue.ticket, world.lima, now=LATE)


# --- the whole table ----------------------------------------------------------------------------------


@given(
    customer=st.sampled_from(["cus_a", "cus_b"]),
    terminal=st.sampled_from(["ter_oslo", "ter_lima"]),
    member=st.booleans(),
    revoked=st.booleans(),
    sender_revoked=st.booleans(),
    late_open=st.sampled_from(["renew", "sender_only", "never"]),
    age=st.integers(0, 1200),
)
def test_renewal_follows_the_table(customer, terminal, member, revoked, sender_revoked, late_open, age):
    mint = Mint(b"t" * 32)
    ticket = mint.issue(NOW, "cus_a", "orders", "ter_oslo", 1, NOW + 1000 * SECOND)
    keys = SecureKey(b"s" * 32).public
    sends = terminal == "ter_oslo"
    allowed = (
        customer == "cus_a"
        and not revoked
        and not sender_revoked
        and age < 1000
        and (late_open == "renew" or (late_open == "sender_only" and sends))
        and (sends or member)
    )
    try:
        renewal = tickets.renew(
            NOW + age * SECOND,
            mint,
            ticket,
            requester=Requester(
                customer=customer, terminal=terminal, keys=keys, member=member, revoked=revoked
            ),
            sender_keys=[] if sender_revoked else [keys],
            late_open=late_open,
        )
    except (TicketExpired, TicketRefused):
        assert not allowed
    else:
        assert allowed
        assert mint.parse(renewal.ticket).audience == ("" if sends else terminal)
