"""Rules of constraints, affinities and spreads (jobs.md 2.5)."""

from typing import Final

from wharf.model.pattern import PatternError, pattern
from wharf.model.placement import Affinity, Constraint, Operand, Spread
from wharf.model.validation.findings import Report, one_of
from wharf.model.version_constraint import Dialect, VersionError, version_constraints

NODE_TARGETS: Final = frozenset(
    {"${node.unique.id}", "${node.unique.name}", "${node.datacenter}", "${node.class}", "${node.pool}"}
)
TARGET_PREFIXES: Final = ("${attr.", "${meta.", "${device.")
BOOL_WORDS: Final = frozenset(["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"])

PRESENCES: Final = frozenset({Operand.IS_SET, Operand.IS_NOT_SET})
DISTINCTIONS: Final = frozenset({Operand.DISTINCT_HOSTS, Operand.DISTINCT_PROPERTY})
CONSTRAINT_OPERANDS: Final = frozenset(str(operand) for operand in Operand)
AFFINITY_OPERANDS: Final = CONSTRAINT_OPERANDS - PRESENCES - DISTINCTIONS


def check_constraints(
    constraints: tuple[Constraint, ...] | None, path: str, report: Report, *, allow_distinct: bool = True
) -> None:
    """The constraints of one level; a task and a device may not ask for distinct hosts or properties."""
    for position, constraint in enumerate(constraints or ()):
        inner = report.section(f"Constraint {position + 1} validation failed")
        _check_constraint(constraint, f"{path}.Constraints[{position}]".lstrip("."), inner, allow_distinct)


def _check_constraint(constraint: Constraint, path: str, report: Report, allow_distinct: bool) -> None:
    operand = constraint.operand
    if not operand:
        report.error(f"{path}.Operand", "Missing constraint operand")
        return
    if operand not in CONSTRAINT_OPERANDS:
        known = [str(known) for known in Operand]
        report.error(f"{path}.Operand", f'Unknown constraint type "{operand}"', one_of(known))
        return
    if operand in DISTINCTIONS:
        _check_distinct(constraint, path, report, allow_distinct)
    elif operand in PRESENCES:
        if constraint.r_target:
            report.error(f"{path}.RTarget", f'Operator "{operand}" does not support an RTarget')
    else:
        _check_right_side(operand, constraint.r_target, path, report)
    if operand != Operand.DISTINCT_HOSTS:
        _check_left_side(constraint.l_target, path, report)


def _check_distinct(constraint: Constraint, path: str, report: Report, allow_distinct: bool) -> None:
    right = constraint.r_target
    if not allow_distinct:
        report.error(
            f"{path}.Operand",
            f'"{constraint.operand}" is not allowed here',
            "put it at the level of the job or the group",
        )
        return
    if constraint.operand == Operand.DISTINCT_HOSTS:
        if right and right not in BOOL_WORDS:
            report.error(f"{path}.RTarget", f'"{right}" is neither true nor false')
    elif right and not (right.isascii() and right.isdecimal() and len(right) < 19 and int(right) >= 1):
        report.error(f"{path}.RTarget", f'The allowed count of distinct_property must be at least 1; got "{right}"')


def _check_right_side(operand: str, right: str, path: str, report: Report) -> None:
    if not right:
        report.error(f"{path}.RTarget", f'Operator "{operand}" requires an RTarget')
        return
    try:
        if operand == Operand.REGEXP:
            pattern(right)
        elif operand == Operand.VERSION:
            version_constraints(right, Dialect.VERSION)
        elif operand == Operand.SEMVER:
            version_constraints(right, Dialect.SEMVER)
    except PatternError as error:
        report.error(f"{path}.RTarget", f"Regular expression failed to compile: {error}")
    except VersionError as error:
        name = "Version" if operand == Operand.VERSION else "Semver"
        report.error(f"{path}.RTarget", f"{name} constraint is invalid: {error}")


def _check_left_side(left: str, path: str, report: Report) -> None:
    if not left:
        report.error(f"{path}.LTarget", "No LTarget provided but is required by constraint")
    elif left.startswith("$") and not _is_known_target(left):
        report.error(
            f"{path}.LTarget",
            f'unsupported attribute "{left}"',
            "use ${attr...}, ${meta...}, ${device...} or ${node...}",
        )


def _is_known_target(target: str) -> bool:
    return target in NODE_TARGETS or (target.startswith(TARGET_PREFIXES) and target.endswith("}"))


def check_affinities(affinities: tuple[Affinity, ...] | None, path: str, report: Report, *, job_type: str) -> None:
    """The affinities of one level; a system job runs on every node and prefers none."""
    if not affinities:
        return
    where = f"{path}.Affinities".lstrip(".")
    if job_type == "system":
        report.error(where, "System jobs may not have an affinity block")
        return
    for position, affinity in enumerate(affinities):
        _check_affinity(affinity, f"{where}[{position}]", report.section(f"Affinity {position + 1} validation failed"))


def _check_affinity(affinity: Affinity, path: str, report: Report) -> None:
    operand = affinity.operand
    if not operand:
        report.error(f"{path}.Operand", "Missing affinity operand")
    elif operand not in AFFINITY_OPERANDS:
        report.error(f"{path}.Operand", f'Unknown affinity operator "{operand}"', one_of(sorted(AFFINITY_OPERANDS)))
    else:
        _check_right_side(operand, affinity.r_target, path, report)
    _check_left_side(affinity.l_target, path, report)
    if affinity.weight == 0 or not -100 <= affinity.weight <= 100:
        report.error(
            f"{path}.Weight", f"Affinity weight must be within the range [-100, 100] and not 0; got {affinity.weight}"
        )


def check_spreads(spreads: tuple[Spread, ...] | None, path: str, report: Report, *, job_type: str) -> None:
    """The spreads of one level."""
    if not spreads:
        return
    where = f"{path}.Spreads".lstrip(".")
    if job_type == "system":
        report.error(where, "System jobs may not have a spread block")
        return
    for position, spread in enumerate(spreads):
        _check_spread(spread, f"{where}[{position}]", report.section(f"Spread {position + 1} validation failed"))


def _check_spread(spread: Spread, path: str, report: Report) -> None:
    if not spread.attribute:
        report.error(f"{path}.Attribute", "Missing spread attribute")
    if not 1 <= spread.weight <= 100:
        report.error(f"{path}.Weight", f"Spread block must have a weight in range [1, 100]; got {spread.weight}")
    seen: set[str] = set()
    for position, target in enumerate(spread.spread_target or ()):
        where = f"{path}.SpreadTarget[{position}]"
        if target.value in seen:
            report.error(f"{where}.Value", f'Spread target value "{target.value}" already defined')
        seen.add(target.value)
        if not 0 <= target.percent <= 100:
            report.error(
                f"{where}.Percent", f"Spread target percentage must be between 0 and 100; got {target.percent}"
            )
    total = sum(target.percent for target in spread.spread_target or ())
    if total > 100:
        report.error(
            f"{path}.SpreadTarget", f"Sum of spread target percentages must not be greater than 100%; got {total}%"
        )
