"""The engine's end of the store protocol, against a peer that sends what the test wants."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import uvloop

from tests.cluster.engines.contract import a_write, put
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import (
    Batch,
    Committed,
    FollowerBehind,
    LogHealth,
    LogPosition,
    LogUnavailable,
    LogUnchanged,
    RestoreOutcomeUnknown,
    StoredRecord,
    WriteLimits,
    WriteOutcomeUnknown,
)
from wharf.cluster.engines.store.engine import CONTACT_INTERVAL_S, STORE_RESTARTING_TEXT, RemoteEngine
from wharf.cluster.engines.store.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    BarrierRequest,
    BatchReply,
    CommitReply,
    CommitRequest,
    CompactRequest,
    FailureReply,
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
    StoreWelcome,
    ValueReply,
    decode_request,
)
from wharf.cluster.engines.store.stream_connection import StreamConnection
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import RealWorld
from wharf.world.framing import FrameDecoder, encode_frame

WORLD = RealWorld()
LIMITS = WriteLimits(changes=7, conditions=8, bytes=9)
BATCHES = [Batch(index, f"w{index}", "test", Cause(CauseKind.REQUEST), [put("a")]) for index in (4, 5, 6)]
M = TypeVar("M", bound=StoreMessage)


class Peer:
    """The peer's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._received: list[Any] = []

    async def expect(self, kind: type[M]) -> M:
        """Return the next message, which must be of this kind."""
        while not self._received:
            data = await self._reader.read(100_000)
            assert data, f"the connection ended before a {kind.__name__}"
            self._received += [decode_request(body) for body in self._frames.feed(data)]
        message = self._received.pop(0)
        if isinstance(message, BarrierRequest) and not issubclass(BarrierRequest, kind):
            self.send(ValueReply(message.number, 1))  # The engine sends barriers by itself to have contact.
            return await self.expect(kind)
        assert isinstance(message, kind), message
        return message

    async def wait_closed(self) -> None:
        with suppress(ConnectionResetError):
            while await self._reader.read(100_000):
                pass

    def send(self, *messages: StoreMessage) -> None:
        self._writer.write(b"".join(map(encode_frame, messages)))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()


class ScriptedStore:
    """A socket at which tests answer an engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._opened: list[Peer] = []

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened.append(Peer(reader, writer))
        self._peers.put_nowait(self._opened[-1])

    async def accept_main(self, *, leases: Sequence[int] = (), limits: WriteLimits = LIMITS) -> Peer:
        """Return the next connection, which must be a main one, and welcome it."""
        peer = await self._peers.get()
        self.hello = await peer.expect(StoreHello)
        assert (self.hello.version, self.hello.is_main) == (PROTOCOL_VERSION, True)
        peer.send(StoreWelcome(limits, leases))
        return peer

    async def accept_stream(self, kind: type[M]) -> tuple[Peer, M]:
        """Return the next connection, which must be for a stream, and its request."""
        peer = await self._peers.get()
        assert await peer.expect(StoreHello) == StoreHello(PROTOCOL_VERSION, self.hello.owner, is_main=False)
        request = await peer.expect(kind)
        peer.send(StoreWelcome(LIMITS, []))
        return peer, request

    async def accept(self) -> Peer:
        return await self._peers.get()

    async def close(self) -> None:
        self._server.close()
        for peer in self._opened:
            peer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sock"


@asynccontextmanager
async def scripted(path: Path, *, request_timeout_s: float = 30.0) -> AsyncIterator[tuple[ScriptedStore, RemoteEngine]]:
    store = ScriptedStore(path)
    await store.start()
    engine = RemoteEngine(WORLD, path, open_timeout_s=20.0, request_timeout_s=request_timeout_s)
    try:
        yield store, engine
    finally:
        await engine.close()
        await store.close()


@asynccontextmanager
async def attached(
    path: Path, *, request_timeout_s: float = 30.0
) -> AsyncIterator[tuple[ScriptedStore, RemoteEngine, Peer]]:
    async with scripted(path, request_timeout_s=request_timeout_s) as (store, engine):
        opening = asyncio.ensure_future(engine.open())
        peer = await store.accept_main()
        await opening
        yield store, engine, peer


async def start(call: Any) -> asyncio.Future[Any]:
    """Start a call and let it send its request."""
    future: asyncio.Future[Any] = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    return future


# --- attaching ---


async def test_an_attached_engine_has_the_limits_of_the_store(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        assert engine.limits == LIMITS
        assert store.hello.owner


async def test_a_refused_engine_reports_the_reason_of_the_store(path: Path) -> None:
    async with scripted(path) as (store, _):
        engine = RemoteEngine(WORLD, path, open_timeout_s=0.3)
        opening = asyncio.ensure_future(engine.open())
        (await store.accept()).send(FailureReply(0, False, "another version: restart both"))

        with pytest.raises(LogUnavailable, match="another version: restart both"):
            await opening


async def test_an_engine_that_is_open_waits_until_it_is_attached_again(path: Path) -> None:
    async with attached(path) as (store, engine, peer):
        owner = store.hello.owner
        peer.close()
        with pytest.raises(LogUnavailable):
            await engine.barrier()
        opening = asyncio.ensure_future(engine.open())
        peer = await store.accept_main(limits=WriteLimits(changes=3))
        await opening

        assert (store.hello.owner, engine.limits.changes) == (owner, 3)
        barrier = await start(engine.barrier())
        peer.send(ValueReply((await peer.expect(BarrierRequest)).number, 5))
        assert await barrier == 5


async def test_an_attached_engine_that_the_store_refuses_later_reports_the_reason(path: Path) -> None:
    async with attached(path) as (store, engine, peer):
        peer.close()
        (await store.accept()).send(FailureReply(0, False, "another version: restart both"))

        reasons: set[str] = set()
        while "another version: restart both" not in reasons:
            with pytest.raises(LogUnavailable) as unavailable:
                await engine.barrier()
            reasons.add(str(unavailable.value))
            await asyncio.sleep(0)
        assert STORE_RESTARTING_TEXT not in reasons


async def test_an_attached_engine_reports_that_the_store_is_being_restarted(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        await store.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)

        reasons: set[str] = set()
        while STORE_RESTARTING_TEXT not in reasons:
            with pytest.raises(LogUnavailable) as unavailable:
                await engine.barrier()
            reasons.add(str(unavailable.value))
            await asyncio.sleep(0)
        assert not any(str(path) in reason for reason in reasons)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda _path: None, "no store listens at {path}: is the server running with this data folder?"),
        (
            lambda path: _leave_socket(path),
            "the store of {path} is not running: it left its socket behind; start the server",
        ),
        (lambda path: path.write_bytes(b""), "the store of {path} is not running: it left its socket behind"),
    ],
    ids=["missing", "left behind", "a file"],
)
async def test_an_engine_that_cannot_connect_says_what_to_do(
    path: Path, prepare: Callable[[Path], None], reason: str
) -> None:
    prepare(path)

    with pytest.raises(LogUnavailable) as unavailable:
        await RemoteEngine(WORLD, path, open_timeout_s=0.2).open()

    assert str(unavailable.value).startswith(reason.format(path=path))


def _leave_socket(path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()


# --- requests ---


async def test_replies_in_any_order_reach_the_callers_of_their_numbers(path: Path) -> None:
    async with attached(path) as (_, engine, peer):
        write = a_write(put("a"))
        calls = [
            await start(engine.barrier()),
            await start(engine.commit(write)),
            await start(engine.find_write("w", since=4)),
            await start(engine.read_health()),
            await start(engine.compact(6)),
        ]
        barrier = await peer.expect(BarrierRequest)
        sent = await peer.expect(CommitRequest)
        found = await peer.expect(FindWriteRequest)
        health = await peer.expect(LogHealthRequest)
        compact = await peer.expect(CompactRequest)
        assert [each.number for each in (barrier, sent, found, health, compact)] == [1, 2, 3, 4, 5]
        assert (found.write_id, found.since, compact.before) == ("w", 4, 6)
        assert msgspec.msgpack.encode(sent.write) == msgspec.msgpack.encode(write)
        peer.send(
            ValueReply(5, None),
            LogHealthReply(4, LogHealth(writable=False, why="full")),
            ValueReply(3, None),
            CommitReply(2, Committed(12)),
            ValueReply(1, 11),
        )

        assert await asyncio.gather(*calls) == [11, Committed(12), None, LogHealth(writable=False, why="full"), None]


async def test_a_reply_to_a_cancelled_call_is_ignored(path: Path) -> None:
    async with attached(path) as (_, engine, peer):
        cancelled = await start(engine.barrier())
        await peer.expect(BarrierRequest)
        cancelled.cancel()
        barrier = await start(engine.barrier())
        await peer.expect(BarrierRequest)
        peer.send(ValueReply(1, 1), ValueReply(99, 1), ValueReply(2, 7))

        assert await barrier == 7


@pytest.mark.parametrize(("is_behind", "error"), [(True, FollowerBehind), (False, LogUnavailable)])
async def test_a_failed_request_raises_what_the_store_reports(
    path: Path, is_behind: bool, error: type[Exception]
) -> None:
    async with attached(path) as (_, engine, peer):
        for call in (engine.find_write("w", since=1), engine.barrier()):
            waiting = await start(call)
            request: Any = await peer.expect(StoreMessage)
            peer.send(FailureReply(request.number, is_behind, "the reason"))
            with pytest.raises(error, match=r"^the reason$"):
                await waiting


LOSSES: dict[str, tuple[Callable[[Peer], None], str]] = {
    "closed": (lambda peer: peer.close(), "the store went away"),
    "failed": (lambda peer: peer.send(FailureReply(0, False, "the disk is gone")), "the disk is gone"),
    "garbage": (lambda peer: peer.send_bytes(b"\0\0\0\3abc"), "the store sent an invalid message"),
    "too long": (lambda peer: peer.send_bytes(b"\xff\xff\xff\xff"), "the store sent an invalid message"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_losing_the_connection_fails_every_request_in_flight(path: Path, loss: str) -> None:
    lose, reason = LOSSES[loss]
    async with attached(path) as (store, engine, peer):
        commit, barrier = await start(engine.commit(a_write(put("a")))), await start(engine.barrier())
        await peer.expect(CommitRequest)
        await peer.expect(BarrierRequest)
        lose(peer)

        outcome = await commit
        assert isinstance(outcome, WriteOutcomeUnknown)
        assert outcome.why.startswith(reason)
        assert outcome.why.endswith("; it is unknown whether the write happened")
        with pytest.raises(LogUnavailable, match=reason):
            await barrier
        with pytest.raises(LogUnavailable):
            await engine.commit(a_write(put("b")))
        await store.accept_main()
        await peer.wait_closed()


async def test_a_request_without_a_reply_closes_the_connection_after_the_timeout(path: Path) -> None:
    async with attached(path, request_timeout_s=0.3) as (store, engine, peer):
        compaction = await start(engine.compact(1))
        await peer.expect(CompactRequest)
        until_s = WORLD.monotonic_s() + 0.4
        while WORLD.monotonic_s() < until_s:  # The compaction has no timeout.
            barrier = await start(engine.barrier())
            peer.send(ValueReply((await peer.expect(BarrierRequest)).number, 1))
            await barrier
        assert not compaction.done()
        began_s = WORLD.monotonic_s()
        waiting = await start(engine.barrier())

        with pytest.raises(LogUnavailable, match=r"has not answered for 0\.3 s: its process or its disk hangs"):
            await waiting
        assert 0.25 < WORLD.monotonic_s() - began_s
        with pytest.raises(LogUnavailable):
            await compaction
        await store.accept_main()


async def test_the_time_of_contact_is_that_of_the_answered_request(path: Path) -> None:
    async with attached(path) as (_, engine, peer):
        attached_s = engine.get_last_contact_s()
        assert attached_s is not None
        first, second = await start(engine.barrier()), await start(engine.find_write("w", since=0))
        sent_s = WORLD.monotonic_s()
        requests: list[Any] = [await peer.expect(BarrierRequest), await peer.expect(FindWriteRequest)]
        peer.send(*(ValueReply(request.number, 1) for request in reversed(requests)))
        await asyncio.gather(first, second)

        contact_s = engine.get_last_contact_s()
        assert contact_s is not None
        assert attached_s <= contact_s <= sent_s


# --- leases ---


async def grant(engine: RemoteEngine, peer: Peer, lease_id: int, ttl_s: float) -> Any:
    granting = await start(engine.grant_lease(ttl_s))
    request = await peer.expect(GrantLeaseRequest)
    assert request.ttl_s == ttl_s
    peer.send(ValueReply(request.number, lease_id))
    return await granting


async def test_leases_survive_a_lost_connection_if_the_store_still_has_them(path: Path) -> None:
    async with attached(path) as (store, engine, peer):
        kept, lost = await grant(engine, peer, 3, 60.0), await grant(engine, peer, 4, 60.0)
        assert [kept.id, lost.id] == [3, 4]
        before_s = kept.get_valid_until_s()
        assert before_s <= WORLD.monotonic_s() + 60.0
        peer.close()
        await store.accept_main(leases=[3])
        await engine.open()

        assert lost.get_valid_until_s() == float("-inf")
        assert before_s <= kept.get_valid_until_s() <= WORLD.monotonic_s() + 60.0


async def test_a_lease_is_renewed_by_frequent_contact(path: Path) -> None:
    async with attached(path) as (_, engine, peer):
        lease = await grant(engine, peer, 3, 0.3)
        granted_s = lease.get_valid_until_s()
        began_s = WORLD.monotonic_s()
        for _ in range(3):
            peer.send(ValueReply((await peer.expect(BarrierRequest)).number, 1))
        await wait_on_loop_until(lambda: lease.get_valid_until_s() > granted_s, what="the lease was renewed")

        assert WORLD.monotonic_s() - began_s < CONTACT_INTERVAL_S


async def test_a_revoked_lease_ends_at_once(path: Path) -> None:
    async with attached(path) as (_, engine, peer):
        lease = await grant(engine, peer, 3, 60.0)
        revoking = await start(lease.revoke())
        request = await peer.expect(RevokeLeaseRequest)
        assert (request.lease, lease.get_valid_until_s()) == (3, float("-inf"))
        peer.send(ValueReply(request.number, None))

        await revoking


# --- streams ---


async def test_a_feed_yields_the_batches_of_its_stream(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        feed = engine.follow(3)
        first = await start(anext(feed))
        stream, request = await store.accept_stream(FollowRequest)
        assert request.after == 3
        stream.send(*map(BatchReply, BATCHES[:2]))

        assert [await first, await anext(feed)] == BATCHES[:2]
        third = await start(anext(feed))
        stream.send(BatchReply(BATCHES[2]))
        assert await third == BATCHES[2]
        contact_s = engine.get_last_contact_s()
        assert contact_s is not None
        assert contact_s > WORLD.monotonic_s() - 1.0


STREAM_ENDS: dict[str, tuple[Callable[[Peer], None], type[Exception], str]] = {
    "behind": (lambda peer: peer.send(FailureReply(0, True, "the tail")), FollowerBehind, "^the tail$"),
    "failed": (lambda peer: peer.send(FailureReply(0, False, "the disk")), LogUnavailable, "^the disk$"),
    "closed": (lambda peer: peer.close(), LogUnavailable, "^the store went away"),
    "garbage": (lambda peer: peer.send_bytes(b"\0\0\0\1\xc1"), LogUnavailable, "sent an invalid message"),
    "too long": (lambda peer: peer.send_bytes(b"\xff\xff\xff\xff"), LogUnavailable, "sent an invalid message"),
}


@pytest.mark.parametrize("end", STREAM_ENDS)
async def test_a_stream_ends_with_what_the_store_reports(path: Path, end: str) -> None:
    end_stream, error, reason = STREAM_ENDS[end]
    async with attached(path) as (store, engine, _):
        feed = engine.follow(0)
        following = await start(anext(feed))
        stream, _ = await store.accept_stream(FollowRequest)
        end_stream(stream)

        with pytest.raises(error, match=reason):
            await following
        await stream.wait_closed()


async def test_closing_the_engine_ends_its_streams_and_requests(path: Path) -> None:
    async with attached(path) as (store, engine, peer):
        following = await start(anext(engine.follow(0)))
        stream, _ = await store.accept_stream(FollowRequest)
        barrier = await start(engine.barrier())
        await peer.expect(BarrierRequest)
        await engine.close()

        with pytest.raises(LogUnavailable, match="was closed"):
            await following
        with pytest.raises(LogUnavailable, match="the engine was closed"):
            await barrier
        await stream.wait_closed()
        await peer.wait_closed()
        with pytest.raises(LogUnavailable, match=f"the log at {path} was closed"):
            await anext(engine.follow(0))


async def test_a_load_yields_slices_until_its_position(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        load = engine.load()
        records = [StoredRecord("jobs", key, 1, b"data") for key in "abc"]

        async def read() -> list[Sequence[StoredRecord]]:
            return [slice async for slice in load.iter_slices()]

        reading = await start(read())
        stream, _ = await store.accept_stream(LoadRequest)
        position = LogPosition(9, {"jobs": 1}, 2, 1)
        stream.send(RecordsReply(records[:2]), RecordsReply(records[2:]), LoadEndReply(position))

        assert [list(slice) for slice in await reading] == [records[:2], records[2:]]
        assert await load.get_position() == position
        await stream.wait_closed()


async def in_slices(*slices: Sequence[StoredRecord], error: Exception | None = None) -> AsyncIterator[Any]:
    for records in slices:
        yield records
    if error is not None:
        raise error


async def test_a_restore_sends_all_records_and_returns_the_index(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        records = [StoredRecord("jobs", key, 1, b"data") for key in "abc"]
        position = LogPosition(9, {"jobs": 1})
        restoring = await start(engine.restore(in_slices(records[:2], records[2:]), position))
        stream, request = await store.accept_stream(RestoreBegin)
        received = [list((await stream.expect(RestoreRecords)).records) for _ in range(2)]
        assert (request.position, received) == (position, [records[:2], records[2:]])
        assert (await stream.expect(RestoreEnd)).is_whole
        stream.send(ValueReply(0, 17))

        assert await restoring == 17
        await stream.wait_closed()


async def test_a_restore_whose_records_fail_is_abandoned_before_the_error_is_raised(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        records = [StoredRecord("jobs", "a", 1, b"data")]
        restoring = await start(engine.restore(in_slices(records, error=ValueError("damaged")), LogPosition(9, {})))
        stream, _ = await store.accept_stream(RestoreBegin)
        await stream.expect(RestoreRecords)
        assert not (await stream.expect(RestoreEnd)).is_whole
        assert not restoring.done()
        stream.send(ValueReply(0, None))

        with pytest.raises(ValueError, match="damaged"):
            await restoring


async def test_a_restore_that_the_store_abandons_or_refuses_is_an_error(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        for reply, reason in (
            (ValueReply(0, None), "the store abandoned the restore"),
            (FailureReply(0, False, "is being restored already"), "is being restored already"),
        ):
            restoring = await start(engine.restore(in_slices(), LogPosition(9, {})))
            stream, _ = await store.accept_stream(RestoreBegin)
            await stream.expect(RestoreEnd)
            stream.send(reply)
            with pytest.raises(LogUnavailable, match=reason):
                await restoring


async def test_a_store_that_is_lost_after_all_records_leaves_the_outcome_of_a_restore_unknown(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        for end_stream in (Peer.close, lambda peer: peer.send(FailureReply(0, False, "the store is stopping"))):
            restoring = await start(engine.restore(in_slices(), LogPosition(9, {})))
            stream, _ = await store.accept_stream(RestoreBegin)
            await stream.expect(RestoreEnd)
            end_stream(stream)

            with pytest.raises(RestoreOutcomeUnknown, match="the store"):
                await restoring


async def test_a_failed_restore_that_left_the_log_unchanged_is_reported_so(path: Path) -> None:
    async with attached(path) as (store, engine, _):
        for reply in (ValueReply(0, None), FailureReply(0, False, "the disk is full", is_unchanged=True)):
            restoring = await start(engine.restore(in_slices(), LogPosition(9, {})))
            stream, _ = await store.accept_stream(RestoreBegin)
            await stream.expect(RestoreEnd)
            stream.send(reply)

            with pytest.raises(LogUnchanged):
                await restoring


async def test_a_store_that_is_lost_before_all_records_leaves_the_log_unchanged(path: Path) -> None:
    is_closed = asyncio.Event()

    async def until_closed() -> AsyncIterator[Sequence[StoredRecord]]:
        yield [StoredRecord("jobs", "a", 1, b"data")]
        await is_closed.wait()
        while True:
            yield [StoredRecord("jobs", "a", 1, bytes(100_000))]

    async with attached(path) as (store, engine, _):
        restoring = await start(engine.restore(until_closed(), LogPosition(9, {})))
        stream, _ = await store.accept_stream(RestoreBegin)
        await stream.expect(RestoreRecords)
        stream.close()
        is_closed.set()

        with pytest.raises(LogUnavailable) as error:
            await restoring
        assert not isinstance(error.value, RestoreOutcomeUnknown)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_sending_on_a_closed_stream_is_an_error_of_the_port(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def send_on_closed() -> None:
        path = tmp_path / "store.sock"
        server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
        stream = StreamConnection(lambda: None)
        await stream.open(path, StoreHello(PROTOCOL_VERSION, "me", is_main=False), FollowRequest(1))
        stream.close()
        with pytest.raises(LogUnavailable, match="the store went away"):
            await stream.send(RestoreEnd(is_whole=True))
        server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(send_on_closed())


async def test_a_store_that_closes_a_restore_is_reported_with_its_reason(path: Path) -> None:
    async def endless() -> AsyncIterator[Sequence[StoredRecord]]:
        while True:
            yield [StoredRecord("jobs", "a", 1, bytes(100_000))]

    async with attached(path) as (store, engine, _):
        restoring = await start(engine.restore(endless(), LogPosition(9, {})))
        stream, _ = await store.accept_stream(RestoreBegin)
        await stream.expect(RestoreRecords)
        stream.send(FailureReply(0, False, "the disk is full"))
        stream.close()

        with pytest.raises(LogUnavailable):
            await restoring


def test_every_message_is_decoded_as_it_was_encoded() -> None:
    messages = [CompactRequest(3, 4), RevokeLeaseRequest(5, 6), FollowRequest(7), RestoreEnd(is_whole=True)]

    assert [decode_request(msgspec.msgpack.encode(message)) for message in messages] == messages
