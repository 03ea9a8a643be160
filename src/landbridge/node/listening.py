"""Where this machine listens: addresses, and certificates that were given for them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from landbridge.client.context import is_loopback
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


class Endpoint(NamedTuple):
    """A host to listen on, with a certificate (PEM files) where there is one."""

    host: str
    cert: Path | None = None
    key: Path | None = None
    #: The certificate of the authority that has signed it, if that is the registry.
    authority: Path | None = None

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context to listen with. None: in the clear, which is allowed on this machine alone."""
        if (self.cert is None) != (self.key is None):
            raise BadRequest("--tls-cert and --tls-key belong together")
        if self.cert is None:
            if not is_loopback(self.host):
                raise BadRequest(
                    f"on {self.host} tokens and messages would travel in the clear",
                    hint="give --tls-cert and --tls-key, or listen on 127.0.0.1",
                )
            return None
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            tls.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise BadRequest(f"can't use {self.cert} with {self.key}: {reason}") from None
        return tls

    def url(self, scheme: str, port: int) -> str:
        """The URL by which this machine reaches a port of this process."""
        host = self.host if self.cert is None else _name_of(self.cert, self.host)
        return f"{scheme}{'' if self.cert is None else 's'}://{f'[{host}]' if ':' in host else host}:{port}"

    def digest(self) -> bytes:
        """SHA-256 of the certificate (DER), which the proofs of links are bound to; empty without one."""
        if self.cert is None:
            return b""
        from cryptography.hazmat.primitives import hashes

        return _read(self.cert).fingerprint(hashes.SHA256())

    def ca(self) -> str | None:
        """A file with the certificates that clients have to trust; None: the system's. A certificate that has
        signed itself is its own authority."""
        if self.authority is not None or self.cert is None:
            return None if self.authority is None else str(self.authority)
        certificate = _read(self.cert)
        return str(self.cert.resolve()) if certificate.issuer == certificate.subject else None


def _read(file: Path) -> Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(file.read_bytes())


def _name_of(certificate: Path, host: str) -> str:
    """The name that a client has to use so that the certificate is valid for it."""
    from cryptography import x509

    try:
        names = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return host
    known = names.value.get_values_for_type(x509.DNSName)
    known += [str(address) for address in names.value.get_values_for_type(x509.IPAddress)]
    if host in known:
        return host
    # Listening on all addresses, or on one that the certificate doesn't name.
    nearest = [name for name in ("localhost", "127.0.0.1", "::1") if name in known]
    return next(iter(nearest + [name for name in known if "*" not in name]), host)
