"""Gives a server access to the agent it runs in: processes, logs, settings, profiles, snapshots and facts of the host.

Data of other processes comes from the control socket, and facts of the host from files of the kernel, without secrets.
"""

import asyncio
import os
import platform
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from wharf import __version__
from wharf.agent import profiles
from wharf.agent.errors import CommandError
from wharf.agent.identity import get_agent_name
from wharf.agent.logs.audit import get_audit_path
from wharf.agent.logs.audit_reader import read_audit_log
from wharf.agent.logs.following import CONTROL_TIMEOUT_S, AgentLogReader, build_unavailable_refusal
from wharf.agent.logs.redaction import REDACTED, Redactor, is_secret_name
from wharf.agent.node_identities import read_own_node_id
from wharf.agent.process_context import ProcessContext
from wharf.agent.snapshots.schedule import read_schedule
from wharf.agent.snapshots.transfer import SnapshotTransfer, read_file_chunks
from wharf.agent.supervision.control import DebugReply, DebugRequest, send_control_request
from wharf.agent.tls.validity import CertificateWatch, get_etcd_tls
from wharf.cluster.engines.port import LogEngine
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.engines.snapshot_file import SnapshotLimits
from wharf.cluster.server.agent_interface import (
    AgentInfo,
    AuditLogPage,
    AuditQuery,
    HostInfo,
    ProcessInfo,
    SavedSnapshot,
    SnapshotSchedule,
)
from wharf.cluster.server.metrics import MetricFilter
from wharf.config.settings import AgentSettings
from wharf.config.values import redact_settings
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found

MAX_AUDIT_READS: Final = 2
"""How many searches in the audit log run at a time in a process. Each uses a thread for up to half a second."""
MAX_HOST_FILE_BYTES: Final = 100_000
"""Limits how much of each file of the host is returned."""


def read_host_facts(redactor: Redactor) -> HostInfo:
    """Return operating system, networks, disks, environment and resolver files of this host, without secrets."""
    return HostInfo(
        os=f"{platform.system().lower()} {platform.release()}",
        networks=list(_list_networks()),
        resolv_conf=redactor.redact(_read_text(Path("/etc/resolv.conf"))),
        hosts=redactor.redact(_read_text(Path("/etc/hosts"))),
        environment={
            name: REDACTED if is_secret_name(name) else redactor.redact(value)
            for name, value in sorted(os.environ.items())
        },
        disks=dict(_list_disks()),
    )


def _list_networks() -> Iterator[Mapping[str, str]]:
    """Return name, MAC address, MTU and state of each network interface."""
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        yield {
            "name": name,
            "mac": _read_text(folder / "address").strip(),
            "mtu": _read_text(folder / "mtu").strip(),
            "state": _read_text(folder / "operstate").strip(),
        }


def _list_disks() -> Iterator[tuple[str, Mapping[str, int]]]:
    """Return the size and free space of each file system that is mounted from a device, by mount point."""
    for line in _read_text(Path("/proc/self/mounts")).splitlines():
        device, mount, *_ = line.split(" ")
        if not device.startswith("/"):
            continue
        with suppress(OSError):  # It was unmounted meanwhile.
            file_system = os.statvfs(mount)
            yield (
                mount,
                {
                    "size": file_system.f_blocks * file_system.f_frsize,
                    "free": file_system.f_bavail * file_system.f_frsize,
                    "inodes": file_system.f_files,
                    "inodes_free": file_system.f_ffree,
                },
            )


def _read_text(path: Path) -> str:
    """Return the start of the file, or an empty text if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_HOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


class AgentInspection:
    """Answers the queries of a server about the agent it runs in. Implements `AgentInterface`."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self._folder = Path(context.order.data_folder)
        settings = context.order.settings
        self._audit_reads = 0
        self._redacted: tuple[AgentSettings, Mapping[str, Any]] | None = None
        """Settings, and what `_redact_settings` returned for them."""
        self._certificates = CertificateWatch(context.world, settings.tls, get_etcd_tls(settings))
        context.add_reload_handler(lambda new: self._certificates.reload(new.tls))
        self._snapshots = SnapshotTransfer(
            context.world,
            self._folder,
            SnapshotLimits(settings.snapshots.max_size.bytes),
            process_name=context.order.name,
            is_log_in_folder=settings.state.engine is not EngineKind.ETCD,
        )

    @property
    def info(self) -> AgentInfo:
        """Return the settings and facts of this agent that do not change between reloads."""
        settings = self._context.order.settings
        return AgentInfo(
            configuration=self._redact_settings(settings),
            version=__version__,
            is_debug_enabled=settings.enable_debug,
            is_prometheus_enabled=settings.telemetry.prometheus_metrics,
            is_nomad_compatible=settings.compat.nomad,
            has_node=settings.client.enabled,
            node_servers=settings.client.servers,
            node_id=read_own_node_id(self._state_folder()) if settings.client.enabled else "",
            node_folders=(self._state_folder(), self._allocation_folder()) if settings.client.enabled else (),
            audit_folder=get_audit_path(settings, self._folder).parent if settings.audit.enabled else None,
            enabled_schedulers=settings.server.enabled_schedulers,
            metric_filter=MetricFilter(
                prefixes=settings.telemetry.prefix_filter,
                is_published_by_default=settings.telemetry.filter_default,
                host="" if settings.telemetry.disable_hostname else get_agent_name(settings),
            ),
        )

    def _redact_settings(self, settings: AgentSettings) -> Mapping[str, Any]:
        """Return the settings without secrets. They are converted once for each reload: it takes 2 ms, and many requests read them."""
        if self._redacted is None or self._redacted[0] is not settings:
            configuration = redact_settings(settings)
            assert isinstance(configuration, dict), "the settings are one table"
            self._redacted = settings, configuration
        return self._redacted[1]

    def _state_folder(self) -> Path:
        state_dir = self._context.order.settings.client.state_dir
        return Path(state_dir) if state_dir else self._folder / "node"

    def _allocation_folder(self) -> Path:
        alloc_dir = self._context.order.settings.client.alloc_dir
        return Path(alloc_dir) if alloc_dir else self._folder / "alloc"

    async def find_certificate_problem(self) -> str:
        await self._certificates.refresh()
        return self._certificates.find_problem()

    async def reload(self) -> None:
        """Reload the configuration. Raises `Refusal` if the new configuration is invalid."""
        reply = await self._context.request_reload()
        if reply.problem:
            raise invalid_request(reply.problem)

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Return the log lines of this level and above from all processes of the agent that are written from now on."""
        return await AgentLogReader(self._folder).open_log(level, as_json=as_json)

    async def list_processes(self) -> Sequence[ProcessInfo]:
        """Return the agent process and its children with their stacks. Raises `Refusal` if the agent is silent."""
        try:
            reply = await asyncio.to_thread(
                send_control_request, self._folder, DebugRequest(), timeout_s=CONTROL_TIMEOUT_S
            )
        except CommandError as error:
            raise build_unavailable_refusal(error) from error
        if not isinstance(reply, DebugReply):
            raise Refusal(RefusalCode.UNAVAILABLE, "the agent does not answer")
        children = [
            ProcessInfo(
                process.name,
                process.pid,
                process.phase,
                process.restarts,
                process.description.stacks if process.description else "the process did not respond in time\n",
            )
            for process in reply.processes
        ]
        return [ProcessInfo("agent", 0, "ready", 0, reply.agent_stacks), *children]

    async def profile_process(self, seconds: float, *, as_pprof: bool) -> bytes:
        """Return the sampled stacks of this process over this many seconds, as text or in the format of pprof."""
        samples = await asyncio.to_thread(profiles.sample_stacks, seconds)
        if not as_pprof:
            return (await asyncio.to_thread(profiles.render_folded, samples)).encode()
        now_ns = self._context.world.now_ns()
        return await asyncio.to_thread(
            profiles.encode_pprof, samples, profiles.CPU_VALUE_TYPES, time_ns=now_ns, seconds=seconds
        )

    async def profile_memory(self, profile: str, seconds: float, *, as_pprof: bool) -> bytes:
        """Return the allocations of these seconds that are still in use, as text or in the format of pprof.

        `profile` is `heap` or `allocs`: the names of the values differ. Raises `Refusal` while another one is measured.
        """
        measured = await asyncio.to_thread(profiles.trace_allocations, seconds)
        if not as_pprof:
            return (await asyncio.to_thread(profiles.render_memory, measured)).encode()
        value_types = profiles.MEMORY_VALUE_TYPES[profile]
        now_ns = self._context.world.now_ns()
        return await asyncio.to_thread(
            profiles.encode_pprof, measured.samples, value_types, time_ns=now_ns, seconds=measured.seconds
        )

    async def read_host(self) -> HostInfo:
        return await asyncio.to_thread(read_host_facts, Redactor(self._context.order.log.secrets))

    async def read_command_line(self) -> bytes:
        return await asyncio.to_thread(Path("/proc/self/cmdline").read_bytes)

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        """Return the chunks of the agent's log file. Raises `Refusal` if the agent writes no log file."""
        file = self._context.order.settings.log_file
        if not file:
            raise not_found("this agent writes no log file: set log_file in its configuration")
        return read_file_chunks(Path(file))

    async def read_audit_log(self, query: AuditQuery) -> AuditLogPage:
        """Return entries of the audit log, read on a thread. Raises `Refusal`."""
        settings = self._context.order.settings
        if not settings.audit.enabled:
            raise not_found("this server has no audit log: audit.enabled is false in its configuration")
        if self._audit_reads >= MAX_AUDIT_READS:
            raise Refusal(
                RefusalCode.UNAVAILABLE, f"{MAX_AUDIT_READS} searches in the audit log run already; try again"
            )
        self._audit_reads += 1
        try:
            return await asyncio.to_thread(read_audit_log, get_audit_path(settings, self._folder), query)
        except OSError as error:
            raise Refusal(
                RefusalCode.UNAVAILABLE, f"the audit log cannot be read: {error.strerror or error}"
            ) from error
        finally:
            self._audit_reads -= 1

    async def read_snapshot_schedule(self) -> SnapshotSchedule:
        return await asyncio.to_thread(
            read_schedule, self._context.order.settings, self._folder, now_ns=self._context.world.now_ns()
        )

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        return await self._snapshots.save(engine)

    async def restore_snapshot(
        self, engine: LogEngine, parts: AsyncIterator[bytes], wrapping_keys: Sequence[str]
    ) -> int:
        return await self._snapshots.restore(engine, parts, wrapping_keys)
