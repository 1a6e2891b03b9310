"""The settings of what is served over HTTP: addresses, TLS, bounds for callers, metrics, other products' names."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.settings import Duration, SettingInfo, Size
from wharf.contract.model.times import MINUTE, SECOND


class TlsVersion(enum.StrEnum):
    TLS12 = "tls12"
    TLS13 = "tls13"


class AddressesSettings(msgspec.Struct, frozen=True, kw_only=True):
    http: Annotated[
        str, SettingInfo("The address that HTTP listens on, where it is not `bind_addr`.", default_text="`bind_addr`")
    ] = ""


class AdvertiseSettings(msgspec.Struct, frozen=True, kw_only=True):
    http: Annotated[
        str,
        SettingInfo(
            "The `host:port` under which other servers and nodes reach this one.",
            default_text="where HTTP listens, or the host's address when it listens on all",
        ),
    ] = ""


class PortsSettings(msgspec.Struct, frozen=True, kw_only=True):
    http: Annotated[
        int, SettingInfo("The port of HTTP; 0 takes a free one. `--port` overrides it.", min_value=0, max_value=65_535)
    ] = 4646


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    processes: Annotated[
        int,
        SettingInfo("How many processes answer HTTP on the one port; each holds the state.", min_value=1, max_value=64),
    ] = 1
    max_body_size: Annotated[Size, SettingInfo("The largest body of a request.")] = Size(10_000_000)
    shutdown_grace: Annotated[Duration, SettingInfo("How long open requests may take to end when the agent stops.")] = (
        Duration(2 * SECOND)
    )


class LimitsSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        SettingInfo("Whether requests to the API are counted and limited, by the profile `cluster` (docs/limits.md)."),
    ] = False
    file: Annotated[
        str,
        SettingInfo(
            "The file that sets the limiter up: rules of one's own, Redis, the log of decisions. An absolute path.",
            default_text="none: the profile as it is, counters in memory",
        ),
    ] = ""
    http_max_conns_per_client: Annotated[
        int,
        SettingInfo(
            "Open connections that one address may have to each process that answers HTTP; 0 is no limit, and loopback "
            "has none.",
            min_value=0,
        ),
    ] = 100
    https_handshake_timeout: Annotated[Duration, SettingInfo("How long a TLS handshake may take.")] = Duration(
        5 * SECOND
    )


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    http: Annotated[bool, SettingInfo("Whether the port speaks HTTPS, and nothing else.")] = False
    ca_file: Annotated[
        str, SettingInfo("Certificates of the authorities that others' certificates are checked against.")
    ] = ""
    cert_file: Annotated[str, SettingInfo("Our certificate. A reload reads the files again.", is_reloadable=True)] = ""
    key_file: Annotated[str, SettingInfo("The key of our certificate.", is_reloadable=True)] = ""
    verify_https_client: Annotated[bool, SettingInfo("Whether callers must show a certificate of `ca_file`.")] = False
    verify_server_hostname: Annotated[
        bool, SettingInfo("Whether a server must show the name `server.<region>.wharf`, not just any certificate.")
    ] = False
    tls_min_version: Annotated[TlsVersion, SettingInfo("The oldest version of TLS that is spoken.")] = TlsVersion.TLS12


class UiSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, SettingInfo("Whether the pages are served.")] = True


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    collection_interval: Annotated[Duration, SettingInfo("How often nodes measure themselves and their tasks.")] = (
        Duration(SECOND)
    )
    in_memory_collection_interval: Annotated[Duration, SettingInfo("The length of one interval of `/v1/metrics`.")] = (
        Duration(10 * SECOND)
    )
    in_memory_retention_period: Annotated[
        Duration, SettingInfo("How long finished intervals are kept, for `/v1/metrics?ago=`.")
    ] = Duration(MINUTE)
    prometheus_metrics: Annotated[bool, SettingInfo("Whether `/v1/metrics?format=prometheus` is answered.")] = False
    publish_allocation_metrics: Annotated[bool, SettingInfo("Whether nodes publish figures of each allocation.")] = (
        False
    )
    publish_node_metrics: Annotated[bool, SettingInfo("Whether nodes publish figures of themselves.")] = False
    disable_hostname: Annotated[
        bool, SettingInfo("Whether gauges leave out the label `host`, which names this agent.")
    ] = False
    filter_default: Annotated[bool, SettingInfo("Whether a figure that no prefix names is published.")] = True
    prefix_filter: Annotated[
        tuple[str, ...], SettingInfo("Prefixes of names, each after `+` (publish) or `-` (do not); the longest wins.")
    ] = ()


class CompatSettings(msgspec.Struct, frozen=True, kw_only=True):
    nomad: Annotated[
        bool, SettingInfo("Whether the peer's names of headers and variables are taken and given beside our own.")
    ] = False
