"""An explanation as people read it: the sentence, what is waited for, then group by group why nodes are left out."""

from typing import TYPE_CHECKING

from wharf.cli.reasons import short_of
from wharf.cli.speaking import Talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.model.explanation import (
        AllocationExplanation,
        EvaluationExplanation,
        Exclusion,
        Explanation,
        GroupExplanation,
        PlacementExplanation,
        Shortage,
    )


def explanation_told(talk: Talk, explanation: "Explanation") -> str:
    from wharf.cli.tables import heading, section

    lines = [heading(explanation.text), *_waits_told(explanation)]
    if explanation.queue_length > 1:
        lines.append(section("In the queue", f"place {explanation.queue_place} of {explanation.queue_length}"))
    lines += [section(f"Group {group.group}", _group_told(group, explanation.text)) for group in explanation.groups]
    if explanation.placements:
        lines.append(section("Where it is", _placements_told(talk, explanation.placements)))
    return "\n".join(lines)


def evaluation_told(explanation: "EvaluationExplanation") -> str:
    from wharf.cli.tables import heading, section

    lines = [heading(explanation.text), *_waits_told(explanation)]
    if explanation.before:
        lines.append(section("Before it", _listed(explanation.before)))
    if explanation.after:
        lines.append(section("After it", _listed(explanation.after)))
    job = explanation.job
    # What is waited for is of the job too, and has been said.
    if job is not None and not any(each.text in explanation.text for each in job.waits):
        lines.append(section("Its job now", job.text))
    return "\n".join(lines)


def allocation_told(talk: Talk, explanation: "AllocationExplanation") -> str:
    from wharf.cli.tables import heading, section, table

    lines = [heading(explanation.text), *_waits_told(explanation)]
    if explanation.story:
        lines.append(section("How it came here", _listed(explanation.story)))
    scores = explanation.placement.scores
    if scores:
        names = sorted({name for each in scores for name in each.scores or {}} - {"normalized-score"})
        rows = [
            [
                f"{talk.short(each.node_id)}{' (here)' if each.node_id == explanation.placement.node_id else ''}",
                *(f"{value:.3f}" if (value := (each.scores or {}).get(name)) else "-" for name in names),
                f"{each.norm_score:.3f}",
            ]
            for each in scores
        ]
        lines.append(section("The best nodes then", table(["Node", *names, "Score"], rows)))
    return "\n".join(lines)


def _waits_told(explanation: "Explanation | EvaluationExplanation | AllocationExplanation") -> list[str]:
    """The first sentence says the most urgent already; nothing is said twice."""
    from wharf.cli.tables import section

    waits = [each.text for each in explanation.waits if each.text not in explanation.text]
    return [section("It waits", _listed(waits))] if waits else []


def _listed(texts: "Sequence[str]") -> str:
    return "\n".join(f"· {text}" for text in texts)


def _group_told(group: "GroupExplanation", said: str) -> str:
    running = f"{group.running} of {group.wanted} running"
    counts = [running, f"{group.starting} starting" if group.starting else ""]
    # Where nodes were not asked nothing waits for room: what is missing ended, and is not tried again, or not yet.
    lacking = "not placed" if group.nodes or group.text else "missing"
    counts.append(f"{group.unplaced} {lacking}" if group.unplaced else "")
    lines = [", ".join(count for count in counts if count)]
    lines += [group.text] if group.text not in said else []
    if group.unplaced and group.text:
        looked_at = "1 node was" if group.nodes == 1 else f"{group.nodes:,} nodes were"
        lines.append(f"{looked_at} looked at, {group.fitting:,} would take one more now")
    lines += [f"  · {_excluded(each)}" for each in group.excluded]
    lines += [f"  · {_short(each)}" for each in group.exhausted]
    if sum(each.nodes for each in group.excluded) + sum(each.nodes for each in group.exhausted) > group.nodes:
        lines.append("  (a node that more than one of these holds for is counted in each)")
    lines += [group.smallest_change] if group.smallest_change not in f"{said}\n{group.text}" else []
    return "\n".join(lines)


def _excluded(exclusion: "Exclusion") -> str:
    return f"{_nodes(exclusion.nodes)} left out by {exclusion.rule}{_such_as(exclusion.examples)}"


def _short(shortage: "Shortage") -> str:
    least = f", {shortage.missing:,} {shortage.unit} missing at least" if shortage.missing else ""
    return f"{short_of(shortage.dimension)} on {_nodes(shortage.nodes)}{least}{_such_as(shortage.examples)}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def _such_as(examples: "Sequence[str]") -> str:
    return f" ({', '.join(examples)})" if examples else ""


def _placements_told(talk: Talk, placements: "Sequence[PlacementExplanation]") -> str:
    from wharf.cli.tables import in_order, table

    rows: list[list[object]] = [
        [
            each.name,
            talk.short(each.alloc_id),
            each.node_name or talk.short(each.node_id),
            f"{each.scores[0].norm_score:.3f}" if each.scores else "",
            f"{each.nodes_evaluated - each.nodes_filtered} of {each.nodes_evaluated}",
        ]
        for each in sorted(placements, key=lambda each: in_order(each.name))
    ]
    return table(["Name", "Allocation", "Node", "Best score", "Nodes that could"], rows)
