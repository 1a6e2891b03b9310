"""The files of an allocation: a folder with its entries, or the beginning of a file. All texts come from tasks."""

import posixpath
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.wire.allocations.messages import AllocFileInfo
from wharf.web.rendering import build_link

MAX_ENTRIES: Final = 500
PREVIEW_BYTES: Final = 64 * 1024
"""How much of a file a page shows; the download has all of it."""
HIDDEN_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"


class FileRow(msgspec.Struct, frozen=True):
    """A file or a folder in a folder."""

    name: str
    url: str
    is_folder: bool
    size: int
    mode: str
    changed: str


class FilesView(msgspec.Struct, frozen=True):
    """The page of a folder or of a file."""

    alloc_id: str
    allocation_name: str
    allocation_url: str
    crumbs: tuple[tuple[str, str], ...]
    """The folders from the first one down to this path, with their addresses."""
    is_folder: bool
    rows: tuple[FileRow, ...]
    hidden_rows: int
    size: int
    text: str
    """The beginning of a file."""
    is_cut: bool
    is_binary: bool
    download_url: str


def read_path(text: str) -> str:
    """Return the path of the address as an absolute path without `.` and `..`: nothing leads out of the allocation."""
    return posixpath.normpath("/" + text.lstrip("/"))


def build_folder_view(alloc_id: str, name: str, path: str, entries: Sequence[AllocFileInfo]) -> FilesView:
    """Return the page of a folder: folders first, both by name."""
    ordered = sorted(entries, key=lambda entry: (not entry.is_dir, entry.name))
    rows = tuple(
        FileRow(
            name=show_text(entry.name),
            url=build_link("allocations", alloc_id, "files", path=posixpath.join(path, entry.name)),
            is_folder=entry.is_dir,
            size=entry.size,
            mode=show_text(entry.file_mode),
            changed=show_text(entry.mod_time)[:19].replace("T", " "),
        )
        for entry in ordered[:MAX_ENTRIES]
    )
    return _build_view(alloc_id, name, path, is_folder=True, rows=rows, hidden_rows=len(ordered) - len(rows))


def build_file_view(alloc_id: str, name: str, path: str, size: int, beginning: bytes) -> FilesView:
    """Return the page of a file with its beginning. A file with zero bytes is not shown as text."""
    is_binary = b"\0" in beginning
    return _build_view(
        alloc_id,
        name,
        path,
        size=size,
        text="" if is_binary else show_text(beginning.decode("utf-8", "replace"), is_multiline=True),
        is_cut=size > len(beginning),
        is_binary=is_binary,
        download_url=build_link("allocations", alloc_id, "files", "download", path=path),
    )


def show_text(text: str, *, is_multiline: bool = False) -> str:
    """Return a text without characters that control terminals, hide others or change their order."""
    breaks = "\n\t" if is_multiline else ""
    return "".join(char if char.isprintable() or char in breaks else HIDDEN_CHARACTER for char in text)


def _build_view(
    alloc_id: str,
    name: str,
    path: str,
    *,
    is_folder: bool = False,
    rows: tuple[FileRow, ...] = (),
    hidden_rows: int = 0,
    size: int = 0,
    text: str = "",
    is_cut: bool = False,
    is_binary: bool = False,
    download_url: str = "",
) -> FilesView:
    parts = [part for part in path.split("/") if part]
    crumbs = [("files", build_link("allocations", alloc_id, "files"))]
    crumbs += [
        (show_text(part), build_link("allocations", alloc_id, "files", path="/" + "/".join(parts[: depth + 1])))
        for depth, part in enumerate(parts)
    ]
    return FilesView(
        alloc_id=alloc_id,
        allocation_name=name,
        allocation_url=build_link("allocations", alloc_id),
        crumbs=tuple(crumbs),
        is_folder=is_folder,
        rows=rows,
        hidden_rows=hidden_rows,
        size=size,
        text=text,
        is_cut=is_cut,
        is_binary=is_binary,
        download_url=download_url,
    )
