"""Why work has no place: the figures of a placement that failed, as sentences.

The last line that a task printed: as a rule it says why the task ended. Its node has it, or else servers do.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.allocations.metrics import AllocMetric
    from wharf.contract.model.evaluations import Evaluation

MAX_FAILURES_SHOWN: Final = 3
SIGNAL_EXIT_CODE_BASE: Final = 128


def list_placement_failures(metric: "AllocMetric") -> list[str]:
    """One line a reason, the widest first."""
    found: list[str] = []
    # Nobody looks for a node for what a quota forbids.
    if metric.nodes_evaluated == 0 and not metric.nodes_in_pool and not metric.quota_exhausted:
        found.append(f"there is no ready node in the pool {metric.node_pool or 'default'}")
    empty = sorted(name for name, count in (metric.nodes_available or {}).items() if not count)
    found += [f"there is no ready node in the datacenter {name}" for name in empty]
    found += [f"{_nodes(count)} kept out by {what.rstrip()}" for what, count in _largest(metric.constraint_filtered)]
    found += [f"{_nodes(count)} of class {what} kept out" for what, count in _largest(metric.class_filtered)]
    found += [f"{format_shortage(what)} on {_nodes(count)}" for what, count in _largest(metric.dimension_exhausted)]
    for what in metric.quota_exhausted or ():
        # Of children that wait for each other it is their parent that says so.
        found.append(what if what.startswith("max_running ") else f"the quota of its namespace: {what}")
    if not found and metric.nodes_exhausted:
        found.append(f"{_nodes(metric.nodes_exhausted)} full")
    return found or ["no node fits"]


def find_unplaced_groups(evaluations: Iterable["Evaluation"]) -> "Mapping[str, AllocMetric]":
    """By group: what waits for room now. Empty where nothing does."""
    newest = sorted(evaluations, key=lambda one: one.modify_index, reverse=True)
    waiting = {one.id for one in newest if one.status == "blocked"}
    for one in newest:
        if one.failed_tg_allocs and (one.id in waiting or one.blocked_eval in waiting):
            return one.failed_tg_allocs
    return {}


def render_unplaced_groups(unplaced: "Mapping[str, AllocMetric]") -> list[str]:
    from wharf.cli.common.rendering import style_dim

    lines: list[str] = []
    for group, metric in sorted(unplaced.items()):
        lines.append(f"{group}: {metric.coalesced_failures + 1} not placed")
        lines += [f"  {style_dim('·')} {reason}" for reason in list_placement_failures(metric)]
    return lines


class FailureSummary(NamedTuple):
    text: str
    newest_allocation: "AllocationStub"
    """Of those of which it is said."""
    ended_task: str
    """That ended by itself, so that what it printed may tell more; else empty."""


def summarize_failures(allocations: "Iterable[AllocationStub]") -> list[FailureSummary]:
    """One line for each that failed, the newest first: what ended it. Those that ended alike are told once."""
    from wharf.contract.model.allocations.task_event_messages import describe_last_failure

    failed = [one for one in allocations if one.client_status in ("failed", "lost") or _is_unwell(one)]
    found: dict[str, list[AllocationStub]] = {}
    for one in sorted(failed, key=lambda one: -one.modify_time):
        why = describe_last_failure(one.task_states)
        if why:
            found.setdefault(why, []).append(one)
    return [
        FailureSummary(
            f"{alike[0].name} ({alike[0].id[:8]}){f' and {len(alike) - 1} more' if len(alike) > 1 else ''}: {why}",
            alike[0],
            _ended_by_itself(alike[0]),
        )
        for why, alike in list(found.items())[:MAX_FAILURES_SHOWN]
    ]


def _ended_by_itself(one: "AllocationStub") -> str:
    from wharf.contract.model.allocations.task_event_messages import find_last_failure

    last = find_last_failure(one.task_states)
    return last[0] if last is not None and last[1].type == "Terminated" else ""


def find_common_exit_code(failed: "Iterable[AllocationStub]") -> int:
    """What tasks of all of these ended with, if it is the same for all; a signal counts as 128 more. Else 0."""
    codes = {_exit_code(one) for one in failed}
    return codes.pop() if len(codes) == 1 else 0


def _exit_code(one: "AllocationStub") -> int:
    """Of the task that failed last."""
    ends = [
        (event.time, event.exit_code, event.signal)
        for state in (one.task_states or {}).values()
        if state.failed
        for event in state.events or ()
        if event.type == "Terminated"
    ]
    if not ends:
        return 0
    _, code, signal = max(ends)
    return SIGNAL_EXIT_CODE_BASE + signal if signal else code if 0 < code < SIGNAL_EXIT_CODE_BASE * 2 else 0


def _is_unwell(one: "AllocationStub") -> bool:
    return one.deployment_status is not None and one.deployment_status.healthy is False


def format_shortage(dimension: str) -> str:
    """What nodes have too little of; of ports, devices and places the dimension says itself what is the matter."""
    if dimension in ("cpu", "memory", "disk"):
        return f"too little {dimension}"
    return "too few cores" if dimension == "cores" else dimension


def _largest(figures: Mapping[str, int] | None) -> list[tuple[str, int]]:
    return sorted((figures or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


LAST_LINE_READ_BYTES: Final = 1_024
MAX_LAST_LINE_CHARS: Final = 200


def read_last_line(session: Session, allocation: "AllocationStub", task: str) -> str:
    """Of its errors, or else of the rest. Empty where there is none, or nobody tells it."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    for stream in ("stderr", "stdout"):
        asked = session.client.files.logs(
            allocation.id, task, type=stream, origin="end", offset=LAST_LINE_READ_BYTES, namespace=allocation.namespace
        )
        try:
            lines = b"".join(asked).decode(errors="replace").split("\n")
        except (Refusal, Unreachable):
            continue
        if found := next((line for line in map(strip_unprintable, reversed(lines)) if line), ""):
            return found[-MAX_LAST_LINE_CHARS:]
    return ""


def strip_unprintable(line: str) -> str:
    """Nothing in it moves a terminal's hand."""
    return "".join(sign for sign in line if sign.isprintable()).strip()
