"""Reads the audit log backwards, also its rotated files, and searches in it: a limited part of it for each request.

A position in the log is the number of a file and an offset in it. It stays valid when the file is rotated, which renames it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, Final

import msgspec

from wharf.cluster.server.agent_interface import AuditLogPage, AuditQuery
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import SECOND
from wharf.contract.wire.operator import AuditEntry
from wharf.sinks.rotation import list_rotated_files

CHUNK_BYTES: Final = 256 * 1024
MAX_SEARCHED_BYTES: Final = 16 * 1024 * 1024
"""Limits the work of one request: about 40,000 entries, on a thread. The next page continues there."""
MAX_LINE_BYTES: Final = 1024 * 1024
"""A longer line is no entry. Limits the memory of a search."""
MAX_FILES: Final = 1_000
"""Limits the files that are opened. With the usual settings, that is three years."""
_PLAIN_WORD: Final = re.compile(r"[a-z0-9._:/1124 1124]+", re.ASCII)
"""A word that JSON writes as it is."""
_POSITION: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})", re.ASCII)


class _AuditLine(msgspec.Struct):
    """A line of the log. Later versions may add fields."""

    time: str
    request_id: str = ""
    endpoint: str = ""
    method: str = ""
    path: str = ""
    region: str = ""
    namespace: str = ""
    accessor_id: str = ""
    token_name: str = ""
    source: str = ""
    status: int = 0
    index: int = 0
    error: str = ""
    duration_ms: float = 0.0
    allocation_id: str = ""
    task: str = ""
    command: tuple[str, ...] = ()
    exit_code: int | None = None


_decode = msgspec.json.Decoder(_AuditLine).decode
_TEXTS: Final = (
    "request_id", "endpoint", "method", "path", "namespace", "accessor_id", "token_name", "source", "error", "allocation_id", "task",
)  # fmt: skip
"""The fields in which words are searched, besides the command."""
FIRST_ERROR_STATUS: Final = 400


def read_audit_log(path: Path, query: AuditQuery) -> AuditLogPage:
    """Return the newest entries that the query selects. Raises `Refusal` if its token is invalid, and `OSError`."""
    entries: list[AuditEntry] = []
    words = query.search.casefold().split()
    plain = [word.encode() for word in words if _PLAIN_WORD.fullmatch(word)]
    searched = 0
    with ExitStack() as stack:
        files = _open_files(stack, path)
        for file, number, end in _select_files(files, query.next_token):
            position = end
            for position, line in iterate_lines_backwards(file, end):
                # Most lines lack the words, and are not decoded.
                is_candidate = all(word in line.lower() for word in plain)
                entry = _parse(line) if is_candidate else None
                if entry is not None and _is_selected(entry, words, is_failed=query.is_failed):
                    entries.append(entry)
                is_full = len(entries) >= query.limit
                if is_full or searched + end - position >= MAX_SEARCHED_BYTES:
                    is_last = position == 0 and number == files[-1][1]
                    token = "" if is_last else f"{number}-{position}"
                    return AuditLogPage(entries, token, is_incomplete=not is_full and not is_last)
            searched += end - position
    return AuditLogPage(entries)


def _open_files(stack: ExitStack, path: Path) -> list[tuple[IO[bytes], int]]:
    """Open the files of the log, the newest first. Return them with their numbers, by which they are found after a rotation."""
    opened: list[tuple[IO[bytes], int]] = []
    for name in (path, *reversed(list_rotated_files(path)))[:MAX_FILES]:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # It was deleted, or rotated, in the meantime.
            continue
        file = stack.enter_context(os.fdopen(descriptor, "rb"))
        number = os.fstat(descriptor).st_ino
        if all(number != other for _, other in opened):  # It was rotated while the names were listed.
            opened.append((file, number))
    return opened


def _select_files(files: Sequence[tuple[IO[bytes], int]], token: str) -> Iterator[tuple[IO[bytes], int, int]]:
    """Yield the files from the position in the page token on, each with its number and where its unread part ends."""
    start = _parse_token(token) if token else None
    if start is not None and all(number != start[0] for _, number in files):
        raise invalid_request("next_token names a part of the audit log that was deleted: begin again without it")
    for file, number in files:
        size = os.fstat(file.fileno()).st_size
        if start is None:
            yield file, number, size
        elif number == start[0]:
            yield file, number, min(size, start[1])
            start = None


def _parse_token(token: str) -> tuple[int, int]:
    found = _POSITION.fullmatch(token)
    if found is None:
        raise invalid_request("next_token is not one of the audit log: begin again without it")
    return int(found[1]), int(found[2])


def iterate_lines_backwards(file: IO[bytes], end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before an offset, the last one first, each with the offset at which it begins."""
    rest, position = b"", end
    while position > 0:
        size = min(CHUNK_BYTES, position)
        position -= size
        file.seek(position)
        data = file.read(size) + rest
        # What precedes the first line end belongs to a line that may begin earlier.
        cut = data.find(b"\n") + 1 if position > 0 else 0
        if position > 0 and (cut == 0 or cut == len(data)):
            rest = data
            if len(data) > MAX_LINE_BYTES:
                rest = b""
                yield position, b""  # So that readers can end a search in a file that is no log.
            continue
        rest, offset = data[:cut], position + len(data)
        lines = data[cut:].split(b"\n")
        if not lines[-1]:  # The part ends with the end of a line.
            lines.pop()
            offset -= 1
        for line in reversed(lines):
            offset -= len(line)
            yield offset, line
            offset -= 1


def _parse(line: bytes) -> AuditEntry | None:
    """Return the entry of a line; `None` if it is not valid, such as one that is being written."""
    try:
        fields = msgspec.structs.asdict(_decode(line))
        moment = datetime.fromisoformat(fields.pop("time"))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return None
    return AuditEntry(time=round(moment.timestamp() * 1_000) * (SECOND // 1_000), **fields)


def _is_selected(entry: AuditEntry, words: Sequence[str], *, is_failed: bool) -> bool:
    """Return whether an entry has all of the words, and failed if only such entries are requested."""
    if is_failed and entry.status < FIRST_ERROR_STATUS:
        return False
    if not words:
        return True
    text = "\n".join((*(getattr(entry, name) for name in _TEXTS), *entry.command, str(entry.status))).casefold()
    return all(word in text for word in words)
