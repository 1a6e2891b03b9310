"""Where standings are kept: in this process, in a file for all processes of a machine, or in Redis for many machines.

A ledger does one thing: change a standing in one piece. Two who share one never both take the last request.
"""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from wharf.limits.client.standing import Standing

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")
# What nobody touched for so long is over: the longest window is an hour.
KEPT_S: Final = 2 * 3_600
TRIES_MAX: Final = 1_000


class Ledger(Protocol):
    # Whether a change goes over a network, so that who must not block hands it to a thread.
    is_far: bool

    def change(self, account: str, what: Callable[[Standing], T]) -> T:
        """`what` may be called more than once; only its last change counts. It must be quick and not fail."""
        ...


class LedgerBusy(Exception):
    """So many others change it at once that this change never got through."""


class MemoryLedger:
    """Shared by the tasks and threads of a process."""

    is_far = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[str, Standing] = {}

    def change(self, account: str, what: Callable[[Standing], T]) -> T:
        with self._lock:
            return what(self._standings.setdefault(account, Standing()))


class FileLedger:
    """Shared by the processes of a machine. The file is locked while it is changed, and readable by its owner only."""

    is_far = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # The file's lock is one for the whole process.

    def change(self, account: str, what: Callable[[Standing], T]) -> T:
        with self._lock:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                standings = self._read(handle)
                given = what(standings.setdefault(account, Standing()))
                data = msgspec.msgpack.encode(standings)
                os.pwrite(handle, data, 0)
                os.ftruncate(handle, len(data))
            finally:
                os.close(handle)  # Which unlocks it.
            return given

    def _read(self, handle: int) -> dict[str, Standing]:
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        try:
            return msgspec.msgpack.decode(data, type=dict[str, Standing]) if data else {}
        except msgspec.MsgspecError:
            # Somebody died while writing. Limits are learned anew from the next answer.
            return {}


class RedisLedger:
    """Shared by many machines, whose clocks should agree to a second."""

    is_far = True

    def __init__(self, redis: "Redis", *, prefix: str = "wharf:client:") -> None:
        self._redis = redis
        self._prefix = prefix

    def change(self, account: str, what: Callable[[Standing], T]) -> T:
        from redis.exceptions import WatchError

        key = f"{self._prefix}{account}"
        for _ in range(TRIES_MAX):
            with self._redis.pipeline() as pipe:
                pipe.watch(key)  # type: ignore[no-untyped-call]  # the library leaves it untyped
                standing = _decoded(pipe.get(key))
                given = what(standing)
                pipe.multi()
                pipe.set(key, msgspec.msgpack.encode(standing), ex=KEPT_S)
                try:
                    pipe.execute()
                except WatchError:
                    continue
                return given
        raise LedgerBusy(f"the standing of {account} was changed by others {TRIES_MAX} times in a row")


def _decoded(data: Any) -> Standing:  # The library types its replies so.
    try:
        return msgspec.msgpack.decode(data, type=Standing) if data else Standing()
    except msgspec.MsgspecError:
        return Standing()
