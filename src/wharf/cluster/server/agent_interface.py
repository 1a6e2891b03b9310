"""The port to the agent that runs a server: configuration, processes, machine, log lines and snapshots.

Nothing here concerns the cluster.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from wharf.cluster.engines.port import LogEngine
from wharf.cluster.server.metrics import MetricFilter
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.operator import AuditEntry


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process of this server, with the state that an operator inspects."""

    name: str
    pid: int
    phase: str
    """The state of the process, such as `ready`."""
    restarts: int
    stacks: str
    """The stacks of all threads and tasks, as text."""


class AgentInfo(msgspec.Struct, frozen=True):
    """Facts that do not change while the agent runs. `configuration` contains no secrets."""

    configuration: Mapping[str, Any] = {}
    version: str = ""
    is_debug_enabled: bool = False
    is_prometheus_enabled: bool = False
    is_nomad_compatible: bool = False
    has_node: bool = False
    node_servers: Sequence[str] = ()
    """The server addresses in the configuration of the agent's own node."""
    node_id: str = ""
    """The id of the agent's own node; empty if it has none or the id is not known yet."""
    node_folders: Sequence[Path] = ()
    """The folders of the agent's own node: its state and its allocations."""
    audit_folder: Path | None = None
    """The folder of the audit log; `None` if the agent writes no audit log."""
    enabled_schedulers: Sequence[str] = ()
    metric_filter: MetricFilter = MetricFilter()


class HostInfo(msgspec.Struct, frozen=True):
    """Facts about the machine: its operating system, networks, name resolution, environment and disks."""

    os: str = ""
    networks: Sequence[Mapping[str, str]] = ()
    resolv_conf: str = ""
    hosts: str = ""
    environment: Mapping[str, str] = {}
    disks: Mapping[str, Mapping[str, int]] = {}
    """For each mount point, byte counts by name, such as `free`."""


class SavedSnapshot(msgspec.Struct, frozen=True):
    """An archive of the whole state. Read `parts` to the end or close it: its file is removed only then."""

    index: int
    sha256: bytes
    parts: AsyncGenerator[bytes, None]


class SnapshotEntry(msgspec.Struct, frozen=True):
    """A snapshot that a server has saved on schedule."""

    name: str
    saved_ns: int
    size_bytes: int
    index: int = 0
    """The log index of its state; 0 if it was not read."""


class SnapshotSchedule(msgspec.Struct, frozen=True):
    """The snapshots that a server saves by itself."""

    interval_ns: int
    """0: it saves none."""
    keep: int
    folder: str
    snapshots: Sequence[SnapshotEntry] = ()
    """The newest first, without files of other servers. A time ahead of the clock is left out, because it is wrong."""
    problem: str = ""
    """Why the folder cannot be read; empty if it can."""


class AuditQuery(msgspec.Struct, frozen=True):
    """Which entries of the audit log to return."""

    limit: int
    search: str = ""
    """Words that an entry must have, without upper and lower case."""
    is_failed: bool = False
    """Whether only requests are returned that were refused or failed."""
    next_token: str = ""
    """Where to continue: the token of the previous page."""


class AuditLogPage(msgspec.Struct, frozen=True):
    """Entries of the audit log, the newest first."""

    entries: Sequence[AuditEntry]
    next_token: str = ""
    """Where older entries begin; empty if there are none."""
    is_incomplete: bool = False
    """Whether the search stopped before it found as many entries as requested, because it had read too much."""


class AgentInterface(Protocol):
    """What a server can request from its agent."""

    @property
    def info(self) -> AgentInfo: ...

    async def find_certificate_problem(self) -> str:
        """Return which certificate of the agent, or for etcd, has ended or ends soon; empty if there is none."""
        ...

    async def reload(self) -> None:
        """Read the configuration again. Raises `Refusal` if it is invalid."""
        ...

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Return the log lines of all processes of this server with at least this level (such as `debug`) that are written from
        now on, until closed. Raises `Refusal`.

        If the reader is too slow, a line reports how many were dropped.
        """
        ...

    async def list_processes(self) -> Sequence[ProcessInfo]:
        """Return the processes of this server."""
        ...

    async def profile_process(self, seconds: float, *, as_pprof: bool) -> bytes:
        """Sample the stacks of this process for some seconds.

        Return one line for each stack with its number of samples, or the format that `go tool pprof` reads.
        """
        ...

    async def profile_memory(self, profile: str, seconds: float, *, as_pprof: bool) -> bytes:
        """Trace allocations of this process for some seconds, and return those that are then still in use.

        `profile` is `heap` or `allocs`. The result is text, or the format that `go tool pprof` reads. Raises `Refusal`
        while another profile is measured.
        """
        ...

    async def read_host(self) -> HostInfo:
        """Return facts about the machine."""
        ...

    async def read_command_line(self) -> bytes:
        """Return the arguments of this process, each followed by a zero byte."""
        ...

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        """Yield the content of the log file. Raises `Refusal` if there is none."""
        ...

    async def read_snapshot_schedule(self) -> SnapshotSchedule:
        """Return the snapshots that this server has saved on schedule. Raises `Refusal` if there is no agent."""
        ...

    async def read_audit_log(self, query: AuditQuery) -> AuditLogPage:
        """Return entries of the audit log. Raises `Refusal` if there is no audit log."""
        ...

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        """Save the state of the log to an archive. Raises `Refusal`."""
        ...

    async def restore_snapshot(
        self, engine: LogEngine, parts: AsyncIterator[bytes], wrapping_keys: Sequence[str]
    ) -> int:
        """Store the archive, verify it completely, then replace the content of the log. Return the new log index.

        `wrapping_keys` are the fingerprints of the wrapping keys that this server has for the keyring.
        Raises `Refusal`, and any error that `parts` raises.
        """
        ...


class NoAgentInterface:
    """An `AgentInterface` for a server that runs without an agent: it lists its own tasks and refuses all else."""

    def __init__(self, info: AgentInfo | None = None) -> None:
        self.info = info or AgentInfo()

    async def find_certificate_problem(self) -> str:
        return ""

    async def reload(self) -> None:
        raise _refuse("no configuration to reload")

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        del level, as_json
        raise _refuse("no log to follow")

    async def list_processes(self) -> Sequence[ProcessInfo]:
        return [ProcessInfo("server", 0, "ready", 0, format_stacks(asyncio.get_running_loop()))]

    async def profile_process(self, seconds: float, *, as_pprof: bool) -> bytes:
        del seconds, as_pprof
        raise _refuse("no profiler")

    async def profile_memory(self, profile: str, seconds: float, *, as_pprof: bool) -> bytes:
        del profile, seconds, as_pprof
        raise _refuse("no profiler")

    async def read_host(self) -> HostInfo:
        raise _refuse("no host information")

    async def read_command_line(self) -> bytes:
        raise _refuse("no command line")

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        raise _refuse("no log file")

    async def read_snapshot_schedule(self) -> SnapshotSchedule:
        raise _refuse("no disk for snapshots")

    async def read_audit_log(self, query: AuditQuery) -> AuditLogPage:
        del query
        raise _refuse("no audit log")

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        del engine
        raise _refuse("no disk for snapshots")

    async def restore_snapshot(
        self, engine: LogEngine, parts: AsyncIterator[bytes], wrapping_keys: Sequence[str]
    ) -> int:
        del engine, parts, wrapping_keys
        raise _refuse("no disk for snapshots")


def _refuse(problem: str) -> Refusal:
    """Return the refusal of a request that needs an agent. `problem`: what is missing, such as "no log file"."""
    return Refusal(RefusalCode.NOT_IMPLEMENTED, f"this server runs without an agent: there is {problem}")


def format_stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stacks of all threads and tasks: files, lines and function names, never values."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()) if loop is not None else []
    parts.extend(f"task {task.get_name()}\n{''.join(_format_task(task))}" for task in tasks)
    return "\n".join(parts)


def _format_task(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield the stack of a suspended task, outermost frame first.

    The task's own stack contains only its outermost frame, so this follows the chain of awaited coroutines.
    """
    awaited: Any = task.get_coro()  # Coroutines and generators have these attributes but no common type.
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield from traceback.format_stack(frame, limit=1)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
