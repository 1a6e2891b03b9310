"""The root of all settings, and the settings of the agent as a whole: names, folders, logs, audit and snapshots.

Every other table is declared by the package that uses it, in its module `settings`.
"""

import enum
from typing import Annotated

import msgspec

from wharf.cluster.api.settings import (
    AddressesSettings,
    AdvertiseSettings,
    ApiSettings,
    CompatSettings,
    LimitsSettings,
    PortsSettings,
    TelemetrySettings,
    TlsSettings,
    UiSettings,
)
from wharf.cluster.engines.settings import StateSettings
from wharf.cluster.server.settings import AclSettings, KeyringSettings, RegionSettings, ServerSettings
from wharf.contract.model.settings import Duration, SettingInfo, Size
from wharf.contract.model.times import HOUR, SECOND
from wharf.node.settings import NodeSettings
from wharf.sinks.settings import HttpFormat, SinkKind


class LogLevel(enum.StrEnum):
    """Log levels, from the most detailed to the least."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the audit log."""

    enabled: Annotated[bool, SettingInfo("Whether every write is recorded with its caller, address and outcome.")] = (
        True
    )
    file: Annotated[
        str, SettingInfo("The file, readable only by its owner.", default_text="`audit.log` in the data folder")
    ] = ""
    rotate_bytes: Annotated[Size, SettingInfo("The size at which a new file is started; 0 is never.")] = Size(
        100_000_000
    )
    rotate_duration: Annotated[Duration, SettingInfo("The time after which a new file is started; 0 is never.")] = (
        Duration(24 * HOUR)
    )
    rotate_max_files: Annotated[int, SettingInfo("How many older files are kept; 0 keeps all.", min_value=0)] = 0


class RecordSinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A sink that receives records of writes and events (docs/streams.md)."""

    kind: Annotated[SinkKind, SettingInfo("What receives the records.")] = SinkKind.FILE
    types: Annotated[
        tuple[str, ...],
        SettingInfo("The types of its records.", default_text="all: `cluster.audit`, `cluster.event`, `sink.loss`"),
    ] = ()
    path: Annotated[str, SettingInfo("For `file`: the file, an absolute path.")] = ""
    rotate_bytes: Annotated[Size, SettingInfo("For `file`: the size at which a new file is started; 0 is never.")] = (
        Size(100_000_000)
    )
    rotate_duration: Annotated[
        Duration, SettingInfo("For `file`: the time after which a new file is started; 0 is never.")
    ] = Duration(24 * HOUR)
    rotate_max_files: Annotated[
        int, SettingInfo("For `file`: how many older files are kept; 0 keeps all.", min_value=0)
    ] = 10
    url: Annotated[
        str,
        SettingInfo(
            "For `http`, `otlp` and `s3`: `https://…`; for `syslog`: `udp://host:514`, `tcp://host:514`, `tls://host:6514` or "
            "`unix:///dev/log`."
        ),
    ] = ""
    facility: Annotated[int, SettingInfo("For `syslog`: the number of the facility.", min_value=0, max_value=23)] = 16
    format: Annotated[HttpFormat, SettingInfo("For `http`: the form of a request's body.")] = HttpFormat.LINES
    compress: Annotated[bool, SettingInfo("For `http` and `otlp`: whether bodies are compressed with gzip.")] = False
    secret_file: Annotated[
        str,
        SettingInfo(
            "For `http` and `otlp`: a file with the value of the header `secret_header`. For `s3`: a file with the access key "
            "and the secret key, in one line each. Only its owner may have access to it."
        ),
    ] = ""
    secret_header: Annotated[str, SettingInfo("The header of the secret.")] = "authorization"
    ca_file: Annotated[str, SettingInfo("The CA certificate of the receiver.", default_text="the system's")] = ""
    timeout: Annotated[Duration, SettingInfo("How long an attempt may take.")] = Duration(10 * SECOND)
    spool_max_size: Annotated[
        Size, SettingInfo("The maximum size of records that wait for the receiver. More are dropped and counted.")
    ] = Size(64 << 20)
    bucket: Annotated[str, SettingInfo("For `s3`: the bucket.")] = ""
    prefix: Annotated[str, SettingInfo("For `s3`: the start of the names of objects.")] = ""
    region: Annotated[str, SettingInfo("For `s3`: the region.")] = "us-east-1"


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of snapshots that a server saves by itself."""

    interval: Annotated[Duration, SettingInfo("How often a server saves a snapshot of the state; 0 is never.")] = (
        Duration(0)
    )
    keep: Annotated[int, SettingInfo("How many snapshots are kept; older ones are removed.", min_value=1)] = 24
    folder: Annotated[
        str, SettingInfo("The folder of the snapshots.", default_text="`snapshots` in the data folder")
    ] = ""
    max_size: Annotated[
        Size,
        SettingInfo(
            "The maximum size of the records in a snapshot that is restored, and of its file. A snapshot may have one record "
            "for each 1,000 bytes of it. The default is several times the state of the largest supported cluster "
            "(documentation page Performance)."
        ),
    ] = Size(2_000_000_000)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of an agent."""

    region: Annotated[str, SettingInfo("The region that this agent belongs to.")] = "global"
    datacenter: Annotated[str, SettingInfo("The datacenter of its node.")] = "dc1"
    name: Annotated[str, SettingInfo("The name of server and node.", default_text="the host's name")] = ""
    data_dir: Annotated[
        str,
        SettingInfo(
            "The folder of all data, an absolute path. Required, except by `wharf dev`.",
            default_text="none; `.wharf` in the current folder for `wharf dev`",
        ),
    ] = ""
    bind_addr: Annotated[
        str,
        SettingInfo(
            "The address to listen on. If it is not loopback, access control or `allow_insecure = true` is required."
        ),
    ] = "127.0.0.1"
    allow_insecure: Annotated[
        bool,
        SettingInfo(
            "Whether to listen on other addresses than loopback without access control: everyone who can connect has full access."
        ),
    ] = False
    addresses: Annotated[AddressesSettings, SettingInfo("Addresses to listen on, for single services.")] = (
        AddressesSettings()
    )
    advertise: Annotated[AdvertiseSettings, SettingInfo("Addresses at which other agents reach this one.")] = (
        AdvertiseSettings()
    )
    ports: Annotated[PortsSettings, SettingInfo("Ports to listen on.")] = PortsSettings()
    http_api_response_headers: Annotated[dict[str, str], SettingInfo("Headers added to every HTTP reply.")] = {}
    log_level: Annotated[LogLevel, SettingInfo("How much is logged.", is_reloadable=True)] = LogLevel.INFO
    log_levels: Annotated[
        dict[str, LogLevel],
        SettingInfo(
            'Log levels of single packages: `engines = "debug"`, `"engines.etcd" = "trace"`.', is_reloadable=True
        ),
    ] = {}
    log_json: Annotated[bool, SettingInfo("Whether each log line is a JSON object, also on the terminal.")] = False
    log_file: Annotated[str, SettingInfo("A file to log to, in addition to standard error.")] = ""
    log_rotate_bytes: Annotated[Size, SettingInfo("The size at which a new log file is started; 0 is never.")] = Size(0)
    log_rotate_duration: Annotated[
        Duration, SettingInfo("The time after which a new log file is started; 0 is never.")
    ] = Duration(24 * HOUR)
    log_rotate_max_files: Annotated[
        int, SettingInfo("How many older log files are kept; 0 keeps all.", min_value=0)
    ] = 0
    enable_debug: Annotated[
        bool, SettingInfo("Whether the API reports data of the host while access control is off.")
    ] = False
    state: Annotated[StateSettings, SettingInfo("Where the cluster's state is stored.")] = StateSettings()
    server: Annotated[ServerSettings, SettingInfo("This agent as a server.")] = ServerSettings()
    client: Annotated[NodeSettings, SettingInfo("This agent as a node.")] = NodeSettings()
    api: Annotated[ApiSettings, SettingInfo("The processes that serve the HTTP API.")] = ApiSettings()
    acl: Annotated[AclSettings, SettingInfo("Access control.")] = AclSettings()
    tls: Annotated[TlsSettings, SettingInfo("TLS of the HTTP port.")] = TlsSettings()
    limits: Annotated[LimitsSettings, SettingInfo("Limits for clients.")] = LimitsSettings()
    telemetry: Annotated[TelemetrySettings, SettingInfo("Metrics of the running agent.")] = TelemetrySettings()
    keyring: Annotated[KeyringSettings, SettingInfo("The keys that encrypt secrets.")] = KeyringSettings()
    audit: Annotated[AuditSettings, SettingInfo("The audit log of writes.")] = AuditSettings()
    sinks: Annotated[dict[str, RecordSinkSettings], SettingInfo("Where records of writes and events are sent.")] = {}
    snapshots: Annotated[
        SnapshotSettings, SettingInfo("Snapshots that servers save by themselves, and limits of restores.")
    ] = SnapshotSettings()
    regions: Annotated[dict[str, RegionSettings], SettingInfo("Other regions to which requests can be forwarded.")] = {}
    ui: Annotated[UiSettings, SettingInfo("The web interface.")] = UiSettings()
    compat: Annotated[CompatSettings, SettingInfo("Compatibility with the names of other products.")] = CompatSettings()
