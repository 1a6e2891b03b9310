"""Executes requests with large bodies, and explanations, in copies of the api process, so that its event loop stays free.

The body is in the memory of the copy already, and so is the state of the cluster: the kernel shares memory pages until a
process writes them. The copy decodes and validates the body, decides and encodes the write, and encodes the reply. It asks
the api process to commit the write and to call the leader. The kernel kills a copy that uses too much CPU time (0088).
"""

import asyncio
import os
import signal
import socket
import struct
import traceback
from collections.abc import Coroutine, Hashable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from wharf.agent.forks import (
    ForkPacer,
    build_death_refusal,
    build_start_refusal,
    enter_fork,
    fork_process,
    kill_and_reap,
    reap,
)
from wharf.cluster.engines.port import Committed, EncodedWrite
from wharf.cluster.server.fair_places import FairPlaces
from wharf.cluster.server.log.writer import MAX_ATTEMPTS, build_contention_refusal
from wharf.cluster.server.request_worker import RequestComputation, WorkerLane
from wharf.cluster.server.rpc.method import RpcReply
from wharf.cluster.server.security.access_services import FirstKeyMissing
from wharf.cluster.server.server import Server
from wharf.cluster.server.snapshot_services import Snapshot, StaleSnapshot, use_snapshot_services
from wharf.cluster.server.worker_process import WorkerFailed
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode, RefusalReason

T = TypeVar("T")

DEFAULT_CPU_LIMIT_S: Final = 1.0
"""CPU time of one request in a copy; protects the other requests and processes of the machine."""
EXPLANATION_CPU_LIMIT_S: Final = 5.0
"""CPU time of one explanation. To examine 5,000 nodes with 100,000 allocations takes 0.4 s."""
MAX_RUNNING: Final = 2
"""Copies of one lane at a time; limits their memory and their share of the CPU."""
MAX_WAITING: Final = 32
"""Requests of one lane that wait for a copy; limits the memory of their bodies, 10 MB each by default."""
QUEUE_TIMEOUT_S: Final = 10.0
"""How long a request waits for a copy. Shorter than the time that clients wait for a reply."""
COMPUTE_TIMEOUT_S: Final = 10.0
"""How long a copy may compute without a message. On a busy machine it takes longer than its CPU time."""
MAX_MESSAGE_BYTES: Final = 256_000_000
"""Protects the memory of the api process against data that is not of this protocol."""
MIN_ATTEMPT_CPU_S: Final = 0.01
"""A request that conflicted with other writes is not executed again with less CPU time than this."""
RANDOM_SEED_BYTES: Final = 16
"""Each copy gets a random seed of its own. Otherwise all copies would make the same ids."""
RETRIES_PER_S: Final = 4
"""How many waiting requests the workers serve in a second, as an estimate for `Retry-After`."""
_HEAD: Final = struct.Struct(">I")


class _Commit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: commit this write."""

    write: EncodedWrite


class _Call(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: call a brain. Without `member_id`, the leader's."""

    member_id: str | None
    name: str
    body: bytes
    is_repeatable: bool


class _Finished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: the result."""

    body: bytes


class _Stale(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: another write came first, execute the request again."""


class _KeyMissing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: the keyring has no key yet, create one and execute the request again."""


class _Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy to api process: the request raised an unexpected error."""

    text: str


_CopyMessage = _Commit | _Call | _Finished | _Stale | _KeyMissing | _Failed


class _ProcessReply(msgspec.Struct, frozen=True, array_like=True):
    """Api process to copy: the outcome of a commit or a call, or the parts of a `Refusal` if `code` is set."""

    index: int | None = None
    """The log index of the write; `None` after a conflict."""
    reply: RpcReply | None = None
    code: RefusalCode | None = None
    text: str = ""
    reason: RefusalReason = RefusalReason.UNSPECIFIED


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_message: Final = msgspec.msgpack.Decoder(_CopyMessage).decode
_decode_reply: Final = msgspec.msgpack.Decoder(_ProcessReply).decode


def _build_queue_refusal(lane: WorkerLane, waiting_count: int) -> Overloaded:
    return Overloaded(f"{waiting_count} {lane.value} wait for a worker process", 1 + waiting_count // RETRIES_PER_S)


class ForkedRequestWorker:
    """Executes requests in copies of this process, a few at a time. Implements `RequestWorker`."""

    def __init__(self, server: Server, *, cpu_limit_s: float = DEFAULT_CPU_LIMIT_S) -> None:
        self._server = server
        self._limit = _CpuLimit(
            cpu_s=cpu_limit_s,
            text=f"the request needs more than {cpu_limit_s:g} s of CPU time, the limit of one request "
            "(api.max_request_cpu); send a smaller body, or divide it into several requests",
        )
        self._limits = {WorkerLane.EXPLANATION: EXPLANATION_LIMIT}
        """The limits of lanes that have their own."""
        self._lanes = {
            lane: FairPlaces(
                MAX_RUNNING, MAX_WAITING, partial(_build_queue_refusal, lane), queue_timeout_s=QUEUE_TIMEOUT_S
            )
            for lane in WorkerLane
        }
        self._pacer = ForkPacer(server.world)

    async def run(self, compute: RequestComputation, *, lane: WorkerLane, owner: Hashable) -> bytes:
        """Return the result of `compute`, executed in a copy of this process. All attempts share one CPU limit.

        Raises `Overloaded`, a `Refusal` if the copy uses too much CPU time or cannot be made, or `WorkerFailed`.
        """
        async with self._lanes[lane].enter(owner):
            limit = self._limits.get(lane, self._limit)
            remaining_s = limit.cpu_s
            for attempt in range(1, MAX_ATTEMPTS + 1):
                failure = None
                try:
                    if lane is not WorkerLane.EXPLANATION:
                        # The copy must see every write that was acknowledged before the request.
                        await self._server.writer.catch_up()
                except Refusal as refusal:
                    failure = refusal  # Most requests need no current state.
                try:
                    result, used_s = await self._run_in_copy(compute, failure, cpu_limit_s=remaining_s)
                except _CpuLimitExceeded as refusal:
                    if attempt > 1:  # The first attempts were within the limit, so conflicts are the cause.
                        raise build_contention_refusal(attempt) from refusal
                    raise Refusal(RefusalCode.INVALID, limit.text) from refusal
                if result is not None:
                    return result
                remaining_s -= used_s
                if remaining_s < MIN_ATTEMPT_CPU_S:
                    raise build_contention_refusal(attempt)
            raise build_contention_refusal()

    async def _run_in_copy(
        self, compute: RequestComputation, catch_up_failure: Refusal | None, *, cpu_limit_s: float
    ) -> tuple[bytes | None, float]:
        """Return the result of one copy, and its CPU time. The kernel ends it at `cpu_limit_s`.

        The result is `None` if the request must be executed again: another write or a first key came first.
        """
        await self._pacer.wait()
        # No await before the fork: several requests may have waited for the same moment.
        world = self._server.world
        random_seed = world.token_bytes(RANDOM_SEED_BYTES)
        try:
            own_end, copy_end = socket.socketpair()
        except OSError as error:
            raise build_start_refusal(error) from error
        began_s = world.monotonic_s()
        try:
            pid = fork_process()
        except OSError as error:
            own_end.close()
            copy_end.close()
            raise build_start_refusal(error) from error
        if pid == 0:
            _serve_in_copy(self._server, compute, copy_end, catch_up_failure, random_seed, cpu_limit_s=cpu_limit_s)
        self._pacer.count(world.monotonic_s() - began_s)
        copy_end.close()
        conversation = _Conversation(self._server)
        is_reaped = False
        try:
            try:
                result = await conversation.hold(own_end)
            except (asyncio.IncompleteReadError, ConnectionError):
                is_reaped = True
                exit_code, _ = await reap(pid)
                raise _build_end_error(exit_code, has_acted=conversation.has_acted) from None
        finally:
            if not is_reaped:
                _, used_s = await kill_and_reap(pid)
        return result, used_s


class _CpuLimit(msgspec.Struct, frozen=True):
    """The CPU time of one request in all its copies, and the text of the refusal above it."""

    cpu_s: float
    text: str


EXPLANATION_LIMIT: Final = _CpuLimit(
    cpu_s=EXPLANATION_CPU_LIMIT_S,
    text=f"the explanation needs more than {EXPLANATION_CPU_LIMIT_S:g} s of CPU time",
)


class _CpuLimitExceeded(Exception):
    """A copy used too much CPU time."""


def _build_end_error(exit_code: int, *, has_acted: bool) -> Exception:
    """Return the error for a request whose copy ended without a result. `has_acted`: it wrote or called before."""
    if has_acted:
        text = "the worker process ended after a write; check the current state before you retry"
        return Refusal(RefusalCode.OUTCOME_UNKNOWN, text)
    if exit_code == -signal.SIGPROF:
        return _CpuLimitExceeded()
    return build_death_refusal()


class _Conversation:
    """The api process's side of the conversation with one copy."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.has_acted = False
        """Whether the copy has requested a write or a call that may have an effect."""

    async def hold(self, own_end: socket.socket) -> bytes | None:
        """Answer the copy's messages until its result, and return that; `None` if it must be executed again.

        Raises `WorkerFailed`, `Refusal` if the copy takes too long, or `IncompleteReadError` if it ends.
        """
        reader, writer = await asyncio.open_unix_connection(sock=own_end)
        try:
            while True:
                message = _decode_message(await self._receive(reader))
                match message:
                    case _Finished(body):
                        return body
                    case _Stale():
                        return None
                    case _KeyMissing():
                        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)
                        return None
                    case _Failed(text):
                        raise WorkerFailed(text)
                try:
                    reply = await self._act(message)
                except Refusal as refusal:
                    reply = _ProcessReply(code=refusal.code, text=refusal.text, reason=refusal.reason)
                data = _encode(reply)
                writer.write(_HEAD.pack(len(data)) + data)
                await writer.drain()
        finally:
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next message of the copy."""
        try:
            async with asyncio.timeout(COMPUTE_TIMEOUT_S):
                (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                if length > MAX_MESSAGE_BYTES:
                    raise WorkerFailed(f"a message of {length} bytes")
                return await reader.readexactly(length)
        except TimeoutError:
            code = RefusalCode.OUTCOME_UNKNOWN if self.has_acted else RefusalCode.UNAVAILABLE
            raise Refusal(
                code, f"the worker process did not reply within {COMPUTE_TIMEOUT_S:g} s; retry later"
            ) from None

    async def _act(self, message: _Commit | _Call) -> _ProcessReply:
        """Commit the write or make the call, and return its outcome. Raises `Refusal`."""
        server = self._server
        if isinstance(message, _Commit):
            had_acted, self.has_acted = self.has_acted, True  # Also if the outcome of the write stays unknown.
            outcome = await server.writer.commit_encoded(message.write)
            if not isinstance(outcome, Committed):
                self.has_acted = had_acted
                return _ProcessReply()
            await server.writer.wait_until_visible(outcome.index)
            return _ProcessReply(outcome.index)
        self.has_acted = self.has_acted or not message.is_repeatable
        if message.member_id is not None:
            return _ProcessReply(
                reply=await server.leader.call_member_encoded(message.member_id, message.name, message.body)
            )
        return _ProcessReply(
            reply=await server.leader.call_encoded(message.name, message.body, is_repeatable=message.is_repeatable)
        )


# -- the copy ----------------------------------------------------------------------------------------------------------


class _ApiProcess:
    """The api process, as its copy reaches it. Implements `ProcessChannel`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: _CopyMessage) -> None:
        data = _encode(message)
        self._connection.sendall(_HEAD.pack(len(data)))
        self._connection.sendall(data)

    def commit(self, write: EncodedWrite) -> int | None:
        self.send(_Commit(write))
        return self._receive().index

    def call(self, member_id: str | None, name: str, body: bytes, *, is_repeatable: bool) -> RpcReply:
        self.send(_Call(member_id, name, body, is_repeatable))
        reply = self._receive().reply
        assert reply is not None, "a call has a reply"
        return reply

    def _receive(self) -> _ProcessReply:
        """Return the reply to the last message. Raises `Refusal`. Ends the copy if the api process has died."""
        (length,) = _HEAD.unpack(self._read(_HEAD.size))
        reply = _decode_reply(self._read(length))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text, reply.reason)
        return reply

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._connection.recv(min(count - len(data), 1 << 20))
            if not part:
                os._exit(1)
            data += part
        return bytes(data)


def _serve_in_copy(
    server: Server,
    compute: RequestComputation,
    connection: socket.socket,
    catch_up_failure: Refusal | None,
    random_seed: bytes,
    *,
    cpu_limit_s: float,
) -> NoReturn:
    """Execute the request in the copy, send its result, and exit. Never returns or raises."""
    try:
        enter_fork(connection.fileno())
        # The kernel ends the copy at its CPU limit, whatever it does. If the api process dies, the copy's next message
        # fails.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        server.world.random.seed(random_seed)
        api_process = _ApiProcess(connection)
        snapshot = Snapshot(api_process, catch_up_failure)
        use_snapshot_services(server, snapshot)
        result: _CopyMessage
        try:
            result = _Finished(run_coroutine(compute()))
        except StaleSnapshot:
            result = _Stale()
        except FirstKeyMissing:
            result = _Failed("a key is needed after a write") if snapshot.has_acted else _KeyMissing()
        except Exception:  # Top level of the copy: the api process logs the error.
            result = _Failed(traceback.format_exc())
        api_process.send(result)
    finally:
        os._exit(0)


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing but `asyncio.sleep(0)`, without an event loop, and return its result."""
    while True:
        try:
            awaited = coroutine.send(None)
        except StopIteration as result:
            value: T = result.value
            return value
        assert awaited is None, f"a request in a worker process must not wait for {awaited!r}"
