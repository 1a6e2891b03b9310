"""The other side of a limit: a client that keeps to it by itself.

Responsible for when a request may go out, and what a refusal means: it slows down before a limit is hit, keeps to what
may run at once and to points, waits out what it is told to wait out, and never asks again while it is limited. Decides
nothing about what is asked. It knows the headers and texts of large code hosts, and no more of them.

`over_httpx2` and `over_requests` put it under those libraries; docs/limits-client.md shows how.
"""

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
