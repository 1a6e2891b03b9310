"""Constraints, affinities and spreads: requirements and preferences of a job for its nodes.

Holds the records only. The scheduler decides whether a node satisfies them.
"""

from enum import StrEnum

from wharf.contract.model.record import Record


class Operand(StrEnum):
    """How a constraint or an affinity compares its two targets. A submitted operand is any text until it is validated."""

    EQUALS = "="
    EQUALS_TWICE = "=="
    IS = "is"
    DIFFERS = "!="
    NOT = "not"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    REGEXP = "regexp"
    VERSION = "version"
    SEMVER = "semver"
    SET_CONTAINS = "set_contains"
    SET_CONTAINS_ALL = "set_contains_all"
    SET_CONTAINS_ANY = "set_contains_any"
    IS_SET = "is_set"
    IS_NOT_SET = "is_not_set"
    DISTINCT_HOSTS = "distinct_hosts"
    DISTINCT_PROPERTY = "distinct_property"


class Constraint(Record):
    """A condition that a node must satisfy: the left target, compared with the right one by the operand."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""

    def __str__(self) -> str:
        return f"{self.l_target} {self.operand} {self.r_target}"


class Affinity(Record):
    """A preference for nodes that satisfy the comparison; with a negative weight, they are avoided."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""
    weight: int = 50


class SpreadTarget(Record):
    """The share of the allocations, in percent, that should have this value of the spread's attribute."""

    value: str = ""
    percent: int = 0


class Spread(Record):
    """A preference to distribute the allocations over the values of a node attribute."""

    attribute: str = ""
    weight: int = 50
    spread_target: tuple[SpreadTarget, ...] | None = None
