"""The endpoint that shows the queue of jobs that wait for capacity. It reads the replica, not the leader's scheduler."""

from collections.abc import Callable
from typing import Final

from wharf.cluster.api.handlers.quotas import visit_allocations
from wharf.cluster.api.lists.listing import ALL_NAMESPACES
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ReadHandler, SlicedValue
from wharf.cluster.operations import waiting_queue
from wharf.cluster.scheduling.blocked.retry_order import BlockedEntry, build_blocked_entry
from wharf.cluster.scheduling.capacity.fair_share import NamespaceUsage
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, EVALUATIONS_BY_STATUS, NAMESPACES, NODES
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.acl.permissions import READ_NODE
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.resource_usage import Usage, get_resources_usage
from wharf.contract.model.waiting_queue import JobQueue, QueueReasons
from wharf.contract.wire.evaluations import DEFAULT_QUEUE_ENTRIES, MAX_QUEUE_ENTRIES

USAGE_AGE_S: Final = 5.0
"""How long the usage of namespaces is used again. To add up 100,000 allocations takes a tenth of a second of CPU time."""
EVALUATIONS_PER_CHECK: Final = 20
"""Waiting evaluations that are read before the CPU time is checked: about a quarter of a millisecond."""


class QueueReads:
    """Reads the queue of waiting jobs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._usage: NamespaceUsage | None = None
        self._usage_at_s = 0.0

    def read_queue(self, replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
        """Return the waiting jobs that the caller may read, in the order in which they are retried."""
        first_place = request.get_number("place", default=1)
        limit = request.get_number("limit", default=DEFAULT_QUEUE_ENTRIES)
        if first_place < 1:
            raise invalid_request(f"place: the first place is 1, got {first_place}")
        if not 1 <= limit <= MAX_QUEUE_ENTRIES:
            raise invalid_request(f"limit: expected a number from 1 to {MAX_QUEUE_ENTRIES}, got {limit}")
        is_visible = _build_visibility(request, options.namespace)

        async def build(work: SlicedWork) -> JobQueue:
            usage = await self._get_usage(replica, work)
            fleet_total = await _sum_fleet(replica, work)
            entries = await _read_blocked(replica, fleet_total, work)
            shares = {
                name: waiting_queue.get_namespace_share(replica, name, usage.get_usage(name), fleet_total)
                for name in {entry.namespace: None for entry in entries}
            }
            views = waiting_queue.build_share_views(entries, shares, is_visible)
            visible = frozenset(view.namespace for view in views)
            placed = await work.run_off_loop(
                lambda _is_over: waiting_queue.select_places(
                    entries, shares, visible.__contains__, first_place=first_place, limit=limit
                )
            )
            shows_nodes = request.has_permission(READ_NODE)
            built = []
            work.restart()
            for each in placed:  # The elements of an array of 100,000 are counted in about a millisecond.
                built.append(waiting_queue.build_queue_entry(replica, each, shows_nodes=shows_nodes))
                if work.is_slice_over():
                    await work.pause()
            pending, delayed = await _count_pending(replica, self._server.world.now_ns(), work)
            return JobQueue(
                entries=tuple(entry for entry in built if entry is not None),
                count=len(entries),
                pending=pending,
                delayed=delayed,
                shares=views,
            )

        tables = (EVALUATIONS, ALLOCATIONS, NAMESPACES, NODES)
        return ReadResult(
            SlicedValue(build), replica.get_last_change(*tables), [watch_table(EVALUATIONS), watch_table(NAMESPACES)]
        )

    def read_reasons(self, replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
        """Return how many jobs that the caller may read wait for capacity, by their reasons."""
        is_visible = _build_visibility(request, options.namespace)

        async def build(work: SlicedWork) -> QueueReasons:
            counter = waiting_queue.ReasonCounter()
            work.restart()
            for evaluations in replica.iter_index_in_steps(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED):
                for number, evaluation in enumerate(evaluations, start=1):
                    if is_visible(evaluation.namespace):
                        counter.add(evaluation)
                    if not number % EVALUATIONS_PER_CHECK and work.is_slice_over():
                        await work.pause()
                if work.is_slice_over():
                    await work.pause()
            return counter.build_reasons()

        return ReadResult(SlicedValue(build), replica.get_last_change(EVALUATIONS), [watch_table(EVALUATIONS)])

    async def _get_usage(self, replica: Replica, work: SlicedWork) -> NamespaceUsage:
        """Return what the namespaces use, up to `USAGE_AGE_S` ago."""
        now_s = self._server.world.monotonic_s()
        if self._usage is None or now_s >= self._usage_at_s + USAGE_AGE_S:
            usage = NamespaceUsage()
            await visit_allocations(
                replica, lambda allocation: usage.apply_change(None, allocation, get_resources_usage), work
            )
            self._usage, self._usage_at_s = usage, now_s
        return self._usage


def _build_visibility(request: Request, requested: str) -> Callable[[str], bool]:
    """Return the test of whether the caller requested a namespace and may read its jobs."""
    known: dict[str, bool] = {}

    def is_visible(namespace: str) -> bool:
        if namespace not in known:
            is_requested = requested in (ALL_NAMESPACES, namespace)
            known[namespace] = is_requested and request.has_permission(namespace=namespace)
        return known[namespace]

    return is_visible


async def _sum_fleet(replica: Replica, work: SlicedWork) -> Usage:
    """Return the CPU and memory of all nodes together."""
    total = Usage()
    work.restart()
    for nodes in replica.iter_all_in_steps(NODES):
        total = total + waiting_queue.sum_capacity(nodes)
        if work.is_slice_over():
            await work.pause()
    return total


async def _read_blocked(replica: Replica, fleet_total: Usage, work: SlicedWork) -> list[BlockedEntry]:
    """Return all evaluations that wait for capacity."""
    entries: list[BlockedEntry] = []
    work.restart()
    for evaluations in replica.iter_index_in_steps(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED):
        for number, evaluation in enumerate(evaluations, start=1):
            entries.append(build_blocked_entry(replica, evaluation, fleet_total))
            if not number % EVALUATIONS_PER_CHECK and work.is_slice_over():
                await work.pause()
        if work.is_slice_over():
            await work.pause()
    return entries


async def _count_pending(replica: Replica, now_ns: int, work: SlicedWork) -> tuple[int, int]:
    """Return how many evaluations are not processed yet, and how many of these are not due."""
    pending = delayed = 0
    work.restart()
    for evaluations in replica.iter_index_in_steps(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING):
        pending += len(evaluations)
        delayed += sum(_is_delayed(evaluation, now_ns) for evaluation in evaluations)
        if work.is_slice_over():
            await work.pause()
    return pending, delayed


def _is_delayed(evaluation: Evaluation, now_ns: int) -> bool:
    return evaluation.wait_until is not None and evaluation.wait_until.timestamp() * 1e9 > now_ns


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = QueueReads(server)
    return {"evaluation.queue": reads.read_queue, "evaluation.queue_reasons": reads.read_reasons}
