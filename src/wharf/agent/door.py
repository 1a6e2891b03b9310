"""What a server may ask of the agent around it, answered for real: the control socket knows all processes, this process
knows itself, the machine is read from the kernel's files.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from wharf import __version__
from wharf.agent import host, profiling
from wharf.agent.channel import Inbox, framed
from wharf.agent.control import DebugAnswer, DebugAsked, LogAsked, ask
from wharf.agent.fake_nodes import own_node_id
from wharf.agent.folder import CONTROL_SOCKET
from wharf.agent.identity import name_of
from wharf.agent.life import Life
from wharf.agent.listening import short_path
from wharf.agent.log_followers import LogLines
from wharf.agent.log_lines import level_number, say_line
from wharf.agent.redaction import Redactor
from wharf.agent.refusal import Refused
from wharf.agent.snapshot_files import SnapshotFiles, file_parts
from wharf.config.values import redacted
from wharf.engines.port import Engine
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.server.agent_door import AgentFacts, HostFacts, ProcessTold, SavedSnapshot
from wharf.server.published import Published

ANSWER_WITHIN_S: Final = 10.0
READ_BYTES: Final = 65_536


class RunningAgent:
    """An `AgentDoor`."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._folder = Path(life.order.data_folder)
        self._snapshots = SnapshotFiles(life.world, self._folder)

    @property
    def facts(self) -> AgentFacts:
        settings = self._life.order.settings
        configuration = redacted(settings)
        assert isinstance(configuration, dict), "the settings are one table"
        return AgentFacts(
            configuration=configuration,
            version=__version__,
            is_debug_enabled=settings.enable_debug,
            is_prometheus_enabled=settings.telemetry.prometheus_metrics,
            has_node=settings.client.enabled,
            node_servers=settings.client.servers,
            node_id=own_node_id(self._state_folder()) if settings.client.enabled else "",
            enabled_schedulers=settings.server.enabled_schedulers,
            published=Published(
                prefixes=settings.telemetry.prefix_filter,
                by_default=settings.telemetry.filter_default,
                host="" if settings.telemetry.disable_hostname else name_of(settings),
            ),
        )

    def _state_folder(self) -> Path:
        given = self._life.order.settings.client.state_dir
        return Path(given) if given else self._folder / "node"

    async def reload(self) -> None:
        answer = await self._life.ask_for_reload()
        if answer.problem:
            raise invalid(answer.problem)

    async def follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        inbox: Inbox[LogLines] = Inbox(LogLines)
        with short_path(self._folder / CONTROL_SOCKET) as name:
            try:
                reader, writer = await asyncio.open_unix_connection(name)
            except OSError as error:
                raise _silent(error) from error
        try:
            writer.write(framed(LogAsked(level_number(level))))
            while data := await reader.read(READ_BYTES):
                for told in inbox.add(data):
                    if told.missed:
                        yield f"({told.missed} lines are left out: they came faster than they were read)"
                    for line in told.lines:
                        yield line if as_json else say_line(line)
        except OSError as error:
            raise _silent(error) from error
        finally:
            writer.close()

    async def processes(self) -> Sequence[ProcessTold]:
        try:
            answer = await asyncio.to_thread(ask, self._folder, DebugAsked(), timeout_s=ANSWER_WITHIN_S)
        except Refused as error:
            raise _silent(error) from error
        if not isinstance(answer, DebugAnswer):
            raise Refusal(Code.UNAVAILABLE, "the agent does not answer")
        told = [
            ProcessTold(
                process.name,
                process.pid,
                process.phase,
                process.restarts,
                process.description.stacks if process.description else "it did not answer\n",
            )
            for process in answer.processes
        ]
        return [ProcessTold("agent", 0, "ready", 0, answer.agent_stacks), *told]

    async def profile(self, seconds: float) -> str:
        return await asyncio.to_thread(profiling.sample, seconds)

    async def host(self) -> HostFacts:
        return await asyncio.to_thread(host.look, Redactor(self._life.order.log.secrets))

    async def command_line(self) -> bytes:
        return await asyncio.to_thread(Path("/proc/self/cmdline").read_bytes)

    def log_file(self) -> AsyncGenerator[bytes, None]:
        file = self._life.order.settings.log_file
        if not file:
            raise unknown("this agent writes no log file: set log_file in its configuration")
        return file_parts(Path(file))

    async def save_snapshot(self, engine: Engine) -> SavedSnapshot:
        return await self._snapshots.save(engine)

    async def restore_snapshot(self, engine: Engine, parts: AsyncIterator[bytes]) -> int:
        return await self._snapshots.restore(engine, parts)


def _silent(error: Exception) -> Refusal:
    return Refusal(Code.UNAVAILABLE, f"the agent does not answer: {error}")
