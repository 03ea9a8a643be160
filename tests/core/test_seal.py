import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.trust import seal
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import (
    MAX_MESSAGES,
    Opener,
    Sealer,
    control,
    look,
    open_control,
)
from landbridge.errors import BadRequest, BadSeal, TicketExpired, TicketRefused
from tests.core.crossing import DAY, NOW, SECOND, Crossing


@pytest.fixture
def world():
    return Crossing()


def flipped(frame: bytes, place: int, bit: int = 0) -> bytes:
    changed = bytearray(frame)
    changed[place] ^= 1 << bit
    return bytes(changed)


# --- there and back -----------------------------------------------------------------------------------


def test_sealed_batch_arrives(world):
    frame = world.seal(world.sealer(), b"a batch", sequence=7)
    header = world.look(frame)
    assert (header.source, header.topic, header.epoch, header.sequence) == ("ter_oslo", "orders", 1, 7)
    assert header.meta == b"meta"
    assert world.opener(header).open(header, frame, NOW) == b"a batch"


@given(
    parts=st.lists(st.binary(max_size=300), max_size=5),
    meta=st.binary(max_size=100),
    epoch=st.integers(0, 2**63 - 1),
    sequence=st.integers(0, 2**63 - 1),
)
def test_whatever_is_sealed_is_opened(parts, meta, epoch, sequence):
    world = Crossing()
    sealer = world.sealer()
    for plaintext in (parts, b"".join(parts), memoryview(b"".join(parts))):
        frame = sealer.seal(
            "ter_lima",
            [world.lima.public],
            now=NOW,
            epoch=epoch,
            sequence=sequence,
            meta=meta,
            plaintext=plaintext,
            messages=1,
        )
        header = world.look(frame)
        assert (header.epoch, header.sequence, header.meta) == (epoch, sequence, meta)
        assert world.opener(header).open(header, memoryview(frame), NOW) == b"".join(parts)


def test_transit_sees_nothing_of_what_it_carries(world):
    sealer = world.sealer()
    frame = world.seal(sealer, b"a batch that nobody else may read")
    for secret in (b"a batch", b"orders", b"meta", sealer.seal_id, sealer._ticket, sealer._box):
        assert secret not in frame


def test_one_redeemed_ticket_opens_every_frame_under_it(world):
    sealer = world.sealer()
    frames = [world.seal(sealer, b"%d" % number, sequence=number) for number in range(5)]
    opener = world.opener(world.look(frames[0]))
    assert [opener.open(world.look(frame), frame, NOW) for frame in frames] == [b"0", b"1", b"2", b"3", b"4"]


def test_frame_that_is_days_late_can_still_be_looked_at(world):
    frame = world.seal(world.sealer())
    for days in (-1, 0, 1, 6, 400):
        assert world.look(frame, now=NOW + days * DAY).topic == "orders"
    with pytest.raises(BadSeal, match="days from now"):
        world.look(frame, now=NOW - 2 * DAY)


def test_late_frame_opens_with_a_renewed_ticket(world):
    frame = world.seal(world.sealer())
    late = NOW + 2 * DAY
    header = world.look(frame, now=late)
    with pytest.raises(TicketExpired):
        world.opener(header, now=late)
    renewal = world.renew(header.ticket, world.lima, now=late)
    opener = Opener(world.lima)
    opener.learn(header, world.redeem(renewal.ticket, header.box, now=late), late)
    assert opener.open(header, frame, late) == b"a batch"


# --- keys that change ---------------------------------------------------------------------------------


def test_frame_opens_whichever_of_its_two_keys_the_destination_has(world):
    old, new = (Identity("cus_a", "ter_lima", SecureKey.new()) for _ in range(2))
    sealer = world.sealer()
    keys = [new.public, old.public]
    options = {"now": NOW, "epoch": 1, "sequence": 1, "meta": b"", "plaintext": b"a batch", "messages": 1}
    frame = sealer.seal("ter_lima", keys, **options)
    for world.lima in (old, new):
        header = world.look(frame)
        assert world.opener(header).open(header, frame, NOW) == b"a batch"
        message = control(world.oslo, "ter_lima", keys, kind="ack", plaintext=b"yes", now=NOW)
        opened = open_control(world.lima, "ter_oslo", [world.oslo.public], kind="ack", data=message, now=NOW)
        assert opened == b"yes"


def test_frame_opens_whichever_of_its_two_keys_the_source_has(world):
    frame = world.seal(world.sealer())
    keys = [SecureKey.new().public, world.oslo.public]
    header = look(world.lima, keys, "ter_oslo", frame, NOW)
    assert header.sign == world.oslo.public.sign
    assert world.opener(header).open(header, frame, NOW) == b"a batch"


def test_useless_key_of_the_source_is_passed_over(world):
    frame = world.seal(world.sealer())
    useless = msgspec.structs.replace(SecureKey.new().public, wrap=bytes(32))
    assert look(world.lima, [useless, world.oslo.public], "ter_oslo", frame, NOW).topic == "orders"


def test_key_that_the_registry_has_replaced_signs_nothing_any_more(world):
    """The directory that ``look`` goes by may be older than the registry's answer."""
    frame = world.seal(world.sealer())
    header = world.look(frame)
    release = world.redeem(header.ticket, header.box)
    opener = Opener(world.lima)
    opener.learn(header, msgspec.structs.replace(release, sender_keys=[SecureKey.new().public]), NOW)
    with pytest.raises(BadSeal, match="not signed"):
        opener.open(header, frame, NOW)


# --- frames that were tampered with -------------------------------------------------------------------


@given(st.data())
def test_no_flipped_bit_gets_through(data):
    world = Crossing()
    frame = world.seal(world.sealer())
    header = world.look(frame)
    opener = world.opener(header)
    place = data.draw(st.integers(0, len(frame) - 1))
    changed = flipped(frame, place, data.draw(st.integers(0, 7)))
    if place < header.start:
        with pytest.raises(BadSeal):
            world.look(changed)
    else:
        with pytest.raises(BadSeal):
            opener.open(world.look(changed), changed, NOW)


def test_every_flipped_byte_of_the_header_is_noticed(world):
    frame = world.seal(world.sealer())
    for place in range(world.look(frame).start):
        with pytest.raises(BadSeal):
            world.look(flipped(frame, place))


def test_flipped_bit_of_the_payload_is_noticed(world):
    frame = world.seal(world.sealer())
    opener = world.opener(world.look(frame))
    for place in range(world.look(frame).start, len(frame)):
        changed = flipped(frame, place)
        with pytest.raises(BadSeal, match="not signed"):
            opener.open(world.look(changed), changed, NOW)


def test_frame_that_is_cut_off_or_longer_is_refused(world):
    frame = world.seal(world.sealer())
    header = world.look(frame)
    opener = world.opener(header)
    for length in range(len(frame)):
        with pytest.raises(BadSeal):
            opener.open(world.look(frame[:length]), frame[:length], NOW)
    with pytest.raises(BadSeal):
        opener.open(header, frame + b"x", NOW)


@given(st.binary(max_size=200))
def test_garbage_is_no_frame(data):
    world = Crossing()
    with pytest.raises(BadSeal):
        world.look(data)
    with pytest.raises(BadSeal):
        world.look(struct.pack(">BBI", 1, 1, NOW // DAY) + data)


@pytest.mark.parametrize("size", [0, 27, 28, seal.MAX_HEADER + 1, 2**32 - 1])
def test_size_of_a_header_is_checked_first(world, size):
    with pytest.raises(BadSeal):
        world.look(struct.pack(">BBII", 1, 1, NOW // DAY, size) + bytes(100_000))


def test_payloads_swapped_between_two_frames_are_noticed(world):
    sealer = world.sealer()
    one, other = world.seal(sealer, b"pay 1"), world.seal(sealer, b"pay 9")
    opener = world.opener(world.look(one))
    start, other_start = world.look(one).start, world.look(other).start
    swapped = one[:start] + other[other_start:]
    with pytest.raises(BadSeal, match="not signed"):
        opener.open(world.look(swapped), swapped, NOW)


def test_frame_signed_by_another_terminal_is_refused(world):
    """Rome has a ticket of its own, which is good; it says that it is Oslo."""
    sealer = Sealer(world.rome, world.issue(world.rome), NOW)
    frame = sealer.seal(
        "ter_lima",
        [world.lima.public],
        now=NOW,
        epoch=1,
        sequence=1,
        meta=b"",
        plaintext=b"forged",
        messages=1,
    )
    with pytest.raises(BadSeal):
        world.look(frame)


def test_signature_of_another_terminal_under_a_good_header_is_refused(world):
    """Even whoever knows the pair key and the content key can't sign for the source: here Lima itself, that
    would show others what Oslo never sent."""
    frame = world.seal(world.sealer())
    header = world.look(frame)
    opener = world.opener(header)
    ciphertext = frame[header.start :]
    digest = seal._digest("cus_a", "ter_oslo", "ter_lima", header.inner, ciphertext)
    forged = msgspec.structs.replace(header, signature=world.rome.sign("frame", digest))
    with pytest.raises(BadSeal, match="not signed"):
        opener.open(forged, frame, NOW)
    again = msgspec.structs.replace(header, signature=world.oslo.sign("frame", digest))
    assert opener.open(again, frame, NOW) == b"a batch"


def test_payload_under_another_content_key_is_refused(world):
    """A source may sign nonsense; it still is not taken for a payload."""
    frame = world.seal(world.sealer())
    header = world.look(frame)
    opener = world.opener(header)
    payload = b"p" * 40
    digest = seal._digest("cus_a", "ter_oslo", "ter_lima", header.inner, payload)
    signed = msgspec.structs.replace(header, signature=world.oslo.sign("frame", digest))
    with pytest.raises(BadSeal, match="not of its ticket"):
        opener.open(signed, frame[: header.start] + payload, NOW)


def test_frame_sent_on_to_another_terminal_is_refused(world):
    world.members.add("ter_rome")
    frame = world.seal(world.sealer())
    with pytest.raises(BadSeal):
        look(world.rome, [world.oslo.public], "ter_oslo", frame, NOW)


def test_frame_sealed_anew_for_another_terminal_is_refused(world):
    """Lima opens what is for it and tries to pass it to Rome as Oslo's: it can seal only as itself, and what
    Oslo signed names Lima."""
    frame = world.seal(world.sealer())
    header = world.look(frame)
    outer = msgspec.msgpack.encode([header.inner, header.signature, header.ticket, header.box])
    moved = seal._boxes(
        world.lima, "header", "ter_rome", [world.rome.public], outer, NOW, frame[header.start :]
    )
    with pytest.raises(BadSeal, match="changed on the way"):
        look(world.rome, [world.oslo.public], "ter_oslo", moved, NOW)
    with pytest.raises(BadSeal, match="another terminal"):
        look(world.rome, [world.lima.public], "ter_lima", moved, NOW)


def test_frame_with_another_source_is_refused(world):
    frame = world.seal(world.sealer())
    for keys in ([world.oslo.public], [world.rome.public], [world.oslo.public, world.rome.public]):
        with pytest.raises(BadSeal):
            look(world.lima, keys, "ter_rome", frame, NOW)


def test_frame_of_another_customer_is_refused(world):
    """Even with the same ids and keys."""
    key = SecureKey.new()
    mine, theirs = Identity("cus_a", "ter_lima", key), Identity("cus_b", "ter_lima", key)
    frame = world.sealer().seal(
        "ter_lima",
        [key.public],
        now=NOW,
        epoch=1,
        sequence=1,
        meta=b"",
        plaintext=b"",
        messages=1,
    )
    assert look(mine, [world.oslo.public], "ter_oslo", frame, NOW)
    with pytest.raises(BadSeal):
        look(theirs, [world.oslo.public], "ter_oslo", frame, NOW)


def test_header_that_makes_no_sense_is_refused(world):
    """The pair key says who wrote it, not that it can be trusted to be in shape."""

    def header(inner, *rest):
        data = seal._boxes(
            world.oslo,
            "header",
            "ter_lima",
            [world.lima.public],
            msgspec.msgpack.encode([inner, *rest]),
            NOW,
            b"",
        )
        return world.look(data)

    def inner(**changes):
        fields = {"topic": "t", "seal_id": b"s" * 16, "destination": "ter_lima", "epoch": 1, "sequence": 1}
        return msgspec.msgpack.encode([*(fields | {"counter": 0, "meta": b""} | changes).values()])

    rest = (b"signature", b"ticket", b"box")
    assert header(inner(), *rest).topic == "t"
    for wrong in (
        [inner()],
        [b"", *rest],
        [inner(seal_id=b"short"), *rest],
        [inner(counter=-1), *rest],
        [inner(counter=MAX_MESSAGES), *rest],
        [inner(counter=2**64 - 1), *rest],
        [inner(topic=5), *rest],
        [inner(destination="ter_rome"), *rest],
        [b"\x97\xa1\xff", *rest],
    ):
        with pytest.raises(BadSeal):
            header(*wrong)


# --- what a sealer refuses ----------------------------------------------------------------------------


def test_no_nonce_comes_twice(world):
    """Not under one sealer, and two sealers have two keys, even under the very same ticket."""
    issue = world.issue()
    one, other = Sealer(world.oslo, issue, NOW), Sealer(world.oslo, issue, NOW)
    frames = [world.seal(one, b"same"), world.seal(one, b"same"), world.seal(other, b"same")]
    headers = [world.look(frame) for frame in frames]
    assert [header.counter for header in headers] == [0, 1, 0]
    assert len({frame[header.start :] for frame, header in zip(frames, headers, strict=True)}) == 3
    assert headers[0].box == headers[1].box != headers[2].box
    # What the one has sealed can't be opened with the other's key.
    opener = world.opener(headers[2])
    with pytest.raises(BadSeal):
        opener.open(headers[0], frames[0], NOW)


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_nonces_of_two_counters_differ(one, other):
    cipher = seal._ContentCipher(b"k" * 32)
    assert (cipher._nonce(one) == cipher._nonce(other)) == (one == other)


def test_ticket_is_used_for_a_minute(world):
    sealer = world.sealer()
    assert sealer.usable(NOW + 60 * SECOND - 1)
    world.seal(sealer, now=NOW + 60 * SECOND - 1)
    assert not sealer.usable(NOW + 60 * SECOND)
    with pytest.raises(TicketExpired):
        world.seal(sealer, now=NOW + 60 * SECOND)


def test_next_ticket_is_due_at_half_time(world):
    sealer = world.sealer()
    assert not sealer.due(NOW + 30 * SECOND - 1)
    assert sealer.due(NOW + 30 * SECOND)


def test_short_lived_ticket_is_used_for_less():
    sealer = Crossing(life=5.0).sealer()
    assert sealer.usable(NOW + SECOND - 1)
    assert not sealer.usable(NOW + SECOND)


def test_use_is_counted_by_the_clock_of_the_terminal(world):
    """The registry's may be ten minutes off."""
    sealer = Sealer(world.oslo, world.issue(now=NOW - 600 * SECOND), NOW)
    assert sealer.usable(NOW + 59 * SECOND)
    assert not sealer.usable(NOW + 60 * SECOND)


def sealed(world, sealer, messages):
    return sealer.seal(
        "ter_lima",
        [world.lima.public],
        now=NOW,
        epoch=1,
        sequence=1,
        meta=b"",
        plaintext=b"",
        messages=messages,
    )


def test_ticket_is_used_for_so_many_messages(world):
    sealer = world.sealer()
    sealed(world, sealer, MAX_MESSAGES // 2 - 1)
    assert not sealer.due(NOW)
    sealed(world, sealer, MAX_MESSAGES // 2)
    assert sealer.due(NOW)
    assert sealer.usable(NOW, 1)
    assert not sealer.usable(NOW, 2)
    with pytest.raises(TicketExpired):
        sealed(world, sealer, 2)
    sealed(world, sealer, 1)
    assert not sealer.usable(NOW)
    with pytest.raises(TicketExpired):
        sealed(world, sealer, 1)


def test_batch_above_the_limit_gets_a_ticket_for_itself(world):
    sealer = world.sealer()
    sealed(world, sealer, MAX_MESSAGES + 1)
    assert not sealer.usable(NOW)


def test_counter_never_passes_its_limit(world):
    """Not even where frames have no messages to count."""
    sealer = world.sealer()
    for _ in range(MAX_MESSAGES - 1):
        next(sealer._counters)
    assert world.look(sealed(world, sealer, 0)).counter == MAX_MESSAGES - 1
    for _ in range(2):
        with pytest.raises(TicketExpired):
            sealed(world, sealer, 0)


@pytest.mark.parametrize("count", [0, 3])
def test_destination_has_one_key_or_two(world, count):
    keys = [SecureKey.new().public for _ in range(count)]
    with pytest.raises(BadRequest):
        world.sealer().seal(
            "ter_lima", keys, now=NOW, epoch=1, sequence=1, meta=b"", plaintext=b"", messages=1
        )


def test_meta_that_is_too_large_is_refused(world):
    with pytest.raises(BadRequest):
        world.sealer().seal(
            "ter_lima",
            [world.lima.public],
            now=NOW,
            epoch=1,
            sequence=1,
            meta=bytes(seal.MAX_HEADER),
            plaintext=b"",
            messages=1,
        )


# --- what an opener keeps -----------------------------------------------------------------------------


def test_content_key_is_dropped_when_its_ticket_expires(world):
    frame = world.seal(world.sealer())
    header = world.look(frame)
    # Redeemed late in the ticket's life, by a terminal whose clock is an hour ahead: what counts is what is
    # left.
    ahead = NOW + 3600 * SECOND
    opener = Opener(world.lima)
    opener.learn(header, world.redeem(header.ticket, header.box, now=NOW + 200 * SECOND), ahead)
    end = ahead + 100 * SECOND
    opener.advance(end - 1)
    assert opener.has("ter_oslo", header.seal_id, end - 1)
    assert opener.open(header, frame, end - 1) == b"a batch"
    # It is of no use any more from that moment, and gone with the next advance.
    assert not opener.has("ter_oslo", header.seal_id, end)
    with pytest.raises(TicketExpired):
        opener.open(header, frame, end)
    opener.advance(end)
    assert len(opener) == 0


def test_key_that_was_learned_again_lives_as_long_as_the_newer_ticket(world):
    header = world.look(world.seal(world.sealer()))
    opener = world.opener(header)
    later = NOW + 200 * SECOND
    renewal = world.renew(header.ticket, world.lima, now=later)
    opener.learn(header, world.redeem(renewal.ticket, header.box, now=later), later)
    opener.advance(NOW + 300 * SECOND)
    assert opener.has("ter_oslo", header.seal_id, NOW + 499 * SECOND)
    opener.advance(NOW + 500 * SECOND)
    assert len(opener) == 0


def test_opener_keeps_so_many_keys_and_no_more(world):
    headers = [world.look(world.seal(world.sealer())) for _ in range(4)]
    opener = Opener(world.lima, max_keys=2)
    for header in headers:
        for _ in range(3):
            opener.learn(header, world.redeem(header.ticket, header.box), NOW)
    assert [opener.has("ter_oslo", header.seal_id, NOW) for header in headers] == [False, False, True, True]
    assert len(opener) == 2
    # The one that was learned longest ago goes first; learning it again makes it the newest.
    for header in (headers[2], headers[0]):
        opener.learn(header, world.redeem(header.ticket, header.box), NOW)
    assert [opener.has("ter_oslo", header.seal_id, NOW) for header in headers] == [True, False, True, False]
    opener.advance(NOW + 300 * SECOND)
    assert len(opener) == 0


def test_answer_about_something_else_is_not_learned(world):
    header = world.look(world.seal(world.sealer()))
    release = world.redeem(header.ticket, header.box)
    opener = Opener(world.lima)
    for changes in ({"sender": "ter_rome"}, {"topic": "invoices"}, {"seal_id": b"s" * 16}):
        with pytest.raises(BadSeal, match="another"):
            opener.learn(header, msgspec.structs.replace(release, **changes), NOW)
        # Nor if the header agrees: the key itself is bound to its topic and seal.
        if "sender" not in changes:
            with pytest.raises(BadSeal, match="not wrapped"):
                agreeing = msgspec.structs.replace(header, **changes)
                opener.learn(agreeing, msgspec.structs.replace(release, **changes), NOW)
    assert len(opener) == 0


def test_stolen_ticket_does_not_speak_for_its_owner(world):
    """Rome puts Oslo's ticket and box into a frame of its own: the registry says that they are Oslo's."""
    stolen = world.look(world.seal(world.sealer()))
    sealer = Sealer(world.rome, world.issue(world.rome), NOW)
    sealer._ticket, sealer._box, sealer.seal_id = stolen.ticket, stolen.box, stolen.seal_id
    frame = world.seal(sealer)
    header = look(world.lima, [world.rome.public], "ter_rome", frame, NOW)
    release = world.redeem(header.ticket, header.box)
    with pytest.raises(BadSeal, match="another terminal"):
        Opener(world.lima).learn(header, release, NOW)


def test_box_moved_to_another_topic_is_refused(world):
    """Even where the other topic has the very same key."""
    box = world.look(world.seal(world.sealer())).box
    ticket = world.mint.issue(NOW, "cus_a", "invoices", "ter_oslo", 1, NOW + DAY)
    with pytest.raises(TicketRefused, match="box"):
        world.redeem(world.mint.encode(ticket), box, topic="invoices")


# --- control messages ---------------------------------------------------------------------------------


def ack(world, plaintext=b"stored up to 7"):
    """From Lima to Oslo."""
    return control(world.lima, "ter_oslo", [world.oslo.public], kind="ack", plaintext=plaintext, now=NOW)


def test_control_message_arrives(world):
    data = ack(world)
    assert b"stored" not in data
    opened = open_control(world.oslo, "ter_lima", [world.lima.public], kind="ack", data=data, now=NOW)
    assert opened == b"stored up to 7"


def test_control_message_of_another_kind_source_or_destination_is_refused(world):
    data = ack(world)
    for who, source, keys, kind in (
        (world.oslo, "ter_lima", [world.lima.public], "cancel"),
        (world.oslo, "ter_rome", [world.lima.public], "ack"),
        (world.oslo, "ter_lima", [world.rome.public], "ack"),
        (world.rome, "ter_lima", [world.lima.public], "ack"),
        (world.oslo, "ter_lima", [], "ack"),
    ):
        with pytest.raises(BadSeal):
            open_control(who, source, keys, kind=kind, data=data, now=NOW)


def test_control_message_reflected_to_its_sender_is_refused(world):
    with pytest.raises(BadSeal):
        open_control(world.lima, "ter_oslo", [world.oslo.public], kind="ack", data=ack(world), now=NOW)
    with pytest.raises(BadSeal):
        open_control(world.lima, "ter_lima", [world.lima.public], kind="ack", data=ack(world), now=NOW)


def test_forged_ack_is_refused(world):
    """A transit terminal can't say for the destination that something has arrived."""
    forged = control(world.rome, "ter_oslo", [world.oslo.public], kind="ack", plaintext=b"all", now=NOW)
    with pytest.raises(BadSeal):
        open_control(world.oslo, "ter_lima", [world.lima.public], kind="ack", data=forged, now=NOW)


def test_control_message_does_not_pass_as_data(world):
    """Its text is a good header, and only the label tells them apart."""
    header = world.look(world.seal(world.sealer()))
    text = msgspec.msgpack.encode([header.inner, header.signature, header.ticket, header.box])
    for kind in ("ack", "", "header"):
        data = control(world.oslo, "ter_lima", [world.lima.public], kind=kind, plaintext=text, now=NOW)
        with pytest.raises(BadSeal):
            world.look(data)


def test_data_does_not_pass_as_a_control_message(world):
    frame = world.seal(world.sealer())
    header = frame[: world.look(frame).start]
    for kind in ("ack", "", "header"):
        for data in (frame, header):
            with pytest.raises(BadSeal):
                open_control(world.lima, "ter_oslo", [world.oslo.public], kind=kind, data=data, now=NOW)


def test_every_changed_byte_of_a_control_message_is_noticed(world):
    data = ack(world)
    changes = [flipped(data, place) for place in range(len(data))]
    changes += [data[:length] for length in range(len(data))] + [data + b"x"]
    for changed in changes:
        with pytest.raises(BadSeal):
            open_control(world.oslo, "ter_lima", [world.lima.public], kind="ack", data=changed, now=NOW)
