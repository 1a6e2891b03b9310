"""What the API shows of a run, from stored states of steps, results and allocations."""

from typing import Any

import pytest

from tests.attempts import limited_cpu
from tests.builders import a_batch_job, a_group
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.operations.array_views import build_array_view
from wharf.cluster.operations.run_views import (
    build_run_progress,
    build_run_stub,
    build_run_view,
    find_layers,
    has_open_gate,
    list_run_attempts,
)
from wharf.cluster.scheduling.steps.decider import list_all_needs
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, ARRAY_RESULTS, JOBS
from wharf.contract.model.jobs.array_attempts import (
    ArrayAttempt,
    ArrayResults,
    AttemptReason,
    CancelCause,
    GroupAttempt,
)
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import RunStatus, RunView, StepStatus, StepView
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Flow, Gate, Need

START_NS = 1_700_000_000 * SECOND_NS
DONE = b"s"
LOST = b"f"


def a_step(name: str, *needs: Need | str, **fields: Any) -> TaskGroup:
    depends = tuple(each if isinstance(each, Need) else Need(on=each) for each in needs) or None
    return a_group(name, depends=depends, **{"array": GroupArray(size=1), **fields})


def at(seconds: float) -> int:
    return START_NS + round(seconds * SECOND_NS)


def ready(*, began: float = 0, ended: float = 0, since: float = 0) -> StepState:
    return StepState(
        phase=StepPhase.READY,
        since=at(since),
        began_at=at(began) if began else 0,
        ended_at=at(ended) if ended else 0,
    )


def skipped(step: str, outcome: StepOutcome) -> StepState:
    return StepState(
        phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.NEED, step=step, outcome=outcome), since=at(9)
    )


class ARun(AState):
    """A stored run whose steps have the given states and results."""

    def __init__(self, *steps: TaskGroup, flow: Flow | None = None, **fields: Any) -> None:
        super().__init__()
        self.put(JOBS.build_put(a_batch_job("nightly", *steps, flow=flow, submit_time=START_NS, **fields)))

    @property
    def run(self) -> Job:
        return self.job("nightly")

    def attempt(
        self,
        states: dict[str, StepState],
        results: dict[str, bytes] | None = None,
        *,
        number: int = 1,
        reason: AttemptReason = AttemptReason.REGISTERED,
        **fields: Any,
    ) -> "ARun":
        """Store an attempt with these steps."""
        groups, stored = {}, []
        for name, state in states.items():
            group = self.run.find_group(name)
            assert group is not None
            assert group.array is not None
            size = group.array.element_count
            is_ended = state.phase in (StepPhase.SKIPPED, StepPhase.CANCELED, StepPhase.FAILED)
            cause = CancelCause.STEP if is_ended else CancelCause.NONE
            groups[name] = GroupAttempt(size=size, element_count=size, step=state, cancel_cause=cause)
            if results and name in results:
                stored.append(
                    ArrayResults(
                        namespace="default",
                        job_id="nightly",
                        attempt=number,
                        group=name,
                        chunk=0,
                        results=results[name],
                    )
                )
        attempt = ArrayAttempt(
            namespace="default",
            job_id="nightly",
            attempt=number,
            job_create_index=self.run.create_index,
            reason=reason,
            groups=groups,
            create_time=at(0),
            **fields,
        )
        self.put(ARRAY_ATTEMPTS.build_put(attempt), *map(ARRAY_RESULTS.build_put, stored))
        return self

    @property
    def view(self) -> RunView:
        return build_run_view(self.replica, self.run)

    def step(self, name: str) -> StepView:
        return next(each for each in self.view.steps if each.name == name)


# -- layers and order


def test_a_step_lies_one_layer_after_the_last_step_that_it_needs() -> None:
    job = a_batch_job("nightly", a_step("d", "b", "c"), a_step("a"), a_step("b", "a"), a_step("c", "b"), a_step("e"))

    assert find_layers(list_all_needs(job)) == {"d": 3, "a": 0, "b": 1, "c": 2, "e": 0}


def test_steps_are_listed_by_layer_then_in_the_order_of_the_file() -> None:
    run = ARun(a_step("ship", "test"), a_step("lint"), a_step("build"), a_step("test", "build")).attempt({})

    assert [(each.name, each.layer) for each in run.view.steps] == [("lint", 0), ("build", 0), ("test", 1), ("ship", 2)]
    assert run.view.layer_count == 3


# -- states in words


def test_a_step_names_the_needs_that_it_waits_for() -> None:
    run = ARun(a_step("build"), a_step("lint"), a_step("test", "build", Need(on="lint", when="ended"))).attempt(
        {"build": ready(), "lint": ready(), "test": StepState()}
    )

    assert run.step("test").text == "waits for build to succeed, and for lint to run and end"
    assert run.step("test").status is StepStatus.WAITING


def test_a_step_does_not_name_a_need_that_holds() -> None:
    run = ARun(a_step("build"), a_step("lint"), a_step("test", "build", "lint")).attempt(
        {"build": ready(began=1), "lint": ready(), "test": StepState()}, {"build": DONE}
    )

    assert run.step("test").text == "waits for lint to succeed"


def test_a_step_that_waits_for_another_job_names_it() -> None:
    run = ARun(a_step("build"), depends=(Need(on="import"),)).attempt({"build": StepState()})

    assert run.step("build").text == "waits for the job import"


def test_a_skipped_step_names_the_step_and_how_it_ended() -> None:
    run = ARun(a_step("build"), a_step("test", "build"), a_step("alert", Need(on="build", when="failed"))).attempt(
        {
            "build": ready(began=1),
            "test": skipped("build", StepOutcome.FAILED),
            "alert": skipped("build", StepOutcome.SUCCEEDED),
        },
        {"build": LOST},
    )

    assert (run.step("test").status, run.step("test").text) == (StepStatus.SKIPPED, "skipped, because build failed")
    assert run.step("alert").text == "skipped, because build succeeded, and it needs build to fail"


@pytest.mark.parametrize(
    ("phase", "cause", "text"),
    [
        (
            StepPhase.SKIPPED,
            StepCause(kind=StepCauseKind.CONDITION, detail='meta.branch = "dev"'),
            'skipped, because its condition is false: meta.branch = "dev"',
        ),
        (
            StepPhase.FAILED,
            StepCause(kind=StepCauseKind.CONDITION, detail="unknown name steps.build.version"),
            "failed, because its condition cannot be evaluated: unknown name steps.build.version",
        ),
        (
            StepPhase.FAILED,
            StepCause(kind=StepCauseKind.GATE, actor="alice", detail="not on Friday"),
            "rejected by alice: not on Friday",
        ),
        (
            StepPhase.FAILED,
            StepCause(kind=StepCauseKind.GATE, detail="nobody answered in time"),
            "not approved: nobody answered in time",
        ),
        (StepPhase.CANCELED, StepCause(kind=StepCauseKind.CANCEL, actor="bob"), "canceled by bob"),
        (
            StepPhase.CANCELED,
            StepCause(kind=StepCauseKind.DEADLINE),
            "canceled, because the run took longer than its deadline",
        ),
    ],
)
def test_a_step_that_never_began_says_what_caused_it(phase: StepPhase, cause: StepCause, text: str) -> None:
    run = ARun(a_step("build", gate=Gate())).attempt({"build": StepState(phase=phase, cause=cause, since=at(3))})

    assert run.step("build").text == text
    assert run.step("build").ended_at == at(3)


def test_an_open_gate_shows_its_question_and_its_deadline() -> None:
    run = ARun(a_step("ship", gate=Gate(policy="deployers"))).attempt(
        {"ship": StepState(phase=StepPhase.GATED, gate_deadline=at(60))}
    )

    gate = run.step("ship").gate
    assert gate is not None
    assert (gate.ask, gate.policy, gate.deadline, gate.is_open) == ("may ship begin?", "deployers", at(60), True)
    assert run.view.text == "ship waits for approval"


def test_a_gate_that_is_not_open_has_no_deadline() -> None:
    run = ARun(a_step("ship", gate=Gate(ask="now?"))).attempt({"ship": StepState()})

    gate = run.step("ship").gate
    assert gate is not None
    assert (gate.ask, gate.deadline, gate.is_open) == ("now?", 0, False)


def test_an_array_is_folded_to_counts() -> None:
    run = ARun(a_step("train", array=GroupArray(size=5), may_fail=True)).attempt(
        {"train": ready(began=1)}, {"train": b"ssf.."}
    )

    step = run.step("train")
    assert (step.size, step.is_array, step.counts.succeeded, step.counts.failed, step.counts.waiting) == (
        5,
        True,
        2,
        1,
        2,
    )
    assert step.text == "3 of 5 elements have ended, 0 run"


def test_the_elements_of_a_skipped_step_count_as_skipped_not_as_canceled() -> None:
    run = ARun(a_step("build"), a_step("test", "build", array=GroupArray(size=4))).attempt(
        {"build": ready(began=1, ended=2), "test": skipped("build", StepOutcome.FAILED)}, {"build": LOST}
    )
    group = run.run.groups[1]
    array = build_array_view(run.replica, run.run, group)

    for counts in (run.step("test").counts, array.counts, array.attempts[0].counts):
        assert (counts.skipped, counts.canceled) == (4, 0)
    assert array.states == "4x"
    assert build_run_progress(run.replica, run.run).elements.skipped == 4


def test_a_failed_step_that_may_fail_is_shown_as_failed_while_its_successors_see_success() -> None:
    run = ARun(a_step("lint", may_fail=True)).attempt({"lint": ready(began=1)}, {"lint": LOST})

    step = run.step("lint")
    assert (step.status, step.outcome) == (StepStatus.FAILED, StepOutcome.SUCCEEDED)
    assert (run.view.status, run.view.text) == (RunStatus.SUCCEEDED, "succeeded with failures: lint failed")


def test_a_step_with_each_that_lost_an_element_says_how_many_were_skipped() -> None:
    array = GroupArray(size=3)
    run = ARun(a_step("a", array=array), a_step("b", Need(on="a", each=True), array=array)).attempt(
        {"a": ready(began=1), "b": ready(began=2)}, {"a": b"ssf", "b": b"ssx"}
    )

    step = run.step("b")
    assert step.status is StepStatus.SKIPPED
    assert step.text == "2 of 3 elements succeeded, 1 skipped because of those that they need"


# -- the run as a whole


def test_a_run_that_failed_names_the_step_that_failed() -> None:
    run = ARun(a_step("build"), a_step("test", "build")).attempt(
        {"build": ready(began=1, ended=4), "test": skipped("build", StepOutcome.FAILED)}, {"build": LOST}
    )

    assert (run.view.status, run.view.text) == (RunStatus.FAILED, "failed: build failed")
    assert run.view.ended_at == at(9)


def test_a_run_says_what_it_does_while_no_step_has_begun() -> None:
    run = ARun(a_step("build")).attempt({"build": ready()})

    assert (run.view.status, run.view.text) == (RunStatus.WAITING, "build may begin: waits for capacity")


def test_a_run_with_a_failed_step_says_what_it_waits_for_while_nothing_runs() -> None:
    run = ARun(a_step("build"), a_step("scan"), a_step("ship", "scan"))
    run.attempt({"build": ready(began=1, ended=2), "scan": ready(), "ship": StepState()}, {"build": LOST})

    assert build_run_view(run.replica, run.run).text == "build failed; scan may begin: waits for capacity"


def test_a_canceled_step_without_elements_has_not_succeeded() -> None:
    run = ARun(a_step("build"))  # No attempt has it: its job was stopped in the request that added it.

    (step,) = build_run_view(run.replica, run.run).steps

    assert (step.status, step.text) == (StepStatus.CANCELED, "was stopped before it began")


def test_a_run_that_is_canceled_while_a_final_step_runs_is_being_canceled() -> None:
    canceled = StepState(phase=StepPhase.CANCELED, cause=StepCause(kind=StepCauseKind.CANCEL, actor="bob"), since=at(2))
    run = ARun(a_step("build"), a_step("tidy", "build", final=True)).attempt(
        {"build": canceled, "tidy": ready(began=3, since=2)}, cancel_cause=canceled.cause
    )

    assert run.view.status is RunStatus.CANCELING
    assert run.view.text == "is being canceled"


def test_a_run_begins_with_its_first_step_and_a_retry_does_not_change_that() -> None:
    waiting = ARun(a_step("build")).attempt({"build": StepState()})
    assert (waiting.view.created_at, waiting.view.began_at) == (at(0), 0)

    run = ARun(a_step("build"), a_step("test", "build")).attempt(
        {"build": ready(began=100, ended=104), "test": ready(began=105, ended=109)}, {"build": DONE, "test": LOST}
    )
    assert (run.view.created_at, run.view.began_at, run.view.ended_at) == (at(0), at(100), at(109))
    run.attempt({"test": ready(began=200, ended=203)}, {"test": DONE}, number=2, reason=AttemptReason.RETRY)
    assert (run.view.began_at, run.view.ended_at) == (at(100), at(203))
    assert build_run_stub(run.replica, run.run).began_at == at(100)


def test_a_canceled_run_names_who_canceled_it() -> None:
    canceled = StepState(phase=StepPhase.CANCELED, cause=StepCause(kind=StepCauseKind.CANCEL, actor="bob"), since=at(2))
    run = ARun(a_step("build"), a_step("test", "build")).attempt({"build": canceled, "test": canceled})

    assert (run.view.status, run.view.text) == (RunStatus.CANCELED, "canceled by bob")


def test_the_deadline_of_a_run_is_a_time() -> None:
    run = ARun(a_step("build")).attempt({"build": ready()}, deadline=at(30))

    assert run.view.deadline == at(30)


def test_a_list_shows_how_many_steps_have_each_state() -> None:
    run = ARun(a_step("a"), a_step("b"), a_step("c", "b"), a_step("d", gate=Gate())).attempt(
        {"a": ready(began=1), "b": ready(), "c": StepState(), "d": StepState(phase=StepPhase.GATED)}, {"a": DONE}
    )

    stub = build_run_stub(run.replica, run.run)
    counts = stub.counts
    assert (counts.succeeded, counts.running, counts.waiting, counts.gated, stub.step_count) == (1, 1, 1, 1, 4)


# -- the critical path


def test_the_critical_path_of_a_run_leads_over_the_needs_that_ended_last() -> None:
    run = ARun(a_step("build"), a_step("lint"), a_step("test", "build", "lint"), a_step("docs", "lint")).attempt(
        {
            "build": ready(began=1, ended=10),
            "lint": ready(began=1, ended=3),
            "test": ready(began=11, ended=20, since=10),
            "docs": ready(began=4, ended=6, since=3),
        },
        {"build": DONE, "lint": DONE, "test": DONE, "docs": DONE},
    )

    assert run.view.critical_path == ("build", "test")
    assert [each.name for each in run.view.steps if each.is_critical] == ["build", "test"]


def test_the_critical_path_of_a_running_run_ends_with_the_step_that_has_been_busy_for_longest() -> None:
    run = ARun(a_step("a"), a_step("b"), a_step("c", "a"), a_step("d", "c")).attempt(
        {"a": ready(began=1, ended=2), "b": ready(began=1, ended=9), "c": ready(began=3, since=2), "d": StepState()},
        {"a": DONE, "b": DONE},
    )

    assert run.view.critical_path == ("a", "c")


def test_a_run_that_has_not_begun_has_no_critical_path() -> None:
    assert ARun(a_step("a", "b"), a_step("b")).attempt({"a": StepState(), "b": StepState()}).view.critical_path == ()


def test_the_time_of_a_gate_is_part_of_the_critical_path() -> None:
    approved = StepState(
        phase=StepPhase.READY,
        cause=StepCause(kind=StepCauseKind.GATE, actor="ada"),
        since=at(40),
        began_at=at(41),
        ended_at=at(45),
    )
    run = ARun(a_step("build"), a_step("ship", "build", gate=Gate()), a_step("tell", "ship")).attempt(
        {"build": ready(began=1, ended=10), "ship": approved, "tell": ready(began=46, ended=47, since=45)},
        {"build": DONE, "ship": DONE, "tell": DONE},
    )

    times = [(name, time_ns // SECOND_NS) for name, time_ns in run.view.list_path_times(at(60))]
    assert times == [("build", 9), ("ship", 35), ("tell", 1)]


def test_a_gate_that_waits_for_an_answer_takes_time_up_to_now() -> None:
    run = ARun(a_step("ship", gate=Gate())).attempt({"ship": StepState(phase=StepPhase.GATED, since=at(0))})

    assert run.view.list_path_times(at(60)) == [("ship", 60 * SECOND_NS)]


def test_a_rejected_gate_lies_on_the_critical_path() -> None:
    rejected = StepState(phase=StepPhase.FAILED, cause=StepCause(kind=StepCauseKind.GATE, actor="ada"), since=at(30))
    run = ARun(a_step("build"), a_step("ship", "build", gate=Gate())).attempt(
        {"build": ready(began=1, ended=10), "ship": rejected}, {"build": DONE}
    )

    assert run.view.list_path_times(at(60)) == [("build", 9 * SECOND_NS), ("ship", 20 * SECOND_NS)]


# -- attempts


def test_a_retry_shows_the_steps_that_it_keeps_with_their_earlier_attempt() -> None:
    run = ARun(a_step("build"), a_step("test", "build"))
    run.attempt({"build": ready(began=1), "test": ready(began=2)}, {"build": DONE, "test": LOST})

    run.attempt({"test": ready(began=5)}, {"test": DONE}, number=2, reason=AttemptReason.RERUN)

    assert [(each.name, each.attempt, each.attempt_count) for each in run.view.steps] == [
        ("build", 1, 1),
        ("test", 2, 2),
    ]
    assert [(each.attempt, each.steps) for each in run.view.attempts] == [(1, ("build", "test")), (2, ("test",))]
    assert run.view.status is RunStatus.SUCCEEDED


def test_a_run_of_500_steps_is_shown_within_50_milliseconds() -> None:
    names = [f"s{number}" for number in range(500)]
    steps = [a_step(name, *names[max(0, at - 2) : at]) for at, name in enumerate(names)]
    run = ARun(*steps).attempt(
        {name: ready(began=1, ended=2) for name in names[:250]} | dict.fromkeys(names[250:], StepState()),
        dict.fromkeys(names[:250], DONE),
    )
    job = run.run

    with limited_cpu(0.05, "the view"):  # 15 ms on a busy machine.
        build_run_view(run.replica, job)


# -- open gates


def test_a_gate_is_open_if_the_newest_attempt_with_its_step_says_so() -> None:
    gated = StepState(phase=StepPhase.GATED, since=at(1))
    ask = a_step("ask", gate=Gate())
    run = ARun(ask, a_step("build")).attempt({"ask": gated, "build": ready()})

    assert has_open_gate(list_run_attempts(run.replica, run.run))
    run.attempt({"build": ready()}, number=2, reason=AttemptReason.RETRY)
    assert has_open_gate(list_run_attempts(run.replica, run.run))
    run.attempt({"ask": ready()}, number=3, reason=AttemptReason.RETRY)
    assert not has_open_gate(list_run_attempts(run.replica, run.run))
