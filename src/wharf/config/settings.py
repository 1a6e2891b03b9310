"""The root of all settings, and those that belong to the agent as a whole: names, folders, logs, audit, snapshots.

Every other table is declared by the package that uses it (`wharf.*.settings`).
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
from wharf.contract.model.times import HOUR
from wharf.node.settings import NodeSettings


class LogLevel(enum.StrEnum):
    """How much is logged, most first."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, SettingInfo("Whether every write is recorded: who, what, from where, outcome.")] = True
    file: Annotated[
        str, SettingInfo("The file, readable by its owner only.", default_text="`audit.log` in the data folder")
    ] = ""
    rotate_bytes: Annotated[Size, SettingInfo("The size at which a new file begins; 0 never.")] = Size(100_000_000)
    rotate_duration: Annotated[Duration, SettingInfo("How much time one file spans; 0 any.")] = Duration(24 * HOUR)
    rotate_max_files: Annotated[int, SettingInfo("How many older files are kept; 0 all.", min_value=0)] = 0


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval: Annotated[Duration, SettingInfo("How often a server saves a snapshot of the state; 0 never.")] = Duration(
        0
    )
    keep: Annotated[int, SettingInfo("How many snapshots are kept; older ones are removed.", min_value=1)] = 24
    folder: Annotated[str, SettingInfo("Where they are kept.", default_text="`snapshots` in the data folder")] = ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    region: Annotated[str, SettingInfo("The region that this agent belongs to.")] = "global"
    datacenter: Annotated[str, SettingInfo("The datacenter of its node.")] = "dc1"
    name: Annotated[str, SettingInfo("The name of server and node.", default_text="the host's name")] = ""
    data_dir: Annotated[
        str,
        SettingInfo(
            "The folder of all that is kept, an absolute path. Needed, except by `wharf dev`.",
            default_text="none; `.wharf` here for `wharf dev`",
        ),
    ] = ""
    bind_addr: Annotated[
        str,
        SettingInfo("The address to listen on. Other than loopback needs access control, or `allow_insecure = true`."),
    ] = "127.0.0.1"
    allow_insecure: Annotated[
        bool,
        SettingInfo(
            "Whether to listen beyond loopback although access control is off: all who can connect may do all."
        ),
    ] = False
    addresses: Annotated[AddressesSettings, SettingInfo("Addresses to listen on, one by one.")] = AddressesSettings()
    advertise: Annotated[AdvertiseSettings, SettingInfo("Addresses told to others.")] = AdvertiseSettings()
    ports: Annotated[PortsSettings, SettingInfo("Ports to listen on.")] = PortsSettings()
    http_api_response_headers: Annotated[dict[str, str], SettingInfo("Headers added to every HTTP reply.")] = {}
    log_level: Annotated[LogLevel, SettingInfo("How much is logged.", is_reloadable=True)] = LogLevel.INFO
    log_levels: Annotated[
        dict[str, LogLevel],
        SettingInfo(
            'Levels of single parts, by package: `engines = "debug"`, `"engines.etcd" = "trace"`.', is_reloadable=True
        ),
    ] = {}
    log_json: Annotated[bool, SettingInfo("Whether each line of the log is a JSON object, on the terminal too.")] = (
        False
    )
    log_file: Annotated[str, SettingInfo("A file to log to, beside the standard error output.")] = ""
    log_rotate_bytes: Annotated[Size, SettingInfo("The size at which a new log file begins; 0 never.")] = Size(0)
    log_rotate_duration: Annotated[Duration, SettingInfo("How much time one log file spans; 0 any.")] = Duration(
        24 * HOUR
    )
    log_rotate_max_files: Annotated[int, SettingInfo("How many older log files are kept; 0 all.", min_value=0)] = 0
    enable_debug: Annotated[
        bool, SettingInfo("Whether the host's data may be asked for while access control is off.")
    ] = False
    state: Annotated[StateSettings, SettingInfo("Where the cluster's state is kept.")] = StateSettings()
    server: Annotated[ServerSettings, SettingInfo("This agent as a server.")] = ServerSettings()
    client: Annotated[NodeSettings, SettingInfo("This agent as a node.")] = NodeSettings()
    api: Annotated[ApiSettings, SettingInfo("The processes that answer HTTP.")] = ApiSettings()
    acl: Annotated[AclSettings, SettingInfo("Access control.")] = AclSettings()
    tls: Annotated[TlsSettings, SettingInfo("TLS of the HTTP port.")] = TlsSettings()
    limits: Annotated[LimitsSettings, SettingInfo("Bounds for callers.")] = LimitsSettings()
    telemetry: Annotated[TelemetrySettings, SettingInfo("Figures about the running agent.")] = TelemetrySettings()
    keyring: Annotated[KeyringSettings, SettingInfo("The keys that secrets are kept under.")] = KeyringSettings()
    audit: Annotated[AuditSettings, SettingInfo("The log of writes.")] = AuditSettings()
    snapshots: Annotated[SnapshotSettings, SettingInfo("Snapshots taken by the agent itself.")] = SnapshotSettings()
    regions: Annotated[dict[str, RegionSettings], SettingInfo("Other regions that requests may be passed on to.")] = {}
    ui: Annotated[UiSettings, SettingInfo("The pages.")] = UiSettings()
    compat: Annotated[CompatSettings, SettingInfo("Names of other products.")] = CompatSettings()
