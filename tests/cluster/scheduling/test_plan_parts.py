"""Which changes, placements and conditions each part of a plan has, on plans that are built by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState, an_allocation, an_evaluation
from wharf.cluster.scheduling.plans.check import PlanCheck, check_plan
from wharf.cluster.scheduling.plans.plan import AllocationChange, Plan
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    NAMESPACES,
    NODE_PLACEMENTS,
    NODES,
    QUOTAS,
)
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    ClientStatus,
    DesiredStatus,
    RescheduleTracker,
)
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import WRITE_INDEX, PutRecord
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit

STOP, LOST = DesiredStatus.STOP, ClientStatus.LOST


def make_resources(cpu: int = 10, memory_mb: int = 10, disk_mb: int = 0, **fields: Any) -> AllocatedResources:
    ports = tuple(AllocatedPort(label="x", value=port, host_ip="1") for port in fields.pop("ports", ()))
    task = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=cpu, reserved_cores=fields.pop("cores", None)),
        memory=AllocatedMemory(memory_mb=memory_mb),
        **fields,
    )
    return AllocatedResources(
        tasks={"server": task}, shared=AllocatedSharedResources(disk_mb=disk_mb, ports=ports or None)
    )


class PlanHarness(AState):
    """A state with the job `shop`, the evaluation `e1` and two nodes with 1,000 MHz, 1,000 MB and 100,000 MB of disk."""

    def __init__(self) -> None:
        super().__init__()
        job = a_job("shop", a_group("web", a_task(resources=some_resources(cpu=10, memory_mb=10))))
        self.put(JOBS.build_put(replace(job, create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)))
        self.put(EVALUATIONS.build_put(an_evaluation(self.job())))
        for name in ("n1", "n2"):
            self.with_node(name)

    def make_allocation(self, key: str = "a1", node_id: str = "n1", **fields: Any) -> Allocation:
        fields = {"allocated_resources": make_resources(), **fields}
        return an_allocation(self.job(), key, node_id=node_id, **fields)

    def store(self, key: str = "a1", **fields: Any) -> Allocation:
        self.put(ALLOCATIONS.build_put(self.make_allocation(key, **fields)))
        return self.allocation(key)

    def make_plan(self, *placed: Allocation, **fields: Any) -> Plan:
        by_node: dict[str, tuple[Allocation, ...]] = {}
        for allocation in placed:
            by_node[allocation.node_id] = (*by_node.get(allocation.node_id, ()), allocation)
        evaluation = self.replica.get(EVALUATIONS, "e1")
        assert evaluation is not None
        completed = replace(evaluation, status=EvaluationStatus.COMPLETE)
        return Plan(
            **{
                "evaluation": evaluation,
                "job": self.job(),
                "changes": (),
                "placements": by_node,
                "completed_evaluation": completed,
                "follow_ups": (),
                **fields,
            }
        )

    def check(self, *placed: Allocation, max_changes: int = 100, **fields: Any) -> PlanCheck:
        return check_plan(self.make_plan(*placed, **fields), self.replica, max_changes=max_changes)


def list_keys(checked: PlanCheck, table: str = ALLOCATIONS.name) -> list[str]:
    """Return the keys of the records of a table that the part writes."""
    changes: Sequence[Any] = checked.write.changes if checked.write is not None else ()
    return [str(change.key) for change in changes if change.table == table]


def get_record(checked: PlanCheck, key: str = "a1") -> Any:
    """Return the record with this key that the part writes."""
    assert checked.write is not None
    (record,) = [
        change.record for change in checked.write.changes if isinstance(change, PutRecord) and change.key == key
    ]
    return record


# -- placements --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        (make_resources(cpu=900), True),
        (make_resources(cpu=901), False),
        (make_resources(memory_mb=900), True),
        (make_resources(memory_mb=901), False),
        (make_resources(disk_mb=99_000), True),
        (make_resources(disk_mb=99_001), False),
        (make_resources(ports=(80,)), False),
        (make_resources(ports=(81,)), True),
        (make_resources(cores=(3,)), False),
        (make_resources(cores=(4,)), True),
        (make_resources(devices=(AllocatedDevice(vendor="v", type="t", name="n", device_ids=("i",)),)), False),
        (make_resources(devices=(AllocatedDevice(vendor="v", type="t", name="n", device_ids=("j",)),)), True),
        (make_resources(cpu=901, ports=(81,)), False),
        (make_resources(memory_mb=901, cores=(4,)), False),
        (make_resources(disk_mb=99_001, ports=(81,)), False),
        (None, True),
    ],
)
def test_a_placement_must_fit_beside_what_is_in_use(resources: AllocatedResources | None, *, fits: bool) -> None:
    state = PlanHarness()
    device = AllocatedDevice(vendor="v", type="t", name="n", device_ids=("i",))
    state.store("old", allocated_resources=make_resources(100, 100, 1_000, ports=(80,), cores=(3,), devices=(device,)))
    state.store("ended", allocated_resources=make_resources(900, 900), client_status=ClientStatus.COMPLETE)

    checked = state.check(state.make_allocation(allocated_resources=resources))

    assert (list_keys(checked), list(checked.dropped_nodes)) == (["a1"] if fits else [], [] if fits else ["n1"])


@pytest.mark.parametrize("has_ports", [True, False])
@pytest.mark.parametrize(("cpu", "fits"), [(500, True), (501, False)])
def test_the_placements_of_a_node_must_fit_together(cpu: int, *, fits: bool, has_ports: bool) -> None:
    state = PlanHarness()
    ports = [(80,), (81,)] if has_ports else [(), ()]
    placed = [
        state.make_allocation(f"a{number}", allocated_resources=make_resources(cpu, ports=ports[number]))
        for number in (0, 1)
    ]

    assert list(state.check(*placed).dropped_nodes) == ([] if fits else ["n1"])


@pytest.mark.parametrize(
    "resources",
    [
        make_resources(ports=(80,)),
        make_resources(cores=(1,)),
        make_resources(devices=(AllocatedDevice(vendor="v", type="t", name="n", device_ids=("i",)),)),
    ],
)
def test_two_placements_of_a_node_must_not_share_a_port_core_or_device(resources: AllocatedResources) -> None:
    state = PlanHarness()
    a, b, c = (
        state.make_allocation(key, node, allocated_resources=resources)
        for key, node in (("a", "n1"), ("b", "n1"), ("c", "n2"))
    )
    bare = state.make_allocation("d", allocated_resources=None)

    assert [list(state.check(*placed).dropped_nodes) for placed in ((a, b), (a, c), (bare, a), (a, bare, b))] == [
        ["n1"],
        [],
        [],
        ["n1"],
    ]


@pytest.mark.parametrize("ports", [(), (80,)])
@pytest.mark.parametrize(("limit", "fits"), [(0, True), (2, False), (3, True)])
def test_a_node_takes_no_more_allocations_than_its_limit(limit: int, ports: tuple[int, ...], *, fits: bool) -> None:
    state = PlanHarness()
    state.put(NODES.build_put(replace(state.node("n1"), node_max_allocs=limit)))
    state.store("old")
    placed = [
        state.make_allocation("a1", allocated_resources=make_resources(ports=ports)),
        state.make_allocation("a2"),
    ]

    assert list(state.check(*placed).dropped_nodes) == ([] if fits else ["n1"])


@pytest.mark.parametrize("ports", [(), (80,)])
@pytest.mark.parametrize(
    "fields", [{"status": NodeStatus.DOWN}, {"scheduling_eligibility": SchedulingEligibility.INELIGIBLE}]
)
def test_only_nodes_that_accept_placements_get_some(fields: dict[str, Any], ports: tuple[int, ...]) -> None:
    state = PlanHarness()
    state.put(NODES.build_put(replace(state.node("n1"), **fields)))
    resources = make_resources(ports=ports)
    placed = [
        state.make_allocation(f"on-{node}", node, allocated_resources=resources) for node in ("n1", "unknown", "n2")
    ]

    checked = state.check(*placed)

    assert (list_keys(checked), list(checked.dropped_nodes)) == (["on-n2"], ["n1", "unknown"])
    assert (checked.remaining_plan, list_keys(checked, EVALUATIONS.name)) == (None, [])


def test_the_quota_of_the_namespace_is_consumed_node_by_node() -> None:
    state = PlanHarness()
    limit = QuotaLimit(region=state.job().region, region_limit=RegionLimit(count=3))
    state.put(QUOTAS.build_put(Quota(name="q", limits=(limit,), create_index=WRITE_INDEX)))
    state.put(NAMESPACES.build_put(Namespace(name="default", quota="q")))
    placed = [state.make_allocation(f"a{at}", node) for at, node in enumerate(["n1", "n1", "n2", "n2"])]

    checked = state.check(*placed)

    assert (list_keys(checked), list(checked.dropped_nodes)) == (["a0", "a1"], ["n2"])


def test_a_part_with_placements_requires_unchanged_capacity_and_writes_the_cluster_version_once() -> None:
    state = PlanHarness()
    checked = state.check(state.make_allocation("a1"), state.make_allocation("a2", "n2"))

    assert checked.write is not None
    assert list_keys(checked, NODE_PLACEMENTS.name) == ["*"]
    keys = [(condition.table, condition.key) for condition in checked.write.conditions]
    assert sorted(keys) == sorted([
        (NODE_PLACEMENTS.name, "*"),
        (NODE_PLACEMENTS.name, "n1"),
        (NODE_PLACEMENTS.name, "n2"),
        (EVALUATIONS.name, "e1"),
        (JOBS.name, state.replica.build_key_condition(JOBS, "default", "shop").key),
    ])  # fmt: skip
    assert (checked.remaining_plan, checked.dropped_nodes, checked.rejection) == (None, [], "")
    assert list_keys(checked, EVALUATIONS.name) == ["e1"]


def commit_parts(state: PlanHarness, plan: Plan, max_changes: int) -> list[list[str]]:
    """Commit all parts of the plan, and return the allocations of each."""
    parts = []
    remaining: Plan | None = plan
    while remaining is not None:
        checked = check_plan(remaining, state.replica, max_changes=max_changes)
        assert checked.write is not None
        assert len(checked.write.changes) <= max_changes
        state.commit(checked.write)
        parts.append(list_keys(checked) + list_keys(checked, EVALUATIONS.name))
        remaining = checked.remaining_plan
    return parts


@pytest.mark.parametrize(
    ("max_changes", "parts"),
    [
        (100, [["a0", "a1", "a2", "b0", "b1", "e1"]]),
        (7, [["a0", "a1", "a2", "b0", "b1", "e1"]]),
        (6, [["a0", "a1", "a2", "b0", "b1"], ["e1"]]),
        (5, [["a0", "a1", "a2"], ["b0", "b1", "e1"]]),
        (4, [["a0", "a1", "a2"], ["b0", "b1"], ["e1"]]),
    ],
)
def test_a_part_holds_whole_nodes_as_far_as_they_fit(max_changes: int, parts: list[list[str]]) -> None:
    state = PlanHarness()
    placed = [state.make_allocation(f"a{n}") for n in range(3)] + [
        state.make_allocation(f"b{n}", "n2") for n in range(2)
    ]

    assert commit_parts(state, state.make_plan(*placed), max_changes) == parts


def test_a_node_with_more_placements_than_fit_in_one_part_is_split() -> None:
    state = PlanHarness()
    placed = [state.make_allocation(f"a{number}") for number in range(11)] + [state.make_allocation("b", "n2")]

    parts = commit_parts(state, state.make_plan(*placed), 5)

    assert [len(part) for part in parts[:2]] == [4, 4]
    assert [key for part in parts for key in part] == [*(f"a{number}" for number in range(11)), "b", "e1"]


def test_the_placements_of_a_dropped_node_leave_the_evaluation_open() -> None:
    state = PlanHarness()
    checked = state.check(state.make_allocation("a1", "unknown"))
    partly = state.check(state.make_allocation("a1", "unknown"), state.make_allocation("a2"))

    assert checked == PlanCheck(None, None, ["unknown"])
    assert (list_keys(partly), list_keys(partly, EVALUATIONS.name), partly.remaining_plan) == (["a2"], [], None)


# -- all at once -------------------------------------------------------------------------------------------------------


def test_an_all_at_once_plan_is_committed_completely_or_not_at_all() -> None:
    state = PlanHarness()
    placed = [state.make_allocation(f"a{number}") for number in range(4)]

    fits, too_large = (state.check(*placed, max_changes=count, all_at_once=True) for count in (6, 4))
    dropped = state.check(*placed, state.make_allocation("b", "unknown"), all_at_once=True)
    change = AllocationChange(replace(state.store("old"), desired_status=STOP), True)
    with_stop = state.check(*placed, changes=(change,), max_changes=4, all_at_once=True)

    assert (len(list_keys(fits)), fits.rejection) == (4, "")
    assert dropped == PlanCheck(None, None, ["unknown"])
    assert (too_large.write, with_stop.write) == (None, None)
    assert too_large.rejection == (
        "AllAtOnce requires 4 allocations in one write: the log accepts at most 4 changes. "
        "Lower the counts, split the job, or remove AllAtOnce"
    )
    assert with_stop.rejection.startswith("AllAtOnce requires 5 allocations in one write")


# -- changes of allocations --------------------------------------------------------------------------------------------


def test_changes_come_before_placements_and_fill_parts_of_their_own() -> None:
    state = PlanHarness()
    changes = tuple(
        AllocationChange(replace(state.store(f"old{number}"), desired_status=STOP), True) for number in range(4)
    )
    missing = AllocationChange(replace(state.make_allocation("missing"), desired_status=STOP), True)
    plan = state.make_plan(state.make_allocation("new"), changes=(missing, *changes))

    parts = commit_parts(state, plan, 8)

    keys = [key for part in parts for key in part]
    assert keys == ["old0", "old1", "old2", "old3", "new", "e1"]
    assert len(parts) > 1


@pytest.mark.parametrize(("is_stop", "is_kept"), [(True, True), (False, False)])
def test_only_a_stop_is_applied_to_an_allocation_that_has_changed(*, is_stop: bool, is_kept: bool) -> None:
    state = PlanHarness()
    old = state.store()
    state.put(ALLOCATIONS.build_put(replace(old, client_status=ClientStatus.RUNNING, client_description="reported")))
    tracker = RescheduleTracker(events=())
    desired = replace(
        old,
        desired_status=STOP,
        desired_description="why",
        followup_eval_id="f",
        reschedule_tracker=tracker,
        modify_time=7,
        alloc_modify_index=WRITE_INDEX,
    )

    checked = state.check(changes=(AllocationChange(desired, is_stop),))

    assert (checked == PlanCheck(None)) == (not is_kept)
    if is_kept:
        stopped = get_record(checked)
        assert (stopped.client_status, stopped.client_description) == (ClientStatus.RUNNING, "reported")
        assert (stopped.desired_status, stopped.desired_description, stopped.followup_eval_id) == (STOP, "why", "f")
        assert (stopped.reschedule_tracker, stopped.modify_time) == (tracker, 7)
        assert stopped.alloc_modify_index == WRITE_INDEX


@pytest.mark.parametrize("name", ["next_allocation", "preempted_by_allocation"])
@pytest.mark.parametrize(
    ("current", "desired", "expected"), [("c", "", "c"), ("", "d", "d"), ("c", "d", "d"), ("", "", "")]
)
def test_a_stop_of_a_changed_allocation_keeps_links_that_the_plan_does_not_set(
    name: str, current: str, desired: str, expected: str
) -> None:
    state = PlanHarness()
    old = state.store()
    state.put(ALLOCATIONS.build_put(replace(old, **{name: current})))

    checked = state.check(changes=(AllocationChange(replace(old, desired_status=STOP, **{name: desired}), True),))

    assert getattr(get_record(checked), name) == expected


@pytest.mark.parametrize("is_changed", [True, False])
@pytest.mark.parametrize(
    ("node_status", "is_lost"),
    [(NodeStatus.READY, False), (NodeStatus.DOWN, True), (NodeStatus.DISCONNECTED, True), (None, True)],
)
def test_an_allocation_becomes_lost_only_if_its_node_is_out_of_contact(
    node_status: NodeStatus | None, *, is_lost: bool, is_changed: bool
) -> None:
    state = PlanHarness()
    old = state.store(client_status=ClientStatus.RUNNING)
    other = state.store("a2", client_status=ClientStatus.RUNNING)
    if node_status is None:
        state.put(NODES.build_delete("n1"))
    else:
        state.put(NODES.build_put(replace(state.node("n1"), status=node_status)))
    if is_changed:
        state.put(ALLOCATIONS.build_put(replace(old, client_description="reported")))
    states = (AllocationState(value="lost"),)
    changes = tuple(
        AllocationChange(replace(each, desired_status=STOP, client_status=LOST, alloc_states=states), True)
        for each in (old, other)
    )

    checked = state.check(changes=changes)

    stopped = get_record(checked)
    assert stopped.desired_status is STOP
    assert (stopped.client_status, stopped.alloc_states) == (
        (LOST, states) if is_lost else (ClientStatus.RUNNING, None)
    )
    assert checked.write is not None
    versions = [condition.key for condition in checked.write.conditions if condition.table == NODE_PLACEMENTS.name]
    assert versions == (["n1"] if is_lost else [])


def test_an_allocation_that_ended_meanwhile_stays_as_its_node_reported() -> None:
    state = PlanHarness()
    old = state.store(client_status=ClientStatus.RUNNING)
    state.put(ALLOCATIONS.build_put(replace(old, client_status=ClientStatus.COMPLETE)))
    desired = replace(old, desired_status=STOP, client_status=LOST, alloc_states=(AllocationState(value="lost"),))

    stopped = get_record(state.check(changes=(AllocationChange(desired, True),)))

    assert (stopped.client_status, stopped.alloc_states) == (ClientStatus.COMPLETE, None)


# -- deployments and the end of the evaluation -------------------------------------------------------------------------


def make_deployment(state: PlanHarness, *, is_stored: bool) -> Deployment:
    deployment = Deployment(id="d1", job_id="shop", status=DeploymentStatus.RUNNING, create_index=WRITE_INDEX)
    if not is_stored:
        return deployment
    state.put(DEPLOYMENTS.build_put(deployment))
    stored = state.replica.get(DEPLOYMENTS, "d1")
    assert stored is not None
    return stored


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_deployment_is_written_only_if_it_has_not_changed(*, is_stored: bool) -> None:
    state = PlanHarness()
    deployment = make_deployment(state, is_stored=is_stored)

    checked = state.check(deployments=(deployment,))
    state.put(DEPLOYMENTS.build_put(replace(deployment, status=DeploymentStatus.PAUSED)))
    later = state.check(deployments=(deployment,))

    assert list_keys(checked, DEPLOYMENTS.name) == ["d1"]
    assert checked.write is not None
    assert "d1" in [condition.key for condition in checked.write.conditions]
    assert later == PlanCheck(None)


def test_the_stable_version_is_marked_on_the_job_and_on_its_version() -> None:
    state = PlanHarness()
    job = state.job()
    state.put(JOB_VERSIONS.build_put(replace(job, create_index=WRITE_INDEX)))

    with_version = state.check(stable_job=job)
    without_version = state.check(stable_job=replace(job, version=9))

    assert with_version.write is not None
    marked = [
        (change.table, getattr(change.record, "stable", None))
        for change in with_version.write.changes
        if isinstance(change, PutRecord) and change.table in (JOBS.name, JOB_VERSIONS.name)
    ]
    assert marked == [(JOB_VERSIONS.name, True), (JOBS.name, True)]
    assert (len(list_keys(without_version, JOBS.name)), list_keys(without_version, JOB_VERSIONS.name)) == (1, [])


def test_the_conditions_of_a_part_are_not_repeated() -> None:
    state = PlanHarness()
    blocked = an_evaluation(state.job(), "b", status=EvaluationStatus.BLOCKED)

    checked = state.check(state.make_allocation(), follow_ups=(blocked,))

    assert checked.write is not None
    keys = [(condition.table, condition.key) for condition in checked.write.conditions]
    assert len(keys) == len(set(keys))
    assert (EVALUATIONS.name, "b") in keys
    assert list_keys(checked, EVALUATIONS.name) == ["e1", "b"]


def test_the_end_of_an_evaluation_that_does_not_fit_is_a_part_of_its_own() -> None:
    state = PlanHarness()
    follow_ups = tuple(an_evaluation(state.job(), f"b{number}") for number in range(4))
    plan = state.make_plan(*(state.make_allocation(f"a{number}") for number in range(4)), follow_ups=follow_ups)

    first = check_plan(plan, state.replica, max_changes=8)

    assert (len(list_keys(first)), list_keys(first, EVALUATIONS.name)) == (4, [])
    assert first.remaining_plan is not None
    assert (first.remaining_plan.placements, first.remaining_plan.changes) == ({}, ())
    assert first.remaining_plan.completed_evaluation == plan.completed_evaluation
    last = check_plan(first.remaining_plan, state.replica, max_changes=8)
    assert list_keys(last, EVALUATIONS.name) == ["e1", "b0", "b1", "b2", "b3"]


def test_a_plan_without_a_job_is_current_while_the_job_does_not_exist() -> None:
    state = PlanHarness()
    with_job = state.check()
    without = state.check(job=None)
    state.put(JOBS.build_delete("default", "shop"))
    evaluation = state.replica.get(EVALUATIONS, "e1")
    assert evaluation is not None
    plan = Plan(evaluation, None, (), {}, replace(evaluation, status=EvaluationStatus.COMPLETE), ())

    assert with_job.write is not None
    assert without == PlanCheck(None)
    assert check_plan(plan, state.replica, max_changes=9).write is not None
