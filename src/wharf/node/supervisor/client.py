"""The way to the node's supervisor: it starts one where none is, and goes on when one died.

What is said while nobody listens is not kept: after each new connection the supervisor tells of all its runs, and whoever
drives tasks says again what is still open.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.port import Watcher
from wharf.node.supervisor import messages
from wharf.node.supervisor.messages import MessageReader, encode_frame
from wharf.node.supervisor.task_supervisor import SOCKET_FILE
from wharf.world import World

log = logging.getLogger(__name__)

CONNECT_RETRY_DELAY_S: Final = 0.05
MIN_START_INTERVAL_S: Final = 1.0
READ_BYTES: Final = 262_144


class SupervisorClient:
    def __init__(
        self, world: World, folder: Path, node_id: str, watcher: Watcher, *, tracking_method: str = "auto"
    ) -> None:
        """`way`: `mark` has it look for left-over processes by their environment only."""
        self._world = world
        self._folder = folder
        self._node = node_id
        self._way = tracking_method
        self._watcher = watcher
        self._writer: asyncio.StreamWriter | None = None
        self._known: dict[str, messages.FromSupervisor] = {}
        self._is_told = asyncio.Event()
        self._is_ending = False
        self.tracking_method = ""
        self.enforced_limits: tuple[str, ...] = ()
        self.pid = 0

    async def run(self, on_connected: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled. `on_connected` is called whenever all runs of a supervisor have been told."""
        tried_s: float | None = None
        while True:
            try:
                reader = await self._connect()
            except OSError:
                now_s = self._world.monotonic_s()
                if tried_s is None or now_s - tried_s > MIN_START_INTERVAL_S:
                    tried_s = now_s
                    await asyncio.get_running_loop().run_in_executor(None, self._start)
                else:
                    await asyncio.sleep(CONNECT_RETRY_DELAY_S)
                continue
            tried_s = None
            try:
                await self._listen(reader, on_connected)
            except (OSError, messages.UndecodableMessage, msgspec.MsgspecError) as error:
                if not self._is_ending:
                    log.error("the supervisor cannot be followed: %s", error)
            finally:
                self._is_told.clear()
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            if self._is_ending:
                return
            log.warning("the supervisor is gone; it is started again")

    async def _connect(self) -> asyncio.StreamReader:
        folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        try:
            # The name of a socket is short; the folder's may be long.
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{folder}/{SOCKET_FILE}")
            except BaseException:
                connection.close()
                raise
        finally:
            os.close(folder)
        reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=READ_BYTES)
        return reader

    def _start(self) -> None:
        """The process that is started begins another one, which belongs to nobody, and ends."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        words = [sys.executable, "-m", "wharf.node.supervisor", str(self._folder), self._node, self._way]
        with open(self._folder / "supervisor.log", "ab") as said:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)

    async def _listen(self, reader: asyncio.StreamReader, on_connected: Callable[[], Awaitable[None]]) -> None:
        frames, self._known = MessageReader(), {}
        while data := await reader.read(READ_BYTES):
            for frame in frames.feed(data):
                message = _decoder.decode(frame)
                if isinstance(message, messages.AllRunsSent):
                    self._is_told.set()
                    await on_connected()
                else:
                    self._take(message)

    def _take(self, message: messages.FromSupervisor) -> None:
        match message:
            case messages.Hello(pid, finds_by, bounds):
                self.pid, self.tracking_method, self.enforced_limits = pid, finds_by, bounds
                return
            case messages.AllRunsSent():
                return
        self._known[message.name] = message
        if self._is_told.is_set():
            self._pass_on(message)

    def _pass_on(self, message: messages.FromSupervisor) -> None:
        match message:
            case messages.RunBegun(name):
                self._watcher.on_begun(name)
            case messages.RunRefused(name, why):
                self._watcher.on_refused(name, why)
            case messages.RunEnded(name, exit_code, number, is_known, is_out):
                how = Outcome(exit_code, number, is_out_of_memory=is_out) if is_known else UNKNOWN
                self._watcher.on_ended(name, how)
            case _:
                pass

    def send_message(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(encode_frame(message))
        if isinstance(message, messages.ForgetRun):
            self._known.pop(message.name, None)

    def list_runs(self) -> list[str]:
        """All that the supervisor knows of."""
        return list(self._known)

    def find_pid(self, run: str) -> int | None:
        """The first process of a run that has begun; None where none is known."""
        message = self._known.get(run)
        return message.pid or None if isinstance(message, messages.RunBegun) else None

    async def recover_runs(self, runs: Collection[str]) -> None:
        """Tell the watcher what became of these; what the supervisor does not know, nobody does."""
        await self._is_told.wait()
        for run in runs:
            message = self._known.get(run)
            if message is None:
                self._watcher.on_ended(run, UNKNOWN)
            else:
                self._pass_on(message)

    async def shut_down(self) -> None:
        """Have the supervisor end when nothing runs any more, and wait for it. It may be only just beginning."""
        await self._is_told.wait()
        self._is_ending = True
        self.send_message(messages.ShutDown())
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


_decoder: Final = msgspec.msgpack.Decoder(messages.FromSupervisor)
