"""The amounts that allocations use of a quota, their limits, and which placements quotas and child limits admit."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job, a_task, some_resources
from tests.kit.state import AState, an_allocation
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.admission import PlacementAdmission
from wharf.cluster.scheduling.capacity.child_limits import count_running_children, explain_child_limit, get_max_running
from wharf.cluster.scheduling.capacity.quotas import (
    QuotaUsageTracker,
    RemainingQuota,
    UsageAdder,
    convert_usage_to_limit,
    find_region_limit,
    get_remaining_quota,
    measure_amounts,
    sum_namespace_usage,
    sum_quota_usage,
    sum_requested_amounts,
    try_consume_quota,
)
from wharf.cluster.state.tables import ALLOCATIONS, JOB_SUMMARIES, JOBS, NAMESPACES, QUOTAS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.jobs.job import ChildrenSummary, Job, JobStatus, JobSummary, Parameterized, Periodic
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit

BIG_GPU = AllocatedDevice(vendor="acme", type="gpu", name="big", device_ids=("a", "b"))


def make_resources(cpu: int = 100, memory_mb: int = 10, *, max_memory_mb: int = 0, **fields: Any) -> AllocatedResources:
    task = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=cpu, reserved_cores=fields.pop("cores", None)),
        memory=AllocatedMemory(memory_mb=memory_mb, memory_max_mb=max_memory_mb),
        **fields,
    )
    return AllocatedResources(tasks={"server": task})


def make_state(*namespaces: str, **limits: Any) -> AState:
    """Return a state in which these namespaces have the quota `tight` in the region `global`."""
    state = AState()
    limit = QuotaLimit(region="global", region_limit=RegionLimit(**limits))
    state.put(QUOTAS.build_put(Quota(name="tight", limits=(limit,), create_index=WRITE_INDEX)))
    for name in namespaces:
        index = 0 if name == "default" else WRITE_INDEX
        state.put(NAMESPACES.build_put(Namespace(name=name, quota="tight", create_index=index)))
    return state


def put_allocation(state: AState, job: Job, allocation_id: str, **fields: Any) -> Allocation:
    state.put(ALLOCATIONS.build_put(an_allocation(job, allocation_id, **fields)))
    return state.allocation(allocation_id)


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "name"),
    [
        ("count", "count"),
        ("cpu", "cpu"),
        ("cores", "cores"),
        ("memory_mb", "memory"),
        ("memory_max_mb", "memory max"),
    ],
)
def test_each_dimension_may_be_used_up_to_its_limit(dimension: str, name: str) -> None:
    limit: dict[str, Any] = {dimension: 10}
    remaining = RemainingQuota("tight", RegionLimit(**limit), {dimension: 4})

    assert remaining.list_exceeded_limits({dimension: 6}) == ()
    assert remaining.list_exceeded_limits({dimension: 7}) == (f"{name} exhausted (11 needed > 10 limit)",)
    assert remaining.list_exceeded_limits({dimension: 0}) == ()


def test_a_dimension_that_is_over_its_limit_refuses_only_what_requests_more_of_it() -> None:
    remaining = RemainingQuota("tight", RegionLimit(cpu=10, memory_mb=100), {"cpu": 20, "memory_mb": 50})

    assert remaining.list_exceeded_limits({"memory_mb": 50}) == ()
    assert remaining.list_exceeded_limits({"cpu": 1, "memory_mb": 51}) == (
        "cpu exhausted (21 needed > 10 limit)",
        "memory exhausted (101 needed > 100 limit)",
    )


@pytest.mark.parametrize(
    ("limit", "texts"),
    [(0, ()), (-1, ("cpu exhausted (1 needed > 0 limit: can never run, more than the whole quota)",))],
)
def test_a_limit_of_zero_is_no_limit_and_a_negative_limit_allows_nothing(limit: int, texts: tuple[str, ...]) -> None:
    assert RemainingQuota("tight", RegionLimit(cpu=limit), {}).list_exceeded_limits({"cpu": 1}) == texts


def test_released_amounts_are_subtracted_from_the_used_ones() -> None:
    limit = RegionLimit(cpu=10, devices=(RequestedDevice(name="acme/gpu", count=3),))
    device = "device acme/gpu/big"
    remaining = RemainingQuota("tight", limit, {"cpu": 10, device: 3})

    assert remaining.list_exceeded_limits({"cpu": 4, device: 2}, released={"cpu": 4, device: 2}) == ()
    assert remaining.list_exceeded_limits({"cpu": 4, device: 2}, released={"cpu": 3, device: 1}) == (
        "cpu exhausted (11 needed > 10 limit)",
        "device acme/gpu exhausted (4 needed > 3 limit)",
    )


def test_consumed_amounts_count_for_the_next_check_and_do_not_change_what_was_passed() -> None:
    used = {"cpu": 3}
    remaining = RemainingQuota("tight", RegionLimit(cpu=10, count=2), used)

    remaining.consume_amounts({"cpu": 4, "count": 1})
    remaining.consume_amounts({"count": 1})

    assert remaining.list_exceeded_limits({"cpu": 3}) == ()
    assert remaining.list_exceeded_limits({"cpu": 4, "count": 1}) == (
        "count exhausted (3 needed > 2 limit)",
        "cpu exhausted (11 needed > 10 limit)",
    )
    assert used == {"cpu": 3}


def test_devices_of_several_models_count_against_a_limit_on_their_type() -> None:
    limit = RegionLimit(devices=(RequestedDevice(name="gpu", count=4), RequestedDevice(name="fpga", count=1)))
    used = {"count": 9, "device acme/gpu/big": 2, "device acme/gpu/small": 1, "device acme/fpga/x": 1}
    remaining = RemainingQuota("tight", limit, used)

    assert remaining.list_exceeded_limits({"device gpu": 1}) == ()
    assert remaining.list_exceeded_limits({"device gpu": 2, "device fpga": 1}) == (
        "device gpu exhausted (5 needed > 4 limit)",
        "device fpga exhausted (2 needed > 1 limit)",
    )


def test_the_limit_of_the_region_applies() -> None:
    quota = Quota(
        name="tight",
        limits=tuple(
            QuotaLimit(region=region, region_limit=RegionLimit(cpu=cpu)) for region, cpu in (("eu", 1), ("us", 2))
        ),
    )

    assert [find_region_limit(quota, region) for region in ("eu", "us", "mars")] == [
        RegionLimit(cpu=1),
        RegionLimit(cpu=2),
        None,
    ]
    assert find_region_limit(Quota(name="empty"), "eu") is None


def test_namespaces_with_a_quota_for_the_region_or_a_missing_quota_are_limited() -> None:
    state = make_state("default", cpu=10)
    state.put(NAMESPACES.build_put(Namespace(name="free", create_index=WRITE_INDEX)))
    state.put(NAMESPACES.build_put(Namespace(name="dangling", quota="deleted", create_index=WRITE_INDEX)))

    remaining = [
        get_remaining_quota(state.replica, namespace, region)
        for namespace, region in (
            ("default", "global"),
            ("default", "mars"),
            ("free", "global"),
            ("dangling", "global"),
            ("unknown", "global"),
        )
    ]

    assert [each is not None for each in remaining] == [True, False, False, True, False]
    assert remaining[0] is not None
    assert (remaining[0].quota, remaining[0].list_exceeded_limits({"cpu": 11})) == (
        "tight",
        ("cpu exhausted (11 needed > 10 limit: can never run, more than the whole quota)",),
    )


# -- amounts -----------------------------------------------------------------------------------------------------------


def test_an_allocation_is_measured_over_all_its_tasks() -> None:
    tasks = {
        "one": AllocatedTaskResources(
            cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=10, memory_max_mb=30), devices=(BIG_GPU,)
        ),
        "two": AllocatedTaskResources(
            cpu=AllocatedCpu(cpu_shares=900, reserved_cores=(1, 2)), memory=AllocatedMemory(memory_mb=5)
        ),
        "three": AllocatedTaskResources(
            cpu=AllocatedCpu(cpu_shares=50), devices=(replace(BIG_GPU, device_ids=("c",)), AllocatedDevice(name="x"))
        ),
    }

    assert measure_amounts(AllocatedResources(tasks=tasks)) == {
        "count": 1,
        "cpu": 150,
        "cores": 2,
        "memory_mb": 15,
        "memory_max_mb": 35,
        "device acme/gpu/big": 3,
        "device //x": 0,
    }
    assert measure_amounts(None) == measure_amounts(AllocatedResources()) == {"count": 1}


@pytest.mark.parametrize(
    ("fields", "memory", "maximum"),
    [
        ({}, 64, 64),
        ({"memory_max_mb": 100}, 64, 100),
        ({"memory_max_mb": 60}, 64, 64),
        ({"memory_max_mb": -1}, 64, 64),
        ({"secrets_mb": 6}, 70, 70),
        ({"secrets_mb": 6, "memory_max_mb": 68}, 70, 70),
        ({"secrets_mb": 6, "memory_max_mb": 71}, 70, 71),
    ],
)
def test_the_requested_memory_includes_secrets_and_the_maximum_is_at_least_that(
    fields: dict[str, int], memory: int, maximum: int
) -> None:
    requested = sum_requested_amounts(a_group("web", a_task(resources=some_resources(memory_mb=64, **fields))))

    assert (requested["memory_mb"], requested["memory_max_mb"]) == (memory, maximum)


def test_requested_cores_and_devices_are_added_up_and_replace_the_requested_cpu() -> None:
    group = a_group(
        "web",
        a_task("one", resources=some_resources(cpu=100, cores=2, devices=(RequestedDevice(name="gpu", count=2),))),
        a_task("two", resources=some_resources(cpu=50, devices=(RequestedDevice(name="gpu", count=3),))),
        a_task("three", resources=some_resources(cpu=7, cores=1)),
    )

    requested = sum_requested_amounts(group)

    assert (requested["cpu"], requested["cores"], requested["device gpu"]) == (50, 3, 5)
    assert sum_requested_amounts(replace(group, tasks=None)) == {"count": 1}


def test_used_amounts_are_shown_as_a_limit() -> None:
    used = {"count": 1, "cpu": 2, "cores": 3, "memory_mb": 4, "memory_max_mb": 5, "device b": 6, "device a": 7}

    assert convert_usage_to_limit(used) == RegionLimit(
        count=1,
        cpu=2,
        cores=3,
        memory_mb=4,
        memory_max_mb=5,
        devices=(RequestedDevice(name="a", count=7), RequestedDevice(name="b", count=6)),
    )
    assert convert_usage_to_limit({}) == RegionLimit()


def test_allocations_count_until_they_end_and_once_for_each_use_of_a_shared_record() -> None:
    state = make_state("default", "other")
    shared, own = make_resources(100), make_resources(7, max_memory_mb=20)
    jobs = [a_job("shop"), a_job("mail"), a_job("shop", namespace="other"), a_job("free", namespace="free")]
    for number, (job, resources, status) in enumerate(
        [
            (jobs[0], shared, ClientStatus.RUNNING),
            (jobs[0], shared, ClientStatus.PENDING),
            (jobs[0], shared, ClientStatus.COMPLETE),
            (jobs[1], own, ClientStatus.RUNNING),
            (jobs[1], None, ClientStatus.RUNNING),
            (jobs[1], None, ClientStatus.RUNNING),
            (jobs[2], shared, ClientStatus.RUNNING),
            (jobs[3], shared, ClientStatus.RUNNING),
        ]
    ):
        put_allocation(state, job, f"a{number}", allocated_resources=resources, client_status=status)
    state.put(*(JOBS.build_put(replace(job, create_index=WRITE_INDEX)) for job in jobs))
    adder = UsageAdder()
    for allocation in state.replica.iter_all(ALLOCATIONS):
        adder.add(allocation)

    of_default = {"count": 5, "cpu": 207, "cores": 0, "memory_mb": 30, "memory_max_mb": 40}
    of_other = {"count": 1, "cpu": 100, "cores": 0, "memory_mb": 10, "memory_max_mb": 10}
    both = {name: amount + of_other[name] for name, amount in of_default.items()}
    assert (adder.totals["default"], adder.totals["other"]) == (of_default, of_other)
    assert sum_namespace_usage(state.replica, "default") == of_default
    assert sum_namespace_usage(state.replica, "unknown") == {}
    assert adder.sum_quota_usage(state.replica, "tight") == both
    assert sum_quota_usage(state.replica, "tight") == both
    assert SchedulerCache.from_snapshot(state.replica).quota_usage.get_quota_usage(state.replica, "tight") == both


def test_the_tracker_follows_new_changed_and_deleted_allocations() -> None:
    state = make_state("default")
    tracker = QuotaUsageTracker()
    job, small, large = a_job(), make_resources(100), make_resources(300, cores=(1,))
    first = an_allocation(job, "a1", allocated_resources=small)
    assert tracker.get_quota_usage(state.replica, "tight") == {}
    second = replace(first, id="a2", allocated_resources=large)
    elsewhere = replace(first, id="a3", namespace="other")
    bare = replace(first, id="a4", allocated_resources=None)

    def get_used() -> tuple[int, int, int]:
        used = tracker.get_quota_usage(state.replica, "tight")
        return used["count"], used["cpu"], used["cores"]

    history = []
    for before, after in (
        (None, first),
        (None, second),
        (None, elsewhere),
        (None, bare),
        (first, replace(first, allocated_resources=large)),
        (second, replace(second, desired_status=DesiredStatus.STOP)),
        (second, replace(second, client_status=ClientStatus.COMPLETE)),
        (replace(second, client_status=ClientStatus.COMPLETE), None),
        (bare, None),
    ):
        tracker.apply_change(before, after)
        history.append(get_used())

    assert history == [
        (1, 100, 0),
        (2, 100, 1),
        (2, 100, 1),
        (3, 100, 1),
        (3, 0, 2),
        (3, 0, 2),
        (2, 0, 1),
        (2, 0, 1),
        (1, 0, 1),
    ]
    tracker.apply_change(replace(first, allocated_resources=large), None)
    assert tracker.get_quota_usage(state.replica, "tight") == {}


def test_the_tracker_measures_more_records_than_it_caches() -> None:
    state = make_state("default")
    tracker = QuotaUsageTracker()
    for number in range(4_100):
        allocation = an_allocation(a_job(), f"a{number}", allocated_resources=make_resources(number))
        tracker.apply_change(None, allocation)

    assert tracker.get_quota_usage(state.replica, "tight")["cpu"] == sum(range(4_100))


# -- admission ---------------------------------------------------------------------------------------------------------


def test_a_plan_consumes_the_quota_for_all_allocations_of_a_node_or_for_none() -> None:
    remaining = RemainingQuota("tight", RegionLimit(count=3, cpu=1_000), {})
    placed = tuple(an_allocation(a_job(), f"a{n}", allocated_resources=make_resources(100)) for n in range(4))

    assert [try_consume_quota(remaining, placed[:count]) for count in (4, 2, 2, 1, 1)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert remaining.list_exceeded_limits({"cpu": 701}) == ("cpu exhausted (1001 needed > 1000 limit)",)
    assert try_consume_quota(None, placed) is True


def make_admission(state: AState, job: Job | None, *allocations: Allocation) -> PlacementAdmission:
    quota_usage = SchedulerCache.from_snapshot(state.replica).quota_usage
    return PlacementAdmission(state.replica, quota_usage, job, allocations)


def test_placements_are_admitted_until_the_quota_is_consumed_and_refusals_are_counted() -> None:
    state = make_state("default", cpu=250)
    job = a_job("shop", a_group("web"), a_group("db", a_task(resources=some_resources(cpu=240))), node_pool="gpu")
    web, db = job.groups
    admission = make_admission(state, job)

    assert (admission.has_limits, admission.was_refused(web)) == (True, False)
    admitted = []
    for _ in range(4):
        admitted.append(admission.try_admit(web))
        if admitted[-1]:
            admission.consume_quota(make_resources(100))
    refused_before = admission.was_refused(db)

    assert (admitted, refused_before) == ([True, True, False, False], False)
    assert (admission.was_refused(web), admission.try_admit(db), admission.was_refused(db)) == (True, False, True)
    metrics = [admission.build_refusal_metric(job, group) for group in (web, db)]
    assert [
        (metric.node_pool, metric.quota_exhausted, metric.coalesced_failures)
        for metric in metrics
        if metric is not None
    ] == [
        ("gpu", ("cpu exhausted (300 needed > 250 limit)",), 1),
        ("gpu", ("cpu exhausted (440 needed > 250 limit)",), 0),
    ]


def test_a_group_that_was_admitted_last_was_not_refused_and_keeps_the_first_reason() -> None:
    state = make_state("default", cpu=90)
    job = a_job("shop", a_group("web", a_task(resources=some_resources(cpu=100))))
    small = replace(job.groups[0], tasks=(a_task(resources=some_resources(cpu=10)),))
    admission = make_admission(state, job)

    assert [admission.try_admit(job.groups[0]), admission.try_admit(small)] == [False, True]
    assert admission.was_refused(job.groups[0]) is False
    admission.consume_quota(make_resources(85))
    assert admission.try_admit(small) is False
    metric = admission.build_refusal_metric(job, small)
    assert metric is not None
    assert metric.quota_exhausted == (
        "cpu exhausted (100 needed > 90 limit: can never run, more than the whole quota)",
    )


def test_without_quota_and_child_limit_everything_is_admitted() -> None:
    state = AState()
    job = a_job()
    admission = make_admission(state, job)
    admission.consume_quota(make_resources(1_000_000))

    assert (admission.has_limits, admission.try_admit(job.groups[0])) == (False, True)
    assert admission.build_refusal_metric(job, job.groups[0]) is None
    assert make_admission(state, None).has_limits is False


def test_a_replacement_needs_no_slot_of_the_parent_job_but_its_quota() -> None:
    state = make_state("default", cpu=150)
    state.put(JOBS.build_put(make_parent(1)), JOB_SUMMARIES.build_put(make_summary(running=1)))
    child = a_batch_job("convert/1", parent_id="convert")
    admission = make_admission(state, child)
    admission.consume_quota(make_resources(100))
    group = child.groups[0]

    assert (admission.has_limits, admission.child_limit_reason) == (
        True,
        "max_running of convert exhausted (1 running, limit 1)",
    )
    assert admission.list_reasons(group) == ("max_running of convert exhausted (1 running, limit 1)",)
    assert admission.list_reasons(group, released=make_resources(50)) == ()
    assert admission.list_reasons(group, released=make_resources(49)) == ("cpu exhausted (151 needed > 150 limit)",)


# -- child limits ------------------------------------------------------------------------------------------------------


def make_parent(max_running: int) -> Job:
    return a_batch_job("convert", parameterized_job=Parameterized(max_running=max_running), create_index=WRITE_INDEX)


def make_summary(*, running: int) -> JobSummary:
    return JobSummary(
        job_id="convert", namespace="default", children=ChildrenSummary(running=running), create_index=WRITE_INDEX
    )


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 0),
        ({"periodic": Periodic(max_running=3)}, 3),
        ({"parameterized_job": Parameterized(max_running=2)}, 2),
        ({"parameterized_job": Parameterized(max_running=1)}, 1),
        ({"parameterized_job": Parameterized()}, 0),
        ({"periodic": Periodic(max_running=3), "parameterized_job": Parameterized(max_running=2)}, 2),
        ({"periodic": Periodic(max_running=3), "parameterized_job": Parameterized()}, 3),
    ],
)
def test_the_lower_limit_on_running_children_counts_and_zero_is_no_limit(fields: dict[str, Any], limit: int) -> None:
    assert get_max_running(a_batch_job(**fields)) == limit


@pytest.mark.parametrize(
    ("running", "max_running", "is_refused"), [(0, 1, False), (1, 1, True), (1, 2, False), (2, 2, True), (9, 0, False)]
)
def test_a_child_waits_while_as_many_children_run_as_allowed(running: int, max_running: int, is_refused: bool) -> None:
    state = AState()
    state.put(JOBS.build_put(make_parent(max_running)), JOB_SUMMARIES.build_put(make_summary(running=running)))
    child = a_batch_job("convert/1", parent_id="convert")

    assert bool(explain_child_limit(state.replica, child, ())) == is_refused
    assert explain_child_limit(state.replica, replace(child, parent_id="other"), ()) == ""
    assert explain_child_limit(state.replica, replace(child, parent_id=""), ()) == ""
    assert explain_child_limit(state.replica, replace(child, status=JobStatus.RUNNING), ()) == ""


def test_a_child_with_an_active_allocation_has_started() -> None:
    state = AState()
    state.put(JOBS.build_put(make_parent(1)), JOB_SUMMARIES.build_put(make_summary(running=1)))
    child = a_batch_job("convert/1", parent_id="convert")
    active = an_allocation(child)
    ended = replace(active, client_status=ClientStatus.COMPLETE)

    assert [
        explain_child_limit(state.replica, child, allocations) == ""
        for allocations in ((), (ended,), (active,), (ended, active))
    ] == [False, False, True, True]


def test_a_parent_without_a_summary_of_children_has_none() -> None:
    state = AState()
    state.register(a_periodic_job("convert"))
    state.register(a_job("plain"))

    assert [count_running_children(state.replica, "default", name) for name in ("convert", "plain", "none")] == [0] * 3
