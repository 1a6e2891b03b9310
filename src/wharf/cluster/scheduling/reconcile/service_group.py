"""Reconciles one group of a service or batch job with its count and version (scheduling.md 5.3 to 5.10).

The steps in `_GroupReconciler.run` have Nomad's order. Each step works on the sets that the previous steps left.
"""

from collections.abc import Container, Iterable
from typing import Final

from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.classification import (
    AllocationClass,
    classify_allocation,
    get_lost_after_ns,
    get_unknown_since_ns,
    is_last_state_unknown,
    should_reconnect,
    should_replace_lost,
)
from wharf.cluster.scheduling.reconcile.input import (
    LOST_TEXT,
    MIGRATING_TEXT,
    NOT_NEEDED_TEXT,
    RECONNECTED_TEXT,
    RESCHEDULED_TEXT,
    UNKNOWN_TEXT,
    UPDATING_TEXT,
    ReconcileInput,
    add_state,
    is_replacement_owed,
)
from wharf.cluster.scheduling.reconcile.names import AllocationNames, parse_index
from wharf.cluster.scheduling.reconcile.outcome import (
    AllocationStop,
    FollowUp,
    GroupOutcome,
    PlacementRequest,
    ReplacementRequest,
)
from wharf.cluster.scheduling.reconcile.reconnects import is_obsolete, should_keep_original
from wharf.cluster.scheduling.reconcile.replacement_chain import ReplacementChain
from wharf.cluster.scheduling.reconcile.rescheduling import RescheduleSorter, RetryKind, decide_retry, has_succeeded
from wharf.cluster.scheduling.reconcile.surplus import AllocationsById, order_surplus
from wharf.cluster.scheduling.reconcile.updates import is_destructive_update
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.times import SECOND, to_ns

MIN_KILL_TIMEOUT_NS: Final = 5 * SECOND
"""The shortest time that a node may take to stop a lost allocation."""


def reconcile_group(
    reconcile_input: ReconcileInput, group: TaskGroup, allocations: Iterable[Allocation]
) -> GroupOutcome:
    """Return the stops, placements and updates that the group needs."""
    return _GroupReconciler(reconcile_input, group).run({allocation.id: allocation for allocation in allocations})


def stop_group(
    reconcile_input: ReconcileInput, name: str, group: TaskGroup | None, allocations: Iterable[Allocation]
) -> GroupOutcome:
    """Stop all active allocations of a group or job that is no longer requested."""
    outcome = GroupOutcome(name, is_complete=True)
    for allocation in allocations:
        if allocation.is_server_terminal or (allocation.is_client_terminal and not should_reconnect(allocation)):
            continue
        is_lost = classify_allocation(allocation, group, reconcile_input.tainted_nodes, reconcile_input.now_ns) in (
            AllocationClass.LOST,
            AllocationClass.EXPIRING,
        )
        outcome.stops.append(_stop_as_lost(allocation) if is_lost else AllocationStop(allocation, NOT_NEEDED_TEXT))
    outcome.update_counts = DesiredUpdates(stop=len(outcome.stops))
    return outcome


def _stop_as_lost(allocation: Allocation) -> AllocationStop:
    """Return the stop of a lost allocation."""
    return AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST)


class _GroupReconciler:
    """Reconciles one group. The fields hold what later steps need from earlier ones."""

    def __init__(self, reconcile_input: ReconcileInput, group: TaskGroup) -> None:
        self._input = reconcile_input
        self._job = reconcile_input.job
        self._group = group
        self._retries = RescheduleSorter(reconcile_input, group)
        self._outcome = GroupOutcome(group.name)
        self._counts: dict[str, int] = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
        deployment = reconcile_input.deployment
        self._is_paused = deployment is not None and deployment.status is not DeploymentStatus.RUNNING
        self._is_failed = deployment is not None and deployment.status is DeploymentStatus.FAILED
        group_state = (deployment.task_groups or {}).get(group.name) if deployment is not None else None
        self._has_known_state = group_state is not None
        self._group_state = group_state if group_state is not None else self._make_group_state()
        self._canary_ids = dict.fromkeys(self._group_state.placed_canaries or ())
        """The ids of this deployment's canaries, whatever their state."""
        self._reschedule_now: list[Allocation] = []
        """Failed allocations that are rescheduled now."""
        self._replaced_unknown: list[tuple[Allocation, int]] = []
        """Unknown allocations that are replaced but not stopped, with the time when they became unknown."""
        self._awaiting_watcher: list[Allocation] = []
        """Failed allocations about which the deployment controller has not decided."""
        self._owed_count = 0
        """How many replacements are owed: old allocations were stopped for an update, but the new ones found no
        capacity.

        They are placed even if the deployment is paused or failed.
        """
        self._counting_ids: set[str] = set()
        """The ids of allocations that are active, or failed and still count."""
        self._replacement_chain = ReplacementChain({})
        self._holds_placements = False
        """Nothing is placed for now, because a lost allocation may still run on its node."""

    @property
    def _update_policy(self) -> UpdatePolicy | None:
        """The update policy. `None`: all allocations are updated at once."""
        update = self._group.update
        return update if update is not None and update.max_parallel > 0 else None

    def _make_group_state(self) -> DeploymentGroup:
        """Return the initial deployment state of the group."""
        update = self._group.update
        if update is None:
            return DeploymentGroup()
        return DeploymentGroup(
            auto_revert=update.auto_revert, auto_promote=update.auto_promote, progress_deadline=update.progress_deadline
        )

    def run(self, allocations: AllocationsById) -> GroupOutcome:
        """Return the outcome of the group. `allocations` are all its allocations."""
        outcome = self._outcome
        self._replacement_chain = ReplacementChain(dict(allocations))
        self._counting_ids = {key for key, allocation in allocations.items() if not allocation.is_terminal}
        self._owed_count = sum(map(is_replacement_owed, allocations.values()))
        self._hold_placements_for_lost(allocations.values())
        allocations = self._drop_settled(allocations)
        canaries = self._filter_canaries(allocations)
        classes: dict[AllocationClass, AllocationsById] = {kind: {} for kind in AllocationClass}
        for allocation in allocations.values():
            classes[self._classify(allocation)][allocation.id] = allocation
        untainted = classes[AllocationClass.UNTAINTED]
        # An allocation that was stopped while its node was out of contact is not replaced when the node reconnects.
        migrating = {
            key: allocation
            for key, allocation in classes[AllocationClass.MIGRATING].items()
            if not allocation.is_server_terminal
        }
        lost = {**classes[AllocationClass.LOST], **classes[AllocationClass.EXPIRING]}
        split = self._retries.split_allocations(untainted)
        untainted, self._reschedule_now, self._awaiting_watcher = (
            split.remaining,
            split.reschedule_now,
            split.awaiting_watcher,
        )
        self._counting_ids.update(untainted, (allocation.id for allocation in self._reschedule_now))
        for follow_up in split.follow_ups:
            self._outcome.follow_ups.append(follow_up)
            self._counts["reschedule_later"] += 1
        self._handle_reconnects(classes[AllocationClass.RECONNECTING], untainted)
        self._handle_disconnects(classes[AllocationClass.DISCONNECTING], untainted)
        self._stop_migrating_with_replacement(migrating)
        untainted = {key: untainted[key] for key in allocations if key in untainted}  # Restore the order of creation.
        self._stop_lost(lost)

        is_canarying = self._group_state.desired_canaries > 0 and not self._group_state.promoted and self._is_deploying
        if is_canarying:
            # Before promotion canaries replace no other allocation, whatever their state.
            for canary_id in self._canary_ids:
                untainted.pop(canary_id, None)
        self._stop_surplus(untainted, migrating, canaries, is_canarying=is_canarying)
        destructive = self._update_in_place(untainted)
        self._stop_unneeded_unknown(untainted, destructive, len(migrating))
        counted = [allocation for allocation in untainted.values() if not self._is_unknown_and_replaced(allocation)]
        canaries_not_counted = self._canary_ids if is_canarying else {}
        self._stop_excess_failed(self._group.count - len(counted) - len(migrating), canaries_not_counted)
        rescheduled = [allocation for allocation in self._reschedule_now if allocation.id not in canaries_not_counted]
        existing = [*counted, *migrating.values(), *rescheduled]
        self._limit_unknown_replacements(max(0, self._group.count - len(existing)))
        existing += [allocation for allocation, _ in self._replaced_unknown]
        replaced_lost = [*lost.values()][: max(0, self._group.count - len(existing))]
        existing += replaced_lost
        # Every stop without a replacement is decided by now, so the name of each such allocation is free.
        names = AllocationNames(
            self._job.id, self._group.name, self._group.count, (allocation.name for allocation in existing)
        )
        self._request_canaries(destructive, canaries, names)
        is_canarying = (
            self._group_state.desired_canaries > 0
            and not self._group_state.promoted
            and self._update_policy is not None
        )
        allowed_replacements = self._count_allowed_replacements(
            untainted, destructive, migrating, is_canarying=is_canarying
        )
        missing = self._group.count - len(existing)
        self._request_placements(counted, migrating, replaced_lost, missing, names, is_canarying=is_canarying)
        # While placements are held back, missing allocations count as down, so an update may take down fewer.
        withheld = max(0, self._group.count - len(counted) - len(migrating)) if self._holds_placements else 0
        replaced = destructive[: max(0, allowed_replacements - len(outcome.placements) - withheld)]
        used_names = self._request_replacements(replaced, counted, names)
        self._request_migrations(migrating, used_names, names, is_canarying=is_canarying)
        self._set_deployment_state(allocations.values(), destructive)
        outcome.is_complete = self._is_complete(destructive, migrating)
        self._counts["ignore"] += len(destructive) - len(replaced)
        outcome.update_counts = DesiredUpdates(**self._counts)
        return outcome

    # -- classification ----------------------------------------------------------------------------------------------

    def _drop_settled(self, allocations: AllocationsById) -> AllocationsById:
        """Return the allocations without those that have ended and no longer affect what is missing."""
        relevant = {}
        for key, allocation in allocations.items():
            if self._input.is_batch:
                is_older = (allocation.job_version, allocation.job_create_index) != (
                    self._job.version,
                    self._job.create_index,
                )
                if allocation.is_terminal and is_older:
                    continue
                if allocation.is_server_terminal and not has_succeeded(allocation) and not should_reconnect(allocation):
                    continue
            elif allocation.is_server_terminal and not should_reconnect(allocation):
                continue
            relevant[key] = allocation
        return relevant

    def _classify(self, allocation: Allocation) -> AllocationClass:
        """Return the class of the allocation. Stopped batch allocations that succeeded count as untainted."""
        if self._input.is_batch and allocation.is_server_terminal and not should_reconnect(allocation):
            # Only successful ones are still here: they are done, although they were stopped.
            return AllocationClass.UNTAINTED
        return classify_allocation(allocation, self._group, self._input.tainted_nodes, self._input.now_ns)

    def _filter_canaries(self, allocations: AllocationsById) -> AllocationsById:
        """Stop canaries of earlier deployments and canaries on tainted nodes.

        Return the other canaries of this deployment.
        """
        reconcile_input = self._input
        for obsolete in [allocation for allocation in allocations.values() if self._is_obsolete_canary(allocation)]:
            del allocations[obsolete.id]
            # Failed ones are stopped too, so that they are not retried.
            if not obsolete.is_server_terminal and obsolete.client_status not in (
                ClientStatus.COMPLETE,
                ClientStatus.LOST,
            ):
                is_lost = (
                    classify_allocation(obsolete, self._group, reconcile_input.tainted_nodes, reconcile_input.now_ns)
                    is AllocationClass.LOST
                )
                self._add_stop(_stop_as_lost(obsolete) if is_lost else AllocationStop(obsolete, NOT_NEEDED_TEXT))
        if reconcile_input.deployment is None or self._is_failed:
            return {}
        canaries: AllocationsById = {}
        for canary_id in self._group_state.placed_canaries or ():
            canary = allocations.get(canary_id)
            if canary is None:
                continue
            match classify_allocation(canary, self._group, reconcile_input.tainted_nodes, reconcile_input.now_ns):
                case AllocationClass.MIGRATING:
                    self._add_stop(AllocationStop(allocations.pop(canary_id), MIGRATING_TEXT))
                case AllocationClass.LOST:
                    self._add_stop(_stop_as_lost(allocations.pop(canary_id)))
                case _:
                    canaries[canary_id] = canary
        return {key: canary for key, canary in canaries.items() if _is_active_canary(canary)}

    def _is_obsolete_canary(self, allocation: Allocation) -> bool:
        """Return whether the allocation is a canary that can no longer be promoted.

        Promotion removes the mark of a canary, so a marked canary of another deployment was never promoted.
        """
        status, deployment = allocation.deployment_status, self._input.deployment
        if status is None or not status.canary:
            return False
        return deployment is None or self._is_failed or allocation.deployment_id != deployment.id

    # -- disconnects and reconnects ----------------------------------------------------------------------------------

    def _handle_reconnects(self, reconnecting: AllocationsById, untainted: AllocationsById) -> None:
        """Decide for each reconnected allocation whether it or its replacement continues."""
        for key, original in reconnecting.items():
            if original.client_status is ClientStatus.FAILED and not original.is_server_terminal:
                self._add_stop(AllocationStop(original, RESCHEDULED_TEXT))
                continue
            if is_obsolete(original, self._job):
                self._add_stop(AllocationStop(original, NOT_NEEDED_TEXT))
                continue
            keeps_original = True
            for replacement in self._replacement_chain.iter_replacements(original):
                if replacement.is_terminal:
                    continue
                if should_keep_original(original, replacement, self._group):
                    if untainted.pop(replacement.id, None) is not None:
                        self._add_stop(AllocationStop(replacement, RECONNECTED_TEXT))
                else:
                    keeps_original = False
            if not keeps_original:
                self._add_stop(AllocationStop(original, RECONNECTED_TEXT))
                continue
            if original.client_status is not ClientStatus.UNKNOWN:
                self._outcome.reconnects.append(add_state(original, original.client_status, self._input.now_ns))
                self._counts["reconnect"] += 1
            untainted[key] = original

    def _handle_disconnects(self, disconnecting: AllocationsById, untainted: AllocationsById) -> None:
        """Mark allocations on disconnected nodes as unknown, and replace unknown allocations that are due."""
        now_ns, window = self._input.now_ns, get_lost_after_ns(self._group)
        for key, allocation in disconnecting.items():
            unknown = replace(
                add_state(allocation, ClientStatus.UNKNOWN, now_ns),
                client_status=ClientStatus.UNKNOWN,
                client_description=UNKNOWN_TEXT,
            )
            self._outcome.disconnects.append(unknown)
            self._counts["disconnect"] += 1
            if window:
                self._outcome.follow_ups.append(
                    FollowUp(unknown, now_ns + window, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)
                )
            untainted[key] = unknown
        for key, allocation in [*untainted.items()]:
            if allocation.client_status is ClientStatus.UNKNOWN and self._replace_unknown(allocation):
                untainted.pop(key)

    def _stop_migrating_with_replacement(self, migrating: AllocationsById) -> None:
        """Stop allocations that were replaced while their node was out of contact: they have migrated already."""
        for allocation in [*migrating.values()]:
            if is_last_state_unknown(allocation) and self._has_counting_replacement(allocation):
                del migrating[allocation.id]
                if not allocation.is_terminal:
                    self._add_stop(AllocationStop(allocation, MIGRATING_TEXT))

    def _replace_unknown(self, allocation: Allocation) -> bool:
        """Return whether the unknown allocation is replaced now. A later replacement gets a follow-up evaluation."""
        unknown_since_ns = get_unknown_since_ns(allocation)
        if allocation.next_allocation or unknown_since_ns is None or not should_replace_lost(self._group):
            return False
        if self._retries.waits_for_watcher(allocation):
            return False
        retry = decide_retry(allocation, self._group, self._input.now_ns, failed_at_ns=unknown_since_ns)
        if retry.kind is RetryKind.LATER:
            self._outcome.follow_ups.append(
                FollowUp(allocation, retry.due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE, is_linked=False)
            )
        if retry.kind is not RetryKind.NOW:
            return False
        self._replaced_unknown.append((allocation, unknown_since_ns))
        return True

    def _stop_lost(self, lost: AllocationsById) -> None:
        """Stop lost allocations. If their nodes stop them by themselves later, hold all placements until then."""
        wait_ns = self._get_lost_wait_ns()
        for allocation in lost.values():
            self._add_stop(_stop_as_lost(allocation))
            if wait_ns is not None:
                self._holds_placements = True
                self._outcome.follow_ups.append(
                    FollowUp(allocation, self._input.now_ns + wait_ns, EvaluationTrigger.ALLOC_FAILURE)
                )

    def _get_lost_wait_ns(self) -> int | None:
        """Return how long a disconnected node takes to stop the group's tasks, or `None` if nothing waits for it."""
        disconnect = self._group.disconnect
        if disconnect is None or disconnect.stop_on_client_after is None:
            return None
        kill_timeouts = [task.kill_timeout or 0 for task in self._group.tasks or ()]
        return disconnect.stop_on_client_after + max(MIN_KILL_TIMEOUT_NS, *kill_timeouts)

    def _hold_placements_for_lost(self, allocations: Iterable[Allocation]) -> None:
        """Hold all placements while a lost allocation may still run on its node."""
        wait_ns = self._get_lost_wait_ns()
        if wait_ns is None:
            return
        for allocation in allocations:
            if allocation.client_status is ClientStatus.LOST and not allocation.next_allocation:
                states = allocation.alloc_states or ()
                lost_at = states[-1].time if states and states[-1].value == ClientStatus.LOST else None
                lost_at_ns = to_ns(lost_at) if lost_at is not None else allocation.modify_time
                self._holds_placements = self._holds_placements or lost_at_ns + wait_ns > self._input.now_ns

    # -- surplus and updates -----------------------------------------------------------------------------------------

    def _stop_surplus(
        self, untainted: AllocationsById, migrating: AllocationsById, canaries: AllocationsById, *, is_canarying: bool
    ) -> None:
        """Stop allocations beyond the group's count. Completed ones are only no longer counted."""
        running = {
            key: allocation
            for key, allocation in untainted.items()
            if allocation.client_status is not ClientStatus.UNKNOWN
        }
        surplus = len(running) + len(migrating) - self._group.count
        if surplus <= 0:
            return
        for is_migrating, key in order_surplus(running, migrating, canaries, is_canarying=is_canarying):
            source = migrating if is_migrating else untainted
            if surplus <= 0:
                break
            allocation = source.pop(key, None)
            if allocation is None:
                continue
            # A completed allocation needs no stop: it is just not counted.
            if allocation.client_status is not ClientStatus.COMPLETE:
                self._add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
            surplus -= 1

    def _stop_unneeded_unknown(
        self, untainted: AllocationsById, destructive: list[Allocation], migrating_count: int
    ) -> None:
        """Stop unknown allocations of an older version that have a replacement, and others beyond the group's count.

        They are of no use when they reconnect. A destructive update of one would place more than the group's count.
        """
        spare = (
            sum(not self._is_unknown_and_replaced(allocation) for allocation in untainted.values())
            + migrating_count
            - self._group.count
        )
        for allocation in [
            allocation for allocation in destructive if allocation.client_status is ClientStatus.UNKNOWN
        ]:
            if not self._is_unknown_and_replaced(allocation):
                if spare <= 0:
                    continue
                spare -= 1
            destructive.remove(allocation)
            untainted.pop(allocation.id)
            self._add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))

    def _update_in_place(self, untainted: AllocationsById) -> list[Allocation]:
        """Update what can be updated in place and return the allocations that need a destructive update, by index."""
        destructive: list[Allocation] = []
        for allocation in untainted.values():
            if self._is_current(allocation):
                self._counts["ignore"] += 1
                continue
            old_job = self._input.find_job_version(allocation)
            old_group = old_job.find_group(allocation.task_group) if old_job is not None else None
            if (
                old_job is None
                or old_group is None
                or is_destructive_update(old_job, old_group, self._job, self._group)
            ):
                destructive.append(allocation)
            elif allocation.is_terminal:
                self._counts["ignore"] += 1
            elif self._input.can_update_in_place(allocation, self._group):
                self._outcome.in_place_updates.append(allocation)
                self._counts["in_place_update"] += 1
            else:
                destructive.append(allocation)
        return sorted(destructive, key=lambda allocation: parse_index(allocation.name))

    def _is_current(self, allocation: Allocation) -> bool:
        """Return whether the allocation runs the current job version."""
        return (allocation.job_version, allocation.job_create_index) == (self._job.version, self._job.create_index)

    # -- canaries, placements ----------------------------------------------------------------------------------------

    @property
    def _is_deploying(self) -> bool:
        """Whether updates are rolled out step by step."""
        return self._update_policy is not None

    def _request_canaries(
        self, destructive: list[Allocation], canaries: AllocationsById, names: AllocationNames
    ) -> None:
        """Request the missing canaries of a destructive update."""
        update = self._update_policy
        if update is None or not update.canary or not destructive or self._group_state.promoted:
            return
        if self._is_paused or self._is_failed:
            return
        self._group_state = replace(self._group_state, desired_canaries=update.canary)
        missing = update.canary - len(canaries)
        if missing <= 0 or self._holds_placements:
            return
        used_names = (canary.name for canary in canaries.values())
        for name in names.take_canary_names(missing, used_names, (allocation.name for allocation in destructive)):
            self._outcome.placements.append(PlacementRequest(name, self._job, self._group, is_canary=True))
            self._counts["canary"] += 1

    def _count_allowed_replacements(
        self,
        untainted: AllocationsById,
        destructive: list[Allocation],
        migrating: AllocationsById,
        *,
        is_canarying: bool,
    ) -> int:
        """Return how many allocations may be replaced or placed now under `max_parallel`."""
        update, deployment = self._update_policy, self._input.deployment
        if update is None or not (destructive or migrating):
            return self._group.count
        if self._is_paused or self._is_failed or is_canarying:
            return 0
        # Migrating allocations are down for a while in any case, so the update waits for them.
        migrating_count = sum(not allocation.is_terminal for allocation in migrating.values())
        if deployment is None:
            return max(0, update.max_parallel - migrating_count)
        undecided = migrating_count
        for allocation in untainted.values():
            if allocation.deployment_id != deployment.id:
                continue
            status = allocation.deployment_status
            if status is not None and status.healthy is False:
                return 0
            undecided += status is None or status.healthy is None
        return max(0, update.max_parallel - undecided)

    def _request_placements(
        self,
        counted: list[Allocation],
        migrating: AllocationsById,
        lost: list[Allocation],
        missing: int,
        names: AllocationNames,
        *,
        is_canarying: bool,
    ) -> None:
        """Place failed allocations first, then the lost ones that are replaced, then `missing` new ones."""
        can_place_new = not (self._is_paused or self._is_failed)
        deployment = self._input.deployment
        placed = 0
        used_names = {allocation.name for allocation in (*counted, *migrating.values())}
        for allocation in self._reschedule_now:
            is_of_failed_deployment = (
                self._is_failed and deployment is not None and allocation.deployment_id == deployment.id
            )
            if is_of_failed_deployment or self._holds_placements:
                continue
            placement = self._make_placement(allocation.name, allocation, is_canarying, is_reschedule=True)
            placement = _use_free_name(placement, used_names, names)
            self._outcome.placements.append(replace(placement, stop=AllocationStop(allocation, RESCHEDULED_TEXT)))
            self._counts["reschedule_now"] += 1
            placed += 1
        for allocation, unknown_since_ns in self._replaced_unknown:
            if self._holds_placements:
                continue
            placement = self._make_placement(allocation.name, allocation, is_canarying, is_reschedule=True)
            placement = _use_free_name(placement, used_names, names)
            self._outcome.placements.append(replace(placement, failed_at_ns=unknown_since_ns))
            self._counts["reschedule_now"] += 1
            placed += 1
        for allocation in lost:
            if self._holds_placements:
                break
            placement = self._make_placement(allocation.name, allocation, is_canarying)
            self._outcome.placements.append(_use_free_name(placement, used_names, names))
            placed += 1
        if not can_place_new:
            missing = min(missing, self._owed_count)
        if missing > 0 and not self._holds_placements:
            for name in names.take_names(missing):
                self._outcome.placements.append(self._make_placement(name, None, is_canarying))
            placed += missing
        self._counts["place"] += placed

    def _stop_excess_failed(self, free_slots: int, canaries_not_counted: Container[str]) -> None:
        """Stop failed allocations that would exceed the group's count if they were rescheduled."""
        rescheduled = []
        for allocation in self._reschedule_now:
            if allocation.id in canaries_not_counted:
                rescheduled.append(allocation)
            elif free_slots > 0:
                rescheduled.append(allocation)
                free_slots -= 1
            else:
                self._add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
        self._reschedule_now = rescheduled

    def _limit_unknown_replacements(self, free_slots: int) -> None:
        """Replace at most `free_slots` unknown allocations and stop the others that have an older version.

        Such an allocation is of no use when it reconnects. If it stayed, its replacement would later take the slot, but
        not the name, of an allocation that the update stops.
        """
        for allocation, _ in self._replaced_unknown[free_slots:]:
            if not self._is_current(allocation):
                self._add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
        self._replaced_unknown = self._replaced_unknown[:free_slots]

    def _is_unknown_and_replaced(self, allocation: Allocation) -> bool:
        """Return whether the allocation is unknown and an allocation that counts itself has replaced it."""
        return allocation.client_status is ClientStatus.UNKNOWN and self._has_counting_replacement(allocation)

    def _has_counting_replacement(self, allocation: Allocation) -> bool:
        """Return whether a direct or indirect replacement of the allocation still counts."""
        return any(
            replacement.id in self._counting_ids
            for replacement in self._replacement_chain.iter_replacements(allocation)
        )

    def _make_placement(
        self, name: str, previous: Allocation | None, is_canarying: bool, *, is_reschedule: bool = False
    ) -> PlacementRequest:
        """Return a placement request for the name.

        During canaries it runs an older version, except for a rescheduled canary.
        """
        status = previous.deployment_status if previous is not None else None
        if is_canarying and is_reschedule and status is not None and status.canary:
            return PlacementRequest(name, self._job, self._group, previous, is_canary=True, is_reschedule=True)
        job, group, deployment_id = self._job, self._group, ""
        if is_canarying:
            job, group, deployment_id = self._find_older_version(previous)
        return PlacementRequest(name, job, group, previous, is_reschedule=is_reschedule, deployment_id=deployment_id)

    def _find_older_version(self, previous: Allocation | None) -> tuple[Job, TaskGroup, str]:
        """Return the version that runs next to canaries: the stable one, or that of the previous allocation."""
        current = self._job, self._group, ""
        stable = self._input.find_stable_version(self._group.name)
        if stable is not None:
            job, deployment_id = stable
            group = job.find_group(self._group.name)
            if group is not None and (previous is None or job.version >= previous.job_version):
                return job, group, deployment_id
        old_job = self._input.find_job_version(previous) if previous is not None else None
        group = old_job.find_group(self._group.name) if old_job is not None else None
        if old_job is not None and group is not None and group.update is None:
            return old_job, group, ""
        return current

    def _request_replacements(
        self, replaced: list[Allocation], staying: Iterable[Allocation], names: AllocationNames
    ) -> set[str]:
        """Replace each under its own name, or under a free one if another allocation has that name too.

        Return the names that are in use.
        """
        replaced_ids = {allocation.id for allocation in replaced}
        used_names = {allocation.name for allocation in staying if allocation.id not in replaced_ids}
        for allocation in replaced:
            name = allocation.name if allocation.name not in used_names else names.take_free(allocation.name)
            used_names.add(name)
            placement = PlacementRequest(name, self._job, self._group, allocation)
            self._outcome.replacements.append(ReplacementRequest(AllocationStop(allocation, UPDATING_TEXT), placement))
            self._counts["destructive_update"] += 1
        return used_names

    def _request_migrations(
        self, migrating: AllocationsById, used_names: set[str], names: AllocationNames, *, is_canarying: bool
    ) -> None:
        """Stop and replace migrating allocations, whatever the deployment's state: their nodes must become empty.

        A promoted canary may have the name of an allocation that was not stopped for it yet.
        """
        for allocation in migrating.values():
            transition = allocation.desired_transition
            if not allocation.is_terminal:
                self._add_stop(AllocationStop(allocation, MIGRATING_TEXT), count=False)
                self._counts["migrate"] += 1
            if self._holds_placements or (transition is not None and transition.migrate_disable_placement):
                continue
            placement = self._make_placement(allocation.name, allocation, is_canarying)
            self._outcome.placements.append(_use_free_name(placement, used_names, names))

    # -- the deployment ----------------------------------------------------------------------------------------------

    def _set_deployment_state(self, allocations: Iterable[Allocation], destructive: list[Allocation]) -> None:
        """Set the group's deployment state."""
        outcome = self._outcome
        if self._input.deployment is not None:
            if self._has_known_state:
                outcome.deployment = self._group_state
            return
        total = (
            len(destructive)
            + len(outcome.in_place_updates)
            + sum(not placement.is_canary for placement in outcome.placements)
        )
        if self._update_policy is None or total == 0:
            return
        is_updating = bool(destructive or outcome.in_place_updates)
        if not is_updating and any(self._is_current(allocation) for allocation in allocations):
            return
        outcome.is_new_deployment = True
        outcome.deployment = replace(self._group_state, desired_total=total)

    def _is_complete(self, destructive: list[Allocation], migrating: AllocationsById) -> bool:
        """Return whether the group needs nothing more from its deployment."""
        outcome = self._outcome
        if (
            destructive
            or outcome.in_place_updates
            or outcome.placements
            or migrating
            or self._reschedule_now
            or self._replaced_unknown
        ):
            return False
        if any(follow_up.trigger is EvaluationTrigger.ALLOC_RESCHEDULE for follow_up in outcome.follow_ups):
            return False
        # Nobody decides on failed allocations after the deployment ends, so it must not end before.
        stopped = {stop.allocation.id for stop in outcome.stops}
        if any(_is_unhealthy(allocation) and allocation.id not in stopped for allocation in self._awaiting_watcher):
            return False
        group_state = self._group_state
        if group_state.desired_canaries and not group_state.promoted:
            return False
        return group_state.healthy_allocs >= max(group_state.desired_total, group_state.desired_canaries)

    # -- stops -------------------------------------------------------------------------------------------------------

    def _add_stop(self, stop: AllocationStop, *, count: bool = True) -> None:
        """Record a stop."""
        self._outcome.stops.append(stop)
        self._counting_ids.discard(stop.allocation.id)  # The allocation that it replaced counts again.
        if count:
            self._counts["stop"] += 1


def _use_free_name(placement: PlacementRequest, used_names: set[str], names: AllocationNames) -> PlacementRequest:
    """Return the placement with a free name if another continuing allocation has its name.

    Canaries keep their name, which they share with the allocation that they may replace.
    """
    if placement.is_canary:
        return placement
    if placement.name in used_names:
        placement = replace(placement, name=names.take_free(placement.name))
    used_names.add(placement.name)
    return placement


def _is_unhealthy(allocation: Allocation) -> bool:
    """Return whether the allocation was reported unhealthy."""
    return allocation.deployment_status is not None and allocation.deployment_status.healthy is False


def _is_active_canary(canary: Allocation) -> bool:
    """Return whether the canary runs, or failed and will be retried. No other canary takes its place meanwhile."""
    awaits_retry = canary.client_status is ClientStatus.FAILED and not canary.next_allocation
    return not canary.is_server_terminal and (awaits_retry or not canary.is_client_terminal)
