"""Sentences on pages: clauses, commands within them, and which failures they name."""

import pytest

from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.task_states import TaskEventView, TaskStateView, TaskStatus
from wharf.contract.model.jobs.job import GroupSummary, JobSummary
from wharf.contract.wire.allocations.messages import AllocationView
from wharf.contract.wire.jobs.messages import JobStub
from wharf.web.rendering import mark_code, split_clauses
from wharf.web.views.allocations import build_allocation_page, build_placement
from wharf.web.views.jobs import build_job_row, find_failed


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("", ()),
        ("web waits", ("web waits",)),
        ("web waits; add a node; it is first", ("web waits", "add a node", "it is first")),
        ("web waits (1 of 2; 3 of 4); add a node", ("web waits (1 of 2; 3 of 4)", "add a node")),
        ("a;b", ("a;b",)),
    ],
)
def test_semicolons_outside_of_parentheses_separate_clauses(text: str, clauses: tuple[str, ...]) -> None:
    assert split_clauses(text) == clauses


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("promote it with `wharf x`", "promote it with <code>wharf x</code>"),
        ("`<b>` and <i>", "<code>&lt;b&gt;</code> and &lt;i&gt;"),
        ("a lone ` stays", "a lone ` stays"),
    ],
)
def test_commands_between_backticks_are_code(text: str, html: str) -> None:
    assert mark_code(text) == html


def make_run(id: str, status: ClientStatus, index: int, name: str = "sweep.main[3]") -> AllocationStub:
    return AllocationStub(id=id, name=name, create_index=index, client_status=status, desired_status=DesiredStatus.RUN)


def test_a_failed_element_that_ran_again_with_success_is_no_failure_of_its_job() -> None:
    first = make_run("a", ClientStatus.FAILED, 1)

    assert find_failed([make_run("b", ClientStatus.COMPLETE, 2), first]) is None
    assert find_failed([make_run("b", ClientStatus.COMPLETE, 2, name="sweep.main[4]"), first]) is first


@pytest.mark.parametrize(("complete", "failed"), [(100, 0), (99, 7)])
def test_a_complete_job_shows_no_failures_that_were_replaced(complete: int, failed: int) -> None:
    summary = JobSummary(
        job_id="sweep", namespace="default", summary={"main": GroupSummary(complete=complete, failed=7)}
    )
    job = JobStub(id="sweep", type="batch", status="dead", group_count_sum=100, job_summary=summary)

    assert build_job_row(job, 0).counts.failed == failed


def test_the_page_of_an_allocation_shows_its_node_first_and_the_other_nodes_by_their_scores() -> None:
    scores = tuple(
        NodeScore(node_id=name, norm_score=score, scores={"binpack": score, "job-anti-affinity": 0.0})
        for name, score in (("n1", 0.4), ("n2", 0.9), ("n3", 0.6))
    )
    metrics = AllocMetric(nodes_evaluated=9, nodes_filtered=4, nodes_exhausted=2, score_meta_data=scores)

    placement = build_placement(metrics, "n3", {"n3": "build-3"})

    assert placement is not None
    assert placement.sentence.startswith("9 nodes were compared, 4 excluded by constraints, 2 too full.")
    assert [(row.name, row.is_chosen, row.score, row.parts) for row in placement.scores] == [
        ("build-3", True, "0.60", "binpack 0.60"),
        ("n2", False, "0.90", "binpack 0.90"),
        ("n1", False, "0.40", "binpack 0.40"),
    ]


def test_a_node_without_a_competitor_needs_no_reason() -> None:
    assert build_placement(AllocMetric(score_meta_data=(NodeScore(node_id="n1"),)), "n1", {}) is None
    assert build_placement(None, "n1", {}) is None


def test_the_event_of_a_task_that_ran_out_of_memory_says_so() -> None:
    event = TaskEventView(type="Terminated", display_message="Exit Code: 137", details={"oom_killed": "true"})
    state = TaskStateView(state=TaskStatus.DEAD, failed=True, events=(event,))
    allocation = AllocationView(
        id="a", desired_status=DesiredStatus.RUN, client_status=ClientStatus.FAILED, task_states={"main": state}
    )

    page = build_allocation_page(allocation, None, {}, [], 0)

    assert [each.text for each in page.tasks[0].events] == ["Exit Code: 137 (out of memory)"]
