"""What would stand better elsewhere, and that it is moved a few at a time."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_batch_job, a_constraint, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
from wharf.cluster.controllers.rebalancing import start_moves
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.rebalancing import MIN_SCORE_GAIN, propose_moves
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.rebalancing import Rebalancing


def sized(job_id: str, count: int, *, cpu: int = 200, memory_mb: int = 200, at_once: int = 1) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=memory_mb))
    return a_job(job_id, a_group("web", task, count=count, migrate=MigratePolicy(max_parallel=at_once)))


def scattered(count: int, *, at_once: int = 1) -> Loop:
    """One of `shop` alone on each of so many nodes; and as many nodes with other work and room, which came later."""
    loop = Loop()
    for at in range(count):
        loop.with_node(f"alone-{at}", cpu=1_000, memory_mb=1_000)
        loop.register(sized("shop", at + 1, at_once=at_once))
        loop.settle()
    for at in range(count):
        loop.with_node(f"shared-{at}", cpu=1_000, memory_mb=1_000)
        there = (a_constraint("${node.unique.name}", f"shared-{at}", "="),)
        loop.register(replace(sized(f"stays-{at}", 1, cpu=600, memory_mb=600), constraints=there))
        loop.settle()
    return loop


def planned(loop: Loop) -> Rebalancing:
    return propose_moves(loop.replica, SchedulerCache.from_snapshot(loop.replica))


def moved(loop: Loop) -> int:
    found = planned(loop)
    return loop.lead(start_moves(loop.replica, found.moves, loop.moment, max_changes=100)).move_count


def nodes_of(loop: Loop) -> set[str]:
    return {each.node_id for each in loop.live("shop")}


def test_what_is_scattered_is_told_with_where_it_would_stand_better_and_what_is_gained() -> None:
    loop = scattered(4)
    found = planned(loop)

    assert (len(found.moves), found.nodes_used, found.nodes_used_after) == (4, 8, 4)
    assert all(each.score_after - each.score_before >= MIN_SCORE_GAIN for each in found.moves)
    assert found.text == (
        f"{len(found.moves)} allocations would stand better elsewhere, by "
        f"{sum(each.score_after - each.score_before for each in found.moves) / len(found.moves):.2f} of a score on average; "
        "8 nodes would hold work before and 4 after"
    )


def test_a_plan_moves_nothing() -> None:
    loop = scattered(3)
    before = list(loop.live("shop"))
    planned(loop)

    assert loop.live("shop") == before


@settings(max_examples=10)
@given(st.integers(2, 5), st.integers(1, 3))
def test_no_more_of_a_group_are_moved_at_a_time_than_its_migrate_limit_lets_go(count: int, at_once: int) -> None:
    loop = scattered(count, at_once=at_once)
    marked = moved(loop)

    assert marked <= at_once
    assert len([each for each in loop.live("shop") if not each.should_migrate]) >= count - at_once


@settings(max_examples=10)
@given(st.integers(2, 5))
def test_moved_again_and_again_it_comes_to_rest_on_fewer_nodes_with_all_of_its_count(count: int) -> None:
    loop = scattered(count)
    for _ in range(3 * count):
        if not moved(loop):
            break
        loop.settle()
        for each in loop.live("shop"):  # Their nodes say that they are well.
            well = AllocDeploymentStatus(healthy=True, modify_index=WRITE_INDEX)
            loop.put_led(ALLOCATIONS.build_put(replace(each, deployment_status=well)))

    assert (planned(loop).moves, len(loop.live("shop"))) == ((), count)
    assert {node_id.partition("-")[0] for node_id in nodes_of(loop)} == {"shared"}


def test_what_is_moved_has_the_node_that_was_told() -> None:
    loop = scattered(3)
    first = planned(loop).moves[0]
    loop.lead(start_moves(loop.replica, [first], loop.moment, max_changes=100))
    loop.settle()

    assert [each.node_id for each in loop.live("shop") if each.previous_allocation == first.alloc_id] == [
        first.to_node_id
    ]


def test_work_that_ends_by_itself_is_left_where_it_is() -> None:
    loop = Loop()
    loop.with_node("n0", cpu=1_000, memory_mb=1_000)
    loop.register(a_batch_job("shop", a_group("web", a_task(resources=some_resources()))))
    loop.settle()
    loop.with_node("n1", cpu=200, memory_mb=128)

    assert planned(loop).text == "nothing would stand better elsewhere: work is on 1 node"


def test_what_moved_on_since_it_was_found_is_left_alone() -> None:
    loop = scattered(3)
    found = planned(loop)
    loop.register(sized("shop", 0))
    loop.settle()

    assert loop.lead(start_moves(loop.replica, found.moves, loop.moment, max_changes=100)).move_count == 0
