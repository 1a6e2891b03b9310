"""Recomputing job summaries."""

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_parameterized_job
from tests.kit.state import AState
from wharf.cluster.operations.jobs.summaries import SummaryReconciliation, reconcile_summaries
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, JobStatus
from wharf.contract.model.log import WRITE_INDEX


def reconcile(state: AState, *, max_summaries: int = 10, after: str = "") -> SummaryReconciliation:
    return state.do(
        reconcile_summaries(state.replica, after_key=after, max_summaries=max_summaries, max_scanned_jobs=100)
    )


def make_state() -> AState:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group("web"), a_group("db")))
    state.end_evaluations()
    state.with_allocation(state.job(), "a1", client_status=ClientStatus.RUNNING)
    state.with_allocation(state.job(), "a2", client_status=ClientStatus.PENDING)
    return state


def break_summary(state: AState, **groups: GroupSummary) -> None:
    state.put(JOB_SUMMARIES.build_put(replace(state.summary(), summary=groups)))


def test_a_correct_summary_is_not_written() -> None:
    state = make_state()
    index = state.replica.index

    result = reconcile(state)

    assert (result.written_count, state.replica.index) == (0, index)


def test_a_wrong_summary_is_recomputed() -> None:
    state = make_state()
    break_summary(state, web=GroupSummary(running=7, lost=3))

    result = reconcile(state)

    assert result.written_count == 1
    assert state.summary().summary == {"web": GroupSummary(running=1, starting=1), "db": GroupSummary()}


def test_collected_allocations_remain_counted() -> None:
    state = make_state()
    break_summary(state, web=GroupSummary(complete=4, failed=2, queued=1))

    reconcile(state)

    assert state.summary().summary["web"] == GroupSummary(complete=4, failed=2, queued=1, running=1, starting=1)


def test_a_missing_summary_is_created() -> None:
    state = make_state()
    state.put(JOB_SUMMARIES.build_delete("default", "shop"))

    reconcile(state)

    assert state.summary().summary["web"].running == 1
    assert state.summary().create_index == state.replica.index


def test_children_are_recounted() -> None:
    state = AState()
    state.register(a_parameterized_job())
    for number, status in enumerate((JobStatus.RUNNING, JobStatus.DEAD, JobStatus.DEAD)):
        child = a_job(f"convert/{number}", parent_id="convert", status=status, create_index=WRITE_INDEX)
        state.put(JOBS.build_put(child))

    reconcile(state)

    assert state.summary("convert").children == ChildrenSummary(running=1, dead=2)


def test_reconciliation_continues_after_a_full_write_and_reports_its_end() -> None:
    state = AState()
    for name in ("a", "b", "c"):
        state.register(a_job(name))
        state.put(JOB_SUMMARIES.build_delete("default", name))

    written, after, steps = 0, "", 0
    while True:
        result = reconcile(state, max_summaries=2, after=after)
        written, after, steps = written + result.written_count, result.next_key, steps + 1
        if not after:
            break

    assert (written, steps) == (3, 3)
    assert state.replica.count_records(JOB_SUMMARIES) == 3


def test_a_correct_summary_does_not_hide_the_wrong_ones_behind_it() -> None:
    state = AState()
    for name in ("a", "b", "c"):
        state.register(a_job(name))
    for name in ("a", "c"):
        state.put(JOB_SUMMARIES.build_delete("default", name))

    assert reconcile(state).written_count == 2
