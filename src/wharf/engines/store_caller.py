"""One connection to the store process: its requests in, replies and streams out, with bounds on both.

It translates between messages and the hub, and holds no more of either than it must: who does not read is not read from,
and a stream goes on only when the last piece has left.
"""

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeVar, cast

import msgspec

from wharf.engines.framing import Frames, NotOurs, frame
from wharf.engines.port import Behind, Outcome, Unavailable
from wharf.engines.sqlite_hub import Hub
from wharf.engines.sqlite_leases import LeaseBook
from wharf.engines.sqlite_restore import Restore
from wharf.engines.store_wire import (
    VERSION,
    AskHealth,
    Barrier,
    Commit,
    Compact,
    Decided,
    Failed,
    Find,
    Follow,
    Grant,
    Healthy,
    Hello,
    LoadAll,
    Loaded,
    Message,
    Request,
    RestoreBegin,
    RestoreEnd,
    RestoreRows,
    Revoke,
    Slice,
    Told,
    Welcome,
    decode_request,
)
from wharf.world import World

STALLED_S: Final = 60.0
"""A load holds back trimming: whoever takes nothing of it for so long loses it."""

RESTORE_SLICES: Final = 4
"""So many slices of a restore may wait to be written."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class House(Protocol):
    """What all connections share."""

    hub: Hub
    leases: LeaseBook
    world: World
    callers: "set[Caller]"
    owners: "dict[str, Caller]"
    """The main connection of each engine."""


class Caller(asyncio.Protocol):
    def __init__(self, house: House) -> None:
        self._house = house
        self._hub = house.hub
        self._frames = Frames()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = ""
        self._is_main = False
        self._out: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._restore_slices: asyncio.Queue[RestoreRows | RestoreEnd] | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, but do the same.
        self._transport = cast(asyncio.Transport, transport)
        self._house.callers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (how it ended makes no difference)
        self._house.callers.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)
        self._writable.set()
        for work in self._work:
            work.cancel()
        if self._is_main:
            if self._house.owners.get(self._owner) is self:
                del self._house.owners[self._owner]
            self._house.leases.detach(self._owner)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause("replies")

    def resume_writing(self) -> None:
        self._writable.set()
        self._resume("replies")

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # An engine that has come back on another connection must not be answered by what it sent on this.
        try:
            for body in self._frames.feed(data):
                self._on_request(decode_request(body))
        except (NotOurs, msgspec.DecodeError) as error:
            _log.error("a connection to the log was closed: %s", error)
            self._transport.abort()
        if self._hub.is_full():
            self._pause("hub")
            self._hub.when_drained(partial(self._resume, "hub"))

    def close(self) -> None:
        """Once what was said has left."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _pause(self, why: str) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused.add(why)

    def _resume(self, why: str) -> None:
        self._paused.discard(why)
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- saying

    def _say(self, message: Message) -> None:
        """At the end of this turn of the loop, together with what else is said in it."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(frame(message))

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
        self._out.clear()

    def _fail(self, number: int, error: BaseException) -> None:
        if not isinstance(error, (Behind, Unavailable)):
            _log.error("a request to the log failed: %r", error, exc_info=error)
        self._say(Failed(number, isinstance(error, Behind), str(error) or repr(error)))

    # -- requests

    def _on_request(self, request: Request) -> None:
        number = 0
        try:
            match request:
                case Commit():
                    number = request.number
                    self._hub.submit(request.write, partial(self._decided, number))
                case Barrier():
                    number = request.number
                    index = self._hub.barrier()
                    if isinstance(index, int):
                        self._say(Told(number, index))
                    else:
                        index.add_done_callback(partial(self._told, number))
                case Hello():
                    self._on_hello(request)
                case RestoreRows() | RestoreEnd():
                    self._on_restore(request)
                case RestoreBegin():
                    self._restore_slices = asyncio.Queue()
                    self._start(request)
                case _:
                    self._start(request)
        except Unavailable as error:
            self._fail(number, error)

    def _decided(self, number: int, outcome: Outcome) -> None:
        self._say(Decided(number, outcome))

    def _told(self, number: int, index: asyncio.Future[int]) -> None:
        if index.cancelled():
            return
        if (error := index.exception()) is not None:
            self._fail(number, error)
        else:
            self._say(Told(number, index.result()))

    def _on_hello(self, hello: Hello) -> None:
        if hello.version != VERSION:
            raise Unavailable(f"the store speaks version {VERSION}, the engine {hello.version}: start both anew")
        self._owner, self._is_main = hello.owner, hello.is_main
        if hello.is_main:
            earlier = self._house.owners.get(hello.owner)
            if earlier is not None:
                earlier.abort()
            self._house.owners[hello.owner] = self
            self._house.leases.attach(hello.owner)
        store = self._hub.store
        leases = [lease.id for lease in store.leases.values() if lease.owner == hello.owner]
        self._say(Welcome(store.bounds, leases))

    def _start(self, request: Request) -> None:
        work = self._house.world.start(self._perform(request), name=f"the store's answer to {type(request).__name__}")
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def _perform(self, request: Request) -> None:
        number = getattr(request, "number", 0)
        try:
            match request:
                case Find():
                    self._say(Told(number, await self._hub.find(request.write_id, since=request.since)))
                case Grant():
                    self._say(Told(number, await self._house.leases.grant(owner=self._owner, ttl_s=request.ttl_s)))
                case Revoke():
                    await self._house.leases.revoke(request.lease)
                    self._say(Told(number, None))
                case Compact():
                    await self._hub.compact(request.before)
                    self._say(Told(number, None))
                case AskHealth():
                    self._say(Healthy(number, await self._hub.run(self._hub.store.health)))
                case Follow():
                    await self._feed(request.after)
                case LoadAll():
                    await self._load()
                case RestoreBegin():
                    await self._restore(request)
        except (Behind, Unavailable) as error:
            self._fail(number, error)

    # -- streams

    async def _feed(self, after: int) -> None:
        async with aclosing(self._hub.feed(after)) as feed:
            async for frames in feed:
                self._flush()
                self._transport.write(b"".join(frames) if len(frames) > 1 else frames[0])
                if not self._writable.is_set():
                    await self._writable.wait()

    async def _load(self) -> None:
        loading = await self._hub.load()
        try:
            async with aclosing(loading.slices()) as slices:
                async for rows in slices:
                    # Rows as tuples encode like rows: a `Row` is an array too.
                    self._transport.write(frame(Slice(rows)))  # type: ignore[arg-type]
                    if not self._writable.is_set():
                        async with asyncio.timeout(STALLED_S):
                            await self._writable.wait()
        except TimeoutError:
            _log.warning("a load of the log was given up: nothing of it was taken for %d s", STALLED_S)
            self._transport.abort()
            return
        finally:
            loading.close()
        self._say(Loaded(loading.standing))

    def _on_restore(self, request: RestoreRows | RestoreEnd) -> None:
        if self._restore_slices is None:
            raise Unavailable("rows of a restore came before its beginning")
        self._restore_slices.put_nowait(request)
        if self._restore_slices.qsize() >= RESTORE_SLICES:
            self._pause("restore")

    async def _restore(self, begin: RestoreBegin) -> None:
        slices = self._restore_slices
        assert slices is not None, "made when the request arrived"
        restore = Restore(self._hub.store)
        await self._hub.run(partial(restore.begin, begin.standing))
        try:
            while isinstance(request := await slices.get(), RestoreRows):
                await self._hub.read(partial(restore.add, request.rows))
                if slices.qsize() < RESTORE_SLICES:
                    self._resume("restore")
            ending = restore.finish if request.is_whole else restore.abandon
            self._say(Told(0, await self._hub.run(ending)))
        finally:
            # Also when the connection is lost and this task cancelled: the old log goes on.
            if not self._hub.ended.is_set():
                self._hub.run(restore.abandon)
