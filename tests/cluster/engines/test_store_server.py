"""The store's end of its protocol, in the process of the tests: connections, limits, streams and restores."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster.engines.contract import a_write, commit, follow_to, put, records, unchanged
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import (
    Committed,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteConflict,
    WriteLimits,
    WriteRejected,
)
from wharf.cluster.engines.sqlite.async_store import MAX_PENDING_BYTES
from wharf.cluster.engines.store.engine import RemoteEngine
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
    decode_reply,
)
from wharf.cluster.engines.store.server import StoreProcessSettings, StoreServer
from wharf.cluster.engines.store.server_connection import MAX_RESTORE_SLICES
from wharf.world import RealWorld
from wharf.world.framing import FrameDecoder, encode_frame

WORLD = RealWorld()
LIMITS = WriteLimits(changes=900, conditions=800, bytes=700_000)
M = TypeVar("M", bound=StoreMessage)


class Client:
    """A client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._received: list[Any] = []

    def send(self, *messages: StoreMessage) -> None:
        self._writer.write(b"".join(map(encode_frame, messages)))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def expect(self, kind: type[M]) -> M:
        """Return the next message, which must be of this kind."""
        while not self._received:
            data = await self._reader.read(1_000_000)
            assert data, f"the connection ended before a {kind.__name__}"
            self._received += [decode_reply(body) for body in self._frames.feed(data)]
        message = self._received.pop(0)
        assert isinstance(message, kind), message
        return message

    async def ask(self, *messages: StoreMessage) -> Any:
        """Send messages and return the next reply."""
        self.send(*messages)
        return await self.expect(StoreMessage)

    def count_unsent_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def wait_closed(self) -> None:
        with suppress(ConnectionResetError):
            while await self._reader.read(100_000):
                pass

    def close(self) -> None:
        self._writer.transport.abort()


class RunningStore:
    """A store in this process, and its clients."""

    def __init__(self, server: StoreServer, path: Path) -> None:
        self.server, self.path = server, path
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_unix_connection(str(self.path), limit=64_000)
        self._clients.append(Client(reader, writer))
        return self._clients[-1]

    async def greet(self, owner: str = "one", *, is_main: bool = True) -> Client:
        """Return a new connection that the store has welcomed."""
        client = await self.connect()
        client.send(StoreHello(PROTOCOL_VERSION, owner, is_main))
        self.welcome = await client.expect(StoreWelcome)
        return client

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def running_store(folder: Path, **options: Any) -> AsyncIterator[RunningStore]:
    settings = StoreProcessSettings(folder=str(folder), limits=LIMITS, **options)
    server = StoreServer(settings, WORLD)
    await server.start()
    store = RunningStore(server, settings.get_socket_path())
    try:
        yield store
    finally:
        store.close_clients()
        await server.close()


# --- connections ---


async def test_a_connection_is_welcomed_with_the_limits_and_its_own_leases(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        one, two = await store.greet("one"), await store.greet("two")
        assert (store.welcome.limits, list(store.welcome.leases)) == (LIMITS, [])
        granted = [(await client.ask(GrantLeaseRequest(1, 60.0))).value for client in (one, one, two)]
        assert granted == [1, 2, 3]
        assert (await one.ask(RevokeLeaseRequest(2, 1))) == ValueReply(2, None)

        await store.greet("one", is_main=False)
        assert list(store.welcome.leases) == [2]
        await store.greet("two")
        assert list(store.welcome.leases) == [3]


async def test_another_protocol_version_is_refused(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        for version in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
            client = await store.connect()

            failure = await client.ask(StoreHello(version, "one", is_main=True))

            assert (failure.number, failure.is_behind) == (0, False)
            assert failure.why == f"the store speaks version 1, the engine {version}: restart both"
        assert store.server.main_connections == {}


async def test_a_new_main_connection_of_an_engine_replaces_the_earlier_one(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        first = await store.greet("one")
        other = await store.greet("two")
        second = await store.greet("one")
        await first.wait_closed()

        assert await second.ask(BarrierRequest(4)) == ValueReply(4, 0)
        assert await other.ask(BarrierRequest(5)) == ValueReply(5, 0)
        assert sorted(store.server.main_connections) == ["one", "two"]
        second.close()
        await wait_on_loop_until(lambda: list(store.server.main_connections) == ["two"], what="the connection is gone")
        assert len(store.server.connections) == 1


async def test_a_stream_of_an_engine_does_not_replace_its_main_connection(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main = await store.greet("one")
        lease = (await main.ask(GrantLeaseRequest(1, 0.2))).value
        stream = await store.greet("one", is_main=False)
        stream.close()
        await wait_on_loop_until(lambda: len(store.server.connections) == 1, what="the stream is gone")

        assert await main.ask(CommitRequest(2, a_write(put("a"), lease=lease))) == CommitReply(2, Committed(1))
        main.close()
        await wait_on_loop_until(lambda: not store.server.store.sync_store.leases, what="the lease expires")


async def test_closing_the_store_sends_the_last_replies_and_removes_its_socket(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        client = await store.greet()
        client.send(CommitRequest(1, a_write(put("a"))))
        await wait_on_loop_until(lambda: store.server.store.sync_store.index == 1, what="the write is committed")
        await store.server.close()

        assert await client.expect(CommitReply) == CommitReply(1, Committed(1))
        await client.wait_closed()
        assert not store.path.exists()
        assert store.server.connections == set()


async def test_requests_to_a_stopped_store_fail_with_its_reason(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        client = await store.greet()
        await store.server.store.close()

        for request in (
            CommitRequest(1, a_write(put("a"))), BarrierRequest(2), FindWriteRequest(3, "w", 0), CompactRequest(4, 1)
        ):  # fmt: skip
            assert await client.ask(request) == FailureReply(request.number, False, "the log is being closed")


# --- requests ---


async def test_every_request_is_answered_with_its_number(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log", min_tail_changes=0) as store:
        client, write = await store.greet(), a_write(put("a"))
        assert await client.ask(BarrierRequest(10)) == ValueReply(10, 0)
        assert await client.ask(CommitRequest(11, write)) == CommitReply(11, Committed(1))
        conflict = a_write(put("a"), conditions=[unchanged("a", 0)])
        assert await client.ask(CommitRequest(12, conflict)) == CommitReply(12, WriteConflict([("jobs", "a")]))
        assert isinstance((await client.ask(CommitRequest(13, a_write()))).outcome, WriteRejected)
        assert await client.ask(FindWriteRequest(14, write.id, 0)) == ValueReply(14, 1)
        assert await client.ask(FindWriteRequest(15, "never", 0)) == ValueReply(15, None)
        health = await client.ask(LogHealthRequest(16))
        assert isinstance(health, LogHealthReply)
        assert (health.number, health.health.writable) == (16, True)
        for _ in range(3):
            await client.ask(CommitRequest(17, a_write(put("a"))))
        assert await client.ask(CompactRequest(18, 4)) == ValueReply(18, None)
        assert store.server.store.sync_store.tail_from == 3
        behind = await client.ask(FindWriteRequest(19, write.id, 1))
        assert (behind.number, behind.is_behind) == (19, True)
        # A commit is in flight when the barrier arrives.
        client.send(CommitRequest(20, a_write(put("b"))), BarrierRequest(21))
        assert [await client.expect(CommitReply), await client.expect(ValueReply)] == [
            CommitReply(20, Committed(5)),
            ValueReply(21, 5),
        ]


async def test_a_store_with_too_many_pending_bytes_reads_on_after_they_are_committed(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        client = await store.greet()
        for number in (1, 3):  # The store is full twice.
            client.send(CommitRequest(number, a_write(put("a", bytes(MAX_PENDING_BYTES + 1)))))
            client.send(CommitRequest(number + 1, a_write(put("a"))))

        replies = [await client.expect(CommitReply) for _ in range(4)]

        assert [reply.number for reply in replies] == [1, 2, 3, 4]
        assert [type(reply.outcome) for reply in replies] == [WriteRejected, Committed] * 2


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\3abc", b"\xff\xff\xff\xff"])
async def test_invalid_data_closes_its_own_connection_only(tmp_path: Path, data: bytes) -> None:
    async with running_store(tmp_path / "log") as store:
        main, other = await store.greet(), await store.greet(is_main=False)
        other.send_bytes(data)
        await other.wait_closed()

        assert await main.ask(CommitRequest(1, a_write(put("a")))) == CommitReply(1, Committed(1))


async def test_requests_on_a_connection_that_was_replaced_are_ignored(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        first, second = await store.greet("one"), await store.connect()
        second.send(StoreHello(PROTOCOL_VERSION, "one", is_main=True))
        await second.expect(StoreWelcome)
        first.send(CommitRequest(1, a_write(put("late"))))
        await first.wait_closed()

        assert await second.ask(BarrierRequest(2)) == ValueReply(2, 0)


# --- streams ---


async def test_a_client_that_does_not_read_gets_a_whole_load_later(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main = await store.greet()
        for number in range(12):
            await main.ask(CommitRequest(number, a_write(put(f"k{number}", bytes(600_000)))))
        slow = await store.greet(is_main=False)
        slow.send(LoadRequest())
        for _ in range(50):  # Meanwhile the store answers others.
            await main.ask(BarrierRequest(99))

        keys: list[str] = []
        while not isinstance(message := await slow.expect(StoreMessage), LoadEndReply):
            assert isinstance(message, RecordsReply)
            keys += [record.key for record in message.records]
        assert keys == [f"k{number}" for number in range(12)]
        assert message.position == LogPosition(12, {"jobs": 12})


async def test_a_load_that_is_not_read_does_not_fill_the_memory_of_the_store(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main = await store.greet()
        for number in range(40):
            await main.ask(CommitRequest(number, a_write(put(f"k{number}", bytes(600_000)))))
        slow = await store.greet(is_main=False)
        tracemalloc.start()
        try:
            slow.send(LoadRequest())
            for _ in range(200):
                await main.ask(BarrierRequest(99))
            allocated_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert allocated_bytes < 8_000_000


async def test_requests_of_a_client_that_does_not_read_are_not_read_either(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main, slow = await store.greet(), await store.greet(is_main=False)
        for number in range(300_000):
            slow.send(BarrierRequest(number))
        for _ in range(200):
            await main.ask(BarrierRequest(99))

        assert slow.count_unsent_bytes() > 0


async def test_a_client_that_does_not_read_gets_all_batches_later(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main, slow = await store.greet(), await store.greet(is_main=False)
        slow.send(FollowRequest(0))
        for number in range(12):
            await main.ask(CommitRequest(number, a_write(put(f"k{number}", bytes(600_000)))))

        indexes = [(await slow.expect(BatchReply)).batch.index for _ in range(12)]
        assert indexes == list(range(1, 13))


async def test_a_lost_stream_ends_its_load(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log", min_tail_changes=0) as store:
        main = await store.greet()
        for number in range(12):
            await main.ask(CommitRequest(number, a_write(put(f"k{number}", bytes(600_000)))))
        slow = await store.greet(is_main=False)
        slow.send(LoadRequest())
        await slow.expect(RecordsReply)
        await main.ask(CompactRequest(20, 9))  # Nothing is trimmed during the load.
        assert store.server.store.sync_store.tail_from == 0
        slow.close()

        await wait_on_loop_until(lambda: store.server.store.sync_store.tail_from == 8, what="the log is trimmed")


async def test_a_follower_behind_the_tail_gets_a_failure_on_its_stream(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log", min_tail_changes=0) as store:
        main, stream = await store.greet(), await store.greet(is_main=False)
        for number in range(5):
            await main.ask(CommitRequest(number, a_write(put("a"))))
        await main.ask(CompactRequest(9, 4))

        failure = await stream.ask(FollowRequest(1))

        assert failure == FailureReply(0, True, "the log reaches back to 3, not to 1")


# --- restores ---


async def test_a_restore_of_many_slices_is_activated_as_a_whole(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main, stream = await store.greet(), await store.greet(is_main=False)
        await main.ask(CommitRequest(1, a_write(put("old"))))
        slices = [
            RestoreRecords([StoredRecord("jobs", f"k{number}", 1, bytes(100_000))])
            for number in range(5 * MAX_RESTORE_SLICES)
        ]
        stream.send(RestoreBegin(LogPosition(5, {"jobs": 5})), *slices, RestoreEnd(is_whole=True))

        assert await stream.expect(ValueReply) == ValueReply(0, 6)
        stream.send(LoadRequest())
        keys: list[str] = []
        while not isinstance(message := await stream.expect(StoreMessage), LoadEndReply):
            assert isinstance(message, RecordsReply)
            keys += [record.key for record in message.records]
        assert keys == [f"k{number}" for number in range(5 * MAX_RESTORE_SLICES)]


async def test_an_incomplete_or_lost_restore_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        main = await store.greet()
        await main.ask(CommitRequest(1, a_write(put("old"))))
        for is_lost in (False, True):
            stream = await store.greet(is_main=False)
            stream.send(RestoreBegin(LogPosition(5, {})), RestoreRecords([StoredRecord("jobs", "new", 1, b"data")]))
            if is_lost:
                await wait_on_loop_until(lambda: store.server.store.sync_store.is_restoring, what="it began")
                stream.close()
            else:
                assert await stream.ask(RestoreEnd(is_whole=False)) == ValueReply(0, None)
            await wait_on_loop_until(lambda: not store.server.store.sync_store.is_restoring, what="it ended")

        assert await main.ask(CommitRequest(2, a_write(put("a"), conditions=[unchanged("old", 1)]))) == CommitReply(
            2, Committed(2)
        )
        assert not (tmp_path / "log" / "restoring.db").exists()


async def test_a_second_restore_and_records_without_a_beginning_are_refused(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        first, second, third = [await store.greet(is_main=False) for _ in range(3)]
        first.send(RestoreBegin(LogPosition(0, {})))
        await wait_on_loop_until(lambda: store.server.store.sync_store.is_restoring, what="the restore began")

        failure = await second.ask(RestoreBegin(LogPosition(0, {})))
        assert failure.why == "the log is being restored already: wait for that restore to end"
        for request in (RestoreRecords([]), RestoreEnd(is_whole=True)):
            failure = await third.ask(request)
            assert failure == FailureReply(0, False, "records of a restore arrived before its beginning")
        assert await first.ask(RestoreEnd(is_whole=True)) == ValueReply(0, 1)


# --- start and end ---


async def test_a_folder_with_a_longer_path_than_a_socket_may_have_is_served(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    async with running_store(folder):
        engine = RemoteEngine(WORLD, folder / "store.sock")
        await engine.open()
        index = await commit(engine, put("a"))

        assert [batch.index for batch in await follow_to(engine, after=0, index=index)] == [index]
        assert await records(engine) == {("jobs", "a"): b"data"}
        await engine.close()


async def test_a_second_store_on_a_folder_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    async with running_store(tmp_path / "log") as store:
        second = StoreServer(StoreProcessSettings(folder=str(tmp_path / "log")), WORLD)
        with pytest.raises(LogUnavailable, match="is in use by process"):
            await second.start()

        assert await (await store.greet()).ask(BarrierRequest(1)) == ValueReply(1, 0)


async def test_a_store_that_cannot_listen_closes_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    (folder / "store.sock" / "a folder").mkdir(parents=True)
    server = StoreServer(StoreProcessSettings(folder=str(folder)), WORLD)
    with pytest.raises(LogUnavailable, match=r"cannot listen at .*store\.sock"):
        await server.start()
    (folder / "store.sock" / "a folder").rmdir()
    (folder / "store.sock").rmdir()

    async with running_store(folder) as store:
        await store.greet()
    await server.close()
