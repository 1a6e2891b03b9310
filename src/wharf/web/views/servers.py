"""The servers: which one leads, how far each has read the log, and how large the state is."""

from datetime import datetime
from typing import Final

import msgspec

from wharf.contract.wire.operator import AutopilotHealth, AutopilotServer, StateSizes
from wharf.web.rendering import format_age
from wharf.web.views.snapshots import SnapshotsView
from wharf.web.views.states import State, Tone

MEGABYTE: Final = 1024 * 1024
FAILED: Final = "failed"


class ServerRow(msgspec.Struct, frozen=True):
    """A server."""

    id: str
    name: str
    address: str
    state: State
    is_leader: bool
    index: int
    lag: int
    """How many entries of the log it has still to read, compared with the server that has read most."""
    last_contact: str
    version: str
    age: str
    since_ns: int
    problem: str


class ServersView(msgspec.Struct, frozen=True):
    """The page of the servers."""

    sentence: str
    detail: str
    rows: tuple[ServerRow, ...]
    log_problem: str
    log_warning: str
    """What the log warns of while it can be written, such as a lost member of etcd; empty if nothing."""
    log_size: str
    index: int
    tables: tuple[tuple[str, int], ...]
    """The number of records of each table that is not empty, the largest first."""
    snapshots: SnapshotsView


def build_servers_view(
    health: AutopilotHealth, sizes: StateSizes, snapshots: SnapshotsView, now_ns: int
) -> ServersView:
    """Return the page of the servers."""
    newest = max((server.last_index for server in health.servers), default=0)
    tables = sorted(sizes.tables.items(), key=lambda item: (-item[1], item[0]))
    engine = sizes.engine
    is_writable, why = engine.get("writable", True), str(engine.get("why", ""))
    return ServersView(
        sentence=_build_sentence(health),
        detail=_describe_tolerance(health),
        rows=tuple(_build_row(server, newest, now_ns) for server in health.servers),
        log_problem="" if is_writable else why,
        log_warning=why if is_writable else "",
        log_size=_describe_size(int(engine.get("size_bytes", 0)), int(engine.get("quota_bytes", 0))),
        index=sizes.index,
        tables=tuple((name, count) for name, count in tables if count),
        snapshots=snapshots,
    )


def _build_sentence(health: AutopilotHealth) -> str:
    if not health.leader:
        return "No server leads"
    bad = sum(not server.healthy for server in health.servers)
    if bad:
        return f"{bad} of {len(health.servers)} servers {'is' if bad == 1 else 'are'} not healthy"
    return "All servers are healthy" if len(health.servers) > 1 else "The server is healthy"


def _describe_tolerance(health: AutopilotHealth) -> str:
    if not health.leader:
        return "Nothing is scheduled and nothing can be changed until a server leads. What runs continues."
    if len(health.servers) == 1:
        return "If it fails, nothing can be scheduled or changed. What runs continues."
    if not health.failure_tolerance:
        return "If one more server fails, nothing can be scheduled or changed."
    noun = "server" if health.failure_tolerance == 1 else "servers"
    return f"The cluster works as long as not more than {health.failure_tolerance} {noun} fail."


def _build_row(server: AutopilotServer, newest: int, now_ns: int) -> ServerRow:
    since_ns = _parse_moment(server.stable_since)
    return ServerRow(
        id=server.id,
        name=server.name,
        address=server.address,
        state=_describe_server(server),
        is_leader=server.leader,
        index=server.last_index,
        lag=max(0, newest - server.last_index) if server.last_index else 0,
        last_contact=server.last_contact,
        version=server.version,
        age=format_age(since_ns, now_ns),
        since_ns=since_ns,
        problem=server.why_unhealthy,
    )


def _describe_server(server: AutopilotServer) -> State:
    if server.serf_status == FAILED:
        return State("failed", Tone.BAD)
    if not server.healthy:
        return State("not healthy", Tone.BAD)
    return State("leads", Tone.GOOD) if server.leader else State("follows", Tone.GOOD)


def _describe_size(size_bytes: int, quota_bytes: int) -> str:
    """Return the size of the log's storage; empty if it is not known."""
    if not size_bytes:
        return ""
    size = f"{size_bytes / MEGABYTE:,.1f} MB"
    return f"{size} of {quota_bytes / MEGABYTE:,.0f} MB" if quota_bytes else size


def _parse_moment(text: str) -> int:
    """Return a time of the API in ns; 0 if it is not known."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return int(moment.timestamp()) * 1_000_000_000 if moment.year > 1 else 0
