"""Reads the file that sets up a limiter: all or nothing, every problem with its line and column."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from wharf.limits.config.schema import ADDRESSES, DECISIONS, GATEWAY, META, ROOT, STORE, TABLES, WEBHOOK
from wharf.limits.config.settings import (
    MEBIBYTE,
    DecisionLogSettings,
    GatewaySettings,
    LimiterSettings,
    StoreKind,
    StoreSettings,
    Upstream,
)
from wharf.limits.core.callers.addresses import InvalidProxies, ProxySettings, read_proxies
from wharf.limits.rules.document import TableEntry, TomlDocument, suggest_name
from wharf.limits.rules.rules_file import PROFILES
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.quota_leases import QuotaSettings
from wharf.limits.stores.redis.settings import RedisSettings

MAX_PORT: Final = 65_535
MIN_ADMIN_TOKEN_CHARACTERS: Final = 20
_DURATIONS: Final = {
    "connect_timeout": "connect_ms",
    "upstream_timeout": "upstream_ms",
    "head_timeout": "head_ms",
    "idle_timeout": "idle_ms",
    "drain_timeout": "drain_ms",
}
_PLAIN_OF_GATEWAY: Final = ("head_bytes_most", "headers_most", "connections_most", "upstream_connections_most")
_OF_REDIS: Final = ("addresses", "service", "database", "user", "tls", "prefix", "wait_replicas")
_KEYS_OF_REDIS: Final = frozenset(key.name for key in STORE.keys) - {"saved", "socket"}
_OF_STORES: Final = {
    # How long they wait is told to neighbours by whoever makes them, as the agent does for processes of the API.
    StoreKind.MEMORY: frozenset({"kind", "saved", "socket", "wait_ms", "losses_most"}),
    StoreKind.NEIGHBOUR: frozenset({"kind", "socket", "wait_ms", "losses_most", "fallback_processes"}),
    StoreKind.REDIS: _KEYS_OF_REDIS,
}
_NOT_OF_STORES: Final = {
    StoreKind.MEMORY: 'is for Redis only: add `kind = "redis"`, or leave it out',
    StoreKind.NEIGHBOUR: "is for whoever counts itself, which a neighbour does not: leave it out",
    StoreKind.REDIS: "is for counters in memory: leave it out",
}
_OF_GUARD: Final = ("wait_ms", "losses_most", "fallback_processes")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class InvalidUpstream(ValueError):
    """An address of a service that cannot be used. Its text says what is expected."""


def read_settings(text: str, file: str = "limits.toml", *, folder: Path = Path()) -> LimiterSettings:
    """Read the file. Raises FileRefused with everything that is wrong with it. Paths in it start from `folder`."""
    document = TomlDocument(text, file)
    names = {table.name for table in TABLES if table.name}
    document.check_names({key.name for key in ROOT.keys} | names | {META})
    reader = _Reader(document, folder)
    settings = reader.read()
    document.raise_problems()
    return settings


def read_upstream(text: str) -> Upstream:
    refused = InvalidUpstream(f"{text!r} is no address of a service: write http://127.0.0.1:3000")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise refused from None
    if parts.scheme not in ("http", "https") or port == 0 or parts.query or parts.username or not text.isprintable():
        raise refused
    if _HOST_NAME.fullmatch(host) is None and not _is_ipv6(host):
        raise refused
    is_tls = parts.scheme == "https"
    return Upstream(host=host, port=port or (443 if is_tls else 80), is_tls=is_tls, base_path=parts.path.rstrip("/"))


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class _Reader:
    def __init__(self, document: TomlDocument, folder: Path) -> None:
        self._document = document
        self._folder = folder

    def read(self) -> LimiterSettings:
        names = {key.name for key in ROOT.keys}
        raw = {name: value for name, value in self._document.raw.items() if name in names}
        top = self._document.read_entry(ROOT, raw, (), set())
        values = top.values
        profile = values.get("profile", "code-host")
        if profile not in PROFILES:
            self._note(top, "profile", f"{profile!r} is no profile{suggest_name(profile, set(PROFILES))}")
        if "profile" in values and "rules" in values:
            self._note(top, "profile", "is for a limiter without a rules file: write it into the rules file")
        meta = self._document.raw.get(META, {})
        if not isinstance(meta, dict):
            self._document.add_problem(self._document.get_location((META,)), META, "is a table: write [meta]")
            meta = {}
        plain: dict[str, Any] = {}
        if "request_id_header" in values:
            plain["request_id_header"] = self._header(top)
        if "data_folder" in values:
            plain["data_folder"] = self._path(values, "data_folder")
        if "admin_listen" in values or "admin_token_file" in values:
            plain |= self._admin(top)
        return LimiterSettings(
            rules_file=self._path(values, "rules"),
            profile=profile,
            directory_file=self._path(values, "directory"),
            admin_socket=self._path(values, "admin_socket"),
            proxies=self._proxies(),
            store=self._store(),
            gateway=self._gateway(),
            decisions=self._decisions(),
            webhook_url=self._webhook(),
            has_insights=values.get("insights", False),
            meta=msgspec.to_builtins(meta),
            **plain,
        )

    def _path(self, values: Any, name: str) -> Path | None:
        return self._folder / str(values[name]) if name in values else None

    def _note(self, entry: TableEntry, key: str, what: str) -> None:
        said = f"{entry.path[0]}.{key}" if entry.path else key
        self._document.add_problem(entry.locations.get(key, entry.location), said, what)

    def _header(self, top: TableEntry) -> str:
        name = str(top.values["request_id_header"])
        if not name.isascii() or not name.replace("-", "").isalnum():
            self._note(top, "request_id_header", f"{name!r} is no name of a header: use letters, digits and `-`")
        return name.lower()

    def _admin(self, top: TableEntry) -> dict[str, Any]:
        values = top.values
        if ("admin_listen" in values) is not ("admin_token_file" in values):
            key = "admin_listen" if "admin_listen" in values else "admin_token_file"
            self._note(top, key, "needs the other of `admin_listen` and `admin_token_file` beside it")
            return {}
        address = str(values["admin_listen"])
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not self._is_address(address) or not is_loopback(host):
            what = f"{address!r} is not on this machine alone: write 127.0.0.1:port; from elsewhere go by ssh"
            self._note(top, "admin_listen", what)
            return {}
        return {"admin_host": host, "admin_port": int(port), "admin_token": self._admin_token(top)}

    def _admin_token(self, top: TableEntry) -> str:
        path = self._folder / str(top.values["admin_token_file"])
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(4_096).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._note(top, "admin_token_file", f"{path} cannot be read: {problem}")
            return ""
        if mode & 0o077:
            self._note(top, "admin_token_file", f"others may read {path}: chmod 600 {path}")
        if len(token) < MIN_ADMIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
            self._note(
                top,
                "admin_token_file",
                f"{path} holds no token: write {MIN_ADMIN_TOKEN_CHARACTERS} signs or more into it",
            )
        return token

    def _proxies(self) -> ProxySettings:
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

    def _store(self) -> StoreSettings:
        entry = self._document.read_table(STORE, "store")
        values = entry.values
        kind = values.get("kind", StoreKind.MEMORY)
        for key in values.keys() - _OF_STORES[kind]:
            self._note(entry, key, _NOT_OF_STORES[kind])
        if kind is StoreKind.NEIGHBOUR and "socket" not in values:
            self._note(entry, "kind", "needs `socket`: where the process that counts listens")
        redis = {name: values[name] for name in _OF_REDIS if name in values}
        for address in redis.get("addresses", ()):
            if not self._is_address(address):
                self._note(entry, "addresses", f"{address!r} is no address: write host:port, as 127.0.0.1:6379")
        for name in ("ca_file", "certificate_file", "key_file"):
            if name in values:
                redis[name] = str(self._path(values, name))
        if "password_file" in values:
            redis["password"] = self._secret(entry)
        if "topology" in values:
            redis["kind"] = values["topology"]
        leases = None
        if values.get("leases"):
            leases = QuotaSettings(size=values.get("lease_size", 50), processes=values.get("lease_processes", 8))
        return StoreSettings(
            kind=kind,
            is_saved=values.get("saved", True),
            socket=self._path(values, "socket"),
            redis=RedisSettings(**redis),
            guard=GuardSettings(**{name: values[name] for name in _OF_GUARD if name in values}),
            leases=leases,
        )

    def _secret(self, entry: TableEntry) -> str | None:
        path = self._folder / str(entry.values["password_file"])
        try:
            return path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._note(entry, "password_file", f"{path} cannot be read: {problem}")
            return None

    def _is_address(self, text: str) -> bool:
        host, _, port = text.rpartition(":")
        return bool(host) and port.isascii() and port.isdigit() and 0 <= int(port[:6]) <= MAX_PORT

    def _gateway(self) -> GatewaySettings:
        entry = self._document.read_table(GATEWAY, "gateway")
        values = entry.values
        found: dict[str, Any] = {ours: values[name] for name, ours in _DURATIONS.items() if name in values}
        found |= {name: values[name] for name in _PLAIN_OF_GATEWAY if name in values}
        if "upstream" in values:
            try:
                found["upstream"] = read_upstream(values["upstream"])
            except InvalidUpstream as problem:
                self._note(entry, "upstream", str(problem))
        for name, prefix in (("listen", ""), ("metrics_listen", "metrics_")):
            if name not in values:
                continue
            if self._is_address(values[name]):
                host, _, port = values[name].rpartition(":")
                found |= {f"{prefix}host": host.strip("[]"), f"{prefix}port": int(port)}
            else:
                self._note(entry, name, f"{values[name]!r} is no address: write host:port, as 0.0.0.0:8080")
        for name in ("certificate_file", "key_file", "upstream_ca_file"):
            if name in values:
                found[name] = self._path(values, name)
        if ("certificate_file" in values) is not ("key_file" in values):
            key = "certificate_file" if "certificate_file" in values else "key_file"
            self._note(entry, key, "needs the other of `certificate_file` and `key_file` beside it")
        if "trust_marks" in values:
            found["trusts_marks"] = values["trust_marks"]
        return GatewaySettings(**found)

    def _webhook(self) -> str:
        entry = self._document.read_table(WEBHOOK, "webhook")
        url = str(entry.values.get("url", ""))
        if url and not (url.startswith(("http://", "https://")) and urlsplit(url).netloc):
            self._note(entry, "url", f"{url!r} is no address: write https://host/path")
        return url

    def _decisions(self) -> DecisionLogSettings:
        values = self._document.read_table(DECISIONS, "decisions").values
        found: dict[str, Any] = {}
        for name, ours in (
            ("kept", "is_kept"),
            ("one_in", "one_in"),
            ("keep", "kept_ms"),
            ("cut_addresses", "cuts_addresses"),
            ("shared_most", "shared_most"),
        ):
            if name in values:
                found[ours] = values[name]
        if "megabytes_most" in values:
            found["bytes_most"] = values["megabytes_most"] * MEBIBYTE
        return DecisionLogSettings(**found)
