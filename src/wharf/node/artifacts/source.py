"""Parses artifact sources such as `git::https://host/repo.git//folder?ref=v1` or `https://host/a.tar.gz?checksum=…`."""

import hashlib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from wharf.node.unpacking.errors import ArtifactError

_GETTER_PREFIX: Final = re.compile(r"^([a-z0-9]+)::(.*)$", re.DOTALL)
"""Matches `git::` and the like in front of a source."""
_SCP_ADDRESS: Final = re.compile(r"^(?:[\w.-]+@)[\w.-]+:(?!//)")
"""Matches the beginning of `user@host:path`."""
_REPOSITORY_HOSTS: Final = re.compile(r"^(github\.com|gitlab\.com|bitbucket\.org)/[^/]+/[^/]+")
SOURCE_OPTIONS: Final = ("checksum", "archive", "ref", "depth", "sshkey", "filename")
"""Query parameters that are options for the node. They are not sent to the host."""
DIGEST_HEX_LENGTHS: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


class Getter(Enum):
    """The way in which an artifact is fetched."""

    HTTP = "http"
    GIT = "git"
    FILE = "file"
    """From the task's folder: the dispatch payload or an earlier artifact."""


class Checksum(NamedTuple):
    """The expected digest of a file, in hexadecimal."""

    kind: str  # the hash algorithm, such as sha256
    value: str  # hexadecimal

    def new_digest(self) -> "hashlib._Hash":
        return hashlib.new(self.kind, usedforsecurity=self.kind not in ("md5", "sha1"))

    def verify(self, actual_digest: str) -> None:
        """Check the digest of the fetched file. Raises ArtifactError if it differs from the expected one."""
        if actual_digest != self.value:
            raise ArtifactError(f"wrong checksum: the file's {self.kind} is {actual_digest}, expected {self.value}")


class ArtifactSource(NamedTuple):
    """The parsed source of an artifact."""

    getter: Getter
    address: str  # The URL, or the path in the task's folder.
    folder: str
    """The folder of the archive or repository to use; empty: all of it."""
    checksum: Checksum | None
    archive: str
    """The kind of archive; empty: by the file's name; `false`: it is not unpacked."""
    ref: str
    """The branch, tag or commit of a repository."""
    depth: int
    """How many commits of a repository are fetched; 0: all."""
    sshkey: str  # A private SSH key in base64; empty: none.
    filename: str  # The name for the fetched file; empty: the last part of the address.

    @property
    def basename(self) -> str:
        """The name of the fetched file."""
        return self.filename or urlsplit(self.address).path.rstrip("/").rpartition("/")[2] or "artifact"


def parse_source(text: str, options: Mapping[str, str]) -> ArtifactSource:
    """Return the parsed source of an artifact. Raises ArtifactError.

    `options` override those in the query of the URL.
    """
    prefixed = _GETTER_PREFIX.match(text)
    getter_name, rest = (prefixed[1], prefixed[2]) if prefixed else ("", text)
    if _SCP_ADDRESS.match(rest):
        host, _, path = rest.partition(":")
        rest, getter_name = f"ssh://{host}/{path}", getter_name or "git"
    elif not getter_name and _REPOSITORY_HOSTS.match(rest):
        rest, getter_name = f"https://{rest}", "git"
    parts = urlsplit(rest)
    if not parts.scheme and getter_name in ("", "file"):
        return _parse_task_path(rest, options)
    getter = _choose_getter(getter_name, parts.scheme, parts.path, text)
    path, folder = _split_folder(parts.path)
    all_options = {name: value for name, value in parse_qsl(parts.query) if name in SOURCE_OPTIONS} | dict(options)
    # A query without options is sent unchanged, because it may be signed.
    query = parts.query
    if any(name in SOURCE_OPTIONS for name, _ in parse_qsl(query)):
        parameters = parse_qsl(query, keep_blank_values=True)
        query = urlencode([(name, value) for name, value in parameters if name not in SOURCE_OPTIONS])
    address = urlunsplit((parts.scheme, parts.netloc, path, query, ""))
    return _build_source(getter, address, folder, all_options)


def _build_source(getter: Getter, address: str, folder: str, options: Mapping[str, str]) -> ArtifactSource:
    """Return the source with its checksum, depth and file name validated. Raises ArtifactError."""
    depth = options.get("depth", "0")
    if not depth.isdecimal():
        raise ArtifactError(f"invalid depth {depth[:20]!r}: write a number", is_permanent=True)
    filename = options.get("filename", "")
    if "/" in filename or filename in ("..", "."):
        raise ArtifactError(f"invalid filename {filename[:80]!r}: write a name without folders", is_permanent=True)
    return ArtifactSource(
        getter,
        address,
        folder,
        _parse_checksum(options.get("checksum", "")),
        options.get("archive", ""),
        options.get("ref", ""),
        int(depth),
        options.get("sshkey", ""),
        filename,
    )


def _parse_task_path(path: str, options: Mapping[str, str]) -> ArtifactSource:
    """Return the source for a path in the task's folder. Raises ArtifactError if the path leads out of it."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ArtifactError(
            f"{path[:200]} is outside of the task's folder: write a URL, or a path in the task's folder",
            is_permanent=True,
        )
    return _build_source(Getter.FILE, path, "", options)


def _choose_getter(name: str, scheme: str, path: str, source_text: str) -> Getter:
    """Return the getter that the prefix `name` or else the URL selects. Raises ArtifactError if it is not supported.

    `source_text` is the whole source, for error messages.
    """
    if name == "git" or (not name and (scheme in ("ssh", "git") or path.endswith(".git"))):
        if scheme not in ("https", "http", "ssh", "git"):
            raise ArtifactError(f"git over {scheme} is not supported: use https or ssh", is_permanent=True)
        return Getter.GIT
    if name in ("", "http", "https") and scheme in ("http", "https"):
        return Getter.HTTP
    getter_name = name or scheme
    if getter_name == "file":
        raise ArtifactError("files of the node cannot be fetched: use a host volume", is_permanent=True)
    raise ArtifactError(
        f"{source_text[:80]}: {getter_name} is not supported: use http, https or git", is_permanent=True
    )


def _split_folder(path: str) -> tuple[str, str]:
    """Split `/repo.git//folder` into (path of the repository, folder in it). Raises ArtifactError.

    The folder is empty if there is no `//`.
    """
    repository, separator, folder = path.partition("//")
    if separator and ".." in folder.split("/"):
        raise ArtifactError(f"//{folder[:80]} leads out of the artifact", is_permanent=True)
    return repository, folder.strip("/")


def _parse_checksum(text: str) -> Checksum | None:
    """Return the checksum from a text such as `sha256:<hexadecimal digits>`; None for an empty text.

    Raises ArtifactError if it is invalid.
    """
    if not text:
        return None
    algorithm, _, value = text.partition(":")
    value = value.lower()
    if DIGEST_HEX_LENGTHS.get(algorithm) != len(value) or not re.fullmatch(r"[0-9a-f]+", value):
        algorithms = ", ".join(DIGEST_HEX_LENGTHS)
        raise ArtifactError(
            f'invalid checksum "{text[:160]}": write its kind ({algorithms}), a colon and all hexadecimal digits',
            is_permanent=True,
        )
    return Checksum(algorithm, value)
