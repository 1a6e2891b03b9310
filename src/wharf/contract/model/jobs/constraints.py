"""Constraints, affinities and spreads: requirements and preferences of a job for its nodes.

Holds the records only. The scheduler decides whether a node satisfies them.
"""

from enum import StrEnum

from wharf.contract.model.record import Record


class Operand(StrEnum):
    """How a constraint or an affinity compares its left and its right value.

    A submitted operand is any text until it is validated.
    """

    EQUALS = "="
    EQUALS_TWICE = "=="  # The same as `EQUALS`.
    IS = "is"  # The same as `EQUALS`.
    DIFFERS = "!="
    NOT = "not"  # The same as `DIFFERS`.
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    REGEXP = "regexp"  # The left value matches the regular expression.
    VERSION = "version"  # The left version satisfies conditions such as `>= 1.2`.
    SEMVER = "semver"  # The same, with the rules of semantic versioning.
    SET_CONTAINS = "set_contains"  # The same as `SET_CONTAINS_ALL`.
    SET_CONTAINS_ALL = "set_contains_all"  # The left list contains every word of the right one.
    SET_CONTAINS_ANY = "set_contains_any"  # The left list contains a word of the right one.
    IS_SET = "is_set"  # The node has the left attribute.
    IS_NOT_SET = "is_not_set"
    DISTINCT_HOSTS = "distinct_hosts"  # All allocations run on different nodes.
    DISTINCT_PROPERTY = "distinct_property"  # At most a number of allocations per value of the left attribute.


class Constraint(Record):
    """A condition that a node must satisfy to run a job, group or task: the comparison of two values by an operand."""

    l_target: str = ""  # Usually a node attribute, such as `${attr.kernel.name}`.
    r_target: str = ""  # Usually a text to compare with.
    operand: str = ""  # An `Operand`.

    def __str__(self) -> str:
        return f"{self.l_target} {self.operand} {self.r_target}"


class Affinity(Record):
    """A preference for nodes that satisfy a comparison. With a negative weight, these nodes are avoided."""

    l_target: str = ""  # Usually a node attribute, such as `${attr.kernel.name}`.
    r_target: str = ""  # Usually a text to compare with.
    operand: str = ""  # An `Operand`.
    weight: int = 50  # -100 to 100, not 0.


class SpreadTarget(Record):
    """The share of the allocations that should run on nodes with one value of an attribute."""

    value: str = ""  # The value of the attribute, such as "dc1".
    percent: int = 0  # 0 to 100.


class Spread(Record):
    """A preference to distribute allocations over the values of a node attribute."""

    attribute: str = ""  # Such as `${node.datacenter}`.
    weight: int = 50  # 1 to 100; compared with other spreads.
    spread_target: tuple[SpreadTarget, ...] | None = None  # Null: evenly over all values.
