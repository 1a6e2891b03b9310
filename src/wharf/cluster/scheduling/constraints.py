"""What a constraint's side stands for on one node: a literal, or something that the node says of itself.

How two sides of a constraint or an affinity are compared (scheduling.md 2.4).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from wharf.contract.model.jobs.constraints import Operand
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
UNIQUE_TARGET_PREFIXES: Final = ("${node.unique.", "${attr.unique.", "${meta.unique.", "${unique.")
"""What begins so differs from node to node, and is no part of a node's class."""


def is_variable_target(target: str) -> bool:
    return target.startswith("${")


def is_unique_target(target: str) -> bool:
    return target.startswith(UNIQUE_TARGET_PREFIXES)


def resolve_target(target: str, node: Node) -> str | None:
    """The text that the target stands for; None: the node has nothing of that name."""
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
"""These ask about other allocations, not about the node."""


def evaluate_comparison(operand: str, left: str | None, right: str | None) -> bool:
    """Whether the comparison is true; None is a side that the node does not have."""
    compare = _COMPARISONS.get(operand)
    return compare is not None and compare(left, right)


def _equal(left: str | None, right: str | None) -> bool:
    return left is not None and left == right


def _differ(left: str | None, right: str | None) -> bool:
    """What is missing differs from all that is there, an empty text excepted."""
    return (left or "") != (right or "")


def _ordered(is_so: Callable[[int], bool]) -> Callable[[str | None, str | None], bool]:
    """`is_so` takes -1, 0 or 1: the left side is less, the same, or more."""

    def compare(left: str | None, right: str | None) -> bool:
        if left is None or right is None:
            return False
        order = _order(left, right)
        return order is not None and is_so(order)

    return compare


def _order(left: str, right: str) -> int | None:
    """As whole numbers, else as numbers, else byte by byte; None where a number is none of any order."""
    for read in (_whole, _number):
        numbers = read(left), read(right)
        if numbers[0] is not None and numbers[1] is not None:
            return _sign(numbers[0], numbers[1])
    return _sign(left.encode(), right.encode())


def _sign(left: N, right: N) -> int | None:
    if left == right:
        return 0
    if left < right:
        return -1
    return 1 if left > right else None


def _whole(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text and text == text.strip() else None
    except ValueError:
        return None


def _in_version(dialect: VersionDialect) -> Callable[[str | None, str | None], bool]:
    def compare(left: str | None, right: str | None) -> bool:
        if left is None or right is None:
            return False
        try:
            return parse_version_constraints(right, dialect).allows(left)
        except VersionError:
            return False

    return compare


def _matches(left: str | None, right: str | None) -> bool:
    if left is None or right is None:
        return False
    pattern = _pattern(right)
    return pattern is not None and pattern.matches(left)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> Re2Pattern | None:
    try:
        return Re2Pattern(text)
    except PatternError:
        return None


def _items(text: str) -> set[str]:
    return {item.strip() for item in text.split(",")}


def _contains_all(left: str | None, right: str | None) -> bool:
    return left is not None and right is not None and _items(right) <= _items(left)


def _contains_any(left: str | None, right: str | None) -> bool:
    return left is not None and right is not None and bool(_items(right) & _items(left))


_COMPARISONS: Final[dict[str, Callable[[str | None, str | None], bool]]] = {
    Operand.EQUALS: _equal,
    Operand.EQUALS_TWICE: _equal,
    Operand.IS: _equal,
    Operand.DIFFERS: _differ,
    Operand.NOT: _differ,
    Operand.LESS: _ordered(lambda order: order < 0),
    Operand.AT_MOST: _ordered(lambda order: order <= 0),
    Operand.GREATER: _ordered(lambda order: order > 0),
    Operand.AT_LEAST: _ordered(lambda order: order >= 0),
    Operand.REGEXP: _matches,
    Operand.VERSION: _in_version(VersionDialect.VERSION),
    Operand.SEMVER: _in_version(VersionDialect.SEMVER),
    Operand.SET_CONTAINS: _contains_all,
    Operand.SET_CONTAINS_ALL: _contains_all,
    Operand.SET_CONTAINS_ANY: _contains_any,
    Operand.IS_SET: lambda left, _right: left is not None,
    Operand.IS_NOT_SET: lambda left, _right: left is None,
}


def is_distinct_hosts_enabled(right: str) -> bool:
    """The right side of `distinct_hosts`: empty, true or no boolean at all switches it on."""
    return right not in ("0", "f", "F", "FALSE", "false", "False")
