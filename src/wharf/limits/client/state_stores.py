"""Where standings are kept: in this process, in a file for all processes of a machine, or in Redis for many machines.

A ledger does one thing: change a standing in one piece. Two who share one never both take the last request.
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from wharf.limits.client.limit_state import LimitState
from wharf.limits.client.responses import SECOND_NS

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

T = TypeVar("T")
# What nobody touched for so long is over: the longest window is an hour.
STATE_TTL_S: Final = 2 * 3_600
EVICTION_THRESHOLD: Final = 100
"""So many credentials may stand in one place before it is looked whether some are over. Tokens of apps live for an hour."""
MAX_UPDATE_TRIES: Final = 1_000


class LimitStateStore(Protocol):
    # Whether a change may have to wait, for a network or another process, so that who must not block hands it to a thread.
    can_block: bool

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        """`what` may be called more than once; only its last change counts. It must be quick and not fail."""
        ...


class StateStoreBusy(Exception):
    """So many others change it at once that this change never got through."""


class MemoryStateStore:
    """Shared by the tasks and threads of a process."""

    can_block = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[str, LimitState] = {}

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        with self._lock:
            given = apply(self._standings.setdefault(account, LimitState()))
            _forget_others(self._standings, account)
            return given


def _forget_others(standings: dict[str, LimitState], account: str) -> None:
    """Those that nobody asked for in so long. The account is whose standing was changed just now."""
    if len(standings) <= EVICTION_THRESHOLD:
        return
    oldest_ns = standings[account].touched_ns - STATE_TTL_S * SECOND_NS
    for name in [name for name, standing in standings.items() if standing.touched_ns < oldest_ns]:
        del standings[name]


class FileStateStore:
    """Shared by the processes of a machine. The file is locked while it is changed, and readable by its owner only."""

    # A process that is stopped while it holds the file's lock makes the others wait.
    can_block = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # The file's lock is one for the whole process.

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        with self._lock:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                standings = self._read(handle)
                given = apply(standings.setdefault(account, LimitState()))
                _forget_others(standings, account)
                data = msgspec.msgpack.encode(standings)
                os.pwrite(handle, data, 0)
                os.ftruncate(handle, len(data))
            finally:
                os.close(handle)  # Which unlocks it.
            return given

    def _read(self, handle: int) -> dict[str, LimitState]:
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        try:
            return msgspec.msgpack.decode(data, type=dict[str, LimitState]) if data else {}
        except msgspec.MsgspecError:
            # Somebody died while writing. Limits are learned anew from the next answer.
            return {}


class RedisStateStore:
    """Shared by many machines, whose clocks should agree to a second."""

    can_block = True

    def __init__(self, redis: "Redis", *, prefix: str = "wharf:client:") -> None:
        self._redis = redis
        self._prefix = prefix
        self._lock = threading.Lock()  # Threads of one process would only make each other begin anew.

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        with self._lock:
            return self._change(f"{self._prefix}{account}", account, apply)

    def _change(self, key: str, account: str, what: Callable[[LimitState], T]) -> T:
        from redis.exceptions import WatchError

        for _ in range(MAX_UPDATE_TRIES):
            with self._redis.pipeline() as pipe:
                pipe.watch(key)  # type: ignore[no-untyped-call]  # the library leaves it untyped
                standing = _decoded(pipe.get(key))
                given = what(standing)
                pipe.multi()
                pipe.set(key, msgspec.msgpack.encode(standing), ex=STATE_TTL_S)
                try:
                    pipe.execute()
                except WatchError:
                    continue
                return given
        raise StateStoreBusy(f"the standing of {account} was changed by others {MAX_UPDATE_TRIES} times in a row")


class AsyncRedisStateStore:
    """`RedisLedger` over a connection that awaits, on one event loop. Both may share a Redis."""

    def __init__(self, redis: "AsyncRedis", *, prefix: str = "wharf:client:") -> None:
        self._redis = redis
        self._prefix = prefix
        self._lock = asyncio.Lock()  # Tasks of one process would only make each other begin anew.

    async def update_async(self, account: str, apply: Callable[[LimitState], T]) -> T:
        async with self._lock:
            return await self._change(f"{self._prefix}{account}", account, apply)

    async def _change(self, key: str, account: str, what: Callable[[LimitState], T]) -> T:
        from redis.exceptions import WatchError

        for _ in range(MAX_UPDATE_TRIES):
            async with self._redis.pipeline() as pipe:
                await pipe.watch(key)
                standing = _decoded(await pipe.get(key))
                given = what(standing)
                pipe.multi()  # type: ignore[no-untyped-call]  # the library leaves it untyped
                pipe.set(key, msgspec.msgpack.encode(standing), ex=STATE_TTL_S)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return given
        raise StateStoreBusy(f"the standing of {account} was changed by others {MAX_UPDATE_TRIES} times in a row")


def _decoded(data: Any) -> LimitState:  # The library types its replies so.
    try:
        return msgspec.msgpack.decode(data, type=LimitState) if data else LimitState()
    except msgspec.MsgspecError:
        return LimitState()
