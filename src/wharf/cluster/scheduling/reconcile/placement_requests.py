"""The steps that request new allocations for a service or batch group, and find a name for each of them."""

from collections.abc import Iterable

from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.deployment import list_undecided_allocations
from wharf.cluster.scheduling.reconcile.group_state import GroupState
from wharf.cluster.scheduling.reconcile.input import MIGRATING_TEXT, RESCHEDULED_TEXT, UPDATING_TEXT
from wharf.cluster.scheduling.reconcile.names import AllocationNames
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, PlacementRequest
from wharf.cluster.scheduling.reconcile.surplus import is_failed
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


def request_placements(
    state: GroupState, counted: list[Allocation], lost: list[Allocation], missing: int, names: AllocationNames
) -> None:
    """Request allocations: replacements of failed, unknown and `lost` ones, then `missing` new ones.

    Nothing is requested while placements are held back. While the deployment is paused or failed, new ones are
    requested only if they are owed for an earlier update. The names of `counted` and migrating allocations are in use.
    """
    if not state.holds_placements:
        used_names = {allocation.name for allocation in (*counted, *state.migrating.values())}
        placed = _request_rescheduled(state, used_names, names)
        for allocation in lost:
            request = _make_request(state, allocation.name, allocation)
            state.outcome.placements.append(_use_free_name(request, used_names, names))
            placed += 1
        if state.is_paused or state.is_failed:
            missing = min(missing, state.owed_count)
        for name in names.take_names(max(0, missing)):
            state.outcome.placements.append(_make_request(state, name, None))
            placed += 1
        state.counts["place"] += placed


def _request_rescheduled(state: GroupState, used_names: set[str], names: AllocationNames) -> int:
    """Request replacements of the failed, ended and unknown allocations that are retried now, and return how many.

    Failed allocations of a failed deployment are not replaced. The names that the replacements use are added to `used_names`.
    """
    count, deployment = 0, state.input.deployment
    for allocation in state.reschedule_now:
        has_failed = is_failed(allocation)
        if has_failed and state.is_failed and deployment is not None and allocation.deployment_id == deployment.id:
            continue
        request = _make_request(state, allocation.name, allocation, is_reschedule=True)
        request = _use_free_name(request, used_names, names)
        if has_failed or allocation.is_server_terminal:
            request = replace(request, stop=AllocationStop(allocation, RESCHEDULED_TEXT))
        state.outcome.placements.append(request)
        count += 1
    for allocation, unknown_since_ns in state.replaced_unknown:
        request = _make_request(state, allocation.name, allocation, is_reschedule=True)
        request = _use_free_name(request, used_names, names)
        state.outcome.placements.append(replace(request, failed_at_ns=unknown_since_ns))
        count += 1
    state.counts["reschedule_now"] += count
    return count


def count_allowed_replacements(state: GroupState) -> int:
    """Return how many allocations of the group may be replaced or placed now under the update's `max_parallel`.

    0 while canaries await promotion, or while the deployment is paused, failed or has an unhealthy allocation.
    """
    update, deployment = state.update_policy, state.input.deployment
    if update is None or not (state.destructive or state.migrating):
        return state.group.count
    if state.is_paused or state.is_failed or state.is_canarying:
        return 0
    # Migrating allocations are down for a while in any case, so the update waits for them.
    migrating_count = sum(not allocation.is_terminal for allocation in state.migrating.values())
    if deployment is None:
        return max(0, update.max_parallel - migrating_count)
    undecided = list_undecided_allocations(deployment, state.untainted.values())
    return 0 if undecided is None else max(0, update.max_parallel - migrating_count - len(undecided))


def request_replacements(
    state: GroupState, replaced: list[Allocation], staying: Iterable[Allocation], names: AllocationNames
) -> set[str]:
    """Request a replacement for each allocation in `replaced`, which an update requires, and return the names then in
    use.

    A replacement has the name of its allocation, or a free name if an allocation in `staying` has the same name.
    """
    replaced_ids = {allocation.id for allocation in replaced}
    used_names = {allocation.name for allocation in staying if allocation.id not in replaced_ids}
    for allocation in replaced:
        name = allocation.name if allocation.name not in used_names else names.take_free(allocation.name)
        used_names.add(name)
        stop = AllocationStop(allocation, UPDATING_TEXT)
        state.outcome.replacements.append(PlacementRequest(name, state.job, state.group, allocation, stop=stop))
        state.counts["destructive_update"] += 1
    return used_names


def request_migrations(state: GroupState, used_names: set[str], names: AllocationNames) -> None:
    """Stop the allocations that move to other nodes and request their replacements, even if the deployment is paused.

    No replacement is requested while placements are held back, or if the allocation forbids it. A replacement gets a
    free name if its own is in `used_names`.
    """
    for allocation in state.migrating.values():
        transition = allocation.desired_transition
        if not allocation.is_terminal:
            state.add_stop(AllocationStop(allocation, MIGRATING_TEXT), is_counted=False)
            state.counts["migrate"] += 1
        if state.holds_placements or (transition is not None and transition.migrate_disable_placement):
            continue
        request = _make_request(state, allocation.name, allocation)
        state.outcome.placements.append(_use_free_name(request, used_names, names))


def _make_request(
    state: GroupState, name: str, previous: Allocation | None, *, is_reschedule: bool = False
) -> PlacementRequest:
    """Return a placement request for an allocation with this name that replaces `previous`, if any.

    While canaries await promotion, it places an older job version, except for a canary that is rescheduled.
    """
    job, group, deployment_id, is_canary = state.job, state.group, "", False
    if state.is_canarying:
        status = previous.deployment_status if previous is not None else None
        is_canary = is_reschedule and status is not None and status.canary
        if not is_canary:
            job, group, deployment_id = _find_older_version(state, previous)
    return PlacementRequest(
        name, job, group, previous, is_canary=is_canary, is_reschedule=is_reschedule, deployment_id=deployment_id
    )


def _find_older_version(state: GroupState, previous: Allocation | None) -> tuple[Job, TaskGroup, str]:
    """Return the job version that runs next to canaries, its group, and the id of that version's deployment.

    It is the stable version, or else the version of the previous allocation, or else the current one. The id is empty
    for the last two.
    """
    name = state.group.name
    stable = state.input.find_stable_version(name)
    if stable is not None:
        job, deployment_id = stable
        group = job.find_group(name)
        if group is not None and (previous is None or job.version >= previous.job_version):
            return job, group, deployment_id
    old_job = state.input.find_job_version(previous) if previous is not None else None
    group = old_job.find_group(name) if old_job is not None else None
    if old_job is not None and group is not None and group.update is None:
        return old_job, group, ""
    return state.job, state.group, ""


def _use_free_name(request: PlacementRequest, used_names: set[str], names: AllocationNames) -> PlacementRequest:
    """Return the request with a free name if its name is in `used_names`, and add the name to them.

    Canaries keep their name, which they share with the allocation that they may replace.
    """
    if request.is_canary:
        return request
    if request.name in used_names:
        request = replace(request, name=names.take_free(request.name))
    used_names.add(request.name)
    return request
