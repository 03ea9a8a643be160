"""The certificate authority of a customer: makes the certificates that its terminals show each other.

A certificate says who a terminal is (URI SAN) and where it listens (DNS or IP SAN). Only the public key is
taken from a terminal's request: its names come from the registry.
"""

from __future__ import annotations

import datetime
import ipaddress
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

#: Seconds that a certificate begins in the past, for terminals whose clocks are behind.
_BEFORE = 300
_CA_LIFE = 10 * 365 * 86400.0
_LONGEST_CSR = 16 * 1024
_CURVES = (ec.SECP256R1, ec.SECP384R1)


def new(customer: str, now: int) -> tuple[str, bytes]:
    """Make an authority: returns its certificate (PEM) and private key (PKCS#8). P-256 works with every TLS
    library."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(customer, "Landbridge CA")
    certificate = (
        _builder(name, name, key.public_key(), now, _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), secret


def certify(
    ca_pem: str,
    ca_key: bytes,
    csr_pem: str,
    *,
    customer: str,
    terminal: str,
    address: str,
    now: int,
    life: float,
) -> tuple[str, int]:
    """Make a terminal's certificate for the key of its request: returns it (PEM) and when it expires."""
    public = _requested_key(csr_pem)
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    key = load_der_private_key(ca_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity_uri(customer, terminal))]
    names += _host_names(address)
    ca_key_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_key_id)
    certificate = (
        _builder(_name(customer, terminal), ca.subject, public, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(key, hashes.SHA256())
    )
    expires_at = int(certificate.not_valid_after_utc.timestamp()) * SECOND
    return certificate.public_bytes(Encoding.PEM).decode(), expires_at


def identity_uri(customer: str, terminal: str) -> str:
    """Return the URI that names a terminal in its certificate."""
    return f"landbridge://{customer}/{terminal}"


def _requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey:
    hint = "a PEM request with a key of P-256, P-384 or Ed25519"
    if len(csr_pem) > _LONGEST_CSR:
        raise BadRequest(f"a certificate request of {len(csr_pem)} characters", hint=hint)
    try:
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        is_signed = csr.is_signature_valid
        public = csr.public_key()
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise BadRequest("that is not a certificate request", hint=hint) from None
    if not is_signed:
        raise BadRequest("a certificate request that its own key has not signed", hint=hint)
    if isinstance(public, ed25519.Ed25519PublicKey):
        return public
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, _CURVES):
        return public
    raise BadRequest("a certificate request with a key of another kind", hint=hint)


def _host_names(address: str) -> list[x509.GeneralName]:
    """Names for the host of an address, which was checked when it was given."""
    host = urlsplit(address).hostname if address else None
    if not host:
        return []
    try:
        return [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [x509.DNSName(host)]


def _name(customer: str, common: str) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: customer, NameOID.COMMON_NAME: common}
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts.items()])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
    now: int,
    life: float,
) -> x509.CertificateBuilder:
    moment = datetime.datetime.fromtimestamp(now // SECOND, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - datetime.timedelta(seconds=_BEFORE))
        .not_valid_after(moment + datetime.timedelta(seconds=life))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
