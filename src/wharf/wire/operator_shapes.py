"""Bodies for those who run the cluster, as they cross the wire."""

from wharf.model.autopilot import AutopilotConfiguration
from wharf.model.durations import say_duration
from wharf.model.record import Record
from wharf.model.refusal import invalid
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.wire.go_duration import DurationError, parse_duration_ns


class SchedulerConfigurationRead(Record):
    scheduler_config: SchedulerConfiguration
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class SchedulerConfigurationWritten(Record):
    updated: bool
    index: int


class RaftServer(Record):
    """A server of the region. `RaftProtocol` is there for clients; the log is kept by the engine, not by the servers."""

    id: str
    node: str
    address: str
    leader: bool
    voter: bool
    raft_protocol: str = "3"


class RaftConfiguration(Record):
    servers: list[RaftServer]
    index: int


class AutopilotDocument(Record):
    """The configuration with its durations as text (`200ms`); whole nanoseconds are taken too."""

    last_contact_threshold: str | int = ""
    server_stabilization_time: str | int = ""
    cleanup_dead_servers: bool = False
    max_trailing_logs: int = 0
    min_quorum: int = 0
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: int = 0
    modify_index: int = 0


def shown_autopilot(record: AutopilotConfiguration) -> AutopilotDocument:
    return AutopilotDocument(
        last_contact_threshold=say_duration(record.last_contact_threshold),
        server_stabilization_time=say_duration(record.server_stabilization_time),
        **{name: getattr(record, name) for name in _SAME},
    )


def read_autopilot(document: AutopilotDocument) -> AutopilotConfiguration:
    """Raises `Refusal`."""
    return AutopilotConfiguration(
        last_contact_threshold=_duration_ns(document.last_contact_threshold),
        server_stabilization_time=_duration_ns(document.server_stabilization_time),
        **{name: getattr(document, name) for name in _SAME},
    )


_SAME = [name for name in AutopilotDocument.__struct_fields__ if "threshold" not in name and "_time" not in name]


def _duration_ns(given: str | int) -> int:
    if isinstance(given, int):
        return given
    if given == "":
        return 0
    try:
        return parse_duration_ns(given)
    except DurationError:
        raise invalid(f'Error parsing autopilot config: time: invalid duration "{given}"') from None


class AutopilotServer(Record):
    id: str
    name: str
    address: str
    serf_status: str
    version: str
    leader: bool
    last_contact: str
    last_term: int
    last_index: int
    healthy: bool
    voter: bool
    stable_since: str
    why_unhealthy: str = ""


class AutopilotHealth(Record):
    healthy: bool
    failure_tolerance: int
    leader: str
    voters: list[str]
    servers: list[AutopilotServer]
