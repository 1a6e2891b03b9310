"""Elements that users stop before their step begins: the step is canceled, and its job is dead only when the run has ended."""

import pytest

from tests.cluster.operations.test_run_queue import AFlow
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.cluster.scheduling.test_job_needs import IMPORT, Cluster, needing
from tests.cluster.scheduling.test_runs import Run, a_step
from wharf.cluster.operations.derived_state import build_derived_write
from wharf.cluster.operations.jobs.run_retry import RunRetry, plan_retry
from wharf.cluster.operations.jobs.runs import GateAnswer, answer_gate
from wharf.cluster.operations.jobs.stop_elements import StopElementsRequest, stop_elements
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, ARRAY_RESULTS
from wharf.contract.model.jobs.array_attempts import CANCELED, ArrayResults
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.jobs.steps import Gate, Need
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.refusal import Refusal


def stop(cluster: SimulatedCluster, job_id: str, group: str, indexes: str = "0") -> None:
    request = StopElementsRequest(namespace="default", job_id=job_id, group=group, indexes=indexes)
    cluster.lead(stop_elements(cluster.replica, request, cluster.moment))
    cluster.process_pending()


def require_canceled(cluster: SimulatedCluster, job_id: str) -> None:
    """Require that the job, the run and its step have ended, and that the step could be run again."""
    job = cluster.job(job_id)
    view = build_run_view(cluster.replica, job)
    assert job.status is JobStatus.DEAD
    assert (view.status.value, view.text) == ("canceled", "canceled: all of its elements were stopped")
    assert view.ended_at
    retry = RunRetry(namespace="default", job_id=job_id)
    assert [each.name for each in plan_retry(cluster.replica, retry).steps] == [job.groups[0].name]


def test_a_queued_run_whose_only_element_is_stopped_is_canceled_at_once() -> None:
    flow = AFlow("queue")
    first, second, third = flow.launch(), flow.launch(), flow.launch()

    stop(flow, second, "build")

    require_canceled(flow, second)
    flow.end(first)
    assert flow.running() == [third]


def test_a_gate_closes_when_the_only_element_of_its_step_is_stopped() -> None:
    run = Run(a_step("ship", gate=Gate()))

    stop(run, "shop", "ship")

    require_canceled(run, "shop")
    answer = GateAnswer(namespace="default", job_id="shop", step="ship", approve=True)
    with pytest.raises(Refusal, match="not open any more"):
        answer_gate(run.replica, answer, run.moment)


def test_a_run_that_waits_for_a_job_is_canceled_when_its_only_element_is_stopped() -> None:
    cluster = Cluster(IMPORT, needing("import"))

    stop(cluster, "report", "work")

    require_canceled(cluster, "report")


def test_a_waiting_step_goes_on_with_the_elements_that_were_not_stopped() -> None:
    run = Run(a_step("a"), a_step("b", "a", array=GroupArray(size=2)))

    stop(run, "shop", "b")

    assert run.job().status is not JobStatus.DEAD
    run.end("a")
    assert list(run.alive) == ["b[1]"]


def test_a_run_ends_when_the_only_element_of_its_last_step_is_stopped() -> None:
    run = Run(a_step("a"), a_step("ship", "a", gate=Gate()))
    run.end("a")

    stop(run, "shop", "ship")

    assert run.job().status is JobStatus.DEAD
    assert run.outcome == "canceled"


def test_a_step_that_needs_all_elements_is_skipped_when_a_stopped_one_has_ended_although_others_run() -> None:
    run = Run(a_step("train", array=GroupArray(size=2)), a_step("ship", Need(on="train", at_least=2)))

    stop(run, "shop", "train", "0")
    assert run.phases["ship"] == "waiting"
    run.kill("train")

    assert list(run.alive) == ["train[1]"]
    assert run.phases["ship"] == "skipped"


def test_a_job_is_not_dead_while_a_step_has_no_outcome() -> None:
    run = Run(a_step("ship", gate=Gate()))
    (attempt,) = run.replica.iter_all(ARRAY_ATTEMPTS)
    canceled = ArrayResults(
        namespace="default", job_id="shop", attempt=attempt.attempt, group="ship", chunk=0, results=CANCELED
    )
    run.put(ARRAY_RESULTS.build_put(canceled))  # Without the states of steps that follow from it.

    derived = build_derived_write(run.replica, [("default", "shop")], Cause(CauseKind.TIMER, "test"))

    assert derived is None
    assert run.job().status is JobStatus.PENDING
