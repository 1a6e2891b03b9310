"""Combines operations that wait at the same time into one batch: one command and one round trip.

Callers hold futures. If a caller is cancelled, its batch still runs, and its result is settled later.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from wharf.limits.stores.port import StoreFull, StoreUnavailable
from wharf.limits.stores.redis.link import SETTLE_SCRIPT, TAKE_SCRIPT, RedisLink
from wharf.limits.stores.redis.settings import RedisSettings
from wharf.world import World

LONGEST_DELAY_S: Final = 0.002
"""How long an operation that can wait is delayed. A batch costs much more than an operation, so fewer batches are faster."""
_ARRAY_16: Final = b"\xdc"
_decode: Final = msgspec.msgpack.Decoder().decode


class _PendingOperation(msgspec.Struct, eq=False, gc=False):
    """An operation that waits for its batch, or for its reply."""

    op: bytes
    """The operation as the Lua script reads it, encoded with msgpack."""
    key: str
    """A Redis key on the node that must execute it."""
    node: str
    """Operations for the same node share a batch."""
    is_settling: bool
    """Whether it only refunds or releases, and so may run when the memory of Redis is full."""
    parse_result: Callable[[Any], Any] | None
    future: "asyncio.Future[Any]"


class OperationBatches:
    """Sends operations to Redis in batches, from one queue for each node."""

    def __init__(
        self, link: RedisLink, settings: RedisSettings, world: World, clock: Callable[[], int] | None = None
    ) -> None:
        self._link = link
        self._settings = settings
        self._world = world
        self._clock = clock
        self._waiting: dict[str, deque[_PendingOperation]] = {}
        self._sender_counts: dict[str, int] = {}
        self._senders: set[asyncio.Task[None]] = set()
        self._delayed: dict[str, asyncio.TimerHandle] = {}
        """For each node whose queue has only operations that can wait, what sends them at the latest."""
        self._result_ttl_ms = str(settings.result_ttl_ms)
        self._is_closed = False
        self.sent_batches = 0
        self._sent_at_s: dict[int, float] = {}
        """When each batch without a reply was sent, by its number, the oldest first."""

    def send_operation(
        self,
        op: bytes,
        key: str,
        *,
        node: str = "",
        is_settling: bool = False,
        can_wait: bool = False,
        parse_result: Callable[[Any], Any] | None = None,
    ) -> "asyncio.Future[Any]":
        """Queue an operation for the next batch of its node, and return a future for its result.

        The future can fail with `StoreUnavailable` or `StoreFull`. `parse_result` converts the value of the reply. An operation
        that `can_wait` is sent with a later one, or by itself after `LONGEST_DELAY_S`.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(StoreUnavailable("the store is closed"))
            return future
        queue = self._waiting.get(node)
        if queue is None:
            queue = self._waiting[node] = deque()
        queue.append(_PendingOperation(op, key, node, is_settling, parse_result, future))
        if not can_wait or len(queue) >= self._settings.max_batch_size:
            self._start_sender(node)
        elif node not in self._delayed and not self._sender_counts.get(node, 0):
            self._delayed[node] = asyncio.get_running_loop().call_later(LONGEST_DELAY_S, self._start_sender, node)
        return future

    def _start_sender(self, node: str) -> None:
        """Start to send the queue of a node, unless the maximum number of batches is on its way."""
        delayed = self._delayed.pop(node, None)
        if delayed is not None:
            delayed.cancel()
        queue = self._waiting.get(node)
        if not queue or self._sender_counts.get(node, 0) >= self._settings.max_parallel_batches:
            return  # A running sender sends it.
        self._sender_counts[node] = self._sender_counts.get(node, 0) + 1
        sender = self._world.start_task(self._send_queue(node, queue), name="limits: call Redis")
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    def get_longest_wait_s(self) -> float:
        """Return for how long the oldest batch that was sent waits for its reply; 0 if none waits."""
        for sent_at_s in self._sent_at_s.values():
            return self._world.monotonic_s() - sent_at_s
        return 0.0

    async def close(self) -> None:
        """Accept no more operations and wait for the running batches, which end by their own timeout at the latest."""
        self._is_closed = True
        for node in list(self._delayed):
            self._start_sender(node)
        while self._senders:
            await asyncio.wait(set(self._senders))

    async def _send_queue(self, node: str, queue: deque[_PendingOperation]) -> None:
        """Send batches from the queue of a node until it is empty."""
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), self._settings.max_batch_size))]
                await self._send_batch(batch)
        finally:
            self._sender_counts[node] -= 1
            if not self._sender_counts[node]:
                del self._sender_counts[node]
                if not queue:
                    self._waiting.pop(node, None)

    async def _send_batch(self, batch: list[_PendingOperation]) -> None:
        """Send one batch, and complete the future of each operation with its result or an error.

        If the memory of Redis is full, the operations that only refund or release are sent again by themselves.
        """
        all_settle = all(operation.is_settling for operation in batch)
        try:
            results = await self._execute(SETTLE_SCRIPT if all_settle else TAKE_SCRIPT, batch)
        except StoreFull as error:
            # Nothing was executed. Settling operations may run with full memory, in a batch of their own.
            settling = [operation for operation in batch if operation.is_settling]
            _fail([operation for operation in batch if not operation.is_settling], error)
            if settling and not all_settle:
                await self._send_batch(settling)
            elif settling:
                _fail(settling, error)
            return
        except StoreUnavailable as error:
            _fail(batch, error)
            return
        for operation, result in zip(batch, results, strict=True):
            if operation.future.done():
                continue
            try:
                operation.future.set_result(
                    result if operation.parse_result is None else operation.parse_result(result)
                )
            except StoreUnavailable as error:
                operation.future.set_exception(error)

    async def _execute(self, script: str, batch: list[_PendingOperation]) -> list[Any]:
        """Run the Lua script `script` on a batch of operations, and return their results in order."""
        self.sent_batches += 1
        ops = b"".join((_ARRAY_16, len(batch).to_bytes(2, "big"), *[operation.op for operation in batch]))
        now = "" if self._clock is None else str(self._clock())
        number = self.sent_batches
        self._sent_at_s[number] = self._world.monotonic_s()
        try:
            reply = await self._link.run_script(script, batch[0].key, [now, ops, self._result_ttl_ms])
        finally:
            del self._sent_at_s[number]
        results: list[Any] = _decode(reply)
        return results


def _fail(batch: list[_PendingOperation], problem: StoreUnavailable) -> None:
    """Set `problem` as the exception of all operations of a batch that are not complete."""
    for operation in batch:
        if not operation.future.done():
            operation.future.set_exception(problem)
            operation.future.exception()  # Mark it as retrieved: asyncio logs exceptions that nobody awaits.
