"""Explain what an evaluation could not place when it was processed. What would help now is not known here."""

from wharf.cluster.operations.explanations.text import describe_quota_shortage, format_allocation_count
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.explanations import Exclusion, GroupExplanation, Shortage


def describe_past_shortages(evaluation: Evaluation) -> str:
    """Return why an evaluation could not place all allocations; empty if it placed them."""
    if not evaluation.failed_tg_allocs:
        return ""
    if evaluation.quota_limit_reached:
        return f'the quota "{evaluation.quota_limit_reached}" is used up: {describe_quota_shortage(evaluation)}'
    groups = sorted(evaluation.failed_tg_allocs.items())
    return "; ".join(explain_past_shortage(evaluation, name, metric).text for name, metric in groups)


def explain_past_shortage(evaluation: Evaluation, group: str, metric: AllocMetric) -> GroupExplanation:
    """Return why the evaluation could not place a group. What would help now is in the explanation of its job."""
    unplaced = metric.coalesced_failures + 1
    if (wait := evaluation.find_lock_wait(group)) is not None:
        return GroupExplanation(
            group=group, unplaced=wait.count, text=f"{group} needed the lock {wait.key}, which was not free"
        )
    excluded = tuple(
        Exclusion(rule=rule.rstrip(), nodes=nodes) for rule, nodes in _sort_by_count(metric.constraint_filtered)
    )
    exhausted = tuple(
        Shortage(dimension=what, nodes=nodes) for what, nodes in _sort_by_count(metric.dimension_exhausted)
    )
    parts = [each.describe() for each in excluded]
    parts += [f"{each.nodes} had too little {each.dimension}" for each in exhausted]
    reasons_text = f" ({', '.join(parts)})" if parts else ""
    subject = f"none of {metric.nodes_evaluated} nodes could" if metric.nodes_evaluated else "no node could"
    return GroupExplanation(
        group=group,
        unplaced=unplaced,
        text=f"{group} lacked {format_allocation_count(unplaced)}: {subject} run one{reasons_text}",
        nodes=metric.nodes_evaluated,
        excluded=excluded,
        exhausted=exhausted,
    )


def _sort_by_count(counts: dict[str, int] | None) -> list[tuple[str, int]]:
    """Return the pairs (name, count), the highest count first."""
    return sorted((counts or {}).items(), key=lambda entry: (-entry[1], entry[0]))
