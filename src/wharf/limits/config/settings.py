"""The settings of a limiter as values: rules, accounts, store, gateway and decision log. `settings_file` reads them."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.config.credential_settings import CredentialSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.redis.quota_leases import QuotaSettings
from wharf.limits.stores.redis.settings import RedisSettings
from wharf.sinks.settings import SinkSettings

DATA_FOLDER: Final = Path(".wharf/limits")
MEBIBYTE: Final = 1 << 20


class StoreKind(Enum):
    """Where counters are stored."""

    MEMORY = "memory"
    REDIS = "redis"
    NEIGHBOUR = "neighbour"
    """Counters in the memory of another process of this machine."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the counters: which store, and how long requests wait for it."""

    kind: StoreKind = StoreKind.MEMORY
    is_saved: bool = True
    """Whether counters in memory are saved in the data folder over restarts."""
    socket: Path | None = None
    """The socket of the counter server; `None` without other processes."""
    redis: RedisSettings = RedisSettings()
    guard: GuardSettings = GuardSettings()
    leases: QuotaSettings | None = None
    """How much of a limit processes take from Redis in advance; `None` if they do not."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The service behind a gateway."""

    host: str
    port: int
    is_tls: bool = False
    base_path: str = ""
    """The start of every forwarded path, without a slash at its end."""

    @property
    def authority(self) -> str:
        """The `host` header of forwarded requests: the port is omitted if it is the default of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.base_path}"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses, timeouts and limits of the gateway."""

    upstream: Upstream | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_host: str = ""
    """The TCP address of the metrics; empty for none."""
    metrics_port: int = 0
    certificate_file: Path | None = None
    key_file: Path | None = None
    upstream_ca_file: Path | None = None
    connect_ms: int = 5_000
    """The timeout for connecting to the service."""
    upstream_ms: int = 60_000
    """The longest time without a head or bytes of the body from the service during a reply."""
    head_ms: int = 10_000
    """The timeout for receiving the head of a request."""
    idle_ms: int = 75_000
    """The timeout of a connection without a request, and of a pause in a body."""
    drain_ms: int = 10_000
    """How long running requests may continue when the gateway stops."""
    head_bytes_most: int = 64 * 1024
    headers_most: int = 100
    connections_most: int = 20_000
    connections_per_address: int = 1_000
    """The maximum number of connections from one address; 0 for no maximum. Configured proxies have none."""
    upstream_connections_most: int = 1_000
    body_rate_least: int = 100
    """The slowest permitted body in bytes per second, after its first `idle_ms`; 0 for no minimum."""
    trusts_marks: bool = True
    """Whether the headers `x-wharf-cpu-ms` and `x-wharf-content` of the service are used. They are never forwarded."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses and limits of `wharf limits serve`, which answers proxies."""

    grpc_host: str = ""
    """The address for Envoy's rate limit protocol; empty for none."""
    grpc_port: int = 0
    check_host: str = ""
    """The address of the HTTP check endpoint; empty for none."""
    check_port: int = 0
    check_secret: str = ""
    """What proxies must send in `X-Check-Secret` to the check endpoint; empty if nothing is needed."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """The CA of the certificates that proxies must present to the gRPC server."""
    connections_most: int = 1_000
    """Connections of proxies to one of the two servers."""
    streams_most: int = 1_000
    """Calls at a time on one gRPC connection."""
    calls_most: int = 2_000
    """Calls at a time on all gRPC connections; more are refused with RESOURCE_EXHAUSTED."""
    message_bytes_most: int = MEBIBYTE
    """The largest gRPC message. Callers can make it long by headers that the proxy copies into it."""
    head_ms: int = 5_000
    """The timeout for receiving the head of a request to the check endpoint, and for the handshake of a gRPC connection."""
    idle_ms: int = 300_000
    """The timeout of a connection to the check endpoint without a request, and the interval of pings on gRPC connections."""
    drain_ms: int = 5_000
    """How long running calls may continue when the process stops."""
    metrics_host: str = ""
    """The TCP address of the metrics; empty for none."""
    metrics_port: int = 0


class DecisionLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many decisions are logged, and for how long."""

    is_kept: bool = True
    """Whether decisions are written to a file."""
    one_in: int = 100
    """Log one in this many admitted requests. All refusals are logged, also those that shadow mode prevents."""
    bytes_most: int = 100 * MEBIBYTE
    """The maximum size of the files."""
    kept_ms: int = 24 * 3_600_000
    """How long decisions are retained."""
    cuts_addresses: bool = False
    """Whether IP addresses are shortened to their network."""
    shared_most: int = 20_000
    """The maximum number of decisions on a shared store, for queries to other processes; 0 for none."""


class LimiterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one limiter."""

    rules_file: Path | None = None
    profile: str = "code-host"
    """The built-in rules that apply without a rules file."""
    directory_file: Path | None = None
    data_folder: Path = DATA_FOLDER
    proxies: ProxySettings = ProxySettings()
    credentials: CredentialSettings = CredentialSettings()
    store: StoreSettings = StoreSettings()
    gateway: GatewaySettings = GatewaySettings()
    serve: ServeSettings = ServeSettings()
    decisions: DecisionLogSettings = DecisionLogSettings()
    admin_socket: Path | None = None
    """The Unix socket for commands of operators; by default in the data folder."""
    admin_host: str = ""
    """The local TCP address for commands of operators; empty for none."""
    admin_port: int = 0
    admin_token: str = ""
    """The token that commands must send to the TCP address."""
    webhook_url: str = ""
    """Receives alerts about callers near their limits; empty for none."""
    request_id_header: str = "x-github-request-id"
    has_insights: bool = False
    """Whether owners of an organization can read its activity."""
    sinks: tuple[SinkSettings, ...] = ()
    """Where decisions and changes by operators are sent."""
    owner_paths: tuple[str, ...] | None = None
    """Patterns of the complete paths that name the owner of a resource; `None` for those of the rules."""
    meta: Mapping[str, Any] = {}  # Any JSON: the reply to `GET /meta`.
    file: Path | None = None
    """The file of these settings; `None` if they do not come from a file."""
    file_text: str = ""
    """The text of that file as it was read."""

    @property
    def socket_path(self) -> Path:
        """The Unix socket for commands of operators."""
        return self.admin_socket or self.data_folder / "admin.sock"
