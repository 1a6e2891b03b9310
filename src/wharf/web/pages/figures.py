"""Fetches what nodes measure. A page is shown without figures if a node does not answer soon."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.transport import Unreachable

FIGURES_TIMEOUT_S: Final = 2.0
"""How long a page waits for a node. The rest of the page comes from the servers."""


async def fetch_figures(call: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what a node measures; empty if it cannot be reached, measures nothing, or takes too long."""
    try:
        async with asyncio.timeout(FIGURES_TIMEOUT_S):
            return await call
    except (RequestRefused, Unreachable, TimeoutError):
        return {}
