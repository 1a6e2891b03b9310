"""The store process: owns the file of one folder and the order of batches; engines attach over a Unix socket.

It knows neither records nor HTTP. It ends within a second when it is told to, with the group in hand committed and
answered; what had not arrived by then was never taken.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from wharf.cluster.engines.framing import encode_frame, open_socket_address
from wharf.cluster.engines.port import Batch, LogUnavailable, WriteLimits
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LeaseTracker
from wharf.cluster.engines.sqlite.store import MIN_TAIL_CHANGES, SqliteStore
from wharf.cluster.engines.store.messages import BatchReply
from wharf.cluster.engines.store.server_connection import StoreServerConnection
from wharf.world import RealWorld, World

STORE_SOCKET_NAME: Final = "store.sock"
CLOSE_TIMEOUT_S: Final = 0.5
"""How long the last replies may take to leave."""

_SWITCH_INTERVAL_S: Final = 0.001

_log = logging.getLogger(__name__)


class StoreProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`parent`: a descriptor, usually the reading end of a pipe; when it closes, whoever started the store is gone."""

    folder: str
    min_tail_changes: int = MIN_TAIL_CHANGES
    limits: WriteLimits = WriteLimits()
    parent_descriptor: int | None = None
    vfs: str = ""

    def get_socket_path(self) -> Path:
        return Path(self.folder) / STORE_SOCKET_NAME


class StoreServer:
    """The store of a folder with its connections, on the running loop."""

    def __init__(self, settings: StoreProcessSettings, world: World) -> None:
        self.world = world
        self.connections: set[StoreServerConnection] = set()
        self.main_connections: dict[str, StoreServerConnection] = {}
        self._path = settings.get_socket_path()
        store = SqliteStore(
            Path(settings.folder),
            clock=world.monotonic_s,
            limits=settings.limits,
            min_tail_changes=settings.min_tail_changes,
            vfs=settings.vfs,
        )
        # Small commits run on the loop itself: a thread would cost each two changes of thread (docs/adr/0014). What is
        # large takes longer than those who only ask how far the log is should wait.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log-writes")
        self.store = AsyncSqliteStore(store, encode=_encode_batch, writer=self._writer, is_writer_for_large_only=True)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Open the file and listen. Raises `Unavailable` with a sentence."""
        await self.store.open()
        self.leases = LeaseTracker(self.store)
        try:
            listening = self._listen()
        except OSError as error:
            await self.store.close()
            raise LogUnavailable(f"cannot listen at {self._path}: {error.strerror or error}") from error
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: StoreServerConnection(self), sock=listening
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._path.unlink()
        if hasattr(self, "leases"):
            self.leases.close()
        await self.store.close()
        self._writer.shutdown()
        leaving = [caller.closed for caller in self.connections]
        for caller in tuple(self.connections):
            caller.close()
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSE_TIMEOUT_S)
        for caller in tuple(self.connections):
            caller.abort()

    def _listen(self) -> socket.socket:
        self._path.unlink(missing_ok=True)  # Left by a process that was killed: the folder's lock is ours.
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with open_socket_address(self._path) as address:
                listening.bind(address)
            self._path.chmod(0o600)  # Before anybody can connect.
            listening.listen(128)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        return listening


async def serve_store(settings: StoreProcessSettings, world: World) -> None:
    """Serve until SIGTERM or SIGINT, the end of the parent, or an error of the store's own. Raises `Unavailable`."""
    server = StoreServer(settings, world)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if settings.parent_descriptor is not None:
        os.set_blocking(settings.parent_descriptor, False)
        loop.add_reader(settings.parent_descriptor, _on_parent, settings.parent_descriptor, told)
    try:
        await server.start()
        ends = [world.start_task(event.wait(), name="the end of the store") for event in (told, server.store.stopped)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        if settings.parent_descriptor is not None:
            loop.remove_reader(settings.parent_descriptor)
        await server.close()
    if not told.is_set():
        raise LogUnavailable(server.store.stop_reason)


def run_store(settings: StoreProcessSettings) -> None:
    """The whole life of the process. Raises `Unavailable` with a sentence when it cannot serve."""
    # A load is read on a thread of its own; a commit must not wait the usual 5 ms for its turn.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    uvloop.run(serve_store(settings, RealWorld()))


def _encode_batch(batch: Batch) -> bytes:
    return encode_frame(BatchReply(batch))


def _on_parent(parent: int, told: asyncio.Event) -> None:
    try:
        if os.read(parent, 4_096):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    told.set()
