"""Entities to bytes and back, as MessagePack: a newer member with a default is read by older documents
too.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from landbridge.errors import StoreCorrupt

T = TypeVar("T")

encode = msgspec.msgpack.Encoder().encode
replace = msgspec.structs.replace


def decode(kind: type[T], key: str, data: bytes) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"the registry's {kind.__name__.lower()} {key} doesn't decode: {error}",
            hint="restore the registry's data folder from a copy",
        ) from None
