"""Why work has no place: the figures of a placement that failed, as sentences."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wharf.model.allocation import AllocationStub
    from wharf.model.evaluation import Evaluation
    from wharf.model.metric import AllocMetric


REASONS_TOLD: Final = 3
SIGNALLED: Final = 128


def why_not_placed(metric: "AllocMetric") -> list[str]:
    """One line a reason, the widest first."""
    found: list[str] = []
    # Nobody looks for a node for what a quota forbids.
    if metric.nodes_evaluated == 0 and not metric.nodes_in_pool and not metric.quota_exhausted:
        found.append(f"there is no ready node in the pool {metric.node_pool or 'default'}")
    empty = sorted(name for name, count in (metric.nodes_available or {}).items() if not count)
    found += [f"there is no ready node in the datacenter {name}" for name in empty]
    found += [f"{_nodes(count)} kept out by {what.rstrip()}" for what, count in _largest(metric.constraint_filtered)]
    found += [f"{_nodes(count)} of class {what} kept out" for what, count in _largest(metric.class_filtered)]
    found += [f"{short_of(what)} on {_nodes(count)}" for what, count in _largest(metric.dimension_exhausted)]
    for what in metric.quota_exhausted or ():
        # Of children that wait for each other it is their parent that says so.
        found.append(what if what.startswith("max_running ") else f"the quota of its namespace: {what}")
    if not found and metric.nodes_exhausted:
        found.append(f"{_nodes(metric.nodes_exhausted)} full")
    return found or ["no node fits"]


def unplaced_of(evaluations: Iterable["Evaluation"]) -> "Mapping[str, AllocMetric]":
    """By group: what waits for room now. Empty where nothing does."""
    newest = sorted(evaluations, key=lambda one: one.modify_index, reverse=True)
    waiting = {one.id for one in newest if one.status == "blocked"}
    for one in newest:
        if one.failed_tg_allocs and (one.id in waiting or one.blocked_eval in waiting):
            return one.failed_tg_allocs
    return {}


def unplaced_lines(unplaced: "Mapping[str, AllocMetric]") -> list[str]:
    from wharf.cli.tables import dim

    lines: list[str] = []
    for group, metric in sorted(unplaced.items()):
        lines.append(f"{group}: {metric.coalesced_failures + 1} not placed")
        lines += [f"  {dim('·')} {reason}" for reason in why_not_placed(metric)]
    return lines


class WentWrong(NamedTuple):
    said: str
    newest: "AllocationStub"
    """Of those of which it is said."""
    task: str
    """That ended by itself, so that what it printed may tell more; else empty."""


def what_went_wrong(allocations: "Iterable[AllocationStub]") -> list[WentWrong]:
    """One line for each that failed, the newest first: what ended it. Those that ended alike are told once."""
    from wharf.model.task_event_text import last_failure

    failed = [one for one in allocations if one.client_status in ("failed", "lost") or _is_unwell(one)]
    found: dict[str, list[AllocationStub]] = {}
    for one in sorted(failed, key=lambda one: -one.modify_time):
        why = last_failure(one.task_states)
        if why:
            found.setdefault(why, []).append(one)
    return [
        WentWrong(
            f"{alike[0].name} ({alike[0].id[:8]}){f' and {len(alike) - 1} more' if len(alike) > 1 else ''}: {why}",
            alike[0],
            _ended_by_itself(alike[0]),
        )
        for why, alike in list(found.items())[:REASONS_TOLD]
    ]


def _ended_by_itself(one: "AllocationStub") -> str:
    from wharf.model.task_event_text import last_to_fail

    last = last_to_fail(one.task_states)
    return last[0] if last is not None and last[1].type == "Terminated" else ""


def common_exit_code(failed: "Iterable[AllocationStub]") -> int:
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
    return SIGNALLED + signal if signal else code if 0 < code < SIGNALLED * 2 else 0


def _is_unwell(one: "AllocationStub") -> bool:
    return one.deployment_status is not None and one.deployment_status.healthy is False


def short_of(dimension: str) -> str:
    """What nodes have too little of; of ports, devices and places the dimension says itself what is the matter."""
    if dimension in ("cpu", "memory", "disk"):
        return f"too little {dimension}"
    return "too few cores" if dimension == "cores" else dimension


def _largest(figures: Mapping[str, int] | None) -> list[tuple[str, int]]:
    return sorted((figures or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
