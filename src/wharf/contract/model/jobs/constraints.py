"""What a job asks of the nodes it may run on: constraints, affinities, spreads.

Only the words and their shape live here. Whether a node satisfies them is decided by the scheduler.
"""

from enum import StrEnum

from wharf.contract.model.record import Record


class Operand(StrEnum):
    """How a constraint or an affinity compares its two targets. A submitted operand is text until it is validated."""

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
    """A node that does not satisfy this is not used at all."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""

    def __str__(self) -> str:
        return f"{self.l_target} {self.operand} {self.r_target}"


class Affinity(Record):
    """A node that satisfies this is preferred (or avoided, with a negative weight)."""

    l_target: str = ""
    r_target: str = ""
    operand: str = ""
    weight: int = 50


class SpreadTarget(Record):
    """The share of the allocations that should have this value of the spread's attribute."""

    value: str = ""
    percent: int = 0


class Spread(Record):
    """Allocations should be spread over the values of an attribute."""

    attribute: str = ""
    weight: int = 50
    spread_target: tuple[SpreadTarget, ...] | None = None
