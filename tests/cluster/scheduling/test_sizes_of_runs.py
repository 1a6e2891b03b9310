"""Writes about large runs: they fit into one write of etcd, whatever texts their programs and their users leave."""

from typing import Any

from tests.cluster.scheduling.test_runs import Run, a_step
from tests.cluster.scheduling.test_step_outputs import Flow
from tests.cluster.scheduling.test_step_outputs import a_step as a_step_with_outputs
from tests.kit.state import SECOND_NS, SETTINGS
from wharf.cluster.engines.memory.log import ETCD_WRITE_LIMITS
from wharf.cluster.engines.port import check_write_limits
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.jobs.run_retry import RunRetry, retry_run
from wharf.cluster.operations.jobs.runs import RunCancellation, cancel_run
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.run_views import build_run_view
from wharf.cluster.scheduling.steps.conditions import MAX_DETAIL_BYTES
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.jobs.steps import Gate
from wharf.contract.model.log import PutRecord

NAMES = tuple("abcde")
CONDITION = " or ".join(f'steps.r.{name}!=""' for name in NAMES)
STEP_COUNT = 455
"""With more steps the job itself does not fit into the limits of a job."""
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
