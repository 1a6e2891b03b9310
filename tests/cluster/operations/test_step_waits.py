"""What the view of a run says about steps whose elements may begin and do not run."""

from msgspec.structs import replace

from tests.cluster.scheduling.test_runs import Run, a_step
from tests.cluster.scheduling.test_step_locks import Runs
from tests.cluster.scheduling.test_step_retries import RetryRun, an_end
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.run_views import RunView
from wharf.contract.model.jobs.steps import StepRetry
from wharf.contract.model.times import SECOND


def restart(run: Run, step: str) -> None:
    """Let the node report that the task of a step failed with exit code 3 and starts again after 15 seconds."""
    restarting = TaskEvent(
        type=TaskEventType.RESTARTING, time=run.now_ns, details={"start_delay": str(15 * SECOND), "restart_reason": ""}
    )
    state = TaskState(state=TaskStatus.PENDING, restarts=1, events=(an_end(3), restarting))
    allocation = run.alive[f"{step}[0]"]
    run.put(
        ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.PENDING, task_states={"server": state}))
    )


def view(run: Run) -> RunView:
    return build_run_view(run.replica, run.job())


def test_a_step_that_waits_for_a_lock_says_what_its_explanation_says() -> None:
    runs = Runs()
    runs.submit("first")
    runs.submit("second")

    run = build_run_view(runs.replica, runs.job("second"))

    explained = explain_job(runs.replica, "default", "second").steps[0].text
    assert run.steps[0].text == explained
    assert run.steps[0].text.startswith("waits for the lock production, which the run first holds since ")
    assert run.text == f"deploy {explained}"


def test_a_step_that_waits_for_its_retry_says_when_it_runs_again_and_why_it_failed() -> None:
    run = RetryRun(StepRetry(attempts=2))

    run.report_end(an_end(3), at_ns=run.now_ns)

    text = build_run_view(run.replica, run.job()).steps[0].text
    assert text.startswith("waits for its retry at ")
    assert text.endswith(": server: Exit Code: 3")


def test_a_step_whose_task_starts_again_on_its_node_says_when_and_why() -> None:
    run = Run(a_step("build"), a_step("test", "build"))

    restart(run, "build")

    text = view(run).steps[0].text
    assert text.startswith("failed, and starts again at ")
    assert text.endswith(": server: Exit Code: 3")
    assert view(run).text == f"build {text}"


def test_a_restart_of_one_element_is_named_beside_the_counts_of_its_array() -> None:
    run = Run(a_step("train", array=GroupArray(size=3)), a_step("test", "train"))

    restart(run, "train")

    assert view(run).steps[0].text.startswith("0 of 3 elements have ended, 3 run; one failed, and starts again at ")


def test_a_step_that_starts_for_the_first_time_says_that_it_starts() -> None:
    assert view(Run(a_step("build"), a_step("test", "build"))).steps[0].text == "its task starts"
