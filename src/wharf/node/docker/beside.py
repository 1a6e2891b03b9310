"""A command in the container of a task, as the port `drivers.beside` wants it."""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Final

from wharf.node.docker.attached import Attached
from wharf.node.docker.engine import Engine
from wharf.node.docker.errors import EngineAway, EngineRefused
from wharf.node.drivers.beside import CommandOrder, Stream
from wharf.node.drivers.port import CannotStart
from wharf.world import World

log = logging.getLogger(__name__)

WAITING_MAX: Final = 16
LOOK_S: Final = 0.05
NOT_KNOWN: Final = -1


class CommandWithin:
    """Begin one by `begin`."""

    def __init__(self, world: World, engine: Engine, exec_id: str, attached: Attached) -> None:
        self._world = world
        self._engine = engine
        self._exec_id = exec_id
        self._attached = attached
        self._said: dict[Stream, asyncio.Queue[bytes]] = {
            "stdout": asyncio.Queue(WAITING_MAX),
            "stderr": asyncio.Queue(WAITING_MAX),
        }
        self._ended: dict[Stream, bool] = {"stdout": False, "stderr": False}
        self._hearing = world.start(self._hear(), name="output of a command in a container")
        self._resizing: asyncio.Task[None] | None = None

    async def read(self, stream: Stream) -> bytes:
        if self._ended[stream]:
            return b""
        data = await self._said[stream].get()
        self._ended[stream] = not data
        return data

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(EngineAway):
            await self._attached.write(data)

    async def close_input(self) -> None:
        self._attached.end_input()

    def resize(self, height: int, width: int) -> None:
        self._resizing = self._world.start(self._resize(height, width), name="a terminal's new size")

    async def wait(self) -> int:
        while True:
            try:
                state = await self._engine.exec_state(self._exec_id)
            except (EngineAway, EngineRefused):
                return NOT_KNOWN
            if not state.running:
                return state.exit_code if state.exit_code is not None else NOT_KNOWN
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        self._hearing.cancel()
        await self._attached.close()
        with contextlib.suppress(EngineAway, EngineRefused):
            state = await self._engine.exec_state(self._exec_id)
            if state.running and state.pid > 1:
                _kill(state.pid)

    async def _hear(self) -> None:
        async for chunk in self._attached.output():
            if chunk.data:
                await self._said[chunk.stream].put(chunk.data)
        # Each on its own: nobody may read one of them.
        await asyncio.gather(*(queue.put(b"") for queue in self._said.values()))

    async def _resize(self, height: int, width: int) -> None:
        try:
            await self._engine.resize_exec(self._exec_id, height=height, width=width)
        except (EngineAway, EngineRefused) as error:
            log.info("a terminal keeps its size: %s", error)


async def begin(world: World, engine: Engine, container: str, order: CommandOrder) -> CommandWithin:
    """Raises CannotStart."""
    try:
        exec_id = await engine.make_exec(container, list(order.command), is_tty=order.is_tty)
        attached = await engine.start_exec(exec_id, is_tty=order.is_tty)
    except (EngineAway, EngineRefused) as error:
        raise CannotStart(f"the command cannot be run in the container: {error}") from error
    begun = CommandWithin(world, engine, exec_id, attached)
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
