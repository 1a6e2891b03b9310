"""What a row of findings means: one bad answer may be chance, so a check may ask for several in a row."""

from typing import NamedTuple

from wharf.node.checks.finding import CheckStatus, Finding
from wharf.node.checks.wanted import Wanted


class Standing(NamedTuple):
    status: CheckStatus
    successes: int = 0  # In a row.
    failures: int = 0
    # As the restart of the task counts them: neither warnings, if it takes those, nor what came in the grace.
    counted_failures: int = 0
    last: Finding | None = None
    at_ns: int = 0


def begin(wanted: Wanted) -> Standing:
    return Standing(CheckStatus.SUCCESS if wanted.is_well_at_first else CheckStatus.PENDING)


def hear(standing: Standing, wanted: Wanted, finding: Finding, *, at_ns: int, runs_for_s: float) -> Standing:
    """`runs_for_s`: how long its task has been running."""
    is_well = finding.is_well or (finding.is_warning and wanted.takes_warnings)
    successes = standing.successes + 1 if is_well else 0
    failures = 0 if is_well else standing.failures + 1
    status = standing.status
    if successes >= max(wanted.successes_needed, 1):
        status = CheckStatus.SUCCESS
    elif failures >= max(wanted.failures_needed, 1):
        status = CheckStatus.FAILURE
    return Standing(status, successes, failures, _counted(standing, wanted, finding, runs_for_s), finding, at_ns)


def wants_restart(standing: Standing, wanted: Wanted) -> bool:
    return 0 < wanted.restart_limit <= standing.counted_failures


def _counted(standing: Standing, wanted: Wanted, finding: Finding, runs_for_s: float) -> int:
    if finding.is_well or (finding.is_warning and wanted.restart_takes_warnings):
        return 0
    if runs_for_s < wanted.restart_grace_s:
        return standing.counted_failures
    return standing.counted_failures + 1
