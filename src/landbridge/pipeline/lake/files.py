"""The files of a lake: on a disk of this machine, or wherever Hadoop's file systems reach.

Two properties decide what a lake can promise. ``create`` makes a whole file or none and never replaces one,
so that one of two writers gets the number. And what ``create`` and ``move`` have done when they return
survives a power cut, because Spark takes a micro-batch for done soon after.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from landbridge.errors import BadOption, StoreFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FoundFile(NamedTuple):
    #: Relative to the root.
    path: str
    bytes: int
    #: Microseconds since 1970.
    changed_at: int


class Files(Protocol):
    """Paths are relative to the root. Folders are made where they are needed."""

    #: The root as Spark is told it.
    url: str

    def names(self, folder: str) -> list[str]:
        """What is directly inside of a folder; an empty list if there is no such folder."""

    def below(self, folder: str, suffix: str) -> list[FoundFile]:
        """Every visible file below a folder whose name ends with the suffix. A file that is removed meanwhile
        may be left out."""

    def changed_at(self, path: str) -> int:
        """When a file or folder itself was changed, in microseconds since 1970. Raises FileNotFoundError."""

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def create(self, path: str, data: bytes) -> bool:
        """Returns False if there is such a file already."""

    def move(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Move each first path to the second one, where there is no file yet."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and folders with all that is in them. Missing ones are ignored."""

    def exists(self, path: str) -> bool: ...


def files_at(spark: SparkSession, path: str) -> Files:
    """The files of a folder or URL, as Hadoop understands it."""
    if not path:
        raise BadOption("the lake has no path", hint="a folder, or a URL such as hdfs://host/lake")
    hadoop = HadoopFiles(spark, path)
    return LocalFiles(hadoop.local) if hadoop.local is not None else hadoop


class LocalFiles:
    """Without Hadoop, whose renames on a local disk replace what is there."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self.url = f"file:{root}"

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._root / folder)
        except FileNotFoundError:
            return []

    def below(self, folder: str, suffix: str) -> list[FoundFile]:
        found = []
        # pathlib's walk fails where another process removes a folder meanwhile; os.walk doesn't.
        for folder_path, _, names in os.walk(self._root / folder):
            for name in names:
                if name.endswith(suffix) and not name.startswith("."):
                    path = Path(folder_path, name)
                    try:
                        stat = path.stat()
                    except FileNotFoundError:
                        continue
                    relative = str(path.relative_to(self._root))
                    found.append(FoundFile(relative, stat.st_size, stat.st_mtime_ns // 1000))
        return sorted(found)

    def changed_at(self, path: str) -> int:
        return (self._root / path).stat().st_mtime_ns // 1000

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        self._make(target.parent)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # A rename would replace an existing file; a link doesn't.
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        _sync(target.parent)
        return True

    def move(self, pairs: Sequence[tuple[str, str]]) -> None:
        for old, new in pairs:
            _sync(self._root / old)  # Spark has written the file, and not waited for the disk.
            target = self._root / new
            self._make(target.parent)
            os.rename(self._root / old, target)
        for folder in {(self._root / new).parent for _, new in pairs}:
            _sync(folder)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            target = self._root / path
            try:
                target.unlink(missing_ok=True)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(target, ignore_errors=True)

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it, and wait until each one is on the disk."""
        if not folder.exists():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """Through Spark's JVM. A rename that doesn't replace is atomic in HDFS and in stores that behave like
    it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        if jvm is None:
            raise BadOption("a lake needs a session of its own, not one by Spark Connect")
        self._hadoop = jvm.org.apache.hadoop.fs
        conf = spark._jsc.hadoopConfiguration()
        #: An empty array: the options of a rename that replaces nothing.
        gateway: Any = spark.sparkContext._gateway
        self._no_options = gateway.new_array(self._hadoop.Options.Rename, 0)
        with _errors_of_java(path):
            root = self._hadoop.Path(path)
            self._system = root.getFileSystem(conf)
            root = self._system.makeQualified(root)
            self._context = self._hadoop.FileContext.getFileContext(root.toUri(), conf)
        self.url: str = root.toString()
        #: The folder, if it is on this machine.
        self.local: str | None = str(root.toUri().getPath()) if root.toUri().getScheme() == "file" else None

    def _at(self, path: str) -> Any:
        return self._hadoop.Path(f"{self.url}/{path}")

    def names(self, folder: str) -> list[str]:
        try:
            with _errors_of_java(folder):
                return [each.getPath().getName() for each in self._system.listStatus(self._at(folder))]
        except FileNotFoundError:
            return []

    def below(self, folder: str, suffix: str) -> list[FoundFile]:
        found = []
        try:
            with _errors_of_java(folder):
                listing = self._system.listFiles(self._at(folder), True)
                while listing.hasNext():
                    each = listing.next()
                    name = each.getPath().getName()
                    if name.endswith(suffix) and not name.startswith("."):
                        relative = each.getPath().toString().removeprefix(self.url).lstrip("/")
                        found.append(FoundFile(relative, each.getLen(), 1000 * each.getModificationTime()))
        except FileNotFoundError:
            pass
        return sorted(found)

    def changed_at(self, path: str) -> int:
        with _errors_of_java(path):
            return 1000 * int(self._system.getFileStatus(self._at(path)).getModificationTime())

    def read(self, path: str) -> bytes:
        with _errors_of_java(path):
            stream = self._system.open(self._at(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def exists(self, path: str) -> bool:
        with _errors_of_java(path):
            return bool(self._system.exists(self._at(path)))

    def create(self, path: str, data: bytes) -> bool:
        target = self._at(path)
        draft = self._hadoop.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        with _errors_of_java(path):
            stream = self._system.create(draft, False)
            stream.write(data)
            stream.hsync()
            stream.close()
            try:
                self._context.rename(draft, target, self._no_options)
            except Exception as error:
                if self._system.exists(target):
                    self._system.delete(draft, False)
                    return False
                raise StoreFailed(f"{path} can't be created: {_first_line(error)}") from None
        return True

    def move(self, pairs: Sequence[tuple[str, str]]) -> None:
        for old, new in pairs:
            target = self._at(new)
            with _errors_of_java(new):
                self._system.mkdirs(target.getParent())
                if not self._system.rename(self._at(old), target):
                    raise StoreFailed(f"{old} can't be moved to {new}")

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with _errors_of_java(path):
                self._system.delete(self._at(path), True)


@contextmanager
def _errors_of_java(path: str) -> Iterator[None]:
    """Raise Java's errors as Python's."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
            raise FileNotFoundError(path) from None
        raise StoreFailed(f"{path}: {_first_line(error)}", hint="is the lake's file system there?") from None


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString()).splitlines()[0]
