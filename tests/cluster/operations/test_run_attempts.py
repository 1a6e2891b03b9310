"""Attempts in the view of a run: how each step ended in each of them, and the times of the run."""

import msgspec

from tests.builders import a_task
from tests.cluster.operations.test_step_failures import fail
from tests.cluster.scheduling.test_runs import Run, a_step
from tests.kit.state import SETTINGS
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.run_views import build_run_stub, build_run_view
from wharf.cluster.state.tables import ATTEMPTS_OF_JOB
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.run_views import StepStatus
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome
from wharf.contract.model.jobs.steps import Gate


def list_results(run: Run, attempt: int) -> dict[str, tuple[StepStatus, str]]:
    view = build_run_view(run.replica, run.job())
    found = next(each for each in view.attempts if each.attempt == attempt)
    return {each.name: (each.status, each.text) for each in found.results}


def test_an_earlier_attempt_has_the_rejection_of_its_gate() -> None:
    run = Run(a_step("build"), a_step("ship", "build", gate=Gate()))
    run.end("build")
    run.answer("ship", approve=False, text="not on Friday")

    run.retry()
    run.answer("ship", approve=True, text="checked")
    run.end("ship")

    first, second = build_run_view(run.replica, run.job()).attempts
    ship = first.results[1]
    assert (ship.status, ship.outcome, ship.text) == (
        StepStatus.FAILED,
        StepOutcome.FAILED,
        "rejected by ada: not on Friday",
    )
    assert ship.cause is not None
    assert (ship.cause.kind, ship.cause.actor, ship.cause.detail) == (StepCauseKind.GATE, "ada", "not on Friday")
    assert [(each.name, each.status) for each in second.results] == [("ship", StepStatus.SUCCEEDED)]


def test_each_attempt_has_the_cause_of_its_own_failure() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    fail(run, "build[0]", 3)
    run.retry()

    fail(run, "build[0]", 4)

    skipped = (StepStatus.SKIPPED, "skipped, because build failed")
    assert list_results(run, 1) == {"build": (StepStatus.FAILED, "failed: server: Exit Code: 3"), "test": skipped}
    assert list_results(run, 2) == {"build": (StepStatus.FAILED, "failed: server: Exit Code: 4"), "test": skipped}


def test_an_attempt_of_some_elements_counts_all_elements_as_they_were_then() -> None:
    run = Run(a_step("train", array=GroupArray(size=3)), a_step("test", "train"))
    run.end("train[0]", "train[1]")
    fail(run, "train[2]", 3)
    run.retry()
    run.end("train[2]")

    assert list_results(run, 1)["train"] == (StepStatus.FAILED, "1 of 3 elements failed: server: Exit Code: 3")
    assert list_results(run, 2)["train"] == (StepStatus.SUCCEEDED, "succeeded")


def test_a_canceled_attempt_names_who_canceled_it() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.cancel(detail="wrong branch")
    run.kill("build")
    run.retry()

    assert list_results(run, 1)["build"] == (StepStatus.CANCELED, "canceled by ada: wrong branch")


# -- times


def test_a_stop_of_a_run_does_not_change_when_it_began() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    begun = build_run_view(run.replica, run.job()).created_at
    run.end("build")
    run.end("test")
    ended = build_run_view(run.replica, run.job()).ended_at
    run.pass_time(60)

    run.do(deregister_job(run.replica, "default", "shop", run.moment, settings=SETTINGS))
    run.process_pending()

    view, stub = build_run_view(run.replica, run.job()), build_run_stub(run.replica, run.job())
    assert (view.created_at, view.ended_at) == (stub.created_at, stub.ended_at) == (begun, ended)
    assert begun


def test_a_retry_of_a_stopped_run_does_not_change_when_it_began() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    begun = build_run_view(run.replica, run.job()).created_at
    run.pass_time(60)
    run.cancel(at_once=True)
    run.kill("build")
    run.pass_time(60)

    run.retry()

    assert build_run_view(run.replica, run.job()).created_at == begun


def test_a_new_version_of_a_run_begins_at_its_own_time() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    run.end("build")
    run.end("test")
    run.pass_time(60)

    run.submit(a_step("build", tasks=(a_task(env={"A": "1"}),)), a_step("test", "build"))

    assert build_run_view(run.replica, run.job()).created_at == run.now_ns


def test_a_final_step_that_a_second_cancellation_stops_names_who_canceled_the_run() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True))
    run.cancel(detail="wrong input")
    run.end("build")

    run.cancel(actor="bob", detail="no time")
    run.kill("tidy")

    view = build_run_view(run.replica, run.job())
    steps = {each.name: each.text for each in view.steps}
    assert steps["tidy"] == "stopped by bob: no time, after ada canceled the run: wrong input"
    assert view.text.endswith("; then stopped at once by bob: no time")


def test_a_run_that_is_stopped_at_once_names_who_stopped_it() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True))

    run.cancel(at_once=True, detail="wrong branch")
    stopping = build_run_view(run.replica, run.job())
    run.kill("build")
    ended = build_run_view(run.replica, run.job())

    assert (stopping.status, stopping.text) == ("canceling", "is being stopped by ada; build runs")
    assert (ended.status, ended.text) == ("canceled", "canceled: stopped at once by ada: wrong branch")
    assert {each.name: each.text for each in ended.steps} == {
        "build": "stopped by ada: wrong branch",
        "tidy": "stopped by ada: wrong branch",
    }


def test_the_person_and_the_reason_of_a_stop_are_stored_once_with_the_attempt() -> None:
    run = Run(a_step("build"), a_step("tidy", final=True))
    run.cancel(detail="wrong input")

    run.cancel(actor="bob", detail="no time")

    (attempt,) = run.replica.list_by_index(ATTEMPTS_OF_JOB, "default", "shop")
    assert attempt.stop_cause == StepCause(kind=StepCauseKind.STOP, actor="bob", detail="no time")
    tidy = attempt.groups["tidy"].step
    assert tidy is not None
    assert tidy.cause == StepCause(kind=StepCauseKind.STOP)


def test_an_attempt_of_an_older_version_has_nobody_who_stopped_it() -> None:
    stored = msgspec.to_builtins(ArrayAttempt(namespace="default", job_id="shop", attempt=1))
    del stored["StopCause"]

    assert msgspec.convert(stored, ArrayAttempt).stop_cause is None


def test_a_step_that_a_stop_of_the_job_ended_is_not_said_to_be_stopped_by_a_later_cancellation() -> None:
    run = Run(a_step("build", may_fail=True), a_step("test"))
    run.do(deregister_job(run.replica, "default", "shop", run.moment, settings=SETTINGS))
    run.process_pending()
    run.kill("build")
    run.kill("test")
    run.pass_time(60)
    run.retry(steps=("build",))
    run.pass_time(60)

    run.cancel(at_once=True, actor="bob")
    run.kill("build")

    texts = {each.name: each.text for each in build_run_view(run.replica, run.job()).steps}
    assert texts == {"build": "stopped by bob", "test": "stopped with its job"}
