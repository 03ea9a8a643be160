"""Operations on documents."""

from __future__ import annotations

from typing import Annotated, Any

from landbridge.protocol.operations.common import After, Deleted, Limit, Next
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

Collection = Annotated[str, about("Name of the collection.")]
DocumentKey = Annotated[str, about("Key of the document, 1 to 512 printable characters.")]
DocumentHome = Annotated[
    str,
    about(
        "The topic that the document lives with, so that one transaction can write both; empty: none. To "
        "list and to wait, '*' is every topic: a list then leaves out what is damaged."
    ),
]
DocumentValue = Annotated[Any, about("Any JSON value, up to 256 KiB.")]
Version = Annotated[str, about("Changes with every write, and never comes again.")]


class OfDocument(Arguments, frozen=True):
    """Which document."""

    collection: Collection
    key: DocumentKey
    topic: DocumentHome = ""


class DocumentCreate(Arguments, frozen=True):
    """A new document."""

    collection: Collection
    key: DocumentKey
    value: DocumentValue
    topic: DocumentHome = ""


class DocumentUpdate(DocumentCreate, frozen=True, kw_only=True):
    """Another value for a document."""

    version: Annotated[str, about("The version that the document must have.")]


class DocumentDelete(OfDocument, frozen=True, kw_only=True):
    """A document that is to go."""

    version: Annotated[str | None, about("The version that the document must have; None: any.")] = None


class DocumentList(Arguments, frozen=True):
    """Which documents of a collection."""

    collection: Collection
    topic: DocumentHome = ""
    prefix: Annotated[str, about("List only keys that begin with this.")] = ""
    after: After = ""
    limit: Limit = 1000


class DocumentWait(Arguments, frozen=True):
    """Which changes to wait for."""

    collection: Collection
    topic: DocumentHome = ""
    after: Annotated[str, about("The 'after' of the answer before; empty: begin to watch.")] = ""
    within: Annotated[float, about("Seconds to wait for a change, at most 60.")] = 30.0


class DocumentWritten(Result, frozen=True, kw_only=True):
    """A document was written."""

    version: Version


class Document(Result, frozen=True, kw_only=True):
    """A document as it is stored."""

    key: DocumentKey
    version: Version
    written_at: Annotated[int, about("When it was written, in microseconds.")]
    written_by: Annotated[str, about("The subject that wrote it.")]
    value: DocumentValue
    topic: DocumentHome = ""


class DocumentRows(Result, frozen=True, kw_only=True):
    """A page of documents, by key."""

    documents: Annotated[list[Document], about("The documents.")]
    next: Next


class DocumentChange(Result, frozen=True, kw_only=True):
    """A document was written or deleted."""

    key: DocumentKey
    version: Annotated[str | None, about("Its version now; None: it was deleted.")]
    topic: DocumentHome = ""


class DocumentChanges(Result, frozen=True, kw_only=True):
    """Changes of a collection, in order."""

    changes: Annotated[list[DocumentChange], about("The changes, oldest first.")]
    after: Annotated[str, about("Where the next question goes on.")]
    missed: Annotated[bool, about("Changes are missing here: list the collection again.")]


# -- the entries ---------------------------------------------------------------------------------------

_DOCUMENT = "/v1/documents/{collection}/{key}"
_DOCUMENTS = "documents:{collection}"

DOCUMENT_CREATE = operation(
    "document.create", DocumentCreate, DocumentWritten, "POST /v1/documents/{collection}",
    "Create a document; refused where there is one of that key.", scope=_DOCUMENTS, audited=False,
    where="topic:{topic}",
)  # fmt: skip
DOCUMENT_READ = operation(
    "document.read",
    OfDocument,
    Document,
    f"GET {_DOCUMENT}",
    "Read a document.",
    scope=_DOCUMENTS,
    where="topic:{topic}",
)
DOCUMENT_UPDATE = operation(
    "document.update", DocumentUpdate, DocumentWritten, f"PATCH {_DOCUMENT}",
    "Replace a document's value; refused where it has another version than the one given.", scope=_DOCUMENTS,
    audited=False,
    where="topic:{topic}",
)  # fmt: skip
DOCUMENT_DELETE = operation(
    "document.delete", DocumentDelete, Deleted, f"DELETE {_DOCUMENT}", "Delete a document.", scope=_DOCUMENTS,
    audited=False,
    where="topic:{topic}",
)  # fmt: skip
DOCUMENT_LIST = operation(
    "document.list", DocumentList, DocumentRows, "GET /v1/documents/{collection}",
    "List the documents of a collection, by key.", scope=_DOCUMENTS,
    where="topic:{topic}",
)  # fmt: skip
DOCUMENT_WAIT = operation(
    "document.wait", DocumentWait, DocumentChanges, "GET /v1/documents/{collection}/changes",
    "Wait for the next changes of a collection.", scope=_DOCUMENTS,
    where="topic:{topic}",
)  # fmt: skip
