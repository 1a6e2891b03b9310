"""Settings of the HTTP API: addresses, TLS, limits, metrics and compatibility with Nomad."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.settings import Duration, SettingInfo, Size
from wharf.contract.model.times import HOUR, MINUTE, SECOND


class TlsVersion(enum.StrEnum):
    """A TLS version, as written in the configuration."""

    TLS12 = "tls12"
    TLS13 = "tls13"


class AddressesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `addresses`: where to listen."""

    http: Annotated[str, SettingInfo("The address that HTTP listens on.", default_text="`bind_addr`")] = ""


class AdvertiseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `advertise`: addresses for other agents."""

    http: Annotated[
        str,
        SettingInfo(
            "The `host:port` at which other servers and nodes reach this server.",
            default_text="the address that HTTP listens on; if that is all addresses, such as 0.0.0.0 or ::, the IPv4 address of the default route's interface, or of `client.network_interface`",
        ),
    ] = ""


class PortsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `ports`."""

    http: Annotated[
        int,
        SettingInfo(
            "The port of HTTP; 0 chooses a free port. `--port` overrides it. An agent without a server opens no HTTP port.",
            min_value=0,
            max_value=65_535,
        ),
    ] = 4646


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `api`: processes and limits of requests."""

    processes: Annotated[
        int,
        SettingInfo(
            "The number of processes that serve HTTP on the port. Each holds the whole state in memory.",
            min_value=1,
            max_value=64,
        ),
    ] = 1
    trusted_origins: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Origins of web pages on other servers that may send requests without a token and open websockets, such as "
            "`https://dashboard.example.com`. Others are refused (documentation page Access control)."
        ),
    ] = ()
    host_names: Annotated[
        tuple[str, ...],
        SettingInfo(
            "The names under which browsers reach this server. With any, requests of browsers without a token are refused "
            "under other names (documentation page Access control).",
            default_text="none: every name, except on connections within this machine while access control is off",
        ),
    ] = ()
    max_body_size: Annotated[Size, SettingInfo("The maximum size of a request body.")] = Size(10_000_000)
    max_filter_cpu: Annotated[
        Duration,
        SettingInfo(
            "The maximum CPU time that one request may use to evaluate its filter. Beyond it, the request is refused with "
            "status 400 (documentation page Limits of reads).",
        ),
    ] = Duration(SECOND)
    max_list_cpu: Annotated[
        Duration,
        SettingInfo(
            "The maximum CPU time that one request may use to build and encode a list, or to search. Beyond it, the "
            "request is refused with status 400 (documentation page Limits of reads).",
        ),
    ] = Duration(30 * SECOND)
    max_view_cpu: Annotated[
        Duration,
        SettingInfo(
            "The maximum CPU time that one request may use to compute a reply from records, such as the differences of "
            "job versions. Beyond it, the request is refused with status 400 (documentation page Limits of reads).",
        ),
    ] = Duration(5 * SECOND)
    max_request_cpu: Annotated[
        Duration,
        SettingInfo(
            "The maximum CPU time of a request with a large body, in its worker process. Beyond it, the request is "
            "refused with status 400 (documentation page Limits of request bodies).",
        ),
    ] = Duration(SECOND)
    shutdown_grace: Annotated[Duration, SettingInfo("The time for open requests to finish when the agent stops.")] = (
        Duration(2 * SECOND)
    )


class LimitsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `limits`: rate limits and connection limits."""

    enabled: Annotated[
        bool,
        SettingInfo(
            "Whether API requests are rate limited, with the profile `cluster` (documentation page Rate limits in front of a service)."
        ),
    ] = False
    file: Annotated[
        str,
        SettingInfo(
            "The absolute path of the limiter's configuration file: own rules, Redis, decision log.",
            default_text="none: the unchanged profile, counters in memory",
        ),
    ] = ""
    gateway_admin: Annotated[
        str,
        SettingInfo(
            "The address of the admin port of a gateway on this machine, such as `http://127.0.0.1:9090`, which the key "
            "`admin_listen` of its configuration sets. The page of limits shows the activity of organizations from it.",
            default_text="none: pages show no activity of organizations",
        ),
    ] = ""
    gateway_token_file: Annotated[
        str,
        SettingInfo(
            "The absolute path of the file with the token of `limits.gateway_admin`, which only the user of the server may "
            "read. The server reads it for each request.",
            default_text="none; required with `limits.gateway_admin`",
        ),
    ] = ""
    http_max_conns_per_client: Annotated[
        int,
        SettingInfo(
            "The maximum number of open connections from one address to each API process; 0 means no limit. "
            "Loopback is not limited. Registered nodes and servers of the region count by themselves.",
            min_value=0,
        ),
    ] = 100
    https_handshake_timeout: Annotated[Duration, SettingInfo("The timeout of a TLS handshake.")] = Duration(5 * SECOND)


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `tls`."""

    http: Annotated[bool, SettingInfo("Whether the port accepts HTTPS only.")] = False
    ca_file: Annotated[
        str,
        SettingInfo(
            "The file with the CA certificates that certificates of others are verified with. Servers with an "
            "`https://` address are verified with it also if `tls.http` is false. A reload reads it again.",
            default_text="those of the system, for certificates of servers",
        ),
    ] = ""
    cert_file: Annotated[
        str,
        SettingInfo(
            "The file with the certificate of this agent, which is also sent to servers. A reload reads it again.",
            is_reloadable=True,
        ),
    ] = ""
    key_file: Annotated[str, SettingInfo("The file with the private key of the certificate.", is_reloadable=True)] = ""
    verify_https_client: Annotated[
        bool, SettingInfo("Whether callers must present a certificate signed by `ca_file`.")
    ] = False
    verify_server_hostname: Annotated[
        bool, SettingInfo("Whether a server's certificate must have the name `server.<region>.wharf`.")
    ] = False
    tls_min_version: Annotated[TlsVersion, SettingInfo("The minimum TLS version.")] = TlsVersion.TLS12


class UiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `ui`."""

    enabled: Annotated[bool, SettingInfo("Whether the web pages are served.")] = True
    session_ttl: Annotated[
        Duration, SettingInfo("How long a browser stays signed in. It is signed out earlier when its token expires.")
    ] = Duration(12 * HOUR)


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `telemetry`: metrics."""

    collection_interval: Annotated[
        Duration, SettingInfo("The interval at which nodes measure themselves and their tasks.")
    ] = Duration(SECOND)
    in_memory_collection_interval: Annotated[Duration, SettingInfo("The length of one interval of `/v1/metrics`.")] = (
        Duration(10 * SECOND)
    )
    in_memory_retention_period: Annotated[
        Duration, SettingInfo("How long finished intervals are retained for `/v1/metrics?ago=`.")
    ] = Duration(MINUTE)
    prometheus_metrics: Annotated[bool, SettingInfo("Whether `/v1/metrics?format=prometheus` is available.")] = False
    publish_allocation_metrics: Annotated[bool, SettingInfo("Whether nodes publish metrics of each allocation.")] = (
        False
    )
    publish_node_metrics: Annotated[bool, SettingInfo("Whether nodes publish metrics of themselves.")] = False
    disable_hostname: Annotated[bool, SettingInfo("Whether gauges omit the label `host`, which names this agent.")] = (
        False
    )
    filter_default: Annotated[
        bool, SettingInfo("Whether metrics that match no prefix of `prefix_filter` are published.")
    ] = True
    prefix_filter: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Prefixes of metric names, each after `+` (publish) or `-` (omit). The longest matching prefix decides."
        ),
    ] = ()


class CompatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `compat`: compatibility with other products."""

    nomad: Annotated[
        bool,
        SettingInfo(
            "Whether Nomad's names of headers and environment variables are also accepted and sent, and whether "
            "Nomad's behavior is chosen where it departs from Wharf's: lists accept `filter` together with `prefix` and "
            "similar parameters, endpoints without filters ignore `filter`, `per_page` may be 0 or negative, and a request for Prometheus metrics gets status 415 "
            "while they are off."
        ),
    ] = False
