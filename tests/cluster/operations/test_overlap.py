"""Runs of a flow that would overlap: which launches are refused, and which run a run waits for."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_parameterized_job, a_periodic_job
from tests.kit.state import SECOND_NS, SETTINGS, AState, Refused
from wharf.cluster.controllers.periodic import DueLaunch, launch_if_due
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs import overlap
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.operations.jobs.overlap import NEWEST, UnfinishedRun, find_run_ahead, list_unfinished, waits_in_queue
from wharf.cluster.operations.jobs.periodic import force_periodic_launch
from wharf.cluster.operations.jobs.registration import JobRegistration, JobWriteResult, register_job
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, EVALUATIONS, JOBS
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import ChildrenSummary, JobStatus
from wharf.contract.model.jobs.steps import Flow
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal


class AFlow(AState):
    """A state with the flow `nightly`, which is launched by its schedule."""

    def __init__(self, setting: str, **fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.register(a_periodic_job("nightly", a_group("build"), flow=Flow(overlap=setting), **fields))

    def launch_by_schedule(self) -> str:
        """Launch the run that is due now; return its ID, or an empty text if the launch is skipped."""
        self.now_ns += SECOND_NS
        due = DueLaunch(("default", "nightly"), self.now_ns // SECOND_NS)
        result = self.lead(launch_if_due(self.replica, due, self.moment, SETTINGS))
        return result.job_id if result is not None else ""

    def force(self) -> str:
        self.now_ns += SECOND_NS
        return self.lead(force_periodic_launch(self.replica, "default", "nightly", self.moment, SETTINGS)).job_id

    def end(self, job_id: str) -> None:
        ended = [replace(each, status=EvaluationStatus.COMPLETE) for each in self.open_evaluations(job_id)]
        stopped = replace(self.job(job_id), stop=True)
        self.put_led(JOBS.build_put(stopped), *(EVALUATIONS.build_put(each) for each in ended))

    def ahead_of(self, job_id: str) -> str:
        job = self.job(job_id)
        if not waits_in_queue(job, read_snapshot_run(self.replica, job)):
            return ""
        return find_run_ahead(list_unfinished(self.replica, "default", "nightly"), job)


# -- skip


def test_a_scheduled_launch_is_skipped_while_a_run_has_not_ended() -> None:
    flow = AFlow("skip")
    first = flow.launch_by_schedule()

    assert flow.launch_by_schedule() == ""
    flow.end(first)
    assert flow.launch_by_schedule() != ""


def test_a_forced_launch_is_refused_while_a_run_has_not_ended() -> None:
    flow = AFlow("skip")
    first = flow.launch_by_schedule()

    with pytest.raises(Refusal, match=f'flow "nightly" cannot launch another run: run "{first}" has not ended'):
        flow.force()


def test_a_dispatch_is_refused_while_a_run_has_not_ended() -> None:
    state = AState()
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    state.register(a_parameterized_job("release", a_group("build"), flow=Flow(overlap="skip")))
    request = DispatchRequest(namespace="default", job_id="release", idempotency_token="one")
    child = state.lead(dispatch_job(state.replica, request, state.moment, SETTINGS)).job_id

    with pytest.raises(Refusal, match="has Overlap skip"):
        dispatch_job(state.replica, replace(request, idempotency_token="two"), state.moment, SETTINGS)
    repeated = state.lead(dispatch_job(state.replica, request, state.moment, SETTINGS))
    assert repeated.job_id == child  # The same request, so nothing is launched.


# -- queue


def test_queued_runs_wait_for_the_run_before_them() -> None:
    flow = AFlow("queue")
    first, second, third = flow.launch_by_schedule(), flow.force(), flow.launch_by_schedule()

    assert [flow.ahead_of(each) for each in (first, second, third)] == ["", first, second]


def test_a_run_whose_predecessor_was_canceled_waits_for_the_one_before_that() -> None:
    flow = AFlow("queue")
    first, second, third = flow.launch_by_schedule(), flow.launch_by_schedule(), flow.launch_by_schedule()

    flow.end(second)

    assert flow.ahead_of(third) == first


def test_a_run_that_is_being_created_waits_for_all_that_exist() -> None:
    flow = AFlow("queue")
    first = flow.launch_by_schedule()
    new = replace(flow.job(first), id="nightly/periodic-1", create_index=WRITE_INDEX)

    unfinished = list_unfinished(flow.replica, "default", "nightly")

    assert find_run_ahead(unfinished, new) == first
    assert find_run_ahead([*unfinished, UnfinishedRun(NEWEST, new.id)], new) == first


def test_runs_of_a_flow_without_overlap_do_not_wait() -> None:
    flow = AFlow("")
    flow.launch_by_schedule()

    assert flow.ahead_of(flow.launch_by_schedule()) == ""


def test_a_queue_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MAX_UNFINISHED_RUNS", 2)
    flow = AFlow("queue")
    flow.launch_by_schedule()
    flow.launch_by_schedule()

    assert flow.launch_by_schedule() == ""
    with pytest.raises(Refusal, match="2 runs of the flow have not ended, which is the limit"):
        flow.force()


def test_overlap_replaces_prohibit_overlap() -> None:
    job = a_periodic_job("nightly", a_group("build"), flow=Flow(overlap="queue"))
    assert job.periodic is not None
    flow = AFlow("queue")
    # A submission with both settings is refused, but a stored job may have them.
    stored = flow.job("nightly")
    flow.put(JOBS.build_put(replace(stored, periodic=replace(job.periodic, prohibit_overlap=True))))
    flow.launch_by_schedule()

    assert flow.launch_by_schedule() != ""


# -- runs that begin again after their end


def register_again(flow: AFlow, run_id: str) -> Decision[JobWriteResult]:
    """Return the decision of another process that registers a changed run."""
    job = replace(flow.job(run_id), meta={"again": "yes"}, stop=False)
    return register_job(flow.replica, JobRegistration(job=job), flow.moment, SETTINGS)


def test_a_launch_is_skipped_as_soon_as_an_ended_run_was_registered_again() -> None:
    flow = AFlow("skip")
    first = flow.launch_by_schedule()
    flow.end(first)
    flow.do(register_again(flow, first))

    assert flow.launch_by_schedule() == ""
    assert flow.summary("nightly").children == ChildrenSummary(pending=1)


def test_a_launch_conflicts_with_a_run_that_is_registered_again_at_the_same_time() -> None:
    flow = AFlow("queue")
    first = flow.launch_by_schedule()
    flow.end(first)
    flow.now_ns += SECOND_NS
    launch = force_periodic_launch(flow.replica, "default", "nightly", flow.moment, SETTINGS)
    flow.do(register_again(flow, first))

    with pytest.raises(Refused):
        flow.lead(launch)


def test_a_run_that_is_registered_again_conflicts_with_a_launch_at_the_same_time() -> None:
    flow = AFlow("queue")
    first = flow.launch_by_schedule()
    flow.end(first)
    registration = register_again(flow, first)
    flow.force()

    with pytest.raises(Refused):
        flow.do(registration)


def test_the_leader_counts_a_run_once_that_it_registers_again() -> None:
    flow = AFlow("queue")
    first = flow.launch_by_schedule()
    flow.end(first)

    flow.lead(register_again(flow, first))

    assert flow.job(first).status is JobStatus.PENDING
    assert flow.summary("nightly").children == ChildrenSummary(pending=1)
