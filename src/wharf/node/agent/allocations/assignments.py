"""What servers and the node's allocations exchange: applies assignments, and describes allocations for reports."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.nodes import messages
from wharf.node.agent.allocations.allocation import ManagedAllocation, TaskHooks
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.journal import NodeJournal, StoredAssignment
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.servers.clusters import ClusterMemory
from wharf.node.core import events

log = logging.getLogger(__name__)

MAX_HOLD_S: Final = 60.0
"""How long restored tasks wait for servers before they start all the same, so that a node whose servers are away runs its
tasks after a restart. With a journal that has lost entries they wait without a limit."""


class LocalAssignmentHandler:
    """Applies the servers' assignments on a node that runs real tasks, and builds the reports about allocations."""

    def __init__(
        self,
        manager: AllocationManager,
        journal: NodeJournal,
        files: EndedAllocationFiles,
        task_hooks: TaskHooks,
        *,
        read_monotonic_s: Callable[[], float],
        clusters: ClusterMemory | None = None,
        report_loss: Callable[[str, Mapping[str, str]], None] = lambda _message, _details: None,
    ) -> None:
        """`report_loss` receives the message and details of a node event about entries that the journal has lost."""
        self._manager = manager
        self._table = manager.table
        self._journal = journal
        self._read_monotonic_s = read_monotonic_s
        self._clusters = clusters or ClusterMemory()
        self._files = files
        self._task_hooks = task_hooks
        self._ignored_assignments: dict[str, int] = {}
        """Assignments that arrived after `AllocationManager.stop_all`, by id: their index. They are ignored."""
        self._report_loss = report_loss
        self._silent_since_s: float | None = None

    # -- assignments

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the modify index of the last assignment of this allocation; `None` if the allocation is unknown.

        Includes assignments that were ignored because the agent is stopping all tasks.
        """
        index = self._table.find_assignment_index(allocation_id)
        return index if index is not None else self._ignored_assignments.get(allocation_id)

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations that servers know and that this node has."""
        return self._table.list_allocations()

    def has_allocation(self, allocation_id: str) -> bool:
        """Return whether this node has the allocation and servers still know it."""
        return self._table.has_allocation(allocation_id)

    def is_end_acknowledged(self, allocation_id: str) -> bool:
        """Return whether servers have acknowledged that the allocation has ended."""
        return self._table.is_settled(allocation_id)

    def list_held(self) -> list[str]:
        """Return the ids of restored allocations whose tasks do not start before servers confirm them."""
        return self._manager.tasks.held_starts.list_held()

    def confirm_allocation(self, allocation_id: str) -> None:
        """Let the tasks of a held allocation start: servers know that it has not ended."""
        self._manager.tasks.held_starts.release(allocation_id)

    def end_allocations(self, assignments: Sequence[messages.Assignment]) -> None:
        """End held allocations, of which servers know that they have ended, and report the loss to operators."""
        if not assignments:
            return
        count, first_id = len(assignments), assignments[0].allocation.id
        log.error(
            "journal has lost the ends of allocations; not starting them again count=%s first=%s", count, first_id
        )
        self._report_loss(
            "The node's journal has lost the ends of allocations. Their tasks are not started again",
            {"count": str(count), "first": first_id},
        )
        for assignment in assignments:
            self._manager.end_allocation(assignment)

    def list_droppable(self, cluster_id: str, known: Container[str]) -> list[str]:
        """Return the ids of the allocations that servers do not know, without those of another cluster.

        `cluster_id` is the cluster of the servers, empty if it has no id; `known` are the allocations that they know.
        """
        ids = self.list_allocations()
        live_ids = [allocation.record.id for allocation in self._table.list_live()]
        if kept_count := self._clusters.update(cluster_id, set(ids), live_ids, known):
            log.error(
                "servers belong to another cluster and know no allocation of this node; keeping its tasks allocations=%s",
                kept_count,
            )
            self._report_loss(
                "The servers belong to another cluster and know no allocation of this node. Its tasks are kept: restore the "
                f"state of the servers, or stop the agent and delete {self._clusters.file} to end the tasks",
                {"allocations": str(kept_count)},
            )
        return [id for id in ids if id not in known and not self._clusters.is_kept(id)]

    def apply_assignment(self, assignment: messages.Assignment) -> None:
        """Start, update or stop the allocation as the assignment requires.

        An assignment of a new allocation is ignored while the agent stops all tasks; only its index is recorded.
        """
        self._journal.shared_jobs.share(assignment.job)
        assigned = assignment.allocation
        if self._table.is_settled(assigned.id):
            self._update_settled(assigned)
            return
        existing = self._table.find_unsettled(assigned.id)
        if existing is not None:
            self._update_existing(existing, assignment)
        elif self._manager.is_ending:  # Servers send it again when the node is back.
            self._ignored_assignments[assigned.id] = assigned.alloc_modify_index
        else:
            self._manager.add_allocation(assignment)

    def _update_settled(self, assigned: messages.AssignedAllocation) -> None:
        """Store the index and client status of an assignment whose allocation has ended, as servers have acknowledged.

        Report the allocation again if the servers' client status does not show that it has ended.
        """
        settled = self._journal.read_settled(assigned.id)
        self._table.store_settled(
            replace(settled, index=assigned.alloc_modify_index, client_status=assigned.client_status), assigned.id
        )
        if not assigned.client_status.is_terminal:  # Servers were restored from a snapshot that predates its end.
            self._manager.on_change(assigned.id)

    def _update_existing(self, existing: ManagedAllocation, assignment: messages.Assignment) -> None:
        """Apply a changed assignment: store it, and request a stop or start the health watch if the change requires it."""
        assigned = assignment.allocation
        spec = self._manager.build_spec(assignment)
        if [task.name for task in existing.spec.tasks] != [task.name for task in spec.tasks]:
            # The job was purged or replaced. The running tasks end by the rules of the job that they were started with.
            assignment, spec = replace(assignment, job=existing.assignment.job), existing.spec
        is_new_deployment = existing.assignment.allocation.deployment_id != assigned.deployment_id
        existing.stored_assignment, existing.spec = StoredAssignment(assigned.id, assignment), spec
        if assigned.desired_status is not DesiredStatus.RUN:
            desired_transition = assigned.desired_transition
            skips_delays = desired_transition is not None and bool(desired_transition.no_shutdown_delay)
            self._manager.handle_event(assigned.id, events.AllocationStopRequested(skips_delays=skips_delays))
        elif is_new_deployment:
            self._manager.handle_event(assigned.id, events.HealthWatchStarted())
        # Stored after its effects, because an assignment that is in the journal is not applied again after a crash.
        self._journal.append_entry(existing.stored_assignment)

    def drop_allocation(self, allocation_id: str) -> None:
        """Request the stop of an allocation that servers no longer know; delete it at once if it has already ended."""
        if self._table.remove_settled(allocation_id):
            self._manager.delete_files_and_entries(allocation_id)
            return
        allocation = self._table.get_unsettled(allocation_id)
        allocation.stored_assignment = StoredAssignment(allocation_id, allocation.assignment, is_gone=True)
        self._manager.handle_event(allocation_id, events.AllocationStopRequested())
        if self._table.find_unsettled(allocation_id) is not None:
            self._journal.append_entry(allocation.stored_assignment)
        self._manager.delete_if_ended(allocation)

    # -- reports

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        """Return the report about the allocation: status, task states, health, log tails, services and addresses.

        The allocation must be known. Reading the log tails also caches them in the allocation.
        """
        allocation = self._table.find(allocation_id)
        assert allocation is not None, "the caller has checked has_allocation"
        record = allocation.record
        if not record.tasks and allocation.assignment.allocation.client_status.is_terminal:
            # It had ended before this node received it. Only servers declare an allocation lost.
            status = allocation.assignment.allocation.client_status
            status = status if status is not ClientStatus.LOST else ClientStatus.COMPLETE
        else:
            status = record.status
        return messages.AllocationUpdate(
            id=allocation_id,
            client_status=status,
            client_description=record.description if record.tasks else "",
            task_states={task.name: task.to_task_state() for task in record.tasks} if record.tasks else None,
            deployment_status=(
                AllocDeploymentStatus(healthy=record.is_healthy) if record.is_healthy is not None else None
            ),
            log_tails=self._files.read_log_tails(allocation),
            outputs=self._files.read_outputs(record),
            services=self._list_services(allocation),
            network_status=self._task_hooks.find_network_status(allocation_id),
        )

    def _list_services(self, allocation: ManagedAllocation) -> tuple[ServiceRegistration, ...]:
        """Return the registrations of the allocation's services; none after an unexpected error, which is logged.

        Otherwise one allocation would keep the node from reporting all others.
        """
        try:
            return self._task_hooks.list_services(allocation)
        except Exception:
            log.exception("listing the services of an allocation failed allocation=%s", allocation.record.id)
            return ()

    async def wait_until_stored(self) -> None:
        """Wait until every journal entry that was appended before this call is on the disk."""
        await self._journal.wait_until_synced()

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """Replace an ended allocation by a short journal entry, and release the hooks' data about its tasks.

        Does nothing if the allocation still runs or is unknown.
        """
        allocation = self._table.find_unsettled(allocation_id)
        if allocation is not None and allocation.record.is_over:
            self._table.settle(allocation)
            self._task_hooks.release(allocation.record.id, tuple(task.name for task in allocation.record.tasks))

    # -- contact with servers

    def on_server_contact(self) -> None:
        """End a loss of contact: apply `ServerContactRestored` to allocations that stop after such a loss."""
        if self._silent_since_s is not None:
            self._silent_since_s = None
            self._apply_to_contact_limited(events.ServerContactRestored())

    def on_server_silence(self, since_s: float) -> None:
        """Begin a loss of contact: apply `ServerContactLost` to allocations that stop after such a loss.

        `since_s` is the time at which contact was lost, in seconds of the monotonic clock. Repeated calls have no effect.
        """
        if self._silent_since_s is None:
            self._silent_since_s = since_s
            self._apply_to_contact_limited(events.ServerContactLost(since_s))
        if not self._journal.damage_text and self._read_monotonic_s() - since_s >= MAX_HOLD_S:
            if held := self.list_held():
                log.warning("servers do not answer; restored tasks start all the same allocations=%s", len(held))
            for allocation_id in held:
                self.confirm_allocation(allocation_id)

    def _apply_to_contact_limited(self, event: events.AllocationEvent) -> None:
        """Apply an event to every running allocation that has a limit on how long servers may be out of contact."""
        for allocation in self._table.list_unsettled():
            if not allocation.record.is_over and allocation.spec.stop_after_contact_lost_s is not None:
                self._manager.handle_event(allocation.record.id, event)
