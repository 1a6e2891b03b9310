"""Texts of the reasons why nodes cannot take one more allocation of a group, one line for each reason."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.explanations import Exclusion, GroupExplanation, Shortage


def list_node_reasons(group: "GroupExplanation") -> list[str]:
    """Return why nodes cannot take one more allocation of the group, one line for each reason."""
    return [*map(_format_exclusion, group.excluded), *map(_format_node_shortage, group.exhausted)]


def _format_exclusion(exclusion: "Exclusion") -> str:
    text = exclusion.text or f"{count_nodes(exclusion.nodes)} excluded: {exclusion.rule}"
    return f"{text}{_format_examples(exclusion.examples, exclusion.nodes)}"


def _format_node_shortage(shortage: "Shortage") -> str:
    """Return how many nodes have too little of a resource, and the smallest missing amount."""
    from wharf.contract.model.allocations.placement_reasons import format_shortage

    unit = shortage.unit.removesuffix("s") if shortage.missing == 1 else shortage.unit  # 1 core, but 2 cores.
    missing = f", at least {shortage.missing:,} {unit} missing" if shortage.missing else ""
    nodes = count_nodes(shortage.nodes)
    return f"{format_shortage(shortage.dimension)} on {nodes}{missing}{_format_examples(shortage.examples, shortage.nodes)}"


def count_nodes(count: int) -> str:
    """Return the count with the word "node" or "nodes"."""
    return "1 node" if count == 1 else f"{count:,} nodes"


def _format_examples(examples: "Sequence[str]", nodes: int) -> str:
    """Return the names of some of the nodes, and the number of the others."""
    more = f" and {nodes - len(examples):,} more" if nodes > len(examples) else ""
    return f" ({', '.join(examples)}{more})" if examples else ""
