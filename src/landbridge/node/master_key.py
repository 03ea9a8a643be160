"""The master key of a registry: 32 bytes that everything else is sealed under, kept apart from the store."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path

from landbridge.errors import BadRequest

SIZE = 32
VARIABLE = "LANDBRIDGE_MASTER_KEY"
#: In the data folder, where nothing else is said.
FILE = "master.key"


def load(folder: Path, file: Path | None, *, is_new: bool) -> bytes:
    """Read the key from the environment, else from ``file``, else from the data folder. ``is_new``: the
    folder has no registry yet, so a missing key is made."""
    said = os.environ.get(VARIABLE)
    if said and file is None:
        return _decode(said, VARIABLE)
    path = file or folder / FILE
    try:
        if path.stat().st_mode & 0o077:
            raise BadRequest(f"others than its owner can read {path}", hint=f"chmod 600 {path}")
        return _decode(path.read_text(), str(path))
    except FileNotFoundError:
        if not is_new:
            raise BadRequest(
                f"the registry in {folder} was begun with a master key, and {path} is not there",
                hint=f"bring it back, or give it as {VARIABLE}: without it the registry can't be opened; at "
                "one of several nodes, by --secret-file",
            ) from None
        return _make(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None


def _make(path: Path) -> bytes:
    key = os.urandom(SIZE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(key) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadRequest(f"can't write {path}: {error.strerror}") from None
    return key


def _decode(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != SIZE:
        raise BadRequest(f"{where} is not a master key", hint=f"{SIZE} random bytes as base64")
    return key
