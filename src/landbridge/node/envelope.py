"""Around a backup: what shows that no byte of it has changed. With a passphrase it is also encrypted.

plain     the content, then its SHA-256
sealed    MAGIC, salt, then pieces of the content under ChaCha20-Poly1305, by a key that scrypt makes of the
          passphrase. The nonce is the piece's number and whether it is the last one, so pieces can't be
          left out, moved or cut off.
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from landbridge.errors import BadBackup, BadRequest

MAGIC = b"landbridge sealed backup 1\n"
SALT, TAG, DIGEST = 16, 16, 32
#: Bytes of a piece.
PIECE = 1 << 20
#: scrypt's cost: 64 MiB and a few tenths of a second for each guess.
COST = 1 << 16


class WrappedFile(Protocol):
    """A file that is being written: ``close`` completes it."""

    def write(self, data: bytes) -> int: ...
    def close(self) -> None: ...


class Content(Protocol):
    """The content of a file. BadBackup is raised where it can't be trusted, at its end at the latest."""

    def read(self, size: int) -> bytes: ...


def wrap(file: BinaryIO, passphrase: str | None) -> WrappedFile:
    return _Plain(file) if passphrase is None else _Sealed(file, passphrase)


def is_sealed(file: BinaryIO) -> bool:
    found = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    return found


def unwrap(file: BinaryIO, passphrase: str | None) -> Content:
    if not is_sealed(file):
        if passphrase is not None:
            raise BadBackup(
                "a passphrase was given, and the file is not encrypted: anybody may have made it",
                hint="if it is the right one, leave out --passphrase-file and LANDBRIDGE_BACKUP_PASSPHRASE",
            )
        return _PlainContent(file)
    if passphrase is None:
        raise BadRequest(
            "the backup is encrypted with a passphrase",
            hint="give --passphrase-file FILE, or set LANDBRIDGE_BACKUP_PASSPHRASE",
        )
    return _SealedContent(file, passphrase)


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.write(self._hash.digest())


class _PlainContent:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._left = os.fstat(file.fileno()).st_size - DIGEST
        if self._left < 0:
            raise BadBackup("the file is too short for a backup")

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        self._hash.update(data)
        if not data and self._file.read() != self._hash.digest():
            raise BadBackup("the file is no backup, or it has changed since it was made")
        return data


def _cipher(passphrase: str, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(Scrypt(salt, length=32, n=COST, r=8, p=1).derive(passphrase.encode()))


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


class _Sealed:
    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        salt = os.urandom(SALT)
        file.write(MAGIC + salt)
        self._file = file
        self._cipher = _cipher(passphrase, salt)
        self._number = 0
        self._kept = bytearray()  #: what is not written yet: it may be the last piece

    def write(self, data: bytes) -> int:
        self._kept += data
        while len(self._kept) > PIECE:
            self._put(PIECE, last=False)
        return len(data)

    def close(self) -> None:
        self._put(len(self._kept), last=True)

    def _put(self, size: int, *, last: bool) -> None:
        piece = bytes(self._kept[:size])
        del self._kept[:size]
        self._file.write(self._cipher.encrypt(_nonce(self._number, last), piece, MAGIC))
        self._number += 1


class _SealedContent:
    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        file.seek(len(MAGIC))
        self._file = file
        self._cipher = _cipher(passphrase, file.read(SALT))
        self._number = 0
        self._ahead = file.read(PIECE + TAG)
        self._kept = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._kept) < size and self._ahead:
            piece, self._ahead = self._ahead, self._file.read(PIECE + TAG)
            try:
                self._kept += self._cipher.decrypt(_nonce(self._number, not self._ahead), piece, MAGIC)
            except InvalidTag:
                why = "the passphrase is another one, or the file has" if not self._number else "the file has"
                raise BadBackup(f"{why} changed since it was made") from None
            self._number += 1
        data = bytes(self._kept[:size])
        del self._kept[:size]
        return data
