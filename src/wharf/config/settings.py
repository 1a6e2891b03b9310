"""The root of all settings, and those that belong to the agent as a whole: names, folders, logs, audit, snapshots.

Every other table is declared by the package that uses it (`wharf.*.settings`).
"""

import enum
from typing import Annotated

import msgspec

from wharf.api.settings import (
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
from wharf.engines.settings import StateSettings
from wharf.model.durations import HOUR
from wharf.model.setting import About, Duration, Size
from wharf.node.settings import ClientSettings
from wharf.server.settings import AclSettings, KeyringSettings, RegionSettings, ServerSettings


class LogLevel(enum.StrEnum):
    """How much is logged, most first."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, About("Whether every write is recorded: who, what, from where, outcome.")] = True
    file: Annotated[
        str, About("The file, readable by its owner only.", shown_default="`audit.log` in the data folder")
    ] = ""
    rotate_bytes: Annotated[Size, About("The size at which a new file begins; 0 never.")] = Size(100_000_000)
    rotate_duration: Annotated[Duration, About("How much time one file spans; 0 any.")] = Duration(24 * HOUR)
    rotate_max_files: Annotated[int, About("How many older files are kept; 0 all.", least=0)] = 0


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval: Annotated[Duration, About("How often a server saves a snapshot of the state; 0 never.")] = Duration(0)
    keep: Annotated[int, About("How many snapshots are kept; older ones are removed.", least=1)] = 24
    folder: Annotated[str, About("Where they are kept.", shown_default="`snapshots` in the data folder")] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    region: Annotated[str, About("The region that this agent belongs to.")] = "global"
    datacenter: Annotated[str, About("The datacenter of its node.")] = "dc1"
    name: Annotated[str, About("The name of server and node.", shown_default="the host's name")] = ""
    data_dir: Annotated[
        str,
        About(
            "The folder of all that is kept, an absolute path. Needed, except by `wharf dev`.",
            shown_default="none; `.wharf` here for `wharf dev`",
        ),
    ] = ""
    bind_addr: Annotated[
        str,
        About("The address to listen on. Other than loopback needs access control, or `allow_insecure = true`."),
    ] = "127.0.0.1"
    allow_insecure: Annotated[
        bool, About("Whether to listen beyond loopback although access control is off: all who can connect may do all.")
    ] = False
    addresses: Annotated[AddressesSettings, About("Addresses to listen on, one by one.")] = AddressesSettings()
    advertise: Annotated[AdvertiseSettings, About("Addresses told to others.")] = AdvertiseSettings()
    ports: Annotated[PortsSettings, About("Ports to listen on.")] = PortsSettings()
    http_api_response_headers: Annotated[dict[str, str], About("Headers added to every HTTP reply.")] = {}
    log_level: Annotated[LogLevel, About("How much is logged.", live=True)] = LogLevel.INFO
    log_levels: Annotated[
        dict[str, LogLevel],
        About('Levels of single parts, by package: `engines = "debug"`, `"engines.etcd" = "trace"`.', live=True),
    ] = {}
    log_json: Annotated[bool, About("Whether each line of the log is a JSON object, on the terminal too.")] = False
    log_file: Annotated[str, About("A file to log to, beside the standard error output.")] = ""
    log_rotate_bytes: Annotated[Size, About("The size at which a new log file begins; 0 never.")] = Size(0)
    log_rotate_duration: Annotated[Duration, About("How much time one log file spans; 0 any.")] = Duration(24 * HOUR)
    log_rotate_max_files: Annotated[int, About("How many older log files are kept; 0 all.", least=0)] = 0
    enable_debug: Annotated[bool, About("Whether the host's data may be asked for while access control is off.")] = (
        False
    )
    state: Annotated[StateSettings, About("Where the cluster's state is kept.")] = StateSettings()
    server: Annotated[ServerSettings, About("This agent as a server.")] = ServerSettings()
    client: Annotated[ClientSettings, About("This agent as a node.")] = ClientSettings()
    api: Annotated[ApiSettings, About("The processes that answer HTTP.")] = ApiSettings()
    acl: Annotated[AclSettings, About("Access control.")] = AclSettings()
    tls: Annotated[TlsSettings, About("TLS of the HTTP port.")] = TlsSettings()
    limits: Annotated[LimitsSettings, About("Bounds for callers.")] = LimitsSettings()
    telemetry: Annotated[TelemetrySettings, About("Figures about the running agent.")] = TelemetrySettings()
    keyring: Annotated[KeyringSettings, About("The keys that secrets are kept under.")] = KeyringSettings()
    audit: Annotated[AuditSettings, About("The log of writes.")] = AuditSettings()
    snapshots: Annotated[SnapshotSettings, About("Snapshots taken by the agent itself.")] = SnapshotSettings()
    regions: Annotated[dict[str, RegionSettings], About("Other regions that requests may be passed on to.")] = {}
    ui: Annotated[UiSettings, About("The pages.")] = UiSettings()
    compat: Annotated[CompatSettings, About("Names of other products.")] = CompatSettings()
