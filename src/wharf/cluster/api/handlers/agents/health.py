"""A health check of the log that always returns within seconds."""

import asyncio
from typing import Final

from wharf.cluster.engines.port import LogEngine, LogHealth, LogUnavailable

HEALTH_TIMEOUT_S: Final = 3.0
"""Health checks are frequent and impatient: a log that does not answer within this time counts as not writable."""


async def check_engine_health(engine: LogEngine) -> LogHealth:
    """Return whether the log is writable, and its size. Never raises."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await engine.read_health()
    except LogUnavailable as error:
        return LogHealth(writable=False, why=str(error))
    except TimeoutError:
        return LogHealth(writable=False, why=f"the log has not answered for {HEALTH_TIMEOUT_S:g} s")
