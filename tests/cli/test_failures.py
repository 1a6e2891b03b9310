"""How commands summarize failed and unplaced allocations."""

import click
import pytest

from wharf.cli.alloc.group import format_event
from wharf.cli.common.failures import find_common_exit_code, list_failures
from wharf.cli.common.log_ends import MAX_LINE_CHARS, READ_BYTES, get_last_lines
from wharf.cli.job.plan import render_plan
from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.failure_reasons import describe_failure
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.task_event_messages import make_task_state_view
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.explanations import Exclusion, GroupExplanation
from wharf.contract.model.jobs.plan import DesiredUpdates, PlanAnnotations
from wharf.contract.wire.jobs.messages import JobPlanResponse


def make_failed_allocation(*task_ends: dict[str, str]) -> AllocationStub:
    events = tuple(TaskEvent(type="Terminated", time=at, details=details) for at, details in enumerate(task_ends))
    state = make_task_state_view(TaskState(state=TaskStatus.DEAD, failed=True, events=events))
    return AllocationStub(
        id="a1", desired_status=DesiredStatus.RUN, client_status=ClientStatus.FAILED, task_states={"main": state}
    )


@pytest.mark.parametrize(
    ("task_ends", "code"),
    [
        ([[{"exit_code": "7"}], [{"exit_code": "7"}]], 7),
        ([[{"exit_code": "7"}], [{"exit_code": "8"}]], 0),
        ([[{"exit_code": "7"}, {"exit_code": "9"}]], 9),
        ([[{"exit_code": "0", "signal": "9"}]], 137),
        ([[{"exit_code": "-1"}]], 0),
        ([[]], 0),
        ([], 0),
    ],
)
def test_allocations_that_failed_with_the_same_exit_code_are_summarized_with_it(
    task_ends: list[list[dict[str, str]]], code: int
) -> None:
    assert code == find_common_exit_code([make_failed_allocation(*allocation_ends) for allocation_ends in task_ends])


def test_a_plan_separates_groups_that_wait_for_preemption_from_unplaced_ones() -> None:
    lacking = AllocMetric(nodes_evaluated=1, nodes_exhausted=1, dimension_exhausted={"cpu": 1})
    response = JobPlanResponse(
        annotations=PlanAnnotations(
            desired_tg_updates={"web": DesiredUpdates(place=1, preemptions=2), "db": DesiredUpdates(place=1)}
        ),
        failed_tg_allocs={"web": lacking, "db": lacking},
    )

    lines = [click.unstyle(line) for line in render_plan(None, "web.yaml", response)]  # type: ignore[arg-type]  # The plan is only rendered.

    assert lines[lines.index("") + 1 : -3] == [
        "Not placed until the preempted allocations have stopped",
        "  web: 1 not placed",
        "    · too little cpu on 1 node",
        "",
        "Not placed: not enough capacity",
        "  db: 1 not placed",
        "    · too little cpu on 1 node",
    ]


def test_a_plan_does_not_blame_capacity_if_no_node_has_the_driver() -> None:
    response = JobPlanResponse(
        failed_tg_allocs={"web": AllocMetric(nodes_evaluated=1, constraint_filtered={"missing drivers": 1})},
        explanations={
            "web": GroupExplanation(
                group="web",
                nodes=1,
                excluded=(
                    Exclusion(
                        rule="missing drivers", nodes=1, text="driver docker: missing on 1 of 1 node (not installed: x)"
                    ),
                ),
                smallest_change="no node has the driver docker; available: exec",
            )
        },
    )

    lines = [click.unstyle(line) for line in render_plan(None, "web.yaml", response)]  # type: ignore[arg-type]  # The plan is only rendered.

    assert lines[lines.index("") + 1 : -3] == [
        "Not placed: no node is suitable",
        "  web: 1 not placed",
        "    · driver docker: missing on 1 of 1 node (not installed: x)",
        "    no node has the driver docker; available: exec",
    ]


def test_a_task_that_ran_out_of_memory_is_described_alike_by_all_commands() -> None:
    failed = make_failed_allocation({"exit_code": "137", "signal": "9", "oom_killed": "true"})
    states = failed.task_states or {}
    event = (states["main"].events or ())[0]

    assert format_event(event) == "Exit Code: 137, Signal: 9 (out of memory)"
    assert describe_failure(failed) == "main: Exit Code: 137, Signal: 9 (out of memory)"
    assert list_failures([failed])[0].text.endswith("main: Exit Code: 137, Signal: 9 (out of memory)")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one\n\ntwo\n", ["one", "two"]),
        (b"no module\n" * 3 + b"end\n", ["no module (3 times)", "end"]),
        (b"".join(b"line %d\n" % number for number in range(9)), [f"line {number}" for number in range(4, 9)]),
        (b"10 %\r90 %\r100 %\n\x1b[31mred\x1b[0m\x1b]0;title\x07\n", ["10 %", "90 %", "100 %", "red"]),
        (b"a\tb \xff\n", ["a   b \ufffd"]),
        (b"x" * 500, ["x" * MAX_LINE_CHARS]),
        (b"cut off" + b" " * READ_BYTES + b"\nwhole\n", ["whole"]),
    ],
    ids=[
        "empty",
        "blank lines",
        "repeated attempts",
        "last five",
        "control characters",
        "not UTF-8",
        "long line",
        "begin of the part",
    ],
)
def test_the_end_of_a_log_is_shown_as_its_last_lines(content: bytes, lines: list[str]) -> None:
    assert get_last_lines(content) == lines
