"""Whether the log can be written, told within seconds whatever hangs."""

import asyncio
from typing import Final

from wharf.cluster.engines.port import LogEngine, LogHealth, LogUnavailable

HEALTH_TIMEOUT_S: Final = 3.0
"""Whoever asks for our health asks often and waits little: a log that hangs is told as such."""


async def check_engine_health(engine: LogEngine) -> LogHealth:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await engine.read_health()
    except LogUnavailable as away:
        return LogHealth(writable=False, why=str(away))
    except TimeoutError:
        return LogHealth(writable=False, why=f"the log has not answered for {HEALTH_TIMEOUT_S:g} s")
