"""Canaries of system jobs: a new version starts on a part of the nodes (scheduling.md 5.11)."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_system_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import SECOND_NS
from wharf.cluster.operations import deployments
from wharf.cluster.operations.jobs import registration
from wharf.cluster.scheduling.reconcile.input import UPDATING_TEXT
from wharf.cluster.scheduling.reconcile.system_group import count_canaries
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus


def of_version(
    value: int, *, canary: int = 40, max_parallel: int = 5, auto_revert: bool = False, auto_promote: bool = False
) -> Job:
    update = UpdatePolicy(
        max_parallel=max_parallel, canary=canary, min_healthy_time=SECOND_NS, auto_revert=auto_revert,
        auto_promote=auto_promote,
    )  # fmt: skip
    return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update))


def a_fleet_with_version_0(nodes: int = 5, **fields: int | bool) -> Loop:
    loop = Loop()
    for at in range(nodes):
        loop.with_node(f"n{at}")
    loop.register(of_version(0, **fields))  # type: ignore[arg-type]  # The fields of a policy, told by name.
    loop.settle()
    return loop


def running(loop: Loop, version: int) -> list[Allocation]:
    return [each for each in loop.list_active() if each.job_version == version]


def promote(loop: Loop) -> None:
    loop.lead(
        deployments.promote_deployment(
            loop.replica, loop.deployment().id, loop.moment, should_promote_all=True, max_changes=100
        )
    )


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 50))
def test_the_canary_count_is_a_percentage_of_nodes_rounded_up_and_at_most_max_parallel(
    nodes: int, percent: int, at_once: int
) -> None:
    canaries = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))

    assert canaries == at_once or (canaries - 1 < nodes * percent / 100 <= canaries)
    assert canaries <= at_once


def test_a_new_version_starts_on_the_canary_nodes_and_waits_for_promotion() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    state = (loop.deployment().task_groups or {})["web"]

    assert (len(running(loop, 1)), len(running(loop, 0))) == (2, 3)
    assert (state.desired_canaries, len(state.placed_canaries or ()), state.desired_total) == (2, 2, 5)
    assert loop.deployment().status_description == "Deployment is running but requires manual promotion"


def test_after_promotion_the_new_version_runs_on_all_nodes() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    promote(loop)
    loop.settle()

    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (5, 0, "successful")


def test_a_canary_without_capacity_beside_the_old_allocation_waits_until_that_has_stopped() -> None:
    def large(value: int) -> Job:
        task = a_task(env={"V": str(value)}, resources=some_resources(cpu=700, memory_mb=10))
        update = UpdatePolicy(max_parallel=2, canary=25, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", task, update=update))

    loop = Loop()
    for at in range(4):
        loop.with_node(f"n{at}", cpu=1_000)
    loop.register(large(0))
    loop.settle()
    loop.register(large(1))
    for _ in range(3):
        loop.process_pending()
        loop.evaluate_job()
    going = [allocation for allocation in loop.list_allocations() if allocation.is_server_terminal]
    loop.settle()

    assert len(going) == 1
    assert (len(running(loop, 1)), len(running(loop, 0))) == (1, 3)
    assert [allocation.next_allocation for allocation in loop.list_allocations() if allocation.is_server_terminal] == [
        running(loop, 1)[0].id
    ]
    promote(loop)
    loop.settle()
    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (4, 0, "successful")


def test_a_failed_canary_is_retried_on_its_own_node() -> None:
    loop = Loop()
    for at in range(5):
        loop.with_node(f"n{at}")
    loop.register(replace(of_version(0), task_groups=(a_group("web", a_task(env={"V": "0"}), update=None),)))
    loop.settle()
    loop.register(of_version(1, max_parallel=2))
    loop.evaluate_job()
    tried = running(loop, 1)
    for canary in tried:
        loop.report(canary, ClientStatus.FAILED, healthy=False)
    loop.evaluate_job()

    assert {each.node_id for each in tried} == {each.node_id for each in running(loop, 1)}
    assert (2, 3) == (len(running(loop, 1)), len(running(loop, 0)))
    assert {each.id for each in tried} == {each.previous_allocation for each in running(loop, 1)}
    assert all(each.deployment_status is not None and each.deployment_status.canary for each in running(loop, 1))


def test_a_failed_allocation_of_a_deployment_counts_as_down_until_one_is_healthy_there() -> None:
    loop = a_fleet_with_version_0(canary=0, max_parallel=2)
    loop.register(of_version(1, canary=0, max_parallel=2))
    loop.evaluate_job()
    begun = running(loop, 1)
    for each in begun:
        loop.report(each, ClientStatus.FAILED)
    loop.evaluate_job()

    assert {each.node_id for each in begun} == {each.node_id for each in running(loop, 1)}
    assert (2, 3) == (len(running(loop, 1)), len(running(loop, 0)))


def test_a_node_that_joins_during_the_canary_phase_gets_the_older_version() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    loop.with_node("joins")
    loop.evaluate_job()

    assert [each.job_version for each in loop.list_active() if each.node_id == "joins"] == [0]


def test_after_a_failed_canary_phase_its_nodes_get_the_older_version_back() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.process_pending()
    loop.report(running(loop, 1)[0], ClientStatus.RUNNING, healthy=False)
    loop.settle()

    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (0, 5, "failed")


def test_a_failed_canary_phase_with_auto_revert_ends_with_the_stable_version_on_all_nodes() -> None:
    loop = a_fleet_with_version_0(auto_revert=True)
    loop.register(of_version(1, auto_revert=True))
    loop.process_pending()
    loop.report(running(loop, 1)[0], ClientStatus.RUNNING, healthy=False)
    loop.settle()
    ends = {each.status for each in loop.replica.iter_all(DEPLOYMENTS) if each.job_version == 2}

    assert (len(running(loop, 2)), len(loop.list_active()), ends) == (5, 5, {DeploymentStatus.SUCCESSFUL})


@given(st.integers(1, 12), st.integers(1, 100), st.integers(1, 4))
def test_system_canaries_never_exceed_their_percentage_before_promotion(nodes: int, percent: int, at_once: int) -> None:
    loop = a_fleet_with_version_0(nodes, canary=percent, max_parallel=at_once)
    most = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))
    loop.checks.append(lambda: _at_most(len(running(loop, 1)), most))
    loop.register(of_version(1, canary=percent, max_parallel=at_once))
    loop.settle()

    assert len(running(loop, 1)) == most


def _at_most(number: int, most: int) -> None:
    assert number <= most


def test_a_new_version_that_was_lost_before_it_was_healthy_counts_as_down() -> None:
    loop = a_fleet_with_version_0(canary=0, max_parallel=1)
    loop.register(of_version(1, canary=0, max_parallel=1))
    loop.process_pending()
    (first,) = running(loop, 1)
    loop.lose_node(first.node_id)
    loop.process_pending()
    assert [] == running(loop, 1)

    loop.reconnect_node(first.node_id)
    loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)

    assert [first.node_id] == [each.node_id for each in running(loop, 1)]
    loop.settle()
    assert (5, 0) == (len(running(loop, 1)), len(running(loop, 0)))


def test_a_node_that_lost_its_canary_counts_as_down_until_an_allocation_is_healthy_there() -> None:
    loop = a_fleet_with_version_0(canary=20, max_parallel=1)
    loop.register(of_version(1, canary=20, max_parallel=1))
    loop.process_pending()
    (first,) = running(loop, 1)
    loop.lose_node(first.node_id)
    loop.process_pending()
    loop.evaluate_job()
    (second,) = running(loop, 1)
    loop.reconnect_node(first.node_id)
    loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    (restored,) = [each for each in running(loop, 0) if each.node_id == first.node_id]
    loop.report(second, ClientStatus.RUNNING, healthy=True)

    promote(loop)
    loop.evaluate_job()

    assert restored.client_status is ClientStatus.PENDING
    assert [second.node_id, first.node_id] == [each.node_id for each in running(loop, 1)]
    loop.settle()
    assert (5, 0, "successful") == (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status)


def test_while_a_preempted_canary_waits_for_capacity_no_other_node_goes_down() -> None:
    loop = a_fleet_with_version_0(canary=20, max_parallel=1)
    loop.register(of_version(1, canary=20, max_parallel=1))
    loop.process_pending()
    (first,) = running(loop, 1)
    urgent_task = a_task(resources=some_resources(cpu=990, memory_mb=10))
    only_there = a_constraint("${node.unique.id}", first.node_id)
    loop.register(a_system_job("urgent", a_group("web", urgent_task), priority=80, constraints=(only_there,)))
    loop.settle()

    assert (["urgent"], 4) == ([each.job_id for each in on_node(loop, first.node_id)], len(running(loop, 0)))

    loop.do(registration.deregister_job(loop.replica, "default", "urgent", loop.moment))
    loop.settle()

    assert [first.node_id] == [each.node_id for each in running(loop, 1)]
    assert 4 == len(running(loop, 0))


def on_node(loop: Loop, node_id: str) -> list[Allocation]:
    return [each for each in loop.replica.iter_all(ALLOCATIONS) if each.node_id == node_id and not each.is_terminal]


class DownNodes:
    """Checks after each plan that the update takes no further node down while `most` nodes are down for it."""

    def __init__(self, loop: Loop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._before: set[str] = set()
        loop.checks.append(self.check)

    def check(self) -> None:
        before, now = self._before, self.current()
        self._before = now
        assert now <= before or len(now) <= self._most, f"{sorted(now - before)} went down beside {sorted(before)}"

    def refresh(self) -> None:
        """Record nodes that went down through a node event, not through a plan."""
        self._before = self.current()

    def current(self) -> set[str]:
        """The ready nodes on which an allocation was stopped for the update and none has been healthy since."""
        down: set[str] = set()
        for allocation in self._loop.list_allocations():
            status = allocation.deployment_status
            if allocation.desired_description == UPDATING_TEXT:
                down.add(allocation.node_id)
            elif status is not None and status.healthy:
                down.discard(allocation.node_id)
        return {node_id for node_id in down if self._loop.node(node_id).status is NodeStatus.READY}


EVENTS = st.lists(
    st.tuples(st.sampled_from(["lost", "back", "failed", "healthy", "preempted"]), st.integers(0, 2)), max_size=40
)


@given(EVENTS, st.integers(1, 3), st.sampled_from([0, 20, 60]))
def test_whatever_happens_to_nodes_an_update_takes_down_no_more_than_max_parallel_and_ends(
    events: list[tuple[str, int]], most: int, canary: int
) -> None:
    loop = a_fleet_with_version_0(canary=canary, max_parallel=most)
    down = DownNodes(loop, most)
    loop.register(of_version(1, canary=canary, max_parallel=most, auto_promote=canary > 0))
    loop.process_pending()
    for event, position in events:
        apply_event(loop, event, position)
        down.refresh()
        loop.process_pending()
        loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
        loop.process_pending()
    for node in loop.replica.iter_all(NODES):
        loop.reconnect_node(node.id)
    down.refresh()
    loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    loop.settle()

    assert loop.deployment().status is not DeploymentStatus.RUNNING


def apply_event(loop: Loop, event: str, position: int) -> None:
    """`position` counts the lost nodes, or the live allocations on ready nodes, the newest first."""
    lost = [each.id for each in loop.replica.iter_all(NODES) if each.status is NodeStatus.DOWN]
    live = [each for each in reversed(loop.list_active()) if each.node_id not in lost]
    if event == "back" and lost:
        loop.reconnect_node(lost[position % len(lost)])
    elif event != "back" and live:
        chosen = live[position % len(live)]
        match event:
            case "lost":
                loop.lose_node(chosen.node_id)
            case "failed":
                loop.report(chosen, ClientStatus.FAILED)
            case "healthy":
                loop.report(chosen, ClientStatus.RUNNING, healthy=True)
            case _:
                evicted = replace(chosen, desired_status=DesiredStatus.EVICT, client_status=ClientStatus.COMPLETE)
                loop.put_led(ALLOCATIONS.build_put(evicted))
