"""What processes leave on Redis for operators: decisions in a stream, and what was seen in each minute.

Both are bounded by count and by age. Nothing here is on the way of a request, and nothing waits longer than the link does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wharf.limits.stores.redis.link import RedisLink

WRITTEN_AT_ONCE: Final = 100
"""Redis serves nobody else meanwhile: a hundred take it about half a millisecond."""
READ_AT_ONCE: Final = 1_000
MINUTES_AT_ONCE: Final = 60


class RedisRecords:
    def __init__(self, link: RedisLink, prefix: str, *, decisions_most: int, kept_ms: int) -> None:
        self._link = link
        self._decisions = f"{prefix}{{decisions}}"
        self._activity = f"{prefix}{{activity}}"
        self._decisions_most = decisions_most
        self._kept_ms = kept_ms

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        if not self._decisions_most:
            return
        for first in range(0, len(entries), WRITTEN_AT_ONCE):
            some = entries[first : first + WRITTEN_AT_ONCE]
            async with self._link.asking() as client:
                pipeline = client.pipeline()
                for request_id, told in some:
                    fields = {request_id: told}
                    pipeline.xadd(self._decisions, fields, maxlen=self._decisions_most, approximate=True)
                now_ms = int((await pipeline.execute())[-1].partition(b"-")[0])
            async with self._link.asking() as client:
                await client.xtrim(self._decisions, minid=now_ms - self._kept_ms, approximate=True)
                await client.pexpire(self._decisions, self._kept_ms)

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        wanted, first = request_id.encode(), str(max(0, since_ms))
        while True:
            async with self._link.asking() as client:
                found: list[tuple[bytes, dict[bytes, bytes]]] = await client.xrange(
                    self._decisions, first, "+", count=READ_AT_ONCE
                )
            for _, fields in found:
                if wanted in fields:
                    return fields[wanted]
            if len(found) < READ_AT_ONCE:
                return None
            first = f"({found[-1][0].decode()}"

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        key = f"{self._activity}{minute}"
        async with self._link.asking() as client:
            await client.hset(key, process, rows)
            await client.pexpire(key, self._kept_ms)

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        told: dict[str, list[bytes]] = {}
        wanted = list(minutes)
        for first in range(0, len(wanted), MINUTES_AT_ONCE):
            some = wanted[first : first + MINUTES_AT_ONCE]
            async with self._link.asking() as client:
                pipeline: Any = client.pipeline()  # Of one server, or of a cluster: they share no base.
                for minute in some:
                    pipeline.hgetall(f"{self._activity}{minute}")
                answers: list[dict[bytes, bytes]] = await pipeline.execute()
            for answer in answers:
                for process, rows in answer.items():
                    told.setdefault(process.decode(), []).append(rows)
        return told
