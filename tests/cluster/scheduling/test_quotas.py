"""What a namespace may still use of its quota."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_system_job, a_task, some_resources
from tests.kit.state import SETTINGS, AState
from wharf.cluster.controllers.quotas import select_retries
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.quotas import (
    RemainingQuota,
    get_remaining_quota,
    sum_quota_usage,
    sum_requested_amounts,
)
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NAMESPACES, NODES, QUOTAS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.resources import DeviceInstance, NodeCpu, NodeDevice
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit


def make_group(*tasks: tuple[int, int], count: int = 1) -> TaskGroup:
    built_tasks = [
        a_task(f"task-{number}", driver="mock", resources=some_resources(cpu=cpu, memory_mb=memory_mb))
        for number, (cpu, memory_mb) in enumerate(tasks)
    ]
    return a_group("web", *built_tasks, count=count)


def make_state(*, region: str = SETTINGS.region, **limits: Any) -> AState:
    """Return a state with unlimited nodes and a quota on the default namespace."""
    state = AState()
    for number in range(1, 4):
        state.with_node(f"node-{number}", cpu=10_000, memory_mb=10_000)
    limit = QuotaLimit(region=region, region_limit=RegionLimit(**limits))
    state.put(
        QUOTAS.build_put(Quota(name="tight", limits=(limit,), create_index=WRITE_INDEX)),
        NAMESPACES.build_put(Namespace(name="default", quota="tight")),
    )
    return state


def make_plan(state: AState, job: Job) -> Plan:
    state.register(job)
    (evaluation,) = [e for e in state.evaluations(job.id) if e.status is EvaluationStatus.PENDING]
    return state.plan(evaluation)


def commit_plan(state: AState, plan: Plan) -> None:
    remaining_plan: Plan | None = plan
    while remaining_plan is not None:
        checked = check_plan(remaining_plan, state.replica, max_changes=200)
        assert checked.write is not None
        state.put_led(*checked.write.changes)
        remaining_plan = checked.remaining_plan


def count_placements(plan: Plan) -> int:
    return sum(map(len, plan.placements.values()))


@pytest.mark.parametrize(
    ("limits", "fitting"),
    [({"cpu": 250}, 2), ({"memory_mb": 300}, 3), ({"count": 4}, 4), ({"cpu": 500, "memory_mb": 199, "count": 9}, 1)],
)
def test_no_more_is_placed_than_each_limit_allows(limits: dict[str, Any], fitting: int) -> None:
    assert count_placements(make_plan(make_state(**limits), a_job("shop", make_group((100, 100), count=8)))) == fitting


def make_state_with_devices(*limits: tuple[str, int]) -> AState:
    """Return a state with a quota on devices, and with nodes that have two GPUs of each of two models."""
    state = make_state(devices=tuple(RequestedDevice(name=name, count=count) for name, count in limits))
    for node in list(state.replica.iter_all(NODES)):
        assert node.node_resources is not None
        devices = tuple(
            NodeDevice(
                vendor="acme",
                type="gpu",
                name=name,
                instances=tuple(DeviceInstance(id=f"{node.id}-{name}-{number}", healthy=True) for number in range(2)),
            )
            for name in ("big", "small")
        )
        state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, devices=devices))))
    return state


def make_group_with_device(name: str, *, count: int, devices: int = 1) -> TaskGroup:
    resources = replace(some_resources(cpu=10), devices=(RequestedDevice(name=name, count=devices),))
    return a_group("web", a_task("train", driver="mock", resources=resources), count=count)


@pytest.mark.parametrize(
    ("limit", "requested", "fitting"),
    [
        (("gpu", 2), "acme/gpu/big", 2),
        (("acme/gpu", 3), "gpu", 3),
        (("acme/gpu/big", 1), "acme/gpu/big", 1),
        (("acme/gpu/big", 1), "acme/gpu/small", 6),
        (("acme/gpu/big", 2), "gpu", 2),
        (("fpga", 1), "gpu", 8),
        (("gpu", 0), "gpu", 8),
        (("gpu", -1), "gpu", 0),
    ],
)
def test_no_more_devices_are_assigned_than_the_quota_allows(
    limit: tuple[str, int], requested: str, fitting: int
) -> None:
    state = make_state_with_devices(limit)

    plan = make_plan(state, a_job("shop", make_group_with_device(requested, count=8)))

    assert count_placements(plan) == fitting


def test_devices_in_use_count_for_the_next_job() -> None:
    state = make_state_with_devices(("acme/gpu", 3))
    commit_plan(state, make_plan(state, a_job("first", make_group_with_device("gpu", count=1, devices=2))))

    plan = make_plan(state, a_job("second", make_group_with_device("acme/gpu/small", count=4)))

    assert count_placements(plan) == 1
    metric = (plan.follow_ups[0].failed_tg_allocs or {})["web"]
    assert metric.quota_exhausted == ("device acme/gpu exhausted (4 needed > 3 limit)",)


def test_the_second_of_two_concurrent_plans_gets_only_the_remaining_devices() -> None:
    state = make_state_with_devices(("gpu", 3))
    first = make_plan(state, a_job("first", make_group_with_device("gpu", count=2)))
    second = make_plan(state, a_job("second", make_group_with_device("gpu", count=2)))

    commit_plan(state, first)
    checked = check_plan(second, state.replica, max_changes=200)

    assert checked.write is None or len([c for c in checked.write.changes if c.table == ALLOCATIONS.name]) <= 1
    assert checked.dropped_nodes


def test_reserved_cores_do_not_count_against_a_limit_on_cpu() -> None:
    state = make_state(cpu=1_000)
    for node in list(state.replica.iter_all(NODES)):
        assert node.node_resources is not None
        cpu = NodeCpu(cpu_shares=10_000, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3))
        state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, cpu=cpu))))
    task = a_task(driver="mock", resources=replace(some_resources(cpu=0), cores=2))

    plan = make_plan(state, a_job("shop", a_group("web", task)))
    checked = check_plan(plan, state.replica, max_changes=200)

    assert (count_placements(plan), list(checked.dropped_nodes)) == (1, [])


def test_a_limit_below_zero_allows_nothing_and_a_limit_of_zero_everything() -> None:
    assert count_placements(make_plan(make_state(count=-1), a_job("shop", make_group((100, 100))))) == 0
    assert count_placements(make_plan(make_state(cpu=0), a_job("shop", make_group((100, 100), count=5)))) == 5


def test_a_refused_evaluation_names_the_quota_and_the_excess() -> None:
    plan = make_plan(make_state(memory_mb=250), a_job("shop", make_group((100, 100), count=4)))

    (blocked,) = plan.follow_ups
    assert (blocked.status, blocked.quota_limit_reached) == (EvaluationStatus.BLOCKED, "tight")
    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.quota_limit_reached == "tight"
    metric = (blocked.failed_tg_allocs or {})["web"]
    assert metric.quota_exhausted == ("memory exhausted (300 needed > 250 limit)",)
    assert metric.coalesced_failures == 1


def test_a_group_without_nodes_and_without_quota_reports_both_reasons() -> None:
    state = make_state(memory_mb=12_000)
    job = a_system_job("agent", make_group((100, 6_000)))
    full = state.with_allocation(
        a_job("other", make_group((100, 6_000)), namespace="theirs"),
        node_id="node-1",
        client_status=ClientStatus.RUNNING,
        allocated_resources=AllocatedResources(
            tasks={"server": AllocatedTaskResources(memory=AllocatedMemory(memory_mb=6_000))}
        ),
    )
    state.with_node("node-4", cpu=10_000, memory_mb=10_000)

    plan = make_plan(state, job)

    (blocked,) = plan.follow_ups
    metric = (blocked.failed_tg_allocs or {})["web"]
    assert full.node_id not in plan.placements
    assert metric.quota_exhausted == ("memory exhausted (18000 needed > 12000 limit)",)
    assert metric.dimension_exhausted == {"memory": 1}
    assert (metric.nodes_exhausted, metric.coalesced_failures) == (1, 1)


def test_system_jobs_are_limited_too() -> None:
    assert count_placements(make_plan(make_state(count=2), a_system_job("agent", make_group((100, 100))))) == 2


def test_a_limit_of_another_region_does_not_apply() -> None:
    assert (
        count_placements(make_plan(make_state(region="mars", count=1), a_job("shop", make_group((100, 100), count=3))))
        == 3
    )


def test_usage_of_other_namespaces_with_the_quota_counts() -> None:
    state = make_state(count=3)
    state.put(NAMESPACES.build_put(Namespace(name="other", quota="tight", create_index=WRITE_INDEX)))
    commit_plan(state, make_plan(state, a_job("theirs", make_group((100, 100), count=2), namespace="other")))

    assert count_placements(make_plan(state, a_job("shop", make_group((100, 100), count=3)))) == 1


def test_a_stopping_allocation_counts_until_its_node_reports_the_end() -> None:
    state = make_state(count=1)
    state.register(a_job("old", make_group((100, 100))))
    old = state.with_allocation(state.job("old"), client_status=ClientStatus.RUNNING)
    remaining_quota = get_remaining_quota(state.replica, "default", SETTINGS.region)
    assert remaining_quota is not None
    assert remaining_quota.list_exceeded_limits({"count": 1}) != ()

    state.with_client_status(old.id, ClientStatus.COMPLETE)
    remaining_quota = get_remaining_quota(state.replica, "default", SETTINGS.region)
    assert remaining_quota is not None
    assert remaining_quota.list_exceeded_limits({"count": 1}) == ()


def test_all_tasks_of_a_group_count() -> None:
    assert sum_requested_amounts(make_group((100, 200), (50, 25))) == {
        "count": 1, "cpu": 150, "cores": 0, "memory_mb": 225, "memory_max_mb": 225,
    }  # fmt: skip


def test_the_second_of_two_concurrent_plans_is_cut_to_the_remaining_quota() -> None:
    state = make_state(count=3)
    first = make_plan(state, a_job("first", make_group((100, 100), count=2)))
    second = make_plan(state, a_job("second", make_group((100, 100), count=2)))

    commit_plan(state, first)
    checked = check_plan(second, state.replica, max_changes=200)

    assert checked.write is None or len([c for c in checked.write.changes if c.table == ALLOCATIONS.name]) <= 1
    assert checked.dropped_nodes


def test_a_replacement_needs_only_the_difference() -> None:
    remaining_quota = RemainingQuota("tight", RegionLimit(memory_mb=100), {"memory_mb": 100})

    assert remaining_quota.list_exceeded_limits({"memory_mb": 100}, released={"memory_mb": 100}) == ()
    assert remaining_quota.list_exceeded_limits({"memory_mb": 101}, released={"memory_mb": 100}) != ()


def test_an_update_that_the_quota_never_allows_changes_nothing() -> None:
    state = make_state(memory_mb=100)
    commit_plan(state, make_plan(state, a_job("shop", make_group((100, 100)))))
    state.with_client_status(next(iter(state.replica.iter_all(ALLOCATIONS))).id, ClientStatus.RUNNING)

    plan = make_plan(state, a_job("shop", make_group((100, 200))))

    assert (plan.stops, count_placements(plan)) == ((), 0)


def test_an_update_within_the_quota_stops_the_old_allocation_first_if_both_do_not_fit() -> None:
    state = make_state(memory_mb=100)
    commit_plan(state, make_plan(state, a_job("shop", make_group((100, 100)))))
    state.with_client_status(next(iter(state.replica.iter_all(ALLOCATIONS))).id, ClientStatus.RUNNING)

    plan = make_plan(state, a_job("shop", make_group((200, 100))))

    assert (len(plan.stops), count_placements(plan)) == (1, 0)


def test_the_tracked_quota_usage_equals_the_sum_of_allocations() -> None:
    state = AState()
    state.put(QUOTAS.build_put(Quota(name="small", create_index=WRITE_INDEX)))
    state.put(NAMESPACES.build_put(Namespace(name="default", quota="small", create_index=WRITE_INDEX)))
    state.with_node()
    cache = SchedulerCache.from_snapshot(state.replica)
    before = cache.quota_usage.get_quota_usage(state.replica, "small")
    job = a_job()
    state.register(job)
    resources = AllocatedResources(tasks={"server": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=300))})
    added = state.with_allocation(job, allocated_resources=resources, client_status=ClientStatus.RUNNING)
    cache.apply_changes(state.replica, [], [(added.id, None, added)])
    after = cache.quota_usage.get_quota_usage(state.replica, "small")

    assert (before, after) == ({}, sum_quota_usage(state.replica, "small"))
    assert after["cpu"] == 300


def test_a_job_in_a_namespace_with_a_missing_quota_is_blocked_with_an_explanation_until_the_quota_exists() -> None:
    state = make_state()
    state.put(NAMESPACES.build_put(Namespace(name="orphan", quota="gone", create_index=WRITE_INDEX)))

    plan = make_plan(state, a_job("shop", make_group((100, 64)), namespace="orphan"))

    (follow_up,) = plan.follow_ups
    assert (plan.placements, follow_up.status, follow_up.quota_limit_reached) == ({}, EvaluationStatus.BLOCKED, "gone")
    failed = (follow_up.failed_tg_allocs or {})["web"]
    assert failed.quota_exhausted == (
        'quota "gone" of namespace "orphan" does not exist: create it, or store the namespace without it',
    )
    state.put(EVALUATIONS.build_put(replace(follow_up, create_index=WRITE_INDEX, modify_index=0)))
    assert select_retries(state.replica, 5) == []

    state.put(QUOTAS.build_put(Quota(name="gone", create_index=WRITE_INDEX)))
    assert [evaluation.id for evaluation in select_retries(state.replica, 5)] == [follow_up.id]
