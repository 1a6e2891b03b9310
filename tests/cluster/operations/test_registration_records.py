"""Records that a registration stores beside the job: source, scaling policies, launches, counts of children."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job, a_task, some_job_settings, some_resources
from tests.kit.state import SETTINGS, AState, Refused
from wharf.cluster.operations.jobs import periodic
from wharf.cluster.operations.jobs import registration as jobs
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.state.tables import (
    JOB_SUBMISSIONS,
    NAMESPACES,
    NODE_POOLS,
    PERIODIC_LAUNCHES,
    SCALING_POLICIES_OF_JOB,
    SCHEDULER_CONFIGURATION,
    SUBMISSIONS_OF_JOB,
)
from wharf.contract.model.jobs.job import Parameterized, Submission
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy


def make_source(text: str = "job {}") -> Submission:
    return Submission(namespace="", job_id="", source=text, format="hcl2", variable_flags={"a": "b"}, variables="c = 1")


def list_policies(state: AState) -> list[ScalingPolicy]:
    return state.replica.list_by_index_sorted(SCALING_POLICIES_OF_JOB, "default", "shop")


def make_scaled_job(*, count: int = 1, max_count: int = 5, **fields: Any) -> Any:
    return a_job("shop", a_group(count=count, scaling=ScalingPolicy(min=1, max=max_count)), **fields)


# -- sources


def test_the_source_is_stored_with_its_version() -> None:
    state = AState()

    result = state.register(a_job(), submission=make_source())

    stored = state.replica.get(JOB_SUBMISSIONS, "default", "shop", 0)
    assert stored is not None
    assert (stored.source, stored.format, stored.variable_flags, stored.variables) == (
        "job {}",
        "hcl2",
        {"a": "b"},
        "c = 1",
    )
    assert (stored.version, stored.job_modify_index) == (0, result.index)


def test_a_source_that_is_too_large_is_discarded_with_a_warning_and_the_job_is_registered() -> None:
    state = AState()

    result = state.register(a_job(), submission=make_source("x" * 1_100_000))

    assert result.warnings == (
        "1 warning:\n\n* job source size of 1.1 MB exceeds maximum of 900.0 kB and will be discarded"
    )
    assert state.replica.list_by_index(SUBMISSIONS_OF_JOB, "default", "shop") == []
    assert state.job().version == 0


def test_all_texts_of_a_source_count_for_its_size() -> None:
    state = AState()
    settings = some_job_settings(max_source_bytes=10)

    registration = jobs.JobRegistration(job=a_job(), submission=make_source("123"))
    result = state.do(jobs.register_job(state.replica, registration, state.moment, settings))

    assert "job source size of 14 B exceeds maximum of 10 B" in result.warnings


def test_registering_an_unchanged_job_keeps_the_stored_source() -> None:
    state = AState()
    state.register(a_job(), submission=make_source("old"))

    state.register(a_job(), submission=make_source("new"))

    assert [each.source for each in state.replica.list_by_index(SUBMISSIONS_OF_JOB, "default", "shop")] == ["old"]


def test_registering_an_unchanged_job_updates_its_sensitive_fields() -> None:
    state = AState()
    state.register(a_job(), submission=make_source("old"))

    state.register(a_job(), submission=replace(make_source("new"), sensitive_fields=("/Meta/a",)))

    stored = state.replica.list_by_index(SUBMISSIONS_OF_JOB, "default", "shop")
    assert [(each.version, each.source, each.sensitive_fields) for each in stored] == [(0, "old", ("/Meta/a",))]


# -- scaling policies


def test_a_scaling_block_makes_a_policy_with_an_id_and_a_target() -> None:
    state = AState()

    state.register(make_scaled_job())

    (policy,) = list_policies(state)
    assert policy.target == {"Namespace": "default", "Job": "shop", "Group": "web"}
    assert state.job().groups[0].scaling == replace(policy, create_index=0, modify_index=0)


def test_a_policy_keeps_its_id_when_its_limits_change() -> None:
    state = AState()
    state.register(make_scaled_job())
    before = list_policies(state)[0]

    state.register(make_scaled_job(max_count=9))

    (after,) = list_policies(state)
    assert (after.id, after.create_index, after.max) == (before.id, before.create_index, 9)


def test_an_unchanged_job_with_a_policy_is_not_a_new_version() -> None:
    state = AState()
    state.register(make_scaled_job())

    state.register(make_scaled_job())

    assert state.job().version == 0


def test_a_policy_is_deleted_with_its_scaling_block() -> None:
    state = AState()
    state.register(make_scaled_job())

    state.register(a_job())

    assert list_policies(state) == []


def test_policies_are_disabled_while_their_job_is_stopped() -> None:
    state = AState()
    state.register(make_scaled_job())

    state.do(jobs.deregister_job(state.replica, "default", "shop", state.moment, settings=SETTINGS))
    stopped = [policy.enabled for policy in list_policies(state)]
    state.register(make_scaled_job())

    assert (stopped, [policy.enabled for policy in list_policies(state)]) == ([False], [True])


# -- launches


def test_launches_of_a_periodic_job_count_from_its_first_registration() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    first = state.replica.get(PERIODIC_LAUNCHES, "default", "nightly")
    state.now_ns += 3_600_000_000_000

    state.register(a_periodic_job("nightly", priority=60))

    assert state.replica.get(PERIODIC_LAUNCHES, "default", "nightly") == first
    assert first is not None


def test_next_launches_are_in_the_time_zone_of_the_job() -> None:
    job = a_periodic_job("nightly", spec="30 2 * * *")
    assert job.periodic is not None
    job = replace(job, periodic=replace(job.periodic, time_zone="Europe/Berlin"))

    found = list_next_launches(job, datetime.datetime(2026, 3, 27, 12, tzinfo=datetime.UTC), max_launches=3)

    # On the 29th the clock is set forward, so 2:30 does not exist.
    assert [time.isoformat() for time in found] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


def test_the_earliest_time_of_several_schedules_comes_first() -> None:
    job = a_periodic_job("nightly")
    assert job.periodic is not None
    job = replace(job, periodic=replace(job.periodic, specs=("0 6 * * *", "0 3 * * *")))

    found = list_next_launches(job, datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC), max_launches=3)

    assert [(time.day, time.hour) for time in found] == [(1, 3), (1, 6), (2, 3)]


def test_a_job_without_a_time_zone_uses_utc() -> None:
    job = a_periodic_job("nightly")
    assert job.periodic is not None
    job = replace(job, periodic=replace(job.periodic, time_zone=""))

    (time,) = list_next_launches(job, datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC), max_launches=1)

    assert time.isoformat() == "2026-05-01T03:00:00+00:00"


def test_stopped_and_parameterized_jobs_have_no_launches() -> None:
    now = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
    template = replace(a_periodic_job(), parameterized_job=Parameterized())

    assert [list_next_launches(job, now, max_launches=5) for job in (a_periodic_job(stop=True), template)] == [[], []]


def test_disabled_jobs_and_jobs_without_a_schedule_have_no_launches() -> None:
    disabled = a_periodic_job()
    assert disabled.periodic is not None
    disabled = replace(disabled, periodic=replace(disabled.periodic, enabled=False))
    now = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)

    assert (
        list_next_launches(disabled, now, max_launches=5),
        list_next_launches(a_batch_job(), now, max_launches=5),
    ) == ([], [])


# -- children and their submitters


def test_a_child_that_is_registered_again_remains_a_child() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    created = state.lead(periodic.force_periodic_launch(state.replica, "default", "nightly", state.moment, SETTINGS))

    state.register(a_batch_job(created.job_id, priority=70))

    child = state.job(created.job_id)
    assert (child.parent_id, child.priority, child.version) == ("nightly", 70, 1)


def test_fields_that_only_servers_set_cannot_be_submitted() -> None:
    state = AState()

    state.register(a_job(parent_id="another-job", dispatched=True, dispatch_idempotency_token="t"))

    job = state.job()
    assert (job.parent_id, job.dispatched, job.dispatch_idempotency_token) == ("", False, "")


def test_the_job_names_the_token_that_submitted_it() -> None:
    state = AState()

    state.register(a_job(submitter_accessor_id="forged"), accessor_id="a-1")

    assert state.job().submitter_accessor_id == "a-1"


# -- operators


def disable_registration(state: AState) -> AState:
    configuration = SchedulerConfiguration(reject_job_registration=True, create_index=WRITE_INDEX)
    state.put(SCHEDULER_CONFIGURATION.build_put(configuration))
    return state


def test_while_registration_is_disabled_only_management_tokens_register() -> None:
    state = disable_registration(AState())
    index = state.replica.index

    with pytest.raises(Refusal) as caught:
        state.register(a_job(), is_management=False)

    assert (caught.value.code, caught.value.text) == (
        RefusalCode.FORBIDDEN,
        "Job registration, dispatch, and scale are disabled by the scheduler configuration",
    )
    assert state.replica.index == index
    assert state.register(a_job(), is_management=True).eval_id != ""


def test_memory_above_the_reservation_warns_unless_operators_allow_it() -> None:
    state = AState()
    job = a_job("shop", a_group("web", a_task(resources=some_resources(memory_max_mb=500))))
    warned = state.register(job).warnings
    state.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(memory_oversubscription_enabled=True, create_index=WRITE_INDEX)
        )
    )

    assert "1 warning" in warned
    assert state.register(replace(job, priority=60)).warnings == ""


@pytest.mark.parametrize("table", [NAMESPACES, NODE_POOLS], ids=lambda table: table.name)
def test_a_job_is_not_registered_if_its_namespace_or_its_node_pool_was_deleted_meanwhile(table: Any) -> None:
    state = AState()
    state.put(
        NAMESPACES.build_put(Namespace(name="web", create_index=WRITE_INDEX)),
        NODE_POOLS.build_put(NodePool(name="web", create_index=WRITE_INDEX)),
    )
    decision = jobs.register_job(
        state.replica, jobs.JobRegistration(job=a_job(namespace="web", node_pool="web")), state.moment, SETTINGS
    )
    state.put(table.build_delete("web"))

    with pytest.raises(Refused):
        state.do(decision)
