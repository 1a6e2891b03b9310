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

    l_target: str = ""
    """The value on the left of the comparison.

    Usually it is an attribute of the node: `${attr.…}`, `${meta.…}`, `${node.datacenter}`, `${node.class}`,
    `${node.pool}`, `${node.unique.id}` or `${node.unique.name}`. `wharf node status --verbose --json NODE`
    shows the attributes of a node. A text without `${` stands for itself.

    Default: none; required except for `distinct_hosts`
    Limits: at most 16,384 characters
    Example: ${attr.kernel.name}
    """
    r_target: str = ""
    """The value on the right of the comparison: a text, a regular expression, version conditions or a list of
    words, depending on `Operand`.

    Default: none; required except for `is_set`, `is_not_set`, `distinct_hosts` and `distinct_property`
    Limits: at most 16,384 characters
    Example: linux
    """
    operand: str = ""
    """How the values are compared.

    A node that does not have the attribute satisfies only `!=` and `is_not_set`. In HCL the argument is
    `operator` and its default is `=`; in the API it has no default.

    Values:
        =: equal
        ==: equal
        is: equal
        !=: different, or missing
        not: different, or missing
        <: less; numbers as numbers, otherwise as text
        <=: less or equal
        >: greater
        >=: greater or equal
        regexp: the left value matches the regular expression on the right (RE2 syntax)
        version: the left version satisfies the conditions on the right, such as `>= 1.2, < 2`
        semver: the same, by the rules of semantic versioning
        set_contains: the left list contains every word of the right one; both are separated by commas
        set_contains_all: the same as `set_contains`
        set_contains_any: the left list contains at least one word of the right one
        is_set: the node has the attribute
        is_not_set: the node does not have the attribute
        distinct_hosts: all allocations of the job or group run on different nodes
        distinct_property: at most `RTarget` (default 1) allocations run on nodes with the same value of
            `LTarget`
    Default: none; required
    Limits: `distinct_hosts` and `distinct_property` only in jobs and groups
    Example: "="
    """

    def __str__(self) -> str:
        return f"{self.l_target} {self.operand} {self.r_target}"


class Affinity(Record):
    """A preference for nodes that satisfy a comparison. With a negative weight, these nodes are avoided."""

    l_target: str = ""
    """The value on the left of the comparison, usually an attribute of the node, as in a constraint.

    Default: none; required
    Limits: at most 16,384 characters
    Example: ${node.datacenter}
    """
    r_target: str = ""
    """The value on the right of the comparison, as in a constraint.

    Default: none; required
    Limits: at most 16,384 characters
    Example: dc1
    """
    operand: str = ""
    """How the values are compared.

    In HCL the argument is `operator` and its default is `=`; in the API it has no default.

    Values:
        =: equal
        ==: equal
        is: equal
        !=: different, or missing
        not: different, or missing
        <: less; numbers as numbers, otherwise as text
        <=: less or equal
        >: greater
        >=: greater or equal
        regexp: the left value matches the regular expression on the right (RE2 syntax)
        version: the left version satisfies the conditions on the right, such as `>= 1.2, < 2`
        semver: the same, by the rules of semantic versioning
        set_contains: the left list contains every word of the right one; both are separated by commas
        set_contains_all: the same as `set_contains`
        set_contains_any: the left list contains at least one word of the right one
    Default: none; required
    Example: "="
    """
    weight: int = 50
    """How much nodes that match are preferred, compared with other affinities.

    A negative weight avoids them.

    Limits: -100 to 100, not 0
    Example: 80
    """


class SpreadTarget(Record):
    """The share of the allocations that should run on nodes with one value of an attribute."""

    value: str = ""
    """One value of the attribute.

    In HCL, it is the label of the block `target`.

    Default: none; required
    Limits: different values in one spread
    Example: dc1
    """
    percent: int = 0
    """The share of the allocations that should run on nodes with this value.

    All shares of a spread together are at most 100. Values that are not listed share the rest.

    Unit: percent
    Limits: 0 to 100
    Example: 70
    """


class Spread(Record):
    """A preference to distribute allocations over the values of a node attribute."""

    attribute: str = ""
    """The attribute of the nodes over whose values the allocations are distributed.

    Default: none; required
    Example: ${node.datacenter}
    """
    weight: int = 50
    """How important the distribution is, compared with other spreads.

    Limits: 1 to 100
    Example: 100
    """
    spread_target: tuple[SpreadTarget, ...] | None = None
    """The shares of single values.

    Default: the same share for each value
    """
