"""Combines writes about many nodes into one: registrations, changes of status, and reports. While one write is in
flight, the next ones are gathered.

Each request is decided as if it were alone, and is answered when the write is committed. A write contains requests of
one kind only, because its kind names the events that it publishes. A request that does not fit this scheme (a forbidden
transition, a refused service, a refusal, a conflict, too large) is left to the caller, who writes it alone.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Final

from wharf.cluster.engines.port import Committed
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.leader.term import CHANGES_PER_JOB, LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.array_attempts import CHUNK_ELEMENTS
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext
from wharf.world import World

log = logging.getLogger(__name__)

NodeOperation = Callable[[Replica, DecisionContext], Decision[NodeWriteResult]]

CHANGES_PER_DEPLOYMENT: Final = 1
"""Derived changes of a deployment whose allocations change."""
CHANGES_PER_ATTEMPT: Final = 2
"""Derived changes of an attempt whose elements end: its cancellation, and the evaluation that begins the next elements."""


MAX_OUTPUT_BYTES_PER_WRITE: Final = 512 * 1024
"""Text outputs of steps in one write. Each is written a second time with the other outputs of its step, and etcd accepts 1.5 MB."""


class NodeWriteKind(enum.Enum):
    """A kind of write about nodes. The values are the kinds of write in the log."""

    REGISTRATION = "node-registered"
    STATUS = "node-updated"
    REPORT = "node-reported"


class _PendingNodeWrite:
    """A request of a node that waits to be written.

    `future`: its result, or `None` if the caller must write it alone.
    """

    __slots__ = ("decide", "future", "kind", "node_id")

    def __init__(
        self,
        kind: NodeWriteKind,
        node_id: str,
        decide: NodeOperation,
        future: "asyncio.Future[NodeWriteResult | None]",
    ) -> None:
        self.kind = kind
        self.node_id = node_id
        self.decide = decide
        self.future = future

    def resolve(self, result: NodeWriteResult | None) -> None:
        """Give the waiting caller its result, unless it already has one."""
        if not self.future.done():
            self.future.set_result(result)


class NodeWriteBatcher:
    """Writes the requests of many nodes in one write. A background task of the leader runs it."""

    def __init__(self, world: World, follower: Follower, writer: Writer, term: LeaderTerm) -> None:
        self._world = world
        self._follower = follower
        self._writer = writer
        self._term = term
        self._pending: list[_PendingNodeWrite] = []
        self._arrival_event = asyncio.Event()
        self._is_running = False

    async def add(self, kind: NodeWriteKind, node_id: str, decide: NodeOperation) -> NodeWriteResult | None:
        """Write the request together with others of its kind, and return its result once it is committed.

        Returns `None` if the caller must write it alone. `decide` decides what the request changes.
        """
        if not self._is_running:
            return None
        pending = _PendingNodeWrite(kind, node_id, decide, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._arrival_event.set()
        return await pending.future

    async def run(self) -> None:
        """Write pending requests in batches while this server leads.

        At the end, callers of pending requests get `None`.
        """
        self._is_running = True
        try:
            while self._term.is_leading:
                self._arrival_event.clear()
                while self._pending:
                    await self._write_pending()
                await self._arrival_event.wait()
        finally:
            self._is_running = False
            requests, self._pending = self._pending, []
            for request in requests:
                request.resolve(None)

    async def _write_pending(self) -> None:
        """Write one batch of pending requests, at most one of each node. Those that do not fit stay pending.

        A request whose outcome is not known as committed is resolved with `None`: its sender (the caller of `add`) must
        write it alone.
        """
        requests: list[_PendingNodeWrite] = []
        try:
            async with self._term.write_lock:
                requests, self._pending = _split_batch(self._pending)
                remaining = await self._write(requests)
                self._pending[:0] = remaining
                requests = requests[: len(requests) - len(remaining)]
        finally:
            # Has no effect on requests that have a result. The callers of the others decide them again and write them
            # alone. That is safe even if they were committed: a request that was applied changes nothing the second time.
            for request in requests:
                request.resolve(None)

    async def _write(self, requests: Sequence[_PendingNodeWrite]) -> Sequence[_PendingNodeWrite]:
        """Decide the requests, commit those that fit in one write, and resolve them with their results.

        Return the requests at the end for which the write had no space. The caller holds the write lock of the leader,
        so no other decision comes in between. Other tasks run between two decisions if they take long.
        """
        if not requests or not self._term.is_leading:
            return ()
        batch = _BatchWrite(requests[0].kind, self._term.max_changes)
        unchanged: list[_PendingNodeWrite] = []
        remaining: Sequence[_PendingNodeWrite] = ()
        began_s = self._world.cpu_s()
        for position, request in enumerate(requests):
            if self._world.cpu_s() - began_s >= SLICE_S:
                await asyncio.sleep(0)
                began_s = self._world.cpu_s()
            try:
                decision = request.decide(self._follower.replica, self._writer.read_clock())
            except (Refusal, InvalidTransition):
                continue
            if decision.has_rejected_parts:
                continue
            if decision.write is None:
                unchanged.append(request)
            elif not batch.add(request, decision.write, decision) and batch.entries:
                remaining = requests[position:]
                break
        try:
            await self._commit(batch)
            await self._confirm(unchanged)
        except Refusal as refusal:
            log.debug("write of several nodes failed, writing them one by one reason=%s", refusal.text)
        return remaining

    async def _commit(self, batch: "_BatchWrite") -> None:
        """Commit the batch, unless it is empty, and resolve its requests. Raises `Refusal`."""
        if not batch.entries:
            return
        outcome = await self._term.commit(batch.write())
        if isinstance(outcome, Committed):
            for request, decision in batch.entries:
                request.resolve(decision.build_reply(outcome.index))

    async def _confirm(self, requests: Sequence[_PendingNodeWrite]) -> None:
        """Resolve requests that change nothing. One barrier of the log serves all of them. Raises `Refusal`.

        Before the barrier, the replica may lack a write by which such a request does change something.
        """
        if not requests:
            return
        await self._writer.catch_up()
        if not self._term.is_leading:
            return
        began_s = self._world.cpu_s()
        for request in requests:
            if self._world.cpu_s() - began_s >= SLICE_S:
                await asyncio.sleep(0)
                began_s = self._world.cpu_s()
            try:
                decision = request.decide(self._follower.replica, self._writer.read_clock())
            except (Refusal, InvalidTransition):
                continue
            if decision.write is None and not decision.has_rejected_parts:
                request.resolve(decision.build_reply(self._follower.replica.index))


class _BatchWrite:
    """A write that is put together from the writes of several requests, as long as it fits with its derived changes."""

    def __init__(self, kind: NodeWriteKind, max_changes: int) -> None:
        self.entries: list[tuple[_PendingNodeWrite, Decision[NodeWriteResult]]] = []
        self._kind = kind
        self._changes: list[PutRecord | DeleteRecord] = []
        self._conditions: dict[tuple[str, str], Condition] = {}
        """By table and key. Requests share conditions, such as that on the cluster version."""
        self._evaluated_jobs: dict[tuple[str, str], None] = {}
        self._derived_changes: dict[object, int] = {}
        """The number of derived changes, such as job summaries, by job and by deployment."""
        self._max_changes = max_changes
        self._output_bytes = 0

    def add(self, request: _PendingNodeWrite, write: Write, decision: Decision[NodeWriteResult]) -> bool:
        """Add the write of a request, unless it evaluates a job that another request already evaluates, or was decided
        on another version of a record than another request.

        Return whether there was space for it.
        """
        derived_changes: dict[object, int] = {}
        evaluated_jobs: dict[tuple[str, str], None] = {}
        output_bytes = self._output_bytes
        for change in write.changes:
            record = change.record if isinstance(change, PutRecord) else None
            if isinstance(record, Allocation | Evaluation):
                job = (record.namespace, record.job_id)
                derived_changes["job", job] = CHANGES_PER_JOB
                if isinstance(record, Allocation) and record.array_attempt:
                    derived_changes["array", job, record.array_attempt] = CHANGES_PER_ATTEMPT
                    chunk = parse_index(record.name) // CHUNK_ELEMENTS
                    derived_changes["results", job, record.array_attempt, record.task_group, chunk] = 1
                    if record.output_texts:
                        output_bytes += len(record.output_texts)
                        derived_changes["outputs", job, record.array_attempt, record.task_group] = 1
                if record.deployment_id:
                    derived_changes["deployment", record.deployment_id] = CHANGES_PER_DEPLOYMENT
                if isinstance(record, Evaluation):
                    evaluated_jobs[job] = None
        if evaluated_jobs.keys() & self._evaluated_jobs.keys():
            return True
        conditions = {(each.table, each.key): each for each in write.conditions}
        if any(self._conditions.get(key, condition) != condition for key, condition in conditions.items()):
            return True
        all_derived_changes = {**self._derived_changes, **derived_changes}
        derived_count = sum(all_derived_changes.values())
        all_conditions = {**self._conditions, **conditions}
        if max(len(self._changes) + len(write.changes), len(all_conditions)) + derived_count > self._max_changes:
            return False
        if self.entries and output_bytes > MAX_OUTPUT_BYTES_PER_WRITE:
            return False
        self._output_bytes = output_bytes
        self._derived_changes = all_derived_changes
        self._evaluated_jobs |= evaluated_jobs
        self._changes += write.changes
        self._conditions = all_conditions
        self.entries.append((request, decision))
        return True

    def write(self) -> Write:
        """Return the combined write. Its cause names the first node and the number of others."""
        first_node, remaining_count = self.entries[0][0].node_id, len(self.entries) - 1
        cause = Cause(CauseKind.NODE, f"{first_node} and {remaining_count} more" if remaining_count else first_node)
        return Write(self._kind.value, cause, self._changes, list(self._conditions.values()))


def _split_batch(pending: Sequence[_PendingNodeWrite]) -> tuple[list[_PendingNodeWrite], list[_PendingNodeWrite]]:
    """Return the requests of the next batch, and the later ones.

    The batch contains the first request of each node, if it is of the same kind as the oldest one. Later requests of a
    node must wait for its first one to be written.
    """
    batch: list[_PendingNodeWrite] = []
    later: list[_PendingNodeWrite] = []
    seen_nodes: dict[str, None] = {}
    for request in pending:
        if request.future.done():  # The caller was cancelled.
            continue
        is_first_of_node = request.node_id not in seen_nodes
        seen_nodes[request.node_id] = None
        if is_first_of_node and (not batch or request.kind is batch[0].kind):
            batch.append(request)
        else:
            later.append(request)
    return batch, later
