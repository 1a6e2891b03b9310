"""Summaries of failures: why allocations were not placed, why they failed, and the last line that a task printed."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.node_reasons import format_shortage, list_node_reasons
from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.allocations.metrics import AllocMetric
    from wharf.contract.model.evaluations import Evaluation
    from wharf.contract.model.explanations import GroupExplanation

MAX_FAILURES_SHOWN: Final = 3
"""Limit of the failure reasons in one output; keeps it readable."""
SIGNAL_EXIT_CODE_BASE: Final = 128
"""A task that a signal ended counts as exit code 128 + signal number, as in shells."""


def list_placement_failures(metric: "AllocMetric") -> list[str]:
    """Return the reasons why a group could not be placed, one line each, those of the most nodes first."""
    found: list[str] = []
    # The scheduler considers no node if the quota already forbids the placement: then the number of nodes says nothing.
    if metric.nodes_evaluated == 0 and not metric.nodes_in_pool and not metric.quota_exhausted:
        found.append(f"no ready node in node pool {metric.node_pool or 'default'} and the job's datacenters")
    empty = sorted(name for name, count in (metric.nodes_available or {}).items() if not count)
    found += [f"no ready node in datacenter {name}" for name in empty]
    found += [
        f"{_count_nodes(count)} excluded: {rule.rstrip()}" for rule, count in _sort_by_count(metric.constraint_filtered)
    ]
    found += [
        f"{_count_nodes(count)} of class {name} excluded" for name, count in _sort_by_count(metric.class_filtered)
    ]
    found += [
        f"{format_shortage(dimension)} on {_count_nodes(count)}"
        for dimension, count in _sort_by_count(metric.dimension_exhausted)
    ]
    for text in metric.quota_exhausted or ():
        # A parent job's `max_running` is reported in the same field; it is not a quota.
        found.append(text if text.startswith("max_running ") else f"quota of the namespace: {text}")
    if not found and metric.nodes_exhausted:
        found.append(f"{_count_nodes(metric.nodes_exhausted)} full")
    return found or ["no node fits"]


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


def lacks_capacity(metric: "AllocMetric") -> bool:
    """Return whether any node lacks only free resources. The rules of the job exclude all others."""
    return bool(metric.nodes_exhausted or metric.dimension_exhausted or metric.quota_exhausted)


def describe_unplaced(unplaced: "Mapping[str, AllocMetric]") -> str:
    """Return that groups are not placed, and what they wait for: free resources, or a node on which they can run at all."""
    waits_for_capacity = any(lacks_capacity(metric) for metric in unplaced.values())
    return f"Not placed, waiting for {'capacity' if waits_for_capacity else 'a suitable node'}"


def render_unplaced_groups(
    unplaced: "Mapping[str, AllocMetric]", explanations: "Mapping[str, GroupExplanation] | None" = None
) -> list[str]:
    """Return lines with the number of unplaced allocations of each group, and the reasons.

    The reasons are those of the explanations. A group without one, or for which nodes have capacity now, has the reasons
    of its failed placement.
    """
    from wharf.cli.common.rendering import style_dim

    lines: list[str] = []
    for group, metric in sorted(unplaced.items()):
        lines.append(f"{group}: {metric.coalesced_failures + 1} not placed")
        explanation = (explanations or {}).get(group)
        reasons = list_node_reasons(explanation) if explanation is not None and not explanation.fitting else []
        lines += [f"  {style_dim('·')} {reason}" for reason in reasons or list_placement_failures(metric)]
        if reasons and explanation is not None and explanation.smallest_change:
            lines.append(f"  {explanation.smallest_change}")
    return lines


class FailureSummary(NamedTuple):
    """Why one or more allocations failed, if they failed for the same reason."""

    text: str
    newest_allocation: "AllocationStub"
    ended_task: str
    """The task whose program ended by itself, so that its output may show the cause; empty if there is none."""


def summarize_failures(allocations: "Iterable[AllocationStub]") -> list[FailureSummary]:
    """Return the reasons why allocations failed, newest first. Allocations with the same reason share one summary."""
    from wharf.contract.model.allocations.task_event_messages import describe_last_failure

    failed = [
        allocation
        for allocation in allocations
        if allocation.client_status in ("failed", "lost") or _is_unhealthy(allocation)
    ]
    by_reason: dict[str, list[AllocationStub]] = {}
    for allocation in sorted(failed, key=lambda allocation: -allocation.modify_time):
        reason = describe_last_failure(allocation.task_states)
        if reason:
            by_reason.setdefault(reason, []).append(allocation)
    summaries: list[FailureSummary] = []
    for reason, group in list(by_reason.items())[:MAX_FAILURES_SHOWN]:
        newest = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        text = f"{newest.name} ({newest.id[:8]}){more}: {reason}"
        summaries.append(FailureSummary(text, newest, _find_ended_task(newest)))
    return summaries


def _find_ended_task(allocation: "AllocationStub") -> str:
    """Return the task that failed last, if its program ended by itself; else an empty text."""
    from wharf.contract.model.allocations.task_event_messages import find_last_failure

    task_and_event = find_last_failure(allocation.task_states)
    return task_and_event[0] if task_and_event is not None and task_and_event[1].type == "Terminated" else ""


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


def _is_unhealthy(allocation: "AllocationStub") -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.healthy is False


def _sort_by_count(counts: Mapping[str, int] | None) -> list[tuple[str, int]]:
    """Return (name, count) pairs, largest count first, then by name."""
    return sorted((counts or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _count_nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


LAST_LINE_READ_BYTES: Final = 1_024
"""How much of the end of a log is read to find its last line."""
MAX_LAST_LINE_CHARS: Final = 200
"""Limit of the shown end of that line; keeps the output readable."""


def read_last_line(session: Session, allocation: "AllocationStub", task: str) -> str:
    """Return the last line that a task printed to stderr, or else to stdout; empty if no log is readable."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    for stream in ("stderr", "stdout"):
        chunks = session.client.files.logs(
            allocation.id, task, type=stream, origin="end", offset=LAST_LINE_READ_BYTES, namespace=allocation.namespace
        )
        try:
            lines = b"".join(chunks).decode(errors="replace").split("\n")
        except (Refusal, Unreachable):
            continue
        if found := next((line for line in map(strip_unprintable, reversed(lines)) if line), ""):
            return found[-MAX_LAST_LINE_CHARS:]
    return ""


def strip_unprintable(line: str) -> str:
    """Remove characters such as terminal escapes: the output of a task must not control the user's terminal."""
    return "".join(character for character in line if character.isprintable()).strip()
