"""The other side of a limit: a client that keeps to it by itself.

Responsible for when a request may go out, and what a refusal means: it slows down before a limit is hit, keeps to what
may run at once and to points, waits out what it is told to wait out, and never asks again while it is limited. Decides
nothing about what is asked. It knows the headers and texts of large code hosts, and no more of them.

`over_httpx2` and `over_requests` put it under those libraries; docs/limits-client.md shows how.
"""

from wharf.limits.client.conversation import Waiting
from wharf.limits.client.errors import LimitError, PrimaryExceeded, SecondaryExceeded, WaitTooLong
from wharf.limits.client.ledgers import AsyncRedisLedger, FileLedger, Ledger, MemoryLedger, RedisLedger
from wharf.limits.client.manner import Manner

__all__ = [
    "AsyncRedisLedger",
    "FileLedger",
    "Ledger",
    "LimitError",
    "Manner",
    "MemoryLedger",
    "PrimaryExceeded",
    "RedisLedger",
    "SecondaryExceeded",
    "WaitTooLong",
    "Waiting",
]
