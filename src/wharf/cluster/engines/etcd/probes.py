"""Finds out whether a reply of etcd is lost, while a request that must not be repeated waits for it.

A frozen member replies to nothing. A member that forwarded a write to a leader which then froze never replies to that write,
but to everything else. A slow member replies to probes, and its leader stays the same: the request then waits for its time.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import grpc  # type: ignore[import-untyped]  # gRPC carries no types.

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.world import World
from wharf.world.failover import Attempt, FailoverAddresses

PROBE_DELAY_S: Final = 0.5
"""After this time without a reply, the member is asked for its status. With the timeout, 1.75 s remain of the three in which a
write must be answered: to find out on another member whether it was committed, also on a busy machine."""
PROBE_TIMEOUT_S: Final = 0.75
"""How long a member may take for its status, which it sends without its disk or other members."""
PROBE_INTERVAL_S: Final = 0.25
"""The pause between two probes of one member: how late the election of another leader is noticed."""


class ProbedChannel(Protocol):
    """The connection to one etcd member, as far as probes use it."""

    position: int
    raft_term: int
    """The newest term that the member has named. It grows with each election of a leader."""
    status: ProtobufMessage


class _ProbedRequest:
    """A request that waits for its reply, and the term in which it was sent."""

    __slots__ = ("end", "sent_term")

    def __init__(self, sent_term: int, end: Callable[[], None]) -> None:
        self.sent_term = sent_term
        self.end = end


class ReplyProbes:
    """Asks members for their status while requests wait for them, one probe for each member at a time."""

    def __init__(self, world: World, members: FailoverAddresses) -> None:
        self._world = world
        self._members = members
        self._waiting: dict[int, dict[_ProbedRequest, None]] = {}
        """By the position of a member that is probed, the requests that wait for it, in order."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The running probes. The event loop holds tasks only by weak references."""

    @contextmanager
    def end_if_lost(
        self, channel: ProbedChannel, metadata: tuple[tuple[str, str], ...], end: Callable[[], None]
    ) -> Iterator[None]:
        """Return a context manager that calls `end` if the member is silent, or has another leader meanwhile."""
        waiting = _ProbedRequest(channel.raft_term, end)
        timer = asyncio.get_running_loop().call_later(PROBE_DELAY_S, self._add, channel, metadata, waiting)
        try:
            with self._members.watch_silence(channel.position, end):
                yield
        finally:
            timer.cancel()
            self._waiting.get(channel.position, {}).pop(waiting, None)

    def _add(self, channel: ProbedChannel, metadata: tuple[tuple[str, str], ...], waiting: _ProbedRequest) -> None:
        """Probe the member until this request has ended."""
        is_probed = channel.position in self._waiting
        self._waiting.setdefault(channel.position, {})[waiting] = None
        if not is_probed:
            task = self._world.start_task(self._probe(channel, metadata), name="probe of an etcd member")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _probe(self, channel: ProbedChannel, metadata: tuple[tuple[str, str], ...]) -> None:
        """Ask the member for its status until no request waits for it or it does not reply."""
        try:
            while self._waiting[channel.position]:
                count = self._members.get_reply_count(channel.position)
                attempt = Attempt(channel.position, PROBE_TIMEOUT_S, count)
                try:
                    status = await channel.status(messages.build_status(), timeout=PROBE_TIMEOUT_S, metadata=metadata)
                except grpc.aio.AioRpcError as error:
                    # A member that sent another reply meanwhile is slow, and its requests still wait: it is asked again.
                    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        self._members.on_silence(attempt)
                except (grpc.aio.UsageError, asyncio.CancelledError):
                    return  # The channel was closed.
                else:
                    self._members.on_reply(channel.position)
                    channel.raft_term = max(channel.raft_term, int(status.raftTerm))
                    if status.leader:
                        self._end_lost_requests(channel)
                await asyncio.sleep(PROBE_INTERVAL_S)
        finally:
            del self._waiting[channel.position]

    def _end_lost_requests(self, channel: ProbedChannel) -> None:
        """End the requests that were sent before the member got its current leader."""
        for waiting in list(self._waiting[channel.position]):
            if waiting.sent_term and waiting.sent_term < channel.raft_term:
                waiting.end()
