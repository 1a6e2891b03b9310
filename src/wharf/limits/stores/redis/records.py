"""The records that processes share on Redis beside counters: decisions and activity for operators, and accepted credentials.

All are limited by age. Requests never wait for decisions and activity.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wharf.limits.stores.redis.link import RedisLink

WRITE_BATCH_DECISIONS: Final = 100
"""Redis is blocked while it executes a batch: about half a millisecond for this many decisions."""
READ_BATCH_DECISIONS: Final = 1_000
"""Decisions read with one command."""
ADD_TO_GROUP_SCRIPT: Final = """
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
"""Adds a member to a set of limited size in one step, so that several processes together do not exceed the size."""
READ_BATCH_MINUTES: Final = 60
"""Minutes read with one round trip."""


class RedisRecords:
    """The decisions and activity on Redis that processes share, for operators who query one of the processes."""

    def __init__(self, link: RedisLink, prefix: str, *, max_decisions: int, retention_ms: int) -> None:
        self._link = link
        self._decisions = f"{prefix}{{decisions}}"
        self._activity = f"{prefix}{{activity}}"
        self._max_decisions = max_decisions
        self._retention_ms = retention_ms

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Append decisions, each as request id and JSON, to the stream of decisions, and remove old ones."""
        if not self._max_decisions:
            return
        for first in range(0, len(entries), WRITE_BATCH_DECISIONS):
            batch = entries[first : first + WRITE_BATCH_DECISIONS]
            async with self._link.use_client() as client:
                pipeline = client.pipeline()
                for request_id, decision in batch:
                    fields = {request_id: decision}
                    pipeline.xadd(self._decisions, fields, maxlen=self._max_decisions, approximate=True)
                now_ms = int((await pipeline.execute())[-1].partition(b"-")[0])
            async with self._link.use_client() as client:
                await client.xtrim(self._decisions, minid=now_ms - self._retention_ms, approximate=True)
                await client.pexpire(self._decisions, self._retention_ms)

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        """Return the decision about a request as JSON, or `None`: scan the stream of decisions from `since_ms` on."""
        id_field, first = request_id.encode(), str(max(0, since_ms))
        while True:
            async with self._link.use_client() as client:
                found: list[tuple[bytes, dict[bytes, bytes]]] = await client.xrange(
                    self._decisions, first, "+", count=READ_BATCH_DECISIONS
                )
            for _, fields in found:
                if id_field in fields:
                    return fields[id_field]
            if len(found) < READ_BATCH_DECISIONS:
                return None
            first = f"({found[-1][0].decode()}"

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        """Store the encoded activity rows of one process for one minute since the Unix epoch, and replace earlier ones."""
        key = f"{self._activity}{minute}"
        async with self._link.use_client() as client:
            await client.hset(key, process, rows)
            await client.pexpire(key, self._retention_ms)

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        """Return by process id the encoded activity rows of these minutes since the Unix epoch."""
        rows_by_process: dict[str, list[bytes]] = {}
        minute_list = list(minutes)
        for first in range(0, len(minute_list), READ_BATCH_MINUTES):
            batch = minute_list[first : first + READ_BATCH_MINUTES]
            async with self._link.use_client() as client:
                pipeline: Any = client.pipeline()  # The clients of a server and of a cluster have no common base class.
                for minute in batch:
                    pipeline.hgetall(f"{self._activity}{minute}")
                replies: list[dict[bytes, bytes]] = await pipeline.execute()
            for process_rows in replies:
                for process, rows in process_rows.items():
                    rows_by_process.setdefault(process.decode(), []).append(rows)
        return rows_by_process


class RedisCredentials:
    """The keyed hashes of accepted credentials on Redis. Every method raises `StoreUnavailable`."""

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        self._prefix = f"{prefix}accepted:"
        self._group_prefix = f"{prefix}new-credentials:"

    async def find(self, key: str) -> int | None:
        """Return until when a credential is accepted, in Unix milliseconds; `None` if it is not."""
        async with self._link.use_client() as client:
            value = await client.get(self._prefix + key)
        return int(value) if value is not None and value.isdigit() else None

    async def store(self, key: str, until_ms: int, lifetime_ms: int) -> None:
        """Store until when a credential is accepted. The key expires after `lifetime_ms`, by the clock of Redis."""
        async with self._link.use_client() as client:
            await client.set(self._prefix + key, until_ms, px=lifetime_ms)

    async def remove(self, key: str) -> None:
        """Make a credential unknown again."""
        async with self._link.use_client() as client:
            await client.delete(self._prefix + key)

    async def add_new(self, group: str, key: str, *, most: int, lifetime_ms: int) -> bool:
        """Add a credential to a group, such as the new ones of an address in this hour. Return false if the group is full.

        A credential that is in the group already fits. The group is deleted after `lifetime_ms` without a new one.
        """
        async with self._link.use_client() as client:
            return bool(await client.eval(ADD_TO_GROUP_SCRIPT, 1, self._group_prefix + group, key, most, lifetime_ms))

    async def count_new(self, group: str) -> int:
        """Return how many credentials are in a group."""
        async with self._link.use_client() as client:
            return int(await client.scard(self._group_prefix + group))
