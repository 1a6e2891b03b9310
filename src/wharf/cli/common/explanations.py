"""Renders explanations of jobs, evaluations and allocations as text: a summary, wait reasons, then each group."""

from typing import TYPE_CHECKING

from wharf.cli.common.node_reasons import count_nodes, list_node_reasons
from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.explanations import (
        AllocationExplanation,
        EvaluationExplanation,
        GroupExplanation,
        JobExplanation,
        PlacementExplanation,
    )


def render_job_explanation(session: Session, explanation: "JobExplanation") -> str:
    """Return the explanation of a job: summary, wait reasons, queue position, steps, groups and placements.

    Of a run, only groups are shown that lack resources: the steps show the state of the others.
    """
    from wharf.cli.common.failures import list_explained_failures, render_failures
    from wharf.cli.common.rendering import render_heading, render_section, render_table

    lines = [render_heading(explanation.text), *_render_wait_reasons(explanation)]
    if explanation.queue_length > 1:
        position = f"position {explanation.queue_place} of {explanation.queue_length}"
        lines.append(render_section("In the queue", position))
    if explanation.steps:
        rows = [[step.step, step.text] for step in explanation.steps]
        lines.append(render_section("Steps", render_table(["Step", "State"], rows)))
    lines += [
        render_section(f"Group {group.group}", _render_group(group, explanation.text))
        for group in explanation.groups
        if group.text or not explanation.steps
    ]
    if failures := render_failures(session, list_explained_failures(explanation)):
        lines.append(render_section("Failed", failures))
    if explanation.placements:
        lines.append(render_section("Placements", _render_placements(session, explanation.placements)))
    return "\n".join(lines)


def render_evaluation_explanation(explanation: "EvaluationExplanation") -> str:
    """Return the explanation of an evaluation: summary, wait reasons, neighbours in its chain, and the job's state."""
    from wharf.cli.common.rendering import render_heading, render_section

    lines = [render_heading(explanation.text), *_render_wait_reasons(explanation)]
    if explanation.before:
        lines.append(render_section("Evaluations before", _render_bullets(explanation.before)))
    if explanation.after:
        lines.append(render_section("Evaluations after", _render_bullets(explanation.after)))
    job = explanation.job
    # The summary already has the wait reasons of the job.
    if job is not None and not any(wait.text in explanation.text for wait in job.waits):
        lines.append(render_section("The job now", job.text))
    return "\n".join(lines)


def render_allocation_explanation(session: Session, explanation: "AllocationExplanation") -> str:
    """Return the explanation of an allocation: summary, wait reasons, history, and scores of the best nodes."""
    from wharf.cli.common.rendering import render_heading, render_section, render_table

    lines = [render_heading(explanation.text), *_render_wait_reasons(explanation)]
    if explanation.story:
        lines.append(render_section("History", _render_bullets(explanation.story)))
    scores = explanation.placement.scores
    if scores:
        names = sorted({name for node in scores for name in node.scores or {}} - {"normalized-score"})
        rows = [
            [
                session.shorten_id(node.node_id) + (" (here)" if node.node_id == explanation.placement.node_id else ""),
                *(f"{value:.3f}" if (value := (node.scores or {}).get(name)) else "-" for name in names),
                f"{node.norm_score:.3f}",
            ]
            for node in scores
        ]
        lines.append(render_section("Best nodes at placement", render_table(["Node", *names, "Score"], rows)))
    return "\n".join(lines)


def _render_wait_reasons(explanation: "JobExplanation | EvaluationExplanation | AllocationExplanation") -> list[str]:
    """Return a section with the wait reasons that the summary does not already have, or nothing."""
    from wharf.cli.common.rendering import render_section
    from wharf.contract.model.explanations import JobExplanation

    subject = f"{explanation.job_id} " if isinstance(explanation, JobExplanation) else ""
    reasons = [f"{subject}{wait.text}" for wait in explanation.waits if wait.text not in explanation.text]
    return [render_section("Further reasons", _render_bullets(reasons))] if reasons else []


def _render_bullets(texts: "Sequence[str]") -> str:
    return "\n".join(f"· {text}" for text in texts)


def _render_group(group: "GroupExplanation", summary: str) -> str:
    """Return the counts of a group, and the reasons why nodes were excluded.

    Texts that `summary` contains are left out.
    """
    running = f"{group.running - group.canaries} of {group.wanted}"
    if not group.is_array:
        counts = [f"{running} running"]
    else:
        counts = [f"{running} open elements running" if group.wanted else "all elements have ended"]
    for count, label in (
        (group.canaries, "running as canary"),
        (group.starting, "starting"),
        (group.complete, "complete"),
    ):
        counts.append(f"{count} {label}" if count else "")
    # No nodes were considered if nothing waits for capacity: the missing allocations ended and are not replaced yet.
    # Elements of an array wait, whether for capacity or for others.
    missing_label = "waiting" if group.is_array else "not placed" if group.nodes or group.text else "not replaced"
    counts.append(f"{group.unplaced} {missing_label}" if group.unplaced else "")
    lines = [", ".join(count for count in counts if count)]
    lines += [group.text] if group.text not in summary else []
    if group.unplaced and group.text:
        found = f", {group.fitting:,} have room now" if group.fitting or group.exhausted else ", none is suitable"
        lines.append(f"{count_nodes(group.nodes)} considered{found if group.nodes else ''}")
    lines += [f"  · {reason}" for reason in list_node_reasons(group)]
    reason_count = sum(exclusion.nodes for exclusion in group.excluded)
    reason_count += sum(shortage.nodes for shortage in group.exhausted)
    if reason_count > group.nodes > 0:
        lines.append("  (a node with several reasons is counted for each)")
    lines += [group.smallest_change] if group.smallest_change not in f"{summary}\n{group.text}" else []
    return "\n".join(lines)


def _render_placements(session: Session, placements: "Sequence[PlacementExplanation]") -> str:
    """Return a table of a job's allocations: node, score of the node, and how many nodes were feasible."""
    from wharf.cli.common.rendering import natural_sort_key, render_table

    rows: list[list[object]] = [
        [
            placement.name,
            session.shorten_id(placement.alloc_id),
            placement.node_name or session.shorten_id(placement.node_id),
            f"{placement.scores[0].norm_score:.3f}" if placement.scores else "",
            f"{placement.nodes_evaluated - placement.nodes_filtered} of {placement.nodes_evaluated}",
        ]
        for placement in sorted(placements, key=lambda placement: natural_sort_key(placement.name))
    ]
    return render_table(
        ["Name", "Allocation", "Node", "Best score", "Feasible nodes"],
        rows,
        optional_columns=("Feasible nodes", "Best score", "Allocation"),
        shortenable_columns=("Name", "Node"),
    )
