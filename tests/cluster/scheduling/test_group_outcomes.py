"""The outcome of reconciling one group of a service or batch job: stops, placements, counts and follow-ups."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task
from tests.kit.state import SECOND_NS, a_node, an_allocation
from wharf.cluster.scheduling.reconcile.input import (
    MIGRATING_TEXT,
    NOT_NEEDED_TEXT,
    RECONNECTED_TEXT,
    RESCHEDULED_TEXT,
    UPDATING_TEXT,
    ReconcileInput,
)
from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome, PlacementRequest
from wharf.cluster.scheduling.reconcile.service_group import reconcile_group, stop_group
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
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import DrainStrategy, NodeStatus
from wharf.contract.model.times import to_datetime

NOW_NS = 1_700_000_000 * SECOND_NS
RUNNING, PENDING, FAILED = ClientStatus.RUNNING, ClientStatus.PENDING, ClientStatus.FAILED
COMPLETE, LOST, UNKNOWN = ClientStatus.COMPLETE, ClientStatus.LOST, ClientStatus.UNKNOWN
STOP = DesiredStatus.STOP
NEVER = ReschedulePolicy(attempts=0, unlimited=False)
AFTER_30_S = ReschedulePolicy(delay=30 * SECOND_NS, delay_function="constant")
ROLLING = UpdatePolicy(max_parallel=1, progress_deadline=0)
DOWN = a_node("down", status=NodeStatus.DOWN)
DISCONNECTED = a_node("away", status=NodeStatus.DISCONNECTED)
DRAINING = a_node("draining", status=NodeStatus.READY, drain_strategy=DrainStrategy())
MIGRATE = DesiredTransition(migrate=True)


def make_job(count: int = 1, *, version: int = 1, batch: bool = False, **fields: Any) -> Job:
    fields = {"reschedule_policy": NEVER, "update": None, **fields}
    task = fields.pop("task", a_task(env={"V": str(version)}))
    build = a_batch_job if batch else a_job
    return build("shop", a_group("web", task, count=count, **fields), version=version)


def make_allocation(index: int = 0, key: str = "", status: ClientStatus = RUNNING, **fields: Any) -> Allocation:
    """Return an allocation with the id `a<index>` of job version 1, by default on a ready node."""
    fields = {"job_version": 1, "node_id": "ready", "modify_time": NOW_NS - 100 * SECOND_NS, **fields}
    return an_allocation(a_job(), key or f"a{index}", name=f"shop.web[{index}]", client_status=status, **fields)


def seconds_ago(seconds: float) -> Any:
    return to_datetime(NOW_NS - round(seconds * SECOND_NS))


def unknown_for(seconds: float) -> dict[str, Any]:
    """Return the fields of an allocation whose node disconnected this long ago."""
    return {"alloc_states": (AllocationState(value="unknown", time=seconds_ago(seconds)),)}


def ended(seconds: float, *, failed: bool = True) -> dict[str, Any]:
    """Return the fields of an allocation whose task ended this long ago."""
    state = TaskState(state=TaskStatus.DEAD, failed=failed, finished_at=seconds_ago(seconds))
    return {"task_states": {"server": state}, "modify_time": NOW_NS - round(seconds * SECOND_NS)}


def make_deployment(status: DeploymentStatus = DeploymentStatus.RUNNING, **group: Any) -> Deployment:
    groups = {"web": DeploymentGroup(**{"desired_total": 3, **group})}
    return Deployment(id="d1", job_id="shop", job_version=1, status=status, task_groups=groups)


PAUSED, FAILED_DEPLOYMENT = DeploymentStatus.PAUSED, DeploymentStatus.FAILED


def reconcile(job: Job, *allocations: Allocation, **options: Any) -> GroupOutcome:
    """Reconcile the group `web`. Older versions differ in the environment of their task."""
    in_place = options.pop("in_place", ())
    versions: Mapping[int, Job] = options.pop("versions", {})
    fields: dict[str, Any] = {
        "job": job,
        "is_batch": job.type == "batch",
        "evaluation_id": "e1",
        "now_ns": NOW_NS,
        "tainted_nodes": {
            node.id: node
            for node in (DOWN, DISCONNECTED, DRAINING)
            if any(allocation.node_id == node.id for allocation in allocations)
        },
        "deployment": None,
        "find_job_version": lambda each: job if each.job_version == job.version else versions.get(each.job_version),
        "is_evaluation_pending": lambda evaluation_id: evaluation_id == "waiting",
        "can_update_in_place": lambda allocation, _group: allocation.id in in_place,
        "find_stable_version": lambda _name: None,
        **options,
    }
    return reconcile_group(ReconcileInput(**fields), job.groups[0], allocations)


def describe_request(request: PlacementRequest) -> tuple[Any, ...]:
    """Return the index of the request, what it replaces, and what is special about it."""
    special = [name for name in ("is_canary", "is_reschedule") if getattr(request, name)]
    if request.job.version != 1:
        special.append(f"version {request.job.version}")
    if request.deployment_id:
        special.append(request.deployment_id)
    return int(request.name.split("[")[1][:-1]), request.previous and request.previous.id, *special


def list_placements(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [describe_request(request) for request in outcome.placements]


def list_replacements(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [describe_request(request) for request in outcome.replacements]


def list_stops(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [
        (stop.allocation.id, stop.reason) if stop.client_status is None else (stop.allocation.id, stop.client_status)
        for stop in outcome.stops
    ]


def list_follow_ups(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    """Return for each follow-up the allocation, the seconds until it is due, its trigger and whether it is linked."""
    return [
        (each.allocation.id, (each.due_at_ns - NOW_NS) / SECOND_NS, each.trigger.value, each.is_linked)
        for each in outcome.follow_ups
    ]


def get_counts(outcome: GroupOutcome) -> dict[str, int]:
    counts = outcome.update_counts
    return {name: getattr(counts, name) for name in counts.__struct_fields__ if getattr(counts, name)}


# -- count -------------------------------------------------------------------------------------------------------------


def test_missing_allocations_get_the_lowest_free_names() -> None:
    outcome = reconcile(make_job(4), make_allocation(1), make_allocation(3, status=PENDING))

    assert list_placements(outcome) == [(0, None), (2, None)]
    assert (get_counts(outcome), outcome.is_complete) == ({"place": 2, "ignore": 2}, False)
    assert (list_stops(outcome), outcome.deployment, outcome.is_new_deployment) == ([], None, False)


def test_a_group_with_its_count_needs_nothing() -> None:
    outcome = reconcile(make_job(2), make_allocation(0), make_allocation(1))

    assert (list_placements(outcome), list_stops(outcome), outcome.is_complete) == ([], [], True)
    assert get_counts(outcome) == {"ignore": 2}


def test_surplus_allocations_stop_from_the_highest_index_on() -> None:
    outcome = reconcile(make_job(1), *(make_allocation(index) for index in (0, 2, 1)))

    assert list_stops(outcome) == [("a2", NOT_NEEDED_TEXT), ("a1", NOT_NEEDED_TEXT)]
    assert (get_counts(outcome), outcome.is_complete) == ({"stop": 2, "ignore": 1}, True)


SICK: dict[str, Any] = {"deployment_status": AllocDeploymentStatus(healthy=False)}


def test_surplus_allocations_stop_in_the_order_of_their_worth() -> None:
    allocations = [
        make_allocation(0),
        make_allocation(1, "a1", job_version=0),
        make_allocation(1, "newer"),
        make_allocation(1, "newest"),
        make_allocation(2, node_id="draining", desired_transition=MIGRATE, **SICK),
        make_allocation(3, **SICK),
        make_allocation(4, status=FAILED),
        make_allocation(5, status=FAILED),
        make_allocation(6, node_id="draining", desired_transition=MIGRATE),
    ]
    order = ["a5", "a4", "a3", "a2", "a6", "newest", "a1", "newer", "a0"]

    for count in range(len(allocations) + 1):
        outcome = reconcile(make_job(count), *allocations, in_place=("a1",), versions={0: make_job(version=1)})
        stopped = [stop.allocation.id for stop in outcome.stops if stop.reason == NOT_NEEDED_TEXT]
        assert stopped == order[: len(allocations) - count]


def test_a_completed_allocation_beyond_the_count_is_not_stopped_but_no_longer_counted() -> None:
    done = [make_allocation(index, status=COMPLETE, **ended(5, failed=False)) for index in range(3)]

    outcome = reconcile(make_job(2, batch=True), *done, make_allocation(3))

    assert (list_stops(outcome), get_counts(outcome)) == ([("a3", NOT_NEEDED_TEXT)], {"stop": 1, "ignore": 2})


def test_a_promoted_canary_keeps_its_name_and_the_other_allocation_of_the_name_stops() -> None:
    deployment = make_deployment(promoted=True, desired_canaries=1, placed_canaries=("canary",))
    allocations = [
        make_allocation(0, job_version=0),
        make_allocation(1, job_version=0),
        make_allocation(0, "canary", deployment_id="d1"),
        make_allocation(5, node_id="draining", desired_transition=MIGRATE),
    ]

    outcomes = [
        reconcile(make_job(count, update=ROLLING), *allocations, deployment=deployment) for count in (4, 3, 2, 1)
    ]

    # The migrating allocation stops in any case: it moves, or it is surplus.
    assert [[stop.allocation.id for stop in outcome.stops] for outcome in outcomes] == [
        ["a5"],
        ["a0", "a5"],
        ["a0", "a5"],
        ["a0", "a5", "a1"],
    ]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_allocation_is_replaced_when_its_delay_is_over() -> None:
    job = make_job(2, reschedule_policy=AFTER_30_S)

    early = reconcile(job, make_allocation(0), make_allocation(1, status=FAILED, **ended(10)))
    due = reconcile(job, make_allocation(0), make_allocation(1, status=FAILED, **ended(30)))

    assert list_follow_ups(early) == [("a1", 20.0, "alloc-reschedule", True)]
    assert (list_placements(early), get_counts(early)) == ([], {"ignore": 2, "reschedule_later": 1})
    assert early.is_complete is False
    assert (list_placements(due), get_counts(due)) == (
        [(1, "a1", "is_reschedule")],
        {"ignore": 1, "place": 1, "reschedule_now": 1},
    )
    assert (due.follow_ups, due.stops, due.is_complete) == ([], [], False)
    stop = due.placements[0].stop
    assert stop is not None
    assert (stop.allocation.id, stop.reason, stop.client_status) == ("a1", RESCHEDULED_TEXT, None)


@pytest.mark.parametrize(
    ("fields", "is_replaced"),
    [
        ({}, False),
        ({"followup_eval_id": "e1"}, True),
        ({"followup_eval_id": "waiting"}, False),
        ({"desired_transition": DesiredTransition(force_reschedule=True)}, True),
        ({"desired_transition": DesiredTransition(reschedule=True)}, False),
    ],
)
def test_a_retry_is_made_by_the_evaluation_that_was_created_for_it_or_on_request(
    fields: dict[str, Any], is_replaced: bool
) -> None:
    failed = make_allocation(0, status=FAILED, **ended(10), **fields)

    outcome = reconcile(make_job(1, reschedule_policy=AFTER_30_S), failed)

    assert list_placements(outcome) == ([(0, "a0", "is_reschedule")] if is_replaced else [])
    is_due_later = not is_replaced and fields.get("followup_eval_id") != "waiting"
    assert bool(outcome.follow_ups) == is_due_later


def test_only_an_allocation_that_has_ended_is_replaced_on_request() -> None:
    forced: dict[str, Any] = {"desired_transition": DesiredTransition(force_reschedule=True)}

    assert list_placements(reconcile(make_job(1), make_allocation(0, **forced))) == []
    assert list_placements(reconcile(make_job(1), make_allocation(0, status=FAILED, **forced))) == [
        (0, "a0", "is_reschedule")
    ]
    assert list_placements(reconcile(make_job(1), make_allocation(0, status=COMPLETE, **forced))) == [
        (0, "a0", "is_reschedule")
    ]


def test_a_failed_allocation_that_is_never_retried_keeps_its_place() -> None:
    outcome = reconcile(make_job(1), make_allocation(0, status=FAILED, **ended(1_000)))

    assert (list_placements(outcome), list_stops(outcome), list_follow_ups(outcome)) == ([], [], [])
    assert get_counts(outcome) == {"ignore": 1}


def test_an_allocation_that_was_replaced_or_has_ended_does_not_count() -> None:
    outcome = reconcile(
        make_job(5),
        make_allocation(0, status=FAILED, next_allocation="a1"),
        make_allocation(1, status=COMPLETE),
        make_allocation(2, status=LOST),
        make_allocation(3, desired_status=STOP),
        make_allocation(4, next_allocation="later"),
    )

    assert (list_placements(outcome), get_counts(outcome)) == (
        [(1, "a1", "is_reschedule"), (2, "a2", "is_reschedule"), (0, None), (3, None)],
        {"place": 4, "reschedule_now": 2, "ignore": 1},
    )


def test_more_failed_allocations_than_free_places_are_stopped() -> None:
    job = make_job(2, reschedule_policy=AFTER_30_S)
    failed = [make_allocation(index, status=FAILED, **ended(40)) for index in (1, 2, 3)]

    outcome = reconcile(job, make_allocation(0), *failed)

    assert list_placements(outcome) == [(1, "a1", "is_reschedule")]
    assert list_stops(outcome) == [("a2", NOT_NEEDED_TEXT), ("a3", NOT_NEEDED_TEXT)]
    assert get_counts(outcome) == {"ignore": 1, "place": 1, "reschedule_now": 1, "stop": 2}


@pytest.mark.parametrize(
    ("fields", "keeps_place"),
    [
        ({"status": COMPLETE, **ended(5, failed=False)}, True),
        ({"status": COMPLETE, "job_version": 0, **ended(5, failed=False)}, False),
        ({"status": COMPLETE, "desired_status": STOP, **ended(5, failed=False)}, True),
        ({"status": COMPLETE, "desired_status": STOP, **ended(5, failed=True)}, False),
        ({"status": COMPLETE, "desired_status": STOP}, False),
        ({"status": FAILED, **ended(5)}, True),
        ({"status": FAILED, "job_version": 0, **ended(5)}, False),
        ({"status": RUNNING, "desired_status": STOP}, False),
        ({"status": LOST}, True),
    ],
)
def test_a_batch_allocation_that_has_ended_counts_as_done(fields: dict[str, Any], *, keeps_place: bool) -> None:
    outcome = reconcile(make_job(1, batch=True), make_allocation(0, **fields), versions={0: make_job(version=0)})

    assert list_placements(outcome) == ([] if keeps_place else [(0, None)])


def test_a_batch_allocation_of_an_older_version_does_not_hide_the_results_of_the_current_one() -> None:
    done = [
        make_allocation(index, status=COMPLETE, job_version=int(index != 1), **ended(5, failed=False))
        for index in range(3)
    ]

    assert list_placements(reconcile(make_job(3, batch=True), *done)) == [(1, None)]


def test_a_failed_allocation_of_a_failed_deployment_does_not_keep_others_from_being_replaced() -> None:
    failed = [
        make_allocation(index, status=FAILED, deployment_id="d1" if index == 1 else "earlier", **ended(40))
        for index in range(3)
    ]
    job = make_job(3, reschedule_policy=AFTER_30_S)

    outcome = reconcile(job, *failed, deployment=make_deployment(FAILED_DEPLOYMENT))

    assert list_placements(outcome) == [(0, "a0", "is_reschedule"), (2, "a2", "is_reschedule")]


def test_a_failed_allocation_of_an_active_deployment_waits_for_the_controller() -> None:
    job, deployment = make_job(1, reschedule_policy=AFTER_30_S, update=ROLLING), make_deployment()
    failed = make_allocation(0, status=FAILED, deployment_id="d1", **ended(40))
    marked = replace(failed, desired_transition=DesiredTransition(reschedule=True))
    unmarked = replace(failed, desired_transition=DesiredTransition())
    placed = [(0, "a0", "is_reschedule")]

    assert [
        list_placements(reconcile(job, allocation, deployment=applied))
        for allocation, applied in (
            (failed, deployment),
            (unmarked, deployment),
            (marked, deployment),
            (failed, replace(deployment, id="d2")),
            (failed, None),
            (failed, make_deployment(PAUSED)),
            (failed, make_deployment(FAILED_DEPLOYMENT)),
            (replace(failed, deployment_id="d0"), make_deployment(FAILED_DEPLOYMENT)),
        )
    ] == [[], [], placed, placed, placed, [], [], placed]


@pytest.mark.parametrize(("is_unhealthy", "is_complete"), [(True, False), (False, True)])
def test_a_deployment_with_an_unhealthy_allocation_that_awaits_its_retry_is_not_complete(
    is_unhealthy: bool, is_complete: bool
) -> None:
    failed = make_allocation(0, status=FAILED, deployment_id="d1", **(SICK if is_unhealthy else {}), **ended(40))
    deployment = make_deployment(desired_total=1, healthy_allocs=1)

    outcome = reconcile(make_job(1, update=ROLLING), failed, deployment=deployment)

    assert outcome.is_complete == is_complete
    assert reconcile(make_job(0, update=ROLLING), failed, deployment=deployment).is_complete is True


# -- lost and disconnected nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", ["down", "deleted"])
def test_an_allocation_on_a_lost_node_is_stopped_and_replaced(node_id: str) -> None:
    lost = make_allocation(1, node_id=node_id)

    outcome = reconcile(make_job(2), make_allocation(0), lost, tainted_nodes={"down": DOWN, "deleted": None})

    assert (list_stops(outcome), list_placements(outcome)) == ([("a1", LOST)], [(1, "a1")])
    assert get_counts(outcome) == {"ignore": 1, "stop": 1, "place": 1}


def test_no_more_lost_allocations_are_replaced_than_are_missing() -> None:
    lost = [make_allocation(index, node_id="down") for index in (1, 2, 3)]

    outcome = reconcile(make_job(2), make_allocation(0), *lost)

    assert list_stops(outcome) == [("a1", LOST), ("a2", LOST), ("a3", LOST)]
    assert list_placements(outcome) == [(1, "a1")]


LOST_AFTER = DisconnectPolicy(lost_after=60 * SECOND_NS)


def test_an_allocation_on_a_disconnected_node_becomes_unknown_and_is_replaced_by_its_policy() -> None:
    allocation = make_allocation(0, node_id="away")
    timeout = ("a0", 60.0, "max-disconnect-timeout", True)

    never = reconcile(make_job(1, disconnect=LOST_AFTER), allocation)
    later = reconcile(make_job(1, disconnect=LOST_AFTER, reschedule_policy=AFTER_30_S), allocation)
    at_once = ReschedulePolicy(delay=SECOND_NS, delay_function="constant")
    now = reconcile(make_job(1, disconnect=LOST_AFTER, reschedule_policy=at_once), allocation)

    for outcome in (never, later, now):
        (unknown,) = outcome.disconnects
        assert (unknown.id, unknown.client_status) == ("a0", UNKNOWN)
        assert [state.value for state in unknown.alloc_states or ()] == ["unknown"]
        assert list_stops(outcome) == []
    assert (list_follow_ups(never), list_placements(never)) == ([timeout], [])
    assert (list_follow_ups(later), list_placements(later)) == (
        [timeout, ("a0", 30.0, "alloc-reschedule", False)],
        [],
    )
    assert (list_follow_ups(now), list_placements(now)) == ([timeout], [(0, "a0", "is_reschedule")])
    assert now.placements[0].failed_at_ns == NOW_NS
    assert [get_counts(outcome) for outcome in (never, later, now)] == [
        {"disconnect": 1, "ignore": 1},
        {"disconnect": 1, "ignore": 1},
        {"disconnect": 1, "place": 1, "reschedule_now": 1},
    ]
    assert [outcome.is_complete for outcome in (never, later, now)] == [True, False, False]


@pytest.mark.parametrize(
    ("fields", "policy", "is_replaced"),
    [
        ({}, LOST_AFTER, True),
        ({"next_allocation": "other"}, LOST_AFTER, False),
        ({}, replace(LOST_AFTER, replace=False), False),
        ({"deployment_id": "d1"}, LOST_AFTER, False),
        ({"deployment_id": "d1", "desired_transition": DesiredTransition(reschedule=True)}, LOST_AFTER, True),
    ],
)
def test_an_unknown_allocation_is_replaced_once_if_its_group_and_its_deployment_allow_it(
    fields: dict[str, Any], policy: DisconnectPolicy, is_replaced: bool
) -> None:
    unknown = make_allocation(0, status=UNKNOWN, node_id="away", **unknown_for(35), **fields)
    job = make_job(1, disconnect=policy, reschedule_policy=AFTER_30_S, update=ROLLING)

    outcome = reconcile(job, unknown, deployment=make_deployment())

    assert list_placements(outcome) == ([(0, "a0", "is_reschedule")] if is_replaced else [])
    if is_replaced:
        assert outcome.placements[0].failed_at_ns == NOW_NS - 35 * SECOND_NS
    assert list_follow_ups(outcome) == []


def test_an_unknown_allocation_with_a_replacement_does_not_count() -> None:
    job = make_job(1, disconnect=LOST_AFTER, reschedule_policy=AFTER_30_S)
    unknown = make_allocation(0, status=UNKNOWN, node_id="away", next_allocation="new", **unknown_for(35))
    replacement = make_allocation(0, "new", previous_allocation="a0")

    with_it = reconcile(job, unknown, replacement)
    without = reconcile(job, unknown, replace(replacement, client_status=COMPLETE, desired_status=STOP))

    assert (list_placements(with_it), list_stops(with_it)) == ([], [])
    assert (list_placements(without), list_stops(without)) == ([], [])


def test_unknown_allocations_beyond_the_free_places_are_not_replaced_and_stop_if_they_are_outdated() -> None:
    job = make_job(2, disconnect=LOST_AFTER, reschedule_policy=AFTER_30_S)
    unknown = [
        make_allocation(index, status=UNKNOWN, node_id="away", job_version=version, **unknown_for(35))
        for index, version in ((1, 1), (2, 1), (3, 0))
    ]

    outcome = reconcile(job, make_allocation(0), *unknown, versions={0: make_job(version=0)})

    assert list_placements(outcome) == [(1, "a1", "is_reschedule")]
    assert list_stops(outcome) == [("a3", NOT_NEEDED_TEXT)]


def test_an_outdated_unknown_allocation_that_is_needed_does_not_keep_a_replaced_one_from_being_stopped() -> None:
    away = {"status": UNKNOWN, "node_id": "away", "job_version": 0, **unknown_for(35)}
    allocations = [
        make_allocation(0, **away),
        make_allocation(1, **away, next_allocation="new"),
        make_allocation(1, "new", previous_allocation="a1"),
        make_allocation(2),
    ]

    outcome = reconcile(make_job(3, disconnect=LOST_AFTER), *allocations, versions={0: make_job(version=0)})

    assert ("a1", NOT_NEEDED_TEXT) in list_stops(outcome)


def stop_on_client(seconds: int) -> DisconnectPolicy:
    return DisconnectPolicy(stop_on_client_after=seconds * SECOND_NS)


@pytest.mark.parametrize(("kill_timeout_s", "wait_s"), [(None, 15.0), (2, 15.0), (20, 30.0)])
def test_placements_are_held_back_until_the_lost_node_has_stopped_the_tasks(
    kill_timeout_s: int | None, wait_s: float
) -> None:
    task = a_task(kill_timeout=None if kill_timeout_s is None else kill_timeout_s * SECOND_NS)
    job = make_job(3, disconnect=stop_on_client(10), task=task)

    outcome = reconcile(job, make_allocation(0, node_id="down"), make_allocation(1))

    assert (list_stops(outcome), list_placements(outcome)) == ([("a0", LOST)], [])
    assert list_follow_ups(outcome) == [("a0", wait_s, "alloc-failure", True)]


@pytest.mark.parametrize(
    ("fields", "is_held"),
    [
        ({"alloc_states": (AllocationState(value="lost", time=seconds_ago(14)),)}, True),
        ({"alloc_states": (AllocationState(value="lost", time=seconds_ago(15)),)}, False),
        ({"alloc_states": (AllocationState(value="unknown", time=seconds_ago(1)),)}, False),
        ({"alloc_states": (AllocationState(value="lost"),), "modify_time": NOW_NS - 14 * SECOND_NS}, True),
        ({"modify_time": NOW_NS - 14 * SECOND_NS}, True),
        ({"modify_time": NOW_NS - 15 * SECOND_NS}, False),
        ({"modify_time": NOW_NS, "next_allocation": "other"}, False),
        ({"modify_time": NOW_NS, "status": COMPLETE}, False),
    ],
)
def test_placements_are_held_back_while_an_earlier_lost_allocation_may_still_run(
    fields: dict[str, Any], is_held: bool
) -> None:
    lost = make_allocation(0, **{"status": LOST, "desired_status": STOP, **fields})
    older = make_allocation(1, "older", status=LOST, desired_status=STOP, modify_time=NOW_NS - 900 * SECOND_NS)

    for allocations in ((lost,), (lost, older), (older, lost)):
        outcome = reconcile(make_job(1, disconnect=stop_on_client(10)), *allocations)
        assert bool(outcome.placements) != is_held
    assert reconcile(make_job(1), lost).placements


def returned(key: str = "a0", **fields: Any) -> Allocation:
    """Return an allocation whose node is back, and that has the replacement `new`."""
    return make_allocation(0, key, **{"next_allocation": "new", **unknown_for(20), **fields})


def make_replacement(**fields: Any) -> Allocation:
    return make_allocation(0, "new", **{"previous_allocation": "a0", **fields})


def scored(*scores: float) -> dict[str, Any]:
    meta = tuple(NodeScore(node_id=str(number), norm_score=score) for number, score in enumerate(scores))
    return {"metrics": AllocMetric(score_meta_data=meta)}


def started(*ages: float | None, leader_s: float | None = None) -> dict[str, Any]:
    """Return task states with start times this long ago; `leader` is the leader task."""
    states = {
        f"t{number}": TaskState(state=TaskStatus.RUNNING, started_at=None if age is None else seconds_ago(age))
        for number, age in enumerate(ages)
    }
    if leader_s is not None:
        states["leader"] = TaskState(state=TaskStatus.RUNNING, started_at=seconds_ago(leader_s))
    return {"task_states": states or None}


@pytest.mark.parametrize(
    ("strategy", "original", "replacement", "keeps_original"),
    [
        ("keep_original", {}, {}, True),
        ("keep_original", {}, scored(0.9), True),
        ("keep_original", {}, {"job_version": 2}, False),
        ("keep_replacement", {}, {}, False),
        ("best_score", {}, {}, True),
        ("best_score", scored(0.5), scored(0.5), True),
        ("best_score", scored(0.5), scored(0.6), False),
        ("best_score", scored(0.6), scored(0.5), True),
        ("best_score", scored(0.2, 0.7), scored(0.6, 0.1), True),
        ("best_score", {}, scored(0.1), False),
        ("best_score", scored(0.5), {**scored(0.6), "status": PENDING}, True),
        ("best_score", {**scored(0.5), "status": UNKNOWN}, {**scored(0.6), "status": PENDING}, False),
        ("longest_running", started(50), started(40), True),
        ("longest_running", started(40), started(50), False),
        ("longest_running", started(40), started(40), True),
        ("longest_running", started(40), {}, True),
        ("longest_running", {}, started(40), False),
        ("longest_running", started(None), started(40), False),
        ("longest_running", started(30, 50), started(40), True),
        ("longest_running", started(30), started(20, 40), False),
        ("longest_running", started(90, leader_s=30), started(40), False),
        ("longest_running", started(90, leader_s=30), started(80, leader_s=20), True),
        ("longest_running", {}, {}, True),
        ("longest_running", scored(0.5), scored(0.6), False),
    ],
)
def test_the_strategy_decides_whether_the_original_or_its_replacement_continues(
    strategy: str, original: dict[str, Any], replacement: dict[str, Any], keeps_original: bool
) -> None:
    policy = replace(LOST_AFTER, reconcile=strategy)
    tasks = (a_task("t0"), a_task("leader", leader=True))
    job = a_job("shop", a_group("web", *tasks, disconnect=policy, reschedule_policy=NEVER, update=None), version=1)

    outcome = reconcile(job, returned(**original), make_replacement(**replacement), versions={2: job})

    assert [stop[0] for stop in list_stops(outcome)] == ["new" if keeps_original else "a0"]
    assert outcome.stops[0].reason == RECONNECTED_TEXT
    is_reported = keeps_original and original.get("status") is not UNKNOWN
    assert [each.id for each in outcome.reconnects] == (["a0"] if is_reported else [])
    assert get_counts(outcome).get("reconnect", 0) == is_reported
    for each in outcome.reconnects:
        assert [state.value for state in each.alloc_states or ()] == ["unknown", "running"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": FAILED}, RESCHEDULED_TEXT),
        ({"desired_status": STOP}, NOT_NEEDED_TEXT),
        ({"job_version": 0}, NOT_NEEDED_TEXT),
        ({"desired_transition": DesiredTransition(reschedule=True)}, NOT_NEEDED_TEXT),
        ({"desired_transition": DesiredTransition(force_reschedule=True)}, NOT_NEEDED_TEXT),
        ({"desired_transition": DesiredTransition()}, ""),
        ({}, ""),
    ],
)
def test_an_original_that_is_not_needed_stops_when_its_node_returns(fields: dict[str, Any], reason: str) -> None:
    outcome = reconcile(make_job(1, disconnect=LOST_AFTER), returned(**fields), versions={0: make_job(version=0)})

    assert list_stops(outcome) == ([("a0", reason)] if reason else [])
    assert [each.id for each in outcome.reconnects] == ([] if reason else ["a0"])


def test_the_replacement_of_a_replacement_is_compared_too_and_one_that_has_ended_is_not() -> None:
    job = make_job(1, disconnect=replace(LOST_AFTER, reconcile="keep_replacement"))
    dead = make_replacement(status=FAILED, next_allocation="newest")
    newest = make_allocation(0, "newest", previous_allocation="new")

    assert list_stops(reconcile(job, returned(), dead, newest)) == [("a0", RECONNECTED_TEXT)]
    # The original continues, so the group has one allocation too many: the one that has failed.
    assert list_stops(reconcile(job, returned(), replace(dead, next_allocation=""))) == [("new", NOT_NEEDED_TEXT)]


def test_the_replacement_of_an_original_continues_although_its_own_replacement_has_ended() -> None:
    job = make_job(1, disconnect=replace(LOST_AFTER, reconcile="keep_replacement"))
    newest = make_allocation(0, "newest", FAILED, previous_allocation="new")

    outcome = reconcile(job, returned(), make_replacement(next_allocation="newest"), newest)

    assert ("a0", RECONNECTED_TEXT) in list_stops(outcome)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": FAILED}, RESCHEDULED_TEXT),
        ({"desired_status": STOP}, NOT_NEEDED_TEXT),
        ({"next_allocation": "new"}, RECONNECTED_TEXT),
    ],
)
def test_an_original_that_stops_does_not_keep_others_from_continuing(fields: dict[str, Any], reason: str) -> None:
    job = make_job(3, disconnect=replace(LOST_AFTER, reconcile="keep_replacement"))
    back = {"next_allocation": "gone", **unknown_for(20)}
    originals = [make_allocation(index, **{**back, **(fields if index == 1 else {})}) for index in range(3)]

    outcome = reconcile(job, *originals, make_allocation(1, "new", previous_allocation="a1"))

    assert (list_stops(outcome), [each.id for each in outcome.reconnects]) == ([("a1", reason)], ["a0", "a2"])


# -- updates -----------------------------------------------------------------------------------------------------------

OLD = {0: make_job(version=0)}


def make_old(count: int, **fields: Any) -> list[Allocation]:
    return [make_allocation(index, job_version=0, **fields) for index in range(count)]


def test_all_outdated_allocations_are_replaced_at_once_without_an_update_policy() -> None:
    outcome = reconcile(make_job(3), *make_old(2), versions=OLD)

    assert (list_replacements(outcome), list_placements(outcome)) == ([(0, "a0"), (1, "a1")], [(2, None)])
    assert get_counts(outcome) == {"destructive_update": 2, "place": 1}
    assert [request.stop and request.stop.reason for request in outcome.replacements] == [UPDATING_TEXT] * 2
    assert (outcome.is_new_deployment, outcome.stops) == (False, [])


@pytest.mark.parametrize(
    ("max_parallel", "existing", "replaced"), [(1, 3, 1), (2, 3, 2), (5, 3, 3), (2, 2, 1), (1, 2, 0)]
)
def test_an_update_takes_down_at_most_max_parallel_with_the_new_allocations(
    max_parallel: int, existing: int, replaced: int
) -> None:
    job = make_job(3, update=replace(ROLLING, max_parallel=max_parallel, progress_deadline=7, auto_revert=True))

    outcome = reconcile(job, *make_old(existing), versions=OLD)

    assert len(outcome.replacements) == replaced
    assert get_counts(outcome) == {
        name: count
        for name, count in (
            ("destructive_update", replaced),
            ("ignore", existing - replaced),
            ("place", 3 - existing),
        )
        if count
    }
    assert (outcome.is_new_deployment, outcome.is_complete) == (True, False)
    assert outcome.deployment == DeploymentGroup(desired_total=3, progress_deadline=7, auto_revert=True)


def test_failed_then_unhealthy_then_low_indexes_are_replaced_first() -> None:
    allocations = make_old(4)
    allocations[2] = replace(allocations[2], **SICK)
    allocations[3] = replace(allocations[3], client_status=FAILED)

    orders = [
        [request[1] for request in list_replacements(reconcile(make_job(4, update=update), *order, versions=OLD))]
        for update in (None, replace(ROLLING, max_parallel=2))
        for order in (allocations, allocations[::-1])
    ]

    assert orders == [["a3", "a2", "a0", "a1"]] * 2 + [["a3", "a2"]] * 2


def test_an_update_waits_for_the_health_of_what_it_has_replaced() -> None:
    def count_replaced(*health: bool | None, max_parallel: int = 2, **deployment: Any) -> int:
        new = [
            make_allocation(
                index,
                deployment_id="d1",
                deployment_status=None if healthy is None else AllocDeploymentStatus(healthy=healthy),
            )
            for index, healthy in enumerate(health)
        ]
        old = [make_allocation(index, job_version=0) for index in range(len(new), 4)]
        job = make_job(4, update=replace(ROLLING, max_parallel=max_parallel))
        outcome = reconcile(job, *new, *old, versions=OLD, deployment=make_deployment(**deployment))
        return len(outcome.replacements)

    assert [count_replaced(*health) for health in ((), (True,), (None,), (True, None), (None, None), (False,))] == [
        2,
        2,
        1,
        1,
        0,
        0,
    ]
    assert [count_replaced(max_parallel=9), count_replaced(None, max_parallel=9)] == [4, 3]
    assert [count_replaced(status=status) for status in (PAUSED, FAILED_DEPLOYMENT)] == [0, 0]
    assert [
        count_replaced(desired_canaries=1, promoted=False),
        count_replaced(desired_canaries=1, promoted=True),
    ] == [0, 2]


def test_an_update_waits_for_migrating_allocations() -> None:
    moving = make_allocation(2, node_id="draining", desired_transition=MIGRATE)
    has_ended = replace(moving, client_status=FAILED, deployment_status=AllocDeploymentStatus(canary=False))
    job = make_job(3, update=replace(ROLLING, max_parallel=2))

    assert [
        len(reconcile(job, *make_old(2), other, versions=OLD, deployment=deployment).replacements)
        for deployment in (None, make_deployment())
        for other in (moving, has_ended)
    ] == [1, 2, 1, 2]


def test_allocations_are_updated_in_place_where_no_task_has_to_restart() -> None:
    same = {0: replace(make_job(version=1), version=0)}
    old = [*make_old(2), make_allocation(2, job_version=0, status=FAILED)]

    outcome = reconcile(make_job(3, update=ROLLING), *old, versions=same, in_place=("a0",))

    assert ([each.id for each in outcome.in_place_updates], list_replacements(outcome)) == (["a0"], [(1, "a1")])
    assert get_counts(outcome) == {"in_place_update": 1, "destructive_update": 1, "ignore": 1}
    assert (outcome.is_new_deployment, outcome.deployment) == (True, DeploymentGroup(desired_total=2))


def test_an_allocation_whose_version_is_no_longer_stored_is_replaced() -> None:
    assert list_replacements(reconcile(make_job(1), *make_old(1), in_place=("a0",))) == [(0, "a0")]


def test_a_deployment_starts_only_for_a_new_version() -> None:
    job = make_job(2, update=ROLLING)

    def starts(job: Job, *allocations: Allocation, **options: Any) -> bool:
        return reconcile(job, *allocations, versions=OLD, **options).is_new_deployment

    assert [
        starts(job),
        starts(job, *make_old(1)),
        starts(job, make_allocation(0)),
        starts(job, make_allocation(0), make_allocation(1)),
        starts(job, make_allocation(0), make_allocation(1, job_version=0)),
        starts(job, deployment=make_deployment()),
        starts(make_job(2, update=replace(ROLLING, max_parallel=0))),
        starts(make_job(2)),
    ] == [True, True, False, False, True, False, False, False]


def test_a_replacement_keeps_its_name_unless_another_allocation_keeps_it() -> None:
    twins = [make_allocation(0), make_allocation(0, "twin", job_version=0)]

    outcome = reconcile(make_job(2), *twins, versions=OLD)

    assert list_replacements(outcome) == [(1, "twin")]


def test_nothing_new_is_placed_while_the_deployment_is_paused_or_failed_but_what_is_owed() -> None:
    owed = make_allocation(1, "owed", desired_status=STOP, desired_description=UPDATING_TEXT)
    replaced = replace(owed, id="replaced", next_allocation="a0")
    job = make_job(3, update=ROLLING)

    for status in (PAUSED, FAILED_DEPLOYMENT):
        deployment = make_deployment(status)
        without = reconcile(job, make_allocation(0), replaced, deployment=deployment)
        with_it = reconcile(job, make_allocation(0), replaced, owed, deployment=deployment)
        assert (list_placements(without), list_placements(with_it)) == ([], [(1, None)])
        assert (without.deployment, without.is_complete) == (
            deployment.task_groups and DeploymentGroup(desired_total=3),
            False,
        )


HEALTHY = AllocDeploymentStatus(healthy=True)


@pytest.mark.parametrize("status", [PAUSED, FAILED_DEPLOYMENT])
@pytest.mark.parametrize(
    ("fields", "is_replaced"),
    [
        pytest.param({"deployment_status": HEALTHY, "deployment_id": "d0"}, True, id="of an earlier deployment"),
        pytest.param({"deployment_status": HEALTHY, "deployment_id": "d1"}, True, id="of this deployment"),
        pytest.param({"deployment_id": "d1"}, True, id="ended before its health was known"),
        pytest.param({"status": LOST, "deployment_status": HEALTHY}, True, id="lost, and not stopped"),
        pytest.param({"deployment_id": "d0", **SICK}, True, id="unhealthy, of an earlier deployment"),
        pytest.param({"desired_status": STOP, "deployment_status": HEALTHY}, False, id="stopped on request"),
        pytest.param({"next_allocation": "a0", "deployment_status": HEALTHY}, False, id="replaced already"),
    ],
)
def test_a_service_allocation_that_should_run_but_has_ended_is_replaced_whatever_its_deployment_does(
    status: DeploymentStatus, fields: dict[str, Any], *, is_replaced: bool
) -> None:
    has_ended = make_allocation(1, **{"status": COMPLETE, **fields})
    job = make_job(2, update=ROLLING)

    outcome = reconcile(job, make_allocation(0), has_ended, deployment=make_deployment(status))

    assert list_placements(outcome) == ([(1, "a1", "is_reschedule")] if is_replaced else [])


def test_an_unhealthy_allocation_that_ended_is_not_replaced_for_its_failed_deployment() -> None:
    has_ended = make_allocation(1, status=COMPLETE, deployment_id="d1", **SICK)

    outcome = reconcile(
        make_job(2, update=ROLLING), make_allocation(0), has_ended, deployment=make_deployment(FAILED_DEPLOYMENT)
    )

    assert list_placements(outcome) == []


REPLACED_ONCE = RescheduleTracker(
    events=(RescheduleEvent(reschedule_time=NOW_NS - 60 * SECOND_NS, delay=30 * SECOND_NS),)
)


@pytest.mark.parametrize("policy", [AFTER_30_S, NEVER])
@pytest.mark.parametrize("status", [None, FAILED_DEPLOYMENT])
def test_each_further_replacement_of_an_ended_service_allocation_waits(
    policy: ReschedulePolicy, status: DeploymentStatus | None
) -> None:
    job = make_job(1, reschedule_policy=policy)
    deployment = make_deployment(status) if status is not None else None

    def reconcile_ended(seconds: float, **fields: Any) -> GroupOutcome:
        has_ended = make_allocation(
            0, status=COMPLETE, reschedule_tracker=REPLACED_ONCE, **ended(seconds, failed=False), **fields
        )
        return reconcile(job, has_ended, deployment=deployment)

    early, late = reconcile_ended(10), reconcile_ended(30)
    waiting, due = reconcile_ended(10, followup_eval_id="waiting"), reconcile_ended(10, followup_eval_id="e1")

    assert (list_placements(early), list_follow_ups(early)) == ([], [("a0", 20.0, "alloc-reschedule", True)])
    assert (list_placements(late), list_follow_ups(late)) == ([(0, "a0", "is_reschedule")], [])
    assert (list_placements(waiting), list_follow_ups(waiting)) == ([], [])
    assert list_placements(due) == [(0, "a0", "is_reschedule")]


def test_an_allocation_that_ended_and_waits_for_its_replacement_is_given_up_before_running_ones() -> None:
    has_ended = make_allocation(
        0, status=COMPLETE, reschedule_tracker=REPLACED_ONCE, **ended(10, failed=False), followup_eval_id="waiting"
    )

    outcome = reconcile(make_job(2), has_ended, make_allocation(1), make_allocation(2))

    assert (list_stops(outcome), list_placements(outcome)) == ([], [])


def test_a_completed_batch_allocation_counts_when_others_are_surplus() -> None:
    done = make_allocation(0, status=COMPLETE, **ended(10, failed=False))

    outcome = reconcile(make_job(2, batch=True), done, make_allocation(1), make_allocation(2))

    assert [stop[0] for stop in list_stops(outcome)] == ["a2"]


def test_an_ended_canary_is_replaced_by_one_canary() -> None:
    has_ended = make_canary(0, status=COMPLETE)
    deployment = make_deployment(desired_canaries=2, placed_canaries=("c0", "c1"))

    outcome = reconcile(
        make_job(2, update=CANARY), *make_old(2), has_ended, make_canary(1), versions=OLD, deployment=deployment
    )

    assert [request.is_canary for request in outcome.placements] == [True]


def test_a_completed_batch_allocation_is_not_placed_again_while_a_deployment_has_failed() -> None:
    done = make_allocation(0, status=COMPLETE, **ended(5, failed=False))

    outcome = reconcile(make_job(1, batch=True), done, deployment=make_deployment(FAILED_DEPLOYMENT))

    assert list_placements(outcome) == []


@pytest.mark.parametrize(
    ("group", "is_complete"),
    [
        ({"desired_total": 1, "healthy_allocs": 1}, True),
        ({"desired_total": 1, "healthy_allocs": 0}, False),
        ({"desired_total": 1, "healthy_allocs": 2, "desired_canaries": 1}, False),
        ({"desired_total": 1, "healthy_allocs": 2, "desired_canaries": 1, "promoted": True}, True),
    ],
)
def test_a_group_is_complete_when_its_rollout_is(group: dict[str, Any], is_complete: bool) -> None:
    outcome = reconcile(make_job(1, update=ROLLING), make_allocation(0), deployment=make_deployment(**group))

    assert outcome.is_complete == is_complete


# -- canaries ----------------------------------------------------------------------------------------------------------

CANARY = UpdatePolicy(max_parallel=1, canary=2, progress_deadline=0)


def make_canary(index: int = 0, key: str = "", **fields: Any) -> Allocation:
    fields = {"deployment_id": "d1", "deployment_status": AllocDeploymentStatus(canary=True), **fields}
    return make_allocation(index, key or f"c{index}", **fields)


def test_missing_canaries_are_requested_with_the_names_of_outdated_allocations() -> None:
    outcome = reconcile(make_job(3, update=CANARY), *make_old(3), versions=OLD)

    assert list_placements(outcome) == [(0, None, "is_canary"), (1, None, "is_canary")]
    assert (get_counts(outcome), list_replacements(outcome)) == ({"canary": 2, "ignore": 3}, [])
    assert outcome.deployment == DeploymentGroup(desired_canaries=2, desired_total=3)


def test_existing_canaries_count_and_keep_their_names() -> None:
    deployment = make_deployment(desired_canaries=2, placed_canaries=("c0", "gone"))

    def place(existing: Allocation, applied: Deployment = deployment, *, canaries: int = 2) -> list[tuple[Any, ...]]:
        job = make_job(3, update=replace(CANARY, canary=canaries))
        return list_placements(reconcile(job, *make_old(3), existing, versions=OLD, deployment=applied))

    promoted = make_deployment(desired_canaries=2, placed_canaries=("c0",), promoted=True)
    paused = make_deployment(PAUSED, desired_canaries=2, placed_canaries=("c0",))
    assert place(make_canary()) == [(1, None, "is_canary")]
    assert place(make_canary(status=COMPLETE)) == [(0, None, "is_canary"), (1, None, "is_canary")]
    assert place(make_canary(status=FAILED, **ended(5))) == [(1, None, "is_canary")]
    assert place(make_canary(status=FAILED, next_allocation="x")) == [(0, None, "is_canary"), (1, None, "is_canary")]
    assert place(make_canary(), canaries=1) == []
    assert place(make_canary(), promoted) == []
    assert place(make_canary(), paused) == []


def test_no_canary_is_needed_for_an_update_in_place_or_without_outdated_allocations() -> None:
    job = make_job(2, update=CANARY)
    same = {0: replace(make_job(version=1), version=0)}

    assert list_placements(reconcile(job, *make_old(2), versions=same, in_place=("a0", "a1"))) == []
    assert list_placements(reconcile(job)) == [(0, None), (1, None)]


@pytest.mark.parametrize(
    ("fields", "status", "stops"),
    [
        ({}, None, [("c0", NOT_NEEDED_TEXT)]),
        ({}, FAILED_DEPLOYMENT, [("c0", NOT_NEEDED_TEXT)]),
        ({"deployment_id": "d0"}, DeploymentStatus.RUNNING, [("c0", NOT_NEEDED_TEXT)]),
        ({}, DeploymentStatus.RUNNING, []),
        (
            {"deployment_id": "d0", "deployment_status": AllocDeploymentStatus(canary=False)},
            DeploymentStatus.RUNNING,
            [],
        ),
        ({"deployment_id": "d0", "deployment_status": None}, DeploymentStatus.RUNNING, []),
        ({"status": FAILED}, None, [("c0", NOT_NEEDED_TEXT)]),
        ({"status": COMPLETE}, None, []),
        ({"status": LOST}, None, []),
        ({"desired_status": STOP}, None, []),
        ({"node_id": "down"}, None, [("c0", LOST)]),
        ({"node_id": "down"}, DeploymentStatus.RUNNING, [("c0", LOST)]),
        ({"node_id": "draining", "desired_transition": MIGRATE}, DeploymentStatus.RUNNING, [("c0", MIGRATING_TEXT)]),
    ],
)
def test_canaries_stop_if_they_cannot_be_promoted_or_their_node_goes(
    fields: dict[str, Any], status: DeploymentStatus | None, stops: list[tuple[str, str]]
) -> None:
    deployment = None
    if status is not None:
        deployment = make_deployment(status, desired_canaries=1, placed_canaries=("c0",))
    old = [make_allocation(index, job_version=0) for index in (0, 1)]

    outcome = reconcile(
        make_job(2, update=replace(CANARY, canary=1)), *old, make_canary(**fields), versions=OLD, deployment=deployment
    )

    assert list_stops(outcome) == stops


def test_next_to_canaries_the_older_version_is_placed_and_a_failed_canary_is_retried_as_one() -> None:
    stable, other = make_job(version=0), make_job(version=0, update=ROLLING)
    job = make_job(3, update=replace(CANARY, canary=1), reschedule_policy=AFTER_30_S)
    deployment = make_deployment(desired_canaries=1, placed_canaries=("c0",))
    failed_old = make_allocation(1, job_version=0, status=FAILED, **ended(40))
    failed_canary = make_canary(status=FAILED, desired_transition=DesiredTransition(reschedule=True), **ended(40))

    def place(version: Job | None, versions: dict[int, Job], *allocations: Allocation) -> list[tuple[Any, ...]]:
        return list_placements(
            reconcile(
                job,
                *allocations,
                versions=versions,
                deployment=deployment,
                find_stable_version=lambda _name: None if version is None else (version, "d0"),
            )
        )

    old = make_allocation(0, job_version=0)
    new_ones = [(2, None, "version 0", "d0")]
    assert place(stable, {0: stable}, old, failed_old, make_canary()) == [
        (1, "a1", "is_reschedule", "version 0", "d0"),
        *new_ones,
    ]
    assert place(None, {0: stable}, old, failed_old, make_canary()) == [
        (1, "a1", "is_reschedule", "version 0"),
        (2, None),
    ]
    assert place(None, {0: other}, old, failed_old, make_canary()) == [(1, "a1", "is_reschedule"), (2, None)]
    assert place(None, {}, old, failed_old, make_canary()) == [(1, "a1", "is_reschedule"), (2, None)]
    assert place(stable, {0: stable}, old, make_allocation(1, job_version=0), failed_canary)[0] == (
        0,
        "c0",
        "is_canary",
        "is_reschedule",
    )
    without_group = replace(stable, task_groups=(a_group("db"),))
    assert place(without_group, {0: stable}, old, failed_old, make_canary())[1:] == [(2, None)]


# -- migrations --------------------------------------------------------------------------------------------------------


def test_migrating_allocations_stop_and_are_replaced_with_their_names() -> None:
    moving = make_allocation(1, node_id="draining", desired_transition=MIGRATE)

    outcome = reconcile(make_job(2), make_allocation(0), moving)

    assert (list_stops(outcome), list_placements(outcome)) == ([("a1", MIGRATING_TEXT)], [(1, "a1")])
    assert (get_counts(outcome), outcome.is_complete) == ({"ignore": 1, "migrate": 1}, False)
    for status in (PAUSED, FAILED_DEPLOYMENT):
        paused = reconcile(make_job(2, update=ROLLING), make_allocation(0), moving, deployment=make_deployment(status))
        assert list_placements(paused) == [(1, "a1")]


def test_a_migration_without_placement_only_stops() -> None:
    silent = DesiredTransition(migrate=True, migrate_disable_placement=True)

    outcome = reconcile(make_job(1), make_allocation(0, node_id="draining", desired_transition=silent))

    assert (list_stops(outcome), list_placements(outcome)) == ([("a0", MIGRATING_TEXT)], [])


def test_a_migration_without_placement_does_not_keep_others_from_being_replaced() -> None:
    silent = DesiredTransition(migrate=True, migrate_disable_placement=True)
    moving = [
        make_allocation(index, node_id="draining", desired_transition=silent if index == 1 else MIGRATE)
        for index in range(3)
    ]

    outcome = reconcile(make_job(3), *moving)

    assert list_stops(outcome) == [(f"a{index}", MIGRATING_TEXT) for index in range(3)]
    assert list_placements(outcome) == [(0, "a0"), (2, "a2")]


def test_an_allocation_that_was_replaced_while_its_node_was_away_is_not_replaced_again_by_a_drain() -> None:
    moving = make_allocation(
        0, node_id="draining", desired_transition=MIGRATE, next_allocation="new", **unknown_for(20)
    )
    never_away = replace(moving, alloc_states=None)
    replacement = make_allocation(0, "new", previous_allocation="a0")
    job = make_job(1, disconnect=LOST_AFTER)

    outcome = reconcile(job, moving, replacement)
    alone = reconcile(job, moving)

    assert (list_stops(outcome), list_placements(outcome)) == ([("a0", MIGRATING_TEXT)], [])
    assert get_counts(outcome) == {"ignore": 1, "stop": 1}
    assert (list_stops(alone), list_placements(alone)) == ([("a0", MIGRATING_TEXT)], [(0, "a0")])
    assert get_counts(reconcile(make_job(2), never_away, replacement)) == {"ignore": 1, "migrate": 1}


# -- the end of a group ------------------------------------------------------------------------------------------------


def test_a_group_that_is_not_requested_any_more_stops_everything_that_may_run() -> None:
    job = make_job(1, disconnect=LOST_AFTER)
    allocations = [
        make_allocation(0),
        make_allocation(1, status=PENDING),
        make_allocation(2, status=COMPLETE),
        make_allocation(3, status=FAILED),
        make_allocation(4, desired_status=STOP),
        make_allocation(5, node_id="down"),
        make_allocation(6, status=UNKNOWN, node_id="away", **unknown_for(61)),
        make_allocation(7, status=UNKNOWN, node_id="away", **unknown_for(5)),
        make_allocation(8, status=FAILED, **unknown_for(5)),
    ]
    reconcile_input = ReconcileInput(
        job=job,
        is_batch=False,
        evaluation_id="e1",
        now_ns=NOW_NS,
        tainted_nodes={"down": DOWN, "away": DISCONNECTED},
        deployment=None,
        find_job_version=lambda _allocation: None,
        is_evaluation_pending=lambda _id: False,
        can_update_in_place=lambda _allocation, _group: False,
        find_stable_version=lambda _name: None,
    )

    outcome = stop_group(reconcile_input, "web", job.groups[0], allocations)

    assert list_stops(outcome) == [
        ("a0", NOT_NEEDED_TEXT),
        ("a1", NOT_NEEDED_TEXT),
        ("a5", LOST),
        ("a6", LOST),
        ("a7", NOT_NEEDED_TEXT),
        ("a8", NOT_NEEDED_TEXT),
    ]
    assert (get_counts(outcome), outcome.is_complete) == ({"stop": 6}, True)
