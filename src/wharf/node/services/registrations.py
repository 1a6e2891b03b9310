"""Derives service registrations and checks from the job and the resources that were assigned to the allocation."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.services import OnUpdate, Service, ServiceCheck
from wharf.contract.model.services import (
    GROUP_OWNER_PREFIX,
    ServiceRegistration,
    find_registration_problem,
    make_registration_id,
)
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.core.record import AllocationRecord
from wharf.node.core.steps import TaskStep
from wharf.node.services.checks import CheckSpec, find_input_problem
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.interpolation import ReferenceValues, ResolutionLimit, resolve_text

MAX_CHECK_CHARACTERS: Final = 262_144
"""Limit of the texts with references of one check, after these were replaced; protects the memory of the node."""
MAX_PORT_DIGITS: Final = 5
"""Digits of the largest port; a longer label is no port number."""
ALLOCATION_ADDRESS_MODE: Final = "alloc"
"""The address mode that selects the address inside the allocation's own network."""


class ServiceInstance(NamedTuple):
    """A service of this allocation with its address and port."""

    service: Service
    task: str  # empty: the service belongs to the group
    address: str
    port: int


class AllocationCheck(NamedTuple):
    """A check of this allocation, with the service that it belongs to."""

    spec: CheckSpec
    service: str  # the name of the service
    task: str
    """Empty for a service of the group."""
    script_task: str
    """The task in which a script runs and which a failing check restarts."""


def list_services(allocation: AssignedAllocation, job: Job, host: TaskHost) -> Iterator[ServiceInstance]:
    """Yield the allocation's services that are registered with the cluster itself, with address and port."""
    group = job.find_group(allocation.task_group)
    if group is None:
        return
    owned = [("", service) for service in group.services or ()]
    owned += [(task.name, service) for task in group.tasks or () for service in task.services or ()]
    for task, service in owned:
        if service.is_native:
            yield ServiceInstance(
                service, task, *_resolve_address(allocation, service.port_label, service.address_mode, host)
            )


def is_service_up(record: AllocationRecord, instance: ServiceInstance) -> bool:
    """Return whether the service must be registered: its task runs and is not being stopped or restarted.

    For a service of the group, any task of the group.
    """
    if record.is_to_stop:
        return False
    tasks = [record.task(instance.task)] if instance.task else record.tasks
    return any(task.step is TaskStep.RUNNING and not task.is_to_end and not task.is_restarting for task in tasks)


def build_registration(
    allocation: AssignedAllocation,
    instance: ServiceInstance,
    host: TaskHost,
    reference_values: ReferenceValues,
    limit: ResolutionLimit,
) -> ServiceRegistration:
    """Return the registration of a service, with all references in its name, tags and address resolved.

    `limit` limits the results for all services of the allocation together. It also gets the problem of a registration
    that servers do not store.
    """
    service = instance.service
    owner = instance.task or f"{GROUP_OWNER_PREFIX}{allocation.task_group}"
    place = f'service "{service.name[:100]}"'
    name = resolve_text(service.name, reference_values, None, limit, f"the name of {place}")
    registration = ServiceRegistration(
        id=make_registration_id(alloc_id=allocation.id, owner=owner, service=name, port_label=service.port_label),
        service_name=name,
        namespace=allocation.namespace,
        node_id=host.node_id,
        datacenter=host.datacenter,
        job_id=allocation.job_id,
        alloc_id=allocation.id,
        tags=tuple(
            resolve_text(tag, reference_values, None, limit, f"tag {number} of {place}")
            for number, tag in enumerate(service.tags or (), start=1)
        ),
        address=resolve_text(service.address, reference_values, None, limit, f"the address of {place}")
        or instance.address,
        port=instance.port,
    )
    if problem := find_registration_problem(registration):
        limit.report_problem(f"{place} cannot be registered: {problem} after its references are replaced")
    return registration


def list_checks(
    allocation: AssignedAllocation, job: Job, host: TaskHost, find_reference_values: Callable[[str], ReferenceValues]
) -> list[AllocationCheck]:
    """Return the checks of all services of the allocation, with all references resolved.

    `find_reference_values` takes the name of a task, or an empty name for the group.
    """
    checks = []
    for instance in list_services(allocation, job, host):
        if not instance.service.checks:
            continue
        reference_values = find_reference_values(instance.task)
        for check in instance.service.checks or ():
            label = check.port_label or instance.service.port_label
            mode = check.address_mode or instance.service.address_mode
            address, port = _resolve_address(allocation, label, mode, host)
            spec = _build_check_spec(allocation, instance, check, address, port, reference_values)
            name = resolve_text(instance.service.name, reference_values)
            checks.append(AllocationCheck(spec, name, instance.task, check.task_name or instance.task))
    return checks


def _build_check_spec(
    allocation: AssignedAllocation,
    instance: ServiceInstance,
    check: ServiceCheck,
    address: str,
    port: int,
    reference_values: ReferenceValues,
) -> CheckSpec:
    """Return a check of the job with its names and references resolved, for this address and port.

    A missing interval or timeout becomes one second.
    """
    service = instance.service
    limit = ResolutionLimit(MAX_CHECK_CHARACTERS)

    def resolve(text: str, place: str) -> str:
        """Return a text of the check with its references resolved."""
        return resolve_text(text, reference_values, None, limit, f"{place} of the check")

    name = resolve(check.name, "the name") or f'service: "{service.name}" check'
    restart = check.check_restart or service.check_restart
    on_update = check.on_update or service.on_update
    spec = CheckSpec(
        id=make_check_id(allocation, instance, name, check),
        name=name,
        kind=check.type,
        interval_s=max(1.0, check.interval / SECOND),
        timeout_s=max(1.0, check.timeout / SECOND),
        host=address,
        port=port,
        is_tls=check.protocol == "https" or check.grpc_use_tls,
        path=resolve(check.path, "the path"),
        method=check.method or "GET",
        headers=tuple(
            (name, resolve(value, f'header "{name[:100]}"'))
            for name, values in (check.header or {}).items()
            for value in values
        ),
        body=resolve(check.body, "the body"),
        should_skip_tls_verify=check.tls_skip_verify,
        server_name=check.tls_server_name,
        grpc_service=check.grpc_service,
        command=(check.command, *(resolve(argument, "an argument") for argument in check.args or ())),
        successes_needed=check.success_before_passing,
        failures_needed=check.failures_before_critical,
        is_initially_passing=check.initial_status == "passing",
        is_readiness=on_update == OnUpdate.IGNORE,
        should_ignore_warnings=on_update in (OnUpdate.IGNORE_WARNINGS, OnUpdate.IGNORE),
        restart_limit=restart.limit if restart is not None else 0,
        restart_grace_s=restart.grace / SECOND if restart is not None else 0.0,
        should_ignore_warnings_for_restart=restart.ignore_warnings if restart is not None else False,
    )
    return spec._replace(problem=limit.problem or find_input_problem(spec))


def make_check_id(allocation: AssignedAllocation, instance: ServiceInstance, name: str, check: ServiceCheck) -> str:
    """Return the id of a check, a hash: equal for the same check of the same allocation."""
    parts = (allocation.id, allocation.task_group, instance.task, instance.service.name, name, check.type, check.path)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _resolve_address(allocation: AssignedAllocation, port_label: str, mode: str, host: TaskHost) -> tuple[str, int]:
    """Return (address, port) for `port_label`, which is the label of an allocated port or a port number.

    With the address mode `alloc`, they are those inside the allocation's own network. For an unknown label, they are
    empty and 0.
    """
    is_inner_address = mode == ALLOCATION_ADDRESS_MODE and bool(host.allocation_address)
    if not port_label:
        return (host.allocation_address, 0) if is_inner_address else ("", 0)
    allocated = allocation.allocated_resources
    for port in (allocated.shared.ports or ()) if allocated is not None else ():
        if port.label == port_label:
            if is_inner_address:
                return host.allocation_address, port.to if port.to > 0 else port.value
            return port.host_ip or host.address, port.value
    if not (port_label.isdecimal() and len(port_label) <= MAX_PORT_DIGITS):
        return "", 0
    return (host.allocation_address if is_inner_address else host.address), int(port_label)
