"""Health checks as values: what to check, the result of one probe, and the state after several probes.

One failure may be chance, so a check can require several equal results in a row before its status changes.
"""

from enum import Enum
from typing import Final, NamedTuple

MAX_OUTPUT_BYTES: Final = 3 * 1_024
"""Limit of the output kept of one probe; protects the memory of the node."""


class CheckStatus(Enum):
    """The status of a check, as the API shows it."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class ProbeResult(NamedTuple):
    """The result of one probe of a service."""

    is_healthy: bool
    output: str
    status_code: int = 0  # The HTTP status.
    # A script reported a warning; the check's `OnUpdate` says whether that counts as healthy.
    is_warning: bool = False


def truncate_output(text: str) -> str:
    """Return the text, cut to `MAX_OUTPUT_BYTES` without breaking a character."""
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_OUTPUT_BYTES else data[:MAX_OUTPUT_BYTES].decode(errors="ignore")


class CheckSpec(NamedTuple):
    """A service check with all names, ports and addresses resolved.

    Fields for one kind of check are ignored by the others.
    """

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
    # How many equal results in a row change the status. 0 means 1.
    successes_needed: int = 0
    failures_needed: int = 0
    is_initially_passing: bool = False
    # The result is shown but does not count for the health of the allocation.
    is_readiness: bool = False
    should_ignore_warnings: bool = False
    # Failures in a row after which the task is restarted; 0: never. They are not counted before the grace period is over.
    restart_limit: int = 0
    restart_grace_s: float = 0.0
    should_ignore_warnings_for_restart: bool = False


class CheckState(NamedTuple):
    """The state of a check after its last probe."""

    status: CheckStatus
    successes: int = 0  # In a row.
    failures: int = 0  # In a row.
    # Failures that count for a restart: not those in the grace period, and not warnings if the check ignores them.
    counted_failures: int = 0
    last: ProbeResult | None = None  # the result of the last probe
    at_ns: int = 0  # time of the last probe


def create_check_state(spec: CheckSpec) -> CheckState:
    """Return the state of a check before its first probe."""
    return CheckState(CheckStatus.SUCCESS if spec.is_initially_passing else CheckStatus.PENDING)


def apply_probe_result(
    state: CheckState, spec: CheckSpec, result: ProbeResult, *, at_ns: int, running_for_s: float
) -> CheckState:
    """Return the state of a check after one more probe with this result.

    `at_ns` is the time of the probe, and `running_for_s` the time since the task's start.
    """
    is_healthy = result.is_healthy or (result.is_warning and spec.should_ignore_warnings)
    successes = state.successes + 1 if is_healthy else 0
    failures = 0 if is_healthy else state.failures + 1
    status = state.status
    if successes >= max(spec.successes_needed, 1):
        status = CheckStatus.SUCCESS
    elif failures >= max(spec.failures_needed, 1):
        status = CheckStatus.FAILURE
    return CheckState(status, successes, failures, _count_failures(state, spec, result, running_for_s), result, at_ns)


def should_restart(state: CheckState, spec: CheckSpec) -> bool:
    """Return whether the check has failed so often that the task must be restarted."""
    return 0 < spec.restart_limit <= state.counted_failures


def _count_failures(state: CheckState, spec: CheckSpec, result: ProbeResult, running_for_s: float) -> int:
    """Return the number of failures in a row that count for a restart, after this probe.

    Failures in the grace period after the task's start do not count.
    """
    if result.is_healthy or (result.is_warning and spec.should_ignore_warnings_for_restart):
        return 0
    if running_for_s < spec.restart_grace_s:
        return state.counted_failures
    return state.counted_failures + 1
