"""The machine that an agent runs on, read from the kernel's files when somebody asks. Secrets are taken out.

Where the time goes in this process, found by looking at its threads again and again.

What a server may ask of the agent around it, answered for real: the control socket knows all processes, this process
knows itself, the machine is read from the kernel's files.
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
from wharf.agent.node_identity import read_own_node_id
from wharf.agent.process_context import ProcessContext
from wharf.agent.snapshots.transfer import SnapshotTransfer, read_file_chunks
from wharf.agent.sockets import shorten_socket_path
from wharf.agent.supervision.channel import MessageDecoder, frame_message
from wharf.agent.supervision.control import ControlLogRequest, DebugReply, DebugRequest, send_control_request
from wharf.agent.supervision.log_followers import FollowedLogLines
from wharf.cluster.engines.port import LogEngine
from wharf.cluster.server.agent_interface import AgentInfo, HostInfo, ProcessInfo, SavedSnapshot
from wharf.cluster.server.metrics import MetricFilter
from wharf.config.values import redact_settings
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found

MAX_HOST_FILE_BYTES: Final = 100_000


def read_host_facts(redactor: Redactor) -> HostInfo:
    return HostInfo(
        os=f"{platform.system().lower()} {platform.release()}",
        networks=list(_networks()),
        resolv_conf=redactor.redact(_text(Path("/etc/resolv.conf"))),
        hosts=redactor.redact(_text(Path("/etc/hosts"))),
        environment={
            name: REDACTED if is_secret_name(name) else redactor.redact(value)
            for name, value in sorted(os.environ.items())
        },
        disks=dict(_disks()),
    )


def _networks() -> Iterator[Mapping[str, str]]:
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        yield {
            "name": name,
            "mac": _text(folder / "address").strip(),
            "mtu": _text(folder / "mtu").strip(),
            "state": _text(folder / "operstate").strip(),
        }


def _disks() -> Iterator[tuple[str, Mapping[str, int]]]:
    """What is mounted from a device."""
    for line in _text(Path("/proc/self/mounts")).splitlines():
        device, mount, *_ = line.split(" ")
        if not device.startswith("/"):
            continue
        with suppress(OSError):  # It was unmounted while we looked.
            room = os.statvfs(mount)
            yield (
                mount,
                {
                    "size": room.f_blocks * room.f_frsize,
                    "free": room.f_bavail * room.f_frsize,
                    "inodes": room.f_files,
                    "inodes_free": room.f_ffree,
                },
            )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_HOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


SAMPLES_PER_S: Final = 100
MAX_STACK_FRAMES: Final = 100


def sample_stacks(seconds: float) -> str:
    """Folded stacks: functions from the outermost on, joined by `;`, then how often that was seen. Call on a thread of its
    own; it leaves itself out.
    """
    own = threading.get_ident()
    seen: collections.Counter[str] = collections.Counter()
    pause = threading.Event()
    for _ in range(max(1, round(seconds * SAMPLES_PER_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                seen[f"{names.get(ident, ident)};{_folded(frame)}"] += 1
        pause.wait(1 / SAMPLES_PER_S)
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common())


def _folded(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < MAX_STACK_FRAMES:
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(calls))


CONTROL_TIMEOUT_S: Final = 10.0
READ_CHUNK_BYTES: Final = 65_536


class AgentInspection:
    """An `AgentDoor`."""

    def __init__(self, life: ProcessContext) -> None:
        self._life = life
        self._folder = Path(life.order.data_folder)
        self._snapshots = SnapshotTransfer(life.world, self._folder)

    @property
    def info(self) -> AgentInfo:
        settings = self._life.order.settings
        configuration = redact_settings(settings)
        assert isinstance(configuration, dict), "the settings are one table"
        return AgentInfo(
            configuration=configuration,
            version=__version__,
            is_debug_enabled=settings.enable_debug,
            is_prometheus_enabled=settings.telemetry.prometheus_metrics,
            has_node=settings.client.enabled,
            node_servers=settings.client.servers,
            node_id=read_own_node_id(self._state_folder()) if settings.client.enabled else "",
            enabled_schedulers=settings.server.enabled_schedulers,
            metric_filter=MetricFilter(
                prefixes=settings.telemetry.prefix_filter,
                is_published_by_default=settings.telemetry.filter_default,
                host="" if settings.telemetry.disable_hostname else get_agent_name(settings),
            ),
        )

    def _state_folder(self) -> Path:
        given = self._life.order.settings.client.state_dir
        return Path(given) if given else self._folder / "node"

    async def reload(self) -> None:
        answer = await self._life.request_reload()
        if answer.problem:
            raise invalid_request(answer.problem)

    async def follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        inbox: MessageDecoder[FollowedLogLines] = MessageDecoder(FollowedLogLines)
        with shorten_socket_path(self._folder / CONTROL_SOCKET) as name:
            try:
                reader, writer = await asyncio.open_unix_connection(name)
            except OSError as error:
                raise _silent(error) from error
        try:
            writer.write(frame_message(ControlLogRequest(get_level_number(level))))
            while data := await reader.read(READ_CHUNK_BYTES):
                for told in inbox.feed(data):
                    if told.missed:
                        yield f"({told.missed} lines are left out: they came faster than they were read)"
                    for line in told.lines:
                        yield line if as_json else render_line(line)
        except OSError as error:
            raise _silent(error) from error
        finally:
            writer.close()

    async def list_processes(self) -> Sequence[ProcessInfo]:
        try:
            answer = await asyncio.to_thread(
                send_control_request, self._folder, DebugRequest(), timeout_s=CONTROL_TIMEOUT_S
            )
        except CommandError as error:
            raise _silent(error) from error
        if not isinstance(answer, DebugReply):
            raise Refusal(RefusalCode.UNAVAILABLE, "the agent does not answer")
        told = [
            ProcessInfo(
                process.name,
                process.pid,
                process.phase,
                process.restarts,
                process.description.stacks if process.description else "it did not answer\n",
            )
            for process in answer.processes
        ]
        return [ProcessInfo("agent", 0, "ready", 0, answer.agent_stacks), *told]

    async def profile_process(self, seconds: float) -> str:
        return await asyncio.to_thread(sample_stacks, seconds)

    async def read_host(self) -> HostInfo:
        return await asyncio.to_thread(read_host_facts, Redactor(self._life.order.log.secrets))

    async def read_command_line(self) -> bytes:
        return await asyncio.to_thread(Path("/proc/self/cmdline").read_bytes)

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        file = self._life.order.settings.log_file
        if not file:
            raise not_found("this agent writes no log file: set log_file in its configuration")
        return read_file_chunks(Path(file))

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        return await self._snapshots.save(engine)

    async def restore_snapshot(self, engine: LogEngine, parts: AsyncIterator[bytes]) -> int:
        return await self._snapshots.restore(engine, parts)


def _silent(error: Exception) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"the agent does not answer: {error}")
