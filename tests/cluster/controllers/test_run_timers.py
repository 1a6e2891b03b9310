"""The timers of runs: which attempts have one, and when it expires."""

from wharf.cluster.controllers.runs import RunTimers, find_deadline_ns
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, GroupAttempt
from wharf.contract.model.jobs.step_states import StepPhase, StepState
from wharf.contract.model.times import SECOND


def an_attempt(number: int = 1, *, deadline: int = 0, gate: int = 0) -> ArrayAttempt:
    step = StepState(phase=StepPhase.GATED if gate else StepPhase.READY, gate_deadline=gate)
    return ArrayAttempt(
        namespace="default",
        job_id="shop",
        attempt=number,
        groups={"ship": GroupAttempt(size=1, element_count=1, step=step)},
        deadline=deadline,
    )


def test_the_earliest_gate_or_deadline_expires_first() -> None:
    assert find_deadline_ns(an_attempt(deadline=5, gate=3)) == 3
    assert find_deadline_ns(an_attempt(deadline=5)) == 5
    assert find_deadline_ns(an_attempt()) == 0


def test_a_gate_that_was_answered_has_no_timer() -> None:
    answered = StepState(phase=StepPhase.READY, gate_deadline=3)
    attempt = ArrayAttempt(
        namespace="default",
        job_id="shop",
        attempt=1,
        groups={"a": GroupAttempt(size=1, element_count=1, step=answered)},
    )

    assert find_deadline_ns(attempt) == 0


def test_each_job_is_due_once() -> None:
    timers = RunTimers()
    timers.update("a", an_attempt(1, deadline=3 * SECOND))
    timers.update("b", an_attempt(2, deadline=4 * SECOND))

    assert timers.next_deadline_ns() == 3 * SECOND
    assert timers.take_due(2 * SECOND) == []
    assert timers.take_due(5 * SECOND) == [("default", "shop")]
    assert timers.take_due(9 * SECOND) == []
    assert timers.next_deadline_ns() is None


def test_a_deleted_attempt_has_no_timer() -> None:
    timers = RunTimers()
    timers.update("a", an_attempt(deadline=3 * SECOND))

    timers.update("a", None)

    assert (len(timers), timers.take_due(9 * SECOND)) == (0, [])
