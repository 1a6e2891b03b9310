"""Parses artifact sources such as `git::https://host/repo.git//folder?ref=v1` or `https://host/a.tar.gz?checksum=…`."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from wharf.node.artifacts.errors import ArtifactError

_FORCED: Final = re.compile(r"^([a-z0-9]+)::(.*)$", re.DOTALL)
_BY_SSH: Final = re.compile(r"^(?:[\w.-]+@)[\w.-]+:(?!//)")
_HOSTS_OF_REPOSITORIES: Final = re.compile(r"^(github\.com|gitlab\.com|bitbucket\.org)/[^/]+/[^/]+")
# Options are ours, and are not sent to the host.
SOURCE_OPTIONS: Final = ("checksum", "archive", "ref", "depth", "sshkey", "filename")
DIGEST_HEX_LENGTHS: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


class Checksum(NamedTuple):
    kind: str
    value: str

    def new_digest(self) -> "hashlib._Hash":
        return hashlib.new(self.kind, usedforsecurity=self.kind not in ("md5", "sha1"))


class ArtifactSource(NamedTuple):
    getter: str  # http, git, file
    address: str
    folder: str  # Of what was fetched, only this; empty: all.
    checksum: Checksum | None
    archive: str  # Empty: as its name says; `false`: not unpacked; else the kind.
    ref: str
    depth: int
    sshkey: str
    filename: str

    @property
    def basename(self) -> str:
        return self.filename or urlsplit(self.address).path.rstrip("/").rpartition("/")[2] or "artifact"


def parse_source(text: str, options: Mapping[str, str]) -> ArtifactSource:
    """Parse the source of an artifact with its options. Raises ArtifactError."""
    forced = _FORCED.match(text)
    getter, rest = (forced[1], forced[2]) if forced else ("", text)
    if _BY_SSH.match(rest):
        host, _, path = rest.partition(":")
        rest, getter = f"ssh://{host}/{path}", getter or "git"
    elif not getter and _HOSTS_OF_REPOSITORIES.match(rest):
        rest, getter = f"https://{rest}", "git"
    parts = urlsplit(rest)
    if not parts.scheme and getter in ("", "file"):
        return _local(rest, options)
    getter = _getter(getter, parts.scheme, parts.path, text)
    path, folder = _cut_folder(parts.path)
    said = {name: value for name, value in parse_qsl(parts.query) if name in SOURCE_OPTIONS} | dict(options)
    left = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in SOURCE_OPTIONS]
    )
    # A query without options goes on as it was written: it may be signed.
    query = left if any(name in SOURCE_OPTIONS for name, _ in parse_qsl(parts.query)) else parts.query
    address = urlunsplit((parts.scheme, parts.netloc, path, query, ""))
    return _source(getter, address, folder, said)


def _source(getter: str, address: str, folder: str, said: Mapping[str, str]) -> ArtifactSource:
    depth = said.get("depth", "0")
    if not depth.isdecimal():
        raise ArtifactError(f"depth is {depth[:20]}: write a number", is_permanent=True)
    filename = said.get("filename", "")
    if "/" in filename or filename in ("..", "."):
        raise ArtifactError(f"filename is {filename[:80]}: write a name without folders", is_permanent=True)
    return ArtifactSource(
        getter,
        address,
        folder,
        _checksum(said.get("checksum", "")),
        said.get("archive", ""),
        said.get("ref", ""),
        int(depth),
        said.get("sshkey", ""),
        filename,
    )


def _local(path: str, options: Mapping[str, str]) -> ArtifactSource:
    """Parse a path in the task's folder: the dispatch payload or an earlier artifact."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ArtifactError(
            f"{path[:200]} lies outside the task's folder: give an address, or a path inside of it", is_permanent=True
        )
    return _source("file", path, "", options)


def _getter(getter: str, scheme: str, path: str, text: str) -> str:
    if getter == "git" or (not getter and (scheme in ("ssh", "git") or path.endswith(".git"))):
        if scheme not in ("https", "http", "ssh", "git"):
            raise ArtifactError(f"git over {scheme} is not fetched: use https or ssh", is_permanent=True)
        return "git"
    if getter in ("", "http", "https") and scheme in ("http", "https"):
        return "http"
    kind = getter or scheme
    if kind == "file":
        raise ArtifactError("files of the node are not given to tasks: use a host volume", is_permanent=True)
    raise ArtifactError(f"{text[:80]}: {kind} is not known here; there are http, https and git", is_permanent=True)


def _cut_folder(path: str) -> tuple[str, str]:
    """Split `/repo.git//folder` into the repository and the folder in it."""
    whole, separator, folder = path.partition("//")
    if separator and ".." in folder.split("/"):
        raise ArtifactError(f"//{folder[:80]} leads out of what is fetched", is_permanent=True)
    return whole, folder.strip("/")


def _checksum(text: str) -> Checksum | None:
    if not text:
        return None
    kind, _, value = text.partition(":")
    value = value.lower()
    if DIGEST_HEX_LENGTHS.get(kind) != len(value) or not re.fullmatch(r"[0-9a-f]+", value):
        raise ArtifactError(
            f'checksum is "{text[:160]}": write its kind ({", ".join(DIGEST_HEX_LENGTHS)}), a colon and all of its hex digits',
            is_permanent=True,
        )
    return Checksum(kind, value)
