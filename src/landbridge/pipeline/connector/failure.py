"""The error that a job fails with. Spark passes errors on as text. Landbridge's own errors are found in that
text again, with code and hint; others become one sentence and the source line that raised them."""

from __future__ import annotations

import re
import traceback
from typing import TypeVar

from landbridge import errors
from landbridge.errors import BusError, JobFailed

E = TypeVar("E", bound=BusError)

_ERROR = re.compile(r"landbridge\.errors\.(\w+): (.*)")
_HINT = re.compile(r"^hint: (.*)$", re.MULTILINE)
#: A place in a traceback, and the line after the last place: what was raised.
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_RAISED = re.compile(r"^(?=\S)(?!Traceback )(.+)$", re.MULTILINE)
#: Parts of paths whose code is not the job's author's.
_FOREIGN = re.compile(r"/pyspark/|/py4j/|pyspark\.zip|py4j-|/landbridge/(?:pipeline|cli)/|<frozen ")


def with_hint(error: E) -> E:
    """Add the hint to an error that is about to pass through Spark, so that it is in Spark's text."""
    error.add_note(f"hint: {error.hint}")
    return error


def meaning(error: BaseException) -> BusError | None:
    """Landbridge's error inside of one of Spark's, with its code and hint; None where there is none."""
    if isinstance(error, BusError):
        return error
    text = str(error)
    found = list(_ERROR.finditer(text))
    kind = getattr(errors, found[-1][1], None) if found else None
    if not (isinstance(kind, type) and issubclass(kind, BusError)):
        return None
    hint = _HINT.search(text, found[-1].end())
    return kind(found[-1][2].strip(), hint=None if hint is None else hint[1].strip())


def failure(error: BaseException) -> BusError:
    """What a job has failed with: an error of Landbridge, or JobFailed with one sentence of Spark's or of the
    job's own code, and a note that names the line. A bug inside of Landbridge is raised as it is."""
    known = meaning(error)
    if known is not None:
        return known
    text = str(error)
    from_spark = type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    frames = list(_FRAME.finditer(text))
    if frames:  # The traceback of a worker.
        raised = _RAISED.search(text, frames[-1].end())
        message = raised[1] if raised is not None else text
        places = [(frame[1], int(frame[2])) for frame in frames]
    else:
        message = re.split(r"\n|\s*SQLSTATE: ", text.strip(), maxsplit=1)[0]
        message = re.sub(r"^\[[A-Z_.0-9]+\] ", "", message)
        places = [(each.filename, each.lineno or 0) for each in traceback.extract_tb(error.__traceback__)]
        if not from_spark:
            message = f"{type(error).__name__}: {message}"
    own = [place for place in places if not _FOREIGN.search(place[0])]
    if not own and not frames and not from_spark:
        raise error
    failed = JobFailed(message or type(error).__name__)
    if own:
        failed.add_note("in {}, line {}".format(*own[-1]))
    return failed
