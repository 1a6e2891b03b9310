"""An explanation as people read it: the sentence, what is waited for, then group by group why nodes are left out."""

from typing import TYPE_CHECKING

from wharf.cli.common.failures import format_shortage
from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.explanations import (
        AllocationExplanation,
        EvaluationExplanation,
        Exclusion,
        GroupExplanation,
        JobExplanation,
        PlacementExplanation,
        Shortage,
    )


def render_job_explanation(session: Session, explanation: "JobExplanation") -> str:
    from wharf.cli.common.rendering import render_heading, render_section

    lines = [render_heading(explanation.text), *_waits_told(explanation)]
    if explanation.queue_length > 1:
        lines.append(render_section("In the queue", f"place {explanation.queue_place} of {explanation.queue_length}"))
    lines += [
        render_section(f"Group {group.group}", _group_told(group, explanation.text)) for group in explanation.groups
    ]
    if explanation.placements:
        lines.append(render_section("Where it is", _placements_told(session, explanation.placements)))
    return "\n".join(lines)


def render_evaluation_explanation(explanation: "EvaluationExplanation") -> str:
    from wharf.cli.common.rendering import render_heading, render_section

    lines = [render_heading(explanation.text), *_waits_told(explanation)]
    if explanation.before:
        lines.append(render_section("Before it", _listed(explanation.before)))
    if explanation.after:
        lines.append(render_section("After it", _listed(explanation.after)))
    job = explanation.job
    # What is waited for is of the job too, and has been said.
    if job is not None and not any(each.text in explanation.text for each in job.waits):
        lines.append(render_section("Its job now", job.text))
    return "\n".join(lines)


def render_allocation_explanation(session: Session, explanation: "AllocationExplanation") -> str:
    from wharf.cli.common.rendering import render_heading, render_section, render_table

    lines = [render_heading(explanation.text), *_waits_told(explanation)]
    if explanation.story:
        lines.append(render_section("How it came here", _listed(explanation.story)))
    scores = explanation.placement.scores
    if scores:
        names = sorted({name for each in scores for name in each.scores or {}} - {"normalized-score"})
        rows = [
            [
                f"{session.shorten_id(each.node_id)}{' (here)' if each.node_id == explanation.placement.node_id else ''}",
                *(f"{value:.3f}" if (value := (each.scores or {}).get(name)) else "-" for name in names),
                f"{each.norm_score:.3f}",
            ]
            for each in scores
        ]
        lines.append(render_section("The best nodes then", render_table(["Node", *names, "Score"], rows)))
    return "\n".join(lines)


def _waits_told(explanation: "JobExplanation | EvaluationExplanation | AllocationExplanation") -> list[str]:
    """The first sentence says the most urgent already; nothing is said twice."""
    from wharf.cli.common.rendering import render_section

    waits = [each.text for each in explanation.waits if each.text not in explanation.text]
    return [render_section("It waits", _listed(waits))] if waits else []


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
    return f"{format_shortage(shortage.dimension)} on {_nodes(shortage.nodes)}{least}{_such_as(shortage.examples)}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def _such_as(examples: "Sequence[str]") -> str:
    return f" ({', '.join(examples)})" if examples else ""


def _placements_told(session: Session, placements: "Sequence[PlacementExplanation]") -> str:
    from wharf.cli.common.rendering import natural_sort_key, render_table

    rows: list[list[object]] = [
        [
            each.name,
            session.shorten_id(each.alloc_id),
            each.node_name or session.shorten_id(each.node_id),
            f"{each.scores[0].norm_score:.3f}" if each.scores else "",
            f"{each.nodes_evaluated - each.nodes_filtered} of {each.nodes_evaluated}",
        ]
        for each in sorted(placements, key=lambda each: natural_sort_key(each.name))
    ]
    return render_table(["Name", "Allocation", "Node", "Best score", "Nodes that could"], rows)
