"""Child jobs: dispatched ones and launched ones (jobs.md 1.3 and 1.4)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.state import SETTINGS, AState
from wharf.cluster.operations.jobs import children, periodic, registration
from wharf.cluster.operations.jobs import dispatch as job_dispatch
from wharf.cluster.state.tables import JOBS, PERIODIC_LAUNCHES, SCALING_POLICIES_OF_JOB, SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import ChildrenSummary, Job, Parameterized
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.times import to_datetime

SECOND_NS = 1_000_000_000


def a_template(**fields: Any) -> Job:
    given = {"payload": "optional", "meta_required": ("a",), "meta_optional": ("b",), **fields}
    return replace(a_parameterized_job("convert"), parameterized_job=Parameterized(**given))


def with_template(**fields: Any) -> AState:
    state = AState()
    state.register(a_template(**fields))
    return state


def dispatch(state: AState, **fields: Any) -> children.ChildJobResult:
    given: dict[str, Any] = {"namespace": "default", "job_id": "convert", "meta": {"a": "1"}, **fields}
    asked = job_dispatch.DispatchRequest(**given)
    return state.lead(job_dispatch.dispatch_job(state.replica, asked, state.moment, SETTINGS))


def force(state: AState, job_id: str = "nightly") -> children.ChildJobResult:
    return state.lead(periodic.force_periodic_launch(state.replica, "default", job_id, state.moment, SETTINGS))


def refused(state: AState, action: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    """What is said; and nothing has changed."""
    index = state.replica.index
    with pytest.raises(Refusal) as refusal:
        action(state, *args, **fields)
    assert state.replica.index == index
    return refusal.value.code, refusal.value.text


# -- the child


def test_a_dispatched_child_is_named_for_its_parent_the_second_and_chance() -> None:
    state = with_template()

    made = dispatch(state)

    prefix, _, digits = made.job_id.rpartition("-")
    assert prefix == f"convert/dispatch-{state.now_ns // SECOND_NS}"
    assert (len(digits), int(digits, 16) >= 0) == (8, True)
    child = state.job(made.job_id)
    assert (child.name, child.parent_id, child.dispatched) == (made.job_id, "convert", True)
    assert (child.version, child.create_index, child.status) == (0, made.index, "pending")


def test_a_prefix_stands_in_the_childs_id() -> None:
    state = with_template()

    made = dispatch(state, id_prefix="films")

    assert made.job_id.startswith(f"convert/dispatch-films-{state.now_ns // SECOND_NS}-")


def test_a_child_carries_payload_and_meta_over_its_parents() -> None:
    state = AState()
    state.register(replace(a_template(), meta={"a": "parent", "c": "parent"}))

    made = dispatch(state, payload=b"\x00film", meta={"a": "1", "b": "2"})

    child = state.job(made.job_id)
    assert (child.payload, child.meta) == (b"\x00film", {"a": "1", "b": "2", "c": "parent"})
    assert child.parameterized_job == state.job("convert").parameterized_job
    assert not child.is_parameterized


def test_a_dispatch_is_evaluated_and_its_parent_counts_it() -> None:
    state = with_template()

    made = dispatch(state)

    (evaluation,) = state.evaluations(made.job_id)
    assert (made.eval_id, evaluation.triggered_by, evaluation.type) == (evaluation.id, "job-register", "batch")
    assert state.summary("convert").children == ChildrenSummary(pending=1)
    assert state.job("convert").status == "running"


def test_a_child_that_ends_moves_from_one_counter_of_its_parent_to_another() -> None:
    state = with_template()
    made = dispatch(state)

    state.end_evaluations(made.job_id)

    assert state.summary("convert").children == ChildrenSummary(dead=1)


def test_the_priority_is_the_parents_unless_one_is_given() -> None:
    state = with_template()

    told = [state.job(dispatch(state, priority=priority).job_id).priority for priority in (0, 80)]

    assert told == [50, 80]


def test_policies_of_a_child_are_its_own() -> None:
    state = AState()
    template = replace(a_template(), task_groups=(a_group("web", scaling=ScalingPolicy(min=1, max=3)),))
    state.register(template)

    made = dispatch(state)

    (own,) = state.replica.list_by_index(SCALING_POLICIES_OF_JOB, "default", made.job_id)
    (of_parent,) = state.replica.list_by_index(SCALING_POLICIES_OF_JOB, "default", "convert")
    assert own.target == {"Namespace": "default", "Job": made.job_id, "Group": "web"}
    assert own.id != of_parent.id


def test_a_job_that_is_both_makes_a_periodic_child_without_an_evaluation() -> None:
    state = AState()
    state.register(replace(a_template(), periodic=a_periodic_job().periodic))

    made = dispatch(state)

    child = state.job(made.job_id)
    assert (made.eval_id, child.is_periodic, child.status) == ("", True, "running")
    assert state.replica.get(PERIODIC_LAUNCHES, "default", made.job_id) is not None


# -- the same token again


def test_the_same_token_gives_the_child_that_is_there_and_no_evaluation() -> None:
    state = with_template()
    first = dispatch(state, idempotency_token="t-1")
    index = state.replica.index
    child = state.job(first.job_id)

    second = dispatch(state, idempotency_token="t-1")

    assert state.replica.index == index
    assert second == children.ChildJobResult(child.modify_index, first.job_id, child.create_index)


def test_the_same_token_counts_also_when_the_child_has_ended() -> None:
    state = with_template()
    first = dispatch(state, idempotency_token="t-1")
    state.end_evaluations(first.job_id)

    assert dispatch(state, idempotency_token="t-1").job_id == first.job_id


def test_another_token_and_no_token_make_children_of_their_own() -> None:
    state = with_template()

    made = [dispatch(state, idempotency_token=token).job_id for token in ("t-1", "t-2", "", "")]

    assert len({*made}) == 4


def test_a_token_counts_within_its_parent() -> None:
    state = with_template()
    state.register(replace(a_template(), id="other", name="other"))

    made = [dispatch(state, idempotency_token="t-1", job_id=job_id).job_id for job_id in ("convert", "other")]

    assert [job_id.partition("/")[0] for job_id in made] == ["convert", "other"]


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
        ({}, {"priority": 101}, "dispatch job priority must be between [1, 100]"),
        ({}, {"priority": -1}, "dispatch job priority must be between [1, 100]"),
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
    assert refused(with_template(**template), dispatch, **fields) == (RefusalCode.INVALID, text)


def test_a_payload_of_16_kib_is_taken() -> None:
    state = with_template()

    made = dispatch(state, payload=b"x" * 16_384)

    assert state.job(made.job_id).payload == b"x" * 16_384


def test_dispatching_what_is_no_template_is_refused() -> None:
    state = AState()
    state.register(a_batch_job("convert"))

    assert refused(state, dispatch) == (RefusalCode.INVALID, 'Specified job "convert" is not a parameterized job')


def test_dispatching_a_child_is_refused() -> None:
    state = with_template()
    made = dispatch(state)

    told = refused(state, dispatch, job_id=made.job_id)

    assert told == (RefusalCode.INVALID, f'Specified job "{made.job_id}" is not a parameterized job')


def test_dispatching_a_stopped_template_is_refused() -> None:
    state = with_template()
    state.do(registration.deregister_job(state.replica, "default", "convert", state.moment))

    assert refused(state, dispatch) == (RefusalCode.INVALID, 'Specified job "convert" is stopped')


def test_dispatching_what_nobody_knows_is_refused() -> None:
    assert refused(AState(), dispatch) == (RefusalCode.NOT_FOUND, "parameterized job not found")


def test_while_registration_is_disabled_only_management_dispatches() -> None:
    state = with_template()
    state.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(reject_job_registration=True, create_index=WRITE_INDEX)
        )
    )

    assert refused(state, dispatch, is_management=False)[0] is RefusalCode.FORBIDDEN
    assert dispatch(state).eval_id != ""


# -- launches


def test_a_forced_launch_makes_a_child_of_this_second_that_is_evaluated_as_periodic() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))

    made = force(state)

    child = state.job(made.job_id)
    assert made.job_id == f"nightly/periodic-{state.now_ns // SECOND_NS}"
    assert (child.name, child.parent_id, child.periodic) == (made.job_id, "nightly", None)
    (evaluation,) = state.evaluations(made.job_id)
    assert (made.eval_id, evaluation.triggered_by) == (evaluation.id, "periodic-job")
    assert state.summary("nightly").children == ChildrenSummary(pending=1)


def test_a_launch_is_noted_so_that_a_new_leader_does_not_repeat_it() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    state.now_ns += 90 * SECOND_NS

    force(state)

    launched = state.replica.get(PERIODIC_LAUNCHES, "default", "nightly")
    assert launched is not None
    assert launched.launch == to_datetime(state.now_ns // SECOND_NS * SECOND_NS)


def test_a_forced_launch_does_not_mind_children_that_run() -> None:
    state = AState()
    parent = a_periodic_job("nightly")
    assert parent.periodic is not None
    state.register(replace(parent, periodic=replace(parent.periodic, prohibit_overlap=True)))
    first = force(state)
    state.now_ns += SECOND_NS

    assert force(state).job_id != first.job_id


def test_two_launches_of_one_second_are_one_child_that_is_evaluated_twice() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    first = force(state)

    second = force(state)

    assert (second.job_id, second.job_create_index) == (first.job_id, first.job_create_index)
    assert len(state.evaluations(first.job_id)) == 2
    assert [job.id for job in state.replica.iter_all(JOBS)] == ["nightly", first.job_id]


def test_forcing_what_nobody_knows_or_what_has_no_times_is_refused() -> None:
    state = AState()
    state.register(a_job("shop"))

    assert refused(state, force, "nightly") == (RefusalCode.NOT_FOUND, "job not found")
    assert refused(state, force, "shop") == (RefusalCode.INVALID, "can't force launch non-periodic job")


@pytest.mark.parametrize(
    ("how", "why"),
    [("stopped", "it is stopped; start it first"), ("disabled", "its Periodic block is not enabled")],
)
def test_forcing_a_job_that_is_stopped_or_disabled_is_refused(how: str, why: str) -> None:
    state = AState()
    job = a_periodic_job("nightly", stop=how == "stopped")
    assert job.periodic is not None
    state.register(replace(job, periodic=replace(job.periodic, enabled=how != "disabled")))

    told = refused(state, force)

    text = 'force launch for job "nightly" failed: can\'t force run non-tracked job "nightly" (default): '
    assert told == (RefusalCode.INVALID, text + why)
