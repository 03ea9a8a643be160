import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from landbridge.core.time import SECOND
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import (
    Handshake,
    Identity,
    Proof,
    Proofs,
    SecureKey,
    check_public_keys,
    digest_of,
    verify,
)
from landbridge.core.trust.primitives import fields, wrap
from landbridge.errors import BadRequest, BadSeal, LimitReached, Unauthenticated

NOW = 1_790_000_000 * SECOND


def identity(terminal: str = "ter_oslo", customer: str = "cus_a") -> Identity:
    return Identity(customer, terminal, SecureKey.new())


# --- secure keys --------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32))
def test_secure_key_survives_its_text(seed):
    key = SecureKey(seed)
    assert SecureKey.parse("  " + str(key) + "\n") == key
    assert SecureKey.parse(str(key)).public == key.public


@given(st.data())
def test_mistyped_secure_key_is_refused(data):
    text = str(SecureKey.new())
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=0x250).filter(lambda c: c != text[place]))
    with pytest.raises(BadRequest) as caught:
        SecureKey.parse(text[:place] + other + text[place + 1 :])
    assert caught.value.hint
    assert text[6:20] not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("text", ["", "lbsk1_", "lbsk1_AAAA", "lbsk1_" + "A" * 48, "x" * 54])
def test_other_text_is_no_secure_key(text):
    with pytest.raises(BadRequest):
        SecureKey.parse(text)


def test_secure_key_without_its_prefix_is_refused():
    with pytest.raises(BadRequest):
        SecureKey.parse(str(SecureKey.new()).removeprefix("lbsk1_"))


def test_secret_shows_only_when_it_is_asked_for():
    key = SecureKey.new()
    secret = str(key)[6:]
    oslo = Identity("cus_a", "ter_oslo", key)
    for shown in (repr(key), f"{key}", f"{key:>20}", repr([key]), repr(oslo), f"{oslo}"):
        assert secret not in shown
        assert repr(key._seed)[2:-1] not in shown


def test_public_keys_follow_from_the_secure_key_alone():
    """A terminal enrols with its public keys before it knows its id."""
    key = SecureKey.new()
    assert Identity("a", "b", key).public == Identity("c", "d", key).public == key.public
    assert key.public.sign != key.public.wrap
    assert check_public_keys(key.public) == key.public


@pytest.mark.parametrize("wrong", [b"", b"k" * 31, b"k" * 33, bytes(32), b"\x01" + bytes(31)])
def test_wrapping_key_that_can_not_be_used_is_refused(wrong):
    with pytest.raises(BadRequest):
        check_public_keys(PublicKeys(sign=SecureKey.new().public.sign, wrap=wrong))
    with pytest.raises(BadRequest):
        identity().pair_key(wrong, "a", "b", 1)


def test_signing_key_of_a_wrong_size_is_refused():
    with pytest.raises(BadRequest):
        check_public_keys(PublicKeys(sign=b"short", wrap=SecureKey.new().public.wrap))
    assert not verify(b"short", b"s" * 64, "label")


# --- signatures ---------------------------------------------------------------------------------------

values = st.lists(st.one_of(st.binary(max_size=6), st.text("ab\0", max_size=6)), max_size=4)


@given(values, values)
def test_fields_are_unambiguous(one, other):
    def plain(value):
        return value.encode() if isinstance(value, str) else value

    same = [plain(value) for value in one] == [plain(value) for value in other]
    assert (fields("x", *one) == fields("x", *other)) == same
    assert fields("x", *one) != fields("y", *one)


def test_signature_is_good_for_its_label_and_fields_only():
    oslo = identity()
    signature = oslo.sign("link state", "a", b"b", 3)
    assert verify(oslo.public.sign, signature, "link state", "a", b"b", 3)
    assert not verify(oslo.public.sign, signature, "frame", "a", b"b", 3)
    assert not verify(oslo.public.sign, signature, "link state", "ab", b"", 3)
    assert not verify(oslo.public.sign, signature, "link state", "a", b"b", 4)
    assert not verify(identity().public.sign, signature, "link state", "a", b"b", 3)
    assert not verify(oslo.public.sign, b"", "link state", "a", b"b", 3)


def test_pair_key_is_the_same_at_both_ends_and_nowhere_else():
    oslo, lima, rome = identity("ter_oslo"), identity("ter_lima"), identity("ter_rome")
    key = oslo.pair_key(lima.public.wrap, "ter_oslo", "ter_lima", 20_000)
    assert key == lima.pair_key(oslo.public.wrap, "ter_oslo", "ter_lima", 20_000)
    others = [
        oslo.pair_key(lima.public.wrap, "ter_lima", "ter_oslo", 20_000),
        oslo.pair_key(lima.public.wrap, "ter_oslo", "ter_lima", 20_001),
        oslo.pair_key(rome.public.wrap, "ter_oslo", "ter_lima", 20_000),
        rome.pair_key(lima.public.wrap, "ter_oslo", "ter_lima", 20_000),
    ]
    assert len({key, *others}) == 5
    assert len(key) == 32


def test_wrapped_secret_opens_for_its_terminal_and_purpose_only():
    oslo = identity()
    data = wrap(b"secret", oslo.public.wrap, fields("x"))
    assert oslo.unwrap(data, fields("x")) == b"secret"
    for other, info in ((oslo, fields("y")), (identity(), fields("x"))):
        with pytest.raises(BadSeal):
            other.unwrap(data, info)
    for changed in (b"", data[:-1], data[:40], bytes(32) + data[32:]):
        with pytest.raises(BadSeal):
            oslo.unwrap(changed, fields("x"))


# --- proofs -------------------------------------------------------------------------------------------

OP, BODY = "POST /v1/tickets", b'{"topic":"orders"}'
DIGEST = digest_of(BODY)


def refused(proofs, now, terminal, keys, op, digest, proof) -> str:
    with pytest.raises(Unauthenticated) as caught:
        proofs.check(now, terminal, keys, op, digest, proof)
    return f"{caught.value} {caught.value.hint}"


def test_good_proof_tells_which_keys_were_used():
    oslo, proofs = identity(), Proofs()
    other = SecureKey.new().public
    assert proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW)) == oslo.public
    # While the secure key is being replaced, both are good.
    proof = oslo.proof(OP, BODY, NOW)
    assert proofs.check(NOW, "ter_oslo", [other, oslo.public], OP, DIGEST, proof) == oslo.public


def test_replayed_proof_is_refused():
    oslo, proofs = identity(), Proofs()
    proof = oslo.proof(OP, BODY, NOW)
    proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, proof)
    for later in (0, 1, 29 * SECOND, 30 * SECOND, 31 * SECOND, 3600 * SECOND):
        refused(proofs, NOW + later, "ter_oslo", [oslo.public], OP, DIGEST, proof)


@pytest.mark.parametrize("offset", [-31, 31, -3600, 3600])
def test_stale_proof_is_refused(offset):
    oslo = identity()
    refused(Proofs(), NOW, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW + offset * SECOND))


@pytest.mark.parametrize("offset", [-30, 30])
def test_proof_of_a_clock_that_is_a_little_off_is_good(offset):
    oslo = identity()
    Proofs().check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW + offset * SECOND))


def test_every_wrong_proof_gets_the_same_answer():
    oslo, proofs = identity(), Proofs()
    good = oslo.proof(OP, BODY, NOW)
    replayed = oslo.proof(OP, BODY, NOW)
    proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, replayed)
    keys = [oslo.public]
    late = oslo.proof(OP, BODY, NOW - 60 * SECOND)
    answers = [
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, replayed),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, late),
        refused(proofs, NOW, "ter_oslo", keys, "DELETE /v1/tickets", DIGEST, good),
        refused(proofs, NOW, "ter_oslo", keys, OP, digest_of(BODY + b" "), good),
        refused(proofs, NOW, "ter_rome", keys, OP, DIGEST, good),
        refused(proofs, NOW, "ter_oslo", [identity().public], OP, DIGEST, good),
        refused(proofs, NOW, "ter_nobody", [], OP, DIGEST, good),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, Proof(NOW + 1, good.nonce, good.signature)),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, Proof(NOW, b"n" * 16, good.signature)),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, Proof(NOW, good.nonce, b"")),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, Proof(-1, good.nonce, good.signature)),
        refused(proofs, NOW, "ter_oslo", keys, OP, DIGEST, Proof(10**30, good.nonce, good.signature)),
    ]
    assert len(set(answers)) == 1
    # None of these has used up the good one.
    proofs.check(NOW, "ter_oslo", keys, OP, DIGEST, good)


def test_nobody_can_be_nobody():
    """An unknown terminal is checked against a key whose secret is known: that must not let it in."""
    nobody = Identity("cus_a", "ter_nobody", SecureKey(bytes(32)))
    refused(Proofs(), NOW, "ter_nobody", [], OP, DIGEST, nobody.proof(OP, BODY, NOW))


def test_short_nonce_is_refused():
    oslo = identity()
    for nonce in (b"", b"n" * 15, b"n" * 17):
        signature = oslo.sign("proof", "ter_oslo", OP, NOW, nonce, hashlib.sha256(BODY).digest())
        refused(Proofs(), NOW, "ter_oslo", [oslo.public], OP, DIGEST, Proof(NOW, nonce, signature))
    signature = oslo.sign("proof", "ter_oslo", OP, NOW, b"n" * 16, hashlib.sha256(BODY).digest())
    Proofs().check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, Proof(NOW, b"n" * 16, signature))


def test_nonces_are_forgotten_when_they_can_not_be_fresh():
    oslo, proofs = identity(), Proofs()
    for second in range(0, 300, 10):
        now = NOW + second * SECOND
        proofs.check(now, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, now))
    assert len(proofs) == 7
    ahead = oslo.proof(OP, BODY, NOW + 330 * SECOND)
    proofs.check(NOW + 300 * SECOND, "ter_oslo", [oslo.public], OP, DIGEST, ahead)
    refused(proofs, NOW + 360 * SECOND, "ter_oslo", [oslo.public], OP, DIGEST, ahead)


def test_proof_stays_used_when_the_clock_jumps_ahead_and_back():
    oslo, proofs = identity(), Proofs()
    proof = oslo.proof(OP, BODY, NOW)
    proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, proof)
    ahead = NOW + 600 * SECOND
    proofs.check(ahead, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, ahead))
    refused(proofs, NOW + SECOND, "ter_oslo", [oslo.public], OP, DIGEST, proof)
    proofs.check(NOW + SECOND, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW + SECOND))


def test_proof_from_before_the_start_is_refused():
    """The nonces of the process before are forgotten: whatever it may have seen is not good any more."""
    oslo, proofs = identity(), Proofs(since=NOW)
    refused(proofs, NOW + 1, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW))
    proofs.check(NOW + 1, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW + 1))


def test_one_terminal_can_not_fill_the_memory_of_nonces():
    oslo, rome, proofs = identity(), identity("ter_rome"), Proofs(max_per_terminal=3)
    for _ in range(3):
        proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW))
    with pytest.raises(LimitReached):
        proofs.check(NOW, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, NOW))
    proofs.check(NOW, "ter_rome", [rome.public], OP, DIGEST, rome.proof(OP, BODY, NOW))
    later = NOW + 61 * SECOND
    proofs.check(later, "ter_oslo", [oslo.public], OP, DIGEST, oslo.proof(OP, BODY, later))
    assert len(proofs) == 1


# --- links --------------------------------------------------------------------------------------------

A, B = b"a" * 16, b"b" * 16


LINK = Handshake("cus_a", "ter_oslo", "ter_lima", A, B)


def test_both_sides_of_a_link_prove_themselves():
    oslo, lima = identity("ter_oslo"), identity("ter_lima")
    assert LINK.is_signed("listener", [lima.public], LINK.sign(lima, "listener"))
    assert LINK.is_signed("dialler", [oslo.public], LINK.sign(oslo, "dialler"))


def test_link_signature_is_good_for_one_role_and_one_handshake():
    lima = identity("ter_lima")
    keys = [SecureKey.new().public, lima.public]
    bound = replace(LINK, binding=b"certificate")
    signature = bound.sign(lima, "listener")

    def good(role="listener", **changes):
        return replace(bound, **changes).is_signed(role, keys, signature)

    assert good()
    assert not good(role="dialler")
    assert not good(role="dialler", dialler="ter_lima", listener="ter_oslo", nonce_a=B, nonce_b=A)
    assert not good(customer="cus_b")
    assert not good(dialler="ter_rome")
    assert not good(listener="ter_rome")
    assert not good(nonce_a=B, nonce_b=A)
    assert not good(nonce_b=b"c" * 16)
    assert not good(binding=b"")
    assert not bound.is_signed("listener", [], signature)


def test_terminal_does_not_link_to_itself():
    oslo = identity("ter_oslo")
    itself = replace(LINK, listener="ter_oslo")
    assert not itself.is_signed("listener", [oslo.public], itself.sign(oslo, "listener"))


def test_link_without_a_challenge_is_refused():
    lima = identity("ter_lima")
    for changes in ({"nonce_a": b""}, {"nonce_b": b""}):
        empty = replace(LINK, **changes)
        assert not empty.is_signed("listener", [lima.public], empty.sign(lima, "listener"))
