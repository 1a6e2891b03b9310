"""The file functions of job files, on the machine of the user. Paths are relative to the working directory."""

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from wharf.languages.hcl.calls import FunctionError
from wharf.languages.hcl.values import STRING, Value, build_set
from wharf.languages.patterns import PatternError, Re2Pattern, compile_pattern

MAX_FILE_BYTES: Final = 1_000_000
"""Limit of a file that a job file reads, equal to that of a job file; protects servers from huge jobs."""
MAX_PATH_CHARS: Final = 1_000
"""Limit of a path: file systems refuse names of more than 255 characters."""
MAX_FOUND_FILES: Final = 1_000
"""Limit of the files that `fileset` returns."""
MAX_VISITED_ENTRIES: Final = 20_000
"""Limit of the folder entries that `fileset` visits; protects from a pattern that searches a whole disk."""
_PATTERN_PART: Final = re.compile(r"\*\*/?|\*|\?|\[[^\]/]+\]|\{[^{}/]*\}|[^*?\[{]+|.", re.DOTALL)


class LocalFiles:
    """The file port of the command line."""

    def call(self, name: str, arguments: Sequence[str]) -> Value:
        """Return the result of a file function. Raises `FunctionError`."""
        for position, argument in enumerate(arguments):
            if "\0" in argument:
                raise FunctionError("a path has no null character", argument=position)
        return _FUNCTIONS[name](*arguments)


def _read_bytes(path: str) -> bytes:
    """Return the content of a file. Raises `FunctionError`."""
    expanded = _expand(path)
    try:
        if not expanded.is_file():
            what = "is a folder" if expanded.is_dir() else "does not exist" if not expanded.exists() else "is no file"
            raise FunctionError(
                f"{path[:200]} {what}", argument=0, fix=f"paths are relative to the working directory {Path.cwd()}"
            )
        with expanded.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FunctionError(f"cannot read {path[:200]}: {error.strerror}", argument=0) from None
    if len(content) > MAX_FILE_BYTES:
        raise FunctionError(
            f"{path[:200]} is larger than {MAX_FILE_BYTES // 1_000_000} MB", argument=0,
            fix="let the task download it as an artifact",
        )  # fmt: skip
    return content


def _read_text(path: str) -> str:
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError:
        raise FunctionError(
            f"{path[:200]} is not UTF-8 text", argument=0, fix="use filebase64 for other files"
        ) from None


def _expand(path: str) -> Path:
    """Return a path with the folder of the user for `~`. Raises `FunctionError`."""
    if len(path) > MAX_PATH_CHARS:
        raise FunctionError(f"a path has at most {MAX_PATH_CHARS:,} characters", argument=0)
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FunctionError(
            f"{path[:200]} has no folder of such a user", argument=0, fix="write the whole path"
        ) from None


def _exists(path: str) -> bool:
    expanded = _expand(path)
    if expanded.is_dir():
        raise FunctionError(f"{path[:200]} is a folder", argument=0, fix="fileexists is for files")
    return expanded.is_file()


def _find_files(folder: str, pattern: str) -> Value:
    """Return the paths of the files below a folder that match a pattern, relative to the folder."""
    root = _expand(folder)
    matcher = _compile_pattern(pattern)
    found: list[str] = []
    for path in _walk(root):
        relative = path.relative_to(root).as_posix()
        if matcher.matches(relative):
            found.append(relative)
            if len(found) > MAX_FOUND_FILES:
                raise FunctionError(
                    f"more than {MAX_FOUND_FILES:,} files match {pattern[:200]}", argument=1, fix="write a narrower pattern"
                )  # fmt: skip
    return build_set(found, STRING)


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below a folder whose names are UTF-8. Raises `FunctionError` after too many entries."""
    visited = 0
    for folder, folders, files in os.walk(root):
        folders.sort()
        visited += len(folders) + len(files)
        if visited > MAX_VISITED_ENTRIES:
            raise FunctionError(
                f"{str(root)[:200]} has more than {MAX_VISITED_ENTRIES:,} entries", argument=0, fix="name a smaller folder"
            )  # fmt: skip
        for name in files:
            path = Path(folder, name)
            if _is_utf8(name) and path.is_file():
                yield path


def _is_utf8(name: str) -> bool:
    """Return whether a name can be part of a text. Python marks other bytes of names by surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _compile_pattern(pattern: str) -> Re2Pattern:
    """Return a pattern for relative paths. `*` matches no `/`, `**` matches folders, `{a,b}` one of several words."""
    parts: list[str] = []
    for match in _PATTERN_PART.finditer(pattern):
        part = match[0]
        if part.startswith("**"):
            parts.append("(?:[^/]+/)*" if part.endswith("/") else ".*")
        elif part == "*":
            parts.append("[^/]*")
        elif part == "?":
            parts.append("[^/]")
        elif part.startswith("[") and part.endswith("]") and len(part) > 2:
            content = part[1:-1].replace("\\", "\\\\")
            parts.append(f"[{'^' + content[1:] if content[0] in '!^' else content}]")
        elif part.startswith("{") and part.endswith("}"):
            parts.append(f"(?:{'|'.join(map(re.escape, part[1:-1].split(',')))})")
        else:
            parts.append(re.escape(part))
    try:
        return compile_pattern(rf"(?s)\A(?:{''.join(parts)})\z")
    except PatternError as error:
        raise FunctionError(f"{pattern[:200]} is no pattern: {error}", argument=1) from None


_FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "abspath": lambda path: str(Path(os.path.abspath(path))),  # `resolve` would follow links
    "basename": os.path.basename,
    "dirname": lambda path: os.path.dirname(path) or ".",  # as the other functions
    "file": _read_text,
    "filebase64": lambda path: base64.b64encode(_read_bytes(path)).decode(),
    "fileexists": _exists,
    "fileset": _find_files,
    "pathexpand": lambda path: os.path.expanduser(path),  # a text without a home stays as it is
}
