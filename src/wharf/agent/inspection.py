"""Gives a server access to the agent it runs in: processes, logs, settings, profiles, snapshots and facts of the host.

Data of other processes comes from the control socket, and facts of the host from files of the kernel, without secrets.
"""

import asyncio
import collections
import os
import platform
import socket
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from wharf import __version__
from wharf.agent.data_folder import CONTROL_SOCKET
from wharf.agent.errors import CommandError
from wharf.agent.identity import get_agent_name
from wharf.agent.logs.lines import get_level_number, render_line
from wharf.agent.logs.redaction import REDACTED, Redactor, is_secret_name
from wharf.agent.node_identities import read_own_node_id
from wharf.agent.process_context import ProcessContext
from wharf.agent.snapshots.transfer import SnapshotTransfer, read_file_chunks
from wharf.agent.supervision.channel import MessageDecoder
from wharf.agent.supervision.control import ControlLogRequest, DebugReply, DebugRequest, send_control_request
from wharf.agent.supervision.log_followers import FollowedLogLines
from wharf.cluster.engines.port import LogEngine
from wharf.cluster.server.agent_interface import AgentInfo, HostInfo, ProcessInfo, SavedSnapshot
from wharf.cluster.server.metrics import MetricFilter
from wharf.config.values import redact_settings
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.world.framing import encode_frame
from wharf.world.unix_sockets import shorten_socket_path

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


SAMPLES_PER_S: Final = 100
"""How often `sample_stacks` samples each thread."""
MAX_STACK_FRAMES: Final = 100
"""Limits the length of a sampled stack in deep recursion."""


def sample_stacks(seconds: float) -> str:
    """Sample the stacks of all threads and return them in folded form, most frequent first.

    Each line has the functions from the outermost on, joined by `;`, then the number of samples. Call it on a thread of
    its own, which it does not sample.
    """
    own_ident = threading.get_ident()
    counts: collections.Counter[str] = collections.Counter()
    pause = threading.Event()
    for _ in range(max(1, round(seconds * SAMPLES_PER_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own_ident:
                counts[f"{names.get(ident, ident)};{_fold_stack(frame)}"] += 1
        pause.wait(1 / SAMPLES_PER_S)
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


def _fold_stack(frame: FrameType | None) -> str:
    """Return the functions of a stack, outermost first, joined by `;`."""
    calls: list[str] = []
    while frame is not None and len(calls) < MAX_STACK_FRAMES:
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(calls))


CONTROL_TIMEOUT_S: Final = 10.0
"""How long a request waits for the parent process on the control socket."""
READ_CHUNK_BYTES: Final = 65_536


class AgentInspection:
    """Answers the queries of a server about the agent it runs in. Implements `AgentInterface`."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self._folder = Path(context.order.data_folder)
        self._snapshots = SnapshotTransfer(context.world, self._folder)

    @property
    def info(self) -> AgentInfo:
        """Return the settings and facts of this agent that do not change between reloads."""
        settings = self._context.order.settings
        configuration = redact_settings(settings)
        assert isinstance(configuration, dict), "the settings are one table"
        return AgentInfo(
            configuration=configuration,
            version=__version__,
            is_debug_enabled=settings.enable_debug,
            is_prometheus_enabled=settings.telemetry.prometheus_metrics,
            is_nomad_compatible=settings.compat.nomad,
            has_node=settings.client.enabled,
            node_servers=settings.client.servers,
            node_id=read_own_node_id(self._state_folder()) if settings.client.enabled else "",
            node_folders=(self._state_folder(), self._allocation_folder()) if settings.client.enabled else (),
            enabled_schedulers=settings.server.enabled_schedulers,
            metric_filter=MetricFilter(
                prefixes=settings.telemetry.prefix_filter,
                is_published_by_default=settings.telemetry.filter_default,
                host="" if settings.telemetry.disable_hostname else get_agent_name(settings),
            ),
        )

    def _state_folder(self) -> Path:
        state_dir = self._context.order.settings.client.state_dir
        return Path(state_dir) if state_dir else self._folder / "node"

    def _allocation_folder(self) -> Path:
        alloc_dir = self._context.order.settings.client.alloc_dir
        return Path(alloc_dir) if alloc_dir else self._folder / "alloc"

    async def reload(self) -> None:
        """Reload the configuration. Raises `Refusal` if the new configuration is invalid."""
        reply = await self._context.request_reload()
        if reply.problem:
            raise invalid_request(reply.problem)

    async def follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Yield log lines of this level and above from all processes of the agent, as they are written."""
        inbox: MessageDecoder[FollowedLogLines] = MessageDecoder(FollowedLogLines)
        try:
            with shorten_socket_path(self._folder / CONTROL_SOCKET) as name:
                reader, writer = await asyncio.open_unix_connection(name)
        except OSError as error:
            raise _build_unavailable_refusal(error) from error
        try:
            writer.write(encode_frame(ControlLogRequest(get_level_number(level))))
            while data := await reader.read(READ_CHUNK_BYTES):
                for message in inbox.feed(data):
                    if message.missed:
                        yield f"({message.missed} lines were skipped: they were written faster than they were read)"
                    for line in message.lines:
                        yield line if as_json else render_line(line)
        except OSError as error:
            raise _build_unavailable_refusal(error) from error
        finally:
            writer.close()

    async def list_processes(self) -> Sequence[ProcessInfo]:
        """Return the agent process and its children with their stacks. Raises `Refusal` if the agent is silent."""
        try:
            reply = await asyncio.to_thread(
                send_control_request, self._folder, DebugRequest(), timeout_s=CONTROL_TIMEOUT_S
            )
        except CommandError as error:
            raise _build_unavailable_refusal(error) from error
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

    async def profile_process(self, seconds: float) -> str:
        """Return the sampled stacks of this process over this many seconds."""
        return await asyncio.to_thread(sample_stacks, seconds)

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

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        return await self._snapshots.save(engine)

    async def restore_snapshot(self, engine: LogEngine, parts: AsyncIterator[bytes]) -> int:
        return await self._snapshots.restore(engine, parts)


def _build_unavailable_refusal(error: Exception) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"the agent does not answer: {error}")
