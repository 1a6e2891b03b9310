"""Health checks as values: what to check, the result of one probe, and the state after several probes.

One failure may be chance, so a check can require several equal results in a row before its status changes.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from wharf.contract.model.body_limits import find_name_problem

MAX_OUTPUT_BYTES: Final = 3 * 1_024
"""Limit of the output kept of one probe; protects the memory of the node."""


MAX_PORT: Final = 65_535
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The method and the name of a header (RFC 9110, section 5.6.2)."""
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no value of a header may contain; a tab is allowed."""


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
    # Why the check cannot run as it is in the job, and how to fix that; every probe fails with it. Empty: it can run.
    problem: str = ""
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


def find_input_problem(spec: CheckSpec) -> str:
    """Return why no probe of the check can succeed, and how to fix that; empty if it may succeed."""
    if problem := find_name_problem(spec.name):
        return f"the name of the check {problem} after its references are replaced"
    if spec.kind == "script":
        if any("\0" in word for word in spec.command):
            return "the command has a zero byte: remove it from `command` and `args`"
        return ""
    if not spec.host or not 0 < spec.port <= MAX_PORT:
        return (
            f"no address: port {spec.port} is not between 1 and {MAX_PORT}; name a port of the group in the check or its "
            "service"
        )
    return _find_http_problem(spec) if spec.kind == "http" else ""


def _find_http_problem(spec: CheckSpec) -> str:
    """Return why the HTTP request of a check cannot be sent; empty if it can."""
    if not _TOKEN.fullmatch(spec.method):
        return f"method {spec.method[:50]!r} is not an HTTP method: write a name such as GET"
    for name, value in spec.headers:
        if not _TOKEN.fullmatch(name):
            return f"header {name[:50]!r} is not a name of an HTTP header: use letters, digits and hyphens"
        if _CONTROL_CHARACTER.search(value):
            return f'header "{name[:50]}" contains a control character, such as a line break: remove it'
    if match := _CONTROL_CHARACTER.search(spec.path):
        return f"path contains the control character {match[0]!r}: remove it"
    try:
        (spec.server_name or "host").encode("idna")
    except UnicodeError:
        return f"TLS server name {spec.server_name[:50]!r} is not a host name"
    return ""
