"""The engine of a process that uses the store process: the port over a Unix socket.

It has one main connection for requests, which it reopens whenever it is lost, and one more connection for every stream.
While the store is down, every call raises `LogUnavailable`; commits that were in flight return `WriteOutcomeUnknown`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    FollowerBehind,
    LoadBase,
    LogHealth,
    LogPosition,
    LogUnavailable,
    LogUnchanged,
    RestoreOutcomeUnknown,
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
from wharf.cluster.engines.store.shared_index import SharedIndex
from wharf.cluster.engines.store.stream_connection import StreamConnection
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks, wait_for_event
from wharf.world.unix_sockets import shorten_socket_path

CONTACT_INTERVAL_S: Final = 1.0
"""How often the engine sends a request to an idle store, to notice that it is down."""

REQUEST_TIMEOUT_S: Final = 10.0
"""A store that takes longer hangs: far more than a commit takes on a slow disk."""

STORE_RESTARTING_TEXT: Final = (
    "the process that keeps the log has ended and is being started again; ask again in a moment"
)
"""The error text after the store ended: the agent restarts it, and callers need not know of its socket."""

_MIN_RETRY_DELAY_S: Final = 0.04
"""The longest delay after a first failed attempt to attach; it doubles with each further failure."""
_MAX_RETRY_DELAY_S: Final = 1.0
"""The longest delay between attempts to attach."""


class RemoteEngine:
    """The port over the store's socket.

    `open_timeout_s`: how long `open` waits for a store that is starting. `request_timeout_s`: how long a request waits
    for a store that hangs.
    """

    is_single_server = True

    def __init__(
        self,
        world: World,
        socket_path: Path,
        *,
        open_timeout_s: float = 5.0,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        shared_index: SharedIndex | None = None,
    ) -> None:
        """`shared_index`: the memory in which the store publishes the newest index; `None` if there is none."""
        self.limits = WriteLimits()  # Replaced by the store's own limits after attaching.
        self._world = world
        self._path = socket_path
        self._open_timeout_s = open_timeout_s
        self._request_timeout_s = request_timeout_s
        self._shared_index = shared_index
        self._owner = ""
        self._attachment: StoreAttachment | None = None
        self._unavailable_reason = f"the log at {socket_path} is not open"
        self._contact_s: float | None = None
        self._main_contact_s = 0.0
        self._leases: dict[int, RemoteLease] = {}
        self._streams: set[StreamConnection] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._contact_due = asyncio.Event()
        self._changed = asyncio.Event()

    # -- opening

    async def open(self) -> None:
        """Start to attach and return once attached. If the engine is open already, wait until it is attached again."""
        if not self._tasks:
            self._owner = self._world.new_id()
            self._tasks = [
                self._world.start_task(self._keep_attached(), name="attaching to the store"),
                self._world.start_task(self._poll_store(), name="signs of life of the store"),
            ]
        try:
            async with asyncio.timeout(self._open_timeout_s):
                while self._attachment is None or self._attachment.connection.lost_reason.done():
                    await self._changed.wait()
        except TimeoutError:
            reason = self._unavailable_reason
            await self.close()
            raise LogUnavailable(reason) from None

    async def close(self) -> None:
        """Stop using the store. The store ends this engine's leases when their time to live has passed."""
        tasks, self._tasks = self._tasks, []
        await cancel_tasks(*tasks)
        self._mark_unavailable(f"the log at {self._path} was closed")
        for stream in tuple(self._streams):
            stream.close(self._unavailable_reason)

    # -- the port

    def load(self) -> "RemoteLoad":
        return RemoteLoad(self)

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        """Yield batches from a stream of the store."""
        stream = await self.open_stream(FollowRequest(after))
        try:
            async with aclosing(stream.iter_replies()) as replies:
                async for reply in replies:
                    assert isinstance(reply, BatchReply)
                    yield reply.batch
        finally:
            self.close_stream(stream)

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        return await self._require_connection().commit_write(lambda number: CommitRequest(number, write))

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self._request_value(lambda number: FindWriteRequest(number, write_id, since))

    async def barrier(self) -> int:
        index = await self._request_value(BarrierRequest)
        assert index is not None
        return index

    def read_published_index(self) -> int | None:
        """Return the index that the store has published; `None` while this engine is not attached to the store."""
        attachment, shared_index = self._attachment, self._shared_index
        if shared_index is None or attachment is None or attachment.connection.lost_reason.done():
            return None
        return shared_index.read() or None

    async def grant_lease(self, ttl_s: float) -> "RemoteLease":
        lease_id = await self._request_value(lambda number: GrantLeaseRequest(number, ttl_s))
        assert lease_id is not None
        lease = self._leases[lease_id] = RemoteLease(self, lease_id, ttl_s)
        self._contact_due.set()
        return lease

    async def revoke_lease(self, lease: int) -> None:
        self._leases.pop(lease, None)
        await self._request_value(lambda number: RevokeLeaseRequest(number, lease))

    async def compact(self, before: int) -> None:
        # No timeout: the store compacts in small steps between commits, which takes long for a long tail.
        await self._require_connection().send_request(lambda number: CompactRequest(number, before), has_timeout=False)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        """Send the records as a stream; the store activates them when all have arrived.

        From then on, only a reply of the store shows whether it did.
        """
        stream = await self.open_stream(RestoreBegin(position))
        is_whole = False
        try:
            async for records_slice in records:
                await stream.send(RestoreRecords(records_slice))
            is_whole = True
            try:
                index = await self._end_restore(stream, RestoreEnd(is_whole=True))
            except LogUnchanged:
                raise
            except (LogUnavailable, FollowerBehind) as error:
                raise RestoreOutcomeUnknown(str(error)) from error
        finally:
            if not is_whole:
                # Abandon the restore and wait for the reply, so that the next restore does not find this one active.
                with suppress(LogUnavailable):
                    await self._end_restore(stream, RestoreEnd(is_whole=False))
            self.close_stream(stream)
        if index is None:
            raise LogUnchanged("the store abandoned the restore")
        return index

    async def _end_restore(self, stream: StreamConnection, end: RestoreEnd) -> int | None:
        """End the stream of a restore and return the index from the store's reply; None if it abandoned the restore."""
        await stream.send(end)
        async with aclosing(stream.iter_replies()) as replies:
            reply = await anext(replies)
        assert isinstance(reply, ValueReply)
        return reply.value

    async def read_health(self) -> LogHealth:
        reply = await self._require_connection().send_request(LogHealthRequest)
        assert isinstance(reply, LogHealthReply)
        return reply.health

    def get_last_contact_s(self) -> float | None:
        return self._contact_s

    # -- for streams and leases of this engine

    def get_main_contact_s(self) -> float:
        """Return when the latest answered request was sent on the main connection."""
        return self._main_contact_s

    async def open_stream(self, request: StoreMessage) -> StreamConnection:
        """Open a connection for one stream. Raises `LogUnavailable`."""
        self._require_connection()
        stream = StreamConnection(self._record_stream_contact)
        self._streams.add(stream)
        try:
            await stream.open(self._path, StoreHello(PROTOCOL_VERSION, self._owner, is_main=False), request)
        except OSError as error:
            self.close_stream(stream)
            raise LogUnavailable(_describe_connect_error(self._path, error)) from error
        return stream

    def close_stream(self, stream: StreamConnection) -> None:
        stream.close()
        self._streams.discard(stream)

    # -- inside

    def _require_connection(self) -> MainConnection:
        """Return the main connection. Raises `LogUnavailable` while it is lost."""
        if self._attachment is None:
            raise LogUnavailable(self._unavailable_reason)
        connection = self._attachment.connection
        if connection.lost_reason.done():
            raise LogUnavailable(connection.lost_reason.result())
        return connection

    async def _request_value(self, build: Callable[[int], StoreMessage]) -> int | None:
        """Send a request whose reply is a number, and return that number."""
        reply = await self._require_connection().send_request(build)
        assert isinstance(reply, ValueReply)
        return reply.value

    async def _keep_attached(self) -> None:
        """Attach to the store, and attach again whenever the main connection is lost. Runs until cancelled."""
        backoff = Backoff(self._world.random, min_s=_MIN_RETRY_DELAY_S, max_s=_MAX_RETRY_DELAY_S)
        was_attached = False
        while True:
            try:
                attachment = await self._attach()
            except (OSError, LogUnavailable) as error:
                if was_attached and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    self._mark_unavailable(STORE_RESTARTING_TEXT)
                else:
                    self._mark_unavailable(
                        _describe_connect_error(self._path, error) if isinstance(error, OSError) else str(error)
                    )
                await asyncio.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            was_attached = True
            self.limits = attachment.limits
            self._attachment = attachment
            for lost in self._leases.keys() - set(attachment.leases):
                self._leases.pop(lost).mark_ended()
            self._signal_change()
            try:
                # Shielded, because a cancelled `lost_reason` would leave the requests in flight waiting forever.
                self._mark_unavailable(await asyncio.shield(attachment.connection.lost_reason))
            except asyncio.CancelledError:
                attachment.connection.close()
                raise

    async def _attach(self) -> StoreAttachment:
        """Connect to the store and wait for its welcome. Raises `OSError` or `LogUnavailable`."""
        with shorten_socket_path(self._path) as address:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(
                lambda: MainConnection(
                    owner=self._owner,
                    clock=self._world.monotonic_s,
                    on_contact=self._on_contact,
                    request_timeout_s=self._request_timeout_s,
                ),
                address,
            )
        sent_s = self._world.monotonic_s()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await connection.wait_welcomed()
        except TimeoutError:
            connection.close()
            raise LogUnavailable(
                "the store accepts connections but does not reply: its process or its disk hangs"
            ) from None
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.lost_reason.done():
            raise LogUnavailable(connection.lost_reason.result())
        welcome = connection.welcome.result()
        self._on_contact(sent_s)
        return StoreAttachment(connection, welcome.limits, welcome.leases)

    async def _poll_store(self) -> None:
        """Send a barrier often enough to renew every lease and to notice a store that is down."""
        while True:
            interval_s = min((lease.ttl_s / 3 for lease in self._leases.values()), default=CONTACT_INTERVAL_S)
            await wait_for_event(self._contact_due, min(interval_s, CONTACT_INTERVAL_S))
            self._contact_due.clear()
            with suppress(LogUnavailable):
                await self.barrier()

    def _record_stream_contact(self) -> None:
        self._contact_s = self._world.monotonic_s()

    def _on_contact(self, sent_s: float) -> None:
        self._main_contact_s = max(self._main_contact_s, sent_s)
        self._contact_s = sent_s if self._contact_s is None else max(self._contact_s, sent_s)

    def _mark_unavailable(self, reason: str) -> None:
        self._attachment = None
        self._unavailable_reason = reason
        self._signal_change()

    def _signal_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class RemoteLoad(LoadBase):
    """A full read of the log as a stream from the store."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Yield all records from a stream of the store."""
        stream = await self._engine.open_stream(LoadRequest())
        try:
            async with aclosing(stream.iter_replies()) as replies:
                async for reply in replies:
                    if isinstance(reply, LoadEndReply):
                        self._position = reply.position
                        return
                    assert isinstance(reply, RecordsReply)
                    yield reply.records
        finally:
            self._engine.close_stream(stream)


class RemoteLease:
    """A lease of this engine. The store counts its time to live from the loss of the main connection."""

    def __init__(self, engine: RemoteEngine, lease: int, ttl_s: float) -> None:
        self.id = lease
        self.ttl_s = ttl_s
        self._engine = engine
        self._has_ended = False

    def get_valid_until_s(self) -> float:
        return float("-inf") if self._has_ended else self._engine.get_main_contact_s() + self.ttl_s

    async def revoke(self) -> None:
        self._has_ended = True
        await self._engine.revoke_lease(self.id)

    def mark_ended(self) -> None:
        self._has_ended = True


def _describe_connect_error(path: Path, error: OSError) -> str:
    """Return what failed when connecting to the socket, and what to do, as a sentence."""
    match error:
        case FileNotFoundError():
            return f"no store listens at {path}: is the server running with this data folder?"
        case ConnectionRefusedError():
            return f"the store of {path} is not running: it left its socket behind; start the server"
        case PermissionError():
            return f"the socket {path} belongs to another user: run as the user that runs the server"
    return f"the store at {path} cannot be reached: {error.strerror or error}"
