"""Sends requests to a real server in this process, and measures how long each holds its event loop and what it costs."""

import asyncio
import http.client
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tests.attempts import measure_slowness
from tests.bounded_work.measured_loop import MeasuredLoop, get_children_cpu_s
from tests.bounded_work.worst_requests import WorstRequest
from tests.fuzz.generated_requests import HOST
from tests.fuzz.server_records import BOOTSTRAP, NODE_SECRET
from tests.fuzz.target import Target, open_target
from wharf.agent.forked_requests import ForkedRequestWorker
from wharf.cluster.api.replies.encoding import EncodedRecordCache, ListBodyCache

MAX_HOLD_S: Final = 0.020
"""The longest time, of CPU, for which a request may hold the event loop."""
MAX_SCHEDULER_HOLD_S: Final = 0.020
"""The longest time, of CPU, for which a request may hold the loop of the brain, which plans large jobs on a thread."""
MAX_REQUEST_CPU_S: Final = 1.0
"""The CPU time of one request in all processes: the default of `api.max_request_cpu`."""
REPLY_CPU_S: Final = 0.15
"""Allowance for the CPU time of receiving the body, forking and sending the reply."""
MAX_ATTEMPTS: Final = 4
"""On a machine with other work, caches are cold and cores are shared. A request above a limit is sent again, and its best
attempt counts.
"""
TIMEOUT_S: Final = 60.0
FIRST_PART_TIMEOUT_S: Final = 0.3
"""How long the first part of an endless reply is waited for."""
SILENCE_S: Final = 1.0
"""An endless reply that sends nothing for so long has sent all that is stored."""
UPGRADE_HEADERS: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Cost(msgspec.Struct, frozen=True):
    """What a request cost."""

    hold_s: float
    holder: str
    loop_cpu_s: float
    worker_cpu_s: float
    status: int
    text: str
    body_bytes: int = 0
    scheduler_hold_s: float = 0.0
    cpu_limit_s: float = MAX_REQUEST_CPU_S + REPLY_CPU_S
    hold_limit_s: float = MAX_HOLD_S
    slowness: float = 1.0
    """The factor by which the limits grow on this processor. It is measured only if they are not kept without it."""

    @property
    def is_allowed(self) -> bool:
        return (
            self.hold_s <= self.hold_limit_s * self.slowness
            and self.scheduler_hold_s <= MAX_SCHEDULER_HOLD_S * self.slowness
            and self.cpu_s <= self.cpu_limit_s * self.slowness
        )

    @property
    def is_problem(self) -> bool:
        return not self.is_allowed or self.status in (0, 500)

    @property
    def cpu_s(self) -> float:
        return self.loop_cpu_s + self.worker_cpu_s

    def __str__(self) -> str:
        return (
            f"{self.body_bytes:,} bytes, held the loop for {self.hold_s * 1_000:.1f} ms ({self.holder}), "
            f"the scheduler for {self.scheduler_hold_s * 1_000:.1f} ms; {self.loop_cpu_s * 1_000:.0f} ms on the loop, "
            f"{self.worker_cpu_s * 1_000:.0f} ms in a worker; {self.status} {self.text}"
        )


def _rank_attempt(cost: Cost) -> tuple[bool, float]:
    return not cost.is_allowed, cost.hold_s


def keep_best_attempts(measure_all: Callable[[], list[tuple[str, Cost]]]) -> list[tuple[str, Cost]]:
    """Return the best cost of each request of a sequence that can be sent once only, each time to a new server.

    The sequence is repeated only if one of its requests is above a limit.
    """
    best = measure_all()
    for _ in range(MAX_ATTEMPTS - 1):
        if not any(cost.is_problem for _, cost in best):
            break
        pairs = zip(best, measure_all(), strict=True)
        best = [min(earlier, later, key=lambda pair: _rank_attempt(pair[1])) for earlier, later in pairs]
    return best


class Findings(msgspec.Struct, frozen=True):
    """What a probe has found, to be passed between processes."""

    problems: tuple[str, ...]
    """The requests that held the loop for too long, cost too much, or failed."""
    worst: str
    """The requests that held the loop longest, and those that cost most, for a person to read."""


class Probe:
    """Measures requests, one at a time."""

    def __init__(self, target: Target, loop: MeasuredLoop) -> None:
        self.target = target
        self.costs: list[tuple[WorstRequest, Cost]] = []
        self._loop = loop

    @property
    def ids(self) -> Any:
        return self.target.material.ids

    async def measure(self, request: WorstRequest, prepare: Callable[[], Awaitable[None]] | None = None) -> Cost:
        """Return the cost of the request. It is sent again if it is above a limit.

        `prepare` runs before each measurement, after the caches were emptied.
        """
        body = await asyncio.to_thread(request.build_body)
        best = await self._measure_once(request, body, prepare)
        for _ in range(MAX_ATTEMPTS - 1):
            if best.is_allowed or best.status == 0:
                break
            again = await self._measure_once(request, body, prepare)
            best = min(best, again, key=_rank_attempt)
        self.costs.append((request, best))
        return best

    async def measure_fresh(self, open_request: Callable[[], AbstractAsyncContextManager[WorstRequest]]) -> Cost:
        """Return the cost of a request that can be sent once, such as a deletion. A new one is opened for each attempt."""
        attempts = []
        for _ in range(MAX_ATTEMPTS):
            async with open_request() as request:
                attempts.append(await self._measure_once(request, request.build_body(), None))
            if attempts[-1].is_allowed or attempts[-1].status == 0:
                break
        best = min(attempts, key=_rank_attempt)
        self.costs.append((request, best))
        return best

    async def measure_once(self, request: WorstRequest) -> Cost:
        """Return the cost of a request that cannot be repeated, such as a deletion. `keep_best_attempts` repeats them all."""
        cost = await self._measure_once(request, await asyncio.to_thread(request.build_body), None)
        self.costs.append((request, cost))
        return cost

    async def _measure_once(
        self, request: WorstRequest, body: bytes, prepare: Callable[[], Awaitable[None]] | None
    ) -> Cost:
        self.target.server.election.allow_campaign()
        self._empty_reply_caches()
        if prepare is not None:
            await prepare()
        await self._settle()
        workers_before = get_children_cpu_s()
        self._loop.begin()
        status, text = await asyncio.to_thread(self._send, request, body)
        await self._settle()
        measured = self._loop.measurement
        cost = Cost(
            measured.longest_hold_s,
            measured.holder,
            measured.total_s,
            get_children_cpu_s() - workers_before,
            status,
            text,
            len(body),
            measured.scheduler_hold_s,
            request.cpu_limit_s or MAX_REQUEST_CPU_S + REPLY_CPU_S,
            request.hold_limit_s or MAX_HOLD_S,
        )
        return cost if cost.is_allowed else replace(cost, slowness=measure_slowness())

    def _empty_reply_caches(self) -> None:
        """Make the server forget what it has read and encoded. Otherwise a repeated read would measure a cache."""
        reads = self.target.server.api.reads
        reads._shared_replies._results.clear()
        reads._light_records._records.clear()
        encoder = reads.list_encoder
        encoder._bodies = ListBodyCache()
        encoder._encoded_records = EncodedRecordCache()
        for cached_list in encoder.cached_lists._lists.values():
            cached_list.close()
        encoder.cached_lists._lists.clear()

    async def _settle(self) -> None:
        """Let the leader finish what the request has caused."""
        for _ in range(20):
            await asyncio.sleep(0)

    def _send(self, request: WorstRequest, body: bytes) -> tuple[int, str]:
        """Send the request from a thread of its own, whose CPU time is not measured. Return status and text of its reply."""
        connection = http.client.HTTPConnection(HOST, self.target.port, timeout=TIMEOUT_S)
        headers = {"X-Cluster-Token": BOOTSTRAP}
        if request.accept_encoding:
            headers["Accept-Encoding"] = request.accept_encoding
        if request.endpoint.startswith("node."):
            headers["X-Cluster-Node-Secret"] = NODE_SECRET
        if request.is_websocket:
            headers |= UPGRADE_HEADERS
        try:
            connection.request(request.method, request.target, body, headers)
            own_socket = connection.sock
            reply = connection.getresponse()
            if not request.has_endless_reply:
                return reply.status, _read_to_end(reply)[:160].decode(errors="replace")
            if request.reads_until_silent:
                own_socket.settimeout(SILENCE_S)
                return reply.status, _read_until_silent(reply)
            own_socket.settimeout(FIRST_PART_TIMEOUT_S)
            try:
                return reply.status, reply.read1(160).decode(errors="replace")
            except TimeoutError:  # A stream may be silent.
                return reply.status, ""
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    @property
    def findings(self) -> Findings:
        problems = [f"{request}: {cost}" for request, cost in self.costs if cost.is_problem]
        return Findings(tuple(problems), self._describe_worst())

    def _describe_worst(self, count: int = 8) -> str:
        by_hold = sorted(self.costs, key=lambda each: -each[1].hold_s)[:count]
        by_cpu = sorted(self.costs, key=lambda each: -each[1].cpu_s)[:count]
        lines = [
            f"{len(self.costs)} requests",
            "longest holds:",
            *(f"  {request}: {cost}" for request, cost in by_hold),
        ]
        lines += ["most CPU time:", *(f"  {request}: {cost}" for request, cost in by_cpu)]
        return "\n".join([*lines, "replies:", *self._describe_replies()])

    def _describe_replies(self) -> Iterator[str]:
        """Yield for each endpoint how many requests got which status, and the size of the largest accepted body."""
        for name in dict.fromkeys(request.endpoint for request, _ in self.costs):
            costs = [cost for request, cost in self.costs if request.endpoint == name]
            statuses = Counter(cost.status for cost in costs)
            accepted = max((cost.body_bytes for cost in costs if cost.status < 300), default=0)
            counts = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            yield f"  {name}: {counts}; largest accepted body {accepted:,} bytes"


def _read_to_end(reply: http.client.HTTPResponse) -> bytes:
    """Return the body of a reply. A reply without an end is an error, and not a test that hangs."""
    parts: list[bytes] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while part := reply.read1(1 << 20):
        parts.append(part)
        assert time.monotonic() < deadline_s, "the reply has no end: is the endpoint marked with has_endless_reply?"
    return b"".join(parts)


def _read_until_silent(reply: http.client.HTTPResponse) -> str:
    """Read the reply until nothing arrives for `SILENCE_S`. Return how many bytes it had."""
    size = 0
    try:
        while data := reply.read1(1_000_000):
            size += len(data)
    except TimeoutError:
        pass
    return f"{size:,} bytes"


@asynccontextmanager
async def open_probe() -> AsyncIterator[Probe]:
    """Run a server whose large requests are executed in workers."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    async with open_target(make_worker=ForkedRequestWorker) as target:
        yield Probe(target, loop)
