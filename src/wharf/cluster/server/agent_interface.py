"""The port to the agent around a server: what belongs to its processes and its machine, not to the cluster."""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from wharf.cluster.engines.port import LogEngine
from wharf.cluster.server.metrics import MetricFilter
from wharf.contract.model.refusal import Refusal, RefusalCode


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process of this server, and where all of its tasks and threads stand."""

    name: str
    pid: int
    phase: str
    restarts: int
    stacks: str


class AgentInfo(msgspec.Struct, frozen=True):
    """What does not change while the agent runs. `configuration` holds nothing secret."""

    configuration: Mapping[str, Any] = {}
    version: str = ""
    is_debug_enabled: bool = False
    is_prometheus_enabled: bool = False
    has_node: bool = False
    node_servers: Sequence[str] = ()
    node_id: str = ""
    """Of the agent's own node; empty where it has none, or none yet."""
    enabled_schedulers: Sequence[str] = ()
    metric_filter: MetricFilter = MetricFilter()


class HostInfo(msgspec.Struct, frozen=True):
    """The machine. `disks`: bytes by what they are, by mount point."""

    os: str = ""
    networks: Sequence[Mapping[str, str]] = ()
    resolv_conf: str = ""
    hosts: str = ""
    environment: Mapping[str, str] = {}
    disks: Mapping[str, Mapping[str, int]] = {}


class SavedSnapshot(msgspec.Struct, frozen=True):
    """An archive of the whole state. `parts` must be read to their end or closed: it lies in a file until then."""

    index: int
    sha256: bytes
    parts: AsyncGenerator[bytes, None]


class AgentInterface(Protocol):
    @property
    def info(self) -> AgentInfo: ...

    async def reload(self) -> None:
        """Read the configuration again. Raises `Refusal` with what is wrong with it."""
        ...

    def follow_log(self, level: str, *, as_json: bool) -> AsyncIterator[str]:
        """Lines of all processes of this server as they are written, of this level (`debug` ...) and above, until closed.
        What a slow reader misses is told as a line of its own.
        """
        ...

    async def list_processes(self) -> Sequence[ProcessInfo]: ...

    async def profile_process(self, seconds: float) -> str:
        """Where the time goes in this process: a line for each stack that was seen, with how often."""
        ...

    async def read_host(self) -> HostInfo: ...

    async def read_command_line(self) -> bytes:
        """The arguments, each ended by a zero byte."""
        ...

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        """What the log file holds, part by part. Raises `Refusal` where there is none."""
        ...

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        """Raises `Refusal`."""
        ...

    async def restore_snapshot(self, engine: LogEngine, parts: AsyncIterator[bytes]) -> int:
        """Take the archive in, check it whole, and only then replace what the log holds; the index where it stands then.
        Raises `Refusal`, and what `parts` raise.
        """
        ...


class NoAgentInterface:
    """For a server that no agent runs: it tells of its own tasks, and refuses the rest."""

    def __init__(self, info: AgentInfo | None = None) -> None:
        self.info = info or AgentInfo()

    async def reload(self) -> None:
        raise _not_here("no configuration to read again")

    def follow_log(self, level: str, *, as_json: bool) -> AsyncIterator[str]:
        raise _not_here(f"no log to read lines of level {level} from{', as JSON' if as_json else ''}")

    async def list_processes(self) -> Sequence[ProcessInfo]:
        return [ProcessInfo("server", 0, "ready", 0, format_stacks(asyncio.get_running_loop()))]

    async def profile_process(self, seconds: float) -> str:
        raise _not_here(f"nobody who could look on for {seconds:g} s")

    async def read_host(self) -> HostInfo:
        raise _not_here("no host to tell of")

    async def read_command_line(self) -> bytes:
        raise _not_here("no process of its own")

    def read_log_file(self) -> AsyncGenerator[bytes, None]:
        raise _not_here("no log file")

    async def save_snapshot(self, engine: LogEngine) -> SavedSnapshot:
        raise _not_here(f"no disk to save a snapshot to ({type(engine).__name__})")

    async def restore_snapshot(self, engine: LogEngine, parts: AsyncIterator[bytes]) -> int:
        raise _not_here(f"no disk to restore {'a snapshot' if parts else 'nothing'} from ({type(engine).__name__})")


def _not_here(what: str) -> Refusal:
    return Refusal(RefusalCode.NOT_IMPLEMENTED, f"no agent runs this server: there is {what}")


def format_stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Where every thread and every task stands: files, lines and names of functions, never values."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()) if loop is not None else []
    parts.extend(f"task {task.get_name()}\n{''.join(_say_task(task))}" for task in tasks)
    return "\n".join(parts)


def _say_task(task: asyncio.Task[Any]) -> Iterator[str]:
    """What it waits in, outermost first: a suspended task's own stack shows only where it begins."""
    waiting: Any = task.get_coro()  # Coroutines and generators tell this by attributes that have no common type.
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            yield from traceback.format_stack(frame, limit=1)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
