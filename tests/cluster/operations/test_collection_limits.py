"""What keeps a record from being garbage-collected, and how much one write of a collection deletes."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.state import SECOND_NS, AState, Refused, an_allocation, an_evaluation
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.operations.operator.collection import (
    MAX_EARLY_ALLOCATIONS,
    CollectionKind,
    CollectionResult,
    collect_garbage,
)
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    HOST_VOLUMES,
    JOB_SUBMISSIONS,
    JOB_VERSIONS,
    JOBS,
    NODES,
    ONE_TIME_TOKENS,
    SCALING_EVENTS,
    SCALING_POLICIES,
)
from wharf.contract.model.acl.tokens import OneTimeToken
from wharf.contract.model.allocations.allocation import (
    ClientStatus,
    DesiredStatus,
    RescheduleEvent,
    RescheduleTracker,
)
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.job import Job, JobStatus, Submission, VersionTag
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.scaling import JobScalingEvents
from wharf.contract.model.times import to_datetime
from wharf.contract.model.volumes import HostVolume

HOUR_NS = 3_600 * SECOND_NS
ATTEMPTS = ReschedulePolicy(attempts=3, unlimited=False, interval=HOUR_NS)


def collect_once(
    state: AState, kind: CollectionKind, *, retention_ns: int = HOUR_NS, max_changes: int = 100
) -> list[tuple[str, str]]:
    """Make one write, and return the tables and keys of the deleted records."""
    decision = collect_garbage(state.replica, kind, state.moment, retention_ns=retention_ns, max_changes=max_changes)
    result = state.do(decision)
    deleted = [] if decision.write is None else [(change.table, change.key) for change in decision.write.changes]
    assert result == CollectionResult(state.replica.index, len(deleted))
    return deleted


def a_state(job: Job | None = None) -> AState:
    """Return a state of an hour later, with a job and nothing else."""
    # One write of a collection may be larger than a write of the usual log.
    state = AState(limits=WriteLimits(changes=3_000, conditions=3_000))
    job = job or a_job()
    state.put(JOBS.build_put(replace(job, create_index=WRITE_INDEX, submit_time=state.now_ns)))
    state.now_ns += HOUR_NS
    return state


def put_evaluation(state: AState, evaluation_id: str = "e1", *, age_ns: int = HOUR_NS, **fields: Any) -> None:
    arguments = {"status": EvaluationStatus.COMPLETE, "modify_time": state.now_ns - age_ns, **fields}
    state.put(EVALUATIONS.build_put(an_evaluation(state.job(), evaluation_id, **arguments)))


def put_allocation(state: AState, allocation_id: str = "a1", *, age_ns: int = HOUR_NS, **fields: Any) -> None:
    arguments = {
        "eval_id": "e1",
        "client_status": ClientStatus.COMPLETE,
        "modify_time": state.now_ns - age_ns,
        **fields,
    }
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), allocation_id, **arguments)))


EVALUATION = (EVALUATIONS.name, "e1")
ALLOCATION = (ALLOCATIONS.name, "a1")


# -- evaluations


@pytest.mark.parametrize(
    ("fields", "is_collected"),
    [
        ({}, True),
        ({"age_ns": HOUR_NS - 1}, False),
        (
            {"status": EvaluationStatus.FAILED},
            False,
        ),  # It is the newest one of its job: the reason why nothing happens.
        ({"status": EvaluationStatus.CANCELED}, True),
        ({"status": EvaluationStatus.PENDING}, False),
        ({"status": EvaluationStatus.BLOCKED}, False),
        ({"type": SchedulerType.SYSTEM}, True),
        ({"type": SchedulerType.CORE}, True),
        ({"type": SchedulerType.BATCH}, False),
        ({"type": SchedulerType.SYSBATCH}, False),
    ],
)
def test_only_old_terminal_evaluations_of_other_than_batch_jobs_are_collected_with_services(
    fields: dict[str, Any], is_collected: bool
) -> None:
    state = a_state()
    put_evaluation(state, **fields)

    assert collect_once(state, CollectionKind.EVALUATIONS) == ([EVALUATION] if is_collected else [])


@pytest.mark.parametrize("scheduler", SchedulerType)
def test_evaluations_of_batch_and_sysbatch_jobs_are_collected_as_such(scheduler: SchedulerType) -> None:
    state = a_state(a_job(stop=True, status=JobStatus.DEAD))
    put_evaluation(state, type=scheduler)

    is_batch = scheduler in (SchedulerType.BATCH, SchedulerType.SYSBATCH)
    assert collect_once(state, CollectionKind.BATCH_EVALUATIONS) == ([EVALUATION] if is_batch else [])


FAILED: dict[str, Any] = {"client_status": ClientStatus.FAILED}


def an_attempt(age_ns: int) -> RescheduleTracker:
    return RescheduleTracker(
        events=(RescheduleEvent(reschedule_time=1), RescheduleEvent(reschedule_time=AState().now_ns - age_ns))
    )


@pytest.mark.parametrize(
    ("policy", "job", "fields", "is_collected"),
    [
        pytest.param(ATTEMPTS, {}, {}, True, id="complete"),
        pytest.param(ATTEMPTS, {}, {"age_ns": HOUR_NS - 1}, False, id="ended recently"),
        pytest.param(ATTEMPTS, {}, {"client_status": ClientStatus.RUNNING}, False, id="running"),
        pytest.param(
            ATTEMPTS,
            {"stop": True},
            {"client_status": ClientStatus.RUNNING, "desired_status": DesiredStatus.STOP},
            False,
            id="stopping",
        ),
        pytest.param(ATTEMPTS, {}, {"client_status": ClientStatus.LOST}, True, id="lost"),
        pytest.param(ATTEMPTS, {}, FAILED, False, id="failed and not replaced yet"),
        pytest.param(ATTEMPTS, {}, {**FAILED, "next_allocation": "a2"}, True, id="replaced"),
        pytest.param(ATTEMPTS, {}, {**FAILED, "desired_status": DesiredStatus.STOP}, True, id="failed and stopped"),
        pytest.param(ATTEMPTS, {}, {**FAILED, "desired_status": DesiredStatus.EVICT}, False, id="failed and evicted"),
        pytest.param(ATTEMPTS, {"stop": True}, FAILED, True, id="of a stopped job"),
        pytest.param(ATTEMPTS, {"status": JobStatus.DEAD}, FAILED, True, id="of a dead job"),
        pytest.param(ATTEMPTS, {}, {**FAILED, "task_group": "former"}, True, id="of a former group"),
        pytest.param(None, {}, FAILED, True, id="without a policy"),
        pytest.param(ReschedulePolicy(attempts=0, unlimited=False), {}, FAILED, True, id="never rescheduled"),
        pytest.param(ReschedulePolicy(attempts=1, unlimited=True), {}, FAILED, False, id="unlimited"),
        pytest.param(ReschedulePolicy(attempts=0, unlimited=True), {}, FAILED, False, id="unlimited, no attempts"),
        pytest.param(
            ATTEMPTS, {}, {**FAILED, "reschedule_tracker": RescheduleTracker()}, False, id="no attempt recorded"
        ),
        pytest.param(
            ATTEMPTS, {}, {**FAILED, "reschedule_tracker": an_attempt(HOUR_NS)}, True, id="last attempt an interval ago"
        ),
        pytest.param(
            ATTEMPTS, {}, {**FAILED, "reschedule_tracker": an_attempt(HOUR_NS - 1)}, False, id="recent attempt"
        ),
    ],
)
def test_an_allocation_that_is_still_needed_keeps_its_evaluation(
    policy: ReschedulePolicy | None, job: dict[str, Any], fields: dict[str, Any], is_collected: bool
) -> None:
    state = a_state(a_job("shop", a_group("web", reschedule_policy=policy), **job))
    put_evaluation(state)
    put_allocation(state, **fields)

    assert collect_once(state, CollectionKind.EVALUATIONS) == ([EVALUATION, ALLOCATION] if is_collected else [])


def test_an_evaluation_stays_while_one_of_several_allocations_is_needed() -> None:
    state = a_state()
    put_evaluation(state)
    put_allocation(state, "a1")
    put_allocation(state, "a2", client_status=ClientStatus.RUNNING)

    assert collect_once(state, CollectionKind.EVALUATIONS) == []


def test_allocations_of_a_deleted_job_are_collected() -> None:
    state = a_state()
    put_evaluation(state)
    put_allocation(state, **FAILED)
    state.put(JOBS.build_delete("default", "shop"))

    assert collect_once(state, CollectionKind.EVALUATIONS) == [EVALUATION, ALLOCATION]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, [ALLOCATION]),
        ({"stop": True}, [ALLOCATION]),
        ({"status": JobStatus.DEAD}, [ALLOCATION]),
        ({"stop": True, "status": JobStatus.DEAD}, [EVALUATION, ALLOCATION, (ALLOCATIONS.name, "new")]),
    ],
)
def test_a_batch_job_needs_the_allocations_since_its_last_change_until_it_is_stopped_and_dead(
    job: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    state = a_state(a_batch_job("shop", **job))
    put_evaluation(state, type=SchedulerType.BATCH)
    changed = state.replica.index
    state.put(JOBS.build_put(replace(state.job(), job_modify_index=changed)))
    put_allocation(state, "a1", create_index=changed - 1)
    put_allocation(state, "new", create_index=changed)

    assert collect_once(state, CollectionKind.BATCH_EVALUATIONS) == expected


def test_an_evaluation_of_a_batch_job_without_needed_allocations_is_collected_with_the_others() -> None:
    state = a_state(a_batch_job("shop"))
    put_evaluation(state, "without allocations", type=SchedulerType.BATCH)
    put_evaluation(state, type=SchedulerType.BATCH)
    state.put(JOBS.build_put(replace(state.job(), job_modify_index=99)))
    put_allocation(state, create_index=98)

    assert collect_once(state, CollectionKind.BATCH_EVALUATIONS) == [EVALUATION, ALLOCATION]


# -- the size of a write


@pytest.mark.parametrize(("max_changes", "expected"), [(3, 3), (4, 4), (5, 4), (6, 6)])
def test_a_write_is_filled_with_whole_bundles(max_changes: int, expected: int) -> None:
    state = a_state()
    for number in (1, 2, 3):
        put_evaluation(state, f"e{number}")
        put_allocation(state, f"a{number}", eval_id=f"e{number}")
    if max_changes == 3:
        put_allocation(state, "more", eval_id="e1")

    assert len(collect_once(state, CollectionKind.EVALUATIONS, max_changes=max_changes)) == expected


def test_a_bundle_that_exceeds_a_write_is_deleted_in_parts_and_its_evaluation_last() -> None:
    state = a_state()
    put_evaluation(state)
    for number in (1, 2, 3):
        put_allocation(state, f"a{number}")

    writes = [collect_once(state, CollectionKind.EVALUATIONS, max_changes=3) for _ in range(3)]

    assert writes == [[(ALLOCATIONS.name, f"a{number}") for number in (1, 2, 3)], [EVALUATION], []]


def test_a_node_whose_conditions_exceed_a_write_is_retained() -> None:
    state = a_state()
    state.with_node(status_updated_at=0)
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.DOWN)))

    assert collect_once(state, CollectionKind.NODES, max_changes=2) == []
    assert len(collect_once(state, CollectionKind.NODES, max_changes=3)) == 2


def test_the_conditions_of_all_bundles_fit_in_the_write() -> None:
    state = a_state()
    for number in (1, 2, 3):
        state.with_node(f"node-{number}")
        state.put(NODES.build_put(replace(state.node(f"node-{number}"), status=NodeStatus.DOWN)))

    # Each node has two changes and three conditions, one of which all nodes share.
    assert [len(collect_once(state, CollectionKind.NODES, max_changes=maximum)) for maximum in (5, 6)] == [2, 4]


def test_the_cause_of_a_collection_is_the_timer_or_the_given_one() -> None:
    state = a_state()
    put_evaluation(state)
    requested = Cause(CauseKind.OPERATOR, "request")
    causes = []
    for cause in (None, requested):
        decision = collect_garbage(
            state.replica, CollectionKind.EVALUATIONS, state.moment, retention_ns=0, max_changes=9, cause=cause
        )
        assert decision.write is not None
        causes.append((decision.write.kind, decision.write.cause))

    assert causes == [
        ("evaluations-collected", Cause(CauseKind.TIMER, "collection")),
        ("evaluations-collected", requested),
    ]


@pytest.mark.parametrize("changed", ["evaluation", "allocation"])
def test_a_record_that_changed_meanwhile_is_not_collected(changed: str) -> None:
    state = a_state()
    put_evaluation(state)
    put_allocation(state)
    decision = collect_garbage(state.replica, CollectionKind.EVALUATIONS, state.moment, retention_ns=0, max_changes=9)
    if changed == "evaluation":
        put_evaluation(state, status_description="changed")
    else:
        put_allocation(state, client_description="changed")

    with pytest.raises(Refused):
        state.do(decision)


# -- jobs


def a_dead_job(job: Job | None = None) -> AState:
    """Return a state with a dead job that has one old record of each kind."""
    state = a_state(replace(job or a_batch_job("shop"), status=JobStatus.DEAD))
    put_evaluation(state)
    put_allocation(state)
    state.put(JOB_VERSIONS.build_put(state.job()))
    return state


def is_job_collected(state: AState) -> bool:
    return (JOBS.name, JOBS.build_key("default", "shop")) in collect_once(state, CollectionKind.JOBS)


@pytest.mark.parametrize(
    ("job", "is_collected"),
    [
        (a_batch_job("shop"), True),
        (a_batch_job("shop", stop=True), True),
        (a_job("shop"), False),
        (a_job("shop", stop=True), True),
        (a_periodic_job("shop"), False),
        (a_periodic_job("shop", stop=True), True),
        (a_parameterized_job("shop"), False),
        (a_parameterized_job("shop", stop=True), True),
    ],
    ids=lambda value: f"{value.type}{' stopped' if value.stop else ''}" if isinstance(value, Job) else None,
)
def test_a_dead_job_is_collected_if_it_never_runs_again(job: Job, is_collected: bool) -> None:
    assert is_job_collected(a_dead_job(job)) is is_collected


@pytest.mark.parametrize("status", JobStatus)
def test_only_dead_jobs_are_collected(status: JobStatus) -> None:
    state = a_dead_job()
    state.put(JOBS.build_put(replace(state.job(), status=status)))

    assert is_job_collected(state) is (status is JobStatus.DEAD)


def test_a_job_is_collected_once_its_submission_is_old_enough() -> None:
    collected = []
    for age_ns in (HOUR_NS - 1, HOUR_NS):
        state = a_dead_job()
        state.put(JOBS.build_put(replace(state.job(), submit_time=state.now_ns - age_ns)))
        collected.append(is_job_collected(state))

    assert collected == [False, True]


@pytest.mark.parametrize(
    ("fields", "is_collected"),
    [
        ({}, True),
        ({"age_ns": HOUR_NS - 1}, False),
        ({"status": EvaluationStatus.PENDING}, False),
        ({"status": EvaluationStatus.FAILED}, True),
    ],
)
def test_an_evaluation_that_is_open_or_ended_recently_keeps_its_job(fields: dict[str, Any], is_collected: bool) -> None:
    state = a_dead_job()
    put_evaluation(state, "e2", **fields)

    assert is_job_collected(state) is is_collected


@pytest.mark.parametrize(
    ("fields", "is_collected"),
    [
        ({}, True),
        ({"age_ns": HOUR_NS - 1}, False),
        ({"client_status": ClientStatus.RUNNING}, False),
        ({"client_status": ClientStatus.RUNNING, "desired_status": DesiredStatus.STOP}, False),
        ({"client_status": ClientStatus.FAILED}, True),
    ],
)
def test_an_allocation_that_runs_or_ended_recently_keeps_its_job(fields: dict[str, Any], is_collected: bool) -> None:
    state = a_dead_job()
    put_allocation(state, "a2", **fields)

    assert is_job_collected(state) is is_collected


@pytest.mark.parametrize("status", DeploymentStatus)
def test_an_active_deployment_keeps_its_job(status: DeploymentStatus) -> None:
    state = a_dead_job()
    deployment = Deployment(id="d1", namespace="default", job_id="shop", status=status, create_index=WRITE_INDEX)
    state.put(DEPLOYMENTS.build_put(deployment))

    assert is_job_collected(state) is status.is_terminal


def test_a_tag_on_any_version_keeps_the_job() -> None:
    state = a_dead_job()
    state.put(JOB_VERSIONS.build_put(replace(state.job(), version=7, version_tag=VersionTag(name="golden"))))

    assert not is_job_collected(state)


def test_everything_of_a_job_is_deleted_with_it_and_nothing_of_others() -> None:
    state = a_dead_job(a_batch_job("shop", a_group()))
    submission = Submission(namespace="default", job_id="shop", source="x", version=0)
    state.put(
        JOB_SUBMISSIONS.build_put(submission),
        SCALING_EVENTS.build_put(JobScalingEvents(namespace="default", job_id="shop")),
        JOBS.build_put(replace(a_job("other"), create_index=WRITE_INDEX)),
        JOB_SUBMISSIONS.build_put(replace(submission, job_id="other")),
    )

    collect_once(state, CollectionKind.JOBS)

    tables = (JOBS, JOB_VERSIONS, JOB_SUBMISSIONS, SCALING_EVENTS, SCALING_POLICIES, EVALUATIONS, ALLOCATIONS)
    assert [state.replica.count_records(table) for table in tables] == [1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("count", [MAX_EARLY_ALLOCATIONS, MAX_EARLY_ALLOCATIONS + 1])
def test_only_allocations_are_deleted_at_first_if_a_job_has_very_many(count: int) -> None:
    state = a_dead_job()
    state.put(ALLOCATIONS.build_delete("a1"))
    allocation = an_allocation(state.job(), "a", eval_id="e1", client_status=ClientStatus.COMPLETE)
    state.put(*(ALLOCATIONS.build_put(replace(allocation, id=f"a{number:04}")) for number in range(count)))

    deleted = collect_once(state, CollectionKind.JOBS, max_changes=2 * count)

    is_whole = count == MAX_EARLY_ALLOCATIONS
    assert sum(table == ALLOCATIONS.name for table, _ in deleted) == MAX_EARLY_ALLOCATIONS
    assert any(table == JOBS.name for table, _ in deleted) is is_whole


def test_a_job_that_was_registered_again_meanwhile_is_not_collected() -> None:
    for max_changes in (3, 100):
        state = a_dead_job()
        decision = collect_garbage(
            state.replica, CollectionKind.JOBS, state.moment, retention_ns=0, max_changes=max_changes
        )
        state.put(JOBS.build_put(replace(state.job(), status=JobStatus.PENDING)))

        with pytest.raises(Refused):
            state.do(decision)


# -- deployments, tokens and nodes


@pytest.mark.parametrize(
    ("fields", "is_collected"),
    [
        pytest.param({}, False, id="active"),
        pytest.param({"client_status": ClientStatus.COMPLETE}, True, id="ended"),
        pytest.param({"deployment_id": "d2"}, True, id="of another deployment"),
        pytest.param(None, True, id="none"),
    ],
)
def test_an_active_allocation_keeps_its_deployment(fields: dict[str, Any] | None, is_collected: bool) -> None:
    state = a_state()
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", status=DeploymentStatus.SUCCESSFUL, create_index=WRITE_INDEX
    )
    state.put(DEPLOYMENTS.build_put(deployment))
    if fields is not None:
        put_allocation(state, **{"deployment_id": "d1", "client_status": ClientStatus.RUNNING, **fields})

    assert collect_once(state, CollectionKind.DEPLOYMENTS) == ([(DEPLOYMENTS.name, "d1")] if is_collected else [])


def test_deployments_are_collected_once_they_are_old_enough() -> None:
    state = a_state()
    for age_ns in (HOUR_NS - 1, HOUR_NS):
        deployment = Deployment(
            id=f"d{age_ns}",
            namespace="default",
            job_id="shop",
            status=DeploymentStatus.FAILED,
            modify_time=state.now_ns - age_ns,
            create_index=WRITE_INDEX,
        )
        state.put(DEPLOYMENTS.build_put(deployment))

    assert collect_once(state, CollectionKind.DEPLOYMENTS) == [(DEPLOYMENTS.name, f"d{HOUR_NS}")]


def test_a_one_time_token_is_collected_from_its_expiry_on() -> None:
    state = a_state()
    for after_us in (-1, 0, 1):
        token = OneTimeToken(
            secret_digest=f"token {after_us}",
            accessor_id="x",
            expires_at=to_datetime(state.now_ns + after_us * 1_000),
            create_index=WRITE_INDEX,
        )
        state.put(ONE_TIME_TOKENS.build_put(token))

    deleted = collect_once(state, CollectionKind.ONE_TIME_TOKENS, retention_ns=0)

    assert sorted(key for _, key in deleted) == ["token -1", "token 0"]


@pytest.mark.parametrize(
    ("fields", "is_collected"),
    [
        ({}, True),
        ({"status_updated_at": 3_601}, False),
        ({"status": NodeStatus.READY}, False),
        ({"status": NodeStatus.DISCONNECTED}, False),
    ],
)
def test_nodes_that_are_down_for_long_enough_are_collected(fields: dict[str, Any], is_collected: bool) -> None:
    state = a_state()
    state.with_node()
    down = {"status": NodeStatus.DOWN, "status_updated_at": 3_600, **fields}
    state.put(NODES.build_put(replace(state.node(), **down)))
    state.now_ns = 3_600 * SECOND_NS + HOUR_NS

    assert ((NODES.name, "node-1") in collect_once(state, CollectionKind.NODES)) is is_collected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_active_allocation_keeps_its_node(is_terminal: bool) -> None:
    state = a_state()
    for node_id in ("node-1", "node-2"):
        state.with_node(node_id)
        state.put(NODES.build_put(replace(state.node(node_id), status=NodeStatus.DOWN)))
    put_allocation(state, client_status=ClientStatus.LOST if is_terminal else ClientStatus.UNKNOWN)

    deleted = [key for table, key in collect_once(state, CollectionKind.NODES) if table == NODES.name]

    assert deleted == (["node-1", "node-2"] if is_terminal else ["node-2"])


@pytest.mark.parametrize(
    ("job", "is_retained"),
    [
        pytest.param({}, True, id="running job"),
        pytest.param({"stop": True}, False, id="stopped job"),
        pytest.param({"sticky": False}, False, id="volume that is not sticky"),
    ],
)
def test_data_that_a_job_needs_keeps_the_record_of_its_allocation_and_its_node(
    job: dict[str, Any], is_retained: bool
) -> None:
    request = VolumeRequest(name="data", type="host", source="data", sticky=job.pop("sticky", True))
    state = a_state(a_job("shop", a_group("web", volumes={"data": request}), **job))
    state.with_node()
    state.put(
        NODES.build_put(replace(state.node(), status=NodeStatus.DOWN)),
        HOST_VOLUMES.build_put(HostVolume(id="v1", name="data", node_id="node-1", create_index=WRITE_INDEX)),
    )
    put_evaluation(state)
    put_allocation(state)

    nodes = collect_once(state, CollectionKind.NODES)
    records = collect_once(state, CollectionKind.EVALUATIONS)

    assert ((NODES.name, "node-1") in nodes, ALLOCATION in records) == (not is_retained, not is_retained)


# -- records that are retained between others


@pytest.mark.parametrize(
    "build_reasons",
    [
        pytest.param(lambda job: [JOBS.build_put(replace(job, status=JobStatus.RUNNING))], id="runs"),
        pytest.param(
            lambda job: [JOB_VERSIONS.build_put(replace(job, version_tag=VersionTag(name="golden")))], id="has a tag"
        ),
        pytest.param(lambda job: [EVALUATIONS.build_put(an_evaluation(job, "e9"))], id="has an open evaluation"),
        pytest.param(
            lambda job: [ALLOCATIONS.build_put(an_allocation(job, "a9", client_status=ClientStatus.RUNNING))],
            id="has a running allocation",
        ),
        pytest.param(
            lambda job: [
                DEPLOYMENTS.build_put(
                    Deployment(
                        id="d9",
                        namespace="default",
                        job_id=job.id,
                        status=DeploymentStatus.RUNNING,
                        create_index=WRITE_INDEX,
                    )
                )
            ],
            id="has an active deployment",
        ),
        pytest.param(
            lambda job: [
                ALLOCATIONS.build_put(an_allocation(job, f"a{number:04}", client_status=ClientStatus.COMPLETE))
                for number in range(MAX_EARLY_ALLOCATIONS + 1)
            ],
            id="has very many allocations",
        ),
    ],
)
def test_a_retained_job_does_not_keep_the_jobs_before_and_behind_it(build_reasons: Callable[[Job], list[Any]]) -> None:
    state = a_state()
    for job_id in ("a", "b", "c"):
        dead = replace(a_batch_job(job_id), status=JobStatus.DEAD, create_index=WRITE_INDEX)
        state.put(JOBS.build_put(replace(dead, submit_time=state.now_ns - HOUR_NS)))
    state.put(*build_reasons(state.job("b")))
    state.now_ns += HOUR_NS

    deleted = collect_once(state, CollectionKind.JOBS, max_changes=3_000)

    assert [key for table, key in deleted if table == JOBS.name] == [
        JOBS.build_key("default", "a"),
        JOBS.build_key("default", "c"),
    ]


@pytest.mark.parametrize(
    "fields",
    [{"status": EvaluationStatus.PENDING}, {"age_ns": HOUR_NS - 1}, {"type": SchedulerType.BATCH}],
    ids=["open", "ended recently", "of a batch job"],
)
def test_a_retained_evaluation_does_not_keep_those_before_and_behind_it(fields: dict[str, Any]) -> None:
    state = a_state()
    for evaluation_id in ("e1", "e2", "e3"):
        put_evaluation(state, evaluation_id, **(fields if evaluation_id == "e2" else {}))

    assert collect_once(state, CollectionKind.EVALUATIONS) == [(EVALUATIONS.name, "e1"), (EVALUATIONS.name, "e3")]


@pytest.mark.parametrize("is_active", [True, False], ids=["active", "with an active allocation"])
def test_a_retained_deployment_does_not_keep_those_before_and_behind_it(*, is_active: bool) -> None:
    state = a_state()
    for deployment_id in ("d1", "d2", "d3"):
        is_running = is_active and deployment_id == "d2"
        deployment = Deployment(
            id=deployment_id,
            namespace="default",
            job_id="shop",
            status=DeploymentStatus.RUNNING if is_running else DeploymentStatus.SUCCESSFUL,
            create_index=WRITE_INDEX,
        )
        state.put(DEPLOYMENTS.build_put(deployment))
    put_allocation(state, deployment_id="d2", client_status=ClientStatus.RUNNING)

    assert collect_once(state, CollectionKind.DEPLOYMENTS) == [(DEPLOYMENTS.name, "d1"), (DEPLOYMENTS.name, "d3")]


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "with an active allocation"])
def test_a_retained_node_does_not_keep_those_before_and_behind_it(*, is_ready: bool) -> None:
    state = a_state()
    for node_id in ("node-1", "node-2", "node-3"):
        state.with_node(node_id)
        status = NodeStatus.READY if is_ready and node_id == "node-2" else NodeStatus.DOWN
        state.put(NODES.build_put(replace(state.node(node_id), status=status)))
    put_allocation(state, node_id="node-2", client_status=ClientStatus.UNKNOWN)

    deleted = [key for table, key in collect_once(state, CollectionKind.NODES) if table == NODES.name]

    assert deleted == ["node-1", "node-3"]
