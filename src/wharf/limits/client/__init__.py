"""A client that respects rate limits: it delays requests so that the host does not refuse them.

It slows down before a limit is reached, limits concurrent requests and points, waits as long as a refusal says, and
sends nothing while it is limited. It does not change requests. It knows the rate limit headers and texts of GitHub.

`httpx2_transport` and `requests_adapter` integrate it with those libraries; see docs/limits-client.md.
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
