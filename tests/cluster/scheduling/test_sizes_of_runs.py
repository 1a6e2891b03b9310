"""Writes about large runs: they fit into one write of etcd, whatever texts their programs and their users leave."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task
from tests.cluster.scheduling.test_runs import Run, a_step
from tests.cluster.scheduling.test_step_outputs import Flow
from tests.cluster.scheduling.test_step_outputs import a_step as a_step_with_outputs
from tests.kit.state import SECOND_NS, SETTINGS
from wharf.cluster.engines.memory.log import ETCD_WRITE_LIMITS
from wharf.cluster.engines.port import check_write_limits
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.jobs.desired_transitions import skip_shutdown_delays
from wharf.cluster.operations.jobs.purge import continue_purge, purge_job
from wharf.cluster.operations.jobs.registration import deregister_job, revert_job
from wharf.cluster.operations.jobs.rerun import RerunRequest, rerun_elements
from wharf.cluster.operations.jobs.run_retry import RunRetry, retry_run
from wharf.cluster.operations.jobs.runs import GateAnswer, RunCancellation, answer_gate, cancel_run
from wharf.cluster.operations.jobs.versions import list_versions
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.operations.run_changes import MAX_ANSWER_BYTES, estimate_group_bytes
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.scheduling.steps.conditions import MAX_DETAIL_BYTES
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, JOB_PURGES, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.jobs.step_states import limit_detail_bytes
from wharf.contract.model.jobs.steps import Gate
from wharf.contract.model.log import PutRecord, Write
from wharf.contract.model.refusal import Refusal

NAMES = tuple("abcde")
CONDITION = " or ".join(f'steps.r.{name}!=""' for name in NAMES)
STEP_COUNT = 455
"""With more steps the job itself does not fit into the limits of a job."""
GATE_COUNT = 200
LONG_TEXT = "\N{GRINNING FACE}" * 200
REASON = "x" * 1_000


def require_fitting(flow: Flow, write: Any) -> None:
    encoded = flow.replica.encode_write(write, write_id="x", lease=0)
    assert check_write_limits(encoded, ETCD_WRITE_LIMITS) is None


def report(flow: Flow, *reports: AllocationReport) -> None:
    (node_id,) = {flow.allocation(each.id).node_id for each in reports}
    decision = apply_reports(flow.replica, node_id, reports, flow.moment, is_complete=False, max_evaluations=10)
    flow.lead(decision)


def test_a_large_run_with_long_values_of_conditions_can_be_retried_and_canceled() -> None:
    steps = [a_step(f"s{number}", "r", condition=CONDITION) for number in range(STEP_COUNT)]
    flow = Flow(a_step_with_outputs("r", text=NAMES), a_step("g", "r", gate=Gate()), *steps)
    outputs = ReportedOutputs(texts=dict.fromkeys(NAMES, LONG_TEXT))
    report(flow, AllocationReport(id=flow.find("r").id, client_status=ClientStatus.COMPLETE, outputs=outputs))
    flow.process_pending()
    active = [each for each in flow.list_allocations() if not each.is_client_terminal]
    assert len(active) > 300  # As many as the node has room for.
    for start in range(0, len(active), 50):
        failed = active[start : start + 50]
        report(flow, *(AllocationReport(id=each.id, client_status=ClientStatus.FAILED) for each in failed))
    flow.process_pending()
    flow.now_ns += SECOND_NS
    retry = retry_run(flow.replica, RunRetry(namespace="default", job_id="shop"), flow.moment, SETTINGS)
    require_fitting(flow, retry.write)
    flow.lead(retry)

    request = RunCancellation(namespace="default", job_id="shop", detail=REASON)
    cancel = cancel_run(flow.replica, request, flow.moment, SETTINGS)

    require_fitting(flow, cancel.write)


def test_the_values_of_a_condition_are_cut_to_bytes() -> None:
    flow = Flow(a_step_with_outputs("r", text=NAMES), a_step("s", "r", condition=CONDITION))
    outputs = ReportedOutputs(texts=dict.fromkeys(NAMES, LONG_TEXT))

    report(flow, AllocationReport(id=flow.find("r").id, client_status=ClientStatus.COMPLETE, outputs=outputs))

    cause = read_snapshot_run(flow.replica, flow.job()).steps["s"].facts.state.cause
    assert cause is not None
    assert MAX_DETAIL_BYTES - 4 <= len(cause.detail.encode()) <= MAX_DETAIL_BYTES
    assert cause.detail.endswith("…")
    assert cause.detail.startswith('steps.r.a = "\N{GRINNING FACE}')


def test_the_reason_of_a_cancellation_is_stored_once_and_shown_with_each_step() -> None:
    run = Run(a_step("a"), a_step("b", "a"))
    request = RunCancellation(namespace="default", job_id="shop", actor="eve", detail="wrong input")

    run.lead(cancel_run(run.replica, request, run.moment, SETTINGS))
    run.process_pending()
    run.run_nodes()

    stored = read_snapshot_run(run.replica, run.job())
    assert [each.facts.state.cause.detail for each in stored.steps.values() if each.facts.state.cause] == ["", ""]
    view = build_run_view(run.replica, run.job())
    assert [each.text for each in view.steps] == ["canceled by eve: wrong input"] * 2
    assert view.text == "canceled by eve: wrong input"
    assert "by eve: wrong input" in explain_job(run.replica, "default", "shop").steps[1].text


def test_a_cancellation_does_not_store_the_job_again_but_requires_that_it_has_not_changed() -> None:
    run = Run(a_step("a"), a_step("b", "a"))

    write = cancel_run(run.replica, RunCancellation(namespace="default", job_id="shop"), run.moment, SETTINGS).write

    assert write is not None
    assert JOBS.name not in {each.table for each in write.changes if isinstance(each, PutRecord)}
    assert JOBS.name in {each.table for each in write.conditions}


class EtcdFlow(Flow):
    """A cluster in which each write must fit into one write of etcd."""

    def commit(self, write: Write, **options: Any) -> int:
        require_fitting(self, write)
        return super().commit(write, **options)


def make_largest_run() -> EtcdFlow:
    """Return a run whose steps wait for one that writes long outputs, with a final step and one that waits for approval."""
    steps = [a_step(f"s{number}", "r", condition=CONDITION) for number in range(STEP_COUNT)]
    return EtcdFlow(
        a_step_with_outputs("r", text=NAMES), a_step("g", "r", gate=Gate()), a_step("tidy", final=True), *steps
    )


def fail_steps(flow: Flow) -> None:
    """Let the first step write long outputs, and fail all steps that read them, except for the one that waits for approval."""
    outputs = ReportedOutputs(texts=dict.fromkeys(NAMES, LONG_TEXT))
    report(flow, AllocationReport(id=flow.find("r").id, client_status=ClientStatus.COMPLETE, outputs=outputs))
    flow.process_pending()
    fail_active(flow)


def fail_active(flow: Flow) -> None:
    """Fail all allocations, and those that begin in their place."""
    while active := [each for each in flow.list_allocations() if not each.is_client_terminal]:
        for start in range(0, len(active), 50):
            failed = active[start : start + 50]
            report(flow, *(AllocationReport(id=each.id, client_status=ClientStatus.FAILED) for each in failed))
        flow.retry_blocked()
        flow.process_pending()
        flow.now_ns += SECOND_NS


def stop(flow: Flow) -> Any:
    return deregister_job(flow.replica, "default", "shop", flow.moment, settings=SETTINGS)


def cancel(flow: Flow, *, at_once: bool = False) -> Any:
    request = RunCancellation(namespace="default", job_id="shop", actor="eve", detail=REASON, at_once=at_once)
    return cancel_run(flow.replica, request, flow.moment, SETTINGS)


def retry(flow: Flow) -> Any:
    return retry_run(flow.replica, RunRetry(namespace="default", job_id="shop"), flow.moment, SETTINGS)


def test_the_largest_run_can_be_stopped_and_retried_in_each_of_its_phases() -> None:
    flow = make_largest_run()
    require_fitting(flow, stop(flow).write)
    fail_steps(flow)
    require_fitting(flow, stop(flow).write)
    require_fitting(flow, cancel(flow, at_once=True).write)
    flow.lead(retry(flow))
    flow.lead(cancel(flow))
    require_fitting(flow, stop(flow).write)

    flow.lead(cancel(flow, at_once=True))

    assert flow.job().stop
    flow.settle()
    assert flow.job().status is JobStatus.DEAD
    assert not [each for each in flow.list_allocations() if not each.is_client_terminal]
    flow.lead(retry(flow))
    assert not flow.job().stop
    flow.process_pending()
    assert [each for each in flow.list_allocations() if not each.is_client_terminal]
    flow.lead(purge_job(flow.replica, "default", "shop", flow.moment, max_changes=112))


def test_a_large_job_that_is_stopped_keeps_its_version_and_can_be_submitted_again() -> None:
    flow = make_largest_run()
    submitted = flow.job()
    fail_steps(flow)

    flow.lead(stop(flow))

    assert (flow.job().version, flow.job().stop) == (0, True)
    assert [each.stop for each in list_versions(flow.replica, "default", "shop")] == [True]
    flow.settle()
    flow.register(submitted)
    assert (flow.job().version, flow.job().stop) == (1, False)
    assert [each.version for each in list_versions(flow.replica, "default", "shop")] == [1, 0]


def test_a_large_job_that_is_stopped_can_be_reverted_to_the_version_that_ran() -> None:
    flow = make_largest_run()
    flow.lead(stop(flow))
    flow.settle()

    flow.lead(revert_job(flow.replica, "default", "shop", 0, flow.moment, SETTINGS))

    assert (flow.job().version, flow.job().stop) == (1, False)


def test_elements_of_a_large_array_can_be_run_again_after_it_was_stopped() -> None:
    flow = EtcdFlow(a_step_with_outputs("r"))
    sweep = a_group("sweep", array=GroupArray(items=("x" * 4_000,) * 120, max_running=5))
    flow.register(a_batch_job("large", sweep))
    flow.settle()
    flow.lead(deregister_job(flow.replica, "default", "large", flow.moment, settings=SETTINGS))
    flow.settle()
    request = RerunRequest(namespace="default", job_id="large", indexes="7-9")

    flow.lead(rerun_elements(flow.replica, request, flow.moment, SETTINGS))
    flow.settle()

    running = sorted(each.name for each in flow.list_allocations("large") if not each.is_client_terminal)
    assert running == ["large.sweep[7]", "large.sweep[8]", "large.sweep[9]"]


def read_status(flow: Flow, job_id: str) -> JobStatus | None:
    job = flow.replica.get(JOBS, "default", job_id)
    return job.status if job is not None else None


def test_a_large_service_can_be_stopped_after_its_status_has_changed() -> None:
    flow = EtcdFlow(a_step_with_outputs("r"))
    task = a_task("web", env={"TEXT": "x" * 650_000})
    flow.register(a_job("site", a_group("web", task, count=1)))
    flow.settle()
    assert read_status(flow, "site") is JobStatus.RUNNING

    flow.lead(deregister_job(flow.replica, "default", "site", flow.moment, settings=SETTINGS))
    flow.settle()

    assert read_status(flow, "site") is JobStatus.DEAD


def test_the_texts_of_all_answers_of_a_run_are_limited_together() -> None:
    flow = EtcdFlow(*(a_step(f"g{number}", gate=Gate()) for number in range(GATE_COUNT)))
    longest = limit_detail_bytes(MAX_ANSWER_BYTES, GATE_COUNT)

    def answer(step: str, size: int) -> Any:
        request = GateAnswer(
            namespace="default", job_id="shop", step=step, approve=False, text="x" * size, actor="e" * 256
        )
        return answer_gate(flow.replica, request, flow.moment)

    with pytest.raises(Refusal, match=f"in a run with {GATE_COUNT} steps it has at most {longest} bytes"):
        answer("g0", longest + 1)
    for number in range(GATE_COUNT - 1):
        flow.lead(answer(f"g{number}", longest))

    flow.lead(stop(flow))

    (attempt,) = flow.replica.iter_all(ARRAY_ATTEMPTS)
    job = flow.job()
    assert len(msgspec.msgpack.encode(attempt)) < sum(estimate_group_bytes(job, group) for group in job.groups)


def test_a_retry_is_refused_if_the_run_could_not_be_stopped_after_it() -> None:
    gates = [a_step(f"g{number}", "r", gate=Gate()) for number in range(4)]
    steps = [a_step(f"s{number}", "r", condition=CONDITION) for number in range(STEP_COUNT)]
    flow = EtcdFlow(a_step_with_outputs("r", text=NAMES), *gates, *steps)
    fail_steps(flow)
    names = tuple(each.name for each in steps)

    def retry_steps(*more: str) -> None:
        request = RunRetry(namespace="default", job_id="shop", steps=(*names, *more))
        flow.lead(retry_run(flow.replica, request, flow.moment, SETTINGS))
        flow.process_pending()
        fail_active(flow)

    def reject(step: str) -> None:
        request = GateAnswer(namespace="default", job_id="shop", step=step, approve=False)
        flow.lead(answer_gate(flow.replica, request, flow.moment))

    reject("g0")
    retry_steps("g0")
    reject("g1")
    with pytest.raises(Refusal, match="could not be stopped with one more"):
        retry_steps("g1")

    flow.lead(stop(flow))

    assert flow.job().stop


def test_a_job_whose_allocations_have_long_texts_can_be_stopped_at_once_and_purged() -> None:
    flow = EtcdFlow(a_step_with_outputs("r", size=105))
    for each in flow.list_allocations():
        flow.put(ALLOCATIONS.build_put(replace(each, client_description="x" * 20_000)))

    marked = 1
    while marked:
        marked = flow.lead(
            skip_shutdown_delays(flow.replica, "default", "shop", flow.moment, max_allocations=112)
        ).remaining_count
    assert all(each.desired_transition.no_shutdown_delay for each in flow.list_allocations() if each.desired_transition)

    flow.lead(purge_job(flow.replica, "default", "shop", flow.moment, max_changes=112))
    (job_purge,) = flow.replica.iter_all(JOB_PURGES)
    while flow.lead(continue_purge(flow.replica, job_purge, flow.moment, max_changes=112)).changed_count:
        pass

    assert all(each.is_server_terminal for each in flow.list_allocations())


def test_the_largest_run_is_collected_after_it_was_stopped() -> None:
    flow = make_largest_run()
    fail_steps(flow)
    flow.lead(cancel(flow, at_once=True))
    flow.settle()
    flow.now_ns += 3_600 * SECOND_NS

    for kind in CollectionKind:
        while flow.lead(collect_garbage(flow.replica, kind, flow.moment, retention_ns=0, max_changes=28)).deleted_count:
            pass

    assert not list(flow.replica.iter_all(ARRAY_ATTEMPTS))
    assert not list(flow.replica.iter_all(JOB_VERSIONS))
