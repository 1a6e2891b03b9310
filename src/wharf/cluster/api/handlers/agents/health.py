"""A health check of the log that always returns within seconds."""

import asyncio
from typing import Final

from wharf.cluster.engines.port import LogEngine, LogHealth, LogUnavailable

HEALTH_TIMEOUT_S: Final = 3.0
"""Health checks need a fast reply: a log that does not answer within this time counts as not writable."""


async def check_engine_health(engine: LogEngine) -> LogHealth:
    """Return whether the log is writable, why not, and its size. An unavailable or slow log counts as not writable."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await engine.read_health()
    except LogUnavailable as error:
        return LogHealth(writable=False, why=str(error))
    except TimeoutError:
        return LogHealth(writable=False, why=f"the log has not answered for {HEALTH_TIMEOUT_S:g} s")
