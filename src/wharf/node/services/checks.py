"""What one look at a service found.

A check with everything in it put in: names, ports and addresses are known.

What a row of findings means: one bad answer may be chance, so a check may ask for several in a row.
"""

from enum import Enum
from typing import Final, NamedTuple

MAX_OUTPUT_BYTES: Final = 3 * 1_024


class CheckStatus(Enum):
    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class ProbeResult(NamedTuple):
    is_healthy: bool
    output: str
    status_code: int = 0  # Of HTTP.
    # A script may only warn; whether that counts as well is the check's to say (its OnUpdate).
    is_warning: bool = False


def truncate_output(text: str) -> str:
    """At a bound of bytes, and not within a character."""
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_OUTPUT_BYTES else data[:MAX_OUTPUT_BYTES].decode(errors="ignore")


SECOND_NS = 1_000_000_000


class CheckSpec(NamedTuple):
    id: str
    name: str
    kind: str  # http, tcp, grpc, script
    interval_s: float
    timeout_s: float
    host: str = ""
    port: int = 0
    # http
    is_tls: bool = False
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    should_skip_tls_verify: bool = False
    server_name: str = ""
    # grpc
    grpc_service: str = ""
    # script
    command: tuple[str, ...] = ()
    # How many in a row it takes. 0 and 1: the first.
    successes_needed: int = 0
    failures_needed: int = 0
    is_initially_passing: bool = False
    # Said to say nothing about health: what it finds is shown, and that is all.
    is_readiness: bool = False
    should_ignore_warnings: bool = False
    # Failures in a row after which its task is started anew; 0: never. Not counted before the grace is over.
    restart_limit: int = 0
    restart_grace_s: float = 0.0
    should_ignore_warnings_for_restart: bool = False


class CheckState(NamedTuple):
    status: CheckStatus
    successes: int = 0  # In a row.
    failures: int = 0
    # As the restart of the task counts them: neither warnings, if it takes those, nor what came in the grace.
    counted_failures: int = 0
    last: ProbeResult | None = None
    at_ns: int = 0


def create_check_state(wanted: CheckSpec) -> CheckState:
    return CheckState(CheckStatus.SUCCESS if wanted.is_initially_passing else CheckStatus.PENDING)


def apply_probe_result(
    standing: CheckState, wanted: CheckSpec, finding: ProbeResult, *, at_ns: int, running_for_s: float
) -> CheckState:
    """`runs_for_s`: how long its task has been running."""
    is_well = finding.is_healthy or (finding.is_warning and wanted.should_ignore_warnings)
    successes = standing.successes + 1 if is_well else 0
    failures = 0 if is_well else standing.failures + 1
    status = standing.status
    if successes >= max(wanted.successes_needed, 1):
        status = CheckStatus.SUCCESS
    elif failures >= max(wanted.failures_needed, 1):
        status = CheckStatus.FAILURE
    return CheckState(status, successes, failures, _counted(standing, wanted, finding, running_for_s), finding, at_ns)


def should_restart(standing: CheckState, wanted: CheckSpec) -> bool:
    return 0 < wanted.restart_limit <= standing.counted_failures


def _counted(standing: CheckState, wanted: CheckSpec, finding: ProbeResult, runs_for_s: float) -> int:
    if finding.is_healthy or (finding.is_warning and wanted.should_ignore_warnings_for_restart):
        return 0
    if runs_for_s < wanted.restart_grace_s:
        return standing.counted_failures
    return standing.counted_failures + 1
