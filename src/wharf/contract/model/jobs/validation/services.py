"""Rules for services and their checks (jobs.md 2.7)."""

import re
from collections.abc import Collection
from typing import Final

import msgspec

from wharf.contract.model.jobs.services import CheckRestart, OnUpdate, Service, ServiceCheck, ServiceProvider
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.times import SECOND, format_duration

PROVIDERS: Final = tuple(str(word) for word in ServiceProvider)
ON_UPDATES: Final = tuple(str(word) for word in OnUpdate)
NOMAD_CHECK_TYPES: Final = ("http", "tcp")
"""Check types of the native provider under Nomad's name: jobs written for Nomad get Nomad's rules (docs/adr/0063)."""
CHECK_TYPES: Final = ("http", "tcp", "grpc", "script")
"""Check types of all other providers."""
CHECK_ADDRESS_MODES: Final = ("", "host", "driver", "alloc", "alloc_ipv6")
NATIVE_CHECK_ADDRESS_MODES: Final = ("", "host", "alloc", "alloc_ipv6")
INITIAL_STATUSES: Final = ("", "passing", "warning", "critical")
HTTP_METHODS: Final = ("", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE")
MIN_CHECK_INTERVAL_NS: Final = SECOND
"""The shortest interval and timeout of a check; limits the load that checks cause."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")


class ServiceContext(msgspec.Struct, frozen=True):
    """The facts about a group and a task that a service is checked against."""

    task: str | None  # The name of the task; None for a service of the group.
    group_tasks: Collection[str]  # The names of the group's tasks.
    port_labels: Collection[str]  # The labels of the ports that the service can use.


def check_service(service: Service, context: ServiceContext, path: str, report: ValidationReport) -> None:
    """Add each problem of one service of a group or a task, and of its checks, to the report.

    `path` is the path of the service.
    """
    if not _NAME.match(service.name) and "${" not in service.name:
        report.add_error(
            f"{path}.Name",
            f"Service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be "
            f'no longer than 63 characters; got "{service.name}"',
        )
    if service.provider not in PROVIDERS:
        report.add_error(
            f"{path}.Provider",
            f'Service provider "{service.provider}" is not known',
            suggest_one_of(PROVIDERS, service.provider),
        )
    if service.on_update not in ON_UPDATES:
        report.add_error(
            f"{path}.OnUpdate",
            f'Service on_update must be known; got "{service.on_update}"',
            suggest_one_of(ON_UPDATES, service.on_update),
        )
    _check_address(service, context, path, report)
    _check_port(service.port_label, service.address_mode, context, f"{path}.PortLabel", report)
    if context.task is None and service.task_name and service.task_name not in context.group_tasks:
        report.add_error(f"{path}.TaskName", f'Service refers to task "{service.task_name}", which is not in the group')
    if service.connect is not None:
        report.add_error(
            f"{path}.Connect",
            "services cannot include Connect blocks: the service mesh of Consul is not supported",
            "delete the block, and read the addresses of other services with nomadService in a template",
        )
    if service.identity is not None and not service.identity.audience:
        report.add_error(f"{path}.Identity.Audience", "Service identity must provide at least one target aud value")
    _check_restart(service.check_restart, f"{path}.CheckRestart", report)
    _check_all_checks(service, context, path, report)


def _check_address(service: Service, context: ServiceContext, path: str, report: ValidationReport) -> None:
    """Add each problem of the address of a service to the report.

    The allowed address modes differ between services of groups and of tasks.
    """
    allowed = ("auto", "host", "alloc", "alloc_ipv6") if context.task is None else ("auto", "host", "driver")
    mode = service.address_mode
    if mode not in allowed:
        level = "group" if context.task is None else "task"
        report.add_error(
            f"{path}.AddressMode",
            f'Service address_mode "{mode}" is not allowed in a {level}',
            suggest_one_of(allowed, mode),
        )
    if service.address and mode != "auto":
        report.add_error(f"{path}.Address", 'Service address may be set only with address_mode "auto"')


def _check_port(label: str, address_mode: str, context: ServiceContext, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a port label does not exist in the network of the group."""
    if not label or label in context.port_labels or "${" in label:
        return
    if address_mode == "driver" and label.isascii() and label.isdecimal():
        return  # With the driver's own address, the label may be a port number.
    report.add_error(
        path, f'Port label "{label}" does not exist in the group\'s network', "add the port, or fix its name"
    )


def _check_restart(restart: CheckRestart | None, path: str, report: ValidationReport) -> None:
    """Add each problem of the restart rule of a service or of a health check to the report."""
    if restart is None:
        return
    if restart.limit < 0:
        report.add_error(f"{path}.Limit", f"check_restart limit must be positive; got {restart.limit}")
    if restart.grace < 0:
        report.add_error(f"{path}.Grace", f"check_restart grace must be positive; got {format_duration(restart.grace)}")


def _check_all_checks(service: Service, context: ServiceContext, path: str, report: ValidationReport) -> None:
    """Add each problem of the health checks of a service to the report."""
    names: set[str] = set()
    for position, check in enumerate(service.checks or ()):
        field_path = f"{path}.Checks[{position}]"
        section = report.add_section(f'Check "{check.name}" validation failed')
        if context.task is not None and check.name in names:
            section.add_error(f"{field_path}.Name", f'Duplicate check name "{check.name}"')
        names.add(check.name)
        _check_check(check, service, context, field_path, section)


def _check_check(
    check: ServiceCheck, service: Service, context: ServiceContext, path: str, report: ValidationReport
) -> None:
    """Add each problem of one health check of a service to the report."""
    types = NOMAD_CHECK_TYPES if service.provider == ServiceProvider.NOMAD else CHECK_TYPES
    if check.type not in types:
        fix = suggest_one_of(types, check.type)
        if check.type in CHECK_TYPES:
            fix = f'write provider = "{ServiceProvider.WHARF}" in the service, which has such checks'
        elif check.type == "https":
            fix = 'write the type "http" and the protocol "https"'
        report.add_error(f"{path}.Type", f'Invalid check type "{check.type}"', fix)
    if check.type == "http":
        _check_http(check, path, report)
    if check.type == "script" and not check.command:
        report.add_error(f"{path}.Command", "script type must have a valid script path")
    if check.type == "script" and service.is_native and context.task is None and not check.task_name:
        report.add_error(f"{path}.TaskName", "a script check needs a task to run in", "name one of the group's tasks")
    _check_times(check, path, report)
    if check.initial_status not in INITIAL_STATUSES:
        report.add_error(
            f"{path}.InitialStatus",
            f'invalid initial check state "{check.initial_status}"',
            suggest_one_of(INITIAL_STATUSES[1:], check.initial_status),
        )
    modes = NATIVE_CHECK_ADDRESS_MODES if service.is_native else CHECK_ADDRESS_MODES
    if check.address_mode not in modes:
        report.add_error(
            f"{path}.AddressMode",
            f'invalid address_mode "{check.address_mode}"',
            suggest_one_of(modes[1:], check.address_mode),
        )
    if check.type in ("http", "tcp", "grpc"):
        if not check.port_label and check.address_mode != "driver":
            report.add_error(f"{path}.PortLabel", "check requires a port but neither check nor service has a port")
        elif check.port_label != service.port_label:
            _check_port(check.port_label, check.address_mode, context, f"{path}.PortLabel", report)
    if check.on_update and check.on_update not in ON_UPDATES:
        report.add_error(
            f"{path}.OnUpdate",
            f'on_update "{check.on_update}" is not known',
            suggest_one_of(ON_UPDATES, check.on_update),
        )
    if check.task_name and check.task_name not in context.group_tasks:
        report.add_error(f"{path}.TaskName", f'Check refers to task "{check.task_name}", which is not in the group')
    if check.check_restart is not service.check_restart:
        _check_restart(check.check_restart, f"{path}.CheckRestart", report)
    restarts_task = check.check_restart is not None and check.check_restart.limit > 0
    if restarts_task and check.on_update == OnUpdate.IGNORE:
        report.add_error(f"{path}.CheckRestart", 'on_update "ignore" is not compatible with check_restart')
    if service.is_native:
        _check_native(check, path, report)
    if service.provider == ServiceProvider.NOMAD:
        _check_nomad_provider(check, path, report)


def _check_http(check: ServiceCheck, path: str, report: ValidationReport) -> None:
    """Add each problem of the path and the method of an HTTP check to the report."""
    if not check.path:
        report.add_error(f"{path}.Path", "http type must have http path")
    elif "://" in check.path.split("?", 1)[0] or check.path.startswith("//"):
        report.add_error(f"{path}.Path", "http path must be a relative url", "remove the scheme and the host")
    if check.method.upper() not in HTTP_METHODS:
        report.add_error(f"{path}.Method", f'method "{check.method}" is not a supported http method')


def _check_times(check: ServiceCheck, path: str, report: ValidationReport) -> None:
    """Add an error to the report for each of interval and timeout of a health check that is too short."""
    for article, name, value in (("an", "Interval", check.interval), ("a", "Timeout", check.timeout)):
        if value == 0:
            report.add_error(f"{path}.{name}", f"check must have {article} {name.lower()} greater than zero")
        elif value < MIN_CHECK_INTERVAL_NS:
            report.add_error(
                f"{path}.{name}",
                f"{name.lower()} ({format_duration(value)}) cannot be lower than {format_duration(MIN_CHECK_INTERVAL_NS)}",
            )


def _check_native(check: ServiceCheck, path: str, report: ValidationReport) -> None:
    """Add an error to the report for each field of a health check that only Consul supports."""
    for name, value in (("Expose", check.expose), ("FailuresBeforeWarning", check.failures_before_warning)):
        if value:
            report.add_error(f"{path}.{name}", f"{name} may only be set for Consul service checks")


def _check_nomad_provider(check: ServiceCheck, path: str, report: ValidationReport) -> None:
    """Add an error to the report for each field of a health check that Nomad's own service catalog does not support."""
    if check.on_update == OnUpdate.IGNORE_WARNINGS:
        report.add_error(f"{path}.OnUpdate", "on_update may only be set to ignore_warnings for Consul service checks")
    if check.check_restart is not None and check.check_restart.ignore_warnings:
        report.add_error(
            f"{path}.CheckRestart.IgnoreWarnings", "ignore_warnings may only be set for Consul service checks"
        )
    consul_only: tuple[tuple[str, object], ...] = (
        ("TLSServerName", check.tls_server_name),
        ("SuccessBeforePassing", check.success_before_passing),
        ("FailuresBeforeCritical", check.failures_before_critical),
    )
    for name, value in consul_only:
        if value:
            report.add_error(f"{path}.{name}", f"{name} may only be set for Consul service checks")
