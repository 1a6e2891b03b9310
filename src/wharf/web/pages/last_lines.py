"""The last lines that a failed allocation has printed, for the pages that say that it failed."""

import asyncio
from typing import Final

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.web.log_reader import read_end
from wharf.web.views.logs import LineView, build_line_view, select_sources, share_lines
from wharf.web.views.states import ListedAllocation

MAX_LAST_LINES: Final = 12
"""Lines that are shown, of all tasks together. The page of logs has all."""
MAX_LAST_BYTES: Final = 8 << 10
MAX_LOGS: Final = 6
"""Logs that are read: both outputs of three tasks. Each is a request to a node."""
WITHIN_S: Final = 2.0
"""How long a page waits for these lines. It is useful without them."""


async def read_last_lines(
    client: AsyncClient, allocation: ListedAllocation, *, max_lines: int = MAX_LAST_LINES, max_logs: int = MAX_LOGS
) -> tuple[LineView, ...]:
    """Return the last lines of a failed allocation; none of other allocations, or if the node does not send them in time."""
    lines, _ = await read_last_output(client, allocation, max_lines=max_lines, max_logs=max_logs)
    return lines


async def read_last_output(
    client: AsyncClient, allocation: ListedAllocation, *, max_lines: int = MAX_LAST_LINES, max_logs: int = MAX_LOGS
) -> tuple[tuple[LineView, ...], str]:
    """Return the last lines of a failed allocation, and why there are none, such as a missing right; empty if there are."""
    if allocation.client_status is not ClientStatus.FAILED:
        return (), ""
    sources, _ = select_sources((allocation,), {})
    try:
        async with asyncio.timeout(WITHIN_S):
            parts = await asyncio.gather(
                *(
                    read_end(client, source, max_lines=max_lines, max_bytes=MAX_LAST_BYTES)
                    for source in sources[:max_logs]
                )
            )
    except TimeoutError:
        return (), f"the node has not sent it within {WITHIN_S:g} s"
    lines = tuple(build_line_view(line) for part in share_lines(parts, max_lines) for line in part.lines)
    problem = next((part.problem for part in parts if part.problem), "")
    return lines, "" if lines else problem
