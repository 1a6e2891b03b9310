"""What the source of an artifact means: `git::https://host/repo.git//folder?ref=v1`, `https://host/a.tar.gz?checksum=…`."""

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
OPTIONS: Final = ("checksum", "archive", "ref", "depth", "sshkey", "filename")
DIGESTS: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


class Checksum(NamedTuple):
    kind: str
    value: str

    def new(self) -> "hashlib._Hash":
        return hashlib.new(self.kind, usedforsecurity=self.kind not in ("md5", "sha1"))


class Source(NamedTuple):
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


def read_source(text: str, options: Mapping[str, str]) -> Source:
    """Raises ArtifactError."""
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
    said = {name: value for name, value in parse_qsl(parts.query) if name in OPTIONS} | dict(options)
    left = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in OPTIONS]
    )
    # A query without options goes on as it was written: it may be signed.
    query = left if any(name in OPTIONS for name, _ in parse_qsl(parts.query)) else parts.query
    address = urlunsplit((parts.scheme, parts.netloc, path, query, ""))
    return _source(getter, address, folder, said)


def _source(getter: str, address: str, folder: str, said: Mapping[str, str]) -> Source:
    depth = said.get("depth", "0")
    if not depth.isdecimal():
        raise ArtifactError(f"depth is {depth[:20]}: write a number", is_lasting=True)
    filename = said.get("filename", "")
    if "/" in filename or filename in ("..", "."):
        raise ArtifactError(f"filename is {filename[:80]}: write a name without folders", is_lasting=True)
    return Source(
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


def _local(path: str, options: Mapping[str, str]) -> Source:
    """Of the task's own folder: what its job was dispatched with, or an earlier artifact."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ArtifactError(
            f"{path[:200]} lies outside the task's folder: give an address, or a path inside of it", is_lasting=True
        )
    return _source("file", path, "", options)


def _getter(getter: str, scheme: str, path: str, text: str) -> str:
    if getter == "git" or (not getter and (scheme in ("ssh", "git") or path.endswith(".git"))):
        if scheme not in ("https", "http", "ssh", "git"):
            raise ArtifactError(f"git over {scheme} is not fetched: use https or ssh", is_lasting=True)
        return "git"
    if getter in ("", "http", "https") and scheme in ("http", "https"):
        return "http"
    kind = getter or scheme
    if kind == "file":
        raise ArtifactError("files of the node are not given to tasks: use a host volume", is_lasting=True)
    raise ArtifactError(f"{text[:80]}: {kind} is not known here; there are http, https and git", is_lasting=True)


def _cut_folder(path: str) -> tuple[str, str]:
    """`/repo.git//folder` is the folder of the repository."""
    whole, separator, folder = path.partition("//")
    if separator and ".." in folder.split("/"):
        raise ArtifactError(f"//{folder[:80]} leads out of what is fetched", is_lasting=True)
    return whole, folder.strip("/")


def _checksum(text: str) -> Checksum | None:
    if not text:
        return None
    kind, _, value = text.partition(":")
    value = value.lower()
    if DIGESTS.get(kind) != len(value) or not re.fullmatch(r"[0-9a-f]+", value):
        raise ArtifactError(
            f'checksum is "{text[:160]}": write its kind ({", ".join(DIGESTS)}), a colon and all of its hex digits',
            is_lasting=True,
        )
    return Checksum(kind, value)
