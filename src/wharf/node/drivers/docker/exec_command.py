"""Runs a command in a task's container, as the protocol `Command` of `drivers.port`."""

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
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)

MAX_QUEUED_CHUNKS: Final = 16
"""Limit of output chunks in memory; beyond it the command has to wait."""
MIN_STATE_POLL_INTERVAL_S: Final = 0.05
"""How often the state of a command is read whose output has ended: its exit code follows soon."""
MAX_STATE_POLL_INTERVAL_S: Final = 1.0
"""How often the state of a command is read that goes on. Limits the load of the engine by commands that run for hours."""
UNKNOWN_EXIT_CODE: Final = -1


class ContainerCommand:
    """A running command in a container; `start_container_command` creates it."""

    def __init__(self, world: World, engine: ContainerEngine, exec_id: str, connection: ExecConnection) -> None:
        self._world = world
        self._engine = engine
        self._exec_id = exec_id
        self._connection = connection
        self._output: dict[Stream, asyncio.Queue[bytes]] = {
            "stdout": asyncio.Queue(MAX_QUEUED_CHUNKS),
            "stderr": asyncio.Queue(MAX_QUEUED_CHUNKS),
        }
        self._ended: dict[Stream, bool] = {"stdout": False, "stderr": False}
        self._reader_task = start_supervised(
            world,
            self._read_output(),
            name="output of a command in a container",
            on_failure=self._on_reading_failed,
        )
        self._resize_task: asyncio.Task[None] | None = None
        self._requested_size: tuple[int, int] | None = None
        """The newest terminal size (rows and columns) that was not sent to the engine."""

    async def read(self, stream: Stream) -> bytes:
        """Return the next output of the stream; empty at its end."""
        if self._ended[stream]:
            return b""
        data = await self._output[stream].get()
        self._ended[stream] = not data
        return data

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(EngineUnreachable):
            await self._connection.write(data)

    async def close_input(self) -> None:
        self._connection.close_input()

    def resize(self, height: int, width: int) -> None:
        """Set the size of the terminal. While the engine sets one size, only the newest of further ones is stored."""
        self._requested_size = height, width
        if self._resize_task is None or self._resize_task.done():
            self._resize_task = start_supervised(self._world, self._resize(), name="terminal resize")

    async def wait(self) -> int:
        """Wait until the command has ended and return its exit code.

        UNKNOWN_EXIT_CODE if the engine does not report it.
        """
        interval_s = MIN_STATE_POLL_INTERVAL_S
        while True:
            try:
                state = await self._engine.read_exec_state(self._exec_id)
            except (EngineUnreachable, EngineRejected):
                return UNKNOWN_EXIT_CODE
            if not state.running:
                return state.exit_code if state.exit_code is not None else UNKNOWN_EXIT_CODE
            if not self._reader_task.done():
                await asyncio.wait([self._reader_task], timeout=interval_s)
                if self._reader_task.done():
                    interval_s = MIN_STATE_POLL_INTERVAL_S
                    continue
            else:
                await asyncio.sleep(interval_s)
            interval_s = min(interval_s * 2, MAX_STATE_POLL_INTERVAL_S)

    async def end(self) -> None:
        """Close the connection, and kill the command if it still runs."""
        self._reader_task.cancel()
        if self._resize_task is not None:
            self._resize_task.cancel()
        await self._connection.close()
        with contextlib.suppress(EngineUnreachable, EngineRejected):
            state = await self._engine.read_exec_state(self._exec_id)
            if state.running and state.pid > 1:
                _kill(state.pid)

    async def _read_output(self) -> None:
        """Put the received output into the queues of its streams; an empty chunk marks the end."""
        async for chunk in self._connection.read_output():
            if chunk.data:
                await self._output[chunk.stream].put(chunk.data)
        await self._end_output()

    async def _end_output(self) -> None:
        """Put the mark of the end into the queues of all streams."""
        # Concurrently, because a stream without a reader must not block the other.
        await asyncio.gather(*(queue.put(b"") for queue in self._output.values()))

    def _on_reading_failed(self, _: Exception) -> None:
        """End the output after an unexpected error, so that its readers do not wait for ever."""
        self._reader_task = start_supervised(self._world, self._end_output(), name="end of a command's output")

    async def _resize(self) -> None:
        """Set the size of the command's terminal to the newest requested one; a failure is only logged."""
        while self._requested_size is not None:
            (height, width), self._requested_size = self._requested_size, None
            try:
                await self._engine.resize_exec(self._exec_id, height=height, width=width)
            except (EngineUnreachable, EngineRejected) as error:
                log.info("terminal resize failed error=%s", error)


async def start_container_command(
    world: World, engine: ContainerEngine, container: str, order: CommandOrder
) -> ContainerCommand:
    """Start a command in a task's container and return it. Raises CannotStart."""
    try:
        exec_id = await engine.create_exec(container, list(order.command), is_tty=order.is_tty)
        connection = await engine.start_exec(exec_id, is_tty=order.is_tty)
    except (EngineUnreachable, EngineRejected) as error:
        raise CannotStart(f"the command cannot be run in the container: {error}") from error
    command = ContainerCommand(world, engine, exec_id, connection)
    if order.is_tty and order.height:
        command.resize(order.height, order.width)
    return command


def _kill(pid: int) -> None:
    """Kill a process by its host process id, with its process group if it leads one.

    The engine has no request for this.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
