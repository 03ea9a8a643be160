"""Links over TLS: certificates of the registry's authority, kept and renewed."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509

from landbridge.crossing.certificates import Certificates
from landbridge.errors import RegistryUnreachable
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.waiting import LIMIT


async def take(fleet: Fleet, member: FleetMember, count: int) -> list[object]:
    found: list[object] = []
    async with fleet.attach(member) as bus:
        async for message in bus.subscribe("orders", group="billing"):
            found.append(message.json())
            await message.ack()
            if len(found) == count:
                return found
    raise AssertionError("the subscription ended")


def link_of(one: FleetMember, other: FleetMember) -> ssl.SSLObject:
    found = one.network.peers[other.id]._transport.get_extra_info("ssl_object")
    assert isinstance(found, ssl.SSLObject)
    return found


async def test_two_servers_link_over_tls_and_each_knows_the_other_by_its_certificate(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as bus, asyncio.timeout(LIMIT):
            await bus.publish("orders", {"id": 1}, until="arrived")
            assert await take(fleet, tokyo, 1) == [{"id": 1}]
        for one, other in ((paris, tokyo), (tokyo, paris)):
            tls = link_of(one, other)
            assert tls.version() == "TLSv1.3"
            certificate = tls.getpeercert()
            assert certificate is not None
            uri = f"landbridge://{fleet.customer}/{other.id}"
            assert ("URI", uri) in certificate["subjectAltName"]  # also the dialler has shown its own


async def test_a_client_in_the_clear_is_not_let_in(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris = await fleet.server("paris")
        reader, writer = await asyncio.open_connection("127.0.0.1", paris.port)
        writer.write(b"\x00" * 64)
        async with asyncio.timeout(LIMIT):
            assert b"lb" not in await reader.read()
        writer.close()


async def test_a_certificate_of_another_terminal_makes_no_link(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris = await fleet.server("paris")
        # Tokyo's folder holds Paris's certificate: it is not taken for its own, and another one is asked for.
        (tmp_path / "tokyo").mkdir()
        for name in ("link.pem", "ca.pem"):
            (tmp_path / "tokyo" / name).write_bytes((tmp_path / "paris" / name).read_bytes())
        tokyo = await fleet.server("tokyo")
        assert tokyo.certificates is not None
        assert paris.certificates is not None
        assert tokyo.certificates.digest != paris.certificates.digest
        await until(lambda: tokyo.id in paris.network.peers and paris.id in tokyo.network.peers)
        # Shown all the same, by a terminal that has Tokyo's key: Paris's peer refuses what isn't its name.
        tokyo.network.client_tls = paris.certificates.dialler
        await tokyo.network.links.stop_dialling()
        tokyo.network.peers[paris.id].abort()
        with pytest.raises(Exception, match=r"another terminal's"):
            async with asyncio.timeout(LIMIT):
                await tokyo.network.links._dial(paris.id)


async def test_a_kept_certificate_is_used_again_also_without_the_registry(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris = await fleet.server("paris")
        assert paris.certificates is not None
        before = paris.certificates.digest
        assert (tmp_path / "paris" / "link.pem").stat().st_mode & 0o777 == 0o600
        fleet.registry_up = False
        await fleet.stop(paris)
        await fleet.start(paris)
        assert paris.certificates.digest == before
        # But without either there is nothing to listen with.
        for name in ("link.pem", "ca.pem"):
            os.unlink(tmp_path / "paris" / name)
        with pytest.raises(RegistryUnreachable):
            await paris.certificates.open()


async def test_renewal_changes_what_new_connections_see_and_links_are_made_again(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await until(lambda: tokyo.id in paris.network.peers and paris.id in tokyo.network.peers)
        for member in (paris, tokyo):
            assert member.certificates is not None
            before = member.certificates.digest
            await member.certificates.renew()
            assert member.network.certificate_digest == member.certificates.digest != before
        old = [paris.network.peers[tokyo.id], tokyo.network.peers[paris.id]]
        old[0].abort()
        await until(lambda: paris.network.peers.get(tokyo.id) not in (None, old[0]))
        await until(lambda: tokyo.network.peers.get(paris.id) not in (None, old[1]))


async def test_it_is_renewed_before_it_ends(tmp_path: Path) -> None:
    async with Fleet(tls=tmp_path) as fleet:
        paris = await fleet.server("paris")
        assert paris.certificates is not None
        pem = (tmp_path / "paris" / "link.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate(pem)
        ends = certificate.not_valid_after_utc.timestamp() * 1e6
        assert time.time() * 1e6 < paris.certificates.renew_at < ends
        # A terminal whose clock says that it is due asks at once.
        late = Certificates(
            tmp_path / "paris", fleet.customer, paris.id, paris.certificates._authority, lambda: int(ends) - 1
        )
        await late.open()
        late.use(paris.network)
        await until(lambda: (tmp_path / "paris" / "link.pem").read_bytes() != pem)
        await late.close()
