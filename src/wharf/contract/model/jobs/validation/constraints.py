"""Rules for constraints, affinities and spreads (jobs.md 2.5)."""

import re
from typing import Final

from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand, Spread
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.jobs.version_constraints import VersionDialect, VersionError, parse_version_constraints
from wharf.languages.patterns import PatternError, compile_pattern
from wharf.languages.suggestions import find_nearest_name

_BARE_TARGET: Final = re.compile(r"(?:attr|meta|node|device)\.\w")
"""The start of a reference without `${` around it."""
NODE_TARGETS: Final = frozenset(
    {"${node.unique.id}", "${node.unique.name}", "${node.datacenter}", "${node.class}", "${node.pool}"}
)
"""Node properties that constraints can compare."""
MIN_TARGET_SIMILARITY: Final = 0.85
"""How similar a node property must be to be suggested. All of them begin with `${node.`, which makes them similar."""
TARGET_PREFIXES: Final = ("${attr.", "${meta.", "${device.")
"""Beginnings of other values of a node that constraints can compare."""
BOOL_WORDS: Final = frozenset(["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"])
"""Texts that stand for true or false."""

PRESENCE_OPERANDS: Final = frozenset({Operand.IS_SET, Operand.IS_NOT_SET})
DISTINCT_OPERANDS: Final = frozenset({Operand.DISTINCT_HOSTS, Operand.DISTINCT_PROPERTY})
CONSTRAINT_OPERANDS: Final = frozenset(str(operand) for operand in Operand)
AFFINITY_OPERANDS: Final = CONSTRAINT_OPERANDS - PRESENCE_OPERANDS - DISTINCT_OPERANDS


def check_constraints(
    constraints: tuple[Constraint, ...] | None, path: str, report: ValidationReport, *, allow_distinct: bool = True
) -> None:
    """Add each problem of these constraints to the report.

    `path` is the path of the job, group, task or device that has them. Only jobs and groups may require distinct
    hosts or properties.
    """
    for position, constraint in enumerate(constraints or ()):
        section = report.add_section(f"Constraint {position + 1} validation failed")
        _check_constraint(constraint, f"{path}.Constraints[{position}]".lstrip("."), section, allow_distinct)


def _check_constraint(constraint: Constraint, path: str, report: ValidationReport, allow_distinct: bool) -> None:
    """Add each problem of a constraint to the report, such as an unknown operand or an invalid right value."""
    operand = constraint.operand
    if not operand:
        report.add_error(f"{path}.Operand", "Missing constraint operand")
        return
    if operand not in CONSTRAINT_OPERANDS:
        known = [str(known) for known in Operand]
        report.add_error(f"{path}.Operand", f'Unknown constraint type "{operand}"', suggest_one_of(known, operand))
        return
    if operand in DISTINCT_OPERANDS:
        _check_distinct(constraint, path, report, allow_distinct)
    elif operand in PRESENCE_OPERANDS:
        if constraint.r_target:
            report.add_error(f"{path}.RTarget", f'Operator "{operand}" does not support an RTarget')
    else:
        _check_right_value(operand, constraint.r_target, path, report)
    if operand != Operand.DISTINCT_HOSTS:
        _check_left_value(constraint.l_target, path, report)


def _check_distinct(constraint: Constraint, path: str, report: ValidationReport, allow_distinct: bool) -> None:
    """Add each problem of a constraint with the operand `distinct_hosts` or `distinct_property` to the report."""
    right_value = constraint.r_target
    if not allow_distinct:
        report.add_error(
            f"{path}.Operand",
            f'"{constraint.operand}" is not allowed here',
            "put it at the level of the job or the group",
        )
        return
    if constraint.operand == Operand.DISTINCT_HOSTS:
        if right_value and right_value not in BOOL_WORDS:
            report.add_error(f"{path}.RTarget", f'"{right_value}" is neither true nor false')
    elif right_value and not (
        right_value.isascii() and right_value.isdecimal() and len(right_value) < 19 and int(right_value) >= 1
    ):
        report.add_error(
            f"{path}.RTarget", f'The allowed count of distinct_property must be at least 1; got "{right_value}"'
        )


def _check_right_value(operand: str, right_value: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the right value of a constraint is missing or does not suit the operand.

    The value must be a regular expression, a list of version constraints or any text.
    """
    if not right_value:
        report.add_error(f"{path}.RTarget", f'Operator "{operand}" requires an RTarget')
        return
    try:
        if operand == Operand.REGEXP:
            compile_pattern(right_value)
        elif operand == Operand.VERSION:
            parse_version_constraints(right_value, VersionDialect.VERSION)
        elif operand == Operand.SEMVER:
            parse_version_constraints(right_value, VersionDialect.SEMVER)
    except PatternError as error:
        report.add_error(f"{path}.RTarget", f"Regular expression failed to compile: {error}")
    except VersionError as error:
        name = "Version" if operand == Operand.VERSION else "Semver"
        report.add_error(f"{path}.RTarget", f"{name} constraint is invalid: {error}")


def _check_left_value(left_value: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the left value of a constraint is missing or an unknown kind of node attribute."""
    if not left_value:
        report.add_error(f"{path}.LTarget", "No LTarget provided but is required by constraint")
    elif _BARE_TARGET.match(left_value):
        report.add_warning(
            f"{path}.LTarget",
            f'"{left_value[:80]}" is a plain text, which is the same on each node',
            f"did you forget ${{ }}? Write ${{{left_value[:80]}}}",
        )
    elif left_value.startswith("$") and not _is_known_target(left_value):
        nearest = find_nearest_name(left_value, NODE_TARGETS, min_similarity=MIN_TARGET_SIMILARITY)
        fix = f'did you mean "{nearest}"?' if nearest else "use ${attr...}, ${meta...}, ${device...} or ${node...}"
        report.add_error(f"{path}.LTarget", f'unsupported attribute "{left_value}"', fix)


def _is_known_target(target: str) -> bool:
    """Return whether this is a variable with a value of the node, such as `${attr.kernel.name}`."""
    return target in NODE_TARGETS or (target.startswith(TARGET_PREFIXES) and target.endswith("}"))


def check_affinities(
    affinities: tuple[Affinity, ...] | None, path: str, report: ValidationReport, *, job_type: str
) -> None:
    """Add each problem of these affinities to the report.

    `path` is the path of the job, group, task or device that has them. System jobs run on every node, so they must
    not have affinities.
    """
    if not affinities:
        return
    field_path = f"{path}.Affinities".lstrip(".")
    if job_type == "system":
        report.add_error(field_path, "System jobs may not have an affinity block")
        return
    for position, affinity in enumerate(affinities):
        _check_affinity(
            affinity, f"{field_path}[{position}]", report.add_section(f"Affinity {position + 1} validation failed")
        )


def _check_affinity(affinity: Affinity, path: str, report: ValidationReport) -> None:
    """Add each problem of an affinity to the report: operand, left and right value, weight."""
    operand = affinity.operand
    if not operand:
        report.add_error(f"{path}.Operand", "Missing affinity operand")
    elif operand not in AFFINITY_OPERANDS:
        report.add_error(
            f"{path}.Operand",
            f'Unknown affinity operator "{operand}"',
            suggest_one_of(sorted(AFFINITY_OPERANDS), operand),
        )
    else:
        _check_right_value(operand, affinity.r_target, path, report)
    _check_left_value(affinity.l_target, path, report)
    if affinity.weight == 0 or not -100 <= affinity.weight <= 100:
        report.add_error(
            f"{path}.Weight", f"Affinity weight must be within the range [-100, 100] and not 0; got {affinity.weight}"
        )


def check_spreads(spreads: tuple[Spread, ...] | None, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Add each problem of the spreads of a job or a group to the report.

    `path` is the path of the job or group. System jobs run on every node, so they must not have spreads.
    """
    if not spreads:
        return
    field_path = f"{path}.Spreads".lstrip(".")
    if job_type == "system":
        report.add_error(field_path, "System jobs may not have a spread block")
        return
    for position, spread in enumerate(spreads):
        _check_spread(
            spread, f"{field_path}[{position}]", report.add_section(f"Spread {position + 1} validation failed")
        )


def _check_spread(spread: Spread, path: str, report: ValidationReport) -> None:
    """Add each problem of a spread to the report: attribute, weight, target values and percentages."""
    if not spread.attribute:
        report.add_error(f"{path}.Attribute", "Missing spread attribute")
    if not 1 <= spread.weight <= 100:
        report.add_error(f"{path}.Weight", f"Spread block must have a weight in range [1, 100]; got {spread.weight}")
    seen: set[str] = set()
    for position, target in enumerate(spread.spread_target or ()):
        field_path = f"{path}.SpreadTarget[{position}]"
        if target.value in seen:
            report.add_error(f"{field_path}.Value", f'Spread target value "{target.value}" already defined')
        seen.add(target.value)
        if not 0 <= target.percent <= 100:
            report.add_error(
                f"{field_path}.Percent", f"Spread target percentage must be between 0 and 100; got {target.percent}"
            )
    total = sum(target.percent for target in spread.spread_target or ())
    if total > 100:
        report.add_error(
            f"{path}.SpreadTarget", f"Sum of spread target percentages must not be greater than 100%; got {total}%"
        )
