"""Summaries of failures: why allocations were not placed, and why they failed."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.node_reasons import list_node_reasons
from wharf.cli.common.server_commands import SHORT_ID_LENGTH, Session

if TYPE_CHECKING:
    from wharf.cli.common.log_ends import LogEnds
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.allocations.metrics import AllocMetric
    from wharf.contract.model.evaluations import Evaluation
    from wharf.contract.model.explanations import GroupExplanation, JobExplanation
    from wharf.contract.model.jobs.array_views import ArrayView
    from wharf.contract.wire.allocations.messages import AllocationView

SIGNAL_EXIT_CODE_BASE: Final = 128
"""A task that a signal ended counts as exit code 128 + signal number, as in shells."""


def find_unplaced_groups(evaluations: Iterable["Evaluation"]) -> "Mapping[str, AllocMetric]":
    """Return the groups that wait for capacity, each with the metric of its failed placement; empty if none waits."""
    newest_first = sorted(evaluations, key=lambda evaluation: evaluation.modify_index, reverse=True)
    blocked_ids = {evaluation.id for evaluation in newest_first if evaluation.status == "blocked"}
    for evaluation in newest_first:
        if evaluation.failed_tg_allocs and (evaluation.id in blocked_ids or evaluation.blocked_eval in blocked_ids):
            return evaluation.failed_tg_allocs
    return {}


def fetch_explanations(session: Session, job_id: str, namespace: str) -> "dict[str, GroupExplanation]":
    """Return by group why nodes cannot run it, as `wharf job explain` shows it; empty if the server does not explain."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    try:
        explanation = session.client.jobs.explain(job_id, namespace=namespace).value
    except (Refusal, Unreachable):
        return {}  # The metrics of the failed placements remain.
    return {group.group: group for group in explanation.groups}


def describe_unplaced(unplaced: "Mapping[str, AllocMetric]") -> str:
    """Return that groups are not placed, and what they wait for: a lock, free resources, or a node that can run them at all."""
    from wharf.contract.model.allocations.placement_reasons import is_lock_refusal, lacks_capacity

    if all(map(is_lock_refusal, unplaced.values())):
        return "Not placed, waiting for a lock"
    waits_for_capacity = any(lacks_capacity(metric) for metric in unplaced.values())
    return f"Not placed, waiting for {'capacity' if waits_for_capacity else 'a suitable node'}"


def render_unplaced_groups(
    unplaced: "Mapping[str, AllocMetric]",
    explanations: "Mapping[str, GroupExplanation] | None" = None,
    arrays: "Iterable[ArrayView]" = (),
) -> list[str]:
    """Return lines with the number of unplaced allocations of each group, or of waiting elements, and the reasons.

    `arrays`: those of the job, if they were read. Without them, elements are counted as the explanations have them.
    The reasons are those of the explanations, so that all commands give the same ones. A group without an explanation, or
    that a quota stops, has the reasons of its failed placement.
    """
    from wharf.cli.common.rendering import style_dim
    from wharf.contract.model.allocations.placement_reasons import is_lock_refusal, list_placement_failures

    lines: list[str] = []
    waiting_elements = {each.group: each.counts.waiting for each in arrays if each.size > 1}
    for group, metric in sorted(unplaced.items()):
        explanation = (explanations or {}).get(group)
        lines.append(f"{group}: {_describe_count(metric, explanation, waiting_elements.get(group))}")
        if explanation is not None and is_lock_refusal(metric) and explanation.text:
            lines.append(f"  {style_dim('·')} {explanation.text}")
            continue
        if explanation is None or not _has_reasons(explanation) or metric.quota_exhausted:
            lines += [f"  {style_dim('·')} {reason}" for reason in list_placement_failures(metric)]
            continue
        reasons = [explanation.text] if explanation.fitting else list_node_reasons(explanation)
        lines += [f"  {style_dim('·')} {reason}" for reason in reasons or ["no node can run it"]]
        lines += [f"  {explanation.smallest_change}"] if explanation.smallest_change else []
    return lines


def _describe_count(metric: "AllocMetric", explanation: "GroupExplanation | None", elements: int | None) -> str:
    """Return how many allocations of a group are not placed, or how many elements of its array wait."""
    if elements is None and explanation is not None and explanation.is_array and explanation.wanted > 1:
        elements = explanation.unplaced
    return f"{metric.coalesced_failures + 1} not placed" if elements is None else describe_waiting_elements(elements)


def describe_waiting_elements(count: int) -> str:
    """Return how many elements of arrays wait, as a sentence."""
    return "1 element waits" if count == 1 else f"{count} elements wait"


def _has_reasons(group: "GroupExplanation") -> bool:
    """Return whether nodes were examined for the group. They are only if an evaluation waits because of it."""
    return bool(group.nodes or group.excluded or group.smallest_change)


class FailureText(NamedTuple):
    """Why one or more allocations failed, as text, and the task whose log may show the cause."""

    reason: str
    text: str
    alloc_id: str
    task: str
    """Empty if no program ended by itself."""
    namespace: str

    def render(self, log_ends: "LogEnds") -> list[str]:
        """Return the line with the reason, and the last lines of the log below it."""
        from wharf.cli.common.rendering import style_dim

        lines = log_ends.read(self.alloc_id, self.task, self.namespace) if self.task else ()
        return [self.text, *(f"  {style_dim('│')} {line}" for line in lines)]


def list_failures(
    allocations: "Iterable[AllocationStub | AllocationView]", *, is_per_node: bool = False
) -> list[FailureText]:
    """Return why allocations of one job failed, newest first, each reason once."""
    from wharf.contract.model.allocations.failure_reasons import summarize_failures

    return [
        FailureText(
            failure.reason,
            _format_failure(failure.newest.name, failure.newest.id, failure.alloc_count, failure.reason),
            failure.newest.id,
            failure.ended_task,
            failure.newest.namespace,
        )
        for failure in summarize_failures(allocations, is_per_node=is_per_node)
    ]


def list_explained_failures(explanation: "JobExplanation") -> list[FailureText]:
    """Return the failures of an explanation of a job."""
    return [
        FailureText(
            failure.text,
            _format_failure(failure.name, failure.alloc_id, failure.count, failure.text),
            failure.alloc_id,
            failure.task,
            explanation.namespace,
        )
        for failure in explanation.failures
    ]


def _format_failure(name: str, alloc_id: str, count: int, reason: str) -> str:
    more = f" and {count - 1} more" if count > 1 else ""
    return f"{name} ({alloc_id[:SHORT_ID_LENGTH]}){more}: {reason}"


def render_failures(session: Session, failures: "Iterable[FailureText]") -> str:
    """Return the reasons of failures as lines, each with the end of the log."""
    from wharf.cli.common.log_ends import LogEnds

    log_ends = LogEnds(session)
    return "\n".join(line for failure in failures for line in failure.render(log_ends))


def find_common_exit_code(allocations: "Iterable[AllocationStub]") -> int:
    """Return the exit code of failed tasks if it is the same for all allocations, else 0.

    A signal counts as 128 + its number.
    """
    codes = {_get_exit_code(allocation) for allocation in allocations}
    return codes.pop() if len(codes) == 1 else 0


def _get_exit_code(allocation: "AllocationStub") -> int:
    """Return the exit code of the task that failed last; 0 if none ended with an error."""
    ends = [
        (event.time, event.exit_code, event.signal)
        for state in (allocation.task_states or {}).values()
        if state.failed
        for event in state.events or ()
        if event.type == "Terminated"
    ]
    if not ends:
        return 0
    _, code, signal = max(ends)
    return SIGNAL_EXIT_CODE_BASE + signal if signal else code if 0 < code < SIGNAL_EXIT_CODE_BASE * 2 else 0
