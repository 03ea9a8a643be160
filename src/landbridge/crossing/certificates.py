"""The certificate under which a terminal listens and dials. The registry's authority makes it, for a key that
is made here and never leaves; both are kept beside the terminal's data and renewed long before they end.

A link checks which terminal a certificate names (Peer), which says more than a host's name would. So links
may be dialled by any name or address.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from landbridge.client.registry_documents import Certificate
from landbridge.core.time import SECOND
from landbridge.crossing.ground import Ground
from landbridge.errors import BusError

log = structlog.get_logger("landbridge.certificates")

#: A certificate is renewed when this part of its life is over.
RENEW_AFTER = 2 / 3
#: Seconds until the registry is asked again when a renewal has failed, and between two looks at the clock.
AGAIN = 60.0
#: Key and certificate in one file, so that they are replaced in one step.
OWN, CA = "link.pem", "ca.pem"


class CertificateIssuer(Protocol):
    """What is asked of the registry."""

    async def certificate(self, csr: str) -> Certificate: ...


class Certificates:
    """``folder`` is for these files alone. ``clock``: microseconds since 1970."""

    def __init__(
        self,
        folder: Path,
        customer: str,
        terminal: str,
        authority: CertificateIssuer,
        clock: Callable[[], int],
    ) -> None:
        #: For connections that are accepted. It asks for a certificate but doesn't insist on one: programs
        #: show a token instead, and terminals a proof.
        self.listener = _context(ssl.PROTOCOL_TLS_SERVER)
        self.listener.verify_mode = ssl.CERT_OPTIONAL
        #: For links that are dialled.
        self.dialler = _context(ssl.PROTOCOL_TLS_CLIENT)
        self.dialler.check_hostname = False
        self.dialler.verify_mode = ssl.CERT_REQUIRED
        #: SHA-256 of the certificate (DER): binds the proofs of a link to it. Empty before open().
        self.digest = b""
        #: When the next certificate is due, and when this one ends, microseconds.
        self.renew_at = self.ends_at = 0
        self._folder = folder
        self._uri = f"landbridge://{customer}/{terminal}"
        self._authority = authority
        self._clock = clock
        self._ground: Ground | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ca_file(self) -> Path:
        """What programs trust to connect to this terminal."""
        return self._folder / CA

    @property
    def own_file(self) -> Path:
        return self._folder / OWN

    async def open(self) -> None:
        """Load the certificate that is kept, or ask the registry for one. Raises the registry's error if
        there is neither: a terminal off loopback can't listen without one."""
        found = await asyncio.to_thread(self._kept)
        if found is None:
            await self.renew()
        else:
            self._take(found)

    def use(self, ground: Ground) -> None:
        """Use the certificate for this terminal's links from now on, and renew it in time."""
        self._ground = ground
        ground.client_tls = self.dialler
        self._tell(ground)
        self._task = asyncio.ensure_future(self._renew_in_time())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def renew(self) -> None:
        """Make a new key and get a certificate for it. Open connections stay as they are."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        csr = request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
        answer = await self._authority.certificate(csr)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        await asyncio.to_thread(self._keep, secret + answer.certificate.encode(), answer.ca.encode())
        self._take(x509.load_pem_x509_certificate(answer.certificate.encode()))
        log.info("certificate", expires_at=str(answer.expires_at))

    async def _renew_in_time(self) -> None:
        while True:
            wait = (self.renew_at - self._clock()) / SECOND
            # In steps: a machine that was suspended, or whose clock was set, is late by a minute at most.
            await asyncio.sleep(min(max(wait, 0.0), AGAIN))
            if self._clock() < self.renew_at:
                continue
            try:
                await self.renew()
            except (BusError, OSError) as error:
                log.warning("the certificate can't be renewed yet", detail=str(error))
            # Also after a renewal: if the clock is wrong, the new certificate may be due at once.
            await asyncio.sleep(AGAIN)

    def _take(self, certificate: x509.Certificate) -> None:
        for context in (self.listener, self.dialler):
            context.load_cert_chain(self.own_file)
            context.load_verify_locations(self.ca_file)
        self.digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
        began, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        self.renew_at = int((began + (ends - began) * RENEW_AFTER).timestamp() * SECOND)
        self.ends_at = int(ends.timestamp() * SECOND)
        if self._ground is not None:
            self._tell(self._ground)

    def _tell(self, ground: Ground) -> None:
        ground.certificate_digest, ground.certificate_ends_at = self.digest, self.ends_at

    # -- the files ---------------------------------------------------------------------------------

    def _kept(self) -> x509.Certificate | None:
        """The certificate on disk, if it is this terminal's and has not expired."""
        try:
            certificate = x509.load_pem_x509_certificate(self.own_file.read_bytes())
            ca = x509.load_pem_x509_certificate(self.ca_file.read_bytes())
            certificate.verify_directly_issued_by(ca)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return None
        if self._uri not in names.get_values_for_type(x509.UniformResourceIdentifier):
            return None
        is_good = certificate.not_valid_after_utc.timestamp() * SECOND > self._clock()
        return certificate if is_good else None

    def _keep(self, own: bytes, ca: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, data in ((self.ca_file, ca), (self.own_file, own)):
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(path)


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
