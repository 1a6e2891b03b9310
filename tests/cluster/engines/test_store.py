"""The store process: start and end, its socket, reconnecting engines and slow followers."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.engines.contract import a_write, commit, follow_to, load, put, records, unchanged
from tests.cluster.engines.store_process import StoreProcess
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import Batch, Committed, FollowerBehind, LogUnavailable, WriteOutcomeUnknown
from wharf.cluster.engines.store.engine import STORE_RESTARTING_TEXT, RemoteEngine
from wharf.cluster.engines.store.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    BarrierRequest,
    CommitReply,
    CommitRequest,
    StoreHello,
    StoreMessage,
    ValueReply,
    decode_reply,
)
from wharf.world import RealWorld
from wharf.world.framing import FrameDecoder, encode_frame

WORLD = RealWorld()


Start = Callable[..., StoreProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts a store. All stores are killed when the test ends."""
    started: list[StoreProcess] = []

    def start(folder: Path, *, tail_changes: int = 100_000) -> StoreProcess:
        started.append(StoreProcess(folder, tail_changes=tail_changes))
        return started[-1]

    yield start
    for store in started:
        store.kill()


@pytest.fixture
def store(tmp_path: Path, start: Start) -> StoreProcess:
    return start(tmp_path / "log")


@asynccontextmanager
async def attached(store: StoreProcess, *, request_timeout_s: float = 60.0) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(WORLD, store.socket_path, open_timeout_s=60.0, request_timeout_s=request_timeout_s)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


# --- start and end ---


async def test_a_stopped_store_ends_within_a_second_and_keeps_all_acknowledged_writes(
    store: StoreProcess, start: Start
) -> None:
    async with attached(store) as engine:
        acknowledged: list[int] = []

        async def write_on(caller: int) -> None:
            for number in range(100_000):
                outcome = await engine.commit(a_write(put(f"{caller}-{number}")))
                if isinstance(outcome, Committed):
                    acknowledged.append(outcome.index)

        writing = [asyncio.ensure_future(write_on(caller)) for caller in range(8)]
        await wait_on_loop_until(lambda: len(acknowledged) > 100, what="100 writes are acknowledged")
        began_s = time.monotonic()
        code, errors = await asyncio.to_thread(end, store)
        took_s = time.monotonic() - began_s
        ends = await asyncio.gather(*writing, return_exceptions=True)

    assert (code, errors) == (0, "")
    assert took_s < 2.0  # One second for the store, and one for a slow machine to end a process.
    assert {LogUnavailable} == {type(end) for end in ends}
    assert not store.socket_path.exists()
    restarted = start(store.folder)
    async with attached(restarted) as engine:
        _, position = await load(engine)
        assert position.index >= max(acknowledged)


async def test_a_store_ends_when_its_parent_process_ends(store: StoreProcess) -> None:
    async with attached(store) as engine:
        await commit(engine, put("a"))
        store.close_parent_pipe()
        code, errors = await asyncio.to_thread(store.wait)

    assert (code, errors) == (0, "")


def end(store: StoreProcess) -> tuple[int, str]:
    store.signal_end()
    return store.wait()


# --- an unavailable store ---


async def test_an_engine_without_a_store_reports_what_is_missing(tmp_path: Path) -> None:
    engine = RemoteEngine(WORLD, tmp_path / "store.sock", open_timeout_s=0.1)

    with pytest.raises(LogUnavailable, match=r"no store listens at .*: is the server running with this data folder?"):
        await engine.open()
    with pytest.raises(LogUnavailable):
        await engine.barrier()


async def test_a_commit_in_flight_when_the_store_dies_is_unknown_and_the_next_is_unavailable(
    store: StoreProcess,
) -> None:
    async with attached(store) as engine:
        await commit(engine, put("a"))
        store.pause()
        in_flight = asyncio.ensure_future(engine.commit(a_write(put("b"))))
        barrier = asyncio.ensure_future(engine.barrier())
        await asyncio.sleep(0)  # Let both requests begin.
        store.kill()

        assert isinstance(await in_flight, WriteOutcomeUnknown)
        with pytest.raises(LogUnavailable):
            await barrier
        with pytest.raises(LogUnavailable):
            await engine.commit(a_write(put("c")))


async def test_an_attached_engine_reports_the_restart_of_the_store_without_naming_its_socket(
    store: StoreProcess,
) -> None:
    async def read_refusal() -> str:
        with pytest.raises(LogUnavailable) as caught:
            await engine.barrier()
        return str(caught.value)

    async with attached(store) as engine:
        store.kill()
        messages: list[str] = []
        async with asyncio.timeout(60.0):
            while STORE_RESTARTING_TEXT not in messages:
                messages.append(await read_refusal())
                await asyncio.sleep(0.05)

    assert not any(str(store.socket_path) in text for text in messages)


async def test_a_hanging_store_leaves_a_commit_unknown_and_other_requests_fail_within_the_timeout(
    store: StoreProcess,
) -> None:
    async with attached(store, request_timeout_s=0.5) as engine:
        await commit(engine, put("a"))
        store.pause()
        async with asyncio.timeout(60.0):
            ends = await asyncio.gather(
                engine.commit(a_write(put("b"))),
                engine.barrier(),
                engine.read_health(),
                engine.compact(1),
                return_exceptions=True,
            )

        reason = "the store has not answered for 0.5 s: its process or its disk hangs"
        assert ends[0] == WriteOutcomeUnknown(f"{reason}; it is unknown whether the write happened")
        assert [(LogUnavailable, reason)] * 3 == [(type(end), str(end)) for end in ends[1:]]


async def test_an_engine_reattaches_when_a_hung_store_continues(store: StoreProcess) -> None:
    async with attached(store, request_timeout_s=0.5) as engine:
        await commit(engine, put("a"))
        store.pause()
        async with asyncio.timeout(60.0):
            with pytest.raises(LogUnavailable):
                await engine.barrier()
        store.resume()
        await engine.open()

        assert await commit(engine, put("b")) == 2


async def test_an_engine_reconnects_by_itself_and_its_feed_continues(store: StoreProcess, start: Start) -> None:
    async with attached(store) as engine:
        first = await commit(engine, put("a"))
        store.kill()
        with pytest.raises(LogUnavailable):
            await engine.barrier()
        start(store.folder)
        await engine.open()
        second = await commit(engine, put("b"))

        assert [second] == [batch.index for batch in await follow_to(engine, after=first, index=second)]
        assert await records(engine) == {("jobs", "a"): b"data", ("jobs", "b"): b"data"}


async def test_a_lease_outlives_a_restart_of_the_store_while_its_owner_is_connected(
    store: StoreProcess, start: Start
) -> None:
    async with attached(store) as engine:
        lease = await engine.grant_lease(20.0)
        was_lease_left = await leave_short_lease(store)
        await commit(engine, put("member", table="members"), lease=lease.id)
        store.kill()
        with pytest.raises(LogUnavailable):
            await engine.barrier()
        start(store.folder)
        await engine.open()
        feed = engine.follow(await engine.barrier())
        ended = await anext(feed) if was_lease_left else None

        assert ended is not None
        assert [(change.table, change.key) for change in ended.changes] == [("members", "gone")]
        assert await records(engine) == {("members", "member"): b"data"}
        assert lease.get_valid_until_s() > WORLD.monotonic_s()
        assert isinstance(await engine.commit(a_write(put("b"), lease=lease.id)), Committed)


async def leave_short_lease(store: StoreProcess) -> bool:
    """Let an engine grant a lease and write a record with it, and close the engine. Return True."""
    async with attached(store) as engine:
        lease = await engine.grant_lease(1.0)
        await commit(engine, put("gone", table="members"), lease=lease.id)
    return True


# --- the socket ---


async def test_only_its_owner_can_connect_to_the_socket(store: StoreProcess) -> None:
    async with attached(store):
        assert stat.S_IMODE(os.stat(store.socket_path).st_mode) == 0o600


async def test_a_data_folder_may_have_a_long_path(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    folder.mkdir(parents=True)
    store = start(folder)
    async with attached(store) as engine:
        index = await commit(engine, put("a"))

        assert [index] == [batch.index for batch in await follow_to(engine, after=0, index=index)]


async def test_invalid_data_on_the_socket_closes_only_that_connection(store: StoreProcess) -> None:
    async with attached(store) as engine:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\3abc", b"\xff\xff\xff\xff"):
            reader, writer = await asyncio.open_unix_connection(str(store.socket_path))
            writer.write(nonsense)
            assert await read_to_end(reader) == b""
            writer.close()

        assert await commit(engine, put("a")) == 1


async def test_a_reconnected_engine_ignores_replies_to_earlier_requests(store: StoreProcess) -> None:
    """So the result of `find_write` after a barrier is final: no request of a lost connection is read later."""
    async with attached(store) as engine:
        first_reader, first = await connect(store, StoreHello(PROTOCOL_VERSION, "owner", is_main=True))
        _, second = await connect(store, StoreHello(PROTOCOL_VERSION, "owner", is_main=True))

        await read_to_end(first_reader)
        assert first_reader.at_eof()
        first.write(encode_frame(CommitRequest(1, a_write(put("late")))))
        assert await records(engine) == {}
        first.close()
        second.close()


async def test_requests_sent_together_form_one_group_and_all_get_replies(store: StoreProcess) -> None:
    async with attached(store) as engine:
        reader, writer = await connect(store, StoreHello(PROTOCOL_VERSION, "other", is_main=True))
        writes = [a_write(put("a"), conditions=[unchanged("a", number)]) for number in range(200)]
        writer.write(
            b"".join(encode_frame(CommitRequest(number, write)) for number, write in enumerate(writes))
            + encode_frame(BarrierRequest(999))
        )

        replies = await read_replies(reader, 202)
        decided = {reply.number: reply.outcome for reply in replies if isinstance(reply, CommitReply)}
        assert {number: Committed(number + 1) for number in range(200)} == decided
        assert [reply.value for reply in replies if isinstance(reply, ValueReply)] == [200]
        assert await engine.barrier() == 200
        writer.close()


async def connect(store: StoreProcess, hello: StoreMessage) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(store.socket_path))
    writer.write(encode_frame(hello))
    return reader, writer


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def read_replies(reader: asyncio.StreamReader, count: int) -> list[StoreMessage]:
    frames, replies = FrameDecoder(MAX_FRAME_BYTES), list[StoreMessage]()
    while len(replies) < count:
        replies += [decode_reply(body) for body in frames.feed(await reader.read(100_000))]
    return replies


# --- slow followers ---


async def test_a_follower_that_does_not_read_uses_no_memory_and_receives_everything_later(
    store: StoreProcess,
) -> None:
    async with attached(store) as engine:
        slow = engine.follow(0)
        first = await commit(engine, put("k0", bytes(1_000)))
        assert (await anext(slow)).index == first
        await write_megabytes(engine, 40)
        before_mb = store.memory_mb()
        await write_megabytes(engine, 160)
        last = await engine.barrier()

        assert store.memory_mb() - before_mb < 60
        seen = first
        while seen < last:
            batch = await anext(slow)
            assert batch.index == seen + 1
            seen = batch.index


async def test_a_follower_behind_the_tail_gets_follower_behind(tmp_path: Path, start: Start) -> None:
    store = start(tmp_path / "log", tail_changes=1_000)
    async with attached(store) as engine:
        slow = engine.follow(0)
        await commit(engine, put("first"))
        assert (await anext(slow)).index == 1
        await write_megabytes(engine, 80, changes=1_000)

        with pytest.raises(FollowerBehind, match="reaches back"):
            await read_until_error(slow)


async def read_until_error(feed: AsyncIterator[Batch]) -> None:
    async for _ in feed:
        pass


async def write_megabytes(engine: RemoteEngine, megabytes: int, *, changes: int = 10) -> None:
    """Overwrite the same records until this amount is written."""
    data = os.urandom(1_000_000 // changes)
    for _ in range(megabytes):
        await commit(engine, *(put(f"k{number}", data) for number in range(changes)))
