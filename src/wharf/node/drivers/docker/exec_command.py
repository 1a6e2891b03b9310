"""A command in the container of a task, as the port `drivers.beside` wants it."""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Final

from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.exec_connection import ExecConnection
from wharf.node.drivers.port import CannotStart, CommandOrder, Stream
from wharf.world import World

log = logging.getLogger(__name__)

MAX_QUEUED_CHUNKS: Final = 16
STATE_POLL_INTERVAL_S: Final = 0.05
UNKNOWN_EXIT_CODE: Final = -1


class ContainerCommand:
    """Begin one by `begin`."""

    def __init__(self, world: World, engine: ContainerEngine, exec_id: str, attached: ExecConnection) -> None:
        self._world = world
        self._engine = engine
        self._exec_id = exec_id
        self._attached = attached
        self._said: dict[Stream, asyncio.Queue[bytes]] = {
            "stdout": asyncio.Queue(MAX_QUEUED_CHUNKS),
            "stderr": asyncio.Queue(MAX_QUEUED_CHUNKS),
        }
        self._ended: dict[Stream, bool] = {"stdout": False, "stderr": False}
        self._hearing = world.start_task(self._hear(), name="output of a command in a container")
        self._resizing: asyncio.Task[None] | None = None

    async def read(self, stream: Stream) -> bytes:
        if self._ended[stream]:
            return b""
        data = await self._said[stream].get()
        self._ended[stream] = not data
        return data

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(EngineUnreachable):
            await self._attached.write(data)

    async def close_input(self) -> None:
        self._attached.close_input()

    def resize(self, height: int, width: int) -> None:
        self._resizing = self._world.start_task(self._resize(height, width), name="a terminal's new size")

    async def wait(self) -> int:
        while True:
            try:
                state = await self._engine.read_exec_state(self._exec_id)
            except (EngineUnreachable, EngineRejected):
                return UNKNOWN_EXIT_CODE
            if not state.running:
                return state.exit_code if state.exit_code is not None else UNKNOWN_EXIT_CODE
            await asyncio.sleep(STATE_POLL_INTERVAL_S)

    async def end(self) -> None:
        self._hearing.cancel()
        await self._attached.close()
        with contextlib.suppress(EngineUnreachable, EngineRejected):
            state = await self._engine.read_exec_state(self._exec_id)
            if state.running and state.pid > 1:
                _kill(state.pid)

    async def _hear(self) -> None:
        async for chunk in self._attached.read_output():
            if chunk.data:
                await self._said[chunk.stream].put(chunk.data)
        # Each on its own: nobody may read one of them.
        await asyncio.gather(*(queue.put(b"") for queue in self._said.values()))

    async def _resize(self, height: int, width: int) -> None:
        try:
            await self._engine.resize_exec(self._exec_id, height=height, width=width)
        except (EngineUnreachable, EngineRejected) as error:
            log.info("a terminal keeps its size: %s", error)


async def start_container_command(
    world: World, engine: ContainerEngine, container: str, order: CommandOrder
) -> ContainerCommand:
    """Raises CannotStart."""
    try:
        exec_id = await engine.create_exec(container, list(order.command), is_tty=order.is_tty)
        attached = await engine.start_exec(exec_id, is_tty=order.is_tty)
    except (EngineUnreachable, EngineRejected) as error:
        raise CannotStart(f"the command cannot be run in the container: {error}") from error
    begun = ContainerCommand(world, engine, exec_id, attached)
    if order.is_tty and order.height:
        begun.resize(order.height, order.width)
    return begun


def _kill(pid: int) -> None:
    """The engine has no request for this. With all of its group, where it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
