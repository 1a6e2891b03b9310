"""A client that respects rate limits: it delays requests so that the host does not refuse them.

It slows down before a limit is reached, limits concurrent requests and points, waits as long as a refusal says, and
sends nothing while it is limited. It does not change requests. It knows the rate limit headers and texts of GitHub.

`httpx2_transport` and `requests_adapter` integrate it with those libraries; see docs/limits-client.md.
"""

from typing import Any, Final

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.state_stores import (
    AsyncRedisStateStore,
    FileStateStore,
    LimitStateStore,
    MemoryStateStore,
    RedisStateStore,
)
from wharf.limits.client.steps import LimitError, PrimaryExceeded, SecondaryExceeded, WaitNotice, WaitTooLong

__all__ = [
    "AsyncRedisStateStore",
    "ClientPolicy",
    "FileStateStore",
    "LimitError",
    "LimitStateStore",
    "MemoryStateStore",
    "PrimaryExceeded",
    "RedisStateStore",
    "SecondaryExceeded",
    "WaitNotice",
    "WaitTooLong",
]

_FORMER_NAMES: Final = {
    "AsyncRedisLedger": "AsyncRedisStateStore",
    "FileLedger": "FileStateStore",
    "Ledger": "LimitStateStore",
    "Manner": "ClientPolicy",
    "MemoryLedger": "MemoryStateStore",
    "RedisLedger": "RedisStateStore",
    "Waiting": "WaitNotice",
}
"""Public names before 0.2, and their present names. Programs of users still import the former ones."""


def __getattr__(name: str) -> Any:
    """Return a public name of this package that had the name `name` before 0.2."""
    if name not in _FORMER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[_FORMER_NAMES[name]]
