"""Garbage collection of old records, in writes of limited size (scheduling.md 1.6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job
from tests.kit.state import SECOND_NS, SETTINGS, AState
from wharf.cluster.operations.acl.tokens import collect_expired_tokens
from wharf.cluster.operations.jobs import registration
from wharf.cluster.operations.operator.collection import (
    NO_RESULTS,
    CollectionKind,
    ResultRetention,
    collect_garbage,
)
from wharf.cluster.state.tables import (
    ACL_TOKENS,
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    NODE_PLACEMENTS,
    NODES,
    ONE_TIME_TOKENS,
    PERIODIC_LAUNCHES,
    SCALING_POLICIES,
)
from wharf.contract.model.acl.tokens import OneTimeToken, Token
from wharf.contract.model.allocations.allocation import (
    Allocation,
    ClientStatus,
    DesiredStatus,
    RescheduleEvent,
    RescheduleTracker,
)
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.job import JobStatus, VersionTag
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.times import to_datetime

HOUR_NS = 3_600 * SECOND_NS


def collect(
    state: AState,
    kind: CollectionKind,
    *,
    older_than_ns: int = 0,
    results: ResultRetention = NO_RESULTS,
    changes_max: int = 100,
) -> int:
    """Collect until nothing is left, and return the number of deleted records."""
    deleted_count = 0
    while True:
        decision = collect_garbage(
            state.replica,
            kind,
            state.moment,
            retention_ns=older_than_ns,
            results=results,
            max_changes=changes_max,
        )
        step = state.lead(decision)
        assert decision.write is None or len(decision.write.changes) <= changes_max
        deleted_count += step.deleted_count
        if not step.deleted_count:
            return deleted_count


def make_service_state(*, client: ClientStatus = ClientStatus.RUNNING, **fields: Any) -> AState:
    """Return a state with a service job, one complete evaluation of it and an allocation of that evaluation."""
    state = AState()
    state.with_node()
    state.register(a_job())
    (evaluation,) = state.open_evaluations()
    state.with_allocation(state.job(), eval_id=evaluation.id, client_status=client, **fields)
    state.end_evaluations()
    return state


def change_job(state: AState, **fields: Any) -> None:
    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), **fields)))


def list_allocations(state: AState) -> list[Allocation]:
    return list(state.replica.iter_all(ALLOCATIONS))


# -- evaluations and allocations


def test_a_completed_evaluation_is_collected_with_its_ended_allocations() -> None:
    state = make_service_state(client=ClientStatus.COMPLETE)

    assert collect(state, CollectionKind.EVALUATIONS) == 2
    assert (state.evaluations(), list_allocations(state)) == ([], [])


def test_an_evaluation_is_retained_while_one_of_its_allocations_runs() -> None:
    state = make_service_state()

    assert collect(state, CollectionKind.EVALUATIONS) == 0
    assert len(state.evaluations()) == 1


def test_the_newest_evaluation_of_a_job_is_retained_if_it_failed() -> None:
    state = AState()
    state.register(a_job())
    state.end_evaluations(status=EvaluationStatus.FAILED)
    assert collect(state, CollectionKind.EVALUATIONS) == 0

    state.register(a_job(priority=70))
    state.end_evaluations()

    assert collect(state, CollectionKind.EVALUATIONS) == 2


def test_the_failed_evaluation_of_a_stopped_job_is_collected() -> None:
    state = AState()
    state.register(a_job())
    state.end_evaluations(status=EvaluationStatus.FAILED)
    state.put(JOBS.build_put(replace(state.job(), stop=True)))

    assert collect(state, CollectionKind.EVALUATIONS) == 1


def test_an_open_evaluation_is_retained() -> None:
    state = AState()
    state.register(a_job())

    assert collect(state, CollectionKind.EVALUATIONS) == 0


def test_records_below_the_age_threshold_are_retained() -> None:
    state = make_service_state(client=ClientStatus.COMPLETE)
    change_job(state, modify_time=state.now_ns)
    state.put_led(*(EVALUATIONS.build_put(replace(each, modify_time=state.now_ns)) for each in state.evaluations()))

    young = collect(state, CollectionKind.EVALUATIONS, older_than_ns=HOUR_NS)
    state.now_ns += HOUR_NS
    old = collect(state, CollectionKind.EVALUATIONS, older_than_ns=HOUR_NS)

    assert (young, old) == (0, 2)


def test_records_that_ended_in_the_future_are_collected_once_the_clock_was_set_back() -> None:
    def collect_at(ago_hours: int) -> int:
        state = make_service_state(client=ClientStatus.COMPLETE)
        change_job(state, modify_time=state.now_ns)
        state.put_led(*(EVALUATIONS.build_put(replace(each, modify_time=state.now_ns)) for each in state.evaluations()))
        state.now_ns -= ago_hours * HOUR_NS
        return collect(state, CollectionKind.EVALUATIONS, older_than_ns=HOUR_NS)

    assert [collect_at(hours) for hours in (0, 1, 2, 20_000)] == [0, 0, 2, 2]


def test_a_stopping_allocation_is_retained_until_its_node_reports_its_end() -> None:
    state = make_service_state(desired_status=DesiredStatus.STOP)

    assert collect(state, CollectionKind.EVALUATIONS) == 0


def make_state_with_policy(**policy: Any) -> AState:
    state = AState()
    state.with_node()
    group = a_group("web", reschedule_policy=ReschedulePolicy(**policy))
    state.register(a_job("shop", group))
    (evaluation,) = state.open_evaluations()
    state.with_allocation(state.job(), eval_id=evaluation.id, client_status=ClientStatus.FAILED)
    state.with_allocation(state.job(), "lives", eval_id="another", client_status=ClientStatus.RUNNING)
    state.end_evaluations()
    return state


def test_a_failed_allocation_with_unlimited_attempts_is_retained_until_it_is_replaced() -> None:
    state = make_state_with_policy(
        unlimited=True, delay=5 * SECOND_NS, interval=0, attempts=0, delay_function="constant"
    )

    stored = collect(state, CollectionKind.EVALUATIONS)
    change_job(state, next_allocation="a2")
    deleted_count = collect(state, CollectionKind.EVALUATIONS)

    assert (stored, deleted_count) == (0, 2)


def test_a_failed_allocation_is_retained_during_its_reschedule_interval() -> None:
    state = make_state_with_policy(
        unlimited=False, attempts=3, interval=HOUR_NS, delay=5 * SECOND_NS, delay_function="constant"
    )
    never = collect(state, CollectionKind.EVALUATIONS)
    change_job(
        state,
        reschedule_tracker=RescheduleTracker(events=(RescheduleEvent(reschedule_time=state.now_ns, delay=1),)),
    )

    counted = collect(state, CollectionKind.EVALUATIONS)
    state.now_ns += HOUR_NS
    collected = collect(state, CollectionKind.EVALUATIONS)

    assert (never, counted, collected) == (0, 0, 2)


def test_allocations_of_a_batch_job_are_retained_until_the_job_is_dead_and_stopped() -> None:
    state = AState()
    state.with_node()
    state.register(a_batch_job())
    (evaluation,) = state.open_evaluations("nightly")
    state.with_allocation(state.job("nightly"), eval_id=evaluation.id, client_status=ClientStatus.COMPLETE)
    state.end_evaluations("nightly")

    stored = collect(state, CollectionKind.BATCH_EVALUATIONS)
    state.register(a_batch_job(stop=True))
    state.end_evaluations("nightly")
    deleted_count = collect(state, CollectionKind.BATCH_EVALUATIONS)

    assert stored == 0
    assert deleted_count > 0
    assert list_allocations(state) == []


def test_allocations_of_a_batch_job_from_before_its_last_change_are_collected() -> None:
    state = AState()
    state.with_node()
    state.register(a_batch_job())
    (evaluation,) = state.open_evaluations("nightly")
    state.with_allocation(state.job("nightly"), "old", eval_id=evaluation.id, client_status=ClientStatus.COMPLETE)
    state.end_evaluations("nightly")
    state.register(a_batch_job(priority=70))
    (evaluation,) = state.open_evaluations("nightly")
    state.with_allocation(state.job("nightly"), "new", eval_id=evaluation.id, client_status=ClientStatus.COMPLETE)
    state.end_evaluations("nightly")

    collect(state, CollectionKind.BATCH_EVALUATIONS)

    assert [allocation.id for allocation in list_allocations(state)] == ["new"]


def test_an_evaluation_with_too_many_allocations_for_one_write_is_collected_in_several() -> None:
    state = make_service_state(client=ClientStatus.COMPLETE)
    evaluation_id = state.allocation("a1").eval_id
    for number in range(30):
        state.with_allocation(state.job(), f"b{number}", eval_id=evaluation_id, client_status=ClientStatus.COMPLETE)

    assert collect(state, CollectionKind.EVALUATIONS, changes_max=10) == 32
    assert list_allocations(state) == []


def test_evaluations_of_batch_jobs_are_collected_separately() -> None:
    state = AState()
    state.register(a_job())
    state.register(a_batch_job())
    state.end_evaluations()
    state.end_evaluations("nightly")
    state.put(JOBS.build_delete("default", "nightly"))

    assert (collect(state, CollectionKind.EVALUATIONS), len(list(state.replica.iter_all(EVALUATIONS)))) == (1, 1)
    assert collect(state, CollectionKind.BATCH_EVALUATIONS) == 1


def test_records_that_do_not_fit_in_one_write_are_collected_in_several() -> None:
    state = AState()
    for number in range(10):
        state.register(a_job(f"job-{number}"))
        state.end_evaluations(f"job-{number}")

    assert collect(state, CollectionKind.EVALUATIONS, changes_max=3) == 10


# -- jobs


def test_a_dead_batch_job_is_collected_with_all_its_records() -> None:
    state = AState()
    state.register(a_batch_job())
    state.end_evaluations("nightly")

    collect(state, CollectionKind.JOBS)

    tables = (JOBS, JOB_VERSIONS, JOB_SUMMARIES, EVALUATIONS)
    assert [state.replica.count_records(table) for table in tables] == [0, 0, 0, 0]


def test_a_dead_job_with_too_many_allocations_for_one_write_is_collected_in_several() -> None:
    state = AState()
    state.with_node()
    state.register(a_batch_job())
    (evaluation,) = state.open_evaluations("nightly")
    for number in range(30):
        state.with_allocation(
            state.job("nightly"), f"a{number}", eval_id=evaluation.id, client_status=ClientStatus.COMPLETE
        )
    state.end_evaluations("nightly")

    assert collect(state, CollectionKind.JOBS, changes_max=10) == 34
    assert (list_allocations(state), list(state.replica.iter_all(JOBS)), list(state.replica.iter_all(EVALUATIONS))) == (
        [],
        [],
        [],
    )


@pytest.mark.parametrize("stop", [False, True])
def test_a_dead_service_job_is_collected_only_if_it_was_stopped(stop: bool) -> None:
    state = AState()
    state.register(a_job(stop=stop))
    state.end_evaluations()

    collect(state, CollectionKind.JOBS)

    assert (state.replica.count_records(JOBS) == 0) is stop


def test_a_job_that_is_not_dead_is_retained() -> None:
    state = make_service_state()

    assert collect(state, CollectionKind.JOBS) == 0


def test_a_job_with_a_tagged_version_is_retained() -> None:
    state = AState()
    state.register(a_batch_job())
    state.end_evaluations("nightly")
    job = state.job("nightly")
    state.put(JOB_VERSIONS.build_put(replace(job, version_tag=VersionTag(name="golden"))))

    collect(state, CollectionKind.JOBS)

    assert state.job("nightly").status is JobStatus.DEAD


def test_a_recently_submitted_job_is_retained() -> None:
    state = AState()
    state.register(a_batch_job())
    state.end_evaluations("nightly")

    assert collect(state, CollectionKind.JOBS, older_than_ns=HOUR_NS) == 0


# -- results of batch work

WEEK_OF_RESULTS = ResultRetention(170 * HOUR_NS, max_weight=6)


def end_batch_job(state: AState, job_id: str, *, allocations: int = 1, parent_id: str = "") -> None:
    """Run a batch job to its end, ten minutes after the one before."""
    state.now_ns += HOUR_NS // 6
    state.register(a_batch_job(job_id))
    if parent_id:
        state.put(JOBS.build_put(replace(state.job(job_id), parent_id=parent_id)))
    (evaluation,) = state.open_evaluations(job_id)
    for number in range(allocations):
        state.with_allocation(
            state.job(job_id), f"{job_id}-{number}", eval_id=evaluation.id, client_status=ClientStatus.COMPLETE
        )
    state.end_evaluations(job_id)


def list_retained_jobs(state: AState, results: ResultRetention = WEEK_OF_RESULTS) -> list[str]:
    collect(state, CollectionKind.JOBS, older_than_ns=3 * HOUR_NS, results=results)
    return sorted(job.id for job in state.replica.iter_all(JOBS))


def test_the_records_of_a_batch_job_are_retained_longer_than_those_of_a_service() -> None:
    state = AState()
    state.with_node()
    end_batch_job(state, "sums")
    state.register(a_job(stop=True))
    state.end_evaluations()

    state.now_ns += 160 * HOUR_NS
    retained = list_retained_jobs(state)
    state.now_ns += 10 * HOUR_NS

    assert (retained, list_retained_jobs(state)) == (["sums"], [])


def test_beyond_the_limit_the_newest_results_are_retained() -> None:
    state = AState()
    state.with_node()
    for name in ("a", "b", "c"):
        end_batch_job(state, name, allocations=20)  # Each counts as three.
    state.now_ns += 4 * HOUR_NS

    assert list_retained_jobs(state) == ["b", "c"]


def test_results_that_ended_recently_are_retained_whatever_the_limit() -> None:
    state = AState()
    state.with_node()
    end_batch_job(state, "a", allocations=3)

    assert list_retained_jobs(state, ResultRetention(170 * HOUR_NS, max_weight=0)) == ["a"]


def test_many_children_of_one_job_do_not_displace_the_results_of_others() -> None:
    state = AState()
    state.with_node()
    end_batch_job(state, "sums")
    for number in range(10, 20):
        end_batch_job(state, f"cron/periodic-{number}", parent_id="cron")
    state.now_ns += 4 * HOUR_NS

    assert list_retained_jobs(state) == [*(f"cron/periodic-{number}" for number in range(15, 20)), "sums"]


def test_results_of_earlier_versions_of_a_batch_job_are_retained_as_long() -> None:
    state = AState()
    state.with_node()
    end_batch_job(state, "sums")
    state.register(a_batch_job("sums", priority=70))
    state.end_evaluations("sums")
    evaluations = CollectionKind.BATCH_EVALUATIONS

    state.now_ns += 160 * HOUR_NS
    early = collect(state, evaluations, older_than_ns=24 * HOUR_NS, results=WEEK_OF_RESULTS)
    state.now_ns += 10 * HOUR_NS
    late = collect(state, evaluations, older_than_ns=24 * HOUR_NS, results=WEEK_OF_RESULTS)

    assert (early, late) == (0, 2)


# -- deployments, tokens, nodes


@pytest.mark.parametrize(
    ("status", "deleted_count"),
    [(DeploymentStatus.RUNNING, 0), (DeploymentStatus.PAUSED, 0), (DeploymentStatus.FAILED, 1)],
)
def test_a_terminal_deployment_is_collected(status: DeploymentStatus, deleted_count: int) -> None:
    state = AState()
    state.put(
        DEPLOYMENTS.build_put(
            Deployment(id="d1", job_id="shop", namespace="default", status=status, create_index=WRITE_INDEX)
        )
    )

    assert collect(state, CollectionKind.DEPLOYMENTS) == deleted_count


def test_a_deployment_is_retained_while_one_of_its_allocations_is_live() -> None:
    state = make_service_state(deployment_id="d1")
    over = Deployment(
        id="d1", job_id="shop", namespace="default", status=DeploymentStatus.SUCCESSFUL, create_index=WRITE_INDEX
    )
    state.put(DEPLOYMENTS.build_put(over))

    assert collect(state, CollectionKind.DEPLOYMENTS) == 0


def add_deployment(state: AState, status: DeploymentStatus, **group: Any) -> None:
    """Add a deployment of the current version of the job."""
    job = state.job()
    state.put(
        DEPLOYMENTS.build_put(
            Deployment(
                id=f"d{job.version}", job_id=job.id, namespace="default", status=status, job_version=job.version,
                job_create_index=job.create_index, task_groups={"web": DeploymentGroup(**group)},
                create_index=WRITE_INDEX,
            )
        )
    )  # fmt: skip


def test_the_failed_deployment_of_the_current_version_is_retained() -> None:
    state = AState()
    state.register(a_job())
    add_deployment(state, DeploymentStatus.FAILED, desired_canaries=1)

    assert collect(state, CollectionKind.DEPLOYMENTS) == 0


def test_a_failed_deployment_is_collected_once_its_job_has_another_version() -> None:
    state = AState()
    state.register(a_job())
    add_deployment(state, DeploymentStatus.FAILED, desired_canaries=1)
    state.register(a_job(priority=70))

    assert collect(state, CollectionKind.DEPLOYMENTS) == 1


def test_the_failed_deployment_of_a_stopped_job_is_collected() -> None:
    state = AState()
    state.register(a_job())
    add_deployment(state, DeploymentStatus.FAILED, desired_canaries=1)
    state.put(JOBS.build_put(replace(state.job(), stop=True)))

    assert collect(state, CollectionKind.DEPLOYMENTS) == 1


@pytest.mark.parametrize("group", [{}, {"desired_canaries": 1, "promoted": True}])
def test_the_deployment_of_the_version_that_runs_beside_canaries_is_retained(group: dict[str, Any]) -> None:
    state = AState()
    state.register(a_job())
    add_deployment(state, DeploymentStatus.SUCCESSFUL)
    state.register(a_job(priority=60))
    add_deployment(state, DeploymentStatus.SUCCESSFUL, **group)
    state.register(a_job(priority=70))
    add_deployment(state, DeploymentStatus.CANCELLED, desired_canaries=1)

    collect(state, CollectionKind.DEPLOYMENTS)

    assert [each.id for each in state.replica.iter_all(DEPLOYMENTS)] == ["d1"]


def test_expired_tokens_are_collected() -> None:
    state = AState()
    before, after = to_datetime(state.now_ns - 1_000), to_datetime(state.now_ns + HOUR_NS)
    state.put(
        ACL_TOKENS.build_put(Token(accessor_id="old", expiration_time=before, create_index=WRITE_INDEX)),
        ACL_TOKENS.build_put(Token(accessor_id="young", expiration_time=after, create_index=WRITE_INDEX)),
        ACL_TOKENS.build_put(Token(accessor_id="eternal", create_index=WRITE_INDEX)),
        ONE_TIME_TOKENS.build_put(
            OneTimeToken(secret_digest="old", accessor_id="x", expires_at=before, create_index=WRITE_INDEX)
        ),
        ONE_TIME_TOKENS.build_put(
            OneTimeToken(secret_digest="young", accessor_id="x", expires_at=after, create_index=WRITE_INDEX)
        ),
    )

    assert (collect(state, CollectionKind.TOKENS), collect(state, CollectionKind.ONE_TIME_TOKENS)) == (1, 1)
    assert [token.accessor_id for token in state.replica.iter_by_key(ACL_TOKENS)] == ["eternal", "young"]


def test_a_valid_token_with_a_short_lifetime_is_not_collected_however_long_expired_tokens_are_retained() -> None:
    state = AState()
    created, expires = to_datetime(state.now_ns), to_datetime(state.now_ns + 60 * SECOND_NS)
    state.put(
        ACL_TOKENS.build_put(
            Token(accessor_id="short", create_time=created, expiration_time=expires, create_index=WRITE_INDEX)
        )
    )

    assert collect(state, CollectionKind.TOKENS, older_than_ns=HOUR_NS) == 0
    assert collect_expired_tokens(state.replica, state.moment, threshold_ns=HOUR_NS, max_tokens=10) is None


def test_a_down_node_is_collected_once_no_allocation_occupies_it() -> None:
    state = make_service_state()
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.DOWN)))

    taken_lock = collect(state, CollectionKind.NODES)
    state.with_client_status("a1", ClientStatus.LOST)
    deleted_count = collect(state, CollectionKind.NODES)

    assert taken_lock == 0
    assert deleted_count > 0
    assert (state.replica.count_records(NODES), state.replica.count_records(NODE_PLACEMENTS)) == (0, 0)


def test_a_ready_node_is_retained() -> None:
    state = AState()
    state.with_node()

    assert collect(state, CollectionKind.NODES) == 0


def test_scaling_policies_and_launches_are_collected_with_their_job() -> None:
    state = AState()
    scaled = a_group(scaling=ScalingPolicy(min=1, max=3))
    state.register(a_periodic_job("nightly", scaled))
    state.lead(registration.deregister_job(state.replica, "default", "nightly", state.moment, settings=SETTINGS))
    state.now_ns += HOUR_NS

    collect(state, CollectionKind.JOBS)

    left = [state.replica.count_records(table) for table in (JOBS, SCALING_POLICIES, PERIODIC_LAUNCHES)]
    assert left == [0, 0, 0]
