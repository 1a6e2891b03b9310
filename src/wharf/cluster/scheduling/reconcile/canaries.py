"""The steps for canaries of a service or batch group: which ones remain, and which are missing (scheduling.md 5.5)."""

from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.classification import AllocationClass, classify_allocation
from wharf.cluster.scheduling.reconcile.group_state import AllocationsById, GroupState, stop_as_lost
from wharf.cluster.scheduling.reconcile.input import MIGRATING_TEXT, NOT_NEEDED_TEXT
from wharf.cluster.scheduling.reconcile.names import AllocationNames
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, PlacementRequest
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus


def stop_unusable_canaries(state: GroupState, allocations: AllocationsById) -> AllocationsById:
    """Stop canaries that can no longer be promoted, and canaries on lost or draining nodes.

    Remove them from `allocations`. Return the active canaries of the current deployment, by id.
    """
    tainted_nodes, now_ns = state.input.tainted_nodes, state.input.now_ns
    for obsolete in [allocation for allocation in allocations.values() if _is_obsolete_canary(state, allocation)]:
        del allocations[obsolete.id]
        has_ended = obsolete.client_status in (ClientStatus.COMPLETE, ClientStatus.LOST)
        # Failed ones are stopped too, so that they are not retried.
        if not obsolete.is_server_terminal and not has_ended:
            allocation_class = classify_allocation(obsolete, state.group, tainted_nodes, now_ns)
            is_lost = allocation_class is AllocationClass.LOST
            state.add_stop(stop_as_lost(obsolete) if is_lost else AllocationStop(obsolete, NOT_NEEDED_TEXT))
    if state.input.deployment is None or state.is_failed:
        return {}
    canaries: AllocationsById = {}
    for canary_id in state.rollout.placed_canaries or ():
        canary = allocations.get(canary_id)
        if canary is None:
            continue
        match classify_allocation(canary, state.group, tainted_nodes, now_ns):
            case AllocationClass.MIGRATING:
                state.add_stop(AllocationStop(allocations.pop(canary_id), MIGRATING_TEXT))
            case AllocationClass.LOST:
                state.add_stop(stop_as_lost(allocations.pop(canary_id)))
            case _:
                canaries[canary_id] = canary
    return {key: canary for key, canary in canaries.items() if _is_active_canary(canary)}


def _is_obsolete_canary(state: GroupState, allocation: Allocation) -> bool:
    """Return whether the allocation is a canary that can no longer be promoted: its deployment failed or is not the
    current one.

    Promotion removes the canary flag, so a flagged canary of another deployment was never promoted.
    """
    status, deployment = allocation.deployment_status, state.input.deployment
    if status is None or not status.canary:
        return False
    return deployment is None or state.is_failed or allocation.deployment_id != deployment.id


def _is_active_canary(canary: Allocation) -> bool:
    """Return whether the canary runs or has failed and will be retried.

    Until then no other canary takes the place of a failed one.
    """
    awaits_retry = canary.client_status is ClientStatus.FAILED and not canary.next_allocation
    return not canary.is_server_terminal and (awaits_retry or not canary.is_client_terminal)


def request_canaries(state: GroupState, canaries: AllocationsById, names: AllocationNames) -> None:
    """Request the canaries that are missing for a destructive update, with names from `names`.

    `canaries` are those that exist. Nothing is requested after promotion, or while the deployment is paused or failed
    or placements are held back.
    """
    update = state.update_policy
    if update is None or not update.canary or not state.destructive or state.rollout.promoted:
        return
    if state.is_paused or state.is_failed:
        return
    state.rollout = replace(state.rollout, desired_canaries=update.canary)
    missing = update.canary - len(canaries)
    if missing <= 0 or state.holds_placements:
        return
    used_names = (canary.name for canary in canaries.values())
    for name in names.take_canary_names(missing, used_names, (allocation.name for allocation in state.destructive)):
        state.outcome.placements.append(PlacementRequest(name, state.job, state.group, is_canary=True))
        state.counts["canary"] += 1
