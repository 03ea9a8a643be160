"""What a job fails with. Spark passes errors on as text: ours are said so that they can be found in it again,
with code and hint; others become one sentence and the line that they came from."""

from __future__ import annotations

import re
import traceback
from typing import TypeVar

from landbridge import errors
from landbridge.errors import BusError, JobFailed

E = TypeVar("E", bound=BusError)

_ERROR = re.compile(r"landbridge\.errors\.(\w+): (.*)")
_HINT = re.compile(r"^hint: (.*)$", re.MULTILINE)


def with_hint(error: E) -> E:
    """An error that is about to go through Spark: its hint is in what Spark says, too."""
    error.add_note(f"hint: {error.hint}")
    return error


def meaning(error: BaseException) -> BusError | None:
    """The error of ours inside of one of Spark's, which has it as text, with its code and its hint."""
    if isinstance(error, BusError):
        return error
    text = str(error)
    found = list(_ERROR.finditer(text))
    if not found:
        return None
    name, message = found[-1].groups()
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, BusError)):
        return None
    hint = _HINT.search(text, found[-1].end())
    return kind(message.strip(), hint=None if hint is None else hint[1].strip())


#: A place in a traceback, and after the last one what was raised.
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_RAISED = re.compile(r"^(?=\S)(?!Traceback )(.+)$", re.MULTILINE)
#: Parts of a path that are not of whoever wrote the job.
_OTHERS = (
    "/pyspark/",
    "/py4j/",
    "pyspark.zip",
    "py4j-",
    "/landbridge/pipeline/",
    "/landbridge/cli/",
    "<frozen ",
)


def failure(error: BaseException) -> BusError:
    """What a job has failed with: the error of ours that it is, or what Spark or the job's own code says, in
    one sentence and with the line of that code. An error inside of Landbridge is raised as it is."""
    known = meaning(error)
    if known is not None:
        return known
    text = str(error)
    frames = list(_FRAME.finditer(text))
    if frames:  # of a worker
        raised = _RAISED.search(text, frames[-1].end())
        said = raised[1] if raised is not None else text
        places = [(frame[1], int(frame[2])) for frame in frames]
    else:
        said = re.split(r"\n|\s*SQLSTATE: ", text.strip(), maxsplit=1)[0]
        said = re.sub(r"^\[[A-Z_.0-9]+\] ", "", said)
        places = [(each.filename, each.lineno or 0) for each in traceback.extract_tb(error.__traceback__)]
        if not _is_sparks(error):
            said = f"{type(error).__name__}: {said}"
    own = [place for place in places if not any(part in place[0] for part in _OTHERS)]
    if not own and not frames and not _is_sparks(error):
        raise error
    failed = JobFailed(said or type(error).__name__)
    if own:
        failed.add_note("in {}, line {}".format(*own[-1]))
    return failed


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
