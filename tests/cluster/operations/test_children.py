"""Child jobs: dispatched ones and launched ones (jobs.md 1.3 and 1.4)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.state import SETTINGS, AState, Refused
from wharf.cluster.operations.jobs import children, periodic, registration
from wharf.cluster.operations.jobs import dispatch as job_dispatch
from wharf.cluster.state.tables import JOBS, PERIODIC_LAUNCHES, SCALING_POLICIES_OF_JOB, SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import ChildrenSummary, Job, JobStatus, Parameterized
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.times import to_datetime

SECOND_NS = 1_000_000_000


def make_parameterized_job(**fields: Any) -> Job:
    arguments = {"payload": "optional", "meta_required": ("a",), "meta_optional": ("b",), **fields}
    return replace(a_parameterized_job("convert"), parameterized_job=Parameterized(**arguments))


def make_state(**fields: Any) -> AState:
    state = AState()
    state.register(make_parameterized_job(**fields))
    return state


def dispatch(state: AState, **fields: Any) -> children.ChildJobResult:
    arguments: dict[str, Any] = {"namespace": "default", "job_id": "convert", "meta": {"a": "1"}, **fields}
    requested = job_dispatch.DispatchRequest(**arguments)
    return state.lead(job_dispatch.dispatch_job(state.replica, requested, state.moment, SETTINGS))


def force_launch(state: AState, job_id: str = "nightly") -> children.ChildJobResult:
    return state.lead(periodic.force_periodic_launch(state.replica, "default", job_id, state.moment, SETTINGS))


def expect_refusal(state: AState, action: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    """Return code and text of the refusal, and check that nothing changed."""
    index = state.replica.index
    with pytest.raises(Refusal) as refusal:
        action(state, *args, **fields)
    assert state.replica.index == index
    return refusal.value.code, refusal.value.text


# -- the child


def test_the_id_of_a_dispatched_child_has_its_parent_the_second_and_random_digits() -> None:
    state = make_state()

    created = dispatch(state)

    prefix, _, digits = created.job_id.rpartition("-")
    assert prefix == f"convert/dispatch-{state.now_ns // SECOND_NS}"
    assert (len(digits), int(digits, 16) >= 0) == (8, True)
    child = state.job(created.job_id)
    assert (child.name, child.parent_id, child.dispatched) == (created.job_id, "convert", True)
    assert (child.version, child.create_index, child.status) == (0, created.index, "pending")


def test_a_prefix_is_part_of_the_id_of_the_child() -> None:
    state = make_state()

    created = dispatch(state, id_prefix="films")

    assert created.job_id.startswith(f"convert/dispatch-films-{state.now_ns // SECOND_NS}-")


def test_a_child_carries_payload_and_meta_over_its_parents() -> None:
    state = AState()
    state.register(replace(make_parameterized_job(), meta={"a": "parent", "c": "parent"}))

    created = dispatch(state, payload=b"\x00film", meta={"a": "1", "b": "2"})

    child = state.job(created.job_id)
    assert (child.payload, child.meta) == (b"\x00film", {"a": "1", "b": "2", "c": "parent"})
    assert child.parameterized_job == state.job("convert").parameterized_job
    assert not child.is_parameterized


def test_a_dispatched_child_is_evaluated_and_counted_by_its_parent() -> None:
    state = make_state()

    created = dispatch(state)

    (evaluation,) = state.evaluations(created.job_id)
    assert (created.eval_id, evaluation.triggered_by, evaluation.type) == (evaluation.id, "job-register", "batch")
    assert state.summary("convert").children == ChildrenSummary(pending=1)
    assert state.job("convert").status == "running"


def test_an_ended_child_is_counted_as_dead_by_its_parent() -> None:
    state = make_state()
    created = dispatch(state)

    state.end_evaluations(created.job_id)

    assert state.summary("convert").children == ChildrenSummary(dead=1)


def test_the_default_priority_is_that_of_the_parent() -> None:
    state = make_state()

    result = [state.job(dispatch(state, priority=priority).job_id).priority for priority in (0, 80)]

    assert result == [SETTINGS.default_priority, 80]


def test_a_child_has_its_own_scaling_policies() -> None:
    state = AState()
    template = replace(make_parameterized_job(), task_groups=(a_group("web", scaling=ScalingPolicy(min=1, max=3)),))
    state.register(template)

    created = dispatch(state)

    (own,) = state.replica.list_by_index(SCALING_POLICIES_OF_JOB, "default", created.job_id)
    (of_parent,) = state.replica.list_by_index(SCALING_POLICIES_OF_JOB, "default", "convert")
    assert own.target == {"Namespace": "default", "Job": created.job_id, "Group": "web"}
    assert own.id != of_parent.id


def test_a_dispatched_job_that_is_also_periodic_has_no_evaluation() -> None:
    state = AState()
    state.register(replace(make_parameterized_job(), periodic=a_periodic_job().periodic))

    created = dispatch(state)

    child = state.job(created.job_id)
    assert (created.eval_id, child.is_periodic, child.status) == ("", True, "running")
    assert state.replica.get(PERIODIC_LAUNCHES, "default", created.job_id) is not None


# -- the same token again


def test_a_repeated_token_returns_the_existing_child_without_an_evaluation() -> None:
    state = make_state()
    first = dispatch(state, idempotency_token="t-1")
    index = state.replica.index
    child = state.job(first.job_id)

    second = dispatch(state, idempotency_token="t-1")

    assert state.replica.index == index
    assert second == children.ChildJobResult(child.modify_index, first.job_id, child.create_index)


def test_a_repeated_token_returns_an_ended_child_too() -> None:
    state = make_state()
    first = dispatch(state, idempotency_token="t-1")
    state.end_evaluations(first.job_id)

    assert dispatch(state, idempotency_token="t-1").job_id == first.job_id


def test_another_token_or_no_token_creates_a_new_child() -> None:
    state = make_state()

    created = [dispatch(state, idempotency_token=token).job_id for token in ("t-1", "t-2", "", "")]

    assert len({*created}) == 4


def test_a_token_applies_to_one_parent() -> None:
    state = make_state()
    state.register(replace(make_parameterized_job(), id="other", name="other"))

    created = [dispatch(state, idempotency_token="t-1", job_id=job_id).job_id for job_id in ("convert", "other")]

    assert [job_id.partition("/")[0] for job_id in created] == ["convert", "other"]


# -- refusals of dispatches


@pytest.mark.parametrize(
    ("template", "fields", "text"),
    [
        ({}, {"payload": b"x" * 16_385}, "Payload exceeds maximum size; 16385 > 16384"),
        ({"payload": "required"}, {}, "Payload is not provided but required by parameterized job"),
        ({"payload": "forbidden"}, {"payload": b"x"}, "Payload provided but forbidden by parameterized job"),
        (
            {},
            {"meta": {"a": "1", "z": "2", "y": "3"}},
            "Dispatch request included unpermitted metadata keys: [y z]",
        ),
        ({}, {"meta": {}}, "Dispatch did not provide required meta keys: [a]"),
        (
            {},
            {"meta": {"a": "1", "k" * 300: "2"}},
            f"Dispatch request included unpermitted metadata keys: [{'k' * 200}...]",
        ),
        (
            {"meta_required": tuple(f"{number:04}" for number in range(50))},
            {"meta": {}},
            f"Dispatch did not provide required meta keys: [{' '.join(f'{number:04}' for number in range(40))} ...]",
        ),
        ({}, {"priority": 91}, "dispatch job priority must be between [1, 90]"),
        ({}, {"priority": -1}, "dispatch job priority must be between [1, 90]"),
        (
            {},
            {"id_prefix": "two words"},
            "IdPrefixTemplate contains a space or a null character, which no ID of a job may hold",
        ),
    ],
)
def test_a_dispatch_that_does_not_fit_its_template_is_refused(
    template: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    assert expect_refusal(make_state(**template), dispatch, **fields) == (RefusalCode.INVALID, text)


def test_a_payload_of_16_kib_is_accepted() -> None:
    state = make_state()

    created = dispatch(state, payload=b"x" * 16_384)

    assert state.job(created.job_id).payload == b"x" * 16_384


def test_dispatching_a_job_that_is_not_parameterized_is_refused() -> None:
    state = AState()
    state.register(a_batch_job("convert"))

    assert expect_refusal(state, dispatch) == (
        RefusalCode.INVALID,
        'Specified job "convert" is not a parameterized job',
    )


def test_dispatching_a_child_is_refused() -> None:
    state = make_state()
    created = dispatch(state)

    result = expect_refusal(state, dispatch, job_id=created.job_id)

    assert result == (RefusalCode.INVALID, f'Specified job "{created.job_id}" is not a parameterized job')


def test_dispatching_a_stopped_job_is_refused() -> None:
    state = make_state()
    state.do(registration.deregister_job(state.replica, "default", "convert", state.moment, settings=SETTINGS))

    assert expect_refusal(state, dispatch) == (RefusalCode.INVALID, 'Specified job "convert" is stopped')


def test_dispatching_an_unknown_job_is_refused() -> None:
    assert expect_refusal(AState(), dispatch) == (RefusalCode.NOT_FOUND, "parameterized job not found")


def test_while_registration_is_disabled_only_management_tokens_dispatch() -> None:
    state = make_state()
    state.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(reject_job_registration=True, create_index=WRITE_INDEX)
        )
    )

    assert expect_refusal(state, dispatch, is_management=False)[0] is RefusalCode.FORBIDDEN
    assert dispatch(state).eval_id != ""


# -- launches


def test_a_forced_launch_creates_a_child_of_this_second_with_the_periodic_trigger() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))

    created = force_launch(state)

    child = state.job(created.job_id)
    assert created.job_id == f"nightly/periodic-{state.now_ns // SECOND_NS}"
    assert (child.name, child.parent_id, child.periodic) == (created.job_id, "nightly", None)
    (evaluation,) = state.evaluations(created.job_id)
    assert (created.eval_id, evaluation.triggered_by) == (evaluation.id, "periodic-job")
    assert state.summary("nightly").children == ChildrenSummary(pending=1)


def test_a_launch_is_recorded_so_that_a_new_leader_does_not_repeat_it() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    state.now_ns += 90 * SECOND_NS

    force_launch(state)

    launched = state.replica.get(PERIODIC_LAUNCHES, "default", "nightly")
    assert launched is not None
    assert launched.launch == to_datetime(state.now_ns // SECOND_NS * SECOND_NS)


def test_a_forced_launch_ignores_running_children() -> None:
    state = AState()
    parent = a_periodic_job("nightly")
    assert parent.periodic is not None
    state.register(replace(parent, periodic=replace(parent.periodic, prohibit_overlap=True)))
    first = force_launch(state)
    state.now_ns += SECOND_NS

    assert force_launch(state).job_id != first.job_id


def test_two_launches_in_one_second_create_one_child_that_is_evaluated_twice() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    first = force_launch(state)

    second = force_launch(state)

    assert (second.job_id, second.job_create_index) == (first.job_id, first.job_create_index)
    assert len(state.evaluations(first.job_id)) == 2
    assert [job.id for job in state.replica.iter_all(JOBS)] == ["nightly", first.job_id]


def test_two_launches_that_were_decided_at_the_same_time_conflict() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    decisions = []
    for _ in range(2):
        state.now_ns += SECOND_NS
        decisions.append(periodic.force_periodic_launch(state.replica, "default", "nightly", state.moment, SETTINGS))
    first = state.lead(decisions[0])

    with pytest.raises(Refused):
        state.lead(decisions[1])
    assert [job.id for job in state.replica.iter_all(JOBS)] == ["nightly", first.job_id]


def test_forcing_an_unknown_or_non_periodic_job_is_refused() -> None:
    state = AState()
    state.register(a_job("shop"))

    assert expect_refusal(state, force_launch, "nightly") == (RefusalCode.NOT_FOUND, "job not found")
    assert expect_refusal(state, force_launch, "shop") == (RefusalCode.INVALID, "can't force launch non-periodic job")


@pytest.mark.parametrize(
    ("change", "message"),
    [("stopped", "it is stopped; start it first"), ("disabled", "its Periodic block is not enabled")],
)
def test_forcing_a_stopped_or_disabled_job_is_refused(change: str, message: str) -> None:
    state = AState()
    job = a_periodic_job("nightly", stop=change == "stopped")
    assert job.periodic is not None
    state.register(replace(job, periodic=replace(job.periodic, enabled=change != "disabled")))

    result = expect_refusal(state, force_launch)

    text = 'force launch for job "nightly" failed: can\'t force run non-tracked job "nightly" (default): '
    assert result == (RefusalCode.INVALID, text + message)


@pytest.mark.parametrize(
    ("requirement", "payload", "is_accepted"),
    [
        ("optional", b"", True),
        ("optional", b"x", True),
        ("required", b"", False),
        ("required", b"x", True),
        ("forbidden", b"", True),
        ("forbidden", b"x", False),
    ],
)
def test_a_payload_is_accepted_as_the_template_requires(requirement: str, payload: bytes, is_accepted: bool) -> None:
    state = make_state(payload=requirement)

    if is_accepted:
        assert (state.job(dispatch(state, payload=payload).job_id).payload or b"") == payload
    else:
        assert expect_refusal(state, dispatch, payload=payload)[0] is RefusalCode.INVALID


def test_a_child_of_a_stable_parent_is_not_stable() -> None:
    state = make_state()
    state.put(JOBS.build_put(replace(state.job("convert"), stable=True, version=3)))

    child = state.job(dispatch(state).job_id)

    assert (child.stable, child.version) == (False, 0)


@pytest.mark.parametrize(
    ("status", "is_refused"), [(JobStatus.RUNNING, True), (JobStatus.PENDING, True), (JobStatus.DEAD, False)]
)
def test_a_new_parent_is_not_registered_with_outdated_counts_of_the_children_that_it_takes_over(
    status: JobStatus, is_refused: bool
) -> None:
    state = AState()
    child = a_job("convert/1", parent_id="convert", status=status, create_index=WRITE_INDEX)
    state.put(JOBS.build_put(child))
    request = registration.JobRegistration(job=make_parameterized_job())
    decision = registration.register_job(state.replica, request, state.moment, SETTINGS)
    state.put(JOBS.build_put(replace(state.job("convert/1"), status=JobStatus.DEAD)))

    if is_refused:
        with pytest.raises(Refused):
            state.do(decision)
    else:
        state.do(decision)
        assert state.summary("convert").children == ChildrenSummary(dead=1)


# -- where a child is made


@pytest.mark.parametrize(
    ("groups", "services", "expected"),
    [(1, 0, False), (1, 100, False), (40, 0, True), (1, 200, True)],
    ids=["a small job", "100 services", "40 groups with a task each", "200 services"],
)
def test_children_of_jobs_with_many_parts_are_made_off_the_loop(groups: int, services: int, *, expected: bool) -> None:
    state = make_state()
    group = replace(a_group("g"), services=tuple(Service(name=f"s{number}") for number in range(services)))
    made = tuple(replace(group, name=f"g{number}") for number in range(groups))
    state.put(JOBS.build_put(replace(make_parameterized_job(), task_groups=made)))

    assert children.has_large_children(state.replica, "default", "convert") is expected


def test_an_unknown_job_has_no_large_children() -> None:
    assert not children.has_large_children(make_state().replica, "default", "unknown")
