"""What the view of a run says about why its steps failed."""

from msgspec.structs import replace

from tests.cluster.scheduling.test_runs import Run, a_step
from tests.cluster.scheduling.test_step_retries import RetryRun, a_state, an_end
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import OVERDUE_TEXT, ClientStatus
from wharf.contract.model.allocations.failure_reasons import describe_failure
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.steps import StepRetry


def fail(run: Run, name: str, exit_code: int, description: str = "Failed tasks") -> None:
    """Let the program of an element end with an exit code, for good."""
    failed = replace(
        run.alive[name],
        client_status=ClientStatus.FAILED,
        client_description=description,
        task_states=a_state(an_end(exit_code), failed=True),
        modify_time=run.now_ns,
    )
    run.put_led(ALLOCATIONS.build_put(failed))
    run.process_pending()


def text(run: Run, step: str) -> str:
    return next(each.text for each in build_run_view(run.replica, run.job()).steps if each.name == step)


def test_a_failed_step_says_why_it_failed() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    fail(run, "build[0]", 3)

    assert text(run, "build") == "failed: server: Exit Code: 3"


def test_a_failed_step_says_why_it_is_not_retried() -> None:
    run = RetryRun(StepRetry(attempts=3, on_exit=(75,)))

    run.end(an_end(3))

    steps = build_run_view(run.replica, run.job()).steps
    assert steps[0].text == "failed: server: Exit Code: 3; not retried: exit code 3 is not in OnExit (75)"


def test_a_step_that_may_fail_says_why_it_failed() -> None:
    run = Run(a_step("lint", may_fail=True), a_step("test", "lint"))

    fail(run, "lint[0]", 2)

    assert text(run, "lint") == "failed: server: Exit Code: 2; the run goes on, because it has MayFail"


def test_elements_that_failed_for_different_causes_are_counted() -> None:
    run = Run(a_step("train", array=GroupArray(size=3)), a_step("test", "train"))

    for index, exit_code in enumerate((3, 3, 4)):
        run.pass_time(1)
        fail(run, f"train[{index}]", exit_code)

    assert text(run, "train") == "3 of 3 elements failed: server: Exit Code: 4; and 1 other cause"


def test_a_cause_of_an_earlier_attempt_is_not_shown() -> None:
    run = Run(a_step("build"), a_step("test", "build"))
    fail(run, "build[0]", 3)
    run.retry()
    run.pass_time(1)

    fail(run, "build[0]", 4)

    assert text(run, "build") == "failed: server: Exit Code: 4"


def test_a_step_that_ran_too_long_says_so_instead_of_the_exit_code_of_the_signal() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    fail(run, "build[0]", 130, OVERDUE_TEXT)

    assert text(run, "build") == "failed: it ran longer than its MaxRunDuration"
    assert describe_failure(run.list_allocations()[0]) == "it ran longer than its MaxRunDuration"
