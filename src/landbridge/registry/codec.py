"""Entities to bytes and back, as MessagePack, and into answers. A member that has a default may be missing in
an older document.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from landbridge.errors import StoreCorrupt

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

encode = msgspec.msgpack.Encoder().encode
replace = msgspec.structs.replace


def decode(kind: type[T], key: str, data: bytes) -> T:
    """Return the entity; StoreCorrupt where the bytes are not one of its kind."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"the registry's {kind.__name__} {key} doesn't decode: {error}",
            hint="restore the registry's data folder from a copy",
        ) from None


def show(kind: type[S], record: msgspec.Struct, **others: Any) -> S:
    """Return an answer that has the members of a record by the same names, and ``others``."""
    shared = {name: getattr(record, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**shared, **others)


def given(request: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return those of the named members that the caller of an update has given."""
    values = ((name, getattr(request, name)) for name in names)
    return {name: value for name, value in values if value is not msgspec.UNSET}
