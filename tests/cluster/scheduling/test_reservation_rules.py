"""Which waiting evaluations get a reserved node, which node it is, and when the reservation is of no use any more."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_constraint, a_group, a_job, a_system_job, a_task, some_resources
from tests.kit.state import SECOND_NS, AState, an_allocation, an_evaluation
from wharf.cluster.scheduling.blocked.reservation_policy import (
    MAX_SEARCHES,
    RESERVATION_DELAY_NS,
    can_reserve_node,
    choose_reservations,
    find_node_to_reserve,
    get_max_reservations,
    is_reservation_useful,
    list_missed_reservations,
)
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.fair_share import NamespaceUsage, compute_dominant_share
from wharf.cluster.scheduling.capacity.reservation import Reservation, build_reservation, find_largest_waiting_group
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NAMESPACES, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.resource_usage import Usage, get_resources_usage

WAITING_SINCE_NS = 1_000 * SECOND_NS
DUE_NS = WAITING_SINCE_NS + RESERVATION_DELAY_NS


def make_group(
    name: str = "web", cpu: int = 500, memory_mb: int = 500, disk_mb: int = 1_000, **fields: Any
) -> TaskGroup:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=memory_mb))
    return a_group(name, task, ephemeral_disk=EphemeralDisk(size_mb=disk_mb), **fields)


def make_evaluation(job: Job, *groups: str, **fields: Any) -> Evaluation:
    fields = {"status": EvaluationStatus.BLOCKED, "waiting_since": WAITING_SINCE_NS, **fields}
    missing = {name: AllocMetric() for name in groups or ("web",)}
    return an_evaluation(job, fields.pop("id", f"e-{job.id}"), failed_tg_allocs=missing, **fields)


def make_state(*jobs: Job) -> AState:
    state = AState()
    state.put(*(JOBS.build_put(replace(job, create_index=WRITE_INDEX)) for job in jobs))
    return state


def use(
    state: AState, node_id: str, cpu: int, memory_mb: int = 0, disk_mb: int = 0, *, job_id: str = "small", **fields: Any
) -> None:
    """Place an allocation of the job with these resources on the node."""
    task = AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=cpu), memory=AllocatedMemory(memory_mb=memory_mb))
    resources = AllocatedResources(tasks={"server": task}, shared=AllocatedSharedResources(disk_mb=disk_mb))
    key = f"{job_id}-{node_id}-{cpu}-{memory_mb}-{disk_mb}"
    state.put(
        ALLOCATIONS.build_put(
            an_allocation(a_job(job_id), key, node_id=node_id, allocated_resources=resources, **fields)
        )
    )


def find_node(state: AState, evaluation: Evaluation, *reserved: str) -> str:
    return find_node_to_reserve(state.replica, SchedulerCache.from_snapshot(state.replica), evaluation, reserved)


# -- which evaluations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "fields", "expected"),
    [
        (a_job("shop", make_group()), {}, True),
        (a_batch_job("shop", make_group()), {}, True),
        (a_system_job("shop", make_group()), {}, False),
        (a_job("shop", make_group(), stop=True), {}, False),
        (a_job("shop", make_group(), all_at_once=True), {}, False),
        (a_job("shop", make_group("other")), {}, False),
        (a_job("shop", make_group()), {"quota_limit_reached": "q"}, False),
        (a_job("shop", make_group()), {"waits_behind": "parent"}, False),
        (a_job("shop", make_group()), {"triggered_by": EvaluationTrigger.MAX_PLAN_ATTEMPTS}, False),
        (a_job("shop", make_group()), {"triggered_by": EvaluationTrigger.QUEUED_ALLOCS}, True),
    ],
)
def test_a_reserved_node_helps_only_jobs_that_wait_for_resources(
    job: Job, fields: dict[str, Any], *, expected: bool
) -> None:
    evaluation = make_evaluation(job, **fields)

    assert can_reserve_node(make_state(job).replica, evaluation) == expected
    assert can_reserve_node(AState().replica, evaluation) is False


@pytest.mark.parametrize(("nodes", "expected"), [(0, 1), (1, 1), (19, 1), (20, 2), (31, 3)])
def test_one_of_ten_nodes_may_be_reserved_and_at_least_one(nodes: int, expected: int) -> None:
    state = AState()
    for number in range(nodes):
        state.with_node(f"n{number}")

    assert get_max_reservations(SchedulerCache.from_snapshot(state.replica)) == expected


def test_reservations_go_to_due_evaluations_by_priority_then_age_one_for_each_namespace() -> None:
    jobs = [a_job(f"j{number}", make_group(), namespace=f"ns{number}") for number in range(6)]
    state = make_state(*jobs, a_job("second", make_group(), namespace="ns1"))
    for number in range(30):
        state.with_node(f"n{number}")
    cache = SchedulerCache.from_snapshot(state.replica)
    waiting = [
        make_evaluation(jobs[0], waiting_since=WAITING_SINCE_NS + 1),
        make_evaluation(jobs[1], waiting_since=WAITING_SINCE_NS - 1, create_index=9),
        make_evaluation(jobs[2], waiting_since=WAITING_SINCE_NS - 1, create_index=8),
        make_evaluation(jobs[3], waiting_since=WAITING_SINCE_NS, priority=60),
        make_evaluation(jobs[4], waiting_since=WAITING_SINCE_NS - 5, quota_limit_reached="q"),
        make_evaluation(replace(jobs[1], id="second"), waiting_since=WAITING_SINCE_NS - 1, create_index=7),
        make_evaluation(jobs[5], waiting_since=WAITING_SINCE_NS),
    ]
    existing = Reservation("x", "ns5", "x", 50, "n9", Usage())

    def select(*reserved: Reservation, now_ns: int = DUE_NS) -> list[str]:
        chosen = choose_reservations(state.replica, cache, waiting, reserved, now_ns, set())
        return [evaluation.job_id for evaluation, node_id in chosen if node_id]

    assert select() == ["j3", "second", "j2"]
    assert select(now_ns=DUE_NS + 1)[:3] == ["j3", "second", "j2"]
    assert select(existing) == ["j3", "second"]
    assert select(existing, replace(existing, namespace="ns3")) == ["second"]
    assert select(*[existing] * 3) == []
    assert select(now_ns=DUE_NS - 1) == ["second", "j2"]
    assert select(now_ns=DUE_NS - 2) == []


def test_a_job_that_fits_on_no_node_keeps_no_other_job_of_its_namespace_waiting() -> None:
    impossible, possible = a_job("impossible", make_group(cpu=9_999)), a_job("possible", make_group())
    state = make_state(impossible, possible)
    state.with_node("n")
    cache = SchedulerCache.from_snapshot(state.replica)
    waiting = [make_evaluation(impossible, priority=90), make_evaluation(possible)]

    chosen = choose_reservations(state.replica, cache, waiting, (), DUE_NS, set())

    assert [(evaluation.job_id, node_id) for evaluation, node_id in chosen] == [("impossible", ""), ("possible", "n")]


def test_many_jobs_that_fit_on_no_node_delay_another_job_by_one_check_each_fifty() -> None:
    impossible, possible = a_job("impossible", make_group(cpu=9_999)), a_job("possible", make_group())
    state = make_state(impossible, possible)
    state.with_node("n")
    cache = SchedulerCache.from_snapshot(state.replica)
    others = [make_evaluation(impossible, id=f"e{number:03}", priority=90) for number in range(2 * MAX_SEARCHES)]
    waiting, tried = [*others, make_evaluation(possible)], set[str]()

    checks = [[*choose_reservations(state.replica, cache, waiting, (), DUE_NS, tried)] for _ in range(4)]

    assert [len(check) for check in checks] == [MAX_SEARCHES, MAX_SEARCHES, 1, MAX_SEARCHES]
    assert [(evaluation.job_id, node_id) for evaluation, node_id in checks[2]] == [("possible", "n")]


# -- which node --------------------------------------------------------------------------------------------------------


SMALL = a_batch_job("small", make_group())
FOREVER = a_job("forever", make_group())
BIG = a_job("shop", make_group(cpu=400, memory_mb=400, disk_mb=40_000))


def test_the_node_that_misses_the_smallest_share_is_reserved() -> None:
    state = make_state(SMALL, BIG)
    for name, use_of_node in (
        ("cpu", (900, 0, 0)),
        ("memory", (0, 850, 0)),
        ("disk", (0, 0, 78_000)),
        ("full", (1_000, 1_000, 100_000)),
    ):
        state.with_node(name)
        use(state, name, *use_of_node)
    state.with_node("tiny", cpu=399)
    state.with_node("narrow", memory_mb=399)
    evaluation = make_evaluation(BIG)

    # Missing shares: disk 0.45, memory 0.625, cpu 0.75, full 1.
    assert [
        find_node(state, evaluation, *reserved)
        for reserved in (
            (),
            ("disk",),
            ("disk", "memory"),
            ("disk", "memory", "cpu"),
            ("disk", "memory", "cpu", "full"),
        )
    ] == ["disk", "memory", "cpu", "full", ""]
    assert find_node(state, make_evaluation(BIG, "unknown")) == ""
    assert find_node(state, make_evaluation(a_job("gone", make_group()))) == ""


@pytest.mark.parametrize(
    ("job_id", "fields", "can_end"),
    [
        ("small", {}, True),
        ("forever", {}, False),
        ("stopped", {}, True),
        ("deleted", {}, True),
        ("forever", {"desired_status": DesiredStatus.STOP}, True),
        ("forever", {"client_status": ClientStatus.COMPLETE}, True),
    ],
)
@pytest.mark.parametrize("amounts", [(601, 0, 0), (0, 601, 0), (0, 0, 60_001)])
def test_enough_must_become_free_when_finite_or_stopping_allocations_end(
    job_id: str, fields: dict[str, Any], amounts: tuple[int, int, int], *, can_end: bool
) -> None:
    state = make_state(SMALL, FOREVER, BIG, replace(FOREVER, id="stopped", stop=True))
    state.with_node("n")
    use(state, "n", *amounts, job_id=job_id, **fields)

    assert find_node(state, make_evaluation(BIG)) == ("n" if can_end else "")
    cache = SchedulerCache.from_snapshot(state.replica)
    reservation = Reservation("e", "default", "shop", 50, "n", Usage(400, 400, 40_000))
    assert is_reservation_useful(state.replica, cache, reservation) == can_end


@pytest.mark.parametrize("amount", [600, 601])
def test_a_node_is_enough_to_the_last_unit(amount: int) -> None:
    state = make_state(FOREVER, BIG)
    state.with_node("n")
    use(state, "n", amount, amount, 60_000, job_id="forever")

    assert find_node(state, make_evaluation(BIG)) == ("n" if amount == 600 else "")


def test_only_nodes_that_meet_constraints_and_distinct_hosts_are_reserved() -> None:
    constraints = (a_constraint("${meta.color}", "red"), a_constraint("", operand="distinct_hosts"))
    job = a_job("shop", make_group(constraints=constraints))
    state = make_state(SMALL, job)
    state.with_node("other")
    for name in ("sibling", "red"):
        state.with_node(name, meta={"color": "red"})
        use(state, name, 700)
    use(state, "sibling", 1, job_id="shop", task_group="web")

    assert [find_node(state, make_evaluation(job), *reserved) for reserved in ((), ("red",))] == ["red", ""]


@pytest.mark.parametrize(("status", "expected"), [(NodeStatus.READY, True), (NodeStatus.DOWN, False), (None, False)])
def test_a_reservation_is_useful_while_its_node_accepts_placements(
    status: NodeStatus | None, *, expected: bool
) -> None:
    state = make_state(BIG)
    state.with_node("n")
    if status is None:
        state.put(NODES.build_delete("n"))
    else:
        state.put(NODES.build_put(replace(state.node("n"), status=status)))
    cache = SchedulerCache.from_snapshot(state.replica)

    assert is_reservation_useful(state.replica, cache, Reservation("e", "x", "x", 1, "n", Usage(1, 1, 1))) == expected


def test_an_evaluation_without_a_reservation_in_time_is_reported() -> None:
    state = make_state(SMALL, BIG)
    state.with_node("n")
    use(state, "n", 900)
    cache = SchedulerCache.from_snapshot(state.replica)
    evaluation = make_evaluation(BIG)

    def list_missed(*, now_ns: int, slack_ns: int = 0, **fields: Any) -> list[str]:
        waiting = [replace(evaluation, **fields)]
        return list_missed_reservations(state.replica, cache, waiting, now_ns, slack_ns)

    text = f"default/shop has waited since {WAITING_SINCE_NS} ns without a reserved node"
    assert list_missed(now_ns=DUE_NS) == [text]
    assert list_missed(now_ns=DUE_NS, slack_ns=1) == []
    assert list_missed(now_ns=DUE_NS + 1, slack_ns=1) == [text]
    assert list_missed(now_ns=DUE_NS, reserved_node_id="n") == []


# -- reservations ------------------------------------------------------------------------------------------------------


def test_the_group_that_needs_the_most_memory_then_cpu_is_held() -> None:
    job = a_job(
        "shop", make_group("a", 900, 100), make_group("b", 100, 300), make_group("c", 200, 300), make_group("d", 9, 900)
    )

    def find(*names: str) -> str | None:
        group = find_largest_waiting_group(job, make_evaluation(job, *names))
        return None if group is None else group.name

    assert [find("a"), find("a", "b"), find("c", "b"), find("b", "c", "a"), find("gone", "a"), find("gone")] == [
        "a",
        "b",
        "c",
        "c",
        "a",
        None,
    ]
    assert find_largest_waiting_group(job, replace(make_evaluation(job), failed_tg_allocs=None)) is None


def test_a_reservation_holds_the_demand_on_the_node_while_the_evaluation_waits() -> None:
    job = a_job("shop", make_group(cpu=1, memory_mb=2, disk_mb=3))
    evaluation = make_evaluation(job, reserved_node_id="n", priority=70)

    assert build_reservation(evaluation, job) == Reservation("e-shop", "default", "shop", 70, "n", Usage(1, 2, 3))
    assert build_reservation(replace(evaluation, status=EvaluationStatus.PENDING), job) is not None
    assert [
        build_reservation(evaluation, None),
        build_reservation(replace(evaluation, reserved_node_id=""), job),
        build_reservation(replace(evaluation, status=EvaluationStatus.COMPLETE), job),
        build_reservation(evaluation, a_job("shop", make_group("other"))),
    ] == [None] * 4


# -- shares and the order of retries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "capacity", "share"),
    [
        (Usage(1, 1), Usage(4, 2), 0.5),
        (Usage(3, 1), Usage(4, 2), 0.75),
        (Usage(3, 0, 9), Usage(4, 2, 1), 0.75),
        (Usage(0, 0), Usage(0, 0), 0.0),
        (Usage(1, 0), Usage(0, 0), 1.0),
        (Usage(0, 2), Usage(0, 0), 2.0),
    ],
)
def test_the_dominant_share_is_the_larger_of_cpu_and_memory(used: Usage, capacity: Usage, share: float) -> None:
    assert compute_dominant_share(used, capacity) == share


def test_the_usage_of_a_namespace_follows_its_allocations() -> None:
    usage = NamespaceUsage()
    task = AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=10), memory=AllocatedMemory(memory_mb=20))
    first = an_allocation(a_job(), allocated_resources=AllocatedResources(tasks={"server": task}))
    larger = AllocatedResources(tasks={"one": task, "two": task})
    other = replace(first, id="other", namespace="other")
    bare = replace(first, id="bare", allocated_resources=None)
    ended = replace(first, client_status=ClientStatus.COMPLETE)
    history = []
    for before, after in (
        (None, first),
        (None, other),
        (None, bare),
        (first, replace(first, client_status=ClientStatus.RUNNING)),
        (first, replace(first, allocated_resources=larger)),
        (replace(first, allocated_resources=larger), first),
        (first, ended),
        (ended, None),
        (None, first),
        (first, None),
        (bare, None),
    ):
        usage.apply_change(before, after, get_resources_usage)
        history.append(usage.get_usage("default").cpu)

    assert history == [10, 10, 10, 10, 20, 10, 0, 0, 10, 0, 0]
    assert (usage.get_usage("other"), usage.get_usage("unknown")) == (Usage(10, 20), Usage())
    usage.add_usage("many", larger, 3, get_resources_usage)
    usage.add_usage("many", larger, -1, get_resources_usage)
    usage.add_usage("many", None, 5, get_resources_usage)
    assert usage.get_usage("many") == Usage(40, 80)


def test_a_request_counts_all_its_missing_allocations_and_namespaces_count_by_weight() -> None:
    jobs = [
        a_job("large", make_group(cpu=100, memory_mb=1), namespace="one"),
        a_job("small", make_group(cpu=10, memory_mb=1), namespace="one"),
        a_job("wide", make_group(cpu=1, memory_mb=150), make_group("db", 1, 150), namespace="two"),
        a_job("wide-2", make_group(cpu=1, memory_mb=1), namespace="two"),
        a_job("heavy", make_group(cpu=250, memory_mb=1), namespace="three"),
        a_job("heavy-2", make_group(), namespace="three"),
    ]
    state = make_state(*jobs)
    state.with_node("n")
    state.put(NAMESPACES.build_put(Namespace(name="three", weight=4, create_index=WRITE_INDEX)))
    cache = SchedulerCache.from_snapshot(state.replica)
    waiting = [
        replace(
            make_evaluation(job, *(group.name for group in job.groups), "gone"),
            waiting_since=WAITING_SINCE_NS + number,
            namespace=job.namespace,
            failed_tg_allocs={
                name: AllocMetric(coalesced_failures=1 if job.id in ("large", "wide") else 0)
                for name in (*(group.name for group in job.groups), "gone")
            },
        )
        for number, job in enumerate(jobs)
    ]
    order = RetryOrder(state.replica, cache)

    # After the first request of each: one has 0.2, two has 4 * 0.15 = 0.6, three has 0.25 / 4.
    assert [each.job_id for each in order.sort_evaluations(waiting)] == [
        "large",
        "wide",
        "heavy",
        "heavy-2",
        "small",
        "wide-2",
    ]
    assert [each.job_id for each in order.sort_evaluations(waiting, 2)] == ["large", "wide"]
    assert order.sort_evaluations([]) == []
