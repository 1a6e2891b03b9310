"""Rules for constraints, affinities and spreads (jobs.md 2.5)."""

from typing import Final

from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand, Spread
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.jobs.version_constraints import VersionDialect, VersionError, parse_version_constraints
from wharf.languages.patterns import PatternError, compile_pattern

NODE_TARGETS: Final = frozenset(
    {"${node.unique.id}", "${node.unique.name}", "${node.datacenter}", "${node.class}", "${node.pool}"}
)
TARGET_PREFIXES: Final = ("${attr.", "${meta.", "${device.")
BOOL_WORDS: Final = frozenset(["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"])

PRESENCE_OPERANDS: Final = frozenset({Operand.IS_SET, Operand.IS_NOT_SET})
DISTINCT_OPERANDS: Final = frozenset({Operand.DISTINCT_HOSTS, Operand.DISTINCT_PROPERTY})
CONSTRAINT_OPERANDS: Final = frozenset(str(operand) for operand in Operand)
AFFINITY_OPERANDS: Final = CONSTRAINT_OPERANDS - PRESENCE_OPERANDS - DISTINCT_OPERANDS


def check_constraints(
    constraints: tuple[Constraint, ...] | None, path: str, report: ValidationReport, *, allow_distinct: bool = True
) -> None:
    """Check the constraints of a job, group, task or device. Only jobs and groups may use distinct hosts or properties."""
    for position, constraint in enumerate(constraints or ()):
        section = report.add_section(f"Constraint {position + 1} validation failed")
        _check_constraint(constraint, f"{path}.Constraints[{position}]".lstrip("."), section, allow_distinct)


def _check_constraint(constraint: Constraint, path: str, report: ValidationReport, allow_distinct: bool) -> None:
    """Check the operand and both sides of a constraint."""
    operand = constraint.operand
    if not operand:
        report.add_error(f"{path}.Operand", "Missing constraint operand")
        return
    if operand not in CONSTRAINT_OPERANDS:
        known = [str(known) for known in Operand]
        report.add_error(f"{path}.Operand", f'Unknown constraint type "{operand}"', suggest_one_of(known))
        return
    if operand in DISTINCT_OPERANDS:
        _check_distinct(constraint, path, report, allow_distinct)
    elif operand in PRESENCE_OPERANDS:
        if constraint.r_target:
            report.add_error(f"{path}.RTarget", f'Operator "{operand}" does not support an RTarget')
    else:
        _check_right_side(operand, constraint.r_target, path, report)
    if operand != Operand.DISTINCT_HOSTS:
        _check_left_side(constraint.l_target, path, report)


def _check_distinct(constraint: Constraint, path: str, report: ValidationReport, allow_distinct: bool) -> None:
    """Check a constraint on distinct hosts or distinct properties."""
    right = constraint.r_target
    if not allow_distinct:
        report.add_error(
            f"{path}.Operand",
            f'"{constraint.operand}" is not allowed here',
            "put it at the level of the job or the group",
        )
        return
    if constraint.operand == Operand.DISTINCT_HOSTS:
        if right and right not in BOOL_WORDS:
            report.add_error(f"{path}.RTarget", f'"{right}" is neither true nor false')
    elif right and not (right.isascii() and right.isdecimal() and len(right) < 19 and int(right) >= 1):
        report.add_error(f"{path}.RTarget", f'The allowed count of distinct_property must be at least 1; got "{right}"')


def _check_right_side(operand: str, right: str, path: str, report: ValidationReport) -> None:
    """Check that the right side is set and is valid for the operand: a pattern, a version constraint or any text."""
    if not right:
        report.add_error(f"{path}.RTarget", f'Operator "{operand}" requires an RTarget')
        return
    try:
        if operand == Operand.REGEXP:
            compile_pattern(right)
        elif operand == Operand.VERSION:
            parse_version_constraints(right, VersionDialect.VERSION)
        elif operand == Operand.SEMVER:
            parse_version_constraints(right, VersionDialect.SEMVER)
    except PatternError as error:
        report.add_error(f"{path}.RTarget", f"Regular expression failed to compile: {error}")
    except VersionError as error:
        name = "Version" if operand == Operand.VERSION else "Semver"
        report.add_error(f"{path}.RTarget", f"{name} constraint is invalid: {error}")


def _check_left_side(left: str, path: str, report: ValidationReport) -> None:
    """Check that the left side is set and is a known node attribute."""
    if not left:
        report.add_error(f"{path}.LTarget", "No LTarget provided but is required by constraint")
    elif left.startswith("$") and not _is_known_target(left):
        report.add_error(
            f"{path}.LTarget",
            f'unsupported attribute "{left}"',
            "use ${attr...}, ${meta...}, ${device...} or ${node...}",
        )


def _is_known_target(target: str) -> bool:
    return target in NODE_TARGETS or (target.startswith(TARGET_PREFIXES) and target.endswith("}"))


def check_affinities(
    affinities: tuple[Affinity, ...] | None, path: str, report: ValidationReport, *, job_type: str
) -> None:
    """Check the affinities of a job, group, task or device. System jobs run on every node, so they have none."""
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
    """Check the operand, both sides and the weight of an affinity."""
    operand = affinity.operand
    if not operand:
        report.add_error(f"{path}.Operand", "Missing affinity operand")
    elif operand not in AFFINITY_OPERANDS:
        report.add_error(
            f"{path}.Operand", f'Unknown affinity operator "{operand}"', suggest_one_of(sorted(AFFINITY_OPERANDS))
        )
    else:
        _check_right_side(operand, affinity.r_target, path, report)
    _check_left_side(affinity.l_target, path, report)
    if affinity.weight == 0 or not -100 <= affinity.weight <= 100:
        report.add_error(
            f"{path}.Weight", f"Affinity weight must be within the range [-100, 100] and not 0; got {affinity.weight}"
        )


def check_spreads(spreads: tuple[Spread, ...] | None, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Check the spreads of a job or a group."""
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
    """Check the weight and the target percentages of a spread."""
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
