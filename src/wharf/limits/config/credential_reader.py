"""Reads the tables about credentials of a settings file, and records contradictions between their keys."""

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from wharf.limits.config.credential_settings import (
    CLAIMS_OF_QUESTIONS,
    CLAIMS_OF_TOKENS,
    ClaimNames,
    CredentialMode,
    CredentialSettings,
    OpaqueSettings,
    QuestionKind,
    ResolverSettings,
    TokenSettings,
)
from wharf.limits.config.schema import CARRIERS, CLAIM_KEYS, OPAQUE, RESOLVER, REVOCATION, TOKENS
from wharf.limits.config.settings import StoreKind
from wharf.limits.core.callers.carriers import CarrierSettings, normalize_header_name
from wharf.limits.core.route import BadPattern, parse_pattern
from wharf.limits.rules.document import TableEntry, TomlDocument
from wharf.world.addresses import is_loopback

MIN_SECRET_CHARACTERS: Final = 20
"""Shorter secrets could be guessed."""
MAX_SECRET_BYTES: Final = 4_096
"""The longest secret file that is read; limits memory."""
ALGORITHMS: Final = frozenset(
    {*(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)), "EdDSA"}
)
"""Algorithms with public keys. Others would need the secret of the issuer."""
SET_BY_GATEWAY: Final = frozenset({"authorization", "cookie", "host", "content-length", "x-forwarded-for", "forwarded"})
"""Headers that cannot be named as carriers."""
_CLAIMS: Final = tuple(key.name for key in CLAIM_KEYS)


class CredentialReader:
    """Reads the settings of credentials. Problems are recorded in the document, not raised."""

    def __init__(self, document: TomlDocument, folder: Path, top: TableEntry) -> None:
        self._document = document
        self._folder = folder
        self._top = top
        self._mode: CredentialMode = top.values.get("credentials", CredentialMode.LISTED)

    def read(self, store: StoreKind) -> CredentialSettings:
        """Return the settings. `store` decides whether processes must share a key."""
        values, mode = self._top.values, self._mode
        entries = {table.name: self._document.read_table(table, table.name) for table in (CARRIERS, OPAQUE, RESOLVER)}
        for name in ("carriers", "opaque", "resolver", "jwt", "revocation"):
            if mode is CredentialMode.LISTED and name in self._document.raw:
                self._document.add_problem(
                    self._document.get_location((name,)),
                    name,
                    'is only for unlisted credentials: set `credentials = "opaque"` or `"resolved"`, or remove the table',
                )
        if mode is CredentialMode.LISTED:
            if "credential_key_file" in values:
                self._add_problem(
                    self._top,
                    "credential_key_file",
                    'is only for `credentials = "opaque"` or `"resolved"`: remove the key',
                )
            return CredentialSettings()
        key_file = self._folder / str(values["credential_key_file"]) if "credential_key_file" in values else None
        if key_file is None and store is not StoreKind.MEMORY:
            self._add_problem(
                self._top,
                "credentials",
                "processes that share counters need the same secret key: set `credential_key_file` to the same content in all",
            )
        carriers = self._read_carriers(entries["carriers"])
        opaque = self._read_opaque(entries["opaque"])
        if carriers.cookies and mode is CredentialMode.OPAQUE and not opaque.sessions_accepted_on:
            self._add_problem(
                entries["carriers"],
                "cookies",
                "cannot be proved, because services answer unknown sessions as visitors without one: set "
                '`sessions_accepted_on` in `[opaque]` to paths that need a login, or `credentials = "resolved"`',
            )
        return CredentialSettings(
            mode=mode,
            key_file=key_file,
            carriers=carriers,
            opaque=opaque,
            resolver=self._read_resolver(entries["resolver"]),
            tokens=self._read_tokens(),
            **self._read_revocation(),
        )

    def _add_problem(self, entry: TableEntry, key: str, message: str) -> None:
        name = f"{entry.path[0]}.{key}" if entry.path else key
        self._document.add_problem(entry.locations.get(key, entry.location), name, message)

    def _read_carriers(self, entry: TableEntry) -> CarrierSettings:
        """Return where requests carry credentials."""
        values = entry.values
        headers = tuple(name.lower() for name in values.get("headers", ()))
        for name in headers:
            similar_name = normalize_header_name(name.encode("latin-1", "replace")).decode()
            if (
                not name.isascii()
                or not name.replace("-", "").replace("_", "").isalnum()
                or similar_name in SET_BY_GATEWAY
            ):
                self._add_problem(entry, "headers", f"{name!r} cannot be used: name a header such as PRIVATE-TOKEN")
        fields = {name: values[name] for name in ("cookies", "query", "basic") if name in values}
        return CarrierSettings(headers=headers, **fields)

    def _read_opaque(self, entry: TableEntry) -> OpaqueSettings:
        """Return how opaque credentials count."""
        values = entry.values
        fields = {name: values[name] for name in ("accepted_most", "new_most") if name in values}
        if "accepted_for" in values:
            fields["accepted_ms"] = values["accepted_for"]
        return OpaqueSettings(
            accepted_on=self._read_patterns(entry, "accepted_on"),
            sessions_accepted_on=self._read_patterns(entry, "sessions_accepted_on"),
            **fields,
        )

    def _read_patterns(self, entry: TableEntry, key: str) -> tuple[str, ...]:
        """Return the patterns of method and path at a key, and report those that cannot be read."""
        patterns = tuple(entry.values.get(key, ()))
        for text in patterns:
            try:
                parse_pattern(text)
            except BadPattern as problem:
                self._add_problem(entry, key, str(problem))
        return patterns

    def _read_resolver(self, entry: TableEntry) -> ResolverSettings | None:
        """Return who is asked; `None` without questions."""
        values = entry.values
        if self._mode is not CredentialMode.RESOLVED:
            if "resolver" in self._document.raw:
                self._document.add_problem(
                    entry.location, "resolver", 'is only for `credentials = "resolved"`: set it, or remove the table'
                )
            return None
        if "resolver" not in self._document.raw and "jwt" in self._document.raw:
            return None  # Tokens of the issuer are resolved without a question.
        kind = values.get("kind", QuestionKind.HOST)
        url = str(values.get("url", "/api/v1/user" if kind is QuestionKind.HOST else ""))
        is_path = kind is QuestionKind.HOST and url.startswith("/")
        if not is_path:
            self._check_url(entry, "url", url)
        if kind is QuestionKind.INTROSPECTION and not ("client_id" in values and "secret_file" in values):
            self._add_problem(entry, "kind", "an authorization server needs `client_id` and `secret_file`: set both")
        if kind is QuestionKind.HOST and "secret_file" in values:
            self._add_problem(entry, "secret_file", "is not used for `host`, which gets the credential: remove the key")
        if kind is not QuestionKind.INTROSPECTION and "client_id" in values:
            self._add_problem(entry, "client_id", "is only for `introspection`: remove the key")
        fields: dict[str, Any] = {}
        for name, field in (
            ("client_id", "client_id"),
            ("timeout", "timeout_ms"),
            ("lifetime", "lifetime_ms"),
            ("unknown_lifetime", "unknown_ms"),
            ("accept_unknown", "accepts_unknown"),
            ("answers_most", "answers_most"),
            ("questions_most", "questions_most"),
        ):
            if name in values:
                fields[field] = values[name]
        if "secret_file" in values:
            fields["secret"] = self._read_secret(entry, "secret_file", least=1)
        return ResolverSettings(
            kind=kind,
            url=url,
            claims=self._read_claims(entry, CLAIMS_OF_QUESTIONS[kind]),
            ca_file=self._resolve_path(entry, "ca_file"),
            **fields,
        )

    def _read_tokens(self) -> TokenSettings | None:
        """Return which JSON Web Tokens are verified; `None` for none."""
        if "jwt" not in self._document.raw:
            return None
        entry = self._document.read_table(TOKENS, "jwt")
        values = entry.values
        if ("keys_url" in values) is ("keys_file" in values):
            self._add_problem(entry, "keys_url", "set either `keys_url` or `keys_file`: the public keys of the issuer")
        if "keys_url" in values:
            self._check_url(entry, "keys_url", values["keys_url"])
        for name in values.get("algorithms", ()):
            if name not in ALGORITHMS:
                self._add_problem(
                    entry, "algorithms", f"{name!r} is not accepted: known are {', '.join(sorted(ALGORITHMS))}"
                )
        fields: dict[str, Any] = {
            field: values[name]
            for name, field in (
                ("keys_url", "keys_url"),
                ("audience", "audience"),
                ("algorithms", "algorithms"),
                ("leeway", "leeway_ms"),
                ("refresh", "refresh_ms"),
            )
            if name in values
        }
        return TokenSettings(
            issuer=values.get("issuer", ""),
            claims=self._read_claims(entry, CLAIMS_OF_TOKENS),
            keys_file=self._resolve_path(entry, "keys_file"),
            ca_file=self._resolve_path(entry, "ca_file"),
            **fields,
        )

    def _read_claims(self, entry: TableEntry, defaults: ClaimNames) -> ClaimNames:
        """Return the names of the claims: those that the table sets, and the defaults of the others."""
        return ClaimNames(**{name: entry.values.get(name, getattr(defaults, name)) for name in _CLAIMS})

    def _read_revocation(self) -> dict[str, str]:
        """Return the path and the secret of requests that revoke credentials."""
        entry = self._document.read_table(REVOCATION, "revocation")
        values = entry.values
        if not values:
            return {}
        if not ("path" in values and "secret_file" in values):
            self._add_problem(entry, "path", "is set alone: set both `path` and `secret_file`")
            return {}
        if not str(values["path"]).startswith("/"):
            self._add_problem(entry, "path", f"{values['path']!r} is not a path: begin it with a slash")
        secret = self._read_secret(entry, "secret_file", least=MIN_SECRET_CHARACTERS)
        return {"revocation_path": values["path"], "revocation_secret": secret}

    def _read_secret(self, entry: TableEntry, key: str, *, least: int) -> str:
        """Return the secret in a file; empty and a recorded problem if it cannot be used."""
        path = self._folder / str(entry.values[key])
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                secret = file.read(MAX_SECRET_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._add_problem(entry, key, f"{path} cannot be read: {problem}")
            return ""
        if mode & 0o077:
            self._add_problem(entry, key, f"other users can access {path}: run chmod 600 {path}")
        if len(secret) < least or not secret.isprintable():
            self._add_problem(
                entry, key, f"{path} does not hold a valid secret: write at least {least} characters into it"
            )
        return secret

    def _resolve_path(self, entry: TableEntry, name: str) -> Path | None:
        return self._folder / str(entry.values[name]) if name in entry.values else None

    def _check_url(self, entry: TableEntry, key: str, url: str) -> None:
        """Record a problem for a text that is no URL, and for a URL that sends secrets over a network unencrypted."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            host, parts = "", urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            self._add_problem(entry, key, f"{url!r} is not a URL: write https://host/path")
        elif parts.scheme == "http" and not is_loopback(host):
            self._add_problem(
                entry, key, f"{url!r} would send credentials unencrypted: write https://, or a local address"
            )
