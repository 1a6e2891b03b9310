"""The outcome of reconciling one group of a system or sysbatch job: stops, placements, updates and canaries."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.kit.state import SECOND_NS, a_node, an_allocation
from wharf.cluster.scheduling.reconcile.input import LOST_TEXT, NOT_NEEDED_TEXT, UPDATING_TEXT, ReconcileInput
from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome, PlacementRequest
from wharf.cluster.scheduling.reconcile.system_group import (
    NODE_TAINTED_TEXT,
    CanaryPhase,
    count_canaries,
    get_canary_phase,
    reconcile_system_group,
)
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import DrainStrategy, Node, NodeStatus
from wharf.contract.model.times import to_datetime

NOW_NS = 1_700_000_000 * SECOND_NS
RUNNING, COMPLETE, FAILED = ClientStatus.RUNNING, ClientStatus.COMPLETE, ClientStatus.FAILED
LOST, UNKNOWN, STOP = ClientStatus.LOST, ClientStatus.UNKNOWN, DesiredStatus.STOP
LOST_AFTER = DisconnectPolicy(lost_after=60 * SECOND_NS)
MIGRATE = DesiredTransition(migrate=True)
ROLLING = UpdatePolicy(max_parallel=1, progress_deadline=7, auto_revert=True, auto_promote=True)
PAUSED, FAILED_DEPLOYMENT = DeploymentStatus.PAUSED, DeploymentStatus.FAILED


def make_job(*, count: int = 1, version: int = 1, type: JobType = JobType.SYSTEM, **fields: Any) -> Job:
    fields = {"update": None, **fields}
    group = a_group("web", a_task(env={"V": str(version)}), count=count, **fields)
    return a_job("agent", group, version=version, type=type, datacenters=("dc1",))


OLD = make_job(version=0)


def make_allocation(node_id: str, key: str = "", *, index: int = 0, **fields: Any) -> Allocation:
    """Return an allocation of version 1 with the id of its node."""
    fields = {"job_version": 1, "client_status": RUNNING, "create_index": 1, **fields}
    return an_allocation(a_job("agent"), key or node_id, name=f"agent.web[{index}]", node_id=node_id, **fields)


def make_old(*node_ids: str, **fields: Any) -> list[Allocation]:
    return [make_allocation(node_id, job_version=0, **fields) for node_id in node_ids]


def of_deployment(*, healthy: bool | None = None, canary: bool = False, **fields: Any) -> dict[str, Any]:
    return {"deployment_id": "d1", "deployment_status": AllocDeploymentStatus(healthy=healthy, canary=canary), **fields}


def unknown_for(seconds: float) -> dict[str, Any]:
    state = AllocationState(value="unknown", time=to_datetime(NOW_NS - round(seconds * SECOND_NS)))
    return {"alloc_states": (state,)}


def make_deployment(status: DeploymentStatus = DeploymentStatus.RUNNING, **group: Any) -> Deployment:
    groups = {"web": DeploymentGroup(**group)}
    return Deployment(id="d1", job_id="agent", job_version=1, status=status, task_groups=groups)


SPECIAL_NODES = {
    "down": a_node("down", status=NodeStatus.DOWN),
    "away": a_node("away", status=NodeStatus.DISCONNECTED),
    "draining": a_node("draining", status=NodeStatus.READY, drain_strategy=DrainStrategy()),
    "far": a_node("far", status=NodeStatus.READY, datacenter="dc2"),
    "ineligible": a_node("ineligible", status=NodeStatus.READY),
}


def reconcile(job: Job, *allocations: Allocation, nodes: str = "", **options: Any) -> GroupOutcome:
    """Reconcile the group `web`. `nodes` are the ready nodes, one letter each; those in `cannot_run` are infeasible."""
    eligible = {name: a_node(name, status=NodeStatus.READY) for name in nodes}
    all_nodes: dict[str, Node] = {**eligible, **SPECIAL_NODES}
    tainted = {name: node for name, node in SPECIAL_NODES.items() if name in ("down", "away", "draining")}
    cannot_run, in_place = options.pop("cannot_run", ""), options.pop("in_place", "")
    fields: dict[str, Any] = {
        "job": job,
        "is_batch": job.type == JobType.SYSBATCH,
        "evaluation_id": "e1",
        "now_ns": NOW_NS,
        "tainted_nodes": {**tainted, "deleted": None},
        "deployment": None,
        "find_job_version": lambda each: job if each.job_version == job.version else OLD,
        "is_evaluation_pending": lambda _id: False,
        "can_update_in_place": lambda allocation, _group: allocation.id in in_place,
        "find_stable_version": lambda _name: None,
        **options,
    }
    return reconcile_system_group(
        ReconcileInput(**fields),
        job.groups[0],
        allocations,
        eligible=eligible,
        find_node=all_nodes.get,
        can_run=lambda node: node.id not in cannot_run,
    )


def describe_request(request: PlacementRequest) -> tuple[Any, ...]:
    """Return the node of the request and its index, the allocation that it replaces, and what is special about it."""
    assert request.node is not None
    special = ["canary"] if request.is_canary else []
    if request.job.version != 1:
        special.append(f"version {request.job.version} {request.deployment_id}")
    index = request.name.split("[")[1][:-1]
    return f"{request.node.id}{index}", request.previous and request.previous.id, *special


def list_placements(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [describe_request(request) for request in outcome.placements]


def list_replacements(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [describe_request(request) for request in outcome.replacements]


def list_stops(outcome: GroupOutcome) -> list[tuple[Any, ...]]:
    return [
        (stop.allocation.id, stop.reason) if stop.client_status is None else (stop.allocation.id, stop.client_status)
        for stop in outcome.stops
    ]


def get_counts(outcome: GroupOutcome) -> dict[str, int]:
    counts = outcome.update_counts
    return {name: getattr(counts, name) for name in counts.__struct_fields__ if getattr(counts, name)}


# -- slots -------------------------------------------------------------------------------------------------------------


def test_each_eligible_node_gets_each_missing_allocation_if_it_can_run_it() -> None:
    outcome = reconcile(
        make_job(count=2), make_allocation("a"), make_allocation("b", "b1", index=1), nodes="abcde", cannot_run="de"
    )

    assert list_placements(outcome) == [("a1", None), ("b0", None), ("c0", None), ("c1", None)]
    assert (outcome.infeasible_count, get_counts(outcome)) == (4, {"place": 4, "ignore": 2})
    assert (outcome.stops, outcome.is_complete, outcome.deployment) == ([], False, None)


def test_a_group_that_runs_on_all_nodes_needs_nothing() -> None:
    outcome = reconcile(make_job(), make_allocation("a"), make_allocation("b"), nodes="ab")

    assert (outcome.placements, outcome.stops, outcome.is_complete) == ([], [], True)
    assert get_counts(outcome) == {"ignore": 2}


@pytest.mark.parametrize(
    ("allocation", "stops", "counts"),
    [
        (make_allocation("down"), [("down", LOST)], {"stop": 1}),
        (make_allocation("deleted"), [("deleted", LOST)], {"stop": 1}),
        (make_allocation("away"), [], {"disconnect": 1}),
        (make_allocation("away", client_status=UNKNOWN, **unknown_for(5)), [], {"ignore": 1}),
        (make_allocation("away", client_status=UNKNOWN, **unknown_for(60)), [("away", LOST)], {"stop": 1}),
        (
            make_allocation("draining", desired_transition=MIGRATE),
            [("draining", NODE_TAINTED_TEXT)],
            {"stop": 1},
        ),
        (make_allocation("draining"), [], {"ignore": 1}),
        (make_allocation("draining", job_version=0), [], {"ignore": 1}),
        (make_allocation("ineligible"), [], {"ignore": 1}),
        (make_allocation("ineligible", job_version=0), [("ineligible", NOT_NEEDED_TEXT)], {"stop": 1}),
        (make_allocation("far"), [("far", NOT_NEEDED_TEXT)], {"stop": 1}),
        (make_allocation("ineligible", index=1), [("ineligible", NOT_NEEDED_TEXT)], {"stop": 1}),
        (make_allocation("ineligible", desired_status=STOP), [], {}),
        (make_allocation("ineligible", client_status=COMPLETE), [], {}),
        (make_allocation("ineligible", **unknown_for(5)), [], {"reconnect": 1, "ignore": 1}),
        (make_allocation("ineligible", client_status=FAILED, **unknown_for(5)), [], {"reconnect": 1}),
    ],
)
def test_an_allocation_stays_or_stops_by_its_state_and_its_node(
    allocation: Allocation, stops: list[tuple[str, str]], counts: dict[str, int]
) -> None:
    outcome = reconcile(make_job(disconnect=LOST_AFTER), allocation)

    assert (list_stops(outcome), get_counts(outcome)) == (stops, counts)
    assert [each.id for each in outcome.disconnects] == [allocation.id] * counts.get("disconnect", 0)
    assert [each.id for each in outcome.reconnects] == [allocation.id] * counts.get("reconnect", 0)
    assert outcome.is_complete == (not outcome.disconnects)
    for stop in outcome.stops:
        assert (stop.client_status is LOST) == (stop.reason == LOST_TEXT)


@pytest.mark.parametrize(
    ("allocation", "is_placed"),
    [
        (make_allocation("a"), False),
        (make_allocation("a", client_status=COMPLETE), True),
        (make_allocation("a", client_status=FAILED), True),
        (make_allocation("a", desired_status=STOP), True),
        (make_allocation("a", desired_transition=MIGRATE), False),
        (make_allocation("a", client_status=UNKNOWN, **unknown_for(5)), False),
        (make_allocation("a", client_status=FAILED, **unknown_for(5)), True),
        (make_allocation("a", index=1), True),
    ],
)
def test_a_slot_is_free_when_no_allocation_occupies_it(allocation: Allocation, *, is_placed: bool) -> None:
    outcome = reconcile(make_job(), allocation, nodes="a")

    assert list_placements(outcome) == ([("a0", None)] if is_placed else [])


@pytest.mark.parametrize("type", [JobType.SYSTEM, JobType.SYSBATCH])
@pytest.mark.parametrize(
    ("fields", "is_done"),
    [
        ({"client_status": COMPLETE}, True),
        ({"client_status": FAILED}, True),
        ({"client_status": COMPLETE, "job_version": 0}, False),
        ({"client_status": LOST}, False),
        ({"client_status": COMPLETE, "desired_status": STOP}, True),
    ],
)
def test_a_sysbatch_allocation_that_has_ended_is_not_placed_again(
    fields: dict[str, Any], is_done: bool, type: JobType
) -> None:
    outcome = reconcile(make_job(type=type), make_allocation("a", **fields), nodes="a")

    is_kept = is_done and type is JobType.SYSBATCH
    assert (bool(outcome.placements), get_counts(outcome)) == (not is_kept, {"ignore": 1} if is_kept else {"place": 1})


# -- updates -----------------------------------------------------------------------------------------------------------


def test_outdated_allocations_are_replaced_or_updated_in_place_and_stop_where_the_new_version_cannot_run() -> None:
    same = {"find_job_version": lambda _each: make_job()}
    changed = reconcile(make_job(), *make_old("a", "b", "c"), nodes="abc", cannot_run="c")
    in_place = reconcile(make_job(), *make_old("a", "b"), nodes="ab", in_place="a", **same)

    assert list_replacements(changed) == [("a0", "a"), ("b0", "b")]
    assert [request.stop and request.stop.reason for request in changed.replacements] == [UPDATING_TEXT] * 2
    assert (list_stops(changed), get_counts(changed)) == (
        [("c", NOT_NEEDED_TEXT)],
        {"destructive_update": 2, "stop": 1},
    )
    assert ([each.id for each in in_place.in_place_updates], list_replacements(in_place)) == (["a"], [("b0", "b")])
    assert get_counts(in_place) == {"in_place_update": 1, "destructive_update": 1}
    assert (changed.is_complete, in_place.is_complete) == (False, False)


@pytest.mark.parametrize(("max_parallel", "replaced"), [(0, 3), (1, 1), (2, 2), (5, 3)])
def test_at_most_max_parallel_outdated_allocations_are_replaced_at_a_time(max_parallel: int, replaced: int) -> None:
    job = make_job(update=replace(ROLLING, max_parallel=max_parallel))

    outcome = reconcile(job, *make_old("a", "b", "c"), nodes="abc")

    assert len(outcome.replacements) == replaced
    ignored = {"ignore": 3 - replaced} if replaced < 3 else {}
    assert get_counts(outcome) == {"destructive_update": replaced, **ignored}
    assert outcome.is_new_deployment == (max_parallel > 0)
    if max_parallel:
        assert outcome.deployment == DeploymentGroup(
            auto_revert=True, auto_promote=True, progress_deadline=7, desired_total=3
        )


def test_a_rollout_waits_for_the_health_of_the_replaced_allocations() -> None:
    def count_replaced(
        *new: Allocation, max_parallel: int = 2, status: DeploymentStatus = DeploymentStatus.RUNNING
    ) -> int:
        job = make_job(update=replace(ROLLING, max_parallel=max_parallel))
        deployment = make_deployment(status, desired_total=4)
        outcome = reconcile(job, *new, *make_old("c", "d"), nodes="abcd"[2 - len(new) :], deployment=deployment)
        return len(outcome.replacements)

    undecided, healthy = of_deployment(), of_deployment(healthy=True)
    a, b = (make_allocation(name, **undecided) for name in "ab")
    assert count_replaced() == 2
    assert count_replaced(b) == 1
    assert count_replaced(a, b) == 0
    assert count_replaced(make_allocation("a", **healthy), b) == 1
    assert count_replaced(make_allocation("a", **of_deployment(healthy=False)), b) == 0
    assert count_replaced(replace(a, deployment_id="d0"), replace(b, deployment_id="d0")) == 2
    # A failed allocation of the rollout is replaced in its slot, which counts as down until then.
    assert count_replaced(replace(a, client_status=FAILED), b, max_parallel=3) == 1
    assert [count_replaced(status=status) for status in (PAUSED, FAILED_DEPLOYMENT)] == [0, 0]


def test_a_halted_deployment_stops_nothing_that_cannot_run_the_new_version() -> None:
    job = make_job(update=ROLLING)

    running, paused = (
        reconcile(job, *make_old("a", "b"), nodes="ab", cannot_run="b", deployment=make_deployment(status))
        for status in (DeploymentStatus.RUNNING, PAUSED)
    )

    assert (list_stops(running), get_counts(running)) == (
        [("b", NOT_NEEDED_TEXT)],
        {"destructive_update": 1, "stop": 1},
    )
    assert (list_stops(paused), get_counts(paused)) == ([], {"ignore": 2})


def test_a_slot_that_the_rollout_took_down_is_filled_first_and_takes_no_further_slot_down() -> None:
    job, deployment = make_job(update=ROLLING), make_deployment(desired_total=3)
    stopped = make_allocation("a", "old", job_version=0, desired_status=STOP, desired_description=UPDATING_TEXT)
    owed = reconcile(job, stopped, *make_old("b", "c"), nodes="abc", deployment=deployment)

    assert (list_placements(owed), list_replacements(owed)) == ([("a0", "old")], [])
    # Without the rollout, a free slot does not count.
    free = reconcile(job, *make_old("b", "c"), nodes="abc", deployment=deployment)
    assert (list_placements(free), len(free.replacements)) == ([("a0", None)], 1)
    # A replacement of the rollout has failed and a later allocation of the old version runs there, not yet healthy.
    failed = make_allocation("c", "failed", **of_deployment(client_status=FAILED))
    again = reconcile(job, failed, *make_old("a", "b", "c"), nodes="abc", deployment=deployment)
    assert [request[1] for request in list_replacements(again)] == ["c"]


@pytest.mark.parametrize(
    ("before", "after", "is_down"),
    [
        ({"desired_status": STOP, "desired_description": UPDATING_TEXT}, None, True),
        ({"desired_status": STOP, "desired_description": UPDATING_TEXT, "next_allocation": "x"}, None, False),
        ({"desired_status": STOP, "desired_description": UPDATING_TEXT, "next_allocation": "x"}, "d1", True),
        ({"desired_status": STOP, "desired_description": UPDATING_TEXT, "next_allocation": "x"}, "d0", False),
        ({"desired_status": STOP, "desired_description": NOT_NEEDED_TEXT, "next_allocation": "x"}, "d1", False),
        (of_deployment(client_status=FAILED), None, True),
        (of_deployment(client_status=FAILED, next_allocation="x"), None, False),
        (of_deployment(client_status=COMPLETE), None, False),
        (of_deployment(client_status=FAILED, deployment_id="d0"), None, False),
    ],
)
def test_which_slots_a_rollout_took_down(before: dict[str, Any], after: str | None, *, is_down: bool) -> None:
    job, deployment = make_job(update=ROLLING), make_deployment(desired_total=2)
    allocations = [make_allocation("a", "old", **{"job_version": 0, **before}), *make_old("b")]
    if after is not None:
        successor = make_allocation(
            "z", "new", previous_allocation="old", deployment_id=after, client_status=COMPLETE, desired_status=STOP
        )
        allocations.append(successor)

    outcome = reconcile(job, *allocations, nodes="ab", deployment=deployment)

    # A slot that is down is filled with the allocation that ran there as its predecessor, and counts as undecided.
    assert (list_placements(outcome), len(outcome.replacements)) == (
        [("a0", "old" if is_down else None)],
        0 if is_down else 1,
    )


@pytest.mark.parametrize("healthy", [True, False, None])
def test_a_slot_is_up_again_when_a_later_allocation_is_healthy(*, healthy: bool | None) -> None:
    job = make_job(update=ROLLING)
    failed = make_allocation("a", "failed", **of_deployment(client_status=FAILED))
    status = AllocDeploymentStatus(healthy=healthy)
    later = make_allocation("a", "later", job_version=0, client_status=COMPLETE, deployment_status=status)

    outcome = reconcile(job, failed, later, *make_old("b"), nodes="ab", deployment=make_deployment(desired_total=2))

    assert list_placements(outcome) == [("a0", None if healthy else "later")]


# -- deployments -------------------------------------------------------------------------------------------------------


def test_a_deployment_starts_for_the_first_version_and_for_an_update_but_not_for_new_nodes() -> None:
    job = make_job(update=ROLLING)

    def starts(job: Job, *allocations: Allocation, **options: Any) -> bool:
        outcome = reconcile(job, *allocations, **{"nodes": "ab", **options})
        assert (outcome.deployment is not None) == (outcome.is_new_deployment or "deployment" in options)
        return outcome.is_new_deployment

    same = {"find_job_version": lambda _each: make_job(update=ROLLING)}
    assert [
        starts(job),
        starts(job, make_allocation("a")),
        starts(job, make_allocation("a"), make_allocation("b")),
        starts(job, make_allocation("a"), *make_old("b")),
        starts(job, make_allocation("a"), *make_old("b"), in_place="b", **same),
        starts(job, deployment=make_deployment(desired_total=2)),
        starts(job, nodes=""),
        starts(make_job(update=ROLLING, type=JobType.SYSBATCH)),
        starts(make_job(update=replace(ROLLING, max_parallel=0))),
        starts(make_job()),
    ] == [True, False, False, True, True, False, False, False, False, False]


def test_the_desired_total_of_a_running_deployment_follows_the_nodes() -> None:
    job = make_job(update=ROLLING)
    allocations = [
        make_allocation("a", **of_deployment(healthy=True)),
        make_allocation("down", **of_deployment()),
        make_allocation("b", **of_deployment(client_status=COMPLETE)),
        *make_old("c"),
    ]

    running, paused = (
        reconcile(job, *allocations, nodes="abcd", deployment=make_deployment(status, desired_total=9))
        for status in (DeploymentStatus.RUNNING, PAUSED)
    )

    # Node a has its allocation, b and d get one, and that on c must be replaced.
    assert (running.deployment, paused.deployment) == (
        DeploymentGroup(desired_total=4),
        DeploymentGroup(desired_total=9),
    )
    assert running.is_new_deployment is False


def test_a_group_that_a_running_deployment_does_not_roll_out_has_no_state_in_it() -> None:
    deployment = replace(make_deployment(), task_groups={"other": DeploymentGroup(desired_total=9)})

    outcome = reconcile(make_job(), make_allocation("a"), nodes="ab", deployment=deployment)

    assert ([request.node.id for request in outcome.placements if request.node], outcome.deployment) == (["b"], None)


@pytest.mark.parametrize(
    ("group", "is_complete"),
    [
        ({"healthy_allocs": 1}, True),
        ({"healthy_allocs": 0}, False),
        ({"healthy_allocs": 1, "desired_canaries": 1}, False),
        ({"healthy_allocs": 1, "desired_canaries": 1, "promoted": True}, True),
    ],
)
def test_a_group_is_complete_when_all_its_allocations_are_healthy(group: dict[str, Any], *, is_complete: bool) -> None:
    deployment = make_deployment(desired_total=5, **group)

    outcome = reconcile(
        make_job(update=ROLLING), make_allocation("a", **of_deployment()), deployment=deployment, nodes="a"
    )

    assert outcome.is_complete == is_complete


# -- canaries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "percent", "max_parallel", "count"),
    [
        (10, 0, 9, 0),
        (10, 10, 9, 1),
        (10, 11, 9, 2),
        (1, 1, 9, 1),
        (0, 50, 9, 0),
        (10, 100, 99, 10),
        (10, 150, 99, 10),
        (10, -5, 9, 0),
        (10, 50, 2, 2),
        (10, 50, 5, 5),
    ],
)
def test_canaries_are_a_percentage_of_the_nodes_rounded_up(
    nodes: int, percent: int, max_parallel: int, count: int
) -> None:
    assert count_canaries(nodes, UpdatePolicy(max_parallel=max_parallel, canary=percent)) == count


HALF = UpdatePolicy(max_parallel=9, canary=50)
NO_PHASE = CanaryPhase()


@pytest.mark.parametrize(
    ("update", "deployment", "phase"),
    [
        (HALF, None, CanaryPhase(2, (), is_active=True)),
        (replace(HALF, canary=0), None, NO_PHASE),
        (replace(HALF, max_parallel=0), None, NO_PHASE),
        (None, None, NO_PHASE),
        (HALF, Deployment(id="d1", status=DeploymentStatus.RUNNING), NO_PHASE),
        (HALF, make_deployment(), NO_PHASE),
        (HALF, make_deployment(desired_canaries=1), CanaryPhase(1, (), is_active=True)),
        (HALF, make_deployment(desired_canaries=1, placed_canaries=("c",)), CanaryPhase(1, ("c",), is_active=True)),
        (HALF, make_deployment(desired_canaries=1, promoted=True), NO_PHASE),
        (HALF, make_deployment(PAUSED, desired_canaries=1), CanaryPhase(1, (), is_active=True)),
        (HALF, make_deployment(FAILED_DEPLOYMENT, desired_canaries=1), CanaryPhase(1, (), has_failed=True)),
    ],
)
def test_the_canary_phase_is_that_of_the_deployment_or_of_the_one_that_starts(
    update: UpdatePolicy | None, deployment: Deployment | None, phase: CanaryPhase
) -> None:
    group_state = None if deployment is None else (deployment.task_groups or {}).get("web")

    assert get_canary_phase(update, deployment, group_state, 4) == phase


def test_active_canaries_are_counted() -> None:
    phase = CanaryPhase(3, ("a", "b", "c"), is_active=True)
    allocations = [make_allocation("a"), make_allocation("b", client_status=FAILED), make_allocation("x")]

    assert [phase.count_missing(allocations[:count]) for count in range(4)] == [3, 2, 2, 2]
    assert CanaryPhase(1, ("a", "b")).count_missing([make_allocation("a"), make_allocation("b")]) == 0


def test_canaries_replace_running_allocations_and_nothing_else_is_replaced() -> None:
    outcome = reconcile(make_job(update=HALF), *make_old("a", "b", "c"), nodes="abc")

    assert list_replacements(outcome) == [("a0", "a", "canary"), ("b0", "b", "canary")]
    assert get_counts(outcome) == {"canary": 2, "ignore": 1}
    assert outcome.deployment is not None
    assert (outcome.deployment.desired_canaries, outcome.deployment.desired_total) == (2, 3)


def stable(version: int = 0) -> dict[str, Any]:
    return {"find_stable_version": lambda _name: (make_job(version=version), "d0")}


def test_while_canaries_run_a_new_node_gets_the_older_version() -> None:
    deployment = make_deployment(desired_canaries=1, placed_canaries=("a",), desired_total=3)
    canary = make_allocation("a", **of_deployment(canary=True))

    with_stable, without = (
        reconcile(make_job(update=HALF), canary, *make_old("b"), nodes="abc", deployment=deployment, **options)
        for options in (stable(), {})
    )

    assert (list_placements(with_stable), list_replacements(with_stable)) == ([("c0", None, "version 0 d0")], [])
    assert list_placements(without) == [("c0", None)]
    assert get_counts(with_stable) == {"place": 1, "ignore": 2}


def test_a_missing_canary_takes_a_slot_that_is_down_then_a_running_one_then_a_free_one() -> None:
    deployment = make_deployment(desired_canaries=1, placed_canaries=("gone",), desired_total=3)
    job = make_job(update=HALF)
    failed = make_allocation("a", "gone", **of_deployment(canary=True, client_status=FAILED))

    down = reconcile(job, failed, *make_old("b"), nodes="abc", deployment=deployment, **stable())
    running = reconcile(job, *make_old("b"), nodes="bc", deployment=deployment, **stable())
    free = reconcile(job, nodes="bc", deployment=deployment, **stable())

    assert (list_placements(down), list_replacements(down)) == (
        [("a0", "gone", "canary"), ("c0", None, "version 0 d0")],
        [],
    )
    assert (list_placements(running), list_replacements(running)) == (
        [("c0", None, "version 0 d0")],
        [("b0", "b", "canary")],
    )
    assert list_placements(free) == [("b0", None, "canary"), ("c0", None, "version 0 d0")]
    assert [get_counts(each) for each in (down, running, free)] == [
        {"canary": 1, "place": 2, "ignore": 1},
        {"canary": 1, "place": 1},
        {"canary": 1, "place": 2},
    ]


@pytest.mark.parametrize("status", [PAUSED, FAILED_DEPLOYMENT])
def test_a_halted_deployment_gets_no_canaries(status: DeploymentStatus) -> None:
    deployment = make_deployment(status, desired_canaries=2, placed_canaries=("a",))

    outcome = reconcile(make_job(update=HALF), *make_old("b", "c"), nodes="bcd", deployment=deployment, **stable())

    assert (list_placements(outcome), list_replacements(outcome)) == ([("d0", None, "version 0 d0")], [])


def test_the_canaries_of_a_failed_deployment_are_replaced_by_the_older_version() -> None:
    deployment = make_deployment(FAILED_DEPLOYMENT, desired_canaries=2, placed_canaries=("a", "b", "down"))
    canaries = [
        make_allocation("a", **of_deployment(canary=True)),
        make_allocation("b", **of_deployment(canary=True, client_status=COMPLETE)),
        make_allocation("down", **of_deployment(canary=True, client_status=LOST)),
    ]

    outcome = reconcile(make_job(update=HALF), *canaries, *make_old("c"), nodes="ac", deployment=deployment, **stable())
    without = reconcile(make_job(update=HALF), *canaries, *make_old("c"), nodes="ac", deployment=deployment)

    assert list_replacements(outcome) == [("a0", "a", "version 0 d0")]
    stop = outcome.replacements[0].stop
    assert stop is not None
    assert (stop.allocation.id, stop.reason) == ("a", NOT_NEEDED_TEXT)
    assert list_replacements(without) == []


def test_a_canary_of_an_earlier_deployment_is_replaced_by_the_stable_or_the_current_version() -> None:
    obsolete = make_allocation(
        "a", job_version=0, deployment_id="d0", deployment_status=AllocDeploymentStatus(canary=True)
    )
    deployment = make_deployment(desired_canaries=1, placed_canaries=("b",), desired_total=3)
    canary = make_allocation("b", **of_deployment(canary=True))
    promoted = replace(obsolete, deployment_status=AllocDeploymentStatus(canary=False))

    current = reconcile(make_job(update=HALF), obsolete, canary, nodes="ab", deployment=deployment, **stable(5))
    alone = reconcile(make_job(), obsolete, nodes="a")
    normal = reconcile(make_job(update=HALF), promoted, canary, nodes="ab", deployment=deployment, **stable(5))

    assert list_replacements(current) == [("a0", "a", "version 5 d0")]
    assert list_replacements(alone) == [("a0", "a")]
    assert list_replacements(normal) == []
    assert [request.stop and request.stop.reason for request in alone.replacements] == [NOT_NEEDED_TEXT]
    # The replacement of the obsolete canary counts for the desired total.
    assert current.deployment is not None
    assert current.deployment.desired_total == 2
