"""The scheduler cache is the same whether it follows batches or is built from a snapshot."""

from tests.builders import a_job
from tests.kit.state import AState, an_allocation
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)


def make_resources(cpu: int) -> AllocatedResources:
    return AllocatedResources(
        tasks={"web": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=cpu), memory=AllocatedMemory(memory_mb=64))},
        shared=AllocatedSharedResources(disk_mb=10),
    )


def test_a_cache_that_follows_batches_equals_the_cache_of_a_new_leader() -> None:
    state = AState()
    for node_id in ("n1", "n2"):
        state.with_node(node_id)
    state.register(a_job())
    followed, small, large = SchedulerCache.from_snapshot(state.replica), make_resources(100), make_resources(300)
    allocations = [
        an_allocation(
            state.job(), f"a{number}", node_id=f"n{1 + number % 2}", allocated_resources=large if number > 3 else small,
            client_status=ClientStatus.COMPLETE if number == 5 else ClientStatus.PENDING,
        )
        for number in range(7)
    ]  # fmt: skip

    state.put(*map(ALLOCATIONS.build_put, allocations))
    followed.apply_changes(
        state.replica, [], [(allocation.id, None, state.allocation(allocation.id)) for allocation in allocations]
    )

    rebuilt = SchedulerCache.from_snapshot(state.replica)
    assert rebuilt.namespace_usage.get_usage("default") == followed.namespace_usage.get_usage("default")
    for node_id in ("n1", "n2"):
        row, followed_row = rebuilt.fleet.row_by_node_id[node_id], followed.fleet.row_by_node_id[node_id]
        assert (rebuilt.fleet.get_usage(row), rebuilt.fleet.count[row]) == (
            followed.fleet.get_usage(followed_row),
            followed.fleet.count[followed_row],
        )
