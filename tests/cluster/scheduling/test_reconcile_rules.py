"""Rules that reconciliation is built of: names, nodes out of contact, chains of replacements, and deployments."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, AState, a_node, an_allocation, an_evaluation
from wharf.cluster.scheduling.reconcile.classification import (
    find_tainted_nodes,
    get_unknown_since_ns,
    is_in_contact,
    should_reconnect,
)
from wharf.cluster.scheduling.reconcile.deployment import (
    describe_running,
    find_job_deployments,
    list_undecided_allocations,
    start_deployment,
    update_deployment,
)
from wharf.cluster.scheduling.reconcile.fast_path import is_up_to_date
from wharf.cluster.scheduling.reconcile.names import AllocationNames
from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome
from wharf.cluster.scheduling.reconcile.replacement_chain import ReplacementChain, drop_missing_replacements
from wharf.cluster.scheduling.reconcile.rescheduling import (
    can_ever_retry,
    get_failure_time_ns,
    has_succeeded,
    list_avoided_nodes,
)
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    RescheduleEvent,
    RescheduleTracker,
)
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import DrainStrategy, NodeStatus
from wharf.contract.model.nodes.resources import NodeDisk, NodeMemory, ReservedCpu, ReservedResources
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity
from wharf.contract.model.times import to_datetime, to_ns

RUNNING, FAILED, COMPLETE = ClientStatus.RUNNING, ClientStatus.FAILED, ClientStatus.COMPLETE
UNKNOWN, STOP = ClientStatus.UNKNOWN, DesiredStatus.STOP
NOW_NS = 1_700_000_000 * SECOND_NS


def make_allocation(key: str = "a1", **fields: Any) -> Allocation:
    return an_allocation(a_job(), key, **{"client_status": RUNNING, **fields})


# -- names -------------------------------------------------------------------------------------------------------------


def make_names(*used: int, count: int = 4) -> AllocationNames:
    return AllocationNames("shop", "web", count, [f"shop.web[{index}]" for index in used])


def list_indexes(names: list[str]) -> list[int]:
    assert all(name.startswith("shop.web[") for name in names)
    return [int(name[9:-1]) for name in names]


@pytest.mark.parametrize(
    ("used", "count", "indexes"),
    [
        ((), 2, [0, 1]),
        ((0, 2), 2, [1, 3]),
        ((0, 2), 1, [1]),
        ((0, 2), 3, [1, 3, 0]),
        ((0, 1, 2, 3), 2, [0, 1]),
        ((7,), 5, [0, 1, 2, 3, 0]),
        ((), 0, []),
    ],
)
def test_new_names_have_the_lowest_free_indexes_and_then_start_again(
    used: tuple[int, ...], count: int, indexes: list[int]
) -> None:
    names = make_names(*used)

    assert list_indexes(names.take_names(count)) == indexes
    free = sorted({0, 1, 2, 3} - set(used) - set(indexes))
    assert list_indexes(names.take_names(len(free))) == free


def test_a_free_name_is_taken_once_and_the_own_name_stays_if_none_is_free() -> None:
    names = make_names(0, 2)

    assert [names.take_free("shop.web[9]") for _ in range(3)] == ["shop.web[1]", "shop.web[3]", "shop.web[9]"]


@pytest.mark.parametrize(
    ("used", "canaries", "replaced", "count", "indexes"),
    [
        ((0, 1, 2, 3), (), (3, 1), 2, [1, 3]),
        ((0, 1, 2, 3), (), (3, 1), 1, [1]),
        ((0, 1, 2, 3), (1,), (3, 1), 1, [3]),
        ((0, 3), (), (3,), 2, [3, 1]),
        ((0, 3), (1,), (3,), 2, [3, 2]),
        ((3,), (), (0,), 3, [0, 1, 2]),
        ((0, 1, 2, 3), (), (), 2, [4, 5]),
        ((0, 1, 2, 3), (4, 6), (2,), 3, [2, 5, 7]),
        ((0, 1, 2, 3), (), (8, 2), 2, [2, 4]),
        ((1, 2, 3), (), (9,), 2, [0, 4]),
        ((), (), (1,), 0, []),
    ],
)
def test_canaries_take_names_of_replaced_allocations_then_free_ones_then_new_ones(
    used: tuple[int, ...], canaries: tuple[int, ...], replaced: tuple[int, ...], count: int, indexes: list[int]
) -> None:
    names = make_names(*used)
    of_canaries, of_replaced = ([f"shop.web[{index}]" for index in some] for some in (canaries, replaced))

    assert list_indexes(names.take_canary_names(count, of_canaries, of_replaced)) == indexes
    free = sorted({0, 1, 2, 3} - set(used))
    assert list_indexes(names.take_names(len(free))) == free


# -- the fast check ----------------------------------------------------------------------------------------------------

JOB = a_job("shop", a_group("web", count=2), version=3)
CURRENT = {"job_version": 3}
ACTIVE = Deployment(id="d", status=DeploymentStatus.RUNNING, task_groups={})


def make_ended_deployment(**group: Any) -> Deployment:
    return Deployment(id="d", status=DeploymentStatus.SUCCESSFUL, task_groups={"web": DeploymentGroup(**group)})


@pytest.mark.parametrize(
    ("second", "deployments", "is_same"),
    [
        ({}, (None, None), True),
        ({"client_status": ClientStatus.PENDING}, (None,), True),
        ({"client_status": FAILED}, (), False),
        ({"client_status": UNKNOWN}, (), False),
        ({"desired_status": STOP}, (), False),
        ({"job_version": 2}, (), False),
        ({"job_create_index": 7}, (), False),
        ({"alloc_states": (AllocationState(value="unknown"),)}, (), False),
        ({"node_id": "tainted"}, (), False),
        ({"name": "shop.web[0]"}, (), False),
        ({"desired_transition": DesiredTransition()}, (), True),
        ({"desired_transition": DesiredTransition(migrate=True)}, (), False),
        ({"desired_transition": DesiredTransition(reschedule=True)}, (), False),
        ({"desired_transition": DesiredTransition(force_reschedule=True)}, (), False),
        ({}, (ACTIVE,), False),
        ({}, (None, ACTIVE), False),
        ({}, (make_ended_deployment(),), True),
        ({}, (make_ended_deployment(placed_canaries=("x",)),), False),
        ({}, (make_ended_deployment(placed_canaries=("x",), promoted=True),), True),
        ({}, (replace(ACTIVE, status=DeploymentStatus.FAILED, task_groups=None),), True),
    ],
)
def test_a_group_is_up_to_date_if_nothing_differs(
    second: dict[str, Any], deployments: tuple[Deployment | None, ...], *, is_same: bool
) -> None:
    allocations = [
        make_allocation("a1", **CURRENT),
        make_allocation("a2", **{"name": "shop.web[1]", **CURRENT, **second}),
    ]
    tainted = {"tainted": None}

    assert is_up_to_date(JOB, JOB.groups[0], allocations, tainted, deployments) == is_same
    replaced = make_allocation("old", desired_status=STOP, client_status=COMPLETE, next_allocation="a1")
    assert is_up_to_date(JOB, JOB.groups[0], [replaced, *allocations], tainted, deployments) == is_same


def test_a_group_with_another_count_or_unfinished_stops_is_not_up_to_date() -> None:
    group = JOB.groups[0]
    allocations = [make_allocation(f"a{index}", name=f"shop.web[{index}]", **CURRENT) for index in range(3)]
    stopping = make_allocation("old", desired_status=STOP, next_allocation="a1")

    assert [is_up_to_date(JOB, group, allocations[:count], {}, ()) for count in range(4)] == [False, False, True, False]
    assert is_up_to_date(JOB, group, [stopping, *allocations[:2]], {}, ()) is False
    without_successor = replace(stopping, client_status=COMPLETE, next_allocation="")
    assert is_up_to_date(JOB, group, [without_successor, *allocations[:2]], {}, ()) is False


# -- nodes and states --------------------------------------------------------------------------------------------------


def test_tainted_nodes_are_deleted_down_draining_or_disconnected() -> None:
    nodes = {status.value: a_node(status.value, status=status) for status in NodeStatus} | {
        "draining": a_node("draining", status=NodeStatus.READY, drain_strategy=DrainStrategy())
    }
    allocations = [make_allocation(name, node_id=name) for name in (*nodes, "deleted", "down")]

    tainted = find_tainted_nodes(allocations, nodes.get)

    assert tainted == {
        "down": nodes["down"],
        "disconnected": nodes["disconnected"],
        "draining": nodes["draining"],
        "deleted": None,
    }
    assert [
        is_in_contact(make_allocation(node_id=name), tainted)
        for name in ("ready", "draining", "down", "disconnected", "deleted")
    ] == [True, True, False, False, False]


@pytest.mark.parametrize("status", list(ClientStatus))
@pytest.mark.parametrize(("states", "is_unknown"), [((), False), (("unknown",), True), (("unknown", "running"), False)])
def test_an_allocation_whose_last_state_is_unknown_reconnects(
    status: ClientStatus, states: tuple[str, ...], *, is_unknown: bool
) -> None:
    recorded = tuple(AllocationState(value=value, time=to_datetime(NOW_NS)) for value in states)
    allocation = make_allocation(client_status=status, alloc_states=recorded or None)

    assert should_reconnect(allocation) == (is_unknown and status in (UNKNOWN, RUNNING, FAILED))
    assert get_unknown_since_ns(allocation) == (NOW_NS if is_unknown else None)


def test_an_unknown_state_without_a_time_has_no_start() -> None:
    assert get_unknown_since_ns(make_allocation(alloc_states=(AllocationState(value="unknown"),))) is None


def test_the_capacity_of_a_node_is_without_what_it_reserves() -> None:
    node = a_node(cpu=1_000, memory_mb=2_000)
    reserved = ReservedResources(
        cpu=ReservedCpu(cpu_shares=10), memory=NodeMemory(memory_mb=20), disk=NodeDisk(disk_mb=30)
    )

    assert [
        get_node_capacity(each)
        for each in (node, replace(node, reserved_resources=reserved), replace(node, node_resources=None))
    ] == [Usage(1_000, 2_000, 100_000), Usage(990, 1_980, 99_970), Usage()]
    assert get_allocation_usage(make_allocation()) == Usage()


@pytest.mark.parametrize(
    ("usage", "dimension"),
    [
        (Usage(1, 2, 3), ""),
        (Usage(2, 3, 4), "cpu"),
        (Usage(1, 3, 4), "memory"),
        (Usage(1, 2, 4), "disk"),
        (Usage(0, 0, 0), ""),
    ],
)
def test_the_first_exceeded_dimension_is_named(usage: Usage, dimension: str) -> None:
    assert usage.find_exceeded_dimension(Usage(1, 2, 3)) == dimension
    assert usage.fits_in(Usage(1, 2, 3)) == (not dimension)
    assert Usage.sum_usages([usage, Usage(1, 10, 100)]) == Usage(
        usage.cpu + 1, usage.memory_mb + 10, usage.disk_mb + 100
    )


# -- replacements ------------------------------------------------------------------------------------------------------


def test_a_link_to_a_replacement_that_was_never_placed_is_ignored_on_the_only_active_allocation_of_its_name() -> None:
    allocations = [
        make_allocation("alone", next_allocation="missing"),
        make_allocation("ended", name="x", next_allocation="missing", client_status=COMPLETE),
        make_allocation("fine", name="y", next_allocation="exists"),
        make_allocation("shared", name="z", next_allocation="missing"),
        make_allocation("other", name="z"),
        make_allocation("group", name="z", next_allocation="missing", task_group="db"),
        make_allocation("late", name="w", next_allocation="missing"),
        make_allocation("done", name="w", client_status=COMPLETE),
    ]

    kept = drop_missing_replacements(allocations, {"exists"}.__contains__)

    assert [each.id for each in kept] == [each.id for each in allocations]
    assert [each.id for each in kept if not each.next_allocation] == ["alone", "other", "group", "late", "done"]
    assert drop_missing_replacements(allocations[1:3], {"exists"}.__contains__) == allocations[1:3]


def test_replacements_are_followed_in_both_directions_and_once() -> None:
    chain = [
        make_allocation("a", next_allocation="b"),
        make_allocation("b", previous_allocation="a", next_allocation="gone"),
        make_allocation("d", previous_allocation="gone"),
        make_allocation("e", previous_allocation="b"),
        make_allocation("f", next_allocation="a"),
        make_allocation("g"),
    ]
    by_id = {each.id: each for each in chain}

    found = {each.id: [other.id for other in ReplacementChain(by_id).iter_replacements(each)] for each in chain}

    assert {key: sorted(ids) for key, ids in found.items()} == {
        "a": ["b", "d", "e"],
        "b": ["d", "e"],
        "d": [],
        "e": [],
        "f": ["a", "b", "d", "e"],
        "g": [],
    }
    cycle = {key: make_allocation(key, next_allocation=other) for key, other in (("x", "y"), ("y", "x"))}
    assert [each.id for each in ReplacementChain(cycle).iter_replacements(cycle["x"])] == ["y"]


# -- failures ----------------------------------------------------------------------------------------------------------


def make_task_state(*, ended_s_ago: float | None = None, failed: bool = False) -> TaskState:
    finished_at = None if ended_s_ago is None else to_datetime(NOW_NS - round(ended_s_ago * SECOND_NS))
    return TaskState(
        state=TaskStatus.RUNNING if finished_at is None else TaskStatus.DEAD, failed=failed, finished_at=finished_at
    )


def test_an_allocation_failed_when_its_last_task_ended_but_not_after_its_last_write() -> None:
    def get(*ages: float | None) -> float:
        states = {str(number): make_task_state(ended_s_ago=age) for number, age in enumerate(ages)}
        allocation = make_allocation(task_states=states or None, modify_time=NOW_NS - 5 * SECOND_NS)
        return (NOW_NS - get_failure_time_ns(allocation)) / SECOND_NS

    assert [get(), get(None), get(9), get(9, 20, None), get(2), get(9, 2)] == [5, 5, 9, 9, 5, 5]
    assert to_ns(to_datetime(NOW_NS)) == NOW_NS


def test_an_allocation_has_succeeded_if_all_its_tasks_have() -> None:
    good, bad, open_ = make_task_state(ended_s_ago=1), make_task_state(ended_s_ago=1, failed=True), make_task_state()

    assert [
        has_succeeded(make_allocation(task_states=dict(enumerate_names(*states)) or None), JOB.groups[0])
        for states in ((), (good,), (good, good), (good, bad), (good, open_), (bad,))
    ] == [False, True, True, False, False, False]


def enumerate_names(*states: TaskState) -> list[tuple[str, TaskState]]:
    return [(str(number), state) for number, state in enumerate(states)]


def make_retried(*nodes: str, **fields: Any) -> Allocation:
    events = tuple(
        RescheduleEvent(prev_node_id=node, prev_alloc_id=node, reschedule_time=NOW_NS - 10 * SECOND_NS, delay=SECOND_NS)
        for node in nodes
    )
    return make_allocation(reschedule_tracker=RescheduleTracker(events=events), modify_time=NOW_NS, **fields)


def test_nodes_on_which_it_failed_are_avoided_once() -> None:
    assert list_avoided_nodes(make_retried("b", "a", "b", node_id="c", client_status=FAILED)) == ("b", "a", "c")
    assert list_avoided_nodes(make_retried("b", "a", node_id="a", client_status=FAILED)) == ("b", "a")
    assert list_avoided_nodes(make_retried("b", node_id="c", client_status=COMPLETE)) == ("b",)
    assert list_avoided_nodes(make_allocation(client_status=FAILED)) == ("node-1",)


@pytest.mark.parametrize(
    ("policy", "used", "expected"),
    [
        (None, 0, False),
        (ReschedulePolicy(unlimited=True), 9, True),
        (ReschedulePolicy(unlimited=False, attempts=0), 0, False),
        (ReschedulePolicy(unlimited=False, attempts=2, interval=60 * SECOND_NS, delay=SECOND_NS), 1, True),
        (ReschedulePolicy(unlimited=False, attempts=2, interval=60 * SECOND_NS, delay=SECOND_NS), 2, False),
        (ReschedulePolicy(unlimited=False, attempts=2, interval=10 * SECOND_NS, delay=SECOND_NS), 2, True),
        (ReschedulePolicy(unlimited=False, attempts=2, interval=SECOND_NS, delay=SECOND_NS), 0, False),
        (ReschedulePolicy(unlimited=False, attempts=2, interval=2 * SECOND_NS, delay=SECOND_NS), 0, True),
    ],
)
def test_a_further_retry_is_possible_while_attempts_of_the_interval_are_left(
    policy: ReschedulePolicy | None, used: int, *, expected: bool
) -> None:
    allocation = make_retried(*map(str, range(used)))

    assert can_ever_retry(allocation, a_group(reschedule_policy=policy)) == expected


# -- deployments -------------------------------------------------------------------------------------------------------


def make_deployment(id: str = "d1", **fields: Any) -> Deployment:
    fields = {"job_version": 3, "status": DeploymentStatus.RUNNING, "create_index": 5, **fields}
    return Deployment(id=id, job_id="shop", **fields)


def test_the_newest_deployment_is_the_current_or_the_previous_one() -> None:
    moment = AState().moment
    old, new = make_deployment("old", create_index=4), make_deployment("new")

    def find(*deployments: Deployment, **fields: Any) -> list[str]:
        job = None if fields.get("deleted") else replace(JOB, **fields)
        found = find_job_deployments(job, deployments, moment)
        return [f"{name} {each.id}" for name in ("current", "previous", "cancelled") if (each := getattr(found, name))]

    assert find() == []
    assert find(new, old) == find(old, new) == ["current new"]
    assert find(make_deployment("b"), make_deployment("a")) == ["current b"]
    for fields in ({"version": 4}, {"create_index": 9}, {"stop": True}, {"deleted": True}):
        assert find(old, new, **fields) == ["previous new", "cancelled new"]
        assert find(replace(new, status=DeploymentStatus.FAILED), **fields) == ["previous new"]
    for status in DeploymentStatus:
        is_over = status in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED)
        assert find(replace(new, status=status)) == ["previous new" if is_over else "current new"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": True}, "Cancelled because job is stopped"),
        ({"version": 4}, "Cancelled due to newer version of job"),
    ],
)
def test_a_canceled_deployment_says_why_and_never_goes_back_in_time(fields: dict[str, Any], text: str) -> None:
    state = AState()
    for modify_time in (5, state.now_ns + 5):
        deployment = make_deployment(modify_time=modify_time)
        cancelled = find_job_deployments(replace(JOB, **fields), [deployment], state.moment).cancelled
        assert cancelled is not None
        assert (cancelled.status, cancelled.status_description) == (DeploymentStatus.CANCELLED, text)
        assert cancelled.modify_time == max(state.now_ns, modify_time)


def test_a_new_deployment_belongs_to_the_version_of_the_job() -> None:
    state = AState()
    job = replace(JOB, namespace="ns", modify_index=7, job_modify_index=6, create_index=5)
    groups = {"web": DeploymentGroup(desired_total=2)}

    started = start_deployment(job, an_evaluation(job, priority=70), groups, state.moment)

    assert replace(started, id="d") == Deployment(
        id="d",
        namespace="ns",
        job_id="shop",
        job_version=3,
        job_modify_index=7,
        job_spec_modify_index=6,
        job_create_index=5,
        task_groups=groups,
        status=DeploymentStatus.RUNNING,
        status_description="Deployment is running",
        eval_priority=70,
        create_index=WRITE_INDEX,
        create_time=state.now_ns,
        modify_time=state.now_ns,
    )


WAITING, AUTOMATIC = DeploymentGroup(desired_canaries=1), DeploymentGroup(desired_canaries=1, auto_promote=True)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ((), "Deployment is running"),
        ((DeploymentGroup(),), "Deployment is running"),
        ((replace(WAITING, promoted=True),), "Deployment is running"),
        ((WAITING,), "Deployment is running but requires manual promotion"),
        ((AUTOMATIC, DeploymentGroup()), "Deployment is running pending automatic promotion"),
        ((AUTOMATIC, WAITING), "Deployment is running but requires manual promotion"),
    ],
)
def test_the_description_says_whether_a_deployment_awaits_promotion(
    groups: tuple[DeploymentGroup, ...], text: str
) -> None:
    assert describe_running(groups) == text


def test_allocations_without_health_are_undecided_and_an_unhealthy_one_halts() -> None:
    def make(key: str, healthy: bool | None, **fields: Any) -> Allocation:
        return make_allocation(
            key, **{"deployment_id": "d1", "deployment_status": AllocDeploymentStatus(healthy=healthy), **fields}
        )

    open_, bare = make("open", None), make("bare", None, deployment_status=None)
    allocations = [make("good", True), open_, bare, make("other", False, deployment_id="d2")]

    assert list_undecided_allocations(make_deployment(), allocations) == [open_, bare]
    assert list_undecided_allocations(make_deployment(), [*allocations, make("bad", False)]) is None


def test_a_deployment_succeeds_when_all_groups_are_complete_and_else_gets_their_states() -> None:
    state = AState()
    groups = {"web": DeploymentGroup(desired_total=1), "db": DeploymentGroup(desired_total=2)}
    deployment = make_deployment(task_groups=groups, status_description="before", modify_time=3)
    changed = DeploymentGroup(desired_total=9, desired_canaries=1)

    def update(*outcomes: GroupOutcome, **fields: Any) -> Deployment | None:
        return update_deployment(replace(deployment, **fields), outcomes, state.moment)

    web, db = GroupOutcome("web", is_complete=True), GroupOutcome("db", is_complete=True)
    open_db = GroupOutcome("db")
    done = update(web, GroupOutcome("db", is_complete=True, deployment=changed))
    assert done is not None
    assert (done.status, done.status_description) == (DeploymentStatus.SUCCESSFUL, "Deployment completed successfully")
    assert (done.task_groups, done.modify_time) == ({**groups, "db": changed}, state.now_ns)
    assert [update(web), update(web, open_db), update(web, db, GroupOutcome("new"))] == [None] * 3
    assert update(web, db, status=DeploymentStatus.PAUSED) is None

    waiting = update(web, GroupOutcome("db", deployment=changed), GroupOutcome("new", deployment=changed))
    paused = update(web, GroupOutcome("db", deployment=changed), status=DeploymentStatus.PAUSED)
    for each, text in ((waiting, "Deployment is running but requires manual promotion"), (paused, "before")):
        assert each is not None
        assert (each.task_groups, each.status_description) == ({**groups, "db": changed}, text)
        assert each.modify_time == state.now_ns
    late = update(web, GroupOutcome("db", deployment=changed), modify_time=state.now_ns + 9)
    assert late is not None
    assert late.modify_time == state.now_ns + 9
