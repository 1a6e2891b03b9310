"""What processes leave on Redis for operators: decisions in a stream, and what was seen in each minute.

Both are bounded by count and by age. Nothing here is on the way of a request, and nothing waits longer than the link does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wharf.limits.stores.redis.link import RedisLink

WRITE_BATCH_DECISIONS: Final = 100
"""Redis serves nobody else meanwhile: a hundred take it about half a millisecond."""
READ_BATCH_DECISIONS: Final = 1_000
READ_BATCH_MINUTES: Final = 60


class RedisRecords:
    def __init__(self, link: RedisLink, prefix: str, *, max_decisions: int, retention_ms: int) -> None:
        self._link = link
        self._decisions = f"{prefix}{{decisions}}"
        self._activity = f"{prefix}{{activity}}"
        self._decisions_most = max_decisions
        self._kept_ms = retention_ms

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        if not self._decisions_most:
            return
        for first in range(0, len(entries), WRITE_BATCH_DECISIONS):
            some = entries[first : first + WRITE_BATCH_DECISIONS]
            async with self._link.use_client() as client:
                pipeline = client.pipeline()
                for request_id, told in some:
                    fields = {request_id: told}
                    pipeline.xadd(self._decisions, fields, maxlen=self._decisions_most, approximate=True)
                now_ms = int((await pipeline.execute())[-1].partition(b"-")[0])
            async with self._link.use_client() as client:
                await client.xtrim(self._decisions, minid=now_ms - self._kept_ms, approximate=True)
                await client.pexpire(self._decisions, self._kept_ms)

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        wanted, first = request_id.encode(), str(max(0, since_ms))
        while True:
            async with self._link.use_client() as client:
                found: list[tuple[bytes, dict[bytes, bytes]]] = await client.xrange(
                    self._decisions, first, "+", count=READ_BATCH_DECISIONS
                )
            for _, fields in found:
                if wanted in fields:
                    return fields[wanted]
            if len(found) < READ_BATCH_DECISIONS:
                return None
            first = f"({found[-1][0].decode()}"

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        key = f"{self._activity}{minute}"
        async with self._link.use_client() as client:
            await client.hset(key, process, rows)
            await client.pexpire(key, self._kept_ms)

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        told: dict[str, list[bytes]] = {}
        wanted = list(minutes)
        for first in range(0, len(wanted), READ_BATCH_MINUTES):
            some = wanted[first : first + READ_BATCH_MINUTES]
            async with self._link.use_client() as client:
                pipeline: Any = client.pipeline()  # Of one server, or of a cluster: they share no base.
                for minute in some:
                    pipeline.hgetall(f"{self._activity}{minute}")
                answers: list[dict[bytes, bytes]] = await pipeline.execute()
            for answer in answers:
                for process, rows in answer.items():
                    told.setdefault(process.decode(), []).append(rows)
        return told
