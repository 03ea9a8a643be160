"""What rules see of a message: its payload as a JSON document, its key and its headers as text."""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.core.log.batch import HeaderValue

#: Bytes of a payload that is read as a document. Of a larger one, rules see key and headers alone.
LARGEST_DOCUMENT = 1 << 20
#: How deep arrays and objects of a document may be nested.
DEEPEST_DOCUMENT = 100
#: The header that holds the attribute ``datacontenttype`` of an event; others are in ``ce-NAME``.
CONTENT_TYPE = "content-type"

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode


class MessageContent:
    """One message, as rules see it."""

    __slots__ = ("document", "headers", "key", "payload", "unreadable")

    def __init__(
        self, payload: bytes, key: str | None, headers: dict[str, str], document: Any, unreadable: str
    ) -> None:
        #: The bytes of the payload, for regular expressions.
        self.payload = payload
        #: None: the message has no key.
        self.key = key
        self.headers = headers
        #: The payload as JSON; None where it can't be read.
        self.document = document
        #: Why the payload can't be read as a document; "" = it is read, or nobody asks for it.
        self.unreadable = unreadable


def content_of(payload: bytes, key: bytes = b"", headers: bytes = b"") -> MessageContent:
    """The content of a message: ``headers`` are encoded as in a batch."""
    document, unreadable = document_of(payload)
    return MessageContent(payload, key_text(key), header_texts(headers), document, unreadable)


def document_of(payload: bytes) -> tuple[Any, str]:
    """The payload as JSON and "", or None and the reason why rules can't read it."""
    if len(payload) > LARGEST_DOCUMENT:
        return None, f"the payload has {len(payload):,} bytes, rules read up to {LARGEST_DOCUMENT:,}"
    try:
        document = _decode_json(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"the payload is not JSON: {error}" if payload else "the payload is empty"
    except RecursionError:
        return None, f"the payload is nested deeper than {DEEPEST_DOCUMENT} levels"
    # A document that is too deep has at least so many brackets; most documents have fewer.
    if payload.count(b"{") + payload.count(b"[") > DEEPEST_DOCUMENT and is_deeper(document):
        return None, f"the payload is nested deeper than {DEEPEST_DOCUMENT} levels"
    return document, ""


def is_deeper(document: Any, levels: int = DEEPEST_DOCUMENT) -> bool:
    """Are arrays and objects of a document nested deeper than so many levels?"""
    level = [document]
    for _ in range(levels):
        below: list[Any] = []
        for each in level:
            if type(each) is dict:
                below += [value for value in each.values() if type(value) in (dict, list)]
            elif type(each) is list:
                below += [value for value in each if type(value) in (dict, list)]
        if not below:
            return False
        level = below
    return True


def key_text(key: bytes) -> str | None:
    # Bytes that are no UTF-8 become halves of surrogate pairs, which the text of no rule has.
    return key.decode(errors="surrogateescape") if key else None


def header_texts(raw: bytes) -> dict[str, str]:
    """Headers as text: numbers and booleans as in JSON. So a terminal and Spark, where a header is bytes,
    agree."""
    if not raw:
        return {}
    return {name: header_text(value) for name, value in _decode_map(raw).items()}


def header_text(value: HeaderValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return _encode_json(value).decode()


def attribute_header(name: str) -> str:
    """The header that holds an attribute of a CloudEvent."""
    return CONTENT_TYPE if name == "datacontenttype" else f"ce-{name}"
