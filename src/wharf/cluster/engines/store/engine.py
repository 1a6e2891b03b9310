"""The engine of a process beside the store process: the port over its Unix socket.

It keeps one main connection for requests, made again whenever it is lost, and one more for every stream. While the store
is away everything raises `Unavailable`; commits that were on their way are `Unknown`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

from wharf.cluster.engines.framing import open_socket_address
from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    LogHealth,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteLimits,
    WriteOutcome,
)
from wharf.cluster.engines.store.main_connection import WELCOME_TIMEOUT_S, MainConnection, StoreAttachment
from wharf.cluster.engines.store.messages import (
    PROTOCOL_VERSION,
    BarrierRequest,
    BatchReply,
    CommitRequest,
    CompactRequest,
    FindWriteRequest,
    FollowRequest,
    GrantLeaseRequest,
    LoadEndReply,
    LoadRequest,
    LogHealthReply,
    LogHealthRequest,
    RecordsReply,
    RestoreBegin,
    RestoreEnd,
    RestoreRecords,
    RevokeLeaseRequest,
    StoreHello,
    StoreMessage,
    ValueReply,
)
from wharf.cluster.engines.store.stream_connection import StreamConnection
from wharf.world import World

CONTACT_INTERVAL_S: Final = 1.0
"""How often the store is asked for a sign of life."""

REQUEST_TIMEOUT_S: Final = 10.0
"""Far more than a commit takes on a slow disk."""

STORE_RESTARTING_TEXT: Final = (
    "the process that keeps the log has ended and is being started again; ask again in a moment"
)
"""Said by those who were attached before: whoever runs the server has started it, and callers know no sockets."""

_RETRY_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RemoteEngine:
    """`patience_s`: how long `open` waits for a store that is still starting. `answer_within_s`: how long a request
    waits for a store that hangs.
    """

    is_single_server = True

    def __init__(
        self,
        world: World,
        socket_path: Path,
        *,
        open_timeout_s: float = 5.0,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.limits = WriteLimits()  # The store's own, once attached.
        self._world = world
        self._path = socket_path
        self._patience_s = open_timeout_s
        self._answer_within_s = request_timeout_s
        self._owner = ""
        self._attached: StoreAttachment | None = None
        self._why_away = f"the log at {socket_path} is not open"
        self._contact_s: float | None = None
        self._main_contact_s = 0.0
        self._leases: dict[int, RemoteLease] = {}
        self._streams: set[StreamConnection] = set()
        self._life: list[asyncio.Task[None]] = []
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()

    # -- opening

    async def open(self) -> None:
        """Returns once attached. Opening what is open waits until it is attached again."""
        if not self._life:
            self._owner = self._world.new_id()
            self._life = [
                self._world.start_task(self._stay_attached(), name="attaching to the store"),
                self._world.start_task(self._stay_in_contact(), name="signs of life of the store"),
            ]
        try:
            async with asyncio.timeout(self._patience_s):
                while self._attached is None or self._attached.connection.lost_reason.done():
                    await self._changed.wait()
        except TimeoutError:
            why = self._why_away
            await self.close()
            raise LogUnavailable(why) from None

    async def close(self) -> None:
        """The store ends the leases of this engine when their time is over."""
        life, self._life = self._life, []
        for task in life:
            task.cancel()
        await asyncio.gather(*life, return_exceptions=True)
        self._away(f"the log at {self._path} was closed")
        for stream in tuple(self._streams):
            stream.close(self._why_away)

    # -- the port

    def load(self) -> "RemoteLoad":
        return RemoteLoad(self)

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        stream = await self.open_stream(FollowRequest(after))
        try:
            async with aclosing(stream.iter_replies()) as replies:
                async for reply in replies:
                    assert isinstance(reply, BatchReply)
                    yield reply.batch
        finally:
            self.close_stream(stream)

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        return await self._link().commit_write(lambda number: CommitRequest(number, write))

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self._ask_value(lambda number: FindWriteRequest(number, write_id, since))

    async def barrier(self) -> int:
        index = await self._ask_value(BarrierRequest)
        assert index is not None
        return index

    async def grant_lease(self, ttl_s: float) -> "RemoteLease":
        lease_id = await self._ask_value(lambda number: GrantLeaseRequest(number, ttl_s))
        assert lease_id is not None
        lease = self._leases[lease_id] = RemoteLease(self, lease_id, ttl_s)
        self._hurry.set()
        return lease

    async def revoke_lease(self, lease: int) -> None:
        self._leases.pop(lease, None)
        await self._ask_value(lambda number: RevokeLeaseRequest(number, lease))

    async def compact(self, before: int) -> None:
        # Step by step, between the commits: a long tail takes its time.
        await self._link().send_request(lambda number: CompactRequest(number, before), has_timeout=False)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        stream = await self.open_stream(RestoreBegin(position))
        is_whole = False
        try:
            async for some in records:
                await stream.send(RestoreRecords(some))
            is_whole = True
            index = await self._end_restore(stream, RestoreEnd(is_whole=True))
        finally:
            if not is_whole:
                # Told and answered, so that the next restore does not meet this one.
                with suppress(LogUnavailable):
                    await self._end_restore(stream, RestoreEnd(is_whole=False))
            self.close_stream(stream)
        if index is None:
            raise LogUnavailable("the store gave the restore up")
        return index

    async def _end_restore(self, stream: StreamConnection, end: RestoreEnd) -> int | None:
        await stream.send(end)
        async with aclosing(stream.iter_replies()) as replies:
            reply = await anext(replies)
        assert isinstance(reply, ValueReply)
        return reply.value

    async def read_health(self) -> LogHealth:
        reply = await self._link().send_request(LogHealthRequest)
        assert isinstance(reply, LogHealthReply)
        return reply.health

    def get_last_contact_s(self) -> float | None:
        return self._contact_s

    # -- for its streams and leases

    def get_main_contact_s(self) -> float:
        """When the latest request was sent on the main connection that was answered."""
        return self._main_contact_s

    async def open_stream(self, request: StoreMessage) -> StreamConnection:
        """Raises `Unavailable`."""
        self._link()
        stream = StreamConnection(self._heard)
        self._streams.add(stream)
        try:
            await stream.open(self._path, StoreHello(PROTOCOL_VERSION, self._owner, is_main=False), request)
        except OSError as error:
            self.close_stream(stream)
            raise LogUnavailable(_cannot_reach(self._path, error)) from error
        return stream

    def close_stream(self, stream: StreamConnection) -> None:
        stream.close()
        self._streams.discard(stream)

    # -- inside

    def _link(self) -> MainConnection:
        if self._attached is None or self._attached.connection.lost_reason.done():
            raise LogUnavailable(self._why_away)
        return self._attached.connection

    async def _ask_value(self, build: Callable[[int], StoreMessage]) -> int | None:
        reply = await self._link().send_request(build)
        assert isinstance(reply, ValueReply)
        return reply.value

    async def _stay_attached(self) -> None:
        failures = 0
        was_attached = False
        while True:
            try:
                attached = await self._attach()
            except (OSError, LogUnavailable) as error:
                if was_attached and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    self._away(STORE_RESTARTING_TEXT)
                else:
                    self._away(_cannot_reach(self._path, error) if isinstance(error, OSError) else str(error))
                await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1
                continue
            failures = 0
            was_attached = True
            self.limits = attached.limits
            self._attached = attached
            for lost in self._leases.keys() - set(attached.leases):
                self._leases.pop(lost).mark_ended()
            self._tell()
            try:
                self._away(await attached.connection.lost_reason)
            except asyncio.CancelledError:
                attached.connection.close()
                raise

    async def _attach(self) -> StoreAttachment:
        with open_socket_address(self._path) as address:
            loop = asyncio.get_running_loop()
            _, link = await loop.create_unix_connection(
                lambda: MainConnection(
                    owner=self._owner,
                    clock=self._world.monotonic_s,
                    on_contact=self._on_contact,
                    request_timeout_s=self._answer_within_s,
                ),
                address,
            )
        sent_s = self._world.monotonic_s()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await link.wait_welcomed()
        except TimeoutError:
            link.close()
            raise LogUnavailable(
                "the store takes connections and says nothing: its process or its disk hangs"
            ) from None
        except asyncio.CancelledError:
            link.close()
            raise
        if link.lost_reason.done():
            raise LogUnavailable(link.lost_reason.result())
        welcome = link.welcome.result()
        self._on_contact(sent_s)
        return StoreAttachment(link, welcome.limits, welcome.leases)

    async def _stay_in_contact(self) -> None:
        while True:
            least_s = min((lease.ttl_s / 3 for lease in self._leases.values()), default=CONTACT_INTERVAL_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(least_s, CONTACT_INTERVAL_S))
            self._hurry.clear()
            with suppress(LogUnavailable):
                await self.barrier()

    def _heard(self) -> None:
        self._contact_s = self._world.monotonic_s()

    def _on_contact(self, sent_s: float) -> None:
        self._main_contact_s = max(self._main_contact_s, sent_s)
        self._contact_s = sent_s if self._contact_s is None else max(self._contact_s, sent_s)

    def _away(self, why: str) -> None:
        self._attached = None
        self._why_away = why
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class RemoteLoad:
    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._standing: LogPosition | None = None

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        stream = await self._engine.open_stream(LoadRequest())
        try:
            async with aclosing(stream.iter_replies()) as replies:
                async for reply in replies:
                    if isinstance(reply, LoadEndReply):
                        self._standing = reply.position
                        return
                    assert isinstance(reply, RecordsReply)
                    yield reply.records
        finally:
            self._engine.close_stream(stream)

    async def get_position(self) -> LogPosition:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing


class RemoteLease:
    """It lives while the engine's main connection does, and its time longer: the store counts from when it is lost."""

    def __init__(self, engine: RemoteEngine, lease: int, ttl_s: float) -> None:
        self.id = lease
        self.ttl_s = ttl_s
        self._engine = engine
        self._ended = False

    def get_valid_until_s(self) -> float:
        return float("-inf") if self._ended else self._engine.get_main_contact_s() + self.ttl_s

    async def revoke(self) -> None:
        self._ended = True
        await self._engine.revoke_lease(self.id)

    def mark_ended(self) -> None:
        self._ended = True


def _cannot_reach(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return f"no store listens at {path}: is the server running with this data folder?"
        case ConnectionRefusedError():
            return f"the store of {path} is not running: it left its socket behind; start the server"
        case PermissionError():
            return f"the socket {path} belongs to another user: run as the user that runs the server"
    return f"the store at {path} cannot be reached: {error.strerror or error}"
