"""The files that pages load: style, script, picture. Their addresses contain a hash of their content, so browsers keep them."""

import functools
import gzip
import hashlib
import mimetypes
from importlib import resources
from typing import Final

import msgspec

STATIC_PATH: Final = "/ui/static/"
HASH_CHARACTERS: Final = 12
FOREVER: Final = b"public, max-age=31536000, immutable"
"""A changed file has another address."""
SERVED_SUFFIXES: Final = frozenset((".css", ".js", ".svg"))


class StaticFile(msgspec.Struct, frozen=True):
    """A file with its address, plain and compressed."""

    name: str
    url: str
    content_type: str
    content: bytes
    compressed: bytes


class StaticFiles:
    """All static files, by name and by address. They are read once."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._by_name = {name: _build_file(name, content) for name, content in files.items()}
        self._by_url = {file.url: file for file in self._by_name.values()}

    def get_url(self, name: str) -> str:
        """Return the address of the file with this name. Raises `KeyError`."""
        return self._by_name[name].url

    def find(self, path: str) -> StaticFile | None:
        """Return the file with this path of a request, or `None`."""
        return self._by_url.get(path)


@functools.cache
def load_static_files() -> StaticFiles:
    """Read the files of this package."""
    files: dict[str, bytes] = {}
    root = resources.files("wharf.web") / "static"
    for folder, prefix in ((root, ""), (root / "vendor", "vendor/")):
        for entry in folder.iterdir():
            if entry.is_file() and "." + entry.name.rpartition(".")[2] in SERVED_SUFFIXES:
                files[prefix + entry.name] = entry.read_bytes()
    return StaticFiles(files)


def _build_file(name: str, content: bytes) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()[:HASH_CHARACTERS]
    kind = mimetypes.types_map["." + name.rpartition(".")[2]]
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return StaticFile(name, f"{STATIC_PATH}{digest}/{name}", kind, content, gzip.compress(content, 9, mtime=0))
