"""Read access to the folder of one allocation.

Paths are resolved here step by step, links included, and never by the kernel alone: a link that leads out of the
folder or to secrets is refused.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason, invalid_request, not_found
from wharf.contract.model.times import SECOND
from wharf.contract.wire.allocations.messages import AllocFileInfo
from wharf.node.log_folder import LogFolder, NotRegularFile, open_regular_file

T = TypeVar("T")

LOGS_PATH: Final = "alloc/logs"
"""The folder of the logs in the folder of an allocation."""
MAX_LINKS: Final = 40
"""Limit of links on one path; protects against links that lead in a circle."""
MAX_STEPS: Final = 200
"""Limit of the names on one path, with those of its links. Each is an open folder, and the node agent can open 1,024 files."""
MAX_LISTED_ENTRIES: Final = 50_000
"""Limit of the entries of a folder that is listed; protects the node agent from a task that fills a folder."""
LIST_SLICE: Final = 200
"""Entries that are read before other tasks of the event loop may continue."""
CONTENT_SAMPLE_BYTES: Final = 512
"""How much of a file is read to detect its content type."""
# Below each task's folder. Their entries can be listed, but not read.
SECRET_FOLDERS: Final = ("secrets", "private")
PATH_ESCAPES_MESSAGE: Final = "Path escapes the alloc directory"
_FOLDER_OPEN_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FIRST_TIME_S: Final = -62_135_596_800
_LAST_TIME_S: Final = 253_402_300_799
"""The first and the last second of the calendar. A task can give its files any time."""


class _ResolvedPath(NamedTuple):
    """A path of which all links were followed: an entry `name` in the open folder `parent`."""

    parent: int  # The descriptor of the folder that contains it.
    name: str  # Empty for the root itself.
    steps: tuple[str, ...]  # Its path below the root, without links.


class ReadOnlyFolder:
    """Read access to the folder of one allocation. Paths that lead out of it are refused."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def iter_entries(self, path: str) -> Generator[list[AllocFileInfo], None, None]:
        """Yield the entries of a folder with size, mode and type, sorted by name, in lists of up to `LIST_SLICE`.

        Reading one list takes a few milliseconds. Raises `Refusal`, also if the folder has more than `MAX_LISTED_ENTRIES`.
        """
        with self._resolve(path) as resolved:
            descriptor = self._open_folder(resolved, path)
            try:
                with os.scandir(descriptor) as entries:
                    names = [entry.name for entry in islice(entries, MAX_LISTED_ENTRIES + 1)]
                if len(names) > MAX_LISTED_ENTRIES:
                    raise invalid_request(
                        f'folder "{path[:500]}" has more than {MAX_LISTED_ENTRIES} entries, too many for a list: '
                        "list a folder in it, or run ls in the task with `wharf alloc exec`"
                    )
                names.sort()
                for first in range(0, len(names), LIST_SLICE):
                    infos = []
                    for name in names[first : first + LIST_SLICE]:
                        with contextlib.suppress(FileNotFoundError):  # It was deleted meanwhile.
                            infos.append(_build_info(name, os.stat(name, dir_fd=descriptor, follow_symlinks=False)))
                    yield infos
            finally:
                os.close(descriptor)

    def read_info(self, path: str) -> AllocFileInfo:
        """Return size, mode and content type of one file or folder. Raises `Refusal`.

        The content of secret files is not read to detect their type.
        """
        if not path:
            raise invalid_request("must provide a file name")
        with self._resolve(path) as resolved:
            if not resolved.name:
                return _build_info("/", os.fstat(resolved.parent), "application/octet-stream")
            info = _refuse_if_missing(
                path, lambda: os.stat(resolved.name, dir_fd=resolved.parent, follow_symlinks=False)
            )
            content_type = "application/octet-stream"
            if stat.S_ISREG(info.st_mode) and not _is_secret(resolved.steps):
                with contextlib.suppress(NotRegularFile):  # It was replaced meanwhile.
                    descriptor = _refuse_if_missing(
                        path, lambda: open_regular_file(resolved.name, os.O_RDONLY, folder=resolved.parent)
                    )
                    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
                        content_type = detect_content_type(file.read(CONTENT_SAMPLE_BYTES), resolved.name)
            return _build_info(resolved.name, info, content_type)

    def open_file(self, path: str) -> int:
        """Open a regular file that is not secret. Return its descriptor, which the caller closes. Raises `Refusal`."""
        if not path:
            raise invalid_request("must provide a file name")
        with self._resolve(path) as resolved:
            if _is_secret(resolved.steps):
                text = f"Reading secret file prohibited: {path}"
                raise Refusal(RefusalCode.FORBIDDEN, text, RefusalReason.SECRET_FILE)
            if not resolved.name:
                raise invalid_request(f'file "{path}" is a directory')
            try:
                return _refuse_if_missing(
                    path, lambda: open_regular_file(resolved.name, os.O_RDONLY, folder=resolved.parent)
                )
            except NotRegularFile as error:
                kind = "a directory" if error.is_folder else "not a regular file"
                raise invalid_request(f'file "{path[:500]}" is {kind}') from None

    def resolve(self, path: str) -> str:
        """Return the path below the folder without links, also of a file that does not exist. Raises `Refusal`.

        A link that leads out of the folder is refused. The result is valid while nobody can change the folder.
        """
        try:
            with self._resolve(path) as resolved:
                return "/".join(resolved.steps)
        except Refusal as refusal:
            if refusal.code is RefusalCode.NOT_FOUND:
                return "/".join(_split_path(path))
            raise

    def open_log_folder(self) -> LogFolder:
        """Return the open folder of the logs, which the caller closes. It may not exist yet. Raises `Refusal`.

        Links are refused: only a task can have put them there.
        """
        folder = LogFolder(self._root / LOGS_PATH)
        try:
            folder.open()
        except FileNotFoundError:
            if not self._root.is_dir():
                raise not_found("the allocation's files are gone from its node") from None
        except (NotADirectoryError, OSError) as error:
            raise invalid_request(
                f"{LOGS_PATH} of the allocation is not a folder ({error.strerror}): a task has replaced it; restart the "
                "task to have it created again"
            ) from None
        return folder

    def _open_folder(self, resolved: _ResolvedPath, path: str) -> int:
        """Open the folder at a resolved path and return its descriptor. Raises `Refusal`.

        `path` is the original path, for error messages.
        """
        if not resolved.name:
            return os.dup(resolved.parent)
        try:
            opened = _refuse_if_missing(
                path, lambda: os.open(resolved.name, _FOLDER_OPEN_FLAGS, dir_fd=resolved.parent)
            )
        except NotADirectoryError:
            raise invalid_request(f'file "{path}" is not a directory') from None
        return opened

    @contextlib.contextmanager
    def _resolve(self, path: str) -> Iterator[_ResolvedPath]:
        """Resolve a path, links included, and yield the result. Raises `Refusal`.

        The folders on the way stay open inside the `with` block and are closed afterwards.
        """
        if "\0" in path:
            raise invalid_request("a path must not contain a zero byte")
        try:
            descriptors = [os.open(self._root, _FOLDER_OPEN_FLAGS)]
        except FileNotFoundError:
            raise not_found("the allocation's files are gone from its node") from None
        try:
            yield self._walk(path, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _walk(self, path: str, descriptors: list[int]) -> _ResolvedPath:
        """Resolve the path step by step and follow links. Return the result. Raises `Refusal`.

        `descriptors` has the open root folder; every folder on the way is opened and appended to it. So `..` leads back
        to the folder from which the path came.
        """
        remaining = _split_path(path)
        steps: list[str] = []
        links = step_count = 0
        while remaining:
            step_count += 1
            if step_count > MAX_STEPS:
                raise invalid_request(f"a path must not lead through more than {MAX_STEPS} folders and links")
            step = remaining.pop(0)
            if step == "..":
                if not steps:
                    raise invalid_request(PATH_ESCAPES_MESSAGE)
                steps.pop()
                os.close(descriptors.pop())
                continue
            target = self._read_link(step, descriptors[-1])
            if target is not None:
                links += 1
                # An absolute link means the root of the task's file system, which is not known here.
                if target.startswith("/") or links > MAX_LINKS:
                    raise invalid_request(PATH_ESCAPES_MESSAGE)
                remaining = _split_path(target) + remaining
                continue
            if not remaining:
                return _ResolvedPath(descriptors[-1], step, (*steps, step))
            try:
                descriptors.append(
                    _refuse_if_missing(path, lambda: os.open(step, _FOLDER_OPEN_FLAGS, dir_fd=descriptors[-1]))  # noqa: B023  # called at once
                )
            except NotADirectoryError:
                raise not_found(f'file "{path}" does not exist') from None
            steps.append(step)
        if not steps:
            return _ResolvedPath(descriptors[-1], "", ())
        # The path ended in `..`: the result is the folder that is open now, named in its parent.
        os.close(descriptors.pop())
        return _ResolvedPath(descriptors[-1], steps[-1], tuple(steps))

    @staticmethod
    def _read_link(name: str, folder: int) -> str | None:
        """Return the target of the link `name` in the open folder; `None` if it is not a link or does not exist."""
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENAMETOOLONG):
                return None
            raise


def _split_path(path: str) -> list[str]:
    """Return the names in a path, without empty ones and `.`."""
    return [step for step in path.split("/") if step not in ("", ".")]


def _refuse_if_missing(path: str, read: Callable[[], T]) -> T:
    """Return the result of `read()`. Raises `Refusal` if it fails because the file is missing or is a link."""
    try:
        return read()
    except (FileNotFoundError, OSError) as error:
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENAMETOOLONG:
            raise not_found(f'file "{path[:500]}" does not exist') from None
        if error.errno == errno.ELOOP:  # It was replaced by a link meanwhile.
            raise invalid_request(PATH_ESCAPES_MESSAGE) from None
        raise


def _is_secret(steps: tuple[str, ...]) -> bool:
    """Return whether the path, as a tuple of names, is in a task's folder for secrets."""
    return len(steps) >= 2 and steps[1] in SECRET_FOLDERS


def _build_info(name: str, status: os.stat_result, content_type: str = "") -> AllocFileInfo:
    """Return an entry of a folder in the format of the API; `status` is its result of stat(2)."""
    modified_at = datetime.fromtimestamp(max(_FIRST_TIME_S, min(status.st_mtime_ns // SECOND, _LAST_TIME_S)), UTC)
    text = f"{modified_at:%Y-%m-%dT%H:%M:%S}.{status.st_mtime_ns % SECOND:09}".rstrip("0").rstrip(".") + "Z"
    return AllocFileInfo(
        # Names of files are bytes; those that are not UTF-8 cannot be encoded as JSON.
        name=os.fsencode(name).decode(errors="replace"),
        is_dir=stat.S_ISDIR(status.st_mode),
        size=status.st_size,
        file_mode=format_mode(status.st_mode),
        mod_time=text,
        content_type=content_type or msgspec.UNSET,
    )


def format_mode(mode: int) -> str:
    """Return a file mode as text, such as `drwxr-xr-x`; `-` in front for a regular file.

    Each type or special bit that is set adds a letter in front. The nine permission bits follow, from the owner's read
    bit (bit 8) to the others' execute bit (bit 0).
    """
    letters = (
        (stat.S_ISDIR(mode), "d"),
        (stat.S_ISLNK(mode), "L"),
        (stat.S_ISBLK(mode) or stat.S_ISCHR(mode), "D"),
        (stat.S_ISFIFO(mode), "p"),
        (stat.S_ISSOCK(mode), "S"),
        (mode & stat.S_ISUID, "u"),
        (mode & stat.S_ISGID, "g"),
        (stat.S_ISCHR(mode), "c"),
        (mode & stat.S_ISVTX, "t"),
    )
    prefix = "".join(letter for is_set, letter in letters if is_set) or "-"
    return prefix + "".join(letter if mode & 1 << 8 - bit else "-" for bit, letter in enumerate("rwxrwxrwx"))


def detect_content_type(sample: bytes, name: str) -> str:
    """Return the content type of a file by the beginning of its content (`sample`) and its name.

    HTML is reported as plain text, so that no browser executes what a task wrote.
    """
    signatures = (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"\x1f\x8b\x08", "application/x-gzip"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x7fELF", "application/octet-stream"),
    )
    for signature, content_type in signatures:
        if sample.startswith(signature):
            return content_type
    if name.endswith(".json") and sample.lstrip()[:1] in (b"{", b"["):
        return "application/json"
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        # The sample may end within a character.
        if error.start < len(sample) - 3:
            return "application/octet-stream"
    return "application/octet-stream" if b"\0" in sample else "text/plain; charset=utf-8"
