"""Counters of a neighbour process: decisions while the counter server is unavailable."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.limits.builders import NOON_MS, a_user
from tests.limits.stores.contract import Clock, Counter
from tests.waiting import wait_on_loop_until
from wharf.limits.rules import read_rules
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.neighbours.messages import (
    MAX_FRAME_BYTES,
    CounterReply,
    HelloRequest,
    UndoRequest,
    decode_request,
)
from wharf.limits.stores.port import StoreUnavailable, UnsuitableStore
from wharf.world import RealWorld
from wharf.world.framing import FrameDecoder, encode_frame

RULES = '[[rule]]\nname = "core"\nceiling = 50\n'


def _serve_counters(folder: str, ready: Connection) -> None:
    async def serve() -> None:
        rules = read_rules(RULES)
        path = Path(folder) / "counters"
        store = MemoryStore(RealWorld(), rules, path=path, clock=lambda: NOON_MS, has_change_log=True)
        await store.open()
        server = CounterServer(store, Path(folder) / "counters.sock")
        await server.open()
        ready.send(os.getpid())
        await asyncio.Event().wait()

    asyncio.run(serve())


def start_counter_process(folder: Path) -> int:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    context.Process(target=_serve_counters, args=(str(folder), sender), daemon=True).start()
    assert receiver.poll(30)
    return int(receiver.recv())


def test_every_reply_survives_a_killed_process(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int, int]:
        store, rules = NeighbourStore(RealWorld(), tmp_path / "counters.sock"), read_rules(RULES)
        counter = Counter(store, rules, Clock())
        process = start_counter_process(tmp_path)
        await store.open()
        before = sum([(await counter.send(a_user())).is_admitted for _ in range(30)])
        await counter.send(a_user(), holds=True, request_id="held")
        os.kill(process, signal.SIGKILL)
        await wait_on_loop_until(lambda: not store.is_connected, what="the end is noticed")
        with pytest.raises(StoreUnavailable):
            await counter.send(a_user())
        process = start_counter_process(tmp_path)
        await wait_on_loop_until(lambda: store.is_connected, what="the new one is found")
        await store.renew(["held"])
        slots = await counter.used(a_user(), "concurrent")
        after = sum([(await counter.send(a_user())).is_admitted for _ in range(30)])
        await store.close()
        os.kill(process, signal.SIGKILL)
        return before, slots, after

    assert asyncio.run(scenario()) == (30, 1, 19)


def test_without_a_counter_server_requests_are_decided_in_time_by_each_rule(tmp_path: Path) -> None:
    async def scenario() -> tuple[bool, int]:
        rules = read_rules(RULES)
        store = NeighbourStore(RealWorld(), tmp_path / "counters.sock")
        guarded = GuardedStore(store, rules, GuardSettings(fallback_processes=10), RealWorld())
        await store.open()
        await guarded.open()
        counter = Counter(guarded, rules, Clock())
        admitted = sum([(await counter.send(a_user())).is_admitted for _ in range(30)])
        is_unavailable = guarded.counts.is_away
        await guarded.close()
        await store.close()
        return is_unavailable, admitted

    assert asyncio.run(scenario()) == (True, 5)


class _ExitsOnRequest(asyncio.Protocol):
    """A counter server that replies only to `HelloRequest` and exits at any other request."""

    def __init__(self, undone: list[str]) -> None:
        self._undone = undone
        self._frames = FrameDecoder(MAX_FRAME_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in map(decode_request, self._frames.feed(data)):
            if isinstance(message, HelloRequest):
                self._transport.write(encode_frame(CounterReply(message.number, None)))
                continue
            if isinstance(message, UndoRequest):
                self._undone.append(message.id)
            self._transport.abort()


def test_a_failed_undo_blocks_no_request_and_is_retried(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        path, undone, rules = tmp_path / "counters.sock", list[str](), read_rules(f'{RULES}on_store_loss = "closed"\n')
        fake_server = await asyncio.get_running_loop().create_unix_server(lambda: _ExitsOnRequest(undone), path)
        store = NeighbourStore(RealWorld(), path)
        guarded = GuardedStore(store, rules, GuardSettings(probe_every_ms=20, check_every_ms=20), RealWorld())
        await store.open()
        await guarded.open()
        await Counter(guarded, rules, Clock()).send(a_user(), request_id="refused")
        await wait_on_loop_until(lambda: len(undone) >= 2, what="the undo is retried")
        await guarded.close()
        await store.close()
        fake_server.close()
        return undone[:2]

    assert asyncio.run(scenario()) == ["refused", "refused"]


def test_a_second_counter_server_is_rejected_and_the_socket_is_private(tmp_path: Path) -> None:
    async def scenario() -> int:
        store, path = MemoryStore(RealWorld(), read_rules(RULES)), tmp_path / "counters.sock"
        server = CounterServer(store, path)
        await server.open()
        with pytest.raises(UnsuitableStore, match="another counter server already listens"):
            await CounterServer(store, path).open()
        mode = path.stat().st_mode & 0o777
        await server.close()
        return mode

    assert asyncio.run(scenario()) == 0o600


def test_a_neighbour_that_sends_invalid_data_is_disconnected_and_others_are_served(tmp_path: Path) -> None:
    async def scenario() -> tuple[bytes, int]:
        store, path = MemoryStore(RealWorld(), read_rules(RULES)), tmp_path / "counters.sock"
        server = CounterServer(store, path)
        await server.open()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        received = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        other_store = NeighbourStore(RealWorld(), path)
        await other_store.open()
        remaining = (await Counter(other_store, read_rules(RULES), Clock()).send(a_user())).remaining
        await other_store.close()
        await server.close()
        return received, remaining

    assert asyncio.run(scenario()) == (b"", 49)
