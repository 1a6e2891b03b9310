"""Resolves the two sides of a constraint on a node and compares them (scheduling.md 2.4).

A side is a literal, or a reference such as `${attr.kernel.name}` to something that the node reports.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from wharf.contract.model.jobs.constraints import Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.version_constraints import VersionDialect, VersionError, parse_version_constraints
from wharf.contract.model.nodes.node import Node
from wharf.languages.patterns import PatternError, Re2Pattern

NODE_FIELDS: Final = {
    "node.unique.id": "id",
    "node.unique.name": "name",
    "node.datacenter": "datacenter",
    "node.class": "node_class",
    "node.pool": "node_pool",
}
"""References to fields of the node record."""
UNIQUE_TARGET_PREFIXES: Final = ("${node.unique.", "${attr.unique.", "${meta.unique.", "${unique.")
"""Targets with these prefixes differ from node to node and do not count in node classes."""


def list_group_constraints(group: TaskGroup) -> list[Constraint]:
    """Return the constraints of the group and of its tasks."""
    task_constraints = (constraint for task in group.tasks or () for constraint in task.constraints or ())
    return [*(group.constraints or ()), *task_constraints]


def is_variable_target(target: str) -> bool:
    """Return whether the target is a reference and not a literal."""
    return target.startswith("${")


def is_unique_target(target: str) -> bool:
    """Return whether the target refers to a value that differs from node to node."""
    return target.startswith(UNIQUE_TARGET_PREFIXES)


def resolve_target(target: str, node: Node) -> str | None:
    """Return the text of the target on this node, or `None` if the node has no such value."""
    if not is_variable_target(target):
        return target
    if not target.endswith("}"):
        return None
    name = target[2:-1]
    if name.startswith("attr."):
        return (node.attributes or {}).get(name[len("attr.") :])
    if name.startswith("meta."):
        return (node.meta or {}).get(name[len("meta.") :])
    field = NODE_FIELDS.get(name)
    return getattr(node, field) if field is not None else None


N = TypeVar("N", int, float, bytes)

CROSS_ALLOCATION_OPERANDS: Final = frozenset((Operand.DISTINCT_HOSTS, Operand.DISTINCT_PROPERTY))
"""Operands that depend on other allocations, not on the node alone."""


def evaluate_comparison(operand: str, left: str | None, right: str | None) -> bool:
    """Return whether the comparison is true. `None` stands for a value that the node does not have."""
    compare = _COMPARISONS.get(operand)
    return compare is not None and compare(left, right)


def satisfies_constraint(node: Node, constraint: Constraint) -> bool:
    """Return whether the node satisfies the constraint."""
    return evaluate_comparison(
        constraint.operand, resolve_target(constraint.l_target, node), resolve_target(constraint.r_target, node)
    )


def _is_equal(left: str | None, right: str | None) -> bool:
    """Return whether both sides are the same text. A missing side equals nothing."""
    return left is not None and left == right


def _is_different(left: str | None, right: str | None) -> bool:
    """Return whether the sides differ. A missing side equals an empty text."""
    return (left or "") != (right or "")


def _make_order_comparison(accepts_order: Callable[[int], bool]) -> Callable[[str | None, str | None], bool]:
    """Return a comparison that is true if `accepts_order` accepts the order: -1 less, 0 equal, 1 greater."""

    def compare(left: str | None, right: str | None) -> bool:
        if left is None or right is None:
            return False
        order = _compare_order(left, right)
        return order is not None and accepts_order(order)

    return compare


def _compare_order(left: str, right: str) -> int | None:
    """Return -1, 0 or 1, or `None` if a side is not a number (NaN).

    The sides are compared as integers if both are integers, else as numbers, else byte by byte.
    """
    for parse in (_parse_integer, _parse_float):
        numbers = parse(left), parse(right)
        if numbers[0] is not None and numbers[1] is not None:
            return _get_sign(numbers[0], numbers[1])
    return _get_sign(left.encode(), right.encode())


def _get_sign(left: N, right: N) -> int | None:
    """Return -1, 0 or 1, or `None` if the values have no order."""
    if left == right:
        return 0
    if left < right:
        return -1
    return 1 if left > right else None


def _parse_integer(text: str) -> int | None:
    """Return the text as a 64-bit integer, or `None`."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _parse_float(text: str) -> float | None:
    """Return the text as a float, or `None`."""
    try:
        return float(text) if "_" not in text and text == text.strip() else None
    except ValueError:
        return None


def _make_version_comparison(dialect: VersionDialect) -> Callable[[str | None, str | None], bool]:
    """Return a comparison that matches the left side against version constraints on the right."""

    def compare(left: str | None, right: str | None) -> bool:
        if left is None or right is None:
            return False
        try:
            return parse_version_constraints(right, dialect).allows(left)
        except VersionError:
            return False

    return compare


def _matches_pattern(left: str | None, right: str | None) -> bool:
    """Return whether the left side matches the regular expression on the right."""
    if left is None or right is None:
        return False
    pattern = _compile_pattern(right)
    return pattern is not None and pattern.matches(left)


@lru_cache(maxsize=1024)
def _compile_pattern(text: str) -> Re2Pattern | None:
    """Return the compiled regular expression, or `None` if it is invalid."""
    try:
        return Re2Pattern(text)
    except PatternError:
        return None


def _split_list(text: str) -> set[str]:
    """Return the items of a comma-separated list."""
    return {item.strip() for item in text.split(",")}


def _contains_all(left: str | None, right: str | None) -> bool:
    """Return whether the left list contains every item of the right list."""
    return left is not None and right is not None and _split_list(right) <= _split_list(left)


def _contains_any(left: str | None, right: str | None) -> bool:
    """Return whether the left list contains at least one item of the right list."""
    return left is not None and right is not None and bool(_split_list(right) & _split_list(left))


_COMPARISONS: Final[dict[str, Callable[[str | None, str | None], bool]]] = {
    Operand.EQUALS: _is_equal,
    Operand.EQUALS_TWICE: _is_equal,
    Operand.IS: _is_equal,
    Operand.DIFFERS: _is_different,
    Operand.NOT: _is_different,
    Operand.LESS: _make_order_comparison(lambda order: order < 0),
    Operand.AT_MOST: _make_order_comparison(lambda order: order <= 0),
    Operand.GREATER: _make_order_comparison(lambda order: order > 0),
    Operand.AT_LEAST: _make_order_comparison(lambda order: order >= 0),
    Operand.REGEXP: _matches_pattern,
    Operand.VERSION: _make_version_comparison(VersionDialect.VERSION),
    Operand.SEMVER: _make_version_comparison(VersionDialect.SEMVER),
    Operand.SET_CONTAINS: _contains_all,
    Operand.SET_CONTAINS_ALL: _contains_all,
    Operand.SET_CONTAINS_ANY: _contains_any,
    Operand.IS_SET: lambda left, _right: left is not None,
    Operand.IS_NOT_SET: lambda left, _right: left is None,
}


def is_distinct_hosts_enabled(right: str) -> bool:
    """Return whether this right side of `distinct_hosts` enables the constraint.

    Only the spellings of false disable it.
    """
    return right not in ("0", "f", "F", "FALSE", "false", "False")
