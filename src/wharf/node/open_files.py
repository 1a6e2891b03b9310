"""Divides the open files of the node agent, so that no namespace can use up those that other namespaces and the agent need.

Decision record 0180 has the reasons and the limits.
"""

import asyncio
from collections import Counter, deque
from typing import Final, NamedTuple

MAX_COMMANDS: Final = 256
"""Commands that callers run on this node at a time. Each is a process with pipes, and takes up to 3 MB of the agent while it
does not read its input or its output is not read."""
MAX_STREAMS: Final = 512
"""Files and logs that callers read or follow at a time."""
MAX_PROBES: Final = 256
"""Checks of services that are probed at a time. Others wait for a slot."""
MAX_API_CONNECTIONS: Final = 1_000
"""Connections of all tasks to the API through sockets of the node agent."""
FILES_OF_COMMAND: Final = 6
"""Open files of a command: three pipes, its process, and two while it starts or ends."""
FILES_OF_STREAM: Final = 3
"""Open files of a reader: the folder of the logs, a log file, and the next one."""
FILES_OF_PROBE: Final = 6
"""Open files of a probe: those of the command of a script check."""
FILES_OF_API_CONNECTION: Final = 2
"""Open files of a connection of a task to the API: one to the task and one to a server."""
SHARE_PARTS: Final = 8
"""The open files are divided into eighths. Two are not given to anyone: they start tasks and send reports."""


class OpenFileLimits(NamedTuple):
    """How many uses of open files of each kind a node agent permits at a time."""

    commands: int = MAX_COMMANDS
    streams: int = MAX_STREAMS
    probes: int = MAX_PROBES
    api_connections: int = MAX_API_CONNECTIONS


def divide_open_files(max_open_files: int) -> OpenFileLimits:
    """Return the limits for an agent that may open this number of files; -1: any number."""
    if max_open_files < 0:
        return OpenFileLimits()
    eighth = max_open_files // SHARE_PARTS
    return OpenFileLimits(
        commands=min(MAX_COMMANDS, max(1, 2 * eighth // FILES_OF_COMMAND)),
        streams=min(MAX_STREAMS, max(1, eighth // FILES_OF_STREAM)),
        probes=min(MAX_PROBES, max(1, eighth // FILES_OF_PROBE)),
        api_connections=min(MAX_API_CONNECTIONS, max(1, 2 * eighth // FILES_OF_API_CONNECTION)),
    )


class FairSlots:
    """A limited number of slots for several owners, such as namespaces.

    An owner may take another slot while it has fewer than are free. So a single owner can take half of the slots, the next
    one half of the rest, and an owner without slots can always take one unless very many owners share them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used_counts: Counter[str] = Counter()
        self._used_count = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def count_used(self, owner: str) -> int:
        """Return how many slots the owner has."""
        return self._used_counts[owner]

    def try_take(self, owner: str) -> bool:
        """Take a slot, if the owner may have another one. Return whether it has taken one."""
        if not self._may_take(owner):
            return False
        self._used_counts[owner] += 1
        self._used_count += 1
        return True

    async def take(self, owner: str) -> None:
        """Take a slot as soon as the owner may have another one. Its waiting callers get slots in their order."""
        self._remove_canceled(owner)
        if owner not in self._waiting and self.try_take(owner):
            return
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(grant)
        try:
            await grant
        except asyncio.CancelledError:
            if not grant.cancelled():  # It has received the slot at the same time.
                self.release(owner)
            raise

    def release(self, owner: str) -> None:
        """Give back a slot that the owner has taken, and pass it to a waiting caller that may have it."""
        self._used_count -= 1
        self._used_counts[owner] -= 1
        if not self._used_counts[owner]:
            del self._used_counts[owner]
        for waiting_owner in sorted(self._waiting, key=self._used_counts.__getitem__):
            self._remove_canceled(waiting_owner)
            if waiting_owner in self._waiting and self.try_take(waiting_owner):
                queue = self._waiting[waiting_owner]
                queue.popleft().set_result(None)
                if not queue:
                    del self._waiting[waiting_owner]

    def _may_take(self, owner: str) -> bool:
        return self._used_counts[owner] < self.limit - self._used_count

    def _remove_canceled(self, owner: str) -> None:
        """Remove the first callers of the owner that no longer wait."""
        queue = self._waiting.get(owner)
        while queue and queue[0].done():
            queue.popleft()
        if queue is not None and not queue:
            del self._waiting[owner]
