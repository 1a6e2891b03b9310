"""The store process: owns the SQLite file of one folder and the order of batches. Engines attach over a Unix socket.

It knows neither the meaning of records nor HTTP. After a signal it ends within a second: the current group of writes is
committed and answered; requests that arrive later are not executed.
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

from wharf.cluster.engines.port import Batch, LogUnavailable, WriteLimits
from wharf.cluster.engines.sqlite.async_store import AsyncSqliteStore
from wharf.cluster.engines.sqlite.leases import LeaseTracker
from wharf.cluster.engines.sqlite.store import MIN_TAIL_CHANGES, SqliteStore
from wharf.cluster.engines.store.messages import BatchReply
from wharf.cluster.engines.store.server_connection import StoreServerConnection
from wharf.cluster.engines.store.shared_index import SharedIndex, open_shared_index
from wharf.world import RealWorld, World
from wharf.world.framing import encode_frame
from wharf.world.unix_sockets import bind_private_socket

STORE_SOCKET_NAME: Final = "store.sock"
CLOSE_TIMEOUT_S: Final = 0.5
"""How long closing waits until the last replies are sent."""

_SWITCH_INTERVAL_S: Final = 0.001
"""A commit waits at most this long for a thread that reads a load, instead of Python's default of 5 ms."""

_log = logging.getLogger(__name__)


class StoreProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the store process.

    `parent_descriptor`: usually the reading end of a pipe from the process that started the store. When it closes, that
    process has ended, and the store ends too.
    """

    folder: str
    min_tail_changes: int = MIN_TAIL_CHANGES
    limits: WriteLimits = WriteLimits()
    parent_descriptor: int | None = None
    index_descriptor: int = -1
    """The memory in which the store publishes the newest index (`shared_index`); -1: none."""
    vfs: str = ""

    def get_socket_path(self) -> Path:
        return Path(self.folder) / STORE_SOCKET_NAME


class StoreServer:
    """The store of one folder and its connections, on the running event loop."""

    def __init__(self, settings: StoreProcessSettings, world: World, shared_index: SharedIndex | None = None) -> None:
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
        # Small commits run on the loop itself, because a thread would add two thread switches to each
        # (docs/adr/0014). Large ones run on the writer thread, so that barrier requests need not wait for them.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log-writes")
        self.store = AsyncSqliteStore(
            store,
            encode=_encode_batch,
            writer=self._writer,
            is_writer_for_large_only=True,
            publish_index=shared_index.publish if shared_index is not None else lambda _: None,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Open the file and listen. Raises `LogUnavailable` with a sentence."""
        await self.store.open()
        self.leases = LeaseTracker(self.store)
        try:
            listener = self._listen()
        except OSError as error:
            await self.store.close()
            raise LogUnavailable(f"cannot listen at {self._path}: {error.strerror or error}") from error
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: StoreServerConnection(self), sock=listener
        )

    async def close(self) -> None:
        """Stop listening, close the store, and close the connections once their last replies are sent."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._path.unlink()
        if hasattr(self, "leases"):
            self.leases.close()
        await self.store.close()
        self._writer.shutdown()
        closing = [connection.closed for connection in self.connections]
        for connection in tuple(self.connections):
            connection.close()
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
        for connection in tuple(self.connections):
            connection.abort()

    def _listen(self) -> socket.socket:
        """Bind and listen on the socket, readable and writable by its owner only."""
        # It may replace the socket of a killed process. No other store runs: this process holds the folder's lock.
        listener = bind_private_socket(self._path)
        try:
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener


async def serve_store(settings: StoreProcessSettings, world: World) -> None:
    """Serve until SIGTERM, SIGINT, the end of the parent process or an error of the store. Raises `LogUnavailable`."""
    server = StoreServer(settings, world, open_shared_index(settings.index_descriptor))
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    if settings.parent_descriptor is not None:
        os.set_blocking(settings.parent_descriptor, False)
        loop.add_reader(settings.parent_descriptor, _on_parent_readable, settings.parent_descriptor, stop_requested)
    try:
        await server.start()
        ends = [
            world.start_task(event.wait(), name="the end of the store")
            for event in (stop_requested, server.store.stopped)
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        if settings.parent_descriptor is not None:
            loop.remove_reader(settings.parent_descriptor)
        await server.close()
    if not stop_requested.is_set():
        raise LogUnavailable(server.store.stop_reason)


def run_store(settings: StoreProcessSettings) -> None:
    """Run the store process. Raises `LogUnavailable` with a sentence when it cannot serve."""
    # A load is read on a thread of its own; a commit must not wait the default 5 ms for the interpreter lock.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    uvloop.run(serve_store(settings, RealWorld()))


def _encode_batch(batch: Batch) -> bytes:
    return encode_frame(BatchReply(batch))


def _on_parent_readable(parent: int, stop_requested: asyncio.Event) -> None:
    """Request the stop when the parent's pipe is closed."""
    try:
        if os.read(parent, 4_096):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    stop_requested.set()
