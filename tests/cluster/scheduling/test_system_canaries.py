"""A new version of a system job is tried on a part of its nodes first (scheduling.md 5.11)."""

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
    return [each for each in loop.live() if each.job_version == version]


def promote(loop: Loop) -> None:
    loop.lead(
        deployments.promote_deployment(
            loop.replica, loop.deployment().id, loop.moment, should_promote_all=True, max_changes=100
        )
    )


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 50))
def test_canaries_are_so_many_percent_of_the_nodes_rounded_up_and_no_more_than_are_exchanged_at_once(
    nodes: int, percent: int, at_once: int
) -> None:
    canaries = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))

    assert canaries == at_once or (canaries - 1 < nodes * percent / 100 <= canaries)
    assert canaries <= at_once


def test_a_new_version_is_tried_on_its_part_of_the_nodes_and_waits_there() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    state = (loop.deployment().task_groups or {})["web"]

    assert (len(running(loop, 1)), len(running(loop, 0))) == (2, 3)
    assert (state.desired_canaries, len(state.placed_canaries or ()), state.desired_total) == (2, 2, 5)
    assert loop.deployment().status_description == "Deployment is running but requires manual promotion"


def test_once_promoted_the_new_version_comes_to_all_nodes() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    promote(loop)
    loop.settle()

    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (5, 0, "successful")


def test_a_canary_that_has_no_room_beside_the_old_one_comes_when_that_is_gone_and_no_other_goes_meanwhile() -> None:
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
        loop.think()
        loop.look_at()
    going = [each for each in loop.of() if each.is_server_terminal]
    loop.settle()

    assert len(going) == 1
    assert (len(running(loop, 1)), len(running(loop, 0))) == (1, 3)
    assert [each.next_allocation for each in loop.of() if each.is_server_terminal] == [running(loop, 1)[0].id]
    promote(loop)
    loop.settle()
    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (4, 0, "successful")


def test_a_canary_that_failed_is_tried_again_on_its_own_node_and_no_other_goes_for_it() -> None:
    loop = Loop()
    for at in range(5):
        loop.with_node(f"n{at}")
    loop.register(replace(of_version(0), task_groups=(a_group("web", a_task(env={"V": "0"}), update=None),)))
    loop.settle()
    loop.register(of_version(1, max_parallel=2))
    loop.look_at()
    tried = running(loop, 1)
    for canary in tried:
        loop.tell(canary, ClientStatus.FAILED, healthy=False)
    loop.look_at()

    assert {each.node_id for each in tried} == {each.node_id for each in running(loop, 1)}
    assert (2, 3) == (len(running(loop, 1)), len(running(loop, 0)))
    assert {each.id for each in tried} == {each.previous_allocation for each in running(loop, 1)}
    assert all(each.deployment_status is not None and each.deployment_status.canary for each in running(loop, 1))


def test_who_failed_in_a_rollout_counts_as_down_until_another_is_well_there() -> None:
    loop = a_fleet_with_version_0(canary=0, max_parallel=2)
    loop.register(of_version(1, canary=0, max_parallel=2))
    loop.look_at()
    begun = running(loop, 1)
    for each in begun:
        loop.tell(each, ClientStatus.FAILED)
    loop.look_at()

    assert {each.node_id for each in begun} == {each.node_id for each in running(loop, 1)}
    assert (2, 3) == (len(running(loop, 1)), len(running(loop, 0)))


def test_a_node_that_joins_while_a_version_is_tried_gets_the_one_before() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.settle()
    loop.with_node("joins")
    loop.look_at()

    assert [each.job_version for each in loop.live() if each.node_id == "joins"] == [0]


def test_where_a_trial_fails_its_nodes_get_the_version_before_back() -> None:
    loop = a_fleet_with_version_0()
    loop.register(of_version(1))
    loop.think()
    loop.tell(running(loop, 1)[0], ClientStatus.RUNNING, healthy=False)
    loop.settle()

    assert (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status) == (0, 5, "failed")


def test_a_trial_that_fails_and_reverts_ends_with_the_stable_version_on_all_nodes() -> None:
    loop = a_fleet_with_version_0(auto_revert=True)
    loop.register(of_version(1, auto_revert=True))
    loop.think()
    loop.tell(running(loop, 1)[0], ClientStatus.RUNNING, healthy=False)
    loop.settle()
    ends = {each.status for each in loop.replica.iter_all(DEPLOYMENTS) if each.job_version == 2}

    assert (len(running(loop, 2)), len(loop.live()), ends) == (5, 5, {DeploymentStatus.SUCCESSFUL})


@given(st.integers(1, 12), st.integers(1, 100), st.integers(1, 4))
def test_canaries_of_a_system_job_never_exceed_their_part_before_they_are_promoted(
    nodes: int, percent: int, at_once: int
) -> None:
    loop = a_fleet_with_version_0(nodes, canary=percent, max_parallel=at_once)
    most = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))
    loop.looks.append(lambda: _at_most(len(running(loop, 1)), most))
    loop.register(of_version(1, canary=percent, max_parallel=at_once))
    loop.settle()

    assert len(running(loop, 1)) == most


def _at_most(number: int, most: int) -> None:
    assert number <= most


def test_where_the_new_version_was_lost_before_it_was_well_one_is_still_down_for_the_update() -> None:
    loop = a_fleet_with_version_0(canary=0, max_parallel=1)
    loop.register(of_version(1, canary=0, max_parallel=1))
    loop.think()
    (first,) = running(loop, 1)
    loop.lose(first.node_id)
    loop.think()
    assert [] == running(loop, 1)

    loop.come_back(first.node_id)
    loop.look_at(trigger=EvaluationTrigger.NODE_UPDATE)

    assert [first.node_id] == [each.node_id for each in running(loop, 1)]
    loop.settle()
    assert (5, 0) == (len(running(loop, 1)), len(running(loop, 0)))


def test_a_node_that_lost_its_canary_counts_as_down_until_an_allocation_is_healthy_there() -> None:
    loop = a_fleet_with_version_0(canary=20, max_parallel=1)
    loop.register(of_version(1, canary=20, max_parallel=1))
    loop.think()
    (first,) = running(loop, 1)
    loop.lose(first.node_id)
    loop.think()
    loop.look_at()
    (second,) = running(loop, 1)
    loop.come_back(first.node_id)
    loop.look_at(trigger=EvaluationTrigger.NODE_UPDATE)
    (restored,) = [each for each in running(loop, 0) if each.node_id == first.node_id]
    loop.tell(second, ClientStatus.RUNNING, healthy=True)

    promote(loop)
    loop.look_at()

    assert restored.client_status is ClientStatus.PENDING
    assert [second.node_id, first.node_id] == [each.node_id for each in running(loop, 1)]
    loop.settle()
    assert (5, 0, "successful") == (len(running(loop, 1)), len(running(loop, 0)), loop.deployment().status)


def test_while_a_preempted_canary_waits_for_capacity_no_other_node_goes_down() -> None:
    loop = a_fleet_with_version_0(canary=20, max_parallel=1)
    loop.register(of_version(1, canary=20, max_parallel=1))
    loop.think()
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
        loop.looks.append(self.check)

    def check(self) -> None:
        before, now = self._before, self.current()
        self._before = now
        assert now <= before or len(now) <= self._most, f"{sorted(now - before)} went down beside {sorted(before)}"

    def refresh(self) -> None:
        """Nodes, not a plan, changed what is down."""
        self._before = self.current()

    def current(self) -> set[str]:
        """The ready nodes on which an allocation was stopped for the update and none has been healthy since."""
        down: set[str] = set()
        for each in self._loop.of():
            status = each.deployment_status
            if each.desired_description == UPDATING_TEXT:
                down.add(each.node_id)
            elif status is not None and status.healthy:
                down.discard(each.node_id)
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
    loop.think()
    for event, position in events:
        apply_event(loop, event, position)
        down.refresh()
        loop.think()
        loop.look_at(trigger=EvaluationTrigger.NODE_UPDATE)
        loop.think()
    for node in loop.replica.iter_all(NODES):
        loop.come_back(node.id)
    down.refresh()
    loop.look_at(trigger=EvaluationTrigger.NODE_UPDATE)
    loop.settle()

    assert loop.deployment().status is not DeploymentStatus.RUNNING


def apply_event(loop: Loop, event: str, position: int) -> None:
    """`position` counts the lost nodes, or the live allocations on ready nodes, the newest first."""
    lost = [each.id for each in loop.replica.iter_all(NODES) if each.status is NodeStatus.DOWN]
    live = [each for each in reversed(loop.live()) if each.node_id not in lost]
    if event == "back" and lost:
        loop.come_back(lost[position % len(lost)])
    elif event != "back" and live:
        chosen = live[position % len(live)]
        match event:
            case "lost":
                loop.lose(chosen.node_id)
            case "failed":
                loop.tell(chosen, ClientStatus.FAILED)
            case "healthy":
                loop.tell(chosen, ClientStatus.RUNNING, healthy=True)
            case _:
                evicted = replace(chosen, desired_status=DesiredStatus.EVICT, client_status=ClientStatus.COMPLETE)
                loop.put_led(ALLOCATIONS.build_put(evicted))
