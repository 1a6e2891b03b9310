"""What a limiter in front of a service is told: where rules and accounts stand, the store, the gateway, the log.

These are values. Nothing here reads a file or knows how one is written.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.quota_leases import QuotaSettings
from wharf.limits.stores.redis.settings import RedisSettings

DATA_FOLDER: Final = Path(".wharf/limits")
MEBIBYTE: Final = 1 << 20


class StoreKind(Enum):
    MEMORY = "memory"
    REDIS = "redis"
    NEIGHBOUR = "neighbour"
    """Counters in the memory of another process of this machine."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    kind: StoreKind = StoreKind.MEMORY
    is_saved: bool = True
    """Whether counters in memory are kept over restarts, in the data folder."""
    socket: Path | None = None
    """Where the one that counts in memory listens for its neighbours; None where it has none."""
    redis: RedisSettings = RedisSettings()
    guard: GuardSettings = GuardSettings()
    leases: QuotaSettings | None = None


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The service behind a gateway."""

    host: str
    port: int
    is_tls: bool = False
    base_path: str = ""
    """Stands before every path that is asked for. Without a slash at its end."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.base_path}"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    upstream: Upstream | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_host: str = ""
    """Where metrics are told over TCP too; empty for nowhere."""
    metrics_port: int = 0
    certificate_file: Path | None = None
    key_file: Path | None = None
    upstream_ca_file: Path | None = None
    connect_ms: int = 5_000
    upstream_ms: int = 60_000
    """How long the service may be silent while it owes a reply."""
    head_ms: int = 10_000
    """How long a request's head may take to arrive."""
    idle_ms: int = 75_000
    """How long a connection without a request is kept, and how long a body may pause."""
    drain_ms: int = 10_000
    """How long running requests have at the end."""
    head_bytes_most: int = 64 * 1024
    headers_most: int = 100
    connections_most: int = 20_000
    upstream_connections_most: int = 1_000
    trusts_marks: bool = True
    """Whether the service's `x-wharf-cpu-ms` and `x-wharf-content` are believed. They are never passed on."""


class DecisionLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    is_kept: bool = True
    one_in: int = 100
    """Of admitted requests; all refusals are kept."""
    bytes_most: int = 100 * MEBIBYTE
    kept_ms: int = 24 * 3_600_000
    cuts_addresses: bool = False
    shared_most: int = 20_000
    """How many stand on a shared store, for `why` asked of another process; 0 for none."""


class LimiterSettings(msgspec.Struct, frozen=True, kw_only=True):
    rules_file: Path | None = None
    profile: str = "code-host"
    """The built-in rules that hold without a rules file."""
    directory_file: Path | None = None
    data_folder: Path = DATA_FOLDER
    proxies: ProxySettings = ProxySettings()
    store: StoreSettings = StoreSettings()
    gateway: GatewaySettings = GatewaySettings()
    decisions: DecisionLogSettings = DecisionLogSettings()
    admin_socket: Path | None = None
    """Where operators' commands connect; by default in the data folder."""
    admin_host: str = ""
    """Where operators' commands may connect over TCP too, on this machine; empty for nowhere."""
    admin_port: int = 0
    admin_token: str = ""
    """What they show there."""
    webhook_url: str = ""
    """Where alerts about callers near their limits are sent; empty for nowhere."""
    request_id_header: str = "x-github-request-id"
    has_insights: bool = False
    """Whether the activity of organizations is told to their owners."""
    meta: Mapping[str, Any] = {}  # Any JSON: what an operator wants to say of the service.

    @property
    def socket_path(self) -> Path:
        return self.admin_socket or self.data_folder / "admin.sock"
