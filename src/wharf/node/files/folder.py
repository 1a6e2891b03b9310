"""One allocation's folder, seen from its root.

A path is resolved here step by step, with links, and never by the kernel alone: a link that a task points at the rest
of the machine, or at its secrets, leads to a refusal and not there.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire.allocations.messages import AllocFileInfo

T = TypeVar("T")

MAX_LINKS: Final = 40
CONTENT_SAMPLE_BYTES: Final = 512
# Below each task's folder. What is in them is listed, and not read.
SECRET_FOLDERS: Final = ("secrets", "private")
PATH_ESCAPES_MESSAGE: Final = "Path escapes the alloc directory"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe or a device of a task must not make us wait.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class _Found(NamedTuple):
    parent: int  # An open folder.
    name: str  # Empty: the root itself.
    steps: tuple[str, ...]  # Where it really lies.


class ReadOnlyFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def list_entries(self, path: str) -> list[AllocFileInfo]:
        """What lies in a folder, by name. Raises Refusal."""
        with self._resolved(path) as found:
            handle = self._open_folder(found, path)
            try:
                infos = [
                    _info(name, os.stat(name, dir_fd=handle, follow_symlinks=False)) for name in os.listdir(handle)
                ]
            finally:
                os.close(handle)
        return sorted(infos, key=lambda info: info.name)

    def read_info(self, path: str) -> AllocFileInfo:
        """Raises Refusal."""
        if not path:
            raise invalid_request("must provide a file name")
        with self._resolved(path) as found:
            if not found.name:
                return _info("/", os.fstat(found.parent), "application/octet-stream")
            info = _missing_told(path, lambda: os.stat(found.name, dir_fd=found.parent, follow_symlinks=False))
            kind = "application/octet-stream"
            if stat.S_ISREG(info.st_mode) and not _is_secret(found.steps):
                handle = os.open(found.name, _FILE, dir_fd=found.parent)
                with contextlib.closing(os.fdopen(handle, "rb")) as file:
                    kind = detect_content_type(file.read(CONTENT_SAMPLE_BYTES), found.name)
            return _info(found.name, info, kind)

    def open_file(self, path: str) -> int:
        """A descriptor of a regular file, which the caller closes. Raises Refusal."""
        if not path:
            raise invalid_request("must provide a file name")
        with self._resolved(path) as found:
            if _is_secret(found.steps):
                raise Refusal(RefusalCode.FORBIDDEN, f"Reading secret file prohibited: {path}")
            if not found.name:
                raise invalid_request(f'file "{path}" is a directory')
            handle = _missing_told(path, lambda: os.open(found.name, _FILE, dir_fd=found.parent))
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            os.close(handle)
            raise invalid_request(f'file "{path}" is {"a directory" if stat.S_ISDIR(mode) else "no regular file"}')
        return handle

    def list_names(self, path: str) -> list[str]:
        """Of a folder that may not be there yet."""
        try:
            return [entry.name for entry in self.list_entries(path)]
        except Refusal as refusal:
            if refusal.code is RefusalCode.NOT_FOUND:
                return []
            raise

    def _open_folder(self, found: _Found, path: str) -> int:
        if not found.name:
            return os.dup(found.parent)
        try:
            opened = _missing_told(path, lambda: os.open(found.name, _FOLDER, dir_fd=found.parent))
        except NotADirectoryError:
            raise invalid_request(f'file "{path}" is not a directory') from None
        return opened

    @contextlib.contextmanager
    def _resolved(self, path: str) -> Iterator[_Found]:
        if "\0" in path:
            raise invalid_request("a path holds no zero byte")
        try:
            handles = [os.open(self._root, _FOLDER)]
        except FileNotFoundError:
            raise not_found("the allocation's files are gone from its node") from None
        try:
            yield self._walk(path, handles)
        finally:
            for handle in handles:
                os.close(handle)

    def _walk(self, path: str, handles: list[int]) -> _Found:
        """Every folder on the way is held open, so that `..` is the one we came through."""
        left = _split(path)
        steps: list[str] = []
        links = 0
        while left:
            step = left.pop(0)
            if step == "..":
                if not steps:
                    raise invalid_request(PATH_ESCAPES_MESSAGE)
                steps.pop()
                os.close(handles.pop())
                continue
            target = self._link_target(step, handles[-1])
            if target is not None:
                links += 1
                # A task in a root of its own means that root; from here it cannot be told from the machine's.
                if target.startswith("/") or links > MAX_LINKS:
                    raise invalid_request(PATH_ESCAPES_MESSAGE)
                left = _split(target) + left
                continue
            if not left:
                return _Found(handles[-1], step, (*steps, step))
            try:
                handles.append(_missing_told(path, lambda: os.open(step, _FOLDER, dir_fd=handles[-1])))  # noqa: B023  # called at once
            except NotADirectoryError:
                raise not_found(f'file "{path}" does not exist') from None
            steps.append(step)
        if not steps:
            return _Found(handles[-1], "", ())
        # It ended in `..`: the folder is the one that is open now, found again by its name in its parent.
        os.close(handles.pop())
        return _Found(handles[-1], steps[-1], tuple(steps))

    @staticmethod
    def _link_target(name: str, folder: int) -> str | None:
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENAMETOOLONG):
                return None
            raise


def _split(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def _missing_told(path: str, look: Callable[[], T]) -> T:
    try:
        return look()
    except (FileNotFoundError, OSError) as error:
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENAMETOOLONG:
            raise not_found(f'file "{path[:500]}" does not exist') from None
        if error.errno == errno.ELOOP:  # It became a link while we looked.
            raise invalid_request(PATH_ESCAPES_MESSAGE) from None
        raise


def _is_secret(steps: tuple[str, ...]) -> bool:
    return len(steps) >= 2 and steps[1] in SECRET_FOLDERS


def _info(name: str, found: os.stat_result, kind: str = "") -> AllocFileInfo:
    moment = datetime.fromtimestamp(found.st_mtime_ns // 1_000_000_000, UTC)
    text = f"{moment:%Y-%m-%dT%H:%M:%S}.{found.st_mtime_ns % 1_000_000_000:09}".rstrip("0").rstrip(".") + "Z"
    return AllocFileInfo(
        name=name,
        is_dir=stat.S_ISDIR(found.st_mode),
        size=found.st_size,
        file_mode=format_mode(found.st_mode),
        mod_time=text,
        content_type=kind or msgspec.UNSET,
    )


def format_mode(mode: int) -> str:
    """`drwxr-xr-x`, with each special bit as a letter of its own in front."""
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
    kind = "".join(letter for holds, letter in letters if holds) or "-"
    return kind + "".join(letter if mode & 1 << 8 - bit else "-" for bit, letter in enumerate("rwxrwxrwx"))


def detect_content_type(head: bytes, name: str) -> str:
    """What kind of content begins so. A page is never called one: no browser should run what a task wrote."""
    signs = (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"\x1f\x8b\x08", "application/x-gzip"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x7fELF", "application/octet-stream"),
    )
    for sign, kind in signs:
        if head.startswith(sign):
            return kind
    if name.endswith(".json") and head.lstrip()[:1] in (b"{", b"["):
        return "application/json"
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end of what we looked at.
        if error.start < len(head) - 3:
            return "application/octet-stream"
    return "application/octet-stream" if b"\0" in head else "text/plain; charset=utf-8"
