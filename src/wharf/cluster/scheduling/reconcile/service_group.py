"""Reconciles one group of a service or batch job with its count and version (scheduling.md 5.3 to 5.10).

The steps have Nomad's order. They are in the modules that are named after what they decide.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.canaries import request_canaries, stop_unusable_canaries
from wharf.cluster.scheduling.reconcile.classification import AllocationClass, classify_allocation, should_reconnect
from wharf.cluster.scheduling.reconcile.disconnects import (
    handle_disconnects,
    handle_reconnects,
    hold_placements_for_lost,
    limit_unknown_replacements,
    stop_lost,
    stop_migrating_with_replacement,
)
from wharf.cluster.scheduling.reconcile.group_state import AllocationsById, GroupState, stop_as_lost
from wharf.cluster.scheduling.reconcile.input import NOT_NEEDED_TEXT, ReconcileInput
from wharf.cluster.scheduling.reconcile.names import AllocationNames
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, GroupOutcome
from wharf.cluster.scheduling.reconcile.placement_requests import (
    count_allowed_replacements,
    request_migrations,
    request_placements,
    request_replacements,
)
from wharf.cluster.scheduling.reconcile.rescheduling import has_succeeded, split_retries
from wharf.cluster.scheduling.reconcile.surplus import (
    is_failed,
    stop_excess_failed,
    stop_surplus,
    stop_unneeded_unknown,
)
from wharf.cluster.scheduling.reconcile.updates import needs_destructive_update
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.plan import DesiredUpdates


def reconcile_group(
    reconcile_input: ReconcileInput, group: TaskGroup, allocations: Iterable[Allocation]
) -> GroupOutcome:
    """Return the stops, placements and updates that a group of a service or batch job needs.

    `allocations` are all allocations of the group.
    """
    by_id = {allocation.id: allocation for allocation in allocations}
    state = GroupState(reconcile_input, group, by_id)
    hold_placements_for_lost(state, by_id.values())
    relevant = _drop_settled(state, by_id)
    canaries = stop_unusable_canaries(state, relevant)
    _classify_allocations(state, relevant)
    stop_lost(state)
    uncounted_canary_ids = state.canary_ids if state.is_canarying else {}
    for canary_id in uncounted_canary_ids:
        # Before promotion canaries replace no other allocation, whatever their state.
        state.untainted.pop(canary_id, None)
    stop_surplus(state, canaries)
    _update_in_place(state)
    stop_unneeded_unknown(state)

    counted = [allocation for allocation in state.untainted.values() if not state.is_unknown_and_replaced(allocation)]
    stop_excess_failed(state, group.count - len(counted) - len(state.migrating), uncounted_canary_ids)
    rescheduled = [allocation for allocation in state.reschedule_now if allocation.id not in uncounted_canary_ids]
    existing = [*counted, *state.migrating.values(), *rescheduled]
    limit_unknown_replacements(state, max(0, group.count - len(existing)))
    existing += [allocation for allocation, _ in state.replaced_unknown]
    replaced_lost = [*state.lost.values()][: max(0, group.count - len(existing))]
    existing += replaced_lost

    # Every stop without a replacement is decided by now, so the name of each such allocation is free.
    names = AllocationNames(state.job.id, group.name, group.count, (allocation.name for allocation in existing))
    request_canaries(state, canaries, names)
    allowed_count = count_allowed_replacements(state)
    request_placements(state, counted, replaced_lost, group.count - len(existing), names)
    # While placements are held back, missing allocations count as down, so an update may take down fewer.
    withheld = max(0, group.count - len(counted) - len(state.migrating)) if state.holds_placements else 0
    replaced = state.destructive[: max(0, allowed_count - len(state.outcome.placements) - withheld)]
    used_names = request_replacements(state, replaced, counted, names)
    request_migrations(state, used_names, names)

    _set_deployment_state(state, relevant.values())
    outcome = state.outcome
    outcome.is_complete = _is_complete(state)
    # Canaries are placed first, then replacements, then new allocations.
    outcome.placements.sort(key=lambda request: (not request.is_canary, request.previous is None))
    state.counts["ignore"] += len(state.destructive) - len(replaced)
    outcome.update_counts = DesiredUpdates(**state.counts)
    return outcome


def stop_group(
    reconcile_input: ReconcileInput, name: str, group: TaskGroup | None, allocations: Iterable[Allocation]
) -> GroupOutcome:
    """Return an outcome that stops all active allocations of a group that is no longer requested.

    `group` is `None` if the job or its group was deleted.
    """
    outcome = GroupOutcome(name, is_complete=True)
    for allocation in allocations:
        if allocation.is_server_terminal or (allocation.is_client_terminal and not should_reconnect(allocation)):
            continue
        is_lost = classify_allocation(allocation, group, reconcile_input.tainted_nodes, reconcile_input.now_ns) in (
            AllocationClass.LOST,
            AllocationClass.EXPIRING,
        )
        outcome.stops.append(stop_as_lost(allocation) if is_lost else AllocationStop(allocation, NOT_NEEDED_TEXT))
    outcome.update_counts = DesiredUpdates(stop=len(outcome.stops))
    return outcome


def _drop_settled(state: GroupState, allocations: AllocationsById) -> AllocationsById:
    """Return the allocations without those that have ended and no longer affect how many are missing."""
    relevant = {}
    for key, allocation in allocations.items():
        if state.input.is_batch:
            if allocation.is_terminal and not allocation.is_of_version(state.job):
                continue
            is_ended = allocation.is_server_terminal and not should_reconnect(allocation)
            if is_ended and not has_succeeded(allocation, state.group):
                continue
        elif allocation.is_server_terminal and not should_reconnect(allocation):
            continue
        relevant[key] = allocation
    return relevant


def _classify_allocations(state: GroupState, allocations: AllocationsById) -> None:
    """Divide the allocations into untainted, migrating and lost ones in `state`, and decide on retries and disconnects."""
    if not allocations:
        return  # The group is new, as in most plans of small jobs, and `state` has none either.
    classes: dict[AllocationClass, AllocationsById] = {allocation_class: {} for allocation_class in AllocationClass}
    for allocation in allocations.values():
        classes[_classify(state.input, state.group, allocation)][allocation.id] = allocation
    state.untainted = classes[AllocationClass.UNTAINTED]
    # An allocation that was stopped while its node was disconnected is not replaced when the node reconnects.
    state.migrating = {
        key: allocation
        for key, allocation in classes[AllocationClass.MIGRATING].items()
        if not allocation.is_server_terminal
    }
    state.lost = {**classes[AllocationClass.LOST], **classes[AllocationClass.EXPIRING]}
    split_retries(state)
    state.count_failed_allocations()
    handle_reconnects(state, classes[AllocationClass.RECONNECTING])
    handle_disconnects(state, classes[AllocationClass.DISCONNECTING])
    stop_migrating_with_replacement(state)
    # Restore the order of creation.
    state.untainted = {key: state.untainted[key] for key in allocations if key in state.untainted}


def _classify(reconcile_input: ReconcileInput, group: TaskGroup, allocation: Allocation) -> AllocationClass:
    """Return how reconciliation treats the allocation.

    A stopped batch allocation that succeeded counts as untainted.
    """
    if reconcile_input.is_batch and allocation.is_server_terminal and not should_reconnect(allocation):
        # Only successful ones are still here: they are done, although they were stopped.
        return AllocationClass.UNTAINTED
    return classify_allocation(allocation, group, reconcile_input.tainted_nodes, reconcile_input.now_ns)


def _update_in_place(state: GroupState) -> None:
    """Divide the allocations of older versions into updates in place, added to the outcome, and destructive updates.

    Destructive updates, which need a new allocation, are stored in `state.destructive`: failed and unhealthy ones first
    (ADR 100), then by index.
    """
    destructive: list[Allocation] = []
    for allocation in state.untainted.values():
        if allocation.is_of_version(state.job):
            state.counts["ignore"] += 1
        elif needs_destructive_update(state.input, allocation, state.group):
            destructive.append(allocation)
        elif allocation.is_terminal:
            state.counts["ignore"] += 1
        elif state.input.can_update_in_place(allocation, state.group):
            state.outcome.in_place_updates.append(allocation)
            state.counts["in_place_update"] += 1
        else:
            destructive.append(allocation)
    state.destructive = sorted(
        destructive,
        key=lambda allocation: (not is_failed(allocation), not allocation.is_unhealthy, parse_index(allocation.name)),
    )


def _set_deployment_state(state: GroupState, allocations: Iterable[Allocation]) -> None:
    """Set in the outcome the group's state in the deployment, and whether a new deployment must start for the group."""
    outcome = state.outcome
    if state.input.deployment is not None:
        if state.is_in_deployment:
            outcome.deployment = state.rollout
        return
    total = (
        len(state.destructive)
        + len(outcome.in_place_updates)
        + sum(not request.is_canary for request in outcome.placements)
    )
    if state.update_policy is None or total == 0:
        return
    is_updating = bool(state.destructive or outcome.in_place_updates)
    if not is_updating and any(allocation.is_of_version(state.job) for allocation in allocations):
        return
    outcome.is_new_deployment = True
    outcome.deployment = replace(state.rollout, desired_total=total)


def _is_complete(state: GroupState) -> bool:
    """Return whether the deployment has nothing more to do for the group."""
    outcome, rollout = state.outcome, state.rollout
    if (
        state.destructive
        or outcome.in_place_updates
        or outcome.placements
        or state.migrating
        or state.reschedule_now
        or state.replaced_unknown
    ):
        return False
    if any(follow_up.trigger is EvaluationTrigger.ALLOC_RESCHEDULE for follow_up in outcome.follow_ups):
        return False
    # The deployment watcher decides whether failed allocations are replaced. It stops at the end of the deployment, so the
    # deployment must not end before that decision.
    stopped_ids = {stop.allocation.id for stop in outcome.stops}
    if any(allocation.is_unhealthy and allocation.id not in stopped_ids for allocation in state.awaiting_watcher):
        return False
    # As many healthy allocations as canaries are not needed: after the promotion, those beyond the count are stopped.
    return rollout.is_rolled_out
