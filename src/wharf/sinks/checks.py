"""Checks of the settings of sinks, and their secrets in files. The readers of settings files report the problems."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from wharf.sinks.settings import SinkKind, SinkSettings
from wharf.sinks.syslog_sink import InvalidSyslogUrl, read_syslog_url

MAX_SECRET_BYTES: Final = 8_192
"""Protects memory: a secret is a line of text."""
HTTP_KINDS: Final = frozenset({SinkKind.HTTP, SinkKind.OTLP, SinkKind.S3})


class InvalidSecretFile(Exception):
    """The file with the secret of a sink cannot be used. The text says why and what to do."""


class SinkProblem(NamedTuple):
    """A setting of a sink that is missing or invalid."""

    field: str
    """The name of the field of `SinkSettings`."""
    message: str


def check_sink(settings: SinkSettings, *, known_types: frozenset[str]) -> Iterator[SinkProblem]:
    """Yield the problems of the settings of a sink."""
    for record_type in settings.types:
        if record_type not in known_types:
            known = ", ".join(sorted(known_types))
            yield SinkProblem("types", f"{record_type!r} is not a type of record: known are {known}")
    if settings.kind is SinkKind.FILE:
        if settings.path is None:
            yield SinkProblem("path", "is missing: a sink of the kind file needs the file")
        return
    if not settings.url:
        yield SinkProblem("url", f"is missing: a sink of the kind {settings.kind.value} needs the URL of its receiver")
    elif settings.kind is SinkKind.SYSLOG:
        try:
            read_syslog_url(settings.url)
        except InvalidSyslogUrl as error:
            yield SinkProblem("url", str(error))
    elif not _is_http_url(settings.url):
        yield SinkProblem("url", f"{settings.url!r} is not the URL of a receiver: write https://host/path")
    if not settings.secret_header.replace("-", "").isalnum() or not settings.secret_header.isascii():
        yield SinkProblem(
            "secret_header", f"{settings.secret_header!r} is not a header name: use letters, digits and `-`"
        )
    if settings.kind is SinkKind.S3:
        if not settings.bucket:
            yield SinkProblem("bucket", "is missing: a sink of the kind s3 needs a bucket")
        if not settings.access_key or not settings.secret_key:
            yield SinkProblem("access_key", "is missing: a sink of the kind s3 needs a file with its two keys")


def _is_http_url(text: str) -> bool:
    """Return whether this is a URL without credentials, which belong in a file. A query is allowed."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        return False


def read_sink_secret(path: Path, kind: SinkKind) -> dict[str, str]:
    """Return the fields of `SinkSettings` that the file of a sink's secret sets. Raises `InvalidSecretFile`.

    Only the owner of the file may have access to it. It has one line; for `s3` the access key and the secret key, in one
    line each.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read(MAX_SECRET_BYTES).decode("ascii").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSecretFile(f"{path} cannot be read: {error}") from None
    if mode & 0o077:
        raise InvalidSecretFile(f"other users can access {path}: run chmod 600 {path}")
    secrets = [line.strip() for line in lines if line.strip()]
    names = ("access_key", "secret_key") if kind is SinkKind.S3 else ("secret",)
    if len(secrets) != len(names) or not all(secret.isprintable() for secret in secrets):
        needed = "two lines, the access key and the secret key" if kind is SinkKind.S3 else "one line with the secret"
        raise InvalidSecretFile(f"{path} does not contain {needed}")
    return dict(zip(names, secrets, strict=True))
