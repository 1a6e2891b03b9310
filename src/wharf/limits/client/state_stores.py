"""Stores of limit states: in memory for one process, in a file for one machine, or in Redis for many machines.

A store updates a state atomically, so that two clients that share it never both use the last request of a limit.
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
STATE_TTL_S: Final = 2 * 3_600
"""States that were not used for this long are deleted. The longest window is an hour."""
EVICTION_THRESHOLD: Final = 100
"""Expired states are searched only if a store holds more states than this. Tokens of apps are valid for an hour."""
MAX_UPDATE_TRIES: Final = 1_000
"""Tries of one update on Redis while other clients change the same state."""


class LimitStateStore(Protocol):
    """A store of limit states, one for each account: a credential at a host."""

    can_block: bool
    """Whether an update may wait for a network or another process; asynchronous callers then run it in a thread."""

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        """Apply a function to the state of an account, which it changes in place, atomically; return its result.

        The function may be called more than once; only its last call counts. It must be fast and must not raise.
        """
        ...


class StateStoreBusy(Exception):
    """An update of a limit state failed in all tries, because other clients changed the state at the same time."""


class MemoryStateStore:
    """A store of limit states in memory, shared by the tasks and threads of a process."""

    can_block = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, LimitState] = {}

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        """Apply a function to the state of an account, and return its result. Expired states are deleted."""
        with self._lock:
            result = apply(self._states.setdefault(account, LimitState()))
            _delete_expired(self._states, account)
            return result


def _delete_expired(states: dict[str, LimitState], account: str) -> None:
    """Delete the states that were not used for `STATE_TTL_S`. `account` names the state that was updated just now."""
    if len(states) <= EVICTION_THRESHOLD:
        return
    oldest_ns = states[account].touched_ns - STATE_TTL_S * SECOND_NS
    for name in [name for name, state in states.items() if state.touched_ns < oldest_ns]:
        del states[name]


class FileStateStore:
    """A store of limit states in a file, shared by the processes of a machine.

    The file is locked while it is changed, and readable by its owner only.
    """

    # A process that is stopped while it holds the file's lock makes the others wait.
    can_block = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # The lock on the file does not exclude other threads of the process.

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        """Apply a function to the state of an account while the file is locked, and return its result.

        Expired states are deleted.
        """
        with self._lock:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                states = self._read(handle)
                result = apply(states.setdefault(account, LimitState()))
                _delete_expired(states, account)
                data = msgspec.msgpack.encode(states)
                os.pwrite(handle, data, 0)
                os.ftruncate(handle, len(data))
            finally:
                os.close(handle)  # Also unlocks it.
            return result

    def _read(self, handle: int) -> dict[str, LimitState]:
        """Return all states of the file; none if the file is damaged."""
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        try:
            return msgspec.msgpack.decode(data, type=dict[str, LimitState]) if data else {}
        except msgspec.MsgspecError:
            # A process was killed while writing. The next response reports the limits again.
            return {}


class RedisStateStore:
    """A store of limit states in Redis, shared by many machines, whose clocks should agree to a second."""

    can_block = True

    def __init__(self, redis: "Redis", *, prefix: str = "wharf:client:") -> None:
        self._redis = redis
        self._prefix = prefix
        self._lock = threading.Lock()  # Threads of one process would otherwise make each other retry.

    def update(self, account: str, apply: Callable[[LimitState], T]) -> T:
        with self._lock:
            return self._change(f"{self._prefix}{account}", account, apply)

    def _change(self, key: str, account: str, apply: Callable[[LimitState], T]) -> T:
        """Update the state under a key; retry if another client changed it meanwhile. Raises `StateStoreBusy`."""
        from redis.exceptions import WatchError

        for _ in range(MAX_UPDATE_TRIES):
            with self._redis.pipeline() as pipe:
                pipe.watch(key)  # type: ignore[no-untyped-call]  # the library leaves it untyped
                state = _decode_state(pipe.get(key))
                result = apply(state)
                pipe.multi()
                pipe.set(key, msgspec.msgpack.encode(state), ex=STATE_TTL_S)
                try:
                    pipe.execute()
                except WatchError:
                    continue
                return result
        raise StateStoreBusy(
            f"updating the limit state of {account} failed: other clients changed it in all {MAX_UPDATE_TRIES} tries"
        )


class AsyncRedisStateStore:
    """A store of limit states in Redis for asynchronous clients of one event loop.

    It can share a Redis with `RedisStateStore`.
    """

    def __init__(self, redis: "AsyncRedis", *, prefix: str = "wharf:client:") -> None:
        self._redis = redis
        self._prefix = prefix
        self._lock = asyncio.Lock()  # Tasks of one process would otherwise make each other retry.

    async def update_async(self, account: str, apply: Callable[[LimitState], T]) -> T:
        async with self._lock:
            return await self._change(f"{self._prefix}{account}", account, apply)

    async def _change(self, key: str, account: str, apply: Callable[[LimitState], T]) -> T:
        """Update the state under a key; retry if another client changed it meanwhile. Raises `StateStoreBusy`."""
        from redis.exceptions import WatchError

        for _ in range(MAX_UPDATE_TRIES):
            async with self._redis.pipeline() as pipe:
                await pipe.watch(key)
                state = _decode_state(await pipe.get(key))
                result = apply(state)
                pipe.multi()  # type: ignore[no-untyped-call]  # the library leaves it untyped
                pipe.set(key, msgspec.msgpack.encode(state), ex=STATE_TTL_S)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return result
        raise StateStoreBusy(
            f"updating the limit state of {account} failed: other clients changed it in all {MAX_UPDATE_TRIES} tries"
        )


def _decode_state(data: Any) -> LimitState:  # The library types its replies as `Any`.
    """Return the stored state, or a new one if there is none or it is damaged."""
    try:
        return msgspec.msgpack.decode(data, type=LimitState) if data else LimitState()
    except msgspec.MsgspecError:
        return LimitState()
