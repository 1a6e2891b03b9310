"""The steps that stop surplus allocations of a group, and the order in which they stop (scheduling.md 5.6)."""

from collections.abc import Container, Mapping
from operator import attrgetter

from wharf.cluster.scheduling.reconcile.group_state import AllocationsById, GroupState
from wharf.cluster.scheduling.reconcile.input import NOT_NEEDED_TEXT
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.names import parse_index


def stop_surplus(state: GroupState, canaries: AllocationsById) -> None:
    """Stop the allocations that exceed the group's count. Completed ones need no stop: they are only no longer counted.

    They are removed from `state.untainted` and `state.migrating`.
    """
    running = {
        key: allocation
        for key, allocation in state.untainted.items()
        if allocation.client_status is not ClientStatus.UNKNOWN
    }
    surplus = len(running) + len(state.migrating) - state.group.count
    if surplus <= 0:
        return
    order = _order_surplus(running, state.migrating, canaries, is_canarying=state.is_canarying)
    if (
        not state.input.is_batch
    ):  # An ended allocation of a batch job is done. One of a service waits for its replacement.
        order[:0] = [(False, key) for key, each in running.items() if each.client_status is ClientStatus.COMPLETE]
    for is_migrating, key in order:
        if surplus <= 0:
            break
        allocation = (state.migrating if is_migrating else state.untainted).pop(key, None)
        if allocation is None:
            continue
        if allocation.client_status is not ClientStatus.COMPLETE:
            state.add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
        surplus -= 1


def stop_unneeded_unknown(state: GroupState) -> None:
    """Stop unknown allocations of an older version that have a replacement, and others that exceed the group's count.

    They are of no use when they reconnect, and replacing one for the update would place more than the group's count.
    """
    count = sum(not state.is_unknown_and_replaced(allocation) for allocation in state.untainted.values())
    surplus = count + len(state.migrating) - state.group.count
    unknown = [allocation for allocation in state.destructive if allocation.client_status is ClientStatus.UNKNOWN]
    for allocation in unknown:
        if not state.is_unknown_and_replaced(allocation):
            if surplus <= 0:
                continue
            surplus -= 1
        state.destructive.remove(allocation)
        state.untainted.pop(allocation.id)
        state.add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))


def stop_excess_failed(state: GroupState, free_slots: int, uncounted_ids: Container[str]) -> None:
    """Stop failed allocations that would exceed the group's count if they were rescheduled.

    `free_slots` is how many may be rescheduled. Canaries with ids in `uncounted_ids` need no slot.
    """
    rescheduled = []
    for allocation in state.reschedule_now:
        if allocation.id in uncounted_ids:
            rescheduled.append(allocation)
        elif free_slots > 0:
            rescheduled.append(allocation)
            free_slots -= 1
        elif allocation.client_status is not ClientStatus.COMPLETE:
            state.add_stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
    state.reschedule_now = rescheduled


def _order_surplus(
    running: AllocationsById, migrating: AllocationsById, canaries: Mapping[str, Allocation], *, is_canarying: bool
) -> list[tuple[bool, str]]:
    """Return pairs (is migrating, allocation id) in the order in which surplus allocations are stopped.

    First come failed and unhealthy ones (ADR 100), then allocations that share a name with a promoted canary, then
    migrating ones, then duplicates of a name, then the highest indexes. An id may occur twice.
    """
    order = _list_failed(running, migrating)
    if not is_canarying and canaries:
        canary_names = {canary.name for canary in canaries.values()}
        order += [
            (False, key)
            for key, allocation in running.items()
            if key not in canaries and allocation.name in canary_names
        ]
    order += [(True, key) for key in _sort_by_index(migrating)]
    order += [(False, key) for key in _list_duplicates(running)]
    order += [(False, key) for key in _sort_by_index(running)]
    return order


def _list_failed(running: AllocationsById, migrating: AllocationsById) -> list[tuple[bool, str]]:
    """Return pairs (is migrating, allocation id) of the failed allocations, then of those reported as unhealthy.

    Both are sorted by index, the highest first.
    """
    order: list[tuple[bool, str]] = []
    for is_worse in (is_failed, attrgetter("is_unhealthy")):
        for is_migrating, allocations in ((False, running), (True, migrating)):
            worse = {key: allocation for key, allocation in allocations.items() if is_worse(allocation)}
            order += [(is_migrating, key) for key in _sort_by_index(worse)]
    return order


def is_failed(allocation: Allocation) -> bool:
    """Return whether the allocation failed and still counts: it waits for its retry, or is never retried."""
    return allocation.client_status is ClientStatus.FAILED


def _list_duplicates(allocations: AllocationsById) -> list[str]:
    """Return the ids of the allocations whose name another allocation keeps, the newest first.

    The oldest allocation of the newest version keeps a name.
    """
    keeper_by_name: dict[str, str] = {}
    for key, allocation in allocations.items():
        keeper_id = keeper_by_name.get(allocation.name)
        if keeper_id is None or allocations[keeper_id].job_version < allocation.job_version:
            keeper_by_name[allocation.name] = key
    return [key for key, allocation in reversed(allocations.items()) if keeper_by_name[allocation.name] != key]


def _sort_by_index(allocations: AllocationsById) -> list[str]:
    """Return the ids sorted by the index in the allocation's name, the highest first.

    Of one name the newest is first.
    """
    newest_first = reversed(allocations)
    return sorted(newest_first, key=lambda key: parse_index(allocations[key].name), reverse=True)
