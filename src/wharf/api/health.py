"""Whether the log can be written, told within seconds whatever hangs."""

import asyncio
from typing import Final

from wharf.engines.port import Engine, Health, Unavailable

HEALTH_WITHIN_S: Final = 3.0
"""Whoever asks for our health asks often and waits little: a log that hangs is told as such."""


async def health_of(engine: Engine) -> Health:
    try:
        async with asyncio.timeout(HEALTH_WITHIN_S):
            return await engine.health()
    except Unavailable as away:
        return Health(writable=False, why=str(away))
    except TimeoutError:
        return Health(writable=False, why=f"the log has not answered for {HEALTH_WITHIN_S:g} s")
