"""Reads the settings file of a limiter. All problems are reported together, with line and column."""

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from wharf.limits.config.credential_reader import CredentialReader
from wharf.limits.config.schema import ADDRESSES, DECISIONS, GATEWAY, META, ROOT, SERVE, SINK, STORE, TABLES, WEBHOOK
from wharf.limits.config.settings import (
    MEBIBYTE,
    DecisionLogSettings,
    GatewaySettings,
    LimiterSettings,
    ServeSettings,
    StoreKind,
    StoreSettings,
    Upstream,
)
from wharf.limits.core.callers.addresses import InvalidProxies, ProxySettings, read_proxies
from wharf.limits.core.resources import parse_owner_pattern
from wharf.limits.core.route import BadPattern
from wharf.limits.rules.document import TableEntry, TomlDocument, format_key, suggest_name
from wharf.limits.rules.rules_file import PROFILES, TABLE_NAMES
from wharf.limits.rules.schema import ROOT as RULES_ROOT
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.redis.quota_leases import QuotaSettings
from wharf.limits.stores.redis.settings import RedisSettings
from wharf.limits.toml.problems import InvalidFile
from wharf.sinks.checks import InvalidSecretFile, check_sink, read_sink_secret
from wharf.sinks.settings import MAX_SINKS, SinkKind, SinkSettings
from wharf.world.addresses import is_loopback, split_host_and_port

MIN_ADMIN_TOKEN_CHARACTERS: Final = 20
"""Shorter tokens could be guessed."""
_TIMEOUT_FIELDS: Final = {
    "connect_timeout": "connect_ms",
    "upstream_timeout": "upstream_ms",
    "head_timeout": "head_ms",
    "idle_timeout": "idle_ms",
    "drain_timeout": "drain_ms",
}
_GATEWAY_FIELDS: Final = (
    "head_bytes_most",
    "headers_most",
    "connections_most",
    "connections_per_address",
    "upstream_connections_most",
    "body_rate_least",
)
_SERVE_TIMEOUT_FIELDS: Final = {"head_timeout": "head_ms", "idle_timeout": "idle_ms", "drain_timeout": "drain_ms"}
_SERVE_FIELDS: Final = ("connections_most", "streams_most", "calls_most", "message_bytes_most")
_REDIS_FIELDS: Final = ("addresses", "service", "database", "user", "tls", "prefix", "wait_replicas")
_REDIS_STORE_KEYS: Final = frozenset(key.name for key in STORE.keys) - {"saved", "socket"}
_STORE_KEYS: Final = {
    # `wait_ms` and `losses_most` are for the neighbours, which get the settings of the process with `memory`.
    StoreKind.MEMORY: frozenset({"kind", "saved", "socket", "wait_ms", "losses_most"}),
    StoreKind.NEIGHBOUR: frozenset({"kind", "socket", "wait_ms", "losses_most", "fallback_processes"}),
    StoreKind.REDIS: _REDIS_STORE_KEYS,
}
_UNUSED_KEY_MESSAGES: Final = {
    StoreKind.MEMORY: 'is only for Redis: add `kind = "redis"`, or remove the key',
    StoreKind.NEIGHBOUR: "is not used by a neighbour, which has no counters of its own: remove the key",
    StoreKind.REDIS: "is only for counters in memory: remove the key",
}
_GUARD_FIELDS: Final = ("wait_ms", "losses_most", "fallback_processes")


LIMITER_RECORD_TYPES: Final = ("limits.decision", "limits.audit", "sink.loss")
"""The types of records that a limiter sends, which sinks can select."""
_SINK_FIELDS: Final = {
    "name": "name",
    "kind": "kind",
    "types": "types",
    "url": "url",
    "facility": "facility",
    "format": "format",
    "secret_header": "secret_header",
    "bucket": "bucket",
    "prefix": "prefix",
    "region": "region",
    "rotate_files": "rotate_files",
    "rotate_every": "rotate_ms",
    "compress": "is_compressed",
}
_SINK_SIZES: Final = {
    "rotate_megabytes": ("rotate_bytes", 1_000_000),
    "spool_megabytes_most": ("spool_bytes", MEBIBYTE),
    "timeout": ("timeout_ms", 1_000),
}
_COMMON_SINK_KEYS: Final = frozenset({"name", "kind", "types", "spool_megabytes_most", "timeout"})
_SINK_KEYS: Final = {
    SinkKind.FILE: frozenset({"path", "rotate_megabytes", "rotate_every", "rotate_files"}),
    SinkKind.SYSLOG: frozenset({"url", "facility", "ca_file"}),
    SinkKind.HTTP: frozenset({"url", "format", "compress", "secret_file", "secret_header", "ca_file"}),
    SinkKind.OTLP: frozenset({"url", "compress", "secret_file", "secret_header", "ca_file"}),
    SinkKind.S3: frozenset({"url", "bucket", "prefix", "region", "secret_file", "ca_file"}),
}


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class InvalidUpstream(ValueError):
    """The URL of a service that cannot be used. The text shows a correct example."""


def read_settings(text: str, file: str = "limits.toml", *, folder: Path = Path()) -> LimiterSettings:
    """Return the limiter settings in a text. `file` is the name of the file, for messages.

    Relative paths in it start from `folder`. Raises `InvalidFile` with all problems of the text.
    """
    document = TomlDocument(text, file)
    document.check_names(_list_names())
    reader = _SettingsReader(document, folder)
    settings = reader.read()
    document.raise_problems()
    return settings


def _list_names() -> set[str]:
    """Return the names of all keys and tables at the top of a settings file."""
    return {key.name for key in ROOT.keys} | {table.name for table in TABLES if table.name} | {META}


def is_settings_text(text: str) -> bool:
    """Return whether a text that is not a valid rules file has a key or table that only settings files have."""
    try:
        names = set(TomlDocument(text, "").raw)
    except InvalidFile:
        return False
    rules_names = {key.name for key in RULES_ROOT.keys} | TABLE_NAMES
    return bool(names & (_list_names() - rules_names)) and not names & TABLE_NAMES


def read_upstream(text: str) -> Upstream:
    """Return host, port and path of the service at a URL. Raises `InvalidUpstream` if the URL cannot be used."""
    error = InvalidUpstream(f"{text!r} is not the URL of a service: write a URL such as http://127.0.0.1:3000")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise error from None
    if parts.scheme not in ("http", "https") or port == 0 or parts.query or parts.username or not text.isprintable():
        raise error
    if _HOST_NAME.fullmatch(host) is None and not _is_ipv6(host):
        raise error
    is_tls = parts.scheme == "https"
    return Upstream(host=host, port=port or (443 if is_tls else 80), is_tls=is_tls, base_path=parts.path.rstrip("/"))


def _is_ipv6(host: str) -> bool:
    """Return whether the host is an IPv6 address."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class _SettingsReader:
    """Reads the tables of one settings file, and records its problems in the document."""

    def __init__(self, document: TomlDocument, folder: Path) -> None:
        self._document = document
        self._folder = folder

    def read(self) -> LimiterSettings:
        """Return the settings in all tables of the file. Problems are recorded in the document, not raised."""
        names = {key.name for key in ROOT.keys}
        raw = {name: value for name, value in self._document.raw.items() if name in names}
        top = self._document.read_entry(ROOT, raw, (), set())
        values = top.values
        profile = values.get("profile", "code-host")
        if profile not in PROFILES:
            self._add_problem(top, "profile", f"{profile!r} is not a profile{suggest_name(profile, set(PROFILES))}")
        if "profile" in values and "rules" in values:
            self._add_problem(top, "profile", "is only for a limiter without a rules file: set it in the rules file")
        meta = self._document.raw.get(META, {})
        if not isinstance(meta, dict):
            self._document.add_problem(self._document.get_location((META,)), META, "must be a table: write [meta]")
            meta = {}
        fields: dict[str, Any] = {}
        if "request_id_header" in values:
            fields["request_id_header"] = self._read_request_id_header(top)
        if "owner_paths" in values:
            fields["owner_paths"] = self._read_owner_paths(top)
        if "data_folder" in values:
            fields["data_folder"] = self._resolve_path(values, "data_folder")
        if "admin_listen" in values or "admin_token_file" in values:
            fields |= self._read_admin_address(top)
        store = self._read_store()
        return LimiterSettings(
            rules_file=self._resolve_path(values, "rules"),
            profile=profile,
            directory_file=self._resolve_path(values, "directory"),
            admin_socket=self._resolve_path(values, "admin_socket"),
            proxies=self._read_proxies(),
            store=store,
            credentials=CredentialReader(self._document, self._folder, top).read(store.kind),
            gateway=self._read_gateway(),
            serve=self._read_serve(),
            decisions=self._read_decisions(),
            webhook_url=self._read_webhook(),
            has_insights=values.get("insights", False),
            sinks=self._read_sinks(),
            meta=msgspec.to_builtins(meta),
            **fields,
        )

    def _resolve_path(self, values: Any, name: str) -> Path | None:
        """Return the path that the key `name` sets, relative to the folder of the file; `None` if it is not set."""
        return self._folder / str(values[name]) if name in values else None

    def _add_problem(self, entry: TableEntry, key: str, message: str) -> None:
        key_name = f"{entry.path[0]}.{key}" if entry.path else key
        self._document.add_problem(entry.locations.get(key, entry.location), key_name, message)

    def _read_request_id_header(self, top: TableEntry) -> str:
        """Return the name of the request id header in lowercase. An invalid name is recorded as a problem."""
        name = str(top.values["request_id_header"])
        if not name.isascii() or not name.replace("-", "").isalnum():
            self._add_problem(top, "request_id_header", f"{name!r} is not a header name: use letters, digits and `-`")
        return name.lower()

    def _read_owner_paths(self, top: TableEntry) -> tuple[str, ...]:
        """Return the patterns of paths with an owner. Each that is invalid is recorded as a problem."""
        patterns = tuple(top.values["owner_paths"])
        for text in patterns:
            try:
                parse_owner_pattern(text)
            except BadPattern as problem:
                self._add_problem(top, "owner_paths", str(problem))
        return patterns

    def _read_admin_address(self, top: TableEntry) -> dict[str, Any]:
        """Return the settings `admin_host`, `admin_port` and `admin_token`; empty if the address or the token file is invalid.

        The address must be on this machine. Problems are recorded in the document.
        """
        values = top.values
        if ("admin_listen" in values) is not ("admin_token_file" in values):
            key = "admin_listen" if "admin_listen" in values else "admin_token_file"
            self._add_problem(top, key, "is set alone: set both `admin_listen` and `admin_token_file`")
            return {}
        address = str(values["admin_listen"])
        parts = split_host_and_port(address)
        if parts is None or not is_loopback(parts.host):
            message = (
                f"{address!r} is not a local address: write 127.0.0.1:port, and connect from other machines by ssh"
            )
            self._add_problem(top, "admin_listen", message)
            return {}
        return {
            "admin_host": parts.host,
            "admin_port": parts.port,
            "admin_token": self._read_secret(top, "admin_token_file"),
        }

    def _read_secret(self, entry: TableEntry, key: str) -> str:
        """Return the token or secret in the file that a key names; empty if the file cannot be read.

        One that is too short, and a file that other users can access, are recorded as problems.
        """
        path = self._folder / str(entry.values[key])
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(4_096).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._add_problem(entry, key, f"{path} cannot be read: {problem}")
            return ""
        if mode & 0o077:
            self._add_problem(entry, key, f"other users can access {path}: run chmod 600 {path}")
        if len(token) < MIN_ADMIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
            self._add_problem(
                entry,
                key,
                f"{path} does not hold a valid token: write at least {MIN_ADMIN_TOKEN_CHARACTERS} characters into it",
            )
        return token

    def _read_proxies(self) -> ProxySettings:
        """Return the settings of the proxies in front of the service. A contradiction is recorded as a problem."""
        entry = self._document.read_table(ADDRESSES, "addresses")
        values = entry.values
        try:
            return read_proxies(
                trusted=values.get("trusted", ()),
                hops=values.get("hops", 0),
                should_read_forwarded=values.get("forwarded", False),
            )
        except InvalidProxies as problem:
            self._document.add_problem(entry.locations.get("trusted", entry.location), "addresses", str(problem))
            return ProxySettings()

    def _read_store(self) -> StoreSettings:
        """Return the store settings. Keys that the selected store does not use are recorded as problems."""
        entry = self._document.read_table(STORE, "store")
        values = entry.values
        kind = values.get("kind", StoreKind.MEMORY)
        for key in values.keys() - _STORE_KEYS[kind]:
            self._add_problem(entry, key, _UNUSED_KEY_MESSAGES[kind])
        if kind is StoreKind.NEIGHBOUR and "socket" not in values:
            self._add_problem(entry, "kind", "needs `socket`, the socket of the counter server")
        redis = {name: values[name] for name in _REDIS_FIELDS if name in values}
        for address in redis.get("addresses", ()):
            if split_host_and_port(address) is None:
                self._add_problem(
                    entry, "addresses", f"{address!r} is not an address: write host:port, such as 127.0.0.1:6379"
                )
        for name in ("ca_file", "certificate_file", "key_file"):
            if name in values:
                redis[name] = str(self._resolve_path(values, name))
        if "password_file" in values:
            redis["password"] = self._read_password(entry)
        if "topology" in values:
            redis["kind"] = values["topology"]
        leases = None
        if values.get("leases"):
            leases = QuotaSettings(size=values.get("lease_size", 50), processes=values.get("lease_processes", 8))
        return StoreSettings(
            kind=kind,
            is_saved=values.get("saved", True),
            socket=self._resolve_path(values, "socket"),
            redis=RedisSettings(**redis),
            guard=GuardSettings(**{name: values[name] for name in _GUARD_FIELDS if name in values}),
            leases=leases,
        )

    def _read_password(self, entry: TableEntry) -> str | None:
        """Return the content of the Redis password file; `None` and a recorded problem if it cannot be read."""
        path = self._folder / str(entry.values["password_file"])
        try:
            return path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._add_problem(entry, "password_file", f"{path} cannot be read: {problem}")
            return None

    def _read_gateway(self) -> GatewaySettings:
        """Return the gateway settings. Invalid addresses and incomplete pairs of keys are recorded as problems."""
        entry = self._document.read_table(GATEWAY, "gateway")
        values = entry.values
        fields: dict[str, Any] = {field: values[name] for name, field in _TIMEOUT_FIELDS.items() if name in values}
        fields |= {name: values[name] for name in _GATEWAY_FIELDS if name in values}
        if "upstream" in values:
            try:
                fields["upstream"] = read_upstream(values["upstream"])
            except InvalidUpstream as problem:
                self._add_problem(entry, "upstream", str(problem))
        fields |= self._read_listen_addresses(entry, (("listen", ""), ("metrics_listen", "metrics_")))
        fields |= self._read_certificate_files(entry, "upstream_ca_file")
        if "trust_marks" in values:
            fields["trusts_marks"] = values["trust_marks"]
        return GatewaySettings(**fields)

    def _read_listen_addresses(self, entry: TableEntry, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return the host and the port of each key that is set. Each name is a pair of the key and the beginning of the fields.

        Values that are no addresses are recorded as problems.
        """
        fields: dict[str, Any] = {}
        for name, prefix in names:
            if name not in entry.values:
                continue
            text = entry.values[name]
            parts = split_host_and_port(text)
            if parts is None:
                message = f"{text!r} is not an address: write host:port, such as 0.0.0.0:8080"
                self._add_problem(entry, name, message)
            else:
                fields |= {f"{prefix}host": parts.host, f"{prefix}port": parts.port}
        return fields

    def _read_certificate_files(self, entry: TableEntry, ca_key: str) -> dict[str, Any]:
        """Return the paths of certificate, key and CA certificate that are set. An incomplete pair is recorded as a problem."""
        names = ("certificate_file", "key_file", ca_key)
        fields: dict[str, Any] = {
            name: self._resolve_path(entry.values, name) for name in names if name in entry.values
        }
        if ("certificate_file" in fields) is not ("key_file" in fields):
            key = "certificate_file" if "certificate_file" in fields else "key_file"
            self._add_problem(entry, key, "is set alone: set both `certificate_file` and `key_file`")
        return fields

    def _read_serve(self) -> ServeSettings:
        """Return the settings of the servers for proxies. Invalid and incomplete settings are recorded as problems."""
        entry = self._document.read_table(SERVE, "serve")
        values = entry.values
        fields: dict[str, Any] = {
            field: values[name] for name, field in _SERVE_TIMEOUT_FIELDS.items() if name in values
        }
        fields |= {name: values[name] for name in _SERVE_FIELDS if name in values}
        listen_keys = (("grpc_listen", "grpc_"), ("check_listen", "check_"), ("metrics_listen", "metrics_"))
        fields |= self._read_listen_addresses(entry, listen_keys)
        fields |= self._read_certificate_files(entry, "client_ca_file")
        if "client_ca_file" in fields and "certificate_file" not in fields:
            self._add_problem(entry, "client_ca_file", "needs TLS: set `certificate_file` and `key_file` too")
        if "check_secret_file" in values:
            fields["check_secret"] = self._read_secret(entry, "check_secret_file")
        elif "check_host" in fields and not is_loopback(fields["check_host"]):
            message = (
                f"other machines can reach {values['check_listen']}: set `check_secret_file`, so that only your proxies "
                "can report addresses and paths, or listen on 127.0.0.1"
            )
            self._add_problem(entry, "check_listen", message)
        return ServeSettings(**fields)

    def _read_webhook(self) -> str:
        """Return the URL of the webhook, or an empty text if it is not set. An invalid URL is recorded as a problem."""
        entry = self._document.read_table(WEBHOOK, "webhook")
        url = str(entry.values.get("url", ""))
        if url and not (url.startswith(("http://", "https://")) and urlsplit(url).netloc):
            self._add_problem(entry, "url", f"{url!r} is not a URL: write https://host/path")
        return url

    def _read_sinks(self) -> tuple[SinkSettings, ...]:
        """Return the settings of all sinks. Keys that do not fit their kind are recorded as problems."""
        sinks: list[SinkSettings] = []
        names: set[str] = set()
        for entry in self._document.read_entries(SINK, self._document.raw, (), SINK.name, set()):
            name, kind = entry.values.get("name"), entry.values.get("kind")
            if name is None or kind is None:
                continue  # Recorded as missing.
            if name in names:
                self._add_sink_problem(entry, "name", f"{name!r} is the name of two sinks")
            names.add(name)
            sinks.append(self._read_sink(entry))
        if len(sinks) > MAX_SINKS:
            location = self._document.get_location((SINK.name,))
            self._document.add_problem(
                location, SINK.name, f"{len(sinks)} sinks are more than {MAX_SINKS}: remove some"
            )
        return tuple(sinks)

    def _read_sink(self, entry: TableEntry) -> SinkSettings:
        """Return the settings of one sink. Invalid and missing keys are recorded as problems."""
        values = entry.values
        kind: SinkKind = values["kind"]
        fields: dict[str, Any] = {field: values[name] for name, field in _SINK_FIELDS.items() if name in values}
        fields |= {field: values[name] * factor for name, (field, factor) in _SINK_SIZES.items() if name in values}
        for name in ("path", "ca_file"):
            if name in values:
                fields[name] = self._folder / str(values[name])
        fields["ca_file"] = str(fields.get("ca_file", ""))
        if "secret_file" in values:
            fields |= self._read_sink_secret(entry, kind)
        for name in values:
            if name not in _COMMON_SINK_KEYS and name not in _SINK_KEYS[kind]:
                self._add_sink_problem(entry, name, f"is not used by a sink of the kind {kind.value}: remove the key")
        settings = SinkSettings(**fields)
        for problem in check_sink(settings, known_types=frozenset(LIMITER_RECORD_TYPES)):
            key = "secret_file" if problem.field in ("access_key", "secret") else problem.field
            self._add_sink_problem(entry, key, problem.message)
        return settings

    def _read_sink_secret(self, entry: TableEntry, kind: SinkKind) -> dict[str, str]:
        """Return the secrets of a sink from its file; empty if it cannot be read, which is recorded as a problem."""
        path = self._folder / str(entry.values["secret_file"])
        try:
            return read_sink_secret(path, kind)
        except InvalidSecretFile as problem:
            self._add_sink_problem(entry, "secret_file", str(problem))
            return {"access_key": "unread", "secret_key": "unread"} if kind is SinkKind.S3 else {}

    def _add_sink_problem(self, entry: TableEntry, key: str, message: str) -> None:
        self._document.add_problem(entry.locations.get(key, entry.location), format_key(entry.path, key), message)

    def _read_decisions(self) -> DecisionLogSettings:
        """Return the settings of the decision log."""
        values = self._document.read_table(DECISIONS, "decisions").values
        fields: dict[str, Any] = {}
        for name, field in (
            ("kept", "is_kept"),
            ("one_in", "one_in"),
            ("keep", "kept_ms"),
            ("cut_addresses", "cuts_addresses"),
            ("shared_most", "shared_most"),
        ):
            if name in values:
                fields[field] = values[name]
        if "megabytes_most" in values:
            fields["bytes_most"] = values["megabytes_most"] * MEBIBYTE
        return DecisionLogSettings(**fields)


def list_changed_keys(before: str, after: str) -> list[str]:
    """Return the keys whose values differ in two texts of a settings file, such as `[gateway] listen`, in order.

    An entry in a list of tables has no name, so such a list is one key. Raises `tomllib.TOMLDecodeError`.
    """
    old, new = (dict(_iter_values(tomllib.loads(text))) for text in (before, after))
    return sorted(key for key in old.keys() | new.keys() if key not in old or key not in new or old[key] != new[key])


def _iter_values(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each key of a document with its value."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from ((f"[{name}] {key}", inner) for key, inner in value.items())
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"[[{name}]]", value
        else:
            yield name, value
