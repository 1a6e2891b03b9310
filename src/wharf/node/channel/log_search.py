"""Handles requests to search the logs of allocations."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.wire.allocations.log_search import LineSearch, LogSearch, check_search
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.files.folder import ReadOnlyFolder
from wharf.node.files.log_search import search_log
from wharf.node.files.streams import has_log
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.threads import ThreadGroup, run_in_thread

MAX_SEARCHED_BYTES: Final = 256 << 20
"""How much of the end of a log one request searches: about a second of a core. Nodes keep 100 MB of a log by default."""
MAX_SEARCH_S: Final = 10.0
"""How long one search waits and runs. A slow disk must not keep the threads from other searches."""
LOG_STREAMS: Final = ("stdout", "stderr")


class LogSearchHandlers:
    """Handles requests to search logs. `is_over` and `has_started` are those of `FileHandlers`."""

    def __init__(
        self, folders: AllocationFolders, is_over: Callable[[str, str], bool], has_started: Callable[[str, str], bool]
    ) -> None:
        self._folders = folders
        self._is_over = is_over
        self._has_started = has_started

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers by verb of the node channel."""
        return {"fs_search": self._search}

    async def _search(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the lines of a log that contain a text as JSON. Raises `Refusal` as the request for a log does."""
        parameters = request.parameters
        task, stream, text = (str(parameters.get(name, "")) for name in ("task", "type", "text"))
        limit = parameters.get("limit", 0)
        max_lines = check_search(text, limit if isinstance(limit, int) else 0)
        if stream not in LOG_STREAMS:
            raise invalid_request('log type must be "stdout" or "stderr"')
        folder = ReadOnlyFolder(self._folders.get_allocation_folder(request.about))
        is_over = self._is_over(request.about, task)
        if not has_log(folder, task, stream):
            if is_over or not self._has_started(request.about, task):
                raise not_found(f'task "{task}" not started yet. No logs available')
            return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(LogSearch()))
        search = LineSearch(text.encode(), max_lines=max_lines)
        stopped = await search_on_thread(folder, task, stream, search)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(search.build_reply(stopped)))


async def search_on_thread(folder: ReadOnlyFolder, task: str, stream: str, search: LineSearch) -> str:
    """Search a log on a thread. Return why the search ended before the beginning of the log; empty if it is complete.

    A canceled search ends after its current block.
    """
    stop = threading.Event()
    timer = asyncio.get_running_loop().call_later(MAX_SEARCH_S, stop.set)
    try:
        is_whole = await run_in_thread(
            ThreadGroup.LOG_SEARCH,
            search_log,
            folder,
            task,
            stream,
            search,
            max_bytes=MAX_SEARCHED_BYTES,
            should_stop=stop.is_set,
        )
        if is_whole:
            return ""
        return (
            f"the search ended after {MAX_SEARCH_S:g} s"
            if stop.is_set()
            else f"the search read only the last {MAX_SEARCHED_BYTES >> 20} MB"
        )
    finally:
        timer.cancel()
        stop.set()
