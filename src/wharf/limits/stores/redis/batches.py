"""Decisions that come at once go together: what waits when a lane is free is one batch, one command, one round trip.

Callers hold futures. A caller that leaves takes nothing with it: the batch goes on, and its answers are settled.
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

_ARRAY_16: Final = b"\xdc"
_decode: Final = msgspec.msgpack.Decoder().decode


class _Asked(msgspec.Struct, eq=False, gc=False):
    op: bytes
    key: str
    node: str
    """What is asked of one node goes together."""
    settles: bool
    finish: Callable[[Any], Any] | None
    answer: "asyncio.Future[Any]"


class OperationBatches:
    def __init__(
        self, link: RedisLink, settings: RedisSettings, world: World, clock: Callable[[], int] | None = None
    ) -> None:
        self._link = link
        self._settings = settings
        self._world = world
        self._clock = clock
        self._waiting: dict[str, deque[_Asked]] = {}
        self._busy: dict[str, int] = {}
        self._lanes: set[asyncio.Task[None]] = set()
        self._remembered = str(settings.result_ttl_ms)
        self._is_closed = False
        self.sent_batches = 0

    def send_operation(
        self,
        op: bytes,
        key: str,
        *,
        node: str = "",
        is_settling: bool = False,
        finish: Callable[[Any], Any] | None = None,
    ) -> "asyncio.Future[Any]":
        """Ask with the next batch. The future ends with the answer, with StoreUnavailable, or with StoreFull."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            answer.set_exception(StoreUnavailable("the store is closed"))
            return answer
        queue = self._waiting.get(node)
        if queue is None:
            queue = self._waiting[node] = deque()
        queue.append(_Asked(op, key, node, is_settling, finish, answer))
        if self._busy.get(node, 0) < self._settings.max_parallel_batches:
            self._busy[node] = self._busy.get(node, 0) + 1
            lane = self._world.start_task(self._drain(node, queue), name="limits: ask Redis")
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return answer

    async def close(self) -> None:
        """Ask no more; what is under way is waited for, and ends by its own time-out at the latest."""
        self._is_closed = True
        while self._lanes:
            await asyncio.wait(set(self._lanes))

    async def _drain(self, node: str, queue: deque[_Asked]) -> None:
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), self._settings.max_batch_size))]
                await self._send(batch)
        finally:
            self._busy[node] -= 1
            if not self._busy[node]:
                del self._busy[node]
                if not queue:
                    self._waiting.pop(node, None)

    async def _send(self, batch: list[_Asked]) -> None:
        all_settle = all(asked.settles for asked in batch)
        try:
            answers = await self._run(SETTLE_SCRIPT if all_settle else TAKE_SCRIPT, batch)
        except StoreFull as full:
            # Nothing has happened. What gives back may be done all the same, by itself.
            settling = [asked for asked in batch if asked.settles]
            _fail([asked for asked in batch if not asked.settles], full)
            if settling and not all_settle:
                await self._send(settling)
            elif settling:
                _fail(settling, full)
            return
        except StoreUnavailable as lost:
            _fail(batch, lost)
            return
        for asked, answer in zip(batch, answers, strict=True):
            if asked.answer.done():
                continue
            try:
                asked.answer.set_result(answer if asked.finish is None else asked.finish(answer))
            except StoreUnavailable as lost:
                asked.answer.set_exception(lost)

    async def _run(self, text: str, batch: list[_Asked]) -> list[Any]:
        self.sent_batches += 1
        ops = b"".join((_ARRAY_16, len(batch).to_bytes(2, "big"), *[asked.op for asked in batch]))
        now = "" if self._clock is None else str(self._clock())
        answers: list[Any] = _decode(await self._link.run_script(text, batch[0].key, [now, ops, self._remembered]))
        return answers


def _fail(batch: list[_Asked], problem: StoreUnavailable) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(problem)
            asked.answer.exception()  # Whoever waits is told; if nobody does any more, that is no news.
