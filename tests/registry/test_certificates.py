from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from landbridge.errors import BadRequest, Unauthenticated
from tests.registry.site import Member, Site, Tenant


def request(key: object, names: list[x509.GeneralName] | None = None) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody else")])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()  # type: ignore[arg-type]


def names_of(certificate: str) -> x509.SubjectAlternativeName:
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    return loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


async def test_names_the_terminal_and_its_host(quick: Site, acme: Tenant) -> None:
    await acme.admin.update_terminal(acme.paris.id, address="lbs://paris.example:7420")
    # What the request would like to be is not taken.
    csr = request(ec.generate_private_key(ec.SECP256R1()), [x509.DNSName("rome.example")])
    made = await acme.paris.registry.certificate(csr)
    names = names_of(made.certificate)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"landbridge://{acme.id}/{acme.paris.id}"
    ]
    assert names.get_values_for_type(x509.DNSName) == ["paris.example"]
    loaded = x509.load_pem_x509_certificate(made.certificate.encode())
    usage = loaded.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert made.expires_at == quick.clock() + 30 * 86400 * 1_000_000
    assert not loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("address", ["lbs://192.0.2.7:7420", "lbs://[2001:db8::7]:7420"])
async def test_names_an_ip_address(quick: Site, acme: Tenant, address: str) -> None:
    await acme.admin.update_terminal(acme.paris.id, address=address)
    made = await acme.paris.registry.certificate(request(ed25519.Ed25519PrivateKey.generate()))
    (named,) = names_of(made.certificate).get_values_for_type(x509.IPAddress)
    assert named in (ipaddress.ip_address("192.0.2.7"), ipaddress.ip_address("2001:db8::7"))


async def test_verifies_under_its_own_customers_authority_alone(quick: Site, acme: Tenant) -> None:
    other = await quick.tenant("other")
    await acme.admin.update_terminal(acme.paris.id, address="lbs://paris.example:7420")
    key = ec.generate_private_key(ec.SECP256R1())
    made = await acme.paris.registry.certificate(request(key))
    theirs = await other.paris.registry.certificate(request(key))
    assert made.ca != theirs.ca
    leaf = x509.load_pem_x509_certificate(made.certificate.encode())
    moment = datetime.datetime.fromtimestamp(quick.clock() / 1e6, datetime.UTC)

    def verify(ca: str) -> None:
        trusted = Store([x509.load_pem_x509_certificate(ca.encode())])
        policy = PolicyBuilder().store(trusted).time(moment)
        policy.build_server_verifier(x509.DNSName("paris.example")).verify(leaf, [])

    verify(made.ca)
    with pytest.raises(x509.verification.VerificationError):
        verify(theirs.ca)


async def test_tls_takes_it(acme: Tenant, quick: Site) -> None:
    """Both sides in memory, both with a certificate, as two terminals meet. By today's clock: OpenSSL has no
    other."""
    now = int(datetime.datetime.now(datetime.UTC).timestamp())
    quick.clock.advance(now - quick.clock() / 1e6)
    fresh = await quick.tenant("fresh")
    await fresh.admin.update_terminal(fresh.paris.id, address="lbs://paris.example:7420")
    server = await context(fresh.paris, ssl.PROTOCOL_TLS_SERVER)
    client = await context(fresh.rome, ssl.PROTOCOL_TLS_CLIENT)
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    listener = server.wrap_bio(a_in, a_out, server_side=True)
    dialler = client.wrap_bio(b_in, b_out, server_hostname="paris.example")
    for _ in range(6):
        for side in (dialler, listener):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            a_in.write(b_out.read())
            b_in.write(a_out.read())
    shown = listener.getpeercert(binary_form=True)
    assert shown is not None
    uris = (
        x509.load_der_x509_certificate(shown)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value.get_values_for_type(x509.UniformResourceIdentifier)
    )
    assert uris == [f"landbridge://{fresh.id}/{fresh.rome.id}"]


async def context(member: Member, side: int) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    made = await member.registry.certificate(request(key))
    made_context = ssl.SSLContext(side)
    made_context.minimum_version = ssl.TLSVersion.TLSv1_3
    made_context.verify_mode = ssl.CERT_REQUIRED
    made_context.verify_flags |= ssl.VERIFY_X509_STRICT
    made_context.load_verify_locations(cadata=made.ca)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    load(made_context, made.certificate + pem)
    return made_context


def load(into: ssl.SSLContext, pem: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # OpenSSL reads keys from files only
        file.write(pem)
        file.flush()
        into.load_cert_chain(file.name)


@pytest.mark.parametrize("csr", ["", "nothing", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", "x" * 20_000])
async def test_what_is_no_request(quick: Site, acme: Tenant, csr: str) -> None:
    with pytest.raises(BadRequest):
        await acme.paris.registry.certificate(csr)


async def test_other_kinds_of_keys_and_foreign_signatures(quick: Site, acme: Tenant) -> None:
    with pytest.raises(BadRequest, match="another kind"):
        await acme.paris.registry.certificate(request(rsa.generate_private_key(65537, 2048)))
    with pytest.raises(BadRequest, match="another kind"):
        await acme.paris.registry.certificate(request(ec.generate_private_key(ec.SECP256K1())))
    good = request(ec.generate_private_key(ec.SECP256R1()))
    der = bytearray(x509.load_pem_x509_csr(good.encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    forged = ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    with pytest.raises(BadRequest):
        await acme.paris.registry.certificate(forged)


async def test_none_for_a_revoked_terminal(quick: Site, acme: Tenant) -> None:
    await acme.admin.revoke_terminal(acme.paris.id)
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.certificate(request(ec.generate_private_key(ec.SECP256R1())))
