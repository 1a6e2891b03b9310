"""Resolves the two sides of a constraint on a node and compares them (scheduling.md 2.4).

A side is a literal such as `linux`, or a reference such as `${attr.kernel.name}` to something that the node reports.
Both are called targets.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeVar

from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.version_constraints import VersionDialect, VersionError, parse_version_constraints
from wharf.contract.model.nodes.node import Node
from wharf.languages.patterns import PatternError, compile_stored_pattern

NODE_FIELDS: Final = {
    "node.unique.id": "id",
    "node.unique.name": "name",
    "node.datacenter": "datacenter",
    "node.class": "node_class",
    "node.pool": "node_pool",
}
"""By the name in a reference such as `${node.class}`, the field of the node record that it refers to."""
UNIQUE_TARGET_PREFIXES: Final = ("${node.unique.", "${attr.unique.", "${meta.unique.", "${unique.")
"""How references begin whose values differ from node to node. They are left out when nodes are grouped into classes."""
MAX_CACHED_LISTS: Final = 64
"""Limits memory: a list of a constraint has at most 16,384 characters, and takes at most 0.7 MB as a set."""
COMPARISONS_PER_STEP: Final = 20
"""Comparisons with the value of a node in 10 microseconds, which is one step of an evaluation."""
PATTERN_COMPARISONS: Final = 40
"""How many comparisons take as long as a search with a short regular expression."""
CHARS_PER_STEP: Final = 200
"""Characters of constraints that are parsed in one step."""


def list_group_constraints(group: TaskGroup) -> list[Constraint]:
    """Return the constraints of the group and of its tasks, without those of the job."""
    task_constraints = (constraint for task in group.tasks or () for constraint in task.constraints or ())
    return [*(group.constraints or ()), *task_constraints]


def list_group_affinities(group: TaskGroup) -> list[Affinity]:
    """Return the affinities of the group and of its tasks, without those of the job."""
    task_affinities = (affinity for task in group.tasks or () for affinity in task.affinities or ())
    return [*(group.affinities or ()), *task_affinities]


def estimate_comparison_steps(constraints: Iterable[Constraint | Affinity], node_count: int) -> int:
    """Return about how many steps of 10 microseconds it takes to compare the constraints with `node_count` nodes."""
    comparisons = chars = 0
    for constraint in constraints:
        size = len(constraint.r_target)
        chars += size
        comparisons += PATTERN_COMPARISONS + size if constraint.operand == Operand.REGEXP else 1
    return comparisons * node_count // COMPARISONS_PER_STEP + chars // CHARS_PER_STEP


def is_variable_target(target: str) -> bool:
    """Return whether the target (a side of a constraint) is a reference such as `${node.class}` and not a literal."""
    return target.startswith("${")


def is_unique_target(target: str) -> bool:
    """Return whether the target refers to a value that differs from node to node, such as `${node.unique.name}`."""
    return target.startswith(UNIQUE_TARGET_PREFIXES)


def resolve_target(target: str, node: Node) -> str | None:
    """Return the value of the target (a side of a constraint) on this node.

    A literal is its own value. A reference such as `${attr.kernel.name}` is looked up in the attributes, the metadata
    or the fields of the node. Return `None` if the node has no such value or the reference is invalid.
    """
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
"""Operands of constraints that depend on the placement of other allocations, not on the node alone."""


def evaluate_comparison(operand: str, left: str | None, right: str | None) -> bool:
    """Return whether the comparison `left operand right` is true, such as `linux = linux`.

    `None` stands for a value that the node does not have. An unknown operand is false.
    """
    compare = _COMPARISONS.get(operand)
    return compare is not None and compare(left, right)


def satisfies_constraint(node: Node, constraint: Constraint) -> bool:
    """Return whether the comparison of the two sides of the constraint is true on this node."""
    return evaluate_comparison(
        constraint.operand, resolve_target(constraint.l_target, node), resolve_target(constraint.r_target, node)
    )


def _is_equal(left: str | None, right: str | None) -> bool:
    """Return whether both sides are the same text. A missing side (`None`) equals nothing, not even another one."""
    return left is not None and left == right


def _is_different(left: str | None, right: str | None) -> bool:
    """Return whether the sides are different texts. A missing side (`None`) counts as an empty text."""
    return (left or "") != (right or "")


def _make_order_comparison(accepts_order: Callable[[int], bool]) -> Callable[[str | None, str | None], bool]:
    """Return a comparison of two texts that is true if `accepts_order` accepts their order.

    The order is -1 if the left side is less than the right side, 0 if they are equal, and 1 if it is greater.
    """

    def compare(left: str | None, right: str | None) -> bool:
        """Return whether `accepts_order` accepts the order of both sides; false if a side is missing or NaN."""
        if left is None or right is None:
            return False
        order = _compare_order(left, right)
        return order is not None and accepts_order(order)

    return compare


def _compare_order(left: str, right: str) -> int | None:
    """Return -1 if `left` is less than `right`, 0 if they are equal, 1 if it is greater, `None` if one of them is NaN.

    The sides are compared as integers if both are integers, else as floats if both are floats, else byte by byte.
    """
    for parse in (_parse_integer, _parse_float):
        numbers = parse(left), parse(right)
        if numbers[0] is not None and numbers[1] is not None:
            return _get_sign(numbers[0], numbers[1])
    return _get_sign(left.encode(), right.encode())


def _get_sign(left: N, right: N) -> int | None:
    """Return -1 if `left` is less than `right`, 0 if they are equal, 1 if it is greater, `None` if they have no order.

    Only NaN, the float that is not a number, has no order.
    """
    if left == right:
        return 0
    if left < right:
        return -1
    return 1 if left > right else None


def _parse_integer(text: str) -> int | None:
    """Return the integer that the text represents, or `None` if it is not a decimal integer of at most 64 bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _parse_float(text: str) -> float | None:
    """Return the float that the text represents, or `None` if it is not a number."""
    try:
        return float(text) if "_" not in text and text == text.strip() else None
    except ValueError:
        return None


def _make_version_comparison(dialect: VersionDialect) -> Callable[[str | None, str | None], bool]:
    """Return a comparison of a version on the left side with version constraints, such as `>= 1.2`, on the right side.

    The dialect says how both are parsed: as versions in general or as semantic versions.
    """

    def compare(left: str | None, right: str | None) -> bool:
        """Return whether the version satisfies the constraints; false if a side is missing or invalid."""
        if left is None or right is None:
            return False
        try:
            return parse_version_constraints(right, dialect).allows(left)
        except VersionError:
            return False

    return compare


def _matches_pattern(left: str | None, right: str | None) -> bool:
    """Return whether the left side matches the regular expression on the right side.

    False if a side is missing, the expression is invalid or the match could take too long.
    """
    if left is None or right is None:
        return False
    try:
        return compile_stored_pattern(right).matches_cheaply(left)
    except PatternError:
        return False


def _split_list(text: str) -> set[str]:
    """Return the items of a comma-separated list as a set, without spaces around them."""
    return {item.strip() for item in text.split(",")}


@lru_cache(maxsize=MAX_CACHED_LISTS)
def _split_list_once(text: str) -> frozenset[str]:
    """Return the items of a list that is compared with values of many nodes. To split 80 kB takes 4 ms."""
    return frozenset(_split_list(text))


def _contains_all(left: str | None, right: str | None) -> bool:
    """Return whether the left comma-separated list contains every item of the right one; false if a side is missing."""
    return left is not None and right is not None and _split_list_once(right) <= _split_list(left)


def _contains_any(left: str | None, right: str | None) -> bool:
    """Return whether two comma-separated lists have at least one item in common; false if a side is missing."""
    return left is not None and right is not None and bool(_split_list_once(right) & _split_list(left))


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
    """Return whether a `distinct_hosts` constraint with this right side is enabled.

    It is, unless the right side is a spelling of false, such as `0` or `False`.
    """
    return right not in ("0", "f", "F", "FALSE", "false", "False")
